//! Tests that files are complete or absent, regardless of how their writers stop.

use super::*;

/// The error of a caller that cannot produce its second part.
fn caller_error() -> DiskError {
    let source = std::io::Error::other("the second part is absent");
    DiskError::io("read", Path::new("b"))(source)
}

#[test]
fn an_existing_file_is_not_overwritten_by_write_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    write_file(&path, b"first").unwrap();
    let error = write_file(&path, b"second").unwrap_err();
    assert!(matches!(error, DiskError::AlreadyExists { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"first");
}

#[test]
fn an_atomic_write_replaces_the_file_and_leaves_no_staged_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LATEST");
    write_atomic(&path, b"old").unwrap();
    write_atomic(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn names_of_the_maximum_length_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a".repeat(NAME_BYTES), "é".repeat(NAME_BYTES / 2)] {
        let path = dir.path().join(&name);
        let earlier = format!("{}1", staged_prefix(name.as_ref()).to_str().unwrap());
        fs::write(dir.path().join(earlier), "of a killed writer").unwrap();
        create_file(&path, b"new").unwrap();
        write_atomic(&path, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        fs::remove_file(&path).unwrap();
        write_directory(&path, |_| Ok::<_, DiskError>(())).unwrap();
        remove_directory(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    let [one, other] = ["1", "2"].map(|end| "a".repeat(NAME_BYTES - 1) + end);
    assert_ne!(staged_prefix(one.as_ref()), staged_prefix(other.as_ref()));
}

#[test]
fn a_failed_partial_write_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let error = write_in_parts(&path, 9, |file| {
        file.write(b"first")?;
        Err(caller_error())
    });
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("the second part is absent")
    );
    assert!(!path.exists());
    write_in_parts(&path, 9, |file| {
        file.write(b"first")?;
        file.write(b", second")
    })
    .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first, second");
}

/// Invariant: A file gets its final name only when it is complete.
#[test]
fn creating_a_file_is_atomic_and_never_overwrites() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    let mut existed = Vec::new();
    let failed = create_in_parts(&path, 9, |file| {
        file.write(b"first")?;
        existed.push(path.exists());
        Err(caller_error())
    });
    assert!(failed.unwrap_err().to_string().contains("is absent"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    create_file(&path, b"whole").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    let error = create_file(&path, b"other").unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(existed, [false]);
}

#[cfg(unix)]
#[test]
fn the_next_writer_removes_files_of_a_killed_writer() {
    let dir = tempfile::tempdir().unwrap();
    let names = || -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    // One file is still being written; the others are abandoned or have a different name.
    for name in [".a.tmp-1", ".a.tmp-2", ".b.tmp-1", ".a.tmp-notes"] {
        fs::write(dir.path().join(name), "half").unwrap();
    }
    fs::create_dir_all(dir.path().join(".a.tmp-3/1_Pooling")).unwrap();
    fs::create_dir(dir.path().join(".a.tmp-4")).unwrap();
    let [file, folder] = [".a.tmp-2", ".a.tmp-4"].map(|name| dir.path().join(name));
    let [file, folder] = [File::open(file).unwrap(), File::open(folder).unwrap()];
    file.lock().unwrap();
    folder.lock().unwrap();
    write_atomic(&dir.path().join("a"), b"whole").unwrap();
    let remaining = [".a.tmp-2", ".a.tmp-4", ".a.tmp-notes", ".b.tmp-1", "a"];
    assert_eq!(names(), remaining);
    // Closing is not enough: a child that another test is starting may share the files.
    file.unlock().unwrap();
    folder.unlock().unwrap();
    fs::remove_file(dir.path().join("a")).unwrap();
    write_directory(&dir.path().join("a"), |_| Ok::<_, DiskError>(())).unwrap();
    assert_eq!(names(), [".a.tmp-notes", ".b.tmp-1", "a"]);
    fs::write(dir.path().join(".b.tmp-1"), "half").unwrap();
    create_file(&dir.path().join("b"), b"whole").unwrap();
    assert_eq!(names(), [".a.tmp-notes", "a", "b"]);
}

#[cfg(unix)]
#[test]
fn a_folder_can_be_locked_by_only_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let lock = FolderLock::take(dir.path()).unwrap();
    let locked = FolderLock::take(dir.path()).unwrap_err().to_string();
    assert!(locked.contains("in use by another process"), "{locked}");
    drop(lock);
    FolderLock::take(dir.path()).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_advice_of_a_failed_write_fits_its_cause() {
    let message_for = |code: i32| {
        let source = std::io::Error::from_raw_os_error(code);
        write_error(Path::new("run/BEST"), 86)(source).to_string()
    };
    // ENOSPC, EDQUOT, EFBIG, EIO, EISDIR, EROFS.
    for code in [28, 122] {
        assert!(
            message_for(code).contains("free space"),
            "{}",
            message_for(code)
        );
    }
    for (code, advice) in [
        (27, "does not allow a larger file"),
        (5, "the system log"),
        (21, "a folder"),
        (30, "read-only"),
    ] {
        let message = message_for(code);
        assert!(message.contains(advice), "{message}");
        assert!(!message.contains("free space"), "{message}");
        assert!(
            message.contains("files saved earlier are unchanged"),
            "{message}"
        );
    }
}

#[test]
fn writing_into_a_missing_folder_names_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nowhere/x.toml");
    for result in [create_file(&file, b"x"), write_atomic(&file, b"x")] {
        let message = result.unwrap_err().to_string();
        assert!(
            message.contains("its folder does not exist: create it"),
            "{message}"
        );
        assert!(!message.contains("unchanged"), "{message}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_path_and_required_bytes() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut file = NewFile {
        path: PathBuf::from("/runs/a/adapter.safetensors"),
        file: BufWriter::new(full),
        n_bytes: 70_000,
    };
    // The buffer accepts the first part; the disk refuses it with the second part or the sync.
    let parts = file.write(b"12345").and_then(|()| file.write(&[0; 69_995]));
    let error = parts.and_then(|()| file.sync()).unwrap_err().to_string();
    assert!(
        error.contains("/runs/a/adapter.safetensors (70000 bytes needed)"),
        "{error}"
    );
    assert!(error.contains("No space left"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_a_file_is_written_to_directly() {
    use std::os::unix::fs::FileTypeExt;

    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let status = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(status.unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write_atomic(&pipe, b"metrics").unwrap();
    assert_eq!(reader.join().unwrap(), b"metrics");
    let still = fs::symlink_metadata(&pipe).unwrap().file_type();
    assert!(still.is_fifo());
}

#[cfg(unix)]
#[test]
fn a_link_with_the_name_of_a_staged_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let path = dir.path().join("file");
    std::os::unix::fs::symlink(&victim, staging_path(&path)).unwrap();
    write_atomic(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}
