//! The connections of one rank: a reader thread and a bounded inbox per peer, and the state that all
//! threads share.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Settings;
use crate::beat::Beat;
use crate::budgets::{FRAME_BYTES, INBOX_BYTES, TEXT_BYTES};
use crate::channel::{self, Frame, FrameError, Kind};
use crate::error::{RanksError, Result};
pub(crate) use crate::writer::{Link, POLL, Stopped};

/// How long a failed write waits for the reader thread, which may know the reason.
const REASON_WAIT: Duration = Duration::from_secs(2);

/// All connections and their state.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: usize,
    pub(crate) settings: Settings,
    pub(crate) links: Vec<Link>,
    pub(crate) started: Instant,
    state: Mutex<State>,
    /// Notified when a frame arrives or the state changes.
    arrived: Condvar,
    /// Notified when an inbox has room again.
    space: Condvar,
    /// Notified when the run fails or closes, for the beat thread.
    over: Condvar,
}

/// The state that changes during a run.
#[derive(Debug)]
pub(crate) struct State {
    /// The first error; all later calls return it.
    pub(crate) failure: Option<RanksError>,
    /// Whether this rank is closing its connections.
    pub(crate) is_closing: bool,
    /// Whether this rank is the leader.
    is_leader: bool,
    /// This rank's own beat.
    pub(crate) own: Beat,
    /// The call of this rank that waits, if any.
    pub(crate) waiting: Option<Waiting>,
    /// In the order of [`Shared::links`].
    pub(crate) peers: Vec<Peer>,
}

/// A call that waits for a frame.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The peers of which any may send it.
    pub(crate) among: Vec<usize>,
    pub(crate) expected: Kind,
    pub(crate) since: Instant,
}

/// The state of another rank, as seen from this one.
#[derive(Debug)]
pub(crate) struct Peer {
    inbox: VecDeque<Frame>,
    inbox_bytes: usize,
    /// Whether the reader thread waits for room in the inbox, so that silence proves nothing.
    pub(crate) is_held_back: bool,
    pub(crate) beat: Beat,
    /// The last time at which the peer made progress or waited for this rank.
    pub(crate) moved: Instant,
    /// Since when the peer waits without progress.
    pub(crate) waits_since: Option<Instant>,
    /// Whether the peer has said goodbye.
    pub(crate) has_ended: bool,
    /// Whether the connection is closed.
    is_closed: bool,
}

impl Shared {
    /// Takes over connected streams: one per other rank, with its rank and host.
    pub(crate) fn new(
        rank: usize,
        settings: Settings,
        streams: Vec<(usize, String, TcpStream)>,
    ) -> Result<Self> {
        let now = Instant::now();
        let connect = |(rank, host, stream): (usize, String, TcpStream)| {
            let name = host.clone();
            Link::new(rank, host, stream).map_err(|error| RanksError::Lost {
                rank,
                host: name,
                phase: "meeting".to_owned(),
                reason: error.to_string(),
            })
        };
        let links: Vec<Link> = streams.into_iter().map(connect).collect::<Result<_>>()?;
        let peers = links.iter().map(|_| Peer {
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            is_held_back: false,
            beat: Beat::default(),
            moved: now,
            waits_since: None,
            has_ended: false,
            is_closed: false,
        });
        let state = State {
            failure: None,
            is_closing: false,
            is_leader: rank == 0,
            own: Beat::default(),
            waiting: None,
            peers: peers.collect(),
        };
        Ok(Self {
            rank,
            settings,
            links,
            started: now,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            space: Condvar::new(),
            over: Condvar::new(),
        })
    }

    /// The state. A thread that panicked while it held the lock leaves a usable state, because each
    /// change is a single assignment.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changes, at most `at_most`.
    pub(crate) fn wait<'s>(
        &self,
        state: MutexGuard<'s, State>,
        at_most: Duration,
    ) -> MutexGuard<'s, State> {
        let waited = self.arrived.wait_timeout(state, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the run fails or closes, at most `at_most`.
    pub(crate) fn wait_for_end(&self, state: MutexGuard<'_, State>, at_most: Duration) {
        drop(self.over.wait_timeout(state, at_most));
    }

    /// Wakes every thread that waits.
    pub(crate) fn notify(&self) {
        self.arrived.notify_all();
        self.space.notify_all();
        self.over.notify_all();
    }

    /// Records an error, unless there is an earlier one. Returns the one that counts.
    pub(crate) fn fail(&self, error: RanksError) -> RanksError {
        let first = self.state().failure.get_or_insert(error).clone();
        self.notify();
        first
    }

    /// # Errors
    ///
    /// The run has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.state().failure.clone().map_or(Ok(()), Err)
    }

    /// Milliseconds from [`started`](Self::started) to `now`.
    pub(crate) fn ms_at(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.started);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Sends one frame, waiting as long as the other side is alive.
    ///
    /// # Errors
    ///
    /// The run has failed, or the connection breaks.
    pub(crate) fn send(&self, idx: usize, kind: Kind, has_more: bool, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let link = &self.links[idx];
        match link.send(kind, has_more, bytes, || self.check().is_ok()) {
            Ok(()) => Ok(()),
            Err(Stopped::Early) => self.check(),
            Err(Stopped::Io(error)) => Err(self.reason_of(idx, &error)),
        }
    }

    /// The reason why writing failed. The peer may have sent its error before it closed.
    fn reason_of(&self, idx: usize, error: &io::Error) -> RanksError {
        let deadline = Instant::now() + REASON_WAIT;
        let mut state = self.state();
        loop {
            if let Some(failure) = &state.failure {
                return failure.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.peers[idx].is_closed {
                break;
            }
            state = self.wait(state, left);
        }
        drop(state);
        self.fail(self.lost(idx, error.to_string()))
    }

    fn lost(&self, idx: usize, reason: String) -> RanksError {
        let (rank, host, phase) = self.describe(idx);
        RanksError::Lost {
            rank,
            host,
            phase,
            reason,
        }
    }

    /// Rank, host and last phase of a peer, for errors.
    pub(crate) fn describe(&self, idx: usize) -> (usize, String, String) {
        let link = &self.links[idx];
        let phase = self.state().peers[idx].beat.phase_name().to_owned();
        (link.rank, link.host.clone(), phase)
    }

    /// Takes the next frame from a peer, waiting as long as the peer is alive.
    ///
    /// # Errors
    ///
    /// - The run has failed.
    /// - The frame is of another kind than expected, or the peer has ended.
    pub(crate) fn receive(&self, idx: usize, expected: Kind) -> Result<Frame> {
        self.receive_any(&[idx], expected).map(|(_, frame)| frame)
    }

    /// Takes the next frame from the first of these peers that has one.
    ///
    /// # Errors
    ///
    /// As for [`receive`](Self::receive).
    pub(crate) fn receive_any(&self, among: &[usize], expected: Kind) -> Result<(usize, Frame)> {
        let mut state = self.state();
        state.own.is_waiting = true;
        state.waiting = Some(Waiting {
            among: among.to_vec(),
            expected,
            since: Instant::now(),
        });
        let result = loop {
            match self.take(&mut state, among, expected) {
                Err(error) => break Err(error),
                Ok(Some(taken)) => break Ok(taken),
                Ok(None) => {}
            }
            state = self.wait(state, POLL);
        };
        state.waiting = None;
        state.own.is_waiting = false;
        state.own.progress = state.own.progress.wrapping_add(1);
        drop(state);
        result.map_err(|error| self.fail(error))
    }

    /// Takes the next frame from one of these peers without waiting.
    ///
    /// # Errors
    ///
    /// As for [`receive`](Self::receive).
    pub(crate) fn try_receive_any(
        &self,
        among: &[usize],
        expected: Kind,
    ) -> Result<Option<(usize, Frame)>> {
        let taken = self.take(&mut self.state(), among, expected);
        taken.map_err(|error| self.fail(error))
    }

    fn take(
        &self,
        state: &mut State,
        among: &[usize],
        expected: Kind,
    ) -> Result<Option<(usize, Frame)>> {
        let failed = state.failure.clone();
        let mut n_ended = 0;
        for &idx in among {
            let peer = &mut state.peers[idx];
            // Data that a rank sent before it ended may explain its end.
            if let Some(failure) = &failed
                && failure.ended_rank() != Some(self.links[idx].rank)
            {
                return Err(failure.clone());
            }
            let Some(frame) = peer.inbox.pop_front() else {
                n_ended += usize::from(peer.has_ended);
                continue;
            };
            peer.inbox_bytes -= frame.bytes.len();
            if peer.is_held_back {
                self.space.notify_all();
            }
            if frame.kind != expected {
                return Err(self.out_of_step(idx, expected, frame.kind.name()));
            }
            return Ok(Some((idx, frame)));
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        match among.first() {
            // Others may still send, unless all have ended.
            Some(idx) if n_ended == among.len() => {
                Err(self.out_of_step(*idx, expected, Kind::Bye.name()))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn out_of_step(&self, idx: usize, expected: Kind, found: &str) -> RanksError {
        RanksError::OutOfStep {
            rank: self.links[idx].rank,
            host: self.links[idx].host.clone(),
            expected: expected.name().to_owned(),
            found: found.to_owned(),
        }
    }

    /// Reads frames of one peer until the connection closes. Runs in its own thread.
    pub(crate) fn read_all(&self, idx: usize) {
        let link = &self.links[idx];
        let mut reader = BufReader::with_capacity(64 << 10, Heard { shared: self, link });
        let end = loop {
            match channel::read(&mut reader, FRAME_BYTES) {
                Ok(frame) => {
                    if let Err(error) = self.arrive(idx, frame) {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        let mut state = self.state();
        let peer = &mut state.peers[idx];
        peer.is_closed = true;
        let is_expected = peer.has_ended || state.is_closing;
        drop(state);
        match end {
            _ if is_expected => {}
            FrameError::Closed | FrameError::Truncated | FrameError::Io { .. } => {
                self.fail(self.lost(idx, end.to_string()));
            }
            source => {
                self.fail(RanksError::Malformed {
                    rank: link.rank,
                    host: link.host.clone(),
                    source,
                });
            }
        }
        self.notify();
    }

    fn arrive(&self, idx: usize, frame: Frame) -> std::result::Result<(), FrameError> {
        let link = &self.links[idx];
        match frame.kind {
            Kind::Beat => {
                let beat = Beat::from_bytes(&frame.bytes).ok_or(FrameError::Content("a beat"))?;
                self.state().beat_arrived(idx, beat);
                Ok(())
            }
            Kind::Warning => {
                let (rank, host) = (link.rank, &link.host);
                tracing::warn!("rank {rank} on {host}: {}", text(&frame.bytes));
                Ok(())
            }
            Kind::Failed => {
                let (rank, host) = (link.rank, link.host.clone());
                let Some((status, message)) = frame.bytes.split_first() else {
                    return Err(FrameError::Content("an error"));
                };
                self.fail(RanksError::Ended {
                    rank,
                    host,
                    message: text(message),
                    status: (*status > 0).then_some(*status),
                });
                Ok(())
            }
            Kind::Bye => {
                self.state().peers[idx].has_ended = true;
                self.notify();
                Ok(())
            }
            Kind::Order | Kind::Gather | Kind::Broadcast | Kind::Sums | Kind::Direct => {
                self.put(idx, frame);
                Ok(())
            }
            Kind::Challenge | Kind::Hello | Kind::Refused | Kind::Welcome | Kind::Begin => {
                Err(FrameError::Content("a frame of the meeting"))
            }
        }
    }

    /// Puts a frame into the inbox, waiting for room. After a failure, frames are discarded, so that
    /// the peer is not blocked while it sends.
    fn put(&self, idx: usize, frame: Frame) {
        let mut state = self.state();
        loop {
            let is_over = state.failure.is_some() || state.is_closing;
            let peer = &mut state.peers[idx];
            if is_over {
                break;
            }
            if peer.inbox.is_empty() || peer.inbox_bytes + frame.bytes.len() <= INBOX_BYTES {
                peer.inbox_bytes += frame.bytes.len();
                peer.inbox.push_back(frame);
                break;
            }
            peer.is_held_back = true;
            let waited = self.space.wait_timeout(state, POLL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let peer = &mut state.peers[idx];
        if peer.is_held_back {
            peer.is_held_back = false;
            peer.moved = Instant::now();
        }
        drop(state);
        self.links[idx].set_heard_ms(self.ms_at(Instant::now()));
        self.arrived.notify_all();
    }
}

impl State {
    fn beat_arrived(&mut self, idx: usize, beat: Beat) {
        let now = Instant::now();
        let peer = &mut self.peers[idx];
        let has_moved = beat.progress != peer.beat.progress || beat.phase != peer.beat.phase;
        if has_moved || beat.is_waiting {
            peer.moved = now;
        }
        peer.waits_since = match peer.waits_since {
            _ if !beat.is_waiting => None,
            Some(since) if !has_moved => Some(since),
            _ => Some(now),
        };
        let counts_for_us = has_moved && !beat.is_waiting;
        peer.beat = beat;
        // A leader that waits makes the progress of those it waits for. Followers must not: two
        // ranks that wait for each other would keep each other alive.
        if counts_for_us && self.own.is_waiting && self.is_leader {
            self.own.progress = self.own.progress.wrapping_add(1);
        }
    }
}

impl Peer {
    /// Whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

/// Notes the time of each read.
struct Heard<'s> {
    shared: &'s Shared,
    link: &'s Link,
}

impl Read for Heard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.link.read(buffer)?;
        self.link.set_heard_ms(self.shared.ms_at(Instant::now()));
        Ok(n)
    }
}

/// A message of another rank for a log or an error: bounded, and without control characters that
/// could change a terminal.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(TEXT_BYTES)];
    let clean = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
    String::from_utf8_lossy(bytes).chars().map(clean).collect()
}

/// Runs a reader thread for each peer.
///
/// # Errors
///
/// A thread cannot start.
pub(crate) fn start_readers(shared: &Arc<Shared>) -> Result<Vec<std::thread::JoinHandle<()>>> {
    let start = |idx: usize| {
        let own = shared.clone();
        let name = format!("rank-{}", shared.links[idx].rank);
        let thread = std::thread::Builder::new().name(name);
        thread
            .spawn(move || own.read_all(idx))
            .map_err(|error| RanksError::Thread {
                reason: error.to_string(),
            })
    };
    (0..shared.links.len()).map(start).collect()
}
