//! Signs of life: each rank sends a beat with its phase and progress, and watches those of others.
//!
//! The leader watches all followers, and a follower watches the leader. A rank that sends nothing is
//! silent. A rank that sends beats without progress stalls, unless it waits for another rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::Kind;
use crate::error::RanksError;
use crate::link::{Shared, State};

/// Time between two beats.
const INTERVAL: Duration = Duration::from_secs(2);

/// How often the thread looks at the state.
const TICK: Duration = Duration::from_millis(250);

/// A longer time between two ticks means that this process itself was stopped.
const OWN_PAUSE: Duration = Duration::from_secs(3);

/// Fewer seconds of silence or without progress prove nothing: three beats.
const SHORTEST_SECONDS: u64 = 6;

/// Time for sending an error to all peers together.
const ANNOUNCE: Duration = Duration::from_secs(3);

/// Maximum bytes of a phase name.
pub(crate) const PHASE_BYTES: usize = 64;

/// The state of a rank, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    /// Increases with everything that gets done.
    pub(crate) progress: u64,
    /// Whether the rank waits for another one.
    pub(crate) is_waiting: bool,
    /// Name of the phase; empty before the first.
    pub(crate) phase: String,
}

impl Beat {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.progress.to_le_bytes().to_vec();
        bytes.push(u8::from(self.is_waiting));
        bytes.extend_from_slice(self.phase.as_bytes());
        bytes
    }

    /// `None` if the bytes are not a beat.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (progress, rest) = bytes.split_first_chunk()?;
        let (flag, phase) = rest.split_first()?;
        if *flag > 1 || phase.len() > PHASE_BYTES {
            return None;
        }
        let phase = std::str::from_utf8(phase).ok()?;
        Some(Self {
            progress: u64::from_le_bytes(*progress),
            is_waiting: *flag == 1,
            phase: phase
                .chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect(),
        })
    }

    /// The phase for error messages.
    pub(crate) fn phase_name(&self) -> &str {
        if self.phase.is_empty() {
            "start"
        } else {
            &self.phase
        }
    }
}

/// Reports the phase and progress of this rank, from any thread.
///
/// Every call of [`Ranks`](crate::Ranks) counts as progress. Work between two calls that may take
/// longer than [`Settings::step_seconds`](crate::Settings::step_seconds) must report its progress
/// itself, such as loading a model or an evaluation that only the leader runs.
#[derive(Debug, Clone)]
pub struct Pulse(pub(crate) Option<Arc<Shared>>);

impl Pulse {
    /// Starts a phase, such as "step 12" or "loading weights". Names are cut at 64 bytes.
    pub fn phase(&self, name: &str) {
        if let Some(shared) = &self.0 {
            let mut state = shared.state();
            state.own.phase = name[..name.floor_char_boundary(PHASE_BYTES)].to_owned();
            state.own.progress = state.own.progress.wrapping_add(1);
            let bytes = state.own.to_bytes();
            drop(state);
            // At once, so that the error about a rank that is lost names its last phase. The leader
            // has too many connections for that; its phase goes out with the next beat.
            if let [leader] = &shared.links[..] {
                leader.send_at_once(Kind::Beat, &bytes);
            }
        }
    }

    /// Reports that this rank has done something.
    pub fn progress(&self) {
        if let Some(shared) = &self.0 {
            let mut state = shared.state();
            state.own.progress = state.own.progress.wrapping_add(1);
        }
    }

    /// # Errors
    ///
    /// The run has failed: another rank was lost, is silent, or has ended. Long work between two
    /// calls of [`Ranks`](crate::Ranks) can look here to end early.
    pub fn check(&self) -> crate::Result<()> {
        self.0.as_ref().map_or(Ok(()), |shared| shared.check())
    }
}

/// A callback for the failure of the run.
pub(crate) type OnFailure = Box<dyn FnOnce(&RanksError) + Send>;

/// Sends beats and watches the peers until this rank closes. Runs in its own thread.
pub(crate) fn run(shared: &Shared, on_failure: &std::sync::Mutex<Option<OnFailure>>) {
    // Not the current time: this process may have been stopped before this thread began.
    let mut last_tick = shared.started;
    let mut last_beat: Option<Instant> = None;
    let mut is_announced = false;
    loop {
        let mut state = shared.state();
        if state.is_closing {
            return;
        }
        let now = Instant::now();
        if now.duration_since(last_tick) > OWN_PAUSE {
            forgive_all(shared, &mut state, now);
        }
        last_tick = now;
        let failure = state.failure.clone();
        if let Some(failure) = failure.filter(|_| !is_announced) {
            drop(state);
            is_announced = true;
            announce(shared, &failure.to_string(), failure.status());
            let hook = on_failure.lock().ok().and_then(|mut hook| hook.take());
            if let Some(hook) = hook {
                // In a thread that is not joined, because it may wait before it ends the process.
                let thread = std::thread::Builder::new().name("on-failure".to_owned());
                let started = thread.spawn(move || hook(&failure));
                if let Err(error) = started {
                    tracing::warn!("cannot start a thread after a failure: {error}");
                }
            }
            continue;
        }
        let bytes = state.own.to_bytes();
        if let Some(failure) = watch(shared, &state, now).filter(|_| !is_announced) {
            drop(state);
            shared.fail(failure);
            continue;
        }
        shared.wait_for_end(state, TICK);
        if !is_announced && last_beat.is_none_or(|last| last.elapsed() >= INTERVAL) {
            last_beat = Some(Instant::now());
            for link in &shared.links {
                link.send_at_once(Kind::Beat, &bytes);
            }
        }
    }
}

/// This process was stopped, so the silence of others proves nothing.
fn forgive_all(shared: &Shared, state: &mut State, now: Instant) {
    let now_ms = shared.ms_at(now);
    for (link, peer) in shared.links.iter().zip(&mut state.peers) {
        link.set_heard_ms(now_ms);
        peer.moved = now;
        peer.waits_since = peer.waits_since.map(|_| now);
    }
    if let Some(waiting) = &mut state.waiting {
        waiting.since = now;
    }
}

/// The first peer that is silent, stalls, or waits for this rank while this rank waits for it.
///
/// Everything is compared with `now`, the time at which this process was surely not stopped.
fn watch(shared: &Shared, state: &State, now: Instant) -> Option<RanksError> {
    let now_ms = shared.ms_at(now);
    let seconds_since = |time: Instant| now.saturating_duration_since(time).as_secs();
    let [silence_seconds, step_seconds] = [
        shared.settings.silence_seconds,
        shared.settings.step_seconds,
    ]
    .map(|seconds| seconds.max(SHORTEST_SECONDS));
    for (link, peer) in shared.links.iter().zip(&state.peers) {
        if peer.has_ended || peer.is_held_back {
            continue;
        }
        let (rank, host) = (link.rank, link.host.clone());
        let phase = peer.beat.phase_name().to_owned();
        let silent_seconds = now_ms.saturating_sub(link.heard_ms()) / 1000;
        if silent_seconds > silence_seconds {
            return Some(RanksError::Silent {
                rank,
                host,
                phase,
                seconds: silent_seconds,
            });
        }
        let still_seconds = seconds_since(peer.moved);
        if still_seconds > step_seconds {
            return Some(RanksError::Stalled {
                rank,
                host,
                phase,
                seconds: still_seconds,
            });
        }
    }
    // The leader decides first; a follower only if the leader does not.
    let limit = step_seconds.saturating_mul(if shared.rank == 0 { 1 } else { 3 });
    let is_long = |since: Option<Instant>| since.is_some_and(|since| seconds_since(since) > limit);
    let waiting = state.waiting.as_ref()?;
    let waits_for_us = |idx: &usize| is_long(state.peers[*idx].waits_since);
    if is_long(Some(waiting.since)) && waiting.among.iter().all(waits_for_us) {
        let idx = *waiting.among.first()?;
        return Some(shared.out_of_step(idx, waiting.expected, "nothing, and waits"));
    }
    None
}

/// Sends an error to all peers, so that their errors name the cause. They end with `status`.
pub(crate) fn announce(shared: &Shared, message: &str, status: Option<u8>) {
    let deadline = Instant::now() + ANNOUNCE;
    let mut bytes = vec![status.unwrap_or(0)];
    bytes.extend_from_slice(message.as_bytes());
    for link in &shared.links {
        if Instant::now() < deadline {
            link.send_last(Kind::Failed, &bytes, deadline);
        } else {
            link.send_at_once(Kind::Failed, &bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_read_strictly() {
        let beat = Beat {
            progress: 7,
            is_waiting: true,
            phase: "step 3".to_owned(),
        };
        assert_eq!(Beat::from_bytes(&beat.to_bytes()), Some(beat.clone()));
        let bytes = beat.to_bytes();
        assert_eq!(Beat::from_bytes(&bytes[..8]), None);
        let mut flag = bytes.clone();
        flag[8] = 2;
        assert_eq!(Beat::from_bytes(&flag), None);
        let long = [&bytes[..], &[b'x'; PHASE_BYTES]].concat();
        assert_eq!(Beat::from_bytes(&long), None);
        let invalid = [&bytes[..], &[0xff]].concat();
        assert_eq!(Beat::from_bytes(&invalid), None);
        let escape = [&bytes[..], &[0x1b]].concat();
        assert_eq!(
            Beat::from_bytes(&escape).expect("a beat").phase_name(),
            "step 3?"
        );
    }
}
