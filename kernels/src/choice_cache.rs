//! Disk cache of the choices of NVIDIA's libraries for a GPU model.
//!
//! Small choices are lines of one file, [`Lines`], to which each process appends; large ones are
//! separate files, [`Files`], which are renamed into place when complete. Each choice is stored
//! with a checksum of itself and of its key. Entries damaged by another program, a full disk or an
//! interrupted process are ignored and computed again. The size of the cache is bounded.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use cubecl_common::hash::StableHasher;

/// Maximum lines per file; if there are more, the newest half is kept.
const MOST_LINES: usize = 8_192;

/// Maximum bytes read from a file.
const MOST_BYTES: u64 = 16 << 20;

/// Maximum files per folder; beyond it, the least recently used are deleted.
const MOST_FILES: usize = 256;

/// Age after which an unfinished file is considered abandoned.
const ABANDONED: Duration = Duration::from_secs(3_600);

/// Name prefix of unfinished files.
const UNFINISHED: &str = ".unfinished-";

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Enables the cache below a folder; further calls have no effect.
pub(crate) fn enable_in(folder: &Path) {
    let _ = FOLDER.set(folder.to_path_buf());
}

/// The cache folder of a library version for a GPU model; `None` if the cache is disabled.
pub(crate) fn folder(library: &str, version: usize, gpu: &str) -> Option<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let gpu = gpu.replace(|c| !is_plain(c), "_");
    Some(FOLDER.get()?.join(format!("{library}-{version}")).join(gpu))
}

/// Hash of a cache key, the same in every process.
pub(crate) fn key_hash(text: &str) -> String {
    checksum([text.as_bytes()])
}

fn checksum<const N: usize>(parts: [&[u8]; N]) -> String {
    let mut hasher = StableHasher::new();
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    format!("{:032x}", hasher.finalize())
}

/// Warns once that the cache cannot be written; this only costs time in later processes.
fn warn_unwritable(path: &Path, error: &io::Error) {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    if !HAS_WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{}: cannot cache what the GPU libraries chose: {error}; set TOOLTUNE_CACHE to a folder \
             that you can write to",
            path.display()
        );
    }
}

/// The bytes of a regular file of at most [`MOST_BYTES`]; `None` if there is no such file.
fn read(path: &Path) -> Option<Vec<u8>> {
    let file = open_regular(path, File::options().read(true)).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MOST_BYTES).then_some(bytes)
}

/// Opens an existing regular file. Rejects symbolic links, and pipes, which could block.
fn open_regular(path: &Path, how: &OpenOptions) -> io::Result<File> {
    let refuse = |kind| Err(io::Error::other(format!("the path is {kind}; remove it")));
    let metadata = fs::symlink_metadata(path)?;
    match metadata.file_type() {
        metadata if metadata.is_symlink() => return refuse("a symbolic link"),
        metadata if !metadata.is_file() => return refuse("not a regular file"),
        _ => {}
    }
    let file = how.open(path)?;
    // Another program may have replaced the file since the check.
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != (metadata.dev(), metadata.ino()) {
            return refuse("a file that another program replaced");
        }
    }
    Ok(file)
}

/// Creates a file, or opens an existing regular one, for appending.
fn open_to_append(path: &Path) -> io::Result<File> {
    let mut how = File::options();
    how.append(true);
    match how.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_regular(path, &how),
        made => made,
    }
}

/// Writes a file under a temporary name and renames it when it is complete.
fn write(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    static N_WRITTEN: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let n = N_WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = folder.join(format!("{UNFINISHED}{}-{n}", std::process::id()));
    let written = File::create_new(&unfinished)
        .and_then(|mut file| parts.iter().try_for_each(|part| file.write_all(part)))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Choices as lines of a file: a checksum, the choice in hexadecimal, and its key.
#[derive(Debug)]
pub(crate) struct Lines<const N: usize> {
    path: PathBuf,
    choices: HashMap<String, [u8; N]>,
    /// Lines in the file, as far as this process knows.
    n_lines: usize,
    /// Opened for appending when needed.
    file: Option<File>,
}

impl<const N: usize> Lines<N> {
    /// Reads the file; empty if it does not exist.
    pub(crate) fn open(path: PathBuf) -> Self {
        let text = read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let mut valid: Vec<(&str, &str, [u8; N])> = all
            .iter()
            .filter_map(|line| parse_line(line).map(|(key, choice)| (*line, key, choice)))
            .collect();
        let n_damaged = all.len() - valid.len();
        if valid.len() > MOST_LINES {
            valid.drain(..valid.len() - MOST_LINES / 2);
        }
        if valid.len() < all.len() {
            if n_damaged > 0 {
                tracing::warn!(
                    "{}: ignored {n_damaged} of {} lines because they are damaged; these choices are \
                     made again",
                    path.display(),
                    all.len()
                );
            }
            let mut text = String::new();
            for (line, ..) in &valid {
                text.push_str(line);
                text.push('\n');
            }
            if let Err(error) = write(&path, &[text.as_bytes()]) {
                warn_unwritable(&path, &error);
            }
        }
        let n_lines = valid.len();
        let choices = valid
            .into_iter()
            .map(|(_, key, choice)| (key.to_owned(), choice));
        Self {
            choices: choices.collect(),
            path,
            n_lines,
            file: None,
        }
    }

    /// The choice for `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8; N]> {
        self.choices.get(key)
    }

    /// Stores the choice for `key`, which must not have line breaks, unless the file is full.
    pub(crate) fn add(&mut self, key: String, choice: [u8; N]) {
        // A file that is full is truncated by the next process that opens it.
        if self.n_lines <= MOST_LINES
            && let Err(error) = self.append(&key, &choice)
        {
            warn_unwritable(&self.path, &error);
        }
        self.n_lines += 1;
        self.choices.insert(key, choice);
    }

    fn append(&mut self, key: &str, choice: &[u8; N]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            closed => {
                if let Some(folder) = self.path.parent() {
                    fs::create_dir_all(folder)?;
                }
                closed.insert(open_to_append(&self.path)?)
            }
        };
        let choice: String = choice.iter().map(|byte| format!("{byte:02x}")).collect();
        let checksum = checksum([choice.as_bytes(), key.as_bytes()]);
        // A single write, which other processes cannot interleave. It starts with a line break,
        // because another process may have been interrupted within its line.
        file.write_all(format!("\n{checksum} {choice} {key}\n").as_bytes())
    }
}

/// The key and choice of a line; `None` if it is damaged.
fn parse_line<const N: usize>(line: &str) -> Option<(&str, [u8; N])> {
    let (stored_checksum, rest) = line.split_once(' ')?;
    let (digits, key) = rest.split_once(' ')?;
    if stored_checksum != checksum([digits.as_bytes(), key.as_bytes()]) || digits.len() != 2 * N {
        return None;
    }
    let mut choice = [0; N];
    for (byte, pair) in choice.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((key, choice))
}

/// Names that are locked by threads of this process.
static CLAIMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static RELEASED: Condvar = Condvar::new();

/// A name locked by one thread until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim(PathBuf);

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.remove(&self.0);
        RELEASED.notify_all();
    }
}

/// Choices as files of a folder: a line with a checksum, then the choice.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Waits until no other thread of this process has locked the name, and locks it.
    pub(crate) fn claim(&self, name: &str) -> Claim {
        let path = self.folder.join(name);
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        while claimed.contains(&path) {
            claimed = RELEASED
                .wait(claimed)
                .unwrap_or_else(PoisonError::into_inner);
        }
        claimed.insert(path.clone());
        Claim(path)
    }

    /// Whether choices can be stored here; otherwise warns.
    pub(crate) fn is_writable(&self) -> bool {
        let name = format!("{UNFINISHED}{}", std::process::id());
        let path = self.folder.join(name);
        let result = fs::create_dir_all(&self.folder)
            // The file is a leftover of a process with the same id, or belongs to another program.
            .and_then(|()| match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => File::create_new(&path),
            })
            .and_then(|_| fs::remove_file(&path));
        if let Err(error) = &result {
            warn_unwritable(&path, error);
        }
        result.is_ok()
    }

    /// The choice stored under a name, if it is valid.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.folder.join(name);
        let bytes = read(&path)?;
        let choice = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .and_then(|end| {
                let (stored_checksum, choice) = (&bytes[..end], &bytes[end + 1..]);
                (stored_checksum == checksum([name.as_bytes(), choice]).as_bytes())
                    .then(|| choice.to_vec())
            });
        match &choice {
            // If the time cannot be updated, the file is only deleted earlier.
            Some(_) => drop(
                open_regular(&path, File::options().append(true))
                    .and_then(|file| file.set_modified(SystemTime::now())),
            ),
            None => tracing::warn!(
                "{}: damaged cache file; it will be built again",
                path.display()
            ),
        }
        choice
    }

    /// Stores a choice, replacing an older one of the same name.
    pub(crate) fn store(&self, name: &str, choice: &[u8]) {
        let path = self.folder.join(name);
        let checksum = checksum([name.as_bytes(), choice]);
        match write(&path, &[checksum.as_bytes(), b"\n", choice]) {
            Ok(()) => self.evict(name),
            Err(error) => warn_unwritable(&path, &error),
        }
    }

    /// Removes files beyond [`MOST_FILES`], except `current`, and abandoned unfinished files.
    fn evict(&self, current: &str) {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else {
                continue;
            };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(UNFINISHED) {
                if modified.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
            } else if name != current {
                files.push((modified, entry.path()));
            }
        }
        let n_above = (files.len() + 1).saturating_sub(MOST_FILES);
        files.sort();
        for (_, path) in &files[..n_above] {
            // Files that another process removes at the same time are not an error.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_in_the_cache_folder_are_not_followed() {
        let dir = tempfile::tempdir().expect("a folder");
        let victim = dir.path().join("victim");
        let folder = dir.path().join("kept");
        fs::create_dir(&folder).expect("made");
        let link = |name: &str| {
            fs::write(&victim, "precious").expect("written");
            symlink(&victim, folder.join(name)).expect("linked");
        };
        let is_whole = || fs::read(&victim).expect("read") == b"precious";
        let files = Files::new(folder.clone());
        link(&format!("{UNFINISHED}{}", std::process::id()));
        assert!(files.is_writable() && is_whole());
        link("plan");
        assert!(files.get("plan").is_none() && is_whole());
        files.store("plan", b"chosen");
        assert_eq!(files.get("plan").as_deref(), Some(b"chosen".as_slice()));
        assert!(is_whole());
        link("lines");
        let mut lines = Lines::<2>::open(folder.join("lines"));
        lines.add("key".to_owned(), [1, 2]);
        assert_eq!(lines.get("key"), Some(&[1, 2]));
        assert!(is_whole());
        fs::remove_file(folder.join("lines")).expect("removed");
        for choice in [[3, 4], [5, 6]] {
            Lines::<2>::open(folder.join("lines")).add(format!("{choice:?}"), choice);
        }
        let cache = Lines::<2>::open(folder.join("lines"));
        assert_eq!(cache.get("[3, 4]"), Some(&[3, 4]));
        assert_eq!(cache.get("[5, 6]"), Some(&[5, 6]));
    }
}
