//! A hub on 127.0.0.1 for tests, and the storage that it leads to on another port: the protocol that
//! `huggingface_hub` speaks, redirects, ETags, refusals, uploads, and faults on demand.

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
    /// Its content.
    pub bytes: Vec<u8>,
    /// Whether it lies in the storage of large files.
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
    /// Its files, of each commit.
    pub files: BTreeMap<String, TestFile>,
    /// Whether it wants its conditions to be accepted.
    pub is_gated: bool,
    /// Whether it was made for its owner alone.
    pub is_private: bool,
    /// How often it was changed, which makes its commit.
    pub n_commits: usize,
    /// The first lines of its commits.
    pub messages: Vec<String>,
    id: String,
}

impl TestRepo {
    /// The commit of its branch `main` and its tag `v1`.
    pub fn commit(&self) -> String {
        hex(&Sha1::digest(format!("{} {}", self.id, self.n_commits)))
    }
}

/// What goes wrong with requests.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status with these headers.
    Status(u16, Vec<(&'static str, &'static str)>),
    /// The connection ends after so many bytes of the body.
    CutAfter(usize),
    /// The whole file comes, whatever part is asked for.
    IgnoreRange,
    /// One byte is another.
    WrongByte,
    /// Nothing comes.
    Silence,
    /// This page comes in place of an answer.
    Page(&'static str),
}

#[derive(Debug)]
struct Planned {
    path: String,
    n: usize,
    fault: Fault,
}

#[derive(Debug, Default)]
struct State {
    repos: BTreeMap<String, TestRepo>,
    storage: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    faults: Vec<Planned>,
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

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestHub {
    /// Starts a hub without repositories, which wants a token of nobody.
    pub fn start() -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let of_storage = state.clone();
        let storage = TestServer::start(move |request, _| {
            let mut state = locked(&of_storage);
            state.storage_answer(request)
        });
        let of_hub = (state.clone(), storage.url());
        let hub = TestServer::start(move |request, _| {
            let host = request.headers.get("host").cloned().unwrap_or_default();
            let mut state = locked(&of_hub.0);
            let answer = state.hub_answer(request, &format!("http://{host}"), &of_hub.1);
            without_body_of_head(request, answer)
        });
        Self {
            hub,
            storage,
            state,
        }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        self.hub.url()
    }

    /// Adds a file to a repository, such as `models/owner/name`, which is made if need be.
    pub fn add(&self, repo: &str, path: &str, bytes: &[u8], is_large: bool) {
        let mut state = locked(&self.state);
        let found = state
            .repos
            .entry(repo.to_owned())
            .or_insert_with(|| TestRepo {
                id: repo.to_owned(),
                ..TestRepo::default()
            });
        let bytes = bytes.to_vec();
        found
            .files
            .insert(path.to_owned(), TestFile { bytes, is_large });
        found.n_commits += 1;
    }

    /// Changes a repository.
    pub fn change(&self, repo: &str, change: impl FnOnce(&mut TestRepo)) {
        change(
            locked(&self.state)
                .repos
                .get_mut(repo)
                .expect("a repository"),
        );
    }

    /// A repository as it is now.
    pub fn repo(&self, repo: &str) -> TestRepo {
        locked(&self.state).repos[repo].clone()
    }

    /// The one token that is taken, for private and gated repositories and for uploads.
    pub fn take_token(&self, token: &str) {
        locked(&self.state).token = Some(token.to_owned());
    }

    /// Has the storage take parts of so many bytes.
    pub fn take_parts_of(&self, bytes: usize) {
        locked(&self.state).part_bytes = Some(bytes);
    }

    /// Has the next `n` requests fail whose path holds `path`.
    pub fn fail(&self, path: &str, n: usize, fault: Fault) {
        locked(&self.state).faults.push(Planned {
            path: path.to_owned(),
            n,
            fault,
        });
    }

    /// The requests so far, those to the hub before those to the storage.
    pub fn received(&self) -> (Vec<Received>, Vec<Received>) {
        (self.hub.received(), self.storage.received())
    }
}

/// To a question for the headers, they alone.
fn without_body_of_head(request: &Received, answer: Answer) -> Answer {
    match answer {
        Answer::Reply(status, headers, body) if request.method == "HEAD" => {
            Answer::Raw(head(status, &headers, body.len()))
        }
        other => other,
    }
}

fn head(status: u16, headers: &[(String, String)], length: usize) -> Vec<u8> {
    let lines: String = (headers.iter())
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!(
        "HTTP/1.1 {status} Status\r\n{lines}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

fn refusal(status: u16, code: &str, said: &str) -> Answer {
    let headers = [("X-Error-Code", code), ("X-Error-Message", said)];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Answer::Reply(
        status,
        headers.to_vec(),
        json!({"error": said}).to_string().into_bytes(),
    )
}

/// A file, or the part of it that is asked for.
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
        let is_meant = |planned: &&mut Planned| planned.n > 0 && path.contains(&planned.path);
        let planned = self.faults.iter_mut().find(is_meant)?;
        planned.n -= 1;
        Some(planned.fault.clone())
    }

    fn faulty(
        &mut self,
        request: &Received,
        answer: impl FnOnce(&mut Self, &Received) -> Answer,
    ) -> Answer {
        let Some(fault) = self.fault(&request.target) else {
            return answer(self, request);
        };
        let mut request = request.clone();
        match fault {
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
                    let mut bytes = head(status, &headers, body.len());
                    bytes.extend_from_slice(&body[..n.min(body.len())]);
                    Answer::Raw(bytes)
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
        self.faulty(request, |state, request| {
            let path = request.target.split('?').next().unwrap_or_default();
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            match (request.method.as_str(), parts.as_slice()) {
                // A signed address: what is sent to it beside would be too much.
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

    fn hub_answer(&mut self, request: &Received, own: &str, storage: &str) -> Answer {
        self.faulty(request, |state, request| {
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
            let sent = request.headers.get("authorization");
            let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
            if sent.is_some() && sent != wanted.as_ref() {
                return refusal(401, "", "Invalid credentials in Authorization header");
            }
            let is_known = sent.is_some();
            match parts.as_slice() {
                ["api", "repos", "create"] => state.create(request, is_known),
                ["api", kind @ ("models" | "datasets")] => state.of_owner(kind, query),
                [
                    "api",
                    kind @ ("models" | "datasets"),
                    owner,
                    name,
                    action @ ..,
                ] => {
                    let key = format!("{kind}/{owner}/{name}");
                    state.api(&key, action, request, is_known, query, own)
                }
                [owner, name, "info", "lfs", "objects", action] => {
                    let name = name.trim_end_matches(".git");
                    state.lfs(
                        &format!("models/{owner}/{name}"),
                        action,
                        request,
                        own,
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

    /// A repository at a revision, or why not.
    fn found(&self, key: &str, revision: &str, is_known: bool) -> Result<&TestRepo, Answer> {
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

    fn of_owner(&self, kind: &str, query: &str) -> Answer {
        let owner = query
            .split('&')
            .find_map(|part| part.strip_prefix("author="));
        let start = format!("{kind}/{}/", owner.unwrap_or_default());
        let found = self
            .repos
            .iter()
            .filter(|(key, repo)| key.starts_with(&start) && !repo.is_private);
        let found: Vec<Value> = found
            .map(|(key, _)| json!({"id": key.split_once('/').map(|(_, id)| id)}))
            .collect();
        Answer::json(200, &json!(found))
    }

    fn api(
        &mut self,
        key: &str,
        action: &[&str],
        request: &Received,
        is_known: bool,
        query: &str,
        own: &str,
    ) -> Answer {
        let id = key.split_once('/').map_or("", |(_, id)| id);
        match action {
            [] | ["revision", _] => {
                let revision = action.get(1).unwrap_or(&"main");
                let repo = match self.found(key, revision, is_known) {
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
            ["tree", revision] => match self.found(key, revision, is_known) {
                Ok(repo) => tree(repo, query, &format!("{own}/api/{key}/tree/{revision}")),
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
        let repo = match self.found(key, revision, is_known) {
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

/// Two files a page, so that there are pages.
fn tree(repo: &TestRepo, query: &str, own: &str) -> Answer {
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
        let next = format!("<{own}?recursive=true&cursor={}>; rel=\"next\"", from + 2);
        headers.push(("Link".to_owned(), next));
    }
    answer
}
