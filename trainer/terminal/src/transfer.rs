//! Progress of downloads from the hub and uploads to it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tooltune_hub::Event;
use tooltune_json::printable;

use crate::bar::{Bar, print};
use crate::text::count_noun;
use crate::{LINE_EVERY, SHOWN_AFTER};

/// Progress of files transferred from or to the hub. Several threads may report it.
#[derive(Debug)]
pub struct Fetching {
    what: String,
    state: Mutex<Transfer>,
}

/// State of a transfer.
#[derive(Debug)]
struct Transfer {
    n_files: usize,
    bytes: u64,
    done: u64,
    started: Instant,
    last_line: Instant,
    bar: Option<Bar>,
}

impl Fetching {
    /// Starts the progress of a transfer, which `what` describes.
    pub fn begin(what: String) -> Self {
        let now = Instant::now();
        let state = Mutex::new(Transfer {
            n_files: 0,
            bytes: 0,
            done: 0,
            started: now,
            last_line: now,
            bar: None,
        });
        Self { what, state }
    }

    /// Shows an event.
    pub fn show_event(&self, event: Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Begun { bytes, n_files } => {
                state.bytes = state.bytes.saturating_add(bytes);
                state.n_files += n_files;
            }
            Event::Bytes(n) => state.done = state.done.saturating_add(n),
            Event::Lost(n) => state.done = state.done.saturating_sub(n),
            Event::Waiting { seconds, why } => {
                let what = &self.what;
                print(&format!("{what}: {why}; retrying in {seconds} s"));
            }
        }
        let (done, bytes) = (state.done, state.bytes);
        if state.bar.is_none() && bytes > 0 && state.started.elapsed() >= SHOWN_AFTER {
            let template = "{prefix} {bar:20} {bytes}/{total_bytes} {bytes_per_sec}  eta {eta}";
            state.bar = Bar::begin(bytes, template);
            if let Some(bar) = &state.bar {
                bar.set_prefix(printable::line(&self.what).into_owned());
            }
        }
        match &state.bar {
            Some(bar) => {
                bar.set_length(bytes);
                bar.set_position(done);
            }
            None if state.last_line.elapsed() >= LINE_EVERY => {
                state.last_line = Instant::now();
                let [done, bytes] = [done, bytes].map(|n| n as f64 / 1e6);
                print(&format!("{}: {done:.0} of {bytes:.0} MB", self.what));
            }
            None => {}
        }
    }

    /// Describes the finished transfer; `None` if no file was transferred.
    pub fn summary(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (n, megabytes) = (state.n_files, state.bytes as f64 / 1e6);
        (n > 0).then(|| format!("{}, {megabytes:.1} MB", count_noun(n, "file")))
    }
}
