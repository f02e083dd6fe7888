//! The running connections of a rank: its threads, and how they end.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Settings;
use crate::all_reduce::AllReduce;
use crate::beat::{self, OnFailure};
use crate::budgets::TEXT_BYTES;
use crate::channel::Kind;
use crate::error::{RanksError, Result};
use crate::link::{self, POLL, Shared};

/// How long a leader that failed waits for its followers to read its error.
const LINGER: Duration = Duration::from_secs(2);

/// How long it waits for them to end what adds their gradients: they may be inside a block.
const LINGER_TO_END: Duration = Duration::from_secs(10);

/// How much later a rank ends after another one's error, so that a launcher notices the cause first:
/// all end with the same exit status.
const CAUSE_FIRST: Duration = Duration::from_millis(500);

/// The connections of a rank with their threads.
pub(crate) struct Connected {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    on_failure: Arc<Mutex<Option<OnFailure>>>,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").finish_non_exhaustive()
    }
}

impl Connected {
    /// Starts the threads for authenticated streams: rank, host and stream of each.
    pub(crate) fn start(
        rank: usize,
        streams: Vec<(usize, String, TcpStream)>,
        settings: Settings,
    ) -> Result<Self> {
        let shared = Shared::new(rank, settings, streams)?;
        let shared = Arc::new(shared);
        let on_failure = Arc::new(Mutex::new(None));
        let mut connected = Connected {
            shared: shared.clone(),
            threads: link::start_readers(&shared)?,
            on_failure: on_failure.clone(),
        };
        let thread = std::thread::Builder::new().name("beat".to_owned());
        let beats = thread.spawn(move || beat::run(&shared, &on_failure));
        connected
            .threads
            .push(beats.map_err(|error| RanksError::Thread {
                reason: error.to_string(),
            })?);
        Ok(connected)
    }

    /// The connections and their state.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sets the callback for the failure of the run.
    pub(crate) fn set_hook(&self, hook: OnFailure) {
        if let Ok(mut current) = self.on_failure.lock() {
            *current = Some(hook);
        }
    }

    /// Ends in order: waits until all peers end as well.
    ///
    /// # Errors
    ///
    /// The run has failed, or a rank does not end within `step_seconds`.
    pub(crate) fn end(self, all_reduce: Option<Box<dyn AllReduce>>) -> Result<()> {
        if let Some(by) = all_reduce {
            let is_running = || self.shared.check().is_ok();
            // Everything has been added.
            if let Err(reason) = by.end(&is_running) {
                tracing::debug!("{reason}");
            }
        }
        let result = say_goodbye(&self.shared);
        if let Err(error) = &result {
            beat::announce(&self.shared, &error.to_string(), error.status());
        }
        self.close();
        result
    }

    /// Sends the error, waits shortly until the others have read it, and closes.
    pub(crate) fn fail(
        self,
        message: &str,
        status: Option<u8>,
        all_reduce: Option<Box<dyn AllReduce>>,
    ) {
        let shared = &self.shared;
        // Others repeat this rank's own error to it later.
        let is_told = shared.check().is_err_and(|error| error.status().is_some());
        let message = &message[..message.floor_char_boundary(TEXT_BYTES)];
        // Readers discard from now on, so that no peer is blocked while it sends.
        shared.state().is_closing = true;
        shared.notify();
        beat::announce(shared, message, status);
        let linger = match shared.rank {
            0 => LINGER,
            _ => Duration::from_secs(shared.settings.linger_seconds),
        };
        // Without a status, a rank may be lost, and this would hang.
        if let Some(by) = all_reduce.filter(|_| status.is_some()) {
            // A launcher of MPI kills all ranks when one ends without this. The leader comes here
            // after it has saved.
            let deadline = Instant::now() + linger.max(LINGER_TO_END);
            let all_closed = || shared.state().peers.iter().all(link::Peer::is_closed);
            let ended = by.end(&|| Instant::now() < deadline && !all_closed());
            if let Err(reason) = ended {
                tracing::debug!("{reason}");
            }
        }
        for link in &shared.links {
            link.close_writing();
        }
        // Closing a connection with unread data would delete what the other side has not read yet.
        let deadline = Instant::now() + linger;
        let mut state = shared.state();
        while Instant::now() < deadline && !state.peers.iter().all(link::Peer::is_closed) {
            state = shared.wait(state, POLL);
        }
        drop(state);
        if is_told {
            std::thread::sleep(CAUSE_FIRST);
        } else if shared.rank > 0 && linger > LINGER && status.is_none() {
            // The leader still prints its error. Its launcher ends this process with it.
            std::thread::sleep(LINGER * 2);
        }
        self.close();
    }

    /// Closes all connections and joins the threads.
    fn close(self) {
        self.shared.state().is_closing = true;
        self.shared.notify();
        for link in &self.shared.links {
            link.close();
        }
        for thread in self.threads {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

/// Sends goodbye and waits until all peers have sent theirs.
fn say_goodbye(shared: &Shared) -> Result<()> {
    for idx in 0..shared.links.len() {
        shared.send(idx, Kind::Bye, false, &[])?;
    }
    let began = Instant::now();
    let limit = Duration::from_secs(shared.settings.step_seconds);
    let mut state = shared.state();
    state.own.is_waiting = true;
    loop {
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let Some(idx) = state.peers.iter().position(|peer| !peer.has_ended) else {
            return Ok(());
        };
        if began.elapsed() > limit {
            drop(state);
            let (rank, host, phase) = shared.describe(idx);
            return Err(shared.fail(RanksError::Stalled {
                rank,
                host,
                phase,
                seconds: limit.as_secs(),
            }));
        }
        state = shared.wait(state, POLL);
    }
}
