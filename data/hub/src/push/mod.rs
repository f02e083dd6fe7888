//! Uploads an export as a commit to a hub repository.
//!
//! The hub decides for each file whether it belongs in the commit or in the large-file storage.
//! Large files are uploaded first, then one request creates the commit, so a repository has either
//! the whole export or nothing of it. Files that exist already are not sent again. The same commit
//! deletes files of an earlier export that loaders would use instead. A model card that this
//! program did not write is kept.

mod card;
mod earlier;
mod lfs;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tooltune_disk::regular_file;

use crate::budgets::{CARD_BYTES, REGULAR_BYTES};
use crate::cache::is_commit;
use crate::client::{Client, Failure, Outgoing};
use crate::download::hex;
use crate::error::HubError;
use crate::event::{Event, Listener};
use crate::fetch::{Hub, saturating_sum};
use crate::name::{RepoKind, RepoName, quoted_part};
use crate::refusal::{RequestSubject, text};

/// The branch of the commit.
const MAIN: &str = "main";

/// Bytes of a file's beginning from which the hub detects its type.
const SAMPLE_BYTES: usize = 512;

/// Files per request.
const FILES_PER_REQUEST: usize = 256;

/// The model card.
const CARD: &str = "README.md";

const JSON: &str = "application/json";

pub use card::marked_card;

/// An upload.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    /// The target repository.
    pub target: &'a UploadTarget,
    /// A file, or a folder whose files are all uploaded.
    pub path: &'a Path,
    /// Whether to replace a model card written by others.
    pub replaces_card: bool,
    /// The commit title.
    pub message: &'a str,
}

/// A repository that is expected to accept an upload, by the checks that the hub offers in advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadTarget {
    repo: RepoName,
}

/// The result of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The commit; `None` if the repository already had every file unchanged.
    pub commit: Option<String>,
    /// The repository's page.
    pub page: String,
    /// Files of an earlier export that the commit deletes.
    pub deleted: Vec<String>,
    /// Files of earlier exports that stay in the repository.
    pub kept: Vec<String>,
    /// The reason why the repository's model card was kept; `None` if it was not kept.
    pub kept_card: Option<KeptCard>,
    /// Whether the hub listed the repository's files; otherwise none is deleted.
    pub is_listed: bool,
}

/// Why a model card was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptCard {
    /// Another user wrote or edited it.
    OfOthers,
    /// The hub does not return it, so its author is unknown.
    Unread,
}

/// The repository before an upload.
#[derive(Debug, Default)]
struct ExistingFiles {
    commit: Option<String>,
    names: Option<Vec<String>>,
}

/// A file to upload.
#[derive(Debug)]
struct LocalFile {
    /// Path of the file in the repository.
    name: String,
    path: PathBuf,
    bytes: u64,
    sample: Vec<u8>,
    sha256: String,
    /// The git blob hash of the file.
    blob_id: String,
}

/// How a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadMode {
    Regular,
    Large,
    /// The repository already has it.
    Unchanged,
}

impl Hub {
    /// Checks whether an upload is possible before the export is created: there is a token with
    /// write access, and the repository `owner/name` exists or can be created.
    ///
    /// # Errors
    ///
    /// There is no token or it lacks write access, the name is invalid, or the hub cannot be
    /// reached.
    pub fn prepare_upload(
        &self,
        repo: &str,
        is_private: bool,
        report: Listener<'_>,
    ) -> Result<UploadTarget, HubError> {
        let repo = RepoName::new(RepoKind::Model, repo)?;
        if self.settings().is_offline {
            return Err(HubError::OfflineUpload);
        }
        if !self.client.has_token() {
            return Err(HubError::NoToken);
        }
        let subject = subject(&repo);
        self.create(is_private, subject, report)?;
        // The hub accepts this request only if the token has write access.
        let probe = json!({"files": [{"path": CARD, "sample": "", "size": 0}]}).to_string();
        let outgoing = Outgoing::post(self.preupload_url(subject), JSON, probe.as_bytes());
        explain(
            &self.client,
            self.client.json(&outgoing, report),
            subject,
            report,
        )?;
        Ok(UploadTarget { repo })
    }

    /// Uploads an export.
    ///
    /// # Errors
    ///
    /// A file cannot be read, the hub refuses or cannot be reached, or another commit was made in
    /// the meantime. In each case, the repository is unchanged.
    pub fn push(&self, upload: Upload<'_>, report: Listener<'_>) -> Result<Pushed, HubError> {
        let subject = subject(&upload.target.repo);
        let mut files = local_files(upload.path)?;
        let existing = self.existing_files(subject, report)?;
        let existing_names = existing.names.as_deref().unwrap_or_default();
        let own_card = files.iter().position(|file| file.name == CARD);
        let mut kept_card = None;
        if let Some(card) = own_card
            && !upload.replaces_card
            && existing_names.iter().any(|name| name == CARD)
        {
            kept_card = self.card_to_keep(&files[card], subject, report)?;
            if kept_card.is_some() {
                files.remove(card);
            }
        }
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let deleted = earlier::leftover_files(existing_names, &names);
        let modes = self.upload_modes(&files, subject, report)?;
        let files_with_mode = |mode: UploadMode| {
            let files = files.iter().zip(&modes);
            files
                .filter(move |(_, file_mode)| **file_mode == mode)
                .map(|(file, _)| file)
        };
        let large: Vec<&LocalFile> = files_with_mode(UploadMode::Large).collect();
        let regular: Vec<&LocalFile> = files_with_mode(UploadMode::Regular).collect();
        let mut pushed = Pushed {
            commit: None,
            page: format!("{}/{}", self.client.endpoint(), subject.repo.page_path()),
            deleted: deleted.iter().map(|name| (*name).to_owned()).collect(),
            kept: earlier::kept_files(existing_names, &names)
                .into_iter()
                .map(str::to_owned)
                .collect(),
            kept_card,
            is_listed: existing.names.is_some(),
        };
        if large.is_empty() && regular.is_empty() && deleted.is_empty() {
            return Ok(pushed);
        }
        report(Event::Begun {
            bytes: saturating_sum(large.iter().chain(&regular).map(|file| file.bytes)),
            n_files: large.len() + regular.len(),
        });
        lfs::upload(&self.client, &large, subject, report)?;
        let commit = Commit {
            message: upload.message,
            parent: existing.commit.as_deref(),
            regular: &regular,
            large: &large,
            deleted: &deleted,
        };
        pushed.commit = Some(self.send_commit(commit, subject, report)?);
        Ok(pushed)
    }

    /// The files of the repository, by name.
    fn existing_files(
        &self,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<ExistingFiles, HubError> {
        let path = format!("{}/revision/{}", subject.repo.api_path(), quoted_part(MAIN));
        let reply = self
            .client
            .json(&Outgoing::get(self.client.url(&path)), report);
        let info = match reply {
            Ok((info, _)) => info,
            // On some hubs a new repository has no branch.
            Err(Failure::RefusedReply(refused)) if refused.status == 404 => {
                return Ok(ExistingFiles {
                    commit: None,
                    names: Some(Vec::new()),
                });
            }
            Err(failure) => return Err(self.client.explain(failure, subject, report)),
        };
        let names = info["siblings"].as_array().map(|files| {
            let names = files.iter().filter_map(|file| text(file, "rfilename"));
            names.collect()
        });
        Ok(ExistingFiles {
            commit: text(&info, "sha").filter(|commit| is_commit(commit)),
            names,
        })
    }

    /// Why the repository's card is kept; `None` if this program wrote it or it equals the new one.
    fn card_to_keep(
        &self,
        own_file: &LocalFile,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<Option<KeptCard>, HubError> {
        let path = format!(
            "{}/resolve/{}/{CARD}",
            subject.repo.page_path(),
            quoted_part(MAIN)
        );
        let outgoing = Outgoing::get(self.client.url(&path));
        let reply = self.client.with_retries(report, || {
            let incoming = self
                .client
                .send(&outgoing)
                .map_err(|failure| (failure, false))?;
            let mut bytes = Vec::new();
            let reader = incoming.body.into_reader().take(CARD_BYTES + 1);
            std::io::BufReader::new(reader)
                .read_to_end(&mut bytes)
                .map_err(|error| {
                    let http_fault = self.client.http_fault(ureq::Error::from(error));
                    (Failure::Fault(http_fault), false)
                })?;
            Ok(bytes)
        });
        let card = match reply {
            Ok(card) => card,
            // The author of an unreadable card is unknown, so it is kept.
            Err(Failure::RefusedReply(_)) => return Ok(Some(KeptCard::Unread)),
            Err(failure) => return Err(self.client.explain(failure, subject, report)),
        };
        let equals_own_card = || {
            let own_file = regular_file::read(&own_file.path, REGULAR_BYTES);
            own_file.is_ok_and(|own_file| own_file == card)
        };
        let is_replaced = card::is_unedited(&card) || equals_own_card();
        Ok((!is_replaced).then_some(KeptCard::OfOthers))
    }

    fn preupload_url(&self, subject: RequestSubject<'_>) -> String {
        let path = format!(
            "{}/preupload/{}",
            subject.repo.api_path(),
            quoted_part(MAIN)
        );
        self.client.url(&path)
    }

    /// Creates the repository if it does not exist.
    fn create(
        &self,
        is_private: bool,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<(), HubError> {
        let id = subject.repo.id.as_str();
        let (owner, name) = id.split_once('/').unwrap_or(("", id));
        let mut body = json!({"name": name, "organization": owner, "type": "model"});
        if is_private {
            body["visibility"] = "private".into();
        }
        let url = self.client.url("api/repos/create");
        let body = body.to_string();
        let reply = self
            .client
            .json(&Outgoing::post(url, JSON, body.as_bytes()), report);
        match reply {
            Ok(_) => Ok(()),
            // The repository exists already.
            Err(Failure::RefusedReply(refused)) if refused.status == 409 => Ok(()),
            // A token that is limited to this repository cannot create repositories. The next
            // request shows whether the repository exists.
            Err(Failure::RefusedReply(refused)) if refused.status == 403 => {
                match self.client.commit(subject, report) {
                    Ok(_) => Ok(()),
                    Err(_) => {
                        Err(self
                            .client
                            .explain(Failure::RefusedReply(refused), subject, report))
                    }
                }
            }
            Err(failure) => Err(self.client.explain(failure, subject, report)),
        }
    }

    /// How each file is sent.
    fn upload_modes(
        &self,
        files: &[LocalFile],
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<Vec<UploadMode>, HubError> {
        let url = self.preupload_url(subject);
        let mut modes = Vec::new();
        for files in files.chunks(FILES_PER_REQUEST) {
            let entries: Vec<Value> = files
                .iter()
                .map(|file| {
                    let sample = STANDARD.encode(&file.sample);
                    json!({"path": file.name, "sample": sample, "size": file.bytes})
                })
                .collect();
            let body = json!({"files": entries}).to_string();
            let outgoing = Outgoing::post(url.clone(), JSON, body.as_bytes());
            let answer = self.client.json(&outgoing, report);
            let (answer, _) =
                answer.map_err(|failure| self.client.explain(failure, subject, report))?;
            let reported_files = answer["files"].as_array().cloned().unwrap_or_default();
            for file in files {
                let reported = reported_files
                    .iter()
                    .find(|entry| entry["path"] == file.name.as_str());
                modes.push(upload_mode(file, reported, subject.repo)?);
            }
        }
        Ok(modes)
    }

    /// Creates the commit. The request is sent only once, because a retry after a lost reply would
    /// create a second commit.
    fn send_commit(
        &self,
        commit: Commit<'_>,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> Result<String, HubError> {
        let Commit {
            message,
            parent,
            regular,
            large,
            deleted,
        } = commit;
        let mut head = json!({"summary": message, "description": ""});
        if let Some(parent) = parent {
            // The hub refuses it if there is a newer commit.
            head["parentCommit"] = parent.into();
        }
        let mut lines = vec![json!({"key": "header", "value": head})];
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
        for name in deleted {
            lines.push(json!({"key": "deletedFile", "value": {"path": name}}));
        }
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = format!("{}/commit/{}", subject.repo.api_path(), quoted_part(MAIN));
        let url = self.client.url(&path);
        let outgoing = Outgoing::post(url.clone(), "application/x-ndjson", body.as_bytes());
        let answer = self.client.json_once(&outgoing);
        let (answer, _) =
            answer.map_err(|failure| self.client.explain(failure, subject, report))?;
        report(Event::Bytes(saturating_sum(
            regular.iter().map(|file| file.bytes),
        )));
        let commit = text(&answer, "commitOid").filter(|commit| is_commit(commit));
        commit.ok_or_else(|| HubError::NoHub {
            url,
            reason: "returns a reply without the commit (commitOid)".to_owned(),
        })
    }
}

/// The changes of one commit.
#[derive(Debug, Clone, Copy)]
struct Commit<'a> {
    message: &'a str,
    /// The parent commit.
    parent: Option<&'a str>,
    regular: &'a [&'a LocalFile],
    large: &'a [&'a LocalFile],
    deleted: &'a [&'a str],
}

/// Describes the requests of an upload.
fn subject(repo: &RepoName) -> RequestSubject<'_> {
    RequestSubject {
        repo,
        revision: MAIN,
        file: None,
        permission: "write",
        what: &repo.id,
    }
}

fn upload_mode(
    file: &LocalFile,
    mode: Option<&Value>,
    repo: &RepoName,
) -> Result<UploadMode, HubError> {
    let upload_error = |reason: &str| HubError::Upload {
        repo: repo.clone(),
        file: file.name.clone(),
        reason: reason.to_owned(),
    };
    let mode = mode.ok_or_else(|| upload_error("it did not return an upload mode"))?;
    if mode["shouldIgnore"] == true {
        return Err(upload_error(
            "the repository's .gitignore excludes it; change that file",
        ));
    }
    let known_oid = mode["oid"].as_str();
    if known_oid.is_some_and(|known_oid| known_oid == file.blob_id || known_oid == file.sha256) {
        return Ok(UploadMode::Unchanged);
    }
    match mode["uploadMode"].as_str() {
        // The large-file storage does not accept empty files.
        Some("lfs") if file.bytes > 0 => Ok(UploadMode::Large),
        Some("lfs" | "regular") if file.bytes <= REGULAR_BYTES.bytes => Ok(UploadMode::Regular),
        Some("regular") => Err(upload_error(
            "it is too large for a regular file of the commit",
        )),
        _ => Err(upload_error("it did not return an upload mode")),
    }
}

/// The files below a folder by relative path, or the one file.
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

fn add_files(dir: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> Result<(), HubError> {
    for entry in fs::read_dir(dir).map_err(HubError::io("list", dir))? {
        let entry = entry.map_err(HubError::io("list", dir))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().map_err(HubError::io("list", dir))?;
        match kind.is_dir() {
            true => add_files(&entry.path(), &format!("{name}/"), files)?,
            false => files.push((name, entry.path())),
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
        let mut blob_hasher = Sha1::new();
        blob_hasher.update(format!("blob {bytes}\0"));
        let (mut sample, mut chunk) = (Vec::new(), vec![0; 1 << 20]);
        loop {
            let n = file.read(&mut chunk).map_err(failed)?;
            if n == 0 {
                break;
            }
            let n_left = SAMPLE_BYTES.saturating_sub(sample.len()).min(n);
            sample.extend_from_slice(&chunk[..n_left]);
            large.update(&chunk[..n]);
            blob_hasher.update(&chunk[..n]);
        }
        Ok(Self {
            name,
            bytes,
            sample,
            sha256: hex(&large.finalize()),
            blob_id: hex(&blob_hasher.finalize()),
            path,
        })
    }
}

/// Converts a failed request to an error with advice.
fn explain<T>(
    client: &Client,
    result: Result<T, Failure>,
    subject: RequestSubject<'_>,
    report: Listener<'_>,
) -> Result<T, HubError> {
    result.map_err(|failure| client.explain(failure, subject, report))
}
