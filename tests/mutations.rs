//! Runs a fixed sample of `scripts/mutations`: every reader on files with changed bytes and values.

use std::process::Command;

use crate::support::{program, root};

/// Invariant: No damaged or hostile file causes a panic or a signal.
#[test]
fn mutated_files_are_read_or_refused_without_a_panic_within_memory_and_time() {
    let failures_folder = tempfile::TempDir::new().unwrap();
    let python = std::env::var_os("TOOLTUNE_PYTHON").unwrap_or_else(|| "python3".into());
    let tried = Command::new(python)
        .arg(root().join("scripts/mutations"))
        .args(["--each", "12", "--seed", "7", "--jobs", "2", "--program"])
        .arg(program())
        .arg("--keep")
        .arg(failures_folder.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let expected = format!("{}{}", text(&tried.stdout), text(&tried.stderr));
    assert!(tried.status.success(), "{expected}");
    assert!(expected.contains("| tokenizer.json | 12 |"), "{expected}");
}
