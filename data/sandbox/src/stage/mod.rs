//! Turns a process into the process of model code, in two stages of the launcher.
//!
//! Code between `fork` and `exec` would need `unsafe`. Instead, the launcher is started again for
//! each stage and changes itself. The guard enters new namespaces and remains the parent. The cell,
//! the first process of those namespaces, gives up files, system calls and capabilities and becomes
//! the program. The guard stays outside the isolation. Its standard input is a leash: when the
//! other end is closed, the guard kills the program, so the program cannot outlive the caller.

mod child;
mod files;
mod private_root;
mod supervisor;
mod syscalls;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use super::protocol::{self, StageFailure};

pub(super) const GUARD: &str = "guard";
pub(super) const CELL: &str = "cell";

/// Runs a stage of the sandbox; see [`super::Launcher`].
///
/// `arguments` are the command-line arguments after the launcher's own. Call this before starting a
/// thread or opening a file, and exit with the returned code.
pub fn enter(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let [stage, folder] = arguments.as_slice() else {
        return ExitCode::from(64);
    };
    let folder = Path::new(folder);
    // Open this first, because the cell leaves the root in which the path is valid.
    let report_file = OpenOptions::new()
        .write(true)
        .open(folder.join(protocol::FAILURE));
    let Ok(mut failure_file) = report_file else {
        return ExitCode::from(66);
    };
    let done = match stage.to_str() {
        Some(GUARD) => supervisor::run(folder),
        Some(CELL) => child::run(folder),
        _ => Err(StageFailure::new(
            None,
            format!("there is no stage {stage:?}"),
        )),
    };
    let Err(failure) = done else {
        return ExitCode::SUCCESS;
    };
    let failure_json = serde_json::to_vec(&failure)
        .map_err(std::io::Error::from)
        .and_then(|text| failure_file.write_all(&text));
    ExitCode::from(if failure_json.is_ok() { 70 } else { 74 })
}
