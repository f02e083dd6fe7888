//! A writer for tests, whose clones write to the same buffer.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer that all clones of the writer share.
#[derive(Clone, Default)]
pub(super) struct SharedWriter(Arc<Mutex<Vec<u8>>>);

impl SharedWriter {
    /// The text written so far.
    pub(super) fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for SharedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
