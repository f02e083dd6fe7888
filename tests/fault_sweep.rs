//! Injected faults: a file call fails, is cut short, or kills the process. The test runs an even
//! sample of the faults in `scripts/faults`.

use std::process::Command;

use crate::support::{program, root};

/// Number of injected faults, out of about twenty thousand; they take about a minute.
const SAMPLE: &str = "150";

#[cfg(target_os = "linux")]
/// Invariant: After any failed file call the same command completes with the same result.
#[test]
fn commands_give_the_same_result_after_an_injected_fault() {
    let output = Command::new("python3")
        .arg(root().join("scripts/faults"))
        .args(["--sample", SAMPLE, "--jobs", "2", "--program"])
        .arg(program())
        .output()
        .expect("python3");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{errors}");
    assert!(stdout.contains("passed 150 of 150 faults"), "{stdout}");
}
