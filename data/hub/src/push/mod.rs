//! An export becomes a commit of a repository of the hub.
//!
//! The hub says of each file whether it belongs into the commit itself or into the storage of large
//! files; those are uploaded first, and one request makes the commit, so that a repository has all of
//! an export or nothing of it. What is there already is not sent again.

mod lfs;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tooltune_rows::regular_file;

use crate::budgets::REGULAR_BYTES;
use crate::client::{Client, Failure, Outgoing};
use crate::download::hex;
use crate::error::HubError;
use crate::fetch::{Event, Hub, Listener};
use crate::name::{RepoKind, RepoName, quoted_part};
use crate::refusal::{About, text};

/// The branch that a commit is made on.
const MAIN: &str = "main";

/// Bytes of the beginning of a file by which the hub tells what it is.
const SAMPLE_BYTES: usize = 512;

/// Files of one question to the hub.
const FILES_AT_ONCE: usize = 256;

const JSON: &str = "application/json";

/// What is uploaded.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    /// `owner/name`; a repository that is not there is made.
    pub repo: &'a str,
    /// A folder, all of whose files are uploaded, or one file.
    pub path: &'a Path,
    /// Whether a repository that is made is private.
    pub is_private: bool,
    /// The first line of the commit.
    pub message: &'a str,
}

/// What has become of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The commit; nothing where the repository had every file as it is.
    pub commit: Option<String>,
    /// The page of the repository.
    pub page: String,
}

/// A file that is uploaded.
#[derive(Debug)]
struct LocalFile {
    /// Its name in the repository.
    name: String,
    path: PathBuf,
    bytes: u64,
    sample: Vec<u8>,
    sha256: String,
    /// As git names its content.
    blob_id: String,
}

/// How a file travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Regular,
    Large,
    /// The repository has it.
    Unchanged,
}

impl Hub {
    /// Uploads an export.
    ///
    /// # Errors
    ///
    /// No token, or one that may not write; a file that cannot be read; a hub that does not take it
    /// or cannot be reached. Then the repository is as it was.
    pub fn push(&self, upload: Upload<'_>, told: Listener<'_>) -> Result<Pushed, HubError> {
        let repo = RepoName::new(RepoKind::Model, upload.repo)?;
        if self.settings().is_offline {
            return Err(HubError::OfflineUpload);
        }
        if !self.client.has_token() {
            return Err(HubError::NoToken);
        }
        let files = local_files(upload.path)?;
        let about = About {
            repo: &repo,
            revision: MAIN,
            file: None,
            right: "write",
            what: upload.repo,
        };
        self.create(upload, about, told)?;
        let modes = self.modes(&files, about, told)?;
        let of_mode = |mode: Mode| {
            let files = files.iter().zip(&modes);
            files
                .filter(move |(_, of)| **of == mode)
                .map(|(file, _)| file)
        };
        let page = format!("{}/{}", self.client.endpoint(), repo.page_path());
        let large: Vec<&LocalFile> = of_mode(Mode::Large).collect();
        let regular: Vec<&LocalFile> = of_mode(Mode::Regular).collect();
        if large.is_empty() && regular.is_empty() {
            return Ok(Pushed { commit: None, page });
        }
        told(Event::Begun {
            bytes: large.iter().chain(&regular).map(|file| file.bytes).sum(),
            n_files: large.len() + regular.len(),
        });
        lfs::upload(&self.client, &large, about, told)?;
        let commit = self.send_commit(upload.message, &regular, &large, about, told)?;
        Ok(Pushed {
            commit: Some(commit),
            page,
        })
    }

    /// Makes the repository unless it is there.
    fn create(
        &self,
        upload: Upload<'_>,
        about: About<'_>,
        told: Listener<'_>,
    ) -> Result<(), HubError> {
        let (owner, name) = upload.repo.split_once('/').unwrap_or(("", upload.repo));
        let mut body = json!({"name": name, "organization": owner, "type": "model"});
        if upload.is_private {
            body["visibility"] = "private".into();
        }
        let url = self.client.url("api/repos/create");
        let body = body.to_string();
        let asked = self
            .client
            .json(&Outgoing::post(url, JSON, body.as_bytes()), told);
        match asked {
            Ok(_) => Ok(()),
            // It is there.
            Err(Failure::Refused(refused)) if refused.status == 409 => Ok(()),
            // A token for this one repository may not make any; whether it is there, the next says.
            Err(Failure::Refused(refused)) if refused.status == 403 => {
                match self.client.commit(about, told) {
                    Ok(_) => Ok(()),
                    Err(_) => Err(self
                        .client
                        .explained(Failure::Refused(refused), about, told)),
                }
            }
            Err(failure) => Err(self.client.explained(failure, about, told)),
        }
    }

    /// How each file travels.
    fn modes(
        &self,
        files: &[LocalFile],
        about: About<'_>,
        told: Listener<'_>,
    ) -> Result<Vec<Mode>, HubError> {
        let url = self.client.url(&format!(
            "{}/preupload/{}",
            about.repo.api_path(),
            quoted_part(MAIN)
        ));
        let mut modes = Vec::new();
        for files in files.chunks(FILES_AT_ONCE) {
            let asked: Vec<Value> = files
                .iter()
                .map(|file| {
                    let sample = STANDARD.encode(&file.sample);
                    json!({"path": file.name, "sample": sample, "size": file.bytes})
                })
                .collect();
            let body = json!({"files": asked}).to_string();
            let outgoing = Outgoing::post(url.clone(), JSON, body.as_bytes());
            let answer = self.client.json(&outgoing, told);
            let (answer, _) =
                answer.map_err(|failure| self.client.explained(failure, about, told))?;
            let told_of = answer["files"].as_array().cloned().unwrap_or_default();
            for file in files {
                let of_file = told_of.iter().find(|of| of["path"] == file.name.as_str());
                modes.push(mode_of(file, of_file, about.repo)?);
            }
        }
        Ok(modes)
    }

    /// Makes the commit. It is sent once: a second one after a lost answer would be another commit.
    fn send_commit(
        &self,
        message: &str,
        regular: &[&LocalFile],
        large: &[&LocalFile],
        about: About<'_>,
        told: Listener<'_>,
    ) -> Result<String, HubError> {
        let mut lines =
            vec![json!({"key": "header", "value": {"summary": message, "description": ""}})];
        for file in regular {
            let bytes = regular_file::read(&file.path, REGULAR_BYTES);
            let content = STANDARD.encode(bytes.map_err(HubError::io("read", &file.path))?);
            let value = json!({"content": content, "path": file.name, "encoding": "base64"});
            lines.push(json!({"key": "file", "value": value}));
        }
        for file in large {
            let value = json!({
                "path": file.name, "algo": "sha256", "oid": file.sha256, "size": file.bytes
            });
            lines.push(json!({"key": "lfsFile", "value": value}));
        }
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = format!("{}/commit/{}", about.repo.api_path(), quoted_part(MAIN));
        let url = self.client.url(&path);
        let outgoing = Outgoing::post(url.clone(), "application/x-ndjson", body.as_bytes());
        let answer = self.client.json_once(&outgoing);
        let (answer, _) = answer.map_err(|failure| self.client.explained(failure, about, told))?;
        told(Event::Bytes(regular.iter().map(|file| file.bytes).sum()));
        text(&answer, "commitOid").ok_or_else(|| HubError::NoHub {
            url,
            reason: "answers without the commit (commitOid)".to_owned(),
        })
    }
}

fn mode_of(file: &LocalFile, said: Option<&Value>, repo: &RepoName) -> Result<Mode, HubError> {
    let refused = |said: &str| HubError::Upload {
        repo: repo.clone(),
        file: file.name.clone(),
        said: said.to_owned(),
    };
    let said = said.ok_or_else(|| refused("it does not say how to send it"))?;
    if said["shouldIgnore"] == true {
        return Err(refused(
            "the repository's .gitignore names it; change that file",
        ));
    }
    let known = said["oid"].as_str();
    if known.is_some_and(|known| known == file.blob_id || known == file.sha256) {
        return Ok(Mode::Unchanged);
    }
    match said["uploadMode"].as_str() {
        // The storage of large files takes no empty one.
        Some("lfs") if file.bytes > 0 => Ok(Mode::Large),
        Some("lfs" | "regular") if file.bytes <= REGULAR_BYTES.bytes => Ok(Mode::Regular),
        Some("regular") => Err(refused("it is too large to go into the commit itself")),
        _ => Err(refused("it does not say how to send it")),
    }
}

/// The files below a folder by their names there, or the one file.
fn local_files(path: &Path) -> Result<Vec<LocalFile>, HubError> {
    let mut found = Vec::new();
    if path.is_dir() {
        add_files(path, "", &mut found)?;
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        found.push((name.into_owned(), path.to_owned()));
    }
    found.sort();
    let files = found
        .into_iter()
        .map(|(name, path)| LocalFile::read(name, path));
    files.collect()
}

fn add_files(dir: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) -> Result<(), HubError> {
    for entry in fs::read_dir(dir).map_err(HubError::io("list", dir))? {
        let entry = entry.map_err(HubError::io("list", dir))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().map_err(HubError::io("list", dir))?;
        match kind.is_dir() {
            true => add_files(&entry.path(), &format!("{name}/"), found)?,
            false => found.push((name, entry.path())),
        }
    }
    Ok(())
}

impl LocalFile {
    fn read(name: String, path: PathBuf) -> Result<Self, HubError> {
        let failed = |error| HubError::io("read", &path)(error);
        let mut file = regular_file::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut large = Sha256::new();
        let mut of_git = Sha1::new();
        of_git.update(format!("blob {bytes}\0"));
        let (mut sample, mut chunk) = (Vec::new(), vec![0; 1 << 20]);
        loop {
            let n = file.read(&mut chunk).map_err(failed)?;
            if n == 0 {
                break;
            }
            let rest = SAMPLE_BYTES.saturating_sub(sample.len()).min(n);
            sample.extend_from_slice(&chunk[..rest]);
            large.update(&chunk[..n]);
            of_git.update(&chunk[..n]);
        }
        Ok(Self {
            name,
            bytes,
            sample,
            sha256: hex(&large.finalize()),
            blob_id: hex(&of_git.finalize()),
            path,
        })
    }
}

/// What an answer to a request of a client means.
fn explained<T>(
    client: &Client,
    result: Result<T, Failure>,
    about: About<'_>,
    told: Listener<'_>,
) -> Result<T, HubError> {
    result.map_err(|failure| client.explained(failure, about, told))
}
