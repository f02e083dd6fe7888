//! File calls that fail, end short or are a process's last: an even sample of what `scripts/faults`
//! tries.

use std::process::Command;

use crate::support::{program, root};

/// Of some twenty thousand: about a minute.
const SAMPLE: &str = "150";

#[cfg(target_os = "linux")]
#[test]
fn commands_end_the_same_after_a_file_call_that_failed_or_was_the_last() {
    let output = Command::new("python3")
        .arg(root().join("scripts/faults"))
        .args(["--sample", SAMPLE, "--jobs", "2", "--program"])
        .arg(program())
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.contains("150 of 150 faults held"), "{said}");
}
