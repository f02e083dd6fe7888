//! The program that is started for the stages of a run.

use std::path::PathBuf;

/// The program that becomes the stages of the sandbox: usually the running one.
///
/// Started with `arguments`, it must hand the arguments that follow them to [`super::enter`]
/// before it starts a thread, and end with what that returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// Path of the program.
    pub program: PathBuf,
    /// Its arguments before those of a stage, such as the name of a hidden subcommand.
    pub arguments: Vec<String>,
}
