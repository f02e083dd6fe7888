//! Opens and reads regular files, for every crate that reads files.
//!
//! A path may belong to a pipe without a writer, to an endless device, or to a socket. Opening or
//! reading one of these would block forever or fill the memory. The file type is therefore checked
//! first, the file is opened without blocking, and complete reads have a size limit.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::budgets::Limit;

/// A path that is not a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a regular file, found {kind}")]
pub struct NotRegular {
    kind: &'static str,
}

/// A file that exceeds its size limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has more than {} bytes, the limit for such a file ({} in docs/limits.md); check \
     whether it is the right file",
    limit.bytes,
    limit.name
)]
pub struct TooLarge {
    limit: Limit,
}

/// Text that is not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid UTF-8 at byte {byte}; save the file as UTF-8 (iconv -t utf-8 converts)")]
pub struct NotUtf8 {
    /// Offset of the first invalid byte, from 0.
    byte: usize,
}

/// Opens a regular file for reading in parts; follows links.
///
/// # Errors
///
/// - The file does not exist or cannot be opened.
/// - It is not a regular file, or the kernel generates it while it is read; see [`NotRegular`].
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_checked(path)?;
    check_length(&file)?;
    Ok(file)
}

fn open_checked(path: &Path) -> io::Result<File> {
    check_is_file(&fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    set_nonblocking(&mut options);
    let file = options.open(path)?;
    // Another file may have taken the name in the meantime.
    check_is_file(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file completely, including files that the kernel generates while they are read.
///
/// # Errors
///
/// - As for [`open`], or the file cannot be read.
/// - It has more bytes than the limit; see [`TooLarge`].
pub fn read(path: &Path, limit: Limit) -> io::Result<Vec<u8>> {
    read_opened(open_checked(path)?, limit)
}

fn read_opened(file: File, limit: Limit) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, TooLarge { limit });
    if length > limit.bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    // Kernel files have length 0 but may have any content.
    file.take(limit.bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.bytes {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

/// Reads a regular file completely, as UTF-8.
///
/// # Errors
///
/// As for [`read`], or the file is not UTF-8; see [`NotUtf8`].
pub fn read_text(path: &Path, limit: Limit) -> io::Result<String> {
    text_from_bytes(read(path, limit)?)
}

fn text_from_bytes(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, NotUtf8 { byte })
    })
}

/// The file name that means the standard input.
pub const STANDARD_INPUT: &str = "-";

/// The standard input, for reading in parts.
///
/// # Errors
///
/// The process has none.
pub fn standard_input() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Reads the standard input to its end, as UTF-8.
///
/// # Errors
///
/// The standard input cannot be read, is not UTF-8 (see [`NotUtf8`]), or exceeds the limit (see
/// [`TooLarge`]).
pub fn read_standard_input(limit: Limit) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut input = io::stdin().lock().take(limit.bytes.saturating_add(1));
    input.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.bytes {
        let too_large = TooLarge { limit };
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large));
    }
    text_from_bytes(bytes)
}

/// Whether there is a regular file with this name. A path that cannot be inspected, or that is not
/// a regular file, is an error and never "absent", because ignoring it would change the program's
/// behaviour silently.
///
/// # Errors
///
/// - It is not a regular file, see [`NotRegular`], or a broken link.
/// - The system refuses to inspect it.
pub fn is_there(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) => check_is_file(&metadata).map(|()| true),
        Err(error) if is_absence(&error) => match fs::symlink_metadata(path) {
            Ok(_) => Err(not_regular("a broken symbolic link")),
            Err(_) => Ok(false),
        },
        Err(error) => Err(error),
    }
}

/// Reads a regular file completely if it exists.
///
/// # Errors
///
/// As for [`is_there`] and [`read`].
pub fn read_if_there(path: &Path, limit: Limit) -> io::Result<Option<Vec<u8>>> {
    if is_there(path)? {
        read(path, limit).map(Some)
    } else {
        Ok(None)
    }
}

/// Opens a file that this program itself creates and writes, such as a lock, a journal or a partial
/// download. Other users with access to the folder might have placed a link there to redirect the
/// writes, so links are refused, and opening never blocks.
///
/// # Errors
///
/// - It cannot be opened.
/// - It is a symbolic link or not a regular file; see [`NotRegular`].
pub fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    check_own_file(path)?;
    let file = refuse_links(options).open(path);
    // Another file may have taken the name in the meantime.
    let file = file.map_err(|error| check_own_file(path).err().unwrap_or(error))?;
    check_is_file(&file.metadata()?)?;
    Ok(file)
}

/// Like [`open_own`], for reading an existing file.
///
/// # Errors
///
/// As for [`open_own`].
pub fn open_own_file_to_read(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().read(true))
}

/// Opens a file like [`open_own`] and reads it completely, if it exists.
///
/// # Errors
///
/// As for [`open_own`] and [`read`].
pub fn read_own_file_if_exists(path: &Path, limit: Limit) -> io::Result<Option<Vec<u8>>> {
    if !own_file_exists(path)? {
        return Ok(None);
    }
    read_opened(open_own_file_to_read(path)?, limit).map(Some)
}

/// Whether there is a regular file, not a link, with this name.
///
/// # Errors
///
/// The path is not a regular file, see [`NotRegular`], or the system refuses to inspect it.
pub fn own_file_exists(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Err(not_regular("a symbolic link")),
        Ok(metadata) => check_is_file(&metadata).map(|()| true),
        Err(error) if is_absence(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn check_own_file(path: &Path) -> io::Result<()> {
    own_file_exists(path).map(drop)
}

/// Whether an error means that the path does not exist, including paths with a file as a folder.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether both describe the same file.
#[cfg(unix)]
pub fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Always true on Windows, which does not let other programs replace an open file.
#[cfg(not(unix))]
pub fn is_same_file(_one: &Metadata, _other: &Metadata) -> bool {
    true
}

/// Refuses a file that reports length 0 but has content. The kernel generates such a file each time
/// it is read, and some of them never end. Reading in parts or twice relies on the length.
#[cfg(unix)]
fn check_length(file: &File) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let is_empty = || Ok::<_, io::Error>(file.metadata()?.len() == 0);
    // The length is checked twice, because another process may be writing the file.
    if is_empty()? && file.read_at(&mut [0], 0)? > 0 && is_empty()? {
        Err(not_regular(
            "a file that the kernel generates while it is read",
        ))
    } else {
        Ok(())
    }
}

#[cfg(not(unix))]
fn check_length(_file: &File) -> io::Result<()> {
    Ok(())
}

fn check_is_file(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        Ok(())
    } else {
        Err(not_regular(kind(metadata.file_type())))
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
        _ => "something else",
    }
}

#[cfg(not(unix))]
fn kind(found: FileType) -> &'static str {
    if found.is_dir() {
        "a directory"
    } else {
        "something else"
    }
}

/// Makes opening return at once, because a pipe may take the name between the check and the
/// opening.
#[cfg(unix)]
fn set_nonblocking(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
}

#[cfg(not(unix))]
fn set_nonblocking(_options: &mut OpenOptions) {}

#[cfg(unix)]
fn refuse_links(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    options.custom_flags(flags.bits().cast_signed())
}

#[cfg(not(unix))]
fn refuse_links(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A limit of `bytes` bytes.
    const fn byte_limit(bytes: u64) -> Limit {
        Limit::new("SOME_BYTES", bytes)
    }

    fn pipe(path: &Path) {
        let status = std::process::Command::new("mkfifo").arg(path).status();
        assert!(status.expect("mkfifo").success());
    }

    /// Each file type that can have a name in a folder, with its name in errors.
    fn other_file_types(dir: &Path) -> Vec<(std::path::PathBuf, &'static str)> {
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
            (loose, "a broken symbolic link"),
        ]
    }

    #[test]
    fn a_path_that_is_not_a_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, kind) in other_file_types(dir.path()) {
            let is_link = kind.contains("link");
            let mut errors = vec![
                is_there(&path).map(drop),
                read_if_there(&path, byte_limit(9)).map(drop),
            ];
            // A broken link cannot be opened either, and the system reports that.
            if !is_link {
                errors.extend([open(&path).map(drop), read(&path, byte_limit(9)).map(drop)]);
            }
            for error in errors {
                let error = error.expect_err(kind).to_string();
                assert!(error.contains(kind), "{}: {error}", path.display());
            }
        }
        assert!(!is_there(&dir.path().join("absent")).expect("absence is not an error"));
        let inside_pipe = dir.path().join("fifo").join("x");
        assert!(!is_there(&inside_pipe).expect("absence is not an error"));
        assert_eq!(
            read_if_there(&inside_pipe, byte_limit(9)).expect("absence"),
            None
        );
    }

    #[test]
    fn a_file_of_this_program_must_not_be_a_link_and_opening_it_never_blocks() {
        let dir = tempfile::tempdir().expect("a folder");
        let journal = dir.path().join("own");
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").expect("written");
        let mut to_write = OpenOptions::new();
        to_write.write(true).create(true).truncate(true);
        open_own(&journal, &mut to_write).expect("a new file");
        open_own(&journal, &mut to_write).expect("the same file");
        assert_eq!(
            read_own_file_if_exists(&journal, byte_limit(9)).expect("read"),
            Some(Vec::new())
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&victim, &link).expect("a link");
        let mut refused = other_file_types(dir.path());
        refused.retain(|(_, kind)| !kind.contains("link"));
        refused.push((link, "a symbolic link"));
        refused.push((dir.path().join("loose"), "a symbolic link"));
        for (path, kind) in refused {
            for error in [
                open_own(&path, &mut to_write).map(drop),
                read_own_file_if_exists(&path, byte_limit(9)).map(drop),
                own_file_exists(&path).map(drop),
            ] {
                let error = error.expect_err(kind).to_string();
                assert!(error.contains(kind), "{}: {error}", path.display());
            }
        }
        assert_eq!(fs::read_to_string(&victim).expect("read"), "precious");
        let absent = dir.path().join("absent");
        assert_eq!(
            read_own_file_if_exists(&absent, byte_limit(9)).expect("absence"),
            None
        );
    }

    #[test]
    fn a_file_is_read_up_to_the_limit_and_through_links() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "text").expect("written");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(read(&link, byte_limit(4)).expect("of the limit"), b"text");
        assert_eq!(
            read_text(&link, byte_limit(4)).expect("of the limit"),
            "text"
        );
        let error = read(&path, byte_limit(3))
            .expect_err("too large")
            .to_string();
        assert!(error.contains("more than 3 bytes"), "{error}");
        assert!(error.contains("SOME_BYTES in docs/limits.md"), "{error}");
        // The length of this file is 0, although it has content.
        let kernel = Path::new("/proc/self/status");
        if kernel.exists() {
            assert!(
                read(kernel, byte_limit(1 << 20))
                    .expect("a file of the kernel")
                    .len()
                    > 10
            );
            assert!(read(kernel, byte_limit(10)).is_err());
            let error = open(kernel).expect_err("read in parts").to_string();
            assert!(error.contains("the kernel generates"), "{error}");
        }
        fs::write(&path, "").expect("written");
        assert!(open(&path).is_ok(), "an empty file is a regular file");
        fs::write(&path, b"\xff").expect("written");
        let error = read_text(&path, byte_limit(4)).expect_err("not UTF-8");
        let expected = "invalid UTF-8 at byte 0; save the file as UTF-8";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
