//! Output files of commands. A command never replaces an existing file.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use tooltune_disk::DiskError;
use tooltune_disk::atomic::{self, create_file, write_atomic};

use crate::error::Error;

/// Refuses existing output files, before any output is written. `outputs` has each file with its
/// option.
///
/// # Errors
///
/// - A path is an existing file or folder. Devices and pipes are accepted.
/// - Two options have the same path.
pub(super) fn must_be_new(outputs: &[(&str, Option<&Path>)]) -> Result<(), Error> {
    let paths = outputs
        .iter()
        .filter_map(|&(option, path)| Some((option, path?)));
    let mut earlier: Vec<(&str, &Path)> = Vec::new();
    for (option, path) in paths.filter(|(_, path)| !is_stream(path)) {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Usage(format!(
                "{} already exists; remove it or name another {option}",
                path.display()
            )));
        }
        if let Some((other, _)) = earlier.iter().find(|(_, other)| *other == path) {
            return Err(Error::Usage(format!(
                "{other} and {option} are the same file, {}; name two files",
                path.display()
            )));
        }
        earlier.push((option, path));
    }
    Ok(())
}

/// Creates a file and its folder, or writes to the device or pipe at `path`.
///
/// # Errors
///
/// The file exists, or it cannot be written completely; [`Error::ReaderGone`] if the reader closed
/// the pipe.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if is_stream(path) {
        return write_stream(path, bytes);
    }
    create_parent(path)?;
    Ok(create_file(path, bytes)?)
}

/// Like [`create`], but a closure writes the file, which may be larger than memory. A device or
/// pipe gets the whole content at once.
///
/// # Errors
///
/// As for [`create`], or `fill` returns an error.
pub(super) fn create_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    if is_stream(path) {
        let mut bytes = Vec::new();
        fill(&mut bytes).map_err(Error::io(path, "write"))?;
        return write_stream(path, &bytes);
    }
    create_parent(path)?;
    atomic::create_with(path, |file| {
        let mut file = BufWriter::new(file);
        let written = fill(&mut file).and_then(|()| file.flush());
        written.map_err(Error::io(path, "write"))
    })
}

fn write_stream(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_atomic(path, bytes).map_err(|error| match error {
        DiskError::Write { source, .. } if source.kind() == ErrorKind::BrokenPipe => {
            Error::ReaderGone
        }
        error => error.into(),
    })
}

pub(super) fn create_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent();
    match parent.filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => std::fs::create_dir_all(parent).map_err(Error::io(parent, "create")),
        None => Ok(()),
    }
}

/// Whether `path` is a device or a pipe, such as `/dev/stdout`.
pub(super) fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_output_is_refused_and_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("old.jsonl"), "mine\n").expect("written");
        let (old, new) = (path("old.jsonl"), path("made/new.jsonl"));
        let refused = |outputs: &[(&str, Option<&Path>)]| {
            must_be_new(outputs).expect_err("refused").to_string()
        };
        let message = refused(&[("--output", Some(&new)), ("--edges", Some(&old))]);
        assert!(message.contains("old.jsonl already exists"), "{message}");
        assert!(message.ends_with("name another --edges"), "{message}");
        let message = refused(&[("--output", Some(&new)), ("--edges", Some(&new))]);
        assert!(message.contains("--output and --edges"), "{message}");
        assert!(refused(&[("--output", Some(dir.path()))]).contains("already exists"));
        assert!(create(&old, b"other\n").is_err());
        assert_eq!(std::fs::read(&old).expect("read"), b"mine\n");

        must_be_new(&[("--output", Some(&new)), ("--edges", None)]).expect("new");
        create(&new, b"rows\n").expect("created");
        assert_eq!(std::fs::read(&new).expect("read"), b"rows\n");
        let null = Path::new("/dev/null");
        must_be_new(&[("--output", Some(null)), ("--edges", Some(null))]).expect("a device");
        create(null, b"rows\n").expect("written");
    }
}
