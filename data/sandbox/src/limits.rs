//! What a run of a model's code may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SandboxError;

/// The limits of one run; each is enforced from outside the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Seconds from the start of the process to its end, those of starting Python included.
    pub wall_secs: f64,
    /// Seconds of processor time, over all threads.
    pub cpu_secs: u64,
    /// Bytes of address space. Below about 64 MiB Python does not start.
    pub memory_bytes: u64,
    /// Bytes of any one file.
    pub file_bytes: u64,
    /// Bytes of all files together; only namespaces can hold this limit.
    pub disk_bytes: u64,
    /// Open files at once, standard streams included.
    pub n_open_files: u64,
    /// Threads beside the first. Only namespaces can count them, and not for root: else it is the
    /// address space that bounds them.
    pub n_threads: u64,
    /// Bytes that may be printed, for standard output and standard error each, and bytes that a
    /// result may have as text.
    pub output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall_secs: 10.0,
            cpu_secs: 10,
            memory_bytes: 1 << 30,
            file_bytes: 16 << 20,
            disk_bytes: 64 << 20,
            n_open_files: 64,
            n_threads: 16,
            output_bytes: 1 << 20,
        }
    }
}

impl Limits {
    /// The wall-clock limit, once all limits are found usable.
    ///
    /// # Errors
    ///
    /// - a limit is 0, or the wall-clock limit is no number above 0 and at most a day
    pub(super) fn checked_wall(&self) -> Result<Duration, SandboxError> {
        const DAY: f64 = 86_400.0;
        let bad = |field, reason| Err(SandboxError::BadLimit { field, reason });
        if !(self.wall_secs > 0.0 && self.wall_secs <= DAY) {
            let reason = format!("is {}; give seconds above 0, at most {DAY}", self.wall_secs);
            return bad("wall_secs", reason);
        }
        let counts = [
            ("cpu_secs", self.cpu_secs),
            ("memory_bytes", self.memory_bytes),
            ("file_bytes", self.file_bytes),
            ("disk_bytes", self.disk_bytes),
            ("n_open_files", self.n_open_files),
            ("output_bytes", self.output_bytes),
        ];
        match counts.iter().find(|(_, limit)| *limit == 0) {
            Some((field, _)) => bad(field, "is 0; give at least 1".to_owned()),
            None => Ok(Duration::from_secs_f64(self.wall_secs)),
        }
    }
}
