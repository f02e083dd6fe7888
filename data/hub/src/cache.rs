//! The folder of one repository in the cache of `huggingface_hub`, byte for byte.
//!
//! ```text
//! models--owner--name/blobs/<etag>                      the contents
//! models--owner--name/snapshots/<commit>/<path>         relative links to them
//! models--owner--name/refs/<revision>                   the commit of a branch or a tag
//! models--owner--name/trees/<commit>.json               the files of a commit
//! .locks/models--owner--name/<etag>.lock                whoever writes a blob holds it
//! ```
//!
//! A blob has its name when it is whole and its hash is right; what breaks off stays as
//! `<etag>.incomplete` and is continued, also by another process, which the lock lets wait.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tooltune_rows::regular_file;

use crate::budgets::REF_BYTES;
use crate::error::HubError;
use crate::name::RepoName;

/// What tells programs that copy disks that a folder holds a cache.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file is a cache directory tag created by huggingface_hub.\n\
    # For information about cache directory tags, see:\n\
    #\thttps://bford.info/cachedir/\n";

/// Tries to take a lock whose file others take away.
const LOCK_TRIES: usize = 1000;

/// Whether a text is the name of a commit, or of what git calls a blob.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Whether a text is a SHA-256.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// An ETag as a blob is called, without its marks; nothing where it could be no file.
pub(crate) fn blob_name(etag: &str) -> Option<String> {
    let etag = etag.trim_start_matches(['W', '/']).trim_matches('"');
    let is_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = !etag.is_empty() && etag.len() <= 200 && !etag.starts_with('.');
    (is_name && etag.chars().all(is_character)).then(|| etag.to_owned())
}

/// The folder of one repository.
#[derive(Debug, Clone)]
pub(crate) struct RepoCache {
    /// The cache.
    root: PathBuf,
    /// Its name there.
    name: String,
}

/// A lock that its owner holds until it is dropped.
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

    /// Where a file of a commit is found.
    pub(crate) fn pointer(&self, commit: &str, path: &str) -> PathBuf {
        path.split('/')
            .fold(self.snapshot(commit), |dir, part| dir.join(part))
    }

    /// Where a content lies.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder().join("blobs").join(etag)
    }

    /// Where a content grows.
    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder()
            .join("blobs")
            .join(format!("{etag}.incomplete"))
    }

    /// Where the files of a commit are listed.
    pub(crate) fn listing_path(&self, commit: &str) -> PathBuf {
        self.folder().join("trees").join(format!("{commit}.json"))
    }

    /// The commit that a revision had when somebody last asked; a commit is its own.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(crate) fn commit(&self, revision: &str) -> Result<Option<String>, HubError> {
        if is_commit(revision) {
            return Ok(Some(revision.to_owned()));
        }
        let path = self.reference(revision);
        let bytes =
            regular_file::read_if_there(&path, REF_BYTES).map_err(HubError::io("read", &path))?;
        let commit = bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        Ok(commit.filter(|commit| is_commit(commit)))
    }

    fn reference(&self, revision: &str) -> PathBuf {
        let refs = self.folder().join("refs");
        revision.split('/').fold(refs, |dir, part| dir.join(part))
    }

    /// Remembers the commit of a branch or a tag.
    pub(crate) fn keep_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit || self.commit(revision)?.as_deref() == Some(commit) {
            return Ok(());
        }
        self.replace(&self.reference(revision), commit.as_bytes())
    }

    /// Makes the folders of contents and links, and says that this is a cache.
    pub(crate) fn make_folders(&self) -> Result<(), HubError> {
        for folder in ["blobs", "snapshots"] {
            make_folder(&self.folder().join(folder))?;
        }
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // A cache works without it, as in huggingface_hub.
            let _ = self.replace(&tag, CACHE_TAG.as_bytes());
        }
        Ok(())
    }

    /// Writes a small file under another name, which then becomes its own.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), HubError> {
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        // Neither another process nor another thread of this one stages it under the same name.
        static STAGED: AtomicU64 = AtomicU64::new(0);
        let number = STAGED.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.{number}.tmp", std::process::id()));
        let staged = path.with_file_name(name);
        let written = File::create(&staged).and_then(|mut file| {
            file.write_all(bytes)?;
            fs::rename(&staged, path)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&staged);
            HubError::io("write", path)(error)
        })
    }

    /// Waits until nobody else writes this blob.
    pub(crate) fn lock(&self, etag: &str) -> Result<BlobLock, HubError> {
        let folder = self.root.join(".locks").join(&self.name);
        make_folder(&folder)?;
        let path = folder.join(format!("{etag}.lock"));
        let failed = |error| HubError::io("lock", &path)(error);
        for _ in 0..LOCK_TRIES {
            let file = open_lock(&path).map_err(failed)?;
            match file.lock() {
                // A file system without locks: what is written is hashed before it has its name.
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                locked => locked.map_err(failed)?,
            }
            if is_at(&file, &path) {
                return Ok(BlobLock { _file: file });
            }
        }
        Err(failed(io::Error::from(ErrorKind::WouldBlock)))
    }

    /// Makes the link of a file of a commit to its content; a copy where there are no links.
    pub(crate) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<(), HubError> {
        let pointer = self.pointer(commit, path);
        if pointer.exists() {
            return Ok(());
        }
        if let Some(folder) = pointer.parent() {
            make_folder(folder)?;
        }
        let blob = self.blob(etag);
        let failed = |error| HubError::io("link", &pointer)(error);
        match fs::remove_file(&pointer) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        match symlink(&relative_blob(path, etag), &pointer) {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && pointer.exists() => Ok(()),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied
                ) =>
            {
                fs::copy(&blob, &pointer).map(drop).map_err(failed)
            }
            made => made.map_err(failed),
        }
    }

    /// Bytes that the file system of the cache has free; nothing where it does not say.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let there = self.root.ancestors().find(|folder| folder.is_dir())?;
        let found = rustix::fs::statvfs(there).ok()?;
        found.f_bavail.checked_mul(found.f_frsize)
    }

    /// The cache, for messages.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

/// The content of a file as the file of a snapshot sees it.
fn relative_blob(path: &str, etag: &str) -> PathBuf {
    let depth = Path::new(path)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    let mut link: PathBuf = depth.map(|_| "..").collect();
    link.push("..");
    link.push("blobs");
    link.push(etag);
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

#[cfg(unix)]
fn open_lock(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    // Others of a group that share a cache wait for it, too.
    options.mode(0o664).open(path)
}

#[cfg(not(unix))]
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).open(path)
}

/// Whether an open file still has its name: `filelock` takes it away when it lets go.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(opened), Ok(there)) = (file.metadata(), fs::metadata(path)) else {
        return false;
    };
    (opened.dev(), opened.ino()) == (there.dev(), there.ino())
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

pub(crate) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(HubError::io("make the folder", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_any_depth_to_the_blobs() {
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
    fn an_etag_becomes_a_name_or_nothing() {
        assert_eq!(blob_name("\"abc\"").as_deref(), Some("abc"));
        assert_eq!(blob_name("W/\"abc\"").as_deref(), Some("abc"));
        for bad in ["", "\"\"", "..", "a/b", ".hidden", "a b"] {
            assert_eq!(blob_name(bad), None, "{bad}");
        }
    }
}
