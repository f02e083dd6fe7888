//! What NVIDIA's libraries have chosen for a kind of GPU, on disk between processes.
//!
//! Small choices are lines of one file, [`Lines`], to which each process appends; large ones are files
//! of their own, [`Files`], which have their names once they are whole. Either way a choice stands
//! beside a checksum of it and of what it was chosen for: what another program, a full disk or a process
//! that ended has left there is not a choice, and is made again. How much is kept is bounded.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use cubecl_common::hash::StableHasher;

/// Lines that a file has at most; of more, the newest half is kept.
const MOST_LINES: usize = 8_192;

/// Bytes of a file that are read at most.
const MOST_BYTES: u64 = 16 << 20;

/// Files that a folder has at most; above it, what was not used for the longest time goes.
const MOST_FILES: usize = 256;

/// After so long nobody is writing a file that has no name yet.
const ABANDONED: Duration = Duration::from_secs(3_600);

/// How the name of a file begins that is being written.
const UNFINISHED: &str = ".unfinished-";

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Has choices kept below a folder; a second call changes nothing.
pub(crate) fn keep_in(folder: &Path) {
    let _ = FOLDER.set(folder.to_path_buf());
}

/// The folder of a library, of this version, for a kind of GPU; `None` where nothing is kept.
pub(crate) fn folder(library: &str, version: usize, gpu: &str) -> Option<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let gpu = gpu.replace(|c| !is_plain(c), "_");
    Some(FOLDER.get()?.join(format!("{library}-{version}")).join(gpu))
}

/// A name for what a choice depends on, the same in every process.
pub(crate) fn name_of(text: &str) -> String {
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

/// Says once that nothing can be kept; it costs later processes time alone.
fn unwritable(path: &Path, error: &io::Error) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{}: what was chosen for this GPU is not kept for the next start: {error}; set \
             TOOLTUNE_CACHE to a folder that you may write to",
            path.display()
        );
    }
}

/// The bytes of a regular file of at most [`MOST_BYTES`]; `None` where there is none.
fn read(path: &Path) -> Option<Vec<u8>> {
    let found = fs::metadata(path).ok()?;
    if !found.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MOST_BYTES).then_some(bytes)
}

/// Writes a file under another name and gives it its own when it is whole.
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

/// Choices as lines of a file: a checksum, the choice in hexadecimal, and what it was chosen for.
#[derive(Debug)]
pub(crate) struct Lines<const N: usize> {
    path: PathBuf,
    of: HashMap<String, [u8; N]>,
    /// Lines of the file, as far as this process knows.
    n_lines: usize,
    /// Open to be appended to, once there was something to append.
    file: Option<File>,
}

impl<const N: usize> Lines<N> {
    /// What the file holds; none where there is no such file.
    pub(crate) fn open(path: PathBuf) -> Self {
        let text = read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let mut whole: Vec<(&str, &str, [u8; N])> = all
            .iter()
            .filter_map(|line| parsed(line).map(|(key, choice)| (*line, key, choice)))
            .collect();
        let n_damaged = all.len() - whole.len();
        if whole.len() > MOST_LINES {
            whole.drain(..whole.len() - MOST_LINES / 2);
        }
        if whole.len() < all.len() {
            if n_damaged > 0 {
                tracing::warn!(
                    "{}: {n_damaged} of {} lines are damaged; they are left out, and what they held is \
                     chosen again",
                    path.display(),
                    all.len()
                );
            }
            let mut text = String::new();
            for (line, ..) in &whole {
                text.push_str(line);
                text.push('\n');
            }
            if let Err(error) = write(&path, &[text.as_bytes()]) {
                unwritable(&path, &error);
            }
        }
        let n_lines = whole.len();
        let of = whole
            .into_iter()
            .map(|(_, key, choice)| (key.to_owned(), choice));
        Self {
            of: of.collect(),
            path,
            n_lines,
            file: None,
        }
    }

    /// What was chosen for `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8; N]> {
        self.of.get(key)
    }

    /// Keeps what was chosen for `key`, which has no line breaks, unless the file is full.
    pub(crate) fn add(&mut self, key: String, choice: [u8; N]) {
        // What fills the file is cut by the process that opens it next.
        if self.n_lines <= MOST_LINES
            && let Err(error) = self.append(&key, &choice)
        {
            unwritable(&self.path, &error);
        }
        self.n_lines += 1;
        self.of.insert(key, choice);
    }

    fn append(&mut self, key: &str, choice: &[u8; N]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            closed => {
                if let Some(folder) = self.path.parent() {
                    fs::create_dir_all(folder)?;
                }
                let mut how = File::options();
                closed.insert(how.append(true).create(true).open(&self.path)?)
            }
        };
        let choice: String = choice.iter().map(|byte| format!("{byte:02x}")).collect();
        let checksum = checksum([choice.as_bytes(), key.as_bytes()]);
        // One call, which other processes' calls do not part. It begins with a break because another
        // process may have ended within its line.
        file.write_all(format!("\n{checksum} {choice} {key}\n").as_bytes())
    }
}

/// What a line was chosen for, and the choice; `None` unless it is whole.
fn parsed<const N: usize>(line: &str) -> Option<(&str, [u8; N])> {
    let (said, rest) = line.split_once(' ')?;
    let (digits, key) = rest.split_once(' ')?;
    if said != checksum([digits.as_bytes(), key.as_bytes()]) || digits.len() != 2 * N {
        return None;
    }
    let mut choice = [0; N];
    for (byte, pair) in choice.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((key, choice))
}

/// Names that threads have for themselves.
static CLAIMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static GIVEN_BACK: Condvar = Condvar::new();

/// A name that one thread has for itself until it drops this.
#[derive(Debug)]
pub(crate) struct Claim(PathBuf);

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.remove(&self.0);
        GIVEN_BACK.notify_all();
    }
}

/// Choices as files of a folder: a checksum on a line of its own, then the choice.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(crate) fn of(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Waits until no other thread of this process has a name of the folder for itself, and has it then.
    pub(crate) fn claim(&self, name: &str) -> Claim {
        let path = self.folder.join(name);
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        while claimed.contains(&path) {
            claimed = GIVEN_BACK
                .wait(claimed)
                .unwrap_or_else(PoisonError::into_inner);
        }
        claimed.insert(path.clone());
        Claim(path)
    }

    /// Whether choices can be kept here; that they cannot is said.
    pub(crate) fn is_writable(&self) -> bool {
        let path = self
            .folder
            .join(format!("{UNFINISHED}{}", std::process::id()));
        let tried = fs::create_dir_all(&self.folder)
            .and_then(|()| File::create(&path))
            .and_then(|_| fs::remove_file(&path));
        if let Err(error) = &tried {
            unwritable(&path, error);
        }
        tried.is_ok()
    }

    /// The choice of a name, if it is whole.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.folder.join(name);
        let bytes = read(&path)?;
        let choice = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .and_then(|end| {
                let (said, choice) = (&bytes[..end], &bytes[end + 1..]);
                (said == checksum([name.as_bytes(), choice]).as_bytes()).then(|| choice.to_vec())
            });
        match &choice {
            // What cannot be said to be used goes sooner.
            Some(_) => drop(
                File::options()
                    .append(true)
                    .open(&path)
                    .and_then(|file| file.set_modified(SystemTime::now())),
            ),
            None => tracing::warn!("{}: is damaged and is made again", path.display()),
        }
        choice
    }

    /// Keeps a choice, in place of an older one of the name.
    pub(crate) fn put(&self, name: &str, choice: &[u8]) {
        let path = self.folder.join(name);
        let checksum = checksum([name.as_bytes(), choice]);
        match write(&path, &[checksum.as_bytes(), b"\n", choice]) {
            Ok(()) => self.evict(name),
            Err(error) => unwritable(&path, &error),
        }
    }

    /// Removes files above [`MOST_FILES`], not that of `kept`, and what ended processes left.
    fn evict(&self, kept: &str) {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Ok(modified) = entry.metadata().and_then(|found| found.modified()) else {
                continue;
            };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(UNFINISHED) {
                if modified.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
            } else if name != kept {
                files.push((modified, entry.path()));
            }
        }
        let n_above = (files.len() + 1).saturating_sub(MOST_FILES);
        files.sort();
        for (_, path) in &files[..n_above] {
            // What another process removes at the same time is gone all the same.
            let _ = fs::remove_file(path);
        }
    }
}
