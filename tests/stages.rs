//! `scripts/stage.sh`: which stages of a script run again, and which stages resume.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

/// Runs a stage whose command records whether it resumes, and exits with the code in the file
/// `status`.
const SCRIPT: &str = r#"set -euo pipefail
data=$1
. scripts/stage.sh
work() {
    echo "$stage_resumes" >>"$data/log"
    local status
    status=$(<"$data/status")
    ((status != 0)) || : >"$data/output"
    return "$status"
}
stage work "$data/output" "$data/input" -- work some words
"#;

fn run(data: &Path, status: u8) -> Option<i32> {
    std::fs::write(data.join("status"), format!("{status}\n")).unwrap();
    let mut bash = Command::new("bash");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = bash
        .current_dir(root)
        .args(["-c", SCRIPT, "script"])
        .arg(data);
    script.output().unwrap().status.code()
}

fn change(path: &Path, seconds_ago: u64) {
    let file = std::fs::File::options().append(true).open(path).unwrap();
    let time = SystemTime::now() - Duration::from_secs(seconds_ago);
    file.set_modified(time).unwrap();
}

#[test]
fn an_interrupted_stage_resumes_unless_its_inputs_changed() {
    let dir = TempDir::new().unwrap();
    let data = dir.path();
    std::fs::write(data.join("input"), "").unwrap();
    change(&data.join("input"), 100);
    let log = || std::fs::read_to_string(data.join("log")).unwrap();
    assert_eq!(run(data, 75), Some(75));
    assert_eq!(run(data, 75), Some(75));
    assert_eq!(log(), "no\nyes\n");
    // The input is newer than the start of the stage.
    change(&data.join("started/work"), 50);
    change(&data.join("input"), 10);
    assert_eq!(run(data, 75), Some(75));
    assert_eq!(run(data, 0), Some(0));
    assert_eq!(log(), "no\nyes\nno\nyes\n");
    // A finished stage is skipped. If its output is missing, it starts from the beginning.
    assert_eq!(run(data, 0), Some(0));
    assert_eq!(log(), "no\nyes\nno\nyes\n");
    std::fs::remove_file(data.join("output")).unwrap();
    assert_eq!(run(data, 1), Some(1));
    assert_eq!(run(data, 2), Some(2));
    assert_eq!(run(data, 0), Some(0));
    // The second attempt failed because it refused the unfinished results.
    assert_eq!(log(), "no\nyes\nno\nyes\nno\nyes\nno\n");
}
