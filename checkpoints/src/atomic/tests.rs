//! Files that are whole or not there, whatever stops their writers.

use super::*;

#[test]
fn an_existing_file_is_not_overwritten_by_write_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    write_file(&path, b"first").unwrap();
    let error = write_file(&path, b"second").unwrap_err();
    assert!(
        matches!(error, CheckpointError::AlreadyExists { .. }),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"first");
}

#[test]
fn an_atomic_write_replaces_the_file_and_leaves_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LATEST");
    write_atomic(&path, b"old").unwrap();
    write_atomic(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_stands_behind_a_place_of_another_file_becomes_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let [from, path] = ["from", "to"].map(|name| dir.path().join(name));
    let rest = vec![7; PART_BYTES + 3];
    fs::write(&from, [b"head".as_slice(), &rest].concat()).unwrap();
    create_from_rest(&path, &from, 4).unwrap();
    assert_eq!(fs::read(&path).unwrap(), rest);
    let again = create_from_rest(&path, &from, 4).unwrap_err();
    assert!(
        matches!(again, CheckpointError::AlreadyExists { .. }),
        "{again}"
    );
    assert!(create_from_rest(&dir.path().join("b"), &dir.path().join("c"), 0).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_file_whose_parts_fail_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let error = write_in_parts(&path, 9, |file| {
        file.write(b"first")?;
        Err(CheckpointError::field(
            Path::new("b"),
            "second",
            "is absent",
        ))
    });
    assert!(error.unwrap_err().to_string().contains("second: is absent"));
    assert!(!path.exists());
    write_in_parts(&path, 9, |file| {
        file.write(b"first")?;
        file.write(b", second")
    })
    .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first, second");
}

#[test]
fn a_file_is_made_whole_or_not_at_all_and_never_over_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    let mut seen = Vec::new();
    let failed = create_in_parts(&path, 9, |file| {
        file.write(b"first")?;
        seen.push(path.exists());
        Err(CheckpointError::field(
            Path::new("b"),
            "second",
            "is absent",
        ))
    });
    assert!(failed.unwrap_err().to_string().contains("is absent"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    create_file(&path, b"whole").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    let again = create_file(&path, b"other").unwrap_err().to_string();
    assert!(again.contains("exists already"), "{again}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(seen, [false]);
}

#[cfg(unix)]
#[test]
fn what_a_killed_writer_left_is_removed_by_the_next_one_of_its_name() {
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
    // One is in the making still; the others belong to nobody, or to another name.
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
    let kept = [".a.tmp-2", ".a.tmp-4", ".a.tmp-notes", ".b.tmp-1", "a"];
    assert_eq!(names(), kept);
    // Closing alone is not enough: a child that another test is starting may share the files.
    file.unlock().unwrap();
    folder.unlock().unwrap();
    fs::remove_file(dir.path().join("a")).unwrap();
    write_directory(&dir.path().join("a"), |_| Ok(())).unwrap();
    assert_eq!(names(), [".a.tmp-notes", ".b.tmp-1", "a"]);
    fs::write(dir.path().join(".b.tmp-1"), "half").unwrap();
    create_file(&dir.path().join("b"), b"whole").unwrap();
    assert_eq!(names(), [".a.tmp-notes", "a", "b"]);
}

#[cfg(unix)]
#[test]
fn a_folder_has_one_process_that_works_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let held = FolderLock::take(dir.path()).unwrap();
    let refused = FolderLock::take(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("in use by another process"), "{refused}");
    drop(held);
    FolderLock::take(dir.path()).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_advice_of_a_failed_write_fits_its_cause() {
    let told = |code: i32| {
        let source = std::io::Error::from_raw_os_error(code);
        write_error(Path::new("run/BEST"), 86)(source).to_string()
    };
    // ENOSPC, EDQUOT, EFBIG, EIO, EISDIR, EROFS.
    for code in [28, 122] {
        assert!(told(code).contains("free space"), "{}", told(code));
    }
    for (code, advice) in [
        (27, "no larger file"),
        (5, "the system's log"),
        (21, "a folder"),
        (30, "read-only"),
    ] {
        let said = told(code);
        assert!(said.contains(advice), "{said}");
        assert!(!said.contains("free space"), "{said}");
        assert!(
            said.contains("what was saved before is untouched"),
            "{said}"
        );
    }
}

#[test]
fn a_file_in_a_folder_that_is_not_there_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nowhere/x.toml");
    for written in [create_file(&file, b"x"), write_atomic(&file, b"x")] {
        let said = written.unwrap_err().to_string();
        assert!(said.contains("its folder is not there: make it"), "{said}");
        assert!(!said.contains("untouched"), "{said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_tells_path_and_bytes() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut file = NewFile {
        path: PathBuf::from("/runs/a/adapter.safetensors"),
        file: BufWriter::new(full),
        n_bytes: 70_000,
    };
    // The buffer takes the first part; the disk refuses it with the second, or with the sync.
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
fn what_is_no_file_is_written_to_and_not_replaced() {
    use std::os::unix::fs::FileTypeExt;

    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write_atomic(&pipe, b"metrics").unwrap();
    assert_eq!(reader.join().unwrap(), b"metrics");
    let still = fs::symlink_metadata(&pipe).unwrap().file_type();
    assert!(still.is_fifo());
}
