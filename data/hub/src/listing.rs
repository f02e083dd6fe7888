//! The commit of a revision, and the files of a commit: asked of the hub, kept in the cache.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::ser::{PrettyFormatter, Serializer};
use tooltune_rows::regular_file;

use crate::budgets::LISTING_BYTES;
use crate::cache::{RepoCache, is_commit, is_sha256};
use crate::client::{Client, Outgoing};
use crate::error::HubError;
use crate::fetch::Listener;
use crate::name::{RepoName, is_safe, quoted_part};
use crate::refusal::{About, text};

/// The most files of a repository; the hub advises less than a tenth of it.
const MAX_FILES: usize = 1_000_000;

/// The version of the layout that `huggingface_hub` writes.
const FORMAT_VERSION: u64 = 1;

/// A file of a commit, with the names that the hub's listing has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedFile {
    /// Its bytes.
    pub(crate) size: u64,
    /// What git calls it: of a large file its pointer.
    pub(crate) blob_id: String,
    /// What its content is, where it lies in the storage of large files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lfs_sha256: Option<String>,
    /// Its bytes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lfs_size: Option<u64>,
    /// Kept for `huggingface_hub`, which reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) xet_hash: Option<String>,
}

impl ListedFile {
    /// Bytes of its content.
    pub(crate) fn bytes(&self) -> u64 {
        self.lfs_size.unwrap_or(self.size)
    }

    /// What the hub gives as its ETag.
    pub(crate) fn etag(&self) -> &str {
        self.lfs_sha256.as_deref().unwrap_or(&self.blob_id)
    }
}

/// The files of a commit by their paths.
pub(crate) type Files = BTreeMap<String, ListedFile>;

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    format_version: u64,
    files: Files,
}

impl RepoCache {
    /// The listing of a commit as either program has kept it; nothing where there is none, or one of
    /// another version or damaged, which is fetched anew.
    pub(crate) fn listing(&self, commit: &str) -> Result<Option<Files>, HubError> {
        let path = self.listing_path(commit);
        let bytes = regular_file::read_if_there(&path, LISTING_BYTES);
        let bytes = bytes.map_err(HubError::io("read", &path))?;
        let kept: Option<Kept> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let kept = kept.filter(|kept| kept.format_version == FORMAT_VERSION);
        Ok(kept
            .map(|kept| kept.files)
            .filter(|files| files.iter().all(|(path, file)| is_good(path, file))))
    }

    /// Keeps the listing of a commit, byte for byte as `huggingface_hub` does.
    pub(crate) fn keep_listing(&self, commit: &str, files: &Files) -> Result<(), HubError> {
        let mut bytes = Vec::new();
        let kept = Kept {
            format_version: FORMAT_VERSION,
            files: files.clone(),
        };
        let mut serializer =
            Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b" "));
        let path = self.listing_path(commit);
        kept.serialize(&mut serializer)
            .map_err(std::io::Error::from)
            .map_err(HubError::io("write", &path))?;
        self.replace(&path, &ascii(&String::from_utf8_lossy(&bytes)))
    }
}

/// JSON with every character beyond ASCII escaped, as Python writes it.
fn ascii(json: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(json.len());
    for character in json.chars() {
        match u8::try_from(character) {
            // DEL is no more than a character for both.
            Ok(byte) if byte < 0x80 => bytes.push(byte),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    bytes.extend(format!("\\u{unit:04x}").bytes());
                }
            }
        }
    }
    bytes
}

fn is_good(path: &str, file: &ListedFile) -> bool {
    let is_lfs_good = file.lfs_sha256.as_deref().is_none_or(is_sha256);
    is_safe(path) && is_lfs_good && is_commit(&file.blob_id)
}

impl Client {
    /// The commit of a revision.
    pub(crate) fn commit(&self, about: About<'_>, told: Listener<'_>) -> Result<String, HubError> {
        let path = format!(
            "{}/revision/{}",
            about.repo.api_path(),
            quoted_part(about.revision)
        );
        let url = self.url(&path);
        let asked = self.json(&Outgoing::get(url.clone()), told);
        let (info, _) = asked.map_err(|failure| self.explained(failure, about, told))?;
        let commit = text(&info, "sha").filter(|commit| is_commit(commit));
        commit.ok_or_else(|| HubError::NoHub {
            url,
            reason: "answers without the commit of the revision (sha)".to_owned(),
        })
    }

    /// The files of a commit.
    pub(crate) fn files(
        &self,
        commit: &str,
        about: About<'_>,
        told: Listener<'_>,
    ) -> Result<Files, HubError> {
        let mut files = Files::new();
        let path = format!(
            "{}/tree/{commit}?recursive=true&expand=false",
            about.repo.api_path()
        );
        let mut next = Some(self.url(&path));
        while let Some(url) = next {
            let asked = self.json(&Outgoing::get(url.clone()), told);
            let (page, headers) = asked.map_err(|failure| self.explained(failure, about, told))?;
            let no_hub = |reason: &str| HubError::NoHub {
                url: url.clone(),
                reason: reason.to_owned(),
            };
            let entries = page.as_array();
            let n_before = files.len();
            for entry in entries.ok_or_else(|| no_hub("answers with no list of files"))? {
                if let Some((path, file)) = listed(entry, about.repo, &url)? {
                    files.insert(path, file);
                }
            }
            if files.len() > MAX_FILES {
                return Err(no_hub("lists more than a million files"));
            }
            next = crate::client::text_of(&headers, "link").and_then(next_page);
            if next.is_some() && files.len() == n_before {
                return Err(no_hub("lists its files without end"));
            }
            next = next.map(|url| self.behind_endpoint(&url));
        }
        Ok(files)
    }
}

/// A file of a listing; nothing for a folder.
fn listed(
    entry: &serde_json::Value,
    repo: &RepoName,
    url: &str,
) -> Result<Option<(String, ListedFile)>, HubError> {
    if entry["type"] != "file" {
        return Ok(None);
    }
    let no_hub = || HubError::NoHub {
        url: url.to_owned(),
        reason: "lists a file without path, size or hash".to_owned(),
    };
    let path = text(entry, "path").ok_or_else(no_hub)?;
    if !is_safe(&path) {
        return Err(HubError::UnsafePath {
            repo: repo.clone(),
            path: path.chars().take(200).collect(),
        });
    }
    let lfs = &entry["lfs"];
    let file = ListedFile {
        size: entry["size"].as_u64().ok_or_else(no_hub)?,
        blob_id: text(entry, "oid").ok_or_else(no_hub)?,
        lfs_sha256: text(lfs, "oid").or_else(|| text(lfs, "sha256")),
        lfs_size: lfs["size"].as_u64(),
        xet_hash: text(entry, "xetHash"),
    };
    match is_good(&path, &file) {
        true => Ok(Some((path, file))),
        false => Err(no_hub()),
    }
}

/// The address of the next page of a header `Link`.
fn next_page(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let (_, from) = next.split_once('<')?;
    Some(from.split_once('>')?.0.to_owned())
}

impl RepoCache {
    /// The listing that a folder of a snapshot shows by itself: files without their hashes.
    pub(crate) fn names_in(folder: &Path) -> Vec<String> {
        let mut names = Vec::new();
        add_names(folder, "", 0, &mut names);
        names.sort();
        names
    }
}

/// How deep folders of a snapshot may lie within each other.
const MAX_DEPTH: usize = 16;

fn add_names(dir: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Links lead to blobs, never to folders.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => {
                add_names(&entry.path(), &format!("{name}/"), depth + 1, names);
            }
            Ok(kind) if kind.is_dir() => {}
            // One whose blob is gone is not there.
            _ if entry.path().exists() => names.push(name),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_written_as_python_writes_it() {
        assert_eq!(ascii("{\"é😀\": 1}"), b"{\"\\u00e9\\ud83d\\ude00\": 1}");
        assert_eq!(
            next_page("<https://x/a?b=1>; rel=\"prev\", <https://x/a?c=2>; rel=\"next\"")
                .as_deref(),
            Some("https://x/a?c=2")
        );
        assert_eq!(next_page("<https://x/a>; rel=\"last\""), None);
    }
}
