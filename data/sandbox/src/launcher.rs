//! The program that is started for each stage of a run.

use std::path::PathBuf;

/// The program that is started as the stages of the sandbox, usually the current executable.
///
/// It is started with `arguments`, followed by the arguments of a stage. It must pass the arguments
/// of the stage to [`super::enter`] before it starts a thread, and exit with the returned code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments before the stage's arguments, such as the name of a hidden subcommand.
    pub arguments: Vec<String>,
}
