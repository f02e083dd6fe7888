//! The one way in which this crate opens a file to read it.
//!
//! A name may lead to a pipe that nobody writes, to a device without end, or to a socket: opening
//! or reading one of these waits for ever or fills the memory. So the kind is looked at first, the
//! file is opened without waiting, and what is read whole has a limit.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::budgets::Limit;
use crate::error::CheckpointError;

/// What bears the name of a file and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is {kind}, and a regular file is needed there")]
struct NotRegular {
    kind: &'static str,
}

/// A file that is longer than what is read of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has more than {} bytes, the most that is read of such a file ({} in docs/limits.md); see \
     whether it is what it should be",
    limit.bytes,
    limit.name
)]
struct TooLarge {
    limit: Limit,
}

/// Opens a regular file to read it in parts; links are followed.
///
/// # Errors
///
/// - the file is not there or cannot be opened
/// - what is there is no regular file, or one that the kernel makes while it is read, as
///   [`NotRegular`]
pub(crate) fn open(path: &Path) -> Result<File, CheckpointError> {
    opened(path)
        .and_then(|file| must_have_its_length(&file).map(|()| file))
        .map_err(CheckpointError::io("open", path))
}

fn opened(path: &Path) -> io::Result<File> {
    refuse_others(&fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options);
    let file = options.open(path)?;
    // Something else may have taken the name in the meantime.
    refuse_others(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file whole; also one that the kernel makes while it is read.
///
/// # Errors
///
/// - as [`open`], or the file cannot be read
/// - it has more bytes than the limit, as [`TooLarge`]
pub(crate) fn read(path: &Path, limit: Limit) -> Result<Vec<u8>, CheckpointError> {
    read_within(path, limit).map_err(CheckpointError::io("read", path))
}

fn read_within(path: &Path, limit: Limit) -> io::Result<Vec<u8>> {
    let file = opened(path)?;
    let length = file.metadata()?.len();
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, TooLarge { limit });
    if length > limit.bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    // Files of the kernel have a length of 0 and any content.
    file.take(limit.bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.bytes {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

/// Reads a regular file whole, as text.
///
/// # Errors
///
/// As [`read`], or the file is not UTF-8.
pub(crate) fn read_text(path: &Path, limit: Limit) -> Result<String, CheckpointError> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let error = io::Error::new(io::ErrorKind::InvalidData, error.utf8_error());
        CheckpointError::io("read", path)(error)
    })
}

/// Whether a regular file has this name. What cannot be seen, and what is there and no file, is an
/// error and never "not there": whoever passed over it would do something else than was asked.
///
/// # Errors
///
/// - what is there is no regular file, as [`NotRegular`], or a link that leads nowhere
/// - the system refuses to say what is there
pub(crate) fn is_there(path: &Path) -> Result<bool, CheckpointError> {
    looked_for(path).map_err(CheckpointError::io("read", path))
}

fn looked_for(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => refuse_others(&found).map(|()| true),
        Err(error) if is_absence(&error) => match fs::symlink_metadata(path) {
            Ok(_) => Err(not_regular("a symbolic link to what is not there")),
            Err(_) => Ok(false),
        },
        Err(error) => Err(error),
    }
}

/// Whether nothing has the name, also where one of its folders is a file.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Refuses what says that it is empty and is not: the kernel makes such files anew at each reading,
/// some of them without an end, and whoever reads in parts or twice trusts a length.
#[cfg(unix)]
fn must_have_its_length(file: &File) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let is_empty = || Ok::<_, io::Error>(file.metadata()?.len() == 0);
    // Looked at once more, because somebody may be writing the file.
    if is_empty()? && file.read_at(&mut [0], 0)? > 0 && is_empty()? {
        Err(not_regular("a file that the kernel makes while it is read"))
    } else {
        Ok(())
    }
}

#[cfg(not(unix))]
fn must_have_its_length(_file: &File) -> io::Result<()> {
    Ok(())
}

fn refuse_others(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        Ok(())
    } else {
        Err(not_regular(kind(found.file_type())))
    }
}

fn not_regular(kind: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, NotRegular { kind })
}

#[cfg(unix)]
fn kind(found: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match found {
        found if found.is_dir() => "a directory",
        found if found.is_fifo() => "a named pipe (FIFO)",
        found if found.is_socket() => "a socket",
        found if found.is_char_device() => "a character device",
        found if found.is_block_device() => "a block device",
        _ => "no file",
    }
}

#[cfg(not(unix))]
fn kind(found: FileType) -> &'static str {
    if found.is_dir() {
        "a directory"
    } else {
        "no file"
    }
}

/// A pipe that takes the name between the look and the opening must not be waited for.
#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
}

#[cfg(not(unix))]
fn without_waiting(_options: &mut OpenOptions) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// So many bytes.
    const fn at_most(bytes: u64) -> Limit {
        Limit::new("SOME_BYTES", bytes)
    }

    /// Made without another program: a process that is started holds the locks of other tests for a
    /// moment.
    fn pipe(path: &Path) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, path, FileType::Fifo, mode, 0).expect("a pipe");
    }

    /// Each kind that has a name in a folder: what is said of it.
    fn others(dir: &Path) -> Vec<(std::path::PathBuf, &'static str)> {
        let [fifo, socket, loose] = ["fifo", "socket", "loose"].map(|name| dir.join(name));
        pipe(&fifo);
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        std::os::unix::fs::symlink("nowhere", &loose).expect("a link");
        vec![
            (fifo, "a named pipe (FIFO)"),
            (socket, "a socket"),
            (dir.to_owned(), "a directory"),
            ("/dev/zero".into(), "a character device"),
            ("/dev/null".into(), "a character device"),
            (loose, "a symbolic link to what is not there"),
        ]
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_and_never_absent() {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, kind) in others(dir.path()) {
            let is_link = kind.contains("link");
            let mut errors = vec![is_there(&path).map(drop)];
            // A link that leads nowhere cannot be opened either, and the system says so.
            if !is_link {
                errors.extend([open(&path).map(drop), read(&path, at_most(9)).map(drop)]);
            }
            for error in errors {
                let error = error.expect_err(kind).to_string();
                let name = path.display().to_string();
                assert!(
                    error.contains(kind) && error.contains(&name),
                    "{name}: {error}"
                );
            }
        }
        assert!(!is_there(&dir.path().join("absent")).expect("absence is no error"));
        let below = dir.path().join("fifo").join("x");
        assert!(!is_there(&below).expect("absence is no error"));
    }

    #[test]
    fn a_file_is_read_to_its_limit_and_through_links() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "text").expect("written");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(read(&link, at_most(4)).expect("of the limit"), b"text");
        let error = read(&path, at_most(3)).expect_err("too large").to_string();
        assert!(error.contains("more than 3 bytes"), "{error}");
        assert!(error.contains("SOME_BYTES in docs/limits.md"), "{error}");
        // Its length is 0 and its content is not.
        let kernel = Path::new("/proc/self/status");
        if kernel.exists() {
            assert!(
                read(kernel, at_most(1 << 20))
                    .expect("a file of the kernel")
                    .len()
                    > 10
            );
            assert!(read(kernel, at_most(10)).is_err());
            let error = open(kernel).expect_err("read in parts").to_string();
            assert!(error.contains("the kernel makes"), "{error}");
        }
        fs::write(&path, "").expect("written");
        assert!(open(&path).is_ok(), "an empty file is one");
    }
}
