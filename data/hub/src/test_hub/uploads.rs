//! Uploads of the test hub: large-file storage and commits.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tooltune_endpoint::http::test_server::{Answer, Received};

use super::{State, TestFile, TestRepo, refusal};
use crate::download::hex;

impl State {
    pub(super) fn create(&mut self, request: &Received, is_known: bool) -> Answer {
        if !is_known {
            return refusal(401, "", "Invalid username or password.");
        }
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let key = format!("models/{}/{}", text("organization"), text("name"));
        if text("organization") == "others" {
            return refusal(
                403,
                "",
                "You don't have the rights to create a model under others",
            );
        }
        if self.repos.contains_key(&key) {
            return refusal(409, "", "You already created this model repo");
        }
        let repo = TestRepo {
            is_private: text("visibility") == "private",
            id: key.clone(),
            ..TestRepo::default()
        };
        self.repos.insert(key, repo);
        Answer::json(200, &json!({"url": "a page"}))
    }

    pub(super) fn preupload(&self, key: &str, request: &Received) -> Answer {
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        let known_files = &self.repos[key].files;
        let files = body["files"].as_array().expect("files").iter().map(|file| {
            let path = file["path"].as_str().expect("a path");
            let is_large = path.ends_with(".safetensors") || path.ends_with(".gguf");
            json!({"path": path, "uploadMode": if is_large { "lfs" } else { "regular" },
                   "shouldIgnore": path.ends_with(".ignored"),
                   "oid": known_files.get(path).map(TestFile::etag)})
        });
        Answer::json(200, &json!({"files": files.collect::<Vec<_>>()}))
    }

    pub(super) fn lfs(
        &self,
        key: &str,
        action: &str,
        request: &Received,
        own_url: &str,
        storage: &str,
    ) -> Answer {
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        if action == "verify" {
            let oid = body["oid"].as_str().unwrap_or_default();
            let bytes = self.storage.get(oid);
            let is_complete = bytes.is_some_and(|bytes| hex(&Sha256::digest(bytes)) == oid);
            return Answer::json(if is_complete { 200 } else { 422 }, &json!({}));
        }
        let id = key.trim_start_matches("models/");
        let objects = body["objects"]
            .as_array()
            .expect("objects")
            .iter()
            .map(|object| {
                let oid = object["oid"].as_str().expect("an oid");
                let size = object["size"].as_u64().expect("a size") as usize;
                if self.storage.contains_key(oid) {
                    return json!({"oid": oid, "size": size});
                }
                let upload = match self.part_bytes.filter(|bytes| *bytes < size) {
                    Some(bytes) => {
                        let mut header = json!({"chunk_size": bytes.to_string()});
                        for number in 1..=size.div_ceil(bytes) {
                            header[number.to_string()] =
                                json!(format!("{storage}/part/{oid}/{number}"));
                        }
                        json!({"href": format!("{own_url}/lfs-complete/{oid}"), "header": header})
                    }
                    None => json!({"href": format!("{storage}/upload/{oid}?Signature=secret")}),
                };
                let verify = json!({"href": format!("{own_url}/{id}.git/info/lfs/objects/verify")});
                json!({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
            });
        Answer::json(
            200,
            &json!({"transfer": "basic", "objects": objects.collect::<Vec<_>>()}),
        )
    }

    pub(super) fn complete(&mut self, oid: &str, request: &Received) -> Answer {
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        let parts = self.parts.remove(oid).unwrap_or_default();
        let etags: Vec<Value> = (parts.keys())
            .map(|number| json!({"partNumber": number, "etag": format!("\"part-{number}\"")}))
            .collect();
        if body["parts"] != json!(etags) {
            return refusal(400, "", "other parts");
        }
        let bytes = parts.into_values().flatten().collect();
        self.storage.insert(oid.to_owned(), bytes);
        Answer::json(200, &json!({}))
    }

    pub(super) fn commit(&mut self, key: &str, request: &Received) -> Answer {
        let mut files = BTreeMap::new();
        let mut deleted = Vec::new();
        let mut message = String::new();
        for line in request.body.lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let value = &line["value"];
            let path = value["path"].as_str().unwrap_or_default().to_owned();
            match line["key"].as_str() {
                Some("header") => {
                    message = value["summary"].as_str().unwrap_or_default().to_owned();
                    let parent = value["parentCommit"].as_str();
                    if parent.is_some_and(|parent| parent != self.repos[key].commit()) {
                        return refusal(412, "", "A commit has happened since");
                    }
                }
                Some("deletedFile") => deleted.push(path),
                Some("file") => {
                    let content = value["content"].as_str().unwrap_or_default();
                    let bytes = STANDARD.decode(content).expect("base64");
                    files.insert(
                        path,
                        TestFile {
                            bytes,
                            is_large: false,
                        },
                    );
                }
                Some("lfsFile") => {
                    let oid = value["oid"].as_str().unwrap_or_default();
                    let Some(bytes) = self.storage.get(oid).cloned() else {
                        return refusal(400, "", "an object that was not uploaded");
                    };
                    files.insert(
                        path,
                        TestFile {
                            bytes,
                            is_large: true,
                        },
                    );
                }
                _ => return refusal(400, "", "an unknown line"),
            }
        }
        let repo = self.repos.get_mut(key).expect("a repository");
        for path in deleted {
            if repo.files.remove(&path).is_none() {
                return refusal(404, "EntryNotFound", "the file to delete does not exist");
            }
        }
        repo.files.extend(files);
        repo.n_commits += 1;
        repo.messages.push(message);
        Answer::json(
            200,
            &json!({"commitOid": repo.commit(), "commitUrl": "a page", "success": true}),
        )
    }
}
