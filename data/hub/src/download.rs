//! One file of a commit: from the cache, or from where the hub leads, continued where it broke off.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use tooltune_rows::regular_file;

use crate::cache::{RepoCache, blob_name};
use crate::client::{Client, Failure, Incoming, Outgoing, text_of};
use crate::error::HubError;
use crate::fetch::{Event, Listener};
use crate::listing::ListedFile;
use crate::name::{quoted_part, quoted_path};
use crate::refusal::About;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes that a try must bring to count as one that went further.
const FURTHER_BYTES: u64 = 1 << 20;

/// A file that is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) about: About<'a>,
    pub(crate) commit: &'a str,
    pub(crate) path: &'a str,
    pub(crate) file: &'a ListedFile,
}

/// What a content is hashed with, as the hub names it.
enum Hasher {
    Large(Sha256),
    Git(Sha1),
}

impl Hasher {
    fn of(file: &ListedFile) -> Self {
        if file.lfs_sha256.is_some() {
            return Self::Large(Sha256::new());
        }
        // Git hashes a head with the length before the content.
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", file.size));
        Self::Git(hasher)
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Large(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Large(hasher) => hex(&hasher.finalize()),
            Self::Git(hasher) => hex(&hasher.finalize()),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A content that grows, and its hash so far.
struct Growing {
    file: File,
    length: u64,
    hasher: Hasher,
}

impl Growing {
    /// What an earlier process has left, or nothing yet.
    fn open(path: &Path, wanted: &ListedFile) -> Result<Self, HubError> {
        let failed = |error| HubError::io("write", path)(error);
        if path.exists() {
            // No pipe, and no device.
            regular_file::is_there(path).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut growing = Self {
            file: options.open(path).map_err(failed)?,
            length: 0,
            hasher: Hasher::of(wanted),
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let n = growing.file.read(&mut chunk).map_err(failed)?;
            if n == 0 {
                break;
            }
            growing.hasher.update(&chunk[..n]);
            growing.length += n as u64;
        }
        if growing.length > wanted.bytes() {
            growing.begin_anew(wanted).map_err(failed)?;
        }
        Ok(growing)
    }

    fn begin_anew(&mut self, wanted: &ListedFile) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.hasher = Hasher::of(wanted);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Makes a file of a commit lie in its folder.
///
/// # Errors
///
/// The hub does not give it, what it gives has another hash, or the cache cannot be written.
pub(crate) fn fetch_file(
    client: &Client,
    cache: &RepoCache,
    wanted: Wanted<'_>,
    told: Listener<'_>,
) -> Result<(), HubError> {
    let Wanted {
        commit, path, file, ..
    } = wanted;
    if cache.pointer(commit, path).exists() {
        return Ok(());
    }
    let etag = file.etag();
    let _lock = cache.lock(etag)?;
    // Another process may have brought it in the meantime.
    if !cache.blob(etag).exists() {
        let etag = download(client, cache, wanted, told)?;
        return cache.link(commit, path, &etag);
    }
    told(Event::Bytes(file.bytes()));
    cache.link(commit, path, etag)
}

/// Brings the content of a file under the name of its ETag, which is the answer.
fn download(
    client: &Client,
    cache: &RepoCache,
    wanted: Wanted<'_>,
    told: Listener<'_>,
) -> Result<String, HubError> {
    let Wanted { about, file, .. } = wanted;
    let incomplete = cache.incomplete(file.etag());
    let failed = |error| HubError::io("write", &incomplete)(error);
    let mut growing = Growing::open(&incomplete, file)?;
    let mut was_continued = growing.length > 0;
    told(Event::Bytes(growing.length));
    loop {
        let mut etag = None;
        let mut n_tries = 0;
        let brought = client.trying(told, || {
            let before = growing.length;
            n_tries += 1;
            bring(client, wanted, &mut growing, told)
                .map(|found| etag = found)
                .map_err(|failure| {
                    let brought = growing.length.saturating_sub(before);
                    (failure, brought >= FURTHER_BYTES.min(file.bytes().max(1)))
                })
        });
        brought.map_err(|failure| client.explained(failure, about, told))?;
        was_continued |= n_tries > 1;
        let hasher = std::mem::replace(&mut growing.hasher, Hasher::of(file));
        let found = hasher.finish();
        if growing.length == file.bytes() && found == file.etag() {
            growing.file.sync_all().map_err(failed)?;
            let etag = etag.as_deref().and_then(blob_name);
            let etag = etag.unwrap_or_else(|| file.etag().to_owned());
            let blob = cache.blob(&etag);
            fs::rename(&incomplete, &blob).map_err(HubError::io("write", &blob))?;
            return Ok(etag);
        }
        told(Event::Lost(growing.length));
        let expected = format!("{} bytes with the hash {}", file.bytes(), file.etag());
        let found = format!("{} bytes with the hash {found}", growing.length);
        growing.begin_anew(file).map_err(failed)?;
        if !std::mem::take(&mut was_continued) {
            // What was brought in one piece and is wrong is wrong again.
            drop(growing);
            fs::remove_file(&incomplete).map_err(failed)?;
            return Err(HubError::Damaged {
                repo: about.repo.clone(),
                file: wanted.path.to_owned(),
                expected,
                found,
            });
        }
    }
}

/// One try to bring what is missing; answers the ETag that the hub gives.
fn bring(
    client: &Client,
    wanted: Wanted<'_>,
    growing: &mut Growing,
    told: Listener<'_>,
) -> Result<Option<String>, Failure> {
    let Wanted {
        about,
        commit,
        path,
        file,
    } = wanted;
    let of_disk = |error: std::io::Error| {
        Failure::Final(HubError::Io {
            path: path.into(),
            doing: "write the content of",
            source: error,
        })
    };
    if growing.length == file.bytes() && file.bytes() > 0 {
        return Ok(None);
    }
    let address = format!(
        "{}/resolve/{}/{}",
        about.repo.page_path(),
        quoted_part(commit),
        quoted_path(path)
    );
    let mut outgoing = Outgoing::get(client.url(&address));
    if growing.length > 0 {
        let from = growing.length;
        outgoing.headers.push(("Range", format!("bytes={from}-")));
    }
    let mut incoming = client.send(&outgoing)?;
    let is_rest = continues(&incoming, growing.length);
    if growing.length > 0 && !is_rest {
        told(Event::Lost(growing.length));
        growing.begin_anew(file).map_err(of_disk)?;
        if incoming.status.as_u16() == 416 || incoming.status.as_u16() == 206 {
            // Another part than was asked for: from the beginning, with the next try.
            return Err(Failure::Fault(tooltune_endpoint::http::HttpFault::Broken {
                reason: "the server sends another part of the file than was asked for".to_owned(),
            }));
        }
    }
    let etag =
        text_of(&incoming.of_hub, "x-linked-etag").or_else(|| text_of(&incoming.of_hub, "etag"));
    let etag = etag.map(str::to_owned);
    let mut reader = incoming.body.with_config().limit(u64::MAX).reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let n = reader
            .read(&mut chunk)
            .map_err(|error| Failure::Fault(client.http_fault(ureq::Error::from(error))))?;
        if n == 0 {
            break;
        }
        growing.add(&chunk[..n]).map_err(of_disk)?;
        told(Event::Bytes(n as u64));
        if growing.length > file.bytes() {
            // The hash says what is wrong.
            break;
        }
    }
    if growing.length < file.bytes() {
        return Err(Failure::Fault(tooltune_endpoint::http::HttpFault::Broken {
            reason: format!("{} of {} bytes came", growing.length, file.bytes()),
        }));
    }
    Ok(etag)
}

/// Whether a reply holds what follows the first `length` bytes.
fn continues(incoming: &Incoming, length: u64) -> bool {
    let range = incoming.header("content-range");
    let from = range.and_then(|range| {
        let from = range.trim().strip_prefix("bytes ")?.split('-').next()?;
        from.trim().parse::<u64>().ok()
    });
    incoming.status.as_u16() == 206 && from == Some(length)
}
