//! Resource limits of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SandboxError;

/// The limits of one run; each is enforced from outside the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Wall-clock seconds of the process, including the start of Python.
    pub wall_secs: f64,
    /// Seconds of processor time, summed over all threads.
    pub cpu_secs: u64,
    /// Bytes of address space. Python needs at least about 64 MiB to start.
    pub memory_bytes: u64,
    /// Maximum size of each file, in bytes.
    pub file_bytes: u64,
    /// Total size of all files, in bytes; enforced only with namespaces.
    pub disk_bytes: u64,
    /// Number of files open at the same time, including standard streams.
    pub n_open_files: u64,
    /// Number of threads in addition to the first. Enforced only with namespaces, and not for root;
    /// otherwise only the address space limits it.
    pub n_threads: u64,
    /// Maximum number of bytes for each of standard output and standard error, and for the result
    /// as text.
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
    /// Checks all limits and returns the wall-clock limit.
    ///
    /// # Errors
    ///
    /// A limit is 0, or the wall-clock limit is not above 0 and at most a day.
    pub(super) fn validated_wall(&self) -> Result<Duration, SandboxError> {
        const DAY: f64 = 86_400.0;
        let bad_limit = |field, reason| Err(SandboxError::BadLimit { field, reason });
        if !(self.wall_secs > 0.0 && self.wall_secs <= DAY) {
            let reason = format!(
                "is {}; give a number of seconds above 0 and at most {DAY}",
                self.wall_secs
            );
            return bad_limit("wall_secs", reason);
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
            Some((field, _)) => bad_limit(field, "is 0; give at least 1".to_owned()),
            None => Ok(Duration::from_secs_f64(self.wall_secs)),
        }
    }
}
