//! Code that a model wrote becomes what it returns, in a process that can touch nothing else.
//!
//! [`Sandbox`] finds out what the machine has to isolate with, [`PythonRunner`] runs functions and
//! scripts within it. Each run is a process of its own, with nothing of this one but its request:
//!
//! - **Network**: no socket can be made, and with namespaces there is no network.
//! - **Files**: the system's programs and libraries, the interpreter and the given folders can be
//!   read; one working directory can be written, and is gone with the run. Modes, owners, times and
//!   attributes of files cannot be changed.
//! - **Processes**: the code is one process and cannot make another, so that none stays behind; it
//!   can signal none but itself, and cannot see others.
//! - **Limits**: see [`Limits`]; memory, processor time, wall-clock time, files and output.
//! - **This program**: no environment, no open file, no argument of it reaches the code.
//!
//! Seccomp is always required, and namespaces or Landlock for the files; both where both are there.
//! Without namespaces the code can ask whether a file exists and how long it is, can see which
//! user it is, and its threads and the sum of its files are bounded by memory and time alone.
//!
//! Not guaranteed: a fault of the kernel opens it; the code shares processor, memory bandwidth and
//! caches with others and may measure them; what it returns is its own word, for it can write the
//! result as its interpreter can.
//!
//! The decision to question: the code may not start processes at all, even harmless ones.
//!
//! ```
//! use tooltune_sandbox::Limits;
//!
//! let limits = Limits { wall_secs: 2.0, ..Limits::default() };
//! assert!(limits.memory_bytes > 0 && limits.n_open_files > 0);
//! ```

#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "nothing is ever run there")
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
