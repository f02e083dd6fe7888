//! The commit of a revision and the files of a commit, requested from the hub and cached.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::ser::{PrettyFormatter, Serializer};
use tooltune_disk::regular_file;

use crate::budgets::LISTING_BYTES;
use crate::cache::{RepoCache, is_commit, is_sha256};
use crate::client::{Client, Outgoing};
use crate::error::HubError;
use crate::event::Listener;
use crate::name::{RepoName, is_safe, quoted_part};
use crate::refusal::{RequestSubject, text};

/// Maximum files of a repository. The hub recommends less than a tenth of this number.
const MAX_FILES: usize = 1_000_000;

/// The format version that `huggingface_hub` writes.
const FORMAT_VERSION: u64 = 1;

/// A file of a commit, with the field names of the hub's listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedFile {
    /// Size in bytes.
    pub(crate) size: u64,
    /// The git blob hash; for a large file the hash of its pointer.
    pub(crate) blob_id: String,
    /// SHA-256 of the content, if it is in the large-file storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lfs_sha256: Option<String>,
    /// Size in the large-file storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lfs_size: Option<u64>,
    /// Not used here; kept for `huggingface_hub`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) xet_hash: Option<String>,
}

impl ListedFile {
    /// Size of the content in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.lfs_size.unwrap_or(self.size)
    }

    /// The content hash, which names it in the cache: SHA-256 for a large file, otherwise the git
    /// blob hash.
    pub(crate) fn hash(&self) -> &str {
        self.lfs_sha256.as_deref().unwrap_or(&self.blob_id)
    }
}

/// The files of a commit by path.
pub(crate) type Files = BTreeMap<String, ListedFile>;

#[derive(Debug, Serialize, Deserialize)]
struct StoredListing {
    format_version: u64,
    files: Files,
}

impl RepoCache {
    /// The cached listing of a commit from either program; `None` if there is none, or if it is
    /// damaged or has a different version. The listing is then requested again.
    pub(crate) fn listing(&self, commit: &str) -> Result<Option<Files>, HubError> {
        let path = self.listing_path(commit);
        let bytes = regular_file::read_own_file_if_exists(&path, LISTING_BYTES);
        let bytes = bytes.map_err(HubError::io("read", &path))?;
        let stored: Option<StoredListing> =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let stored = stored.filter(|stored| stored.format_version == FORMAT_VERSION);
        Ok(stored
            .map(|stored| stored.files)
            .filter(|files| files.iter().all(|(path, file)| is_valid_entry(path, file))))
    }

    /// Caches the listing of a commit, byte for byte as `huggingface_hub` does.
    pub(crate) fn store_listing(&self, commit: &str, files: &Files) -> Result<(), HubError> {
        let mut bytes = Vec::new();
        let stored = StoredListing {
            format_version: FORMAT_VERSION,
            files: files.clone(),
        };
        let mut serializer =
            Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b" "));
        let path = self.listing_path(commit);
        stored
            .serialize(&mut serializer)
            .map_err(std::io::Error::from)
            .map_err(HubError::io("write", &path))?;
        self.replace(&path, &escape_non_ascii(&String::from_utf8_lossy(&bytes)))
    }
}

/// JSON with all non-ASCII characters escaped, as in Python.
fn escape_non_ascii(json: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(json.len());
    for character in json.chars() {
        match u8::try_from(character) {
            // DEL remains unescaped, as in Python.
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

fn is_valid_entry(path: &str, file: &ListedFile) -> bool {
    let is_lfs_good = file.lfs_sha256.as_deref().is_none_or(is_sha256);
    is_safe(path) && is_lfs_good && is_commit(&file.blob_id)
}

impl Client {
    /// The commit of a revision.
    pub(crate) fn commit(
        &self,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<String, HubError> {
        let path = format!(
            "{}/revision/{}",
            subject.repo.api_path(),
            quoted_part(subject.revision)
        );
        let url = self.url(&path);
        let reply = self.json(&Outgoing::get(url.clone()), report);
        let (info, _) = reply.map_err(|failure| self.explain(failure, subject, report))?;
        let commit = text(&info, "sha").filter(|commit| is_commit(commit));
        commit.ok_or_else(|| HubError::NoHub {
            url,
            reason: "returns a reply without the commit of the revision (sha)".to_owned(),
        })
    }

    /// The files of a commit.
    pub(crate) fn files(
        &self,
        commit: &str,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<Files, HubError> {
        let mut files = Files::new();
        let path = format!(
            "{}/tree/{commit}?recursive=true&expand=false",
            subject.repo.api_path()
        );
        let mut next_url = Some(self.url(&path));
        while let Some(url) = next_url {
            let reply = self.json(&Outgoing::get(url.clone()), report);
            let (page, headers) =
                reply.map_err(|failure| self.explain(failure, subject, report))?;
            let no_hub = |reason: &str| HubError::NoHub {
                url: url.clone(),
                reason: reason.to_owned(),
            };
            let entries = page.as_array();
            let n_before = files.len();
            for entry in entries.ok_or_else(|| no_hub("returns no list of files"))? {
                if let Some((path, file)) = parse_listed_file(entry, subject.repo, &url)? {
                    files.insert(path, file);
                }
            }
            if files.len() > MAX_FILES {
                return Err(no_hub("lists more than a million files"));
            }
            next_url = crate::client::header_text(&headers, "link").and_then(next_page);
            if next_url.is_some() && files.len() == n_before {
                return Err(no_hub("returns a listing without end"));
            }
            next_url = next_url.map(|url| self.rebase_url(&url));
        }
        Ok(files)
    }
}

/// A file of a listing; `None` for a folder.
fn parse_listed_file(
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
    match is_valid_entry(&path, &file) {
        true => Ok(Some((path, file))),
        false => Err(no_hub()),
    }
}

/// The URL of the next page in a `Link` header.
fn next_page(link: &str) -> Option<String> {
    let next_part = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let (_, from) = next_part.split_once('<')?;
    Some(from.split_once('>')?.0.to_owned())
}

impl RepoCache {
    /// The listing derived from a snapshot folder: file names without hashes.
    pub(crate) fn list_names(folder: &Path) -> Vec<String> {
        let mut names = Vec::new();
        add_names(folder, "", 0, &mut names);
        names.sort();
        names
    }
}

/// Maximum nesting of folders in a snapshot.
const MAX_DEPTH: usize = 16;

fn add_names(dir: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Links point to blobs, never to folders.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => {
                add_names(&entry.path(), &format!("{name}/"), depth + 1, names);
            }
            Ok(kind) if kind.is_dir() => {}
            // A file whose blob was deleted is left out.
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
        assert_eq!(
            escape_non_ascii("{\"é😀\": 1}"),
            b"{\"\\u00e9\\ud83d\\ude00\": 1}"
        );
        assert_eq!(
            next_page("<https://x/a?b=1>; rel=\"prev\", <https://x/a?c=2>; rel=\"next\"")
                .as_deref(),
            Some("https://x/a?c=2")
        );
        assert_eq!(next_page("<https://x/a>; rel=\"last\""), None);
    }
}
