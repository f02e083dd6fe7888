//! Reads and writes the cache folder of one repository, byte for byte as `huggingface_hub` does.
//!
//! ```text
//! models--owner--name/blobs/<hash>                      the file contents
//! models--owner--name/snapshots/<commit>/<path>         relative links to blobs
//! models--owner--name/refs/<revision>                   the commit of a branch or a tag
//! models--owner--name/trees/<commit>.json               the files of a commit
//! .locks/models--owner--name/<hash>.lock                held while a blob is written
//! ```
//!
//! A blob is named by the hash of its bytes once it is complete and matches the listed hash. An
//! interrupted download stays as `<hash>.incomplete`; any process can resume it, and the lock
//! allows only one writer.
//!
//! Several users may share a cache. Links that another user may have created are therefore not
//! followed, and pipes are not opened. Blobs, partial downloads, locks, refs and listings must be
//! regular files, and a link in a snapshot must point to a blob of the same repository.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tooltune_disk::regular_file;

use crate::budgets::REF_BYTES;
use crate::error::HubError;
use crate::listing::ListedFile;
use crate::name::RepoName;

/// Marks the folder as a cache for backup programs.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file is a cache directory tag created by huggingface_hub.\n\
    # For information about cache directory tags, see:\n\
    #\thttps://bford.info/cachedir/\n";

/// Maximum attempts to lock a blob while other processes delete its lock file.
const LOCK_TRIES: usize = 1000;

/// Whether a string is a commit hash or a git blob hash.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Whether a string is a SHA-256.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The hash in an ETag, in lower case; `None` for other ETags, which are unrelated to the content.
pub(crate) fn hash_from_etag(etag: &str) -> Option<String> {
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    let etag = etag.to_ascii_lowercase();
    is_hash(&etag).then_some(etag)
}

/// Whether a string is a content hash.
fn is_hash(text: &str) -> bool {
    is_commit(text) || is_sha256(text)
}

/// The cache folder of one repository.
#[derive(Debug, Clone)]
pub(crate) struct RepoCache {
    /// The cache folder.
    root: PathBuf,
    /// The repository's folder name in the cache.
    name: String,
}

/// A lock that is held until this value is dropped.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: File,
}

impl RepoCache {
    pub(crate) fn new(root: &Path, repo: &RepoName) -> Self {
        Self {
            root: root.to_owned(),
            name: repo.folder(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The folder of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// The path of a file in a commit.
    pub(crate) fn pointer(&self, commit: &str, path: &str) -> PathBuf {
        path.split('/')
            .fold(self.snapshot(commit), |dir, part| dir.join(part))
    }

    fn blobs(&self) -> PathBuf {
        self.folder().join("blobs")
    }

    /// The path of a blob.
    pub(crate) fn blob(&self, hash: &str) -> PathBuf {
        self.blobs().join(hash)
    }

    /// Whether the blob of a file exists with the right length. The content is not hashed again: it
    /// was checked before the blob got its name.
    ///
    /// # Errors
    ///
    /// The name of the blob belongs to something else, such as a link.
    pub(crate) fn has_blob(&self, file: &ListedFile) -> Result<bool, HubError> {
        let path = self.blob(file.hash());
        let exists = regular_file::own_file_exists(&path).map_err(HubError::io("read", &path))?;
        Ok(exists && fs::metadata(&path).is_ok_and(|metadata| metadata.len() == file.bytes()))
    }

    /// Whether a snapshot has a file: a link to a blob of this repository, or a copy on file
    /// systems without links. If the file is listed, it must be the listed blob.
    ///
    /// # Errors
    ///
    /// The path of the file leads outside the repository's blobs, or to something that is not a
    /// file.
    pub(crate) fn has_file(
        &self,
        commit: &str,
        path: &str,
        listed_file: Option<&ListedFile>,
    ) -> Result<bool, HubError> {
        let pointer = self.pointer(commit, path);
        let failed = |error| HubError::io("read", &pointer)(error);
        match fs::symlink_metadata(&pointer) {
            Err(_) => return Ok(false),
            Ok(metadata) if metadata.is_symlink() => {}
            Ok(_) => return regular_file::own_file_exists(&pointer).map_err(failed),
        }
        let Ok(target) = fs::canonicalize(&pointer) else {
            // The blob was deleted.
            return Ok(false);
        };
        let blobs = self.blobs();
        let blobs = fs::canonicalize(&blobs).map_err(HubError::io("read", &blobs))?;
        if target.parent() != Some(blobs.as_path()) {
            return Err(HubError::LinkOutside {
                path: pointer,
                target,
            });
        }
        regular_file::own_file_exists(&target).map_err(failed)?;
        let Some(listed_file) = listed_file else {
            return Ok(true);
        };
        // Other programs name a blob by the ETag of a mirror, which can have any format.
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let is_listed = !is_hash(&name) || name == listed_file.hash();
        Ok(is_listed
            && fs::metadata(&target).is_ok_and(|metadata| metadata.len() == listed_file.bytes()))
    }

    /// The path of a partial download.
    pub(crate) fn incomplete(&self, hash: &str) -> PathBuf {
        self.blobs().join(format!("{hash}.incomplete"))
    }

    /// The path of a commit's file listing.
    pub(crate) fn listing_path(&self, commit: &str) -> PathBuf {
        self.folder().join("trees").join(format!("{commit}.json"))
    }

    /// The commit of a revision at the last request. A commit hash is returned unchanged.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(crate) fn commit(&self, revision: &str) -> Result<Option<String>, HubError> {
        if is_commit(revision) {
            return Ok(Some(revision.to_owned()));
        }
        let path = self.reference(revision);
        let bytes = regular_file::read_own_file_if_exists(&path, REF_BYTES)
            .map_err(HubError::io("read", &path))?;
        let commit = bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        Ok(commit.filter(|commit| is_commit(commit)))
    }

    fn reference(&self, revision: &str) -> PathBuf {
        let refs = self.folder().join("refs");
        revision.split('/').fold(refs, |dir, part| dir.join(part))
    }

    /// Stores the commit of a branch or a tag.
    pub(crate) fn store_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit || self.commit(revision)?.as_deref() == Some(commit) {
            return Ok(());
        }
        self.replace(&self.reference(revision), commit.as_bytes())
    }

    /// Creates the folders for blobs and links, and marks the folder as a cache.
    pub(crate) fn make_folders(&self) -> Result<(), HubError> {
        for folder in ["blobs", "snapshots"] {
            make_folder(&self.folder().join(folder))?;
        }
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // The cache works without this file, as in huggingface_hub.
            let _ = self.replace(&tag, CACHE_TAG.as_bytes());
        }
        Ok(())
    }

    /// Writes a small file under a temporary name, then renames it.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), HubError> {
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        // The name is unique among processes and threads.
        static N_STAGED: AtomicU64 = AtomicU64::new(0);
        let number = N_STAGED.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.{number}.tmp", std::process::id()));
        let staged = path.with_file_name(name);
        // An earlier process with the same ID may have left this file, or another user may have
        // created it.
        let _ = fs::remove_file(&staged);
        let write_result = File::create_new(&staged).and_then(|mut file| {
            file.write_all(bytes)?;
            fs::rename(&staged, path)
        });
        write_result.map_err(|error| {
            let _ = fs::remove_file(&staged);
            HubError::io("write", path)(error)
        })
    }

    /// Waits until no other process writes this blob.
    pub(crate) fn lock(&self, hash: &str) -> Result<BlobLock, HubError> {
        let folder = self.root.join(".locks").join(&self.name);
        make_folder(&folder)?;
        let path = folder.join(format!("{hash}.lock"));
        let failed = |error| HubError::io("lock", &path)(error);
        for _ in 0..LOCK_TRIES {
            let file = open_lock(&path).map_err(failed)?;
            match file.lock() {
                // On file systems without locks, the hash check before renaming protects the blob.
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                locked => locked.map_err(failed)?,
            }
            if is_same_file(&file, &path) {
                return Ok(BlobLock { _file: file });
            }
        }
        Err(failed(io::Error::from(ErrorKind::WouldBlock)))
    }

    /// Links a file of a commit to its blob, and replaces a link to another blob. Copies the blob
    /// if links are not supported.
    pub(crate) fn link(&self, commit: &str, path: &str, file: &ListedFile) -> Result<(), HubError> {
        if self.has_file(commit, path, Some(file))? {
            return Ok(());
        }
        let pointer = self.pointer(commit, path);
        if let Some(folder) = pointer.parent() {
            make_folder(folder)?;
        }
        let blob = self.blob(file.hash());
        let failed = |error| HubError::io("link", &pointer)(error);
        match fs::remove_file(&pointer) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        match symlink(&relative_blob(path, file.hash()), &pointer) {
            // Another process created the link first.
            Err(error)
                if error.kind() == ErrorKind::AlreadyExists
                    && self.has_file(commit, path, Some(file))? =>
            {
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied
                ) =>
            {
                copy(&blob, &pointer).map_err(failed)
            }
            made => made.map_err(failed),
        }?;
        match self.has_file(commit, path, Some(file))? {
            true => Ok(()),
            false => Err(failed(io::Error::other(
                "the link does not point to the blob; if the snapshot folder is a link, remove it",
            ))),
        }
    }

    /// Free bytes of the cache's file system; `None` if unknown.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let existing_folder = self.root.ancestors().find(|folder| folder.is_dir())?;
        let stats = rustix::fs::statvfs(existing_folder).ok()?;
        stats.f_bavail.checked_mul(stats.f_frsize)
    }

    /// The cache folder, for messages.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

/// The path of a blob relative to a file of a snapshot.
fn relative_blob(path: &str, hash: &str) -> PathBuf {
    let depth = Path::new(path)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    let mut link: PathBuf = depth.map(|_| "..").collect();
    link.push("..");
    link.push("blobs");
    link.push(hash);
    link
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Creates a new file with the content of another.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = regular_file::open_own_file_to_read(from)?;
    io::copy(&mut from, &mut File::create_new(to)?).map(drop)
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    // A group that shares a cache also shares its locks.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o664);
    regular_file::open_own(path, &mut options)
}

/// Whether an open lock file still has its name. `filelock` deletes the file when it releases the
/// lock.
#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(open_metadata), Ok(path_metadata)) = (file.metadata(), fs::metadata(path)) else {
        return false;
    };
    (open_metadata.dev(), open_metadata.ino()) == (path_metadata.dev(), path_metadata.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

pub(crate) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(HubError::io("create the folder", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_at_any_depth_point_to_the_blobs() {
        assert_eq!(
            relative_blob("config.json", "e"),
            Path::new("../../blobs/e")
        );
        assert_eq!(
            relative_blob("1_Pooling/config.json", "e"),
            Path::new("../../../blobs/e")
        );
    }

    #[test]
    fn an_etag_is_a_hash_or_is_ignored() {
        let git = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
        for etag in [
            format!("\"{git}\""),
            format!("W/\"{git}\""),
            git.to_uppercase(),
        ] {
            assert_eq!(hash_from_etag(&etag).as_deref(), Some(git), "{etag}");
        }
        assert!(hash_from_etag(&"0".repeat(64)).is_some());
        for other in ["", "\"x\"", "../..", &git[1..], &format!("{git}-gzip")] {
            assert_eq!(hash_from_etag(other), None, "{other}");
        }
    }
}
