//! A process becomes the process of a model's code, in two stages of the launcher.
//!
//! Nothing may run between `fork` and `exec` without `unsafe`, so the launcher is started anew for
//! each stage and changes itself: the guard enters new namespaces and stays the parent, the cell,
//! first process of those namespaces, gives up files, system calls and capabilities and becomes
//! the program. The guard lives outside what it guards; its standard input is a leash: once nobody
//! holds the other end, the program is killed, so that it cannot outlive the caller.

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

/// Runs a stage of the sandbox, as [`super::Launcher`] says.
///
/// `arguments` are those of the command line after the launcher's own. A program calls this before
/// it starts a thread or opens a file, and ends with the code that it returns.
pub fn enter(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let [stage, folder] = arguments.as_slice() else {
        return ExitCode::from(64);
    };
    let folder = Path::new(folder);
    // Opened first: the cell leaves the root that the path belongs to.
    let opened = OpenOptions::new()
        .write(true)
        .open(folder.join(protocol::FAILURE));
    let Ok(mut failure_file) = opened else {
        return ExitCode::from(66);
    };
    let done = match stage.to_str() {
        Some(GUARD) => supervisor::run(folder),
        Some(CELL) => child::run(folder),
        _ => Err(StageFailure::new(
            None,
            format!("no stage is called {stage:?}"),
        )),
    };
    let Err(failure) = done else {
        return ExitCode::SUCCESS;
    };
    let told = serde_json::to_vec(&failure)
        .map_err(std::io::Error::from)
        .and_then(|text| failure_file.write_all(&text));
    ExitCode::from(if told.is_ok() { 70 } else { 74 })
}
