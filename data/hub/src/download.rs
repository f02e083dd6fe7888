//! Gets one file of a commit from the cache or from the hub, and resumes partial downloads.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use tooltune_disk::regular_file;

use crate::cache::{RepoCache, hash_from_etag, is_commit};
use crate::client::{Client, Failure, Incoming, Outgoing, header_text};
use crate::error::HubError;
use crate::event::{Event, Listener};
use crate::listing::{Files, ListedFile};
use crate::name::{quoted_part, quoted_path};
use crate::refusal::RequestSubject;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes that an attempt must transfer to count as progress.
const PROGRESS_BYTES: u64 = 1 << 20;

/// A requested file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestedFile<'a> {
    pub(crate) about: RequestSubject<'a>,
    pub(crate) commit: &'a str,
    pub(crate) path: &'a str,
    pub(crate) file: &'a ListedFile,
    /// All files of the commit.
    pub(crate) files: &'a Files,
}

/// The hash function by which the hub names a blob.
enum FileHasher {
    Large(Sha256),
    Git(Sha1),
}

impl FileHasher {
    fn for_file(file: &ListedFile) -> Self {
        if file.lfs_sha256.is_some() {
            return Self::Large(Sha256::new());
        }
        // Git hashes a header with the length before the content.
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

/// A partial download and its hash so far.
struct PartialDownload {
    file: File,
    length: u64,
    hasher: FileHasher,
}

impl PartialDownload {
    /// Opens the partial download of an earlier process, or starts a new one.
    fn open(path: &Path, listed_file: &ListedFile) -> Result<Self, HubError> {
        let failed = |error| HubError::io("write", path)(error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = regular_file::open_own(path, &mut options).map_err(failed)?;
        refuse_other_names(&file).map_err(failed)?;
        let mut partial = Self {
            file,
            length: 0,
            hasher: FileHasher::for_file(listed_file),
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let n = partial.file.read(&mut chunk).map_err(failed)?;
            if n == 0 {
                break;
            }
            partial.hasher.update(&chunk[..n]);
            partial.length += n as u64;
        }
        if partial.length > listed_file.bytes() {
            partial.restart(listed_file).map_err(failed)?;
        }
        Ok(partial)
    }

    fn restart(&mut self, listed_file: &ListedFile) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.hasher = FileHasher::for_file(listed_file);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Puts a file of a commit into its snapshot folder, and downloads it if necessary.
///
/// # Errors
///
/// The hub does not serve the file or serves a different hash, or the cache cannot be written.
pub(crate) fn fetch_file(
    client: &Client,
    cache: &RepoCache,
    requested: RequestedFile<'_>,
    report: Listener<'_>,
) -> Result<(), HubError> {
    let RequestedFile {
        commit, path, file, ..
    } = requested;
    if cache.has_file(commit, path, Some(file))? {
        return Ok(());
    }
    let _lock = cache.lock(file.hash())?;
    // Another process may have downloaded it in the meantime.
    if cache.has_blob(file)? {
        report(Event::Bytes(file.bytes()));
    } else {
        download(client, cache, requested, report)?;
    }
    cache.link(commit, path, file)
}

/// Downloads a file's content, and names it by its hash if that matches the listing.
fn download(
    client: &Client,
    cache: &RepoCache,
    requested: RequestedFile<'_>,
    report: Listener<'_>,
) -> Result<(), HubError> {
    let RequestedFile {
        about: subject,
        file,
        ..
    } = requested;
    let incomplete = cache.incomplete(file.hash());
    let failed = |error| HubError::io("write", &incomplete)(error);
    let mut partial = PartialDownload::open(&incomplete, file)?;
    let mut was_continued = partial.length > 0;
    report(Event::Bytes(partial.length));
    loop {
        let mut n_tries = 0;
        let transferred = client.with_retries(report, || {
            let length_before = partial.length;
            n_tries += 1;
            transfer(client, requested, &mut partial, report).map_err(|failure| {
                let transferred = partial.length.saturating_sub(length_before);
                (
                    failure,
                    transferred >= PROGRESS_BYTES.min(file.bytes().max(1)),
                )
            })
        });
        transferred.map_err(|failure| client.explain(failure, subject, report))?;
        was_continued |= n_tries > 1;
        let hasher = std::mem::replace(&mut partial.hasher, FileHasher::for_file(file));
        let actual_hash = hasher.finish();
        if partial.length == file.bytes() && actual_hash == file.hash() {
            partial.file.sync_all().map_err(failed)?;
            let blob = cache.blob(&actual_hash);
            return fs::rename(&incomplete, &blob).map_err(HubError::io("write", &blob));
        }
        report(Event::Lost(partial.length));
        let expected = format!("{} bytes with the hash {}", file.bytes(), file.hash());
        let actual_hash = format!("{} bytes with the hash {actual_hash}", partial.length);
        partial.restart(file).map_err(failed)?;
        if !std::mem::take(&mut was_continued) {
            // The wrong content came from a single transfer, so a second transfer would be wrong
            // again.
            drop(partial);
            fs::remove_file(&incomplete).map_err(failed)?;
            return Err(HubError::Damaged {
                repo: subject.repo.clone(),
                file: requested.path.to_owned(),
                expected,
                found: actual_hash,
            });
        }
    }
}

/// One attempt to download the missing part.
fn transfer(
    client: &Client,
    requested: RequestedFile<'_>,
    partial: &mut PartialDownload,
    report: Listener<'_>,
) -> Result<(), Failure> {
    let RequestedFile {
        about,
        commit,
        path,
        file,
        ..
    } = requested;
    let disk_error = |error: std::io::Error| {
        Failure::Final(HubError::Io {
            path: path.into(),
            doing: "write the blob of",
            source: error,
        })
    };
    if partial.length == file.bytes() && file.bytes() > 0 {
        return Ok(());
    }
    let address = format!(
        "{}/resolve/{}/{}",
        about.repo.page_path(),
        quoted_part(commit),
        quoted_path(path)
    );
    let mut outgoing = Outgoing::get(client.url(&address));
    if partial.length > 0 {
        let from = partial.length;
        outgoing.headers.push(("Range", format!("bytes={from}-")));
    }
    let mut incoming = client.send(&outgoing)?;
    check_headers(requested, &incoming).map_err(Failure::Final)?;
    let is_rest = continues(&incoming, partial.length);
    if partial.length > 0 && !is_rest {
        report(Event::Lost(partial.length));
        partial.restart(file).map_err(disk_error)?;
        if incoming.status.as_u16() == 416 || incoming.status.as_u16() == 206 {
            // The server sent a different range, so the next attempt starts from the beginning.
            return Err(Failure::Fault(tooltune_endpoint::http::HttpFault::Broken {
                reason: "the server sends a different range of the file than requested".to_owned(),
            }));
        }
    }
    let mut reader = incoming.body.with_config().limit(u64::MAX).reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let n = reader
            .read(&mut chunk)
            .map_err(|error| Failure::Fault(client.http_fault(ureq::Error::from(error))))?;
        if n == 0 {
            break;
        }
        partial.add(&chunk[..n]).map_err(disk_error)?;
        report(Event::Bytes(n as u64));
        if partial.length > file.bytes() {
            // The file is too long. The hash check reports this.
            break;
        }
    }
    if partial.length < file.bytes() {
        return Err(Failure::Fault(tooltune_endpoint::http::HttpFault::Broken {
            reason: format!(
                "only {} of {} bytes were received",
                partial.length,
                file.bytes()
            ),
        }));
    }
    Ok(())
}

/// Refuses a reply whose headers identify other content than the listing. The hub's own headers
/// identify the content and the commit. The ETag of a mirror may be any hash, so it is an error
/// only if it identifies a different file of the commit.
fn check_headers(requested: RequestedFile<'_>, incoming: &Incoming) -> Result<(), HubError> {
    let expected_hash = requested.file.hash();
    let other = |header: &'static str, actual: String, expected: &str| HubError::HeaderDiffers {
        repo: requested.about.repo.clone(),
        file: requested.path.to_owned(),
        header,
        found: actual,
        expected: expected.to_owned(),
    };
    let hash = |header| header_text(&incoming.hub_headers, header).and_then(hash_from_etag);
    if let Some(actual) = hash("x-linked-etag").filter(|actual| actual != expected_hash) {
        return Err(other("X-Linked-Etag", actual, expected_hash));
    }
    let is_other_file = |actual: &String| {
        actual != expected_hash && requested.files.values().any(|file| file.hash() == actual)
    };
    if let Some(actual) = hash("etag").filter(is_other_file) {
        return Err(other("ETag", actual, expected_hash));
    }
    let commit = header_text(&incoming.hub_headers, "x-repo-commit").map(str::to_ascii_lowercase);
    match commit.filter(|actual| is_commit(actual) && actual != requested.commit) {
        Some(actual) => Err(other("X-Repo-Commit", actual, requested.commit)),
        None => Ok(()),
    }
}

/// Refuses a file with additional hard links, which may belong to another user.
#[cfg(unix)]
fn refuse_other_names(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    match file.metadata()?.nlink() {
        0 | 1 => Ok(()),
        n => Err(std::io::Error::other(format!(
            "it has {n} hard links; remove it"
        ))),
    }
}

#[cfg(not(unix))]
fn refuse_other_names(_: &File) -> std::io::Result<()> {
    Ok(())
}

/// Whether a reply continues after the first `length` bytes.
fn continues(incoming: &Incoming, length: u64) -> bool {
    let range = incoming.header("content-range");
    let from = range.and_then(|range| {
        let from = range.trim().strip_prefix("bytes ")?.split('-').next()?;
        from.trim().parse::<u64>().ok()
    });
    incoming.status.as_u16() == 206 && from == Some(length)
}
