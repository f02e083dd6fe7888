//! A test hub on 127.0.0.1, and its large-file storage on another port: the protocol of
//! `huggingface_hub`, redirects, ETags, refusals, uploads, and simulated faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tooltune_endpoint::http::test_server::{Answer, Received, TestServer};

use crate::download::hex;

mod uploads;

/// A file of a repository.
#[derive(Debug, Clone)]
pub struct TestFile {
    /// The content.
    pub bytes: Vec<u8>,
    /// Whether it is in the large-file storage.
    pub is_large: bool,
}

impl TestFile {
    fn blob_id(&self) -> String {
        let pointer = format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
            self.sha256(),
            self.bytes.len()
        );
        let content = if self.is_large {
            pointer.as_bytes()
        } else {
            &self.bytes
        };
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", content.len()));
        hasher.update(content);
        hex(&hasher.finalize())
    }

    fn sha256(&self) -> String {
        hex(&Sha256::digest(&self.bytes))
    }

    fn etag(&self) -> String {
        if self.is_large {
            self.sha256()
        } else {
            self.blob_id()
        }
    }
}

/// A repository.
#[derive(Debug, Clone, Default)]
pub struct TestRepo {
    /// The files of every commit.
    pub files: BTreeMap<String, TestFile>,
    /// Whether it requires accepting its conditions.
    pub is_gated: bool,
    /// Whether only its owner has access.
    pub is_private: bool,
    /// Number of changes, from which its commit hash is derived.
    pub n_commits: usize,
    /// The titles of its commits.
    pub messages: Vec<String>,
    id: String,
}

impl TestRepo {
    /// The commit of its branch `main` and its tag `v1`.
    pub fn commit(&self) -> String {
        hex(&Sha1::digest(format!("{} {}", self.id, self.n_commits)))
    }
}

/// A simulated fault.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status with these headers.
    Status(u16, Vec<(&'static str, &'static str)>),
    /// The connection closes after this number of body bytes.
    CutAfter(usize),
    /// The whole file is sent regardless of the requested range.
    IgnoreRange,
    /// One byte is changed.
    WrongByte,
    /// No reply.
    Silence,
    /// This page is sent instead of the reply.
    Page(&'static str),
    /// This header has a different value.
    Header(&'static str, String),
}

#[derive(Debug)]
struct PlannedFault {
    path: String,
    n: usize,
    fault: Fault,
}

#[derive(Debug, Default)]
struct State {
    repos: BTreeMap<String, TestRepo>,
    storage: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    faults: Vec<PlannedFault>,
    token: Option<String>,
    part_bytes: Option<usize>,
}

/// A running hub with its storage.
#[derive(Debug)]
pub struct TestHub {
    hub: TestServer,
    storage: TestServer,
    state: Arc<Mutex<State>>,
}

fn lock_state(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestHub {
    /// Starts a hub without repositories that requires no token.
    pub fn start() -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let storage_state = state.clone();
        let storage = TestServer::start(move |request, _| {
            let mut state = lock_state(&storage_state);
            state.storage_answer(request)
        });
        let hub_headers = (state.clone(), storage.url());
        let hub = TestServer::start(move |request, _| {
            let host = request.headers.get("host").cloned().unwrap_or_default();
            let mut state = lock_state(&hub_headers.0);
            let answer = state.hub_answer(request, &format!("http://{host}"), &hub_headers.1);
            without_body_of_head(request, answer)
        });
        Self {
            hub,
            storage,
            state,
        }
    }

    /// The address of the hub.
    pub fn url(&self) -> String {
        self.hub.url()
    }

    /// Adds a file to a repository, such as `models/owner/name`, creating it if necessary.
    pub fn add(&self, repo: &str, path: &str, bytes: &[u8], is_large: bool) {
        let mut state = lock_state(&self.state);
        let state_repo = state
            .repos
            .entry(repo.to_owned())
            .or_insert_with(|| TestRepo {
                id: repo.to_owned(),
                ..TestRepo::default()
            });
        let bytes = bytes.to_vec();
        state_repo
            .files
            .insert(path.to_owned(), TestFile { bytes, is_large });
        state_repo.n_commits += 1;
    }

    /// Changes a repository.
    pub fn change(&self, repo: &str, change: impl FnOnce(&mut TestRepo)) {
        change(
            lock_state(&self.state)
                .repos
                .get_mut(repo)
                .expect("a repository"),
        );
    }

    /// The current state of a repository.
    pub fn repo(&self, repo: &str) -> TestRepo {
        lock_state(&self.state).repos[repo].clone()
    }

    /// Sets the only accepted token, required for private and gated repositories and for uploads.
    pub fn require_token(&self, token: &str) {
        lock_state(&self.state).token = Some(token.to_owned());
    }

    /// Makes the storage require parts of `bytes` bytes.
    pub fn require_parts_of(&self, bytes: usize) {
        lock_state(&self.state).part_bytes = Some(bytes);
    }

    /// Injects a fault into the next `n` requests whose path contains `path`.
    pub fn fail(&self, path: &str, n: usize, fault: Fault) {
        lock_state(&self.state).faults.push(PlannedFault {
            path: path.to_owned(),
            n,
            fault,
        });
    }

    /// The requests so far, to the hub and to the storage.
    pub fn received(&self) -> (Vec<Received>, Vec<Received>) {
        (self.hub.received(), self.storage.received())
    }
}

/// Removes the body from the reply to a HEAD request.
fn without_body_of_head(request: &Received, answer: Answer) -> Answer {
    match answer {
        Answer::Reply(status, headers, body) if request.method == "HEAD" => {
            Answer::Raw(head_bytes(status, &headers, body.len()))
        }
        other => other,
    }
}

fn head_bytes(status: u16, headers: &[(String, String)], length: usize) -> Vec<u8> {
    let lines: String = (headers.iter())
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!(
        "HTTP/1.1 {status} Status\r\n{lines}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

fn refusal(status: u16, code: &str, reason: &str) -> Answer {
    let headers = [("X-Error-Code", code), ("X-Error-Message", reason)];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Answer::Reply(
        status,
        headers.to_vec(),
        json!({"error": reason}).to_string().into_bytes(),
    )
}

/// A file, or the requested range of it.
fn file_answer(request: &Received, bytes: &[u8], mut headers: Vec<(String, String)>) -> Answer {
    let range = request.headers.get("range");
    let from = range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    });
    let Some(from): Option<usize> = from else {
        return Answer::Reply(200, headers, bytes.to_vec());
    };
    if from >= bytes.len() {
        return Answer::Reply(416, headers, Vec::new());
    }
    let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
    headers.push(("Content-Range".to_owned(), range));
    Answer::Reply(206, headers, bytes[from..].to_vec())
}

impl State {
    fn fault(&mut self, path: &str) -> Option<Fault> {
        let is_meant = |planned: &&mut PlannedFault| planned.n > 0 && path.contains(&planned.path);
        let planned = self.faults.iter_mut().find(is_meant)?;
        planned.n -= 1;
        Some(planned.fault.clone())
    }

    fn apply_fault(
        &mut self,
        request: &Received,
        answer: impl FnOnce(&mut Self, &Received) -> Answer,
    ) -> Answer {
        let Some(planned_fault) = self.fault(&request.target) else {
            return answer(self, request);
        };
        let mut request = request.clone();
        match planned_fault {
            Fault::Status(status, headers) => {
                let headers = headers
                    .iter()
                    .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
                Answer::Reply(status, headers.collect(), b"a fault".to_vec())
            }
            Fault::Silence => Answer::Hang,
            Fault::Page(page) => Answer::html(200, page),
            Fault::IgnoreRange => {
                request.headers.remove("range");
                answer(self, &request)
            }
            Fault::CutAfter(n) => match answer(self, &request) {
                Answer::Reply(status, headers, body) => {
                    let mut bytes = head_bytes(status, &headers, body.len());
                    bytes.extend_from_slice(&body[..n.min(body.len())]);
                    Answer::Raw(bytes)
                }
                other => other,
            },
            Fault::Header(name, value) => match answer(self, &request) {
                Answer::Reply(status, mut headers, body) => {
                    headers.retain(|(header_name, _)| !header_name.eq_ignore_ascii_case(name));
                    headers.push((name.to_owned(), value));
                    Answer::Reply(status, headers, body)
                }
                other => other,
            },
            Fault::WrongByte => match answer(self, &request) {
                Answer::Reply(status, headers, mut body) => {
                    if let Some(byte) = body.last_mut() {
                        *byte ^= 1;
                    }
                    Answer::Reply(status, headers, body)
                }
                other => other,
            },
        }
    }

    fn storage_answer(&mut self, request: &Received) -> Answer {
        self.apply_fault(request, |state, request| {
            let path = request.target.split('?').next().unwrap_or_default();
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            match (request.method.as_str(), parts.as_slice()) {
                // A signed URL must not be combined with a token.
                _ if request.headers.contains_key("authorization") => refusal(400, "", "a token"),
                ("GET", ["file", oid]) => match state.large_file(oid) {
                    Some(bytes) => file_answer(request, &bytes, Vec::new()),
                    None => Answer::Reply(404, Vec::new(), Vec::new()),
                },
                ("PUT", ["upload", oid]) => {
                    state
                        .storage
                        .insert((*oid).to_owned(), request.bytes.clone());
                    Answer::Reply(200, Vec::new(), Vec::new())
                }
                ("PUT", ["part", oid, number]) => {
                    let number = number.parse().expect("a number");
                    let parts = state.parts.entry((*oid).to_owned()).or_default();
                    parts.insert(number, request.bytes.clone());
                    let etag = ("ETag".to_owned(), format!("\"part-{number}\""));
                    Answer::Reply(200, vec![etag], Vec::new())
                }
                _ => Answer::Reply(404, Vec::new(), Vec::new()),
            }
        })
    }

    fn large_file(&self, oid: &str) -> Option<Vec<u8>> {
        let mut files = self.repos.values().flat_map(|repo| repo.files.values());
        let file = files.find(|file| file.is_large && file.sha256() == oid);
        file.map(|file| file.bytes.clone())
    }

    fn hub_answer(&mut self, request: &Received, own_url: &str, storage: &str) -> Answer {
        self.apply_fault(request, |state, request| {
            let (path, query) = request
                .target
                .split_once('?')
                .unwrap_or((&request.target, ""));
            let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
            let parts: Vec<String> = path
                .trim_start_matches('/')
                .split('/')
                .map(decode)
                .collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let authorization = request.headers.get("authorization");
            let expected = state.token.as_ref().map(|token| format!("Bearer {token}"));
            if authorization.is_some() && authorization != expected.as_ref() {
                return refusal(401, "", "Invalid credentials in Authorization header");
            }
            let is_known = authorization.is_some();
            match parts.as_slice() {
                ["api", "repos", "create"] => state.create(request, is_known),
                ["api", kind @ ("models" | "datasets")] => state.repos_of_owner(kind, query),
                [
                    "api",
                    kind @ ("models" | "datasets"),
                    owner,
                    name,
                    action @ ..,
                ] => {
                    let key = format!("{kind}/{owner}/{name}");
                    state.api(&key, action, request, is_known, query, own_url)
                }
                [owner, name, "info", "lfs", "objects", action] => {
                    let name = name.trim_end_matches(".git");
                    state.lfs(
                        &format!("models/{owner}/{name}"),
                        action,
                        request,
                        own_url,
                        storage,
                    )
                }
                ["lfs-complete", oid] => state.complete(oid, request),
                ["datasets", owner, name, "resolve", revision, file @ ..] => {
                    let key = format!("datasets/{owner}/{name}");
                    state.resolve(&key, revision, &file.join("/"), request, is_known, storage)
                }
                [owner, name, "resolve", revision, file @ ..] => {
                    let key = format!("models/{owner}/{name}");
                    state.resolve(&key, revision, &file.join("/"), request, is_known, storage)
                }
                _ => refusal(404, "", "Sorry, we can't find the page"),
            }
        })
    }

    /// A repository at a revision, or the error reply.
    fn find_repo(&self, key: &str, revision: &str, is_known: bool) -> Result<&TestRepo, Answer> {
        let repo = self
            .repos
            .get(key)
            .filter(|repo| is_known || !repo.is_private);
        let Some(repo) = repo else {
            let status = if is_known { 404 } else { 401 };
            return Err(refusal(status, "RepoNotFound", "Repository not found"));
        };
        if !["main", "v1", repo.commit().as_str()].contains(&revision) {
            return Err(refusal(404, "RevisionNotFound", "Invalid rev id"));
        }
        Ok(repo)
    }

    fn repos_of_owner(&self, kind: &str, query: &str) -> Answer {
        let owner = query
            .split('&')
            .find_map(|part| part.strip_prefix("author="));
        let start = format!("{kind}/{}/", owner.unwrap_or_default());
        let repos = self
            .repos
            .iter()
            .filter(|(key, repo)| key.starts_with(&start) && !repo.is_private);
        let repos: Vec<Value> = repos
            .map(|(key, _)| json!({"id": key.split_once('/').map(|(_, id)| id)}))
            .collect();
        Answer::json(200, &json!(repos))
    }

    fn api(
        &mut self,
        key: &str,
        action: &[&str],
        request: &Received,
        is_known: bool,
        query: &str,
        own_url: &str,
    ) -> Answer {
        let id = key.split_once('/').map_or("", |(_, id)| id);
        match action {
            [] | ["revision", _] => {
                let revision = action.get(1).unwrap_or(&"main");
                let repo = match self.find_repo(key, revision, is_known) {
                    Ok(repo) => repo,
                    Err(refusal) => return refusal,
                };
                let siblings: Vec<Value> = (repo.files.keys())
                    .map(|name| json!({"rfilename": name}))
                    .collect();
                Answer::json(
                    200,
                    &json!({"_id": "1", "id": id, "sha": repo.commit(), "private": repo.is_private,
                            "gated": if repo.is_gated { json!("auto") } else { json!(false) },
                            "disabled": false, "tags": [], "downloads": 0, "likes": 0,
                            "siblings": siblings}),
                )
            }
            ["refs"] => Answer::json(
                200,
                &json!({"branches": [{"name": "main"}], "tags": [{"name": "v1"}], "converts": []}),
            ),
            ["tree", revision] => match self.find_repo(key, revision, is_known) {
                Ok(repo) => tree(repo, query, &format!("{own_url}/api/{key}/tree/{revision}")),
                Err(refusal) => refusal,
            },
            ["preupload", "main"] if is_known => self.preupload(key, request),
            ["commit", "main"] if is_known => self.commit(key, request),
            _ => refusal(
                if is_known { 404 } else { 401 },
                "",
                "Sorry, we can't find the page",
            ),
        }
    }

    fn resolve(
        &self,
        key: &str,
        revision: &str,
        path: &str,
        request: &Received,
        is_known: bool,
        storage: &str,
    ) -> Answer {
        let repo = match self.find_repo(key, revision, is_known) {
            Ok(repo) => repo,
            Err(refusal) => return refusal,
        };
        if repo.is_gated && !is_known {
            return refusal(401, "GatedRepo", "Access to this model is restricted");
        }
        let commit = ("X-Repo-Commit".to_owned(), repo.commit());
        let Some(file) = repo.files.get(path) else {
            let mut answer = refusal(404, "EntryNotFound", "Entry not found");
            if let Answer::Reply(_, headers, _) = &mut answer {
                headers.push(commit);
            }
            return answer;
        };
        let etag = format!("\"{}\"", file.etag());
        if !file.is_large {
            let headers = vec![commit, ("ETag".to_owned(), etag)];
            return file_answer(request, &file.bytes, headers);
        }
        let location = format!("{storage}/file/{}?Signature=secret", file.sha256());
        let headers = vec![
            commit,
            ("X-Linked-Etag".to_owned(), etag),
            ("X-Linked-Size".to_owned(), file.bytes.len().to_string()),
            ("X-Xet-Hash".to_owned(), "0".repeat(64)),
            ("ETag".to_owned(), "\"of the redirect\"".to_owned()),
            ("Location".to_owned(), location),
        ];
        Answer::Reply(302, headers, b"Found".to_vec())
    }
}

/// Lists two files per page, so that there are several pages.
fn tree(repo: &TestRepo, query: &str, own_url: &str) -> Answer {
    let cursor = query
        .split('&')
        .find_map(|part| part.strip_prefix("cursor="));
    let from: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let entries = repo.files.iter().skip(from).take(2).map(|(path, file)| {
        let mut entry = json!({"type": "file", "oid": file.blob_id(), "size": file.bytes.len(),
                               "path": path});
        if file.is_large {
            let size = file.bytes.len();
            entry["lfs"] = json!({"oid": file.sha256(), "size": size, "pointerSize": 130});
        }
        entry
    });
    let folder = json!({"type": "directory", "oid": "0".repeat(40), "size": 0, "path": "folder"});
    let entries: Vec<Value> = entries.chain([folder]).collect();
    let mut answer = Answer::json(200, &json!(entries));
    if let Answer::Reply(_, headers, _) = &mut answer
        && from + 2 < repo.files.len()
    {
        let next_link = format!(
            "<{own_url}?recursive=true&cursor={}>; rel=\"next\"",
            from + 2
        );
        headers.push(("Link".to_owned(), next_link));
    }
    answer
}
