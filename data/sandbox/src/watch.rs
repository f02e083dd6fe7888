//! Reads what a run printed from two pipes until a deadline, and says why it had to be stopped.

use std::fs::File;
use std::io::{self, Read};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Longer than killing a process and collecting it takes.
const GRACE: Duration = Duration::from_secs(5);

/// How often a run that is silent is looked after.
const TICK: Duration = Duration::from_millis(50);

/// What a run printed while it was watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// Why the run shall end, if it did not by itself.
    pub(super) stop: Option<Stop>,
}

/// Why a run was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    WallTime,
    Output,
    /// The caller ended the work.
    Caller,
}

struct Stream {
    pipe: File,
    bytes: Vec<u8>,
    is_open: bool,
}

/// Reads both pipes until they end, the deadline comes, one brings more than `limit` bytes, or the
/// caller sets `is_stopped`.
///
/// The guard holds both pipes as long as it lives, so they do not end before the run does.
pub(super) fn watch(
    pipes: [File; 2],
    deadline: Instant,
    limit: u64,
    is_stopped: &AtomicBool,
) -> io::Result<Watched> {
    let mut streams = pipes.map(|pipe| Stream {
        pipe,
        bytes: Vec::new(),
        is_open: true,
    });
    let stop = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if streams.iter().all(|stream| !stream.is_open) {
            break None;
        }
        if left.is_zero() {
            break Some(Stop::WallTime);
        }
        if is_stopped.load(Ordering::Relaxed) {
            break Some(Stop::Caller);
        }
        read_ready(&mut streams, left.min(TICK))?;
        if streams
            .iter()
            .any(|stream| stream.bytes.len() as u64 > limit)
        {
            break Some(Stop::Output);
        }
    };
    let [stdout, stderr] = streams.map(|mut stream| {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        stream.bytes.truncate(limit);
        stream.bytes
    });
    Ok(Watched {
        stdout,
        stderr,
        stop,
    })
}

/// Reads once from each stream that has something within `time`.
fn read_ready(streams: &mut [Stream; 2], time: Duration) -> io::Result<()> {
    // A pipe that has ended would be reported as hung up for ever.
    let open = streams.iter().filter(|stream| stream.is_open);
    let mut events: Vec<PollFd<'_>> = open
        .map(|stream| PollFd::new(&stream.pipe, PollFlags::IN))
        .collect();
    wait(&mut events, time)?;
    let ready: Vec<bool> = events
        .iter()
        .map(|event| !event.revents().is_empty())
        .collect();
    let open = streams.iter_mut().filter(|stream| stream.is_open);
    for (stream, _) in open.zip(ready).filter(|(_, ready)| *ready) {
        stream.is_open = read_some(&stream.pipe, &mut stream.bytes)?;
    }
    Ok(())
}

/// Whether an event came within `time`.
fn wait(events: &mut [PollFd<'_>], time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(events, Some(&time)) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether there may be more.
fn read_some(mut pipe: &File, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 1 << 16];
    match pipe.read(&mut buffer) {
        Ok(n) => {
            bytes.extend(buffer.iter().take(n));
            Ok(n > 0)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

/// Collects the guard, whose leash has been let go; one that does not end is killed with the
/// whole group, in which the program is.
pub(super) fn wait_for_guard(guard: &mut Child) -> io::Result<()> {
    let pid = i32::try_from(guard.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + GRACE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || wait(&mut [PollFd::new(&ended, PollFlags::IN)], left)? {
            break;
        }
    }
    // The guard is not collected yet, so that its number is still the group's.
    match kill_process_group(pid, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    guard.wait().map(|_| ())
}
