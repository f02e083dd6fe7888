//! Contents for the storage of large files, by the protocol of git-lfs: in one piece, or in parts as
//! the hub wants them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::{Value, json};
use tooltune_rows::regular_file;
use ureq::http::Method;

use super::{JSON, LocalFile, explained};
use crate::client::{Body, Client, Opened, Outgoing, text_of};
use crate::error::HubError;
use crate::fetch::{Event, Listener, in_parallel};
use crate::refusal::About;

/// The kind of the protocol's messages.
const LFS_JSON: &str = "application/vnd.git-lfs+json";

/// A stretch of a file, which each try opens anew.
#[derive(Debug)]
struct Stretch {
    path: PathBuf,
    from: u64,
    bytes: u64,
}

impl Opened for Stretch {
    fn open(&self) -> io::Result<Box<dyn Read>> {
        let mut file: File = regular_file::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        Ok(Box::new(file.take(self.bytes)))
    }
}

/// Uploads what the storage does not have.
///
/// # Errors
///
/// The hub or its storage does not take it; a file cannot be read.
pub(super) fn upload(
    client: &Client,
    files: &[&LocalFile],
    about: About<'_>,
    told: Listener<'_>,
) -> Result<(), HubError> {
    for files in files.chunks(super::FILES_AT_ONCE) {
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
            about.repo.page_path()
        ));
        let body = body.to_string();
        let mut outgoing = Outgoing::post(url, LFS_JSON, body.as_bytes());
        outgoing.headers.push(("Accept", LFS_JSON.to_owned()));
        let (answer, _) = explained(client, client.json(&outgoing, told), about, told)?;
        let objects = answer["objects"].as_array().cloned().unwrap_or_default();
        in_parallel(files, |file| {
            let object = objects
                .iter()
                .find(|object| object["oid"] == file.sha256.as_str());
            let about = About {
                file: Some(&file.name),
                ..about
            };
            upload_file(client, file, object, about, told)
        })?;
    }
    Ok(())
}

fn upload_file(
    client: &Client,
    file: &LocalFile,
    object: Option<&Value>,
    about: About<'_>,
    told: Listener<'_>,
) -> Result<(), HubError> {
    let refused = |said: String| HubError::Upload {
        repo: about.repo.clone(),
        file: file.name.clone(),
        said,
    };
    let object = object.ok_or_else(|| refused("its storage does not answer about it".into()))?;
    if let Some(error) = object.get("error") {
        return Err(refused(
            error["message"].as_str().unwrap_or("no reason").to_owned(),
        ));
    }
    let Some(actions) = object.get("actions").filter(|actions| !actions.is_null()) else {
        // The storage has it.
        told(Event::Bytes(file.bytes));
        return Ok(());
    };
    let action = |name: &str| {
        let href = actions[name]["href"].as_str();
        href.map(|href| client.behind_endpoint(href))
    };
    let url =
        action("upload").ok_or_else(|| refused("its storage names no address for it".into()))?;
    let header = &actions["upload"]["header"];
    let parts = match header.get("chunk_size") {
        Some(size) => {
            let size = size.as_u64().or_else(|| size.as_str()?.parse().ok());
            let size = size.filter(|size| *size > 0);
            let size = size.ok_or_else(|| refused("its storage wants parts of no size".into()))?;
            let parts = parts(header, size, file).ok_or_else(|| {
                refused(format!(
                    "its storage names no address for each part of {size} bytes"
                ))
            })?;
            Some(parts)
        }
        None => None,
    };
    match parts {
        None => {
            let whole = Stretch {
                path: file.path.clone(),
                from: 0,
                bytes: file.bytes,
            };
            put(client, url, &whole, about, told)?;
        }
        Some(parts) => {
            let mut done = Vec::new();
            for (number, (part_url, stretch)) in (1..).zip(parts) {
                let etag = put(client, part_url, &stretch, about, told)?;
                let etag =
                    etag.ok_or_else(|| refused("its storage acknowledges no part".into()))?;
                done.push(json!({"partNumber": number, "etag": etag}));
            }
            let body = json!({"oid": file.sha256, "parts": done}).to_string();
            let mut outgoing = Outgoing::post(url, LFS_JSON, body.as_bytes());
            outgoing.headers.push(("Accept", LFS_JSON.to_owned()));
            let sent = client.trying(told, || client.send(&outgoing).map_err(|f| (f, false)));
            explained(client, sent, about, told)?;
        }
    }
    if let Some(url) = action("verify") {
        let body = json!({"oid": file.sha256, "size": file.bytes}).to_string();
        let outgoing = Outgoing::post(url, JSON, body.as_bytes());
        let sent = client.trying(told, || client.send(&outgoing).map_err(|f| (f, false)));
        explained(client, sent, about, told)?;
    }
    Ok(())
}

/// The address and stretch of each part, by their numbers; nothing unless they are all there.
fn parts(header: &Value, size: u64, file: &LocalFile) -> Option<Vec<(String, Stretch)>> {
    let fields = header.as_object()?.iter();
    let numbered = fields.filter_map(|(number, url)| {
        let number: u64 = number.parse().ok()?;
        Some((number, url.as_str()?.to_owned()))
    });
    let numbered: BTreeMap<u64, String> = numbered.collect();
    if numbered.len() as u64 != file.bytes.div_ceil(size) {
        return None;
    }
    let stretch = |(idx, url): (u64, String)| {
        let from = idx * size;
        let stretch = Stretch {
            path: file.path.clone(),
            from,
            bytes: size.min(file.bytes - from),
        };
        (url, stretch)
    };
    Some((0..).zip(numbered.into_values()).map(stretch).collect())
}

/// Sends a stretch; answers the ETag under which the storage keeps it.
fn put(
    client: &Client,
    url: String,
    stretch: &Stretch,
    about: About<'_>,
    told: Listener<'_>,
) -> Result<Option<String>, HubError> {
    let outgoing = Outgoing {
        method: Method::PUT,
        url,
        headers: Vec::new(),
        body: Body::Opened(stretch, stretch.bytes),
    };
    let sent = client.trying(told, || client.send(&outgoing).map_err(|f| (f, false)));
    let incoming = explained(client, sent, about, told)?;
    told(Event::Bytes(stretch.bytes));
    Ok(text_of(&incoming.headers, "etag").map(str::to_owned))
}
