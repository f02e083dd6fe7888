//! The program that is started for each stage of a run.

use std::path::PathBuf;

/// The program that becomes the stages of the sandbox, usually the running one.
///
/// It is started with `arguments`, followed by the arguments of a stage. It must pass the latter to
/// [`super::enter`] before it starts a thread, and exit with the returned code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments before those of a stage, such as the name of a hidden subcommand.
    pub arguments: Vec<String>,
}
