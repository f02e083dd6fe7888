//! Runs model-written code in an isolated process and returns its result.
//!
//! [`Sandbox`] detects the isolation that the machine supports. [`PythonRunner`] runs functions and
//! scripts in it. Each run is a separate process that receives only its request from this process:
//!
//! - **Network**: the code cannot create sockets; with namespaces there is no network at all.
//! - **Files**: the system's programs and libraries, the interpreter and the given folders are
//!   readable. One working directory is writable, and it is removed after the run. Modes, owners,
//!   times and attributes of files cannot be changed.
//! - **Processes**: the code is one process and cannot create another one, so no process is left
//!   running. It can signal only itself and cannot see other processes.
//! - **Limits**: see [`Limits`]; memory, processor time, wall-clock time, files and output.
//! - **This program**: its environment, open files and arguments are not passed to the code.
//!
//! Seccomp is always required. Namespaces or Landlock are also required, to restrict files; if both
//! are available, both are used. Without namespaces, the code can test whether a file exists, and
//! read its length and the code's own user ID. The number of the code's threads and the total size
//! of its files are then limited only by memory and time.
//!
//! Not guaranteed: a kernel vulnerability can break the isolation. The code shares processors,
//! memory bandwidth and caches with other processes and can measure them. Do not trust its result,
//! because the code can forge it.
//!
//! The code cannot start processes at all, even harmless ones.
//!
//! ```
//! use tooltune_sandbox::Limits;
//!
//! let limits = Limits { wall_secs: 2.0, ..Limits::default() };
//! assert!(limits.memory_bytes > 0 && limits.n_open_files > 0);
//! ```

#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "code is never run on these systems")
)]

mod error;
mod finished;
mod isolation;
#[cfg(target_os = "linux")]
mod launch;
mod launcher;
mod limits;
mod protocol;
mod python;
#[cfg(target_os = "linux")]
mod stage;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(target_os = "linux")]
mod watch;

pub use error::SandboxError;
pub use isolation::{Isolation, MissingPart, Part, Requirement};
#[cfg(target_os = "linux")]
pub use launch::Sandbox;
pub use launcher::Launcher;
pub use limits::Limits;
pub use python::{Failure, Outcome, PythonRunner, Returned};
#[cfg(target_os = "linux")]
pub use stage::enter;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{Sandbox, enter};
