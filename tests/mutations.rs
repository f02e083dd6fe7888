//! Every reader against files with bytes and values changed: a fixed sample of what
//! `scripts/mutations` tries.

use std::process::Command;

use crate::support::{program, root};

#[test]
fn mutated_files_are_read_or_refused_without_a_panic_within_memory_and_time() {
    let kept = tempfile::TempDir::new().unwrap();
    let python = std::env::var_os("TOOLTUNE_PYTHON").unwrap_or_else(|| "python3".into());
    let tried = Command::new(python)
        .arg(root().join("scripts/mutations"))
        .args(["--each", "12", "--seed", "7", "--jobs", "2", "--program"])
        .arg(program())
        .arg("--keep")
        .arg(kept.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = format!("{}{}", text(&tried.stdout), text(&tried.stderr));
    assert!(tried.status.success(), "{said}");
    assert!(said.contains("| tokenizer.json | 12 |"), "{said}");
}
