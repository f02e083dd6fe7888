//! Reads a run's output from two pipes until a deadline, and reports why the run had to be stopped.

use std::fs::File;
use std::io::{self, Read};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Longer than it takes to kill and reap a process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a run without output is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The output of a monitored run.
#[derive(Debug)]
pub(super) struct WatchedRun {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// Why the run must be stopped; `None` if it ended by itself.
    pub(super) stop: Option<StopReason>,
}

/// Why a run was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    WallTime,
    Output,
    /// The caller stopped the work.
    Caller,
}

struct Stream {
    pipe: File,
    bytes: Vec<u8>,
    is_open: bool,
}

/// Reads both pipes until they end, the deadline passes, one of them exceeds `limit` bytes, or the
/// caller sets `is_stopped`.
///
/// The guard keeps both pipes open while it lives, so they do not end before the run ends.
pub(super) fn watch(
    pipes: [File; 2],
    deadline: Instant,
    limit: u64,
    is_stopped: &AtomicBool,
) -> io::Result<WatchedRun> {
    let mut streams = pipes.map(|pipe| Stream {
        pipe,
        bytes: Vec::new(),
        is_open: true,
    });
    let stop = loop {
        let remaining_time = deadline.saturating_duration_since(Instant::now());
        if streams.iter().all(|stream| !stream.is_open) {
            break None;
        }
        if remaining_time.is_zero() {
            break Some(StopReason::WallTime);
        }
        if is_stopped.load(Ordering::Relaxed) {
            break Some(StopReason::Caller);
        }
        read_ready(&mut streams, remaining_time.min(CHECK_INTERVAL))?;
        if streams
            .iter()
            .any(|stream| stream.bytes.len() as u64 > limit)
        {
            break Some(StopReason::Output);
        }
    };
    let [stdout, stderr] = streams.map(|mut stream| {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        stream.bytes.truncate(limit);
        stream.bytes
    });
    Ok(WatchedRun {
        stdout,
        stderr,
        stop,
    })
}

/// Reads once from each stream that becomes readable within `time`.
fn read_ready(streams: &mut [Stream; 2], time: Duration) -> io::Result<()> {
    // A closed pipe would be reported as hung up forever.
    let open_streams = streams.iter().filter(|stream| stream.is_open);
    let mut events: Vec<PollFd<'_>> = open_streams
        .map(|stream| PollFd::new(&stream.pipe, PollFlags::IN))
        .collect();
    wait(&mut events, time)?;
    let ready: Vec<bool> = events
        .iter()
        .map(|event| !event.revents().is_empty())
        .collect();
    let open_streams = streams.iter_mut().filter(|stream| stream.is_open);
    for (stream, _) in open_streams.zip(ready).filter(|(_, ready)| *ready) {
        stream.is_open = read_some(&stream.pipe, &mut stream.bytes)?;
    }
    Ok(())
}

/// Whether an event occurred within `time`.
fn wait(events: &mut [PollFd<'_>], time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(events, Some(&time)) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads some bytes, and returns whether there may be more.
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

/// Reaps the guard, whose leash has been released. If it does not end, its whole process group,
/// which includes the program, is killed.
pub(super) fn wait_for_guard(guard: &mut Child) -> io::Result<()> {
    let pid = i32::try_from(guard.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("the process has no ID"))?;
    let pid_fd = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let remaining_time = deadline.saturating_duration_since(Instant::now());
        if remaining_time.is_zero()
            || wait(&mut [PollFd::new(&pid_fd, PollFlags::IN)], remaining_time)?
        {
            break;
        }
    }
    // The guard has not been reaped yet, so its ID still identifies the group.
    match kill_process_group(pid, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    guard.wait().map(|_| ())
}
