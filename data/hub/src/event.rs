//! Progress of downloads and uploads.

/// Progress of a download or an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// The total amount is known.
    Begun {
        /// Bytes of all files.
        bytes: u64,
        /// Number of files.
        n_files: usize,
    },
    /// This number of additional bytes is done.
    Bytes(u64),
    /// This number of bytes must be transferred again.
    Lost(u64),
    /// An attempt failed; the next one starts after a wait.
    Waiting {
        /// The wait.
        seconds: u64,
        /// What happened.
        why: &'a str,
    },
}

/// Receives progress events from several threads.
pub type Listener<'a> = &'a (dyn Fn(Event<'_>) + Sync);
