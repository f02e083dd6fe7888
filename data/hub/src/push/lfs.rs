//! Uploads contents to the large-file storage by the git-lfs protocol, in one piece or in parts, as
//! the hub requires.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::{Value, json};
use tooltune_disk::regular_file;
use ureq::http::Method;

use super::{JSON, LocalFile, explain};
use crate::client::{Client, Outgoing, Reopen, RequestBody, header_text};
use crate::error::HubError;
use crate::event::{Event, Listener};
use crate::fetch::in_parallel;
use crate::refusal::RequestSubject;

/// The content type of the protocol's messages.
const LFS_JSON: &str = "application/vnd.git-lfs+json";

/// A range of a file, opened again for each attempt.
#[derive(Debug)]
struct FileRange {
    path: PathBuf,
    from: u64,
    bytes: u64,
}

impl Reopen for FileRange {
    fn open(&self) -> io::Result<Box<dyn Read>> {
        let mut file: File = regular_file::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        Ok(Box::new(file.take(self.bytes)))
    }
}

/// Uploads the contents that the storage does not have yet.
///
/// # Errors
///
/// The hub or its storage refuses, or a file cannot be read.
pub(super) fn upload(
    client: &Client,
    files: &[&LocalFile],
    subject: RequestSubject<'_>,
    report: Listener<'_>,
) -> Result<(), HubError> {
    for files in files.chunks(super::FILES_PER_REQUEST) {
        let objects: Vec<Value> = files
            .iter()
            .map(|file| json!({"oid": file.sha256, "size": file.bytes}))
            .collect();
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart"], "objects": objects,
            "hash_algo": "sha256", "ref": {"name": super::MAIN}
        });
        let url = client.url(&format!(
            "{}.git/info/lfs/objects/batch",
            subject.repo.page_path()
        ));
        let body = body.to_string();
        let mut outgoing = Outgoing::post(url, LFS_JSON, body.as_bytes());
        outgoing.headers.push(("Accept", LFS_JSON.to_owned()));
        let (answer, _) = explain(client, client.json(&outgoing, report), subject, report)?;
        let objects = answer["objects"].as_array().cloned().unwrap_or_default();
        in_parallel(files, |file| {
            let object = objects
                .iter()
                .find(|object| object["oid"] == file.sha256.as_str());
            let subject = RequestSubject {
                file: Some(&file.name),
                ..subject
            };
            upload_file(client, file, object, subject, report)
        })?;
    }
    Ok(())
}

fn upload_file(
    client: &Client,
    file: &LocalFile,
    object: Option<&Value>,
    subject: RequestSubject<'_>,
    report: Listener<'_>,
) -> Result<(), HubError> {
    let upload_error = |reason: String| HubError::Upload {
        repo: subject.repo.clone(),
        file: file.name.clone(),
        reason,
    };
    let object =
        object.ok_or_else(|| upload_error("its storage returned no entry for it".into()))?;
    if let Some(error) = object.get("error") {
        return Err(upload_error(
            error["message"].as_str().unwrap_or("no reason").to_owned(),
        ));
    }
    let Some(actions) = object.get("actions").filter(|actions| !actions.is_null()) else {
        // The storage already has it.
        report(Event::Bytes(file.bytes));
        return Ok(());
    };
    let action = |name: &str| {
        let href = actions[name]["href"].as_str();
        href.map(|href| client.rebase_url(href))
    };
    let url = action("upload")
        .ok_or_else(|| upload_error("its storage returned no upload address for it".into()))?;
    let header = &actions["upload"]["header"];
    let parts = match header.get("chunk_size") {
        Some(size) => {
            let size = size.as_u64().or_else(|| size.as_str()?.parse().ok());
            let size = size.filter(|size| *size > 0);
            let size = size
                .ok_or_else(|| upload_error("its storage returned an invalid part size".into()))?;
            let parts = upload_parts(header, size, file).ok_or_else(|| {
                upload_error(format!(
                    "its storage did not return an address for each part of {size} bytes"
                ))
            })?;
            Some(parts)
        }
        None => None,
    };
    match parts {
        None => {
            let whole_file = FileRange {
                path: file.path.clone(),
                from: 0,
                bytes: file.bytes,
            };
            upload_part(client, url, &whole_file, subject, report)?;
        }
        Some(parts) => {
            let mut done = Vec::new();
            for (number, (part_url, range)) in (1..).zip(parts) {
                let etag = upload_part(client, part_url, &range, subject, report)?;
                let etag = etag.ok_or_else(|| {
                    upload_error("its storage returned no ETag for a part".into())
                })?;
                done.push(json!({"partNumber": number, "etag": etag}));
            }
            let body = json!({"oid": file.sha256, "parts": done}).to_string();
            let mut outgoing = Outgoing::post(url, LFS_JSON, body.as_bytes());
            outgoing.headers.push(("Accept", LFS_JSON.to_owned()));
            let reply =
                client.with_retries(report, || client.send(&outgoing).map_err(|f| (f, false)));
            explain(client, reply, subject, report)?;
        }
    }
    if let Some(url) = action("verify") {
        let body = json!({"oid": file.sha256, "size": file.bytes}).to_string();
        let outgoing = Outgoing::post(url, JSON, body.as_bytes());
        let reply = client.with_retries(report, || client.send(&outgoing).map_err(|f| (f, false)));
        explain(client, reply, subject, report)?;
    }
    Ok(())
}

/// The address and range of each part, in order; `None` if any is missing.
fn upload_parts(header: &Value, size: u64, file: &LocalFile) -> Option<Vec<(String, FileRange)>> {
    let fields = header.as_object()?.iter();
    let numbered_urls = fields.filter_map(|(number, url)| {
        let number: u64 = number.parse().ok()?;
        Some((number, url.as_str()?.to_owned()))
    });
    let numbered_urls: BTreeMap<u64, String> = numbered_urls.collect();
    if numbered_urls.len() as u64 != file.bytes.div_ceil(size) {
        return None;
    }
    let range = |(idx, url): (u64, String)| {
        let from = idx * size;
        let range = FileRange {
            path: file.path.clone(),
            from,
            bytes: size.min(file.bytes - from),
        };
        (url, range)
    };
    Some((0..).zip(numbered_urls.into_values()).map(range).collect())
}

/// Sends a range; returns the ETag from the storage.
fn upload_part(
    client: &Client,
    url: String,
    range: &FileRange,
    subject: RequestSubject<'_>,
    report: Listener<'_>,
) -> Result<Option<String>, HubError> {
    let outgoing = Outgoing {
        method: Method::PUT,
        url,
        headers: Vec::new(),
        body: RequestBody::Reopen(range, range.bytes),
    };
    let reply = client.with_retries(report, || client.send(&outgoing).map_err(|f| (f, false)));
    let incoming = explain(client, reply, subject, report)?;
    report(Event::Bytes(range.bytes));
    Ok(header_text(&incoming.headers, "etag").map(str::to_owned))
}
