//! The program of a server, its lines, and its end.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::McpError;
use crate::http::excerpt;

/// How long a server may take to end by itself when its input has ended.
const GRACE: Duration = Duration::from_secs(2);

/// How often a server that is to end is looked after.
const TICK: Duration = Duration::from_millis(20);

/// Bytes of standard error that are kept, the last ones.
const SAID_BYTES: usize = 4096;

/// Messages that wait to be looked at; a server that sends more is not read meanwhile.
const WAITING: usize = 16;

/// What comes from a server.
#[derive(Debug)]
pub(super) enum Line {
    /// A line without its end.
    Text(Vec<u8>),
    /// A line of more bytes than the limit, which were not kept.
    TooLong,
    /// There are no more lines.
    End,
}

/// A program that runs until this is dropped.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    /// None once the input is to end.
    input: Option<Sender<Vec<u8>>>,
    lines: Receiver<Line>,
    said: Arc<Mutex<VecDeque<u8>>>,
    /// Reads what it says on standard error to the end.
    listening: JoinHandle<()>,
    has_ended: bool,
}

impl ServerProcess {
    /// Starts a program, whose lines have at most `max_line_bytes`.
    ///
    /// # Errors
    ///
    /// - the system does not start it
    pub(super) fn start(mut command: Command, max_line_bytes: usize) -> io::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A group of its own, so that what it starts can be ended with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let without = || io::Error::other("a process without its pipes");
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (input, to_write) = channel();
        let (read, lines) = sync_channel(WAITING);
        let said = Arc::default();
        write_lines(stdin.ok_or_else(without)?, to_write);
        read_lines(stdout.ok_or_else(without)?, max_line_bytes, read);
        let listening = keep_last(stderr.ok_or_else(without)?, Arc::clone(&said));
        Ok(Self {
            listening,
            child,
            input: Some(input),
            lines,
            said,
            has_ended: false,
        })
    }

    /// Sends a line; a server that has ended takes none, and says so when it is read.
    pub(super) fn send(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        if let Some(input) = &self.input {
            // The writer is gone where the pipe is broken, which reading tells.
            drop(input.send(line));
        }
    }

    /// The next line, if one comes within `time`.
    pub(super) fn line(&mut self, time: Duration) -> Option<Line> {
        if self.has_ended {
            return Some(Line::End);
        }
        match self.lines.recv_timeout(time) {
            Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => {
                self.has_ended = true;
                Some(Line::End)
            }
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// Whether there will be no more lines.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The end of what it printed on standard error, as a message goes on: `; it said: ...`.
    pub(super) fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = said.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // Programs say last what they died of.
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let last = lines.iter().rev().take(2).rev();
        let last: Vec<&str> = last.copied().collect();
        match excerpt(&last.join(" ")) {
            said if said.is_empty() => String::new(),
            said => format!("; it said: {said}"),
        }
    }

    /// The error that it has ended, with how.
    pub(super) fn ended(&mut self) -> McpError {
        self.finish();
        let deadline = Instant::now() + GRACE;
        while !self.listening.is_finished() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        let status = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "its output was closed".to_owned(),
        };
        McpError::Ended {
            status,
            said: self.said(),
        }
    }

    /// Closes the input, waits a little for the end, and ends what is left of the group.
    fn finish(&mut self) {
        self.input = None;
        let deadline = Instant::now() + GRACE;
        while !self.is_gone() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        self.kill();
        // What was killed is collected at once; whoever cannot be killed is not waited for.
        drop(self.child.try_wait());
        let collected = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < collected {
            thread::sleep(TICK);
        }
    }

    /// Whether the program has ended; it is not collected, so that its number stays its group's.
    #[cfg(unix)]
    fn is_gone(&self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(pid) = self.pid() else {
            return true;
        };
        // An error says that there is nothing to wait for.
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    #[cfg(unix)]
    fn pid(&self) -> Option<rustix::process::Pid> {
        let pid = i32::try_from(self.child.id()).ok();
        pid.and_then(rustix::process::Pid::from_raw)
    }

    #[cfg(unix)]
    fn kill(&self) {
        use rustix::process::{Signal, kill_process_group};
        if let Some(pid) = self.pid() {
            // A group without members is what is wanted.
            kill_process_group(pid, Signal::KILL).unwrap_or_default();
        }
    }

    #[cfg(not(unix))]
    fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    #[cfg(not(unix))]
    fn kill(&mut self) {
        drop(self.child.kill());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // One that was collected has no group any more.
        if matches!(self.child.try_wait(), Ok(Some(_))) && self.input.is_none() {
            return;
        }
        self.finish();
    }
}

fn write_lines(mut input: ChildStdin, lines: Receiver<Vec<u8>>) {
    thread::spawn(move || {
        for line in lines {
            if input.write_all(&line).and_then(|()| input.flush()).is_err() {
                break;
            }
        }
    });
}

fn read_lines(output: ChildStdout, max_line_bytes: usize, lines: SyncSender<Line>) {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        while let Ok(Some(line)) = bounded_line(&mut output, max_line_bytes) {
            if lines.send(line).is_err() {
                return;
            }
        }
        drop(lines.send(Line::End));
    });
}

/// A line without its end, or that it was too long; nothing at the end.
fn bounded_line(output: &mut impl BufRead, max_bytes: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let limit = u64::try_from(max_bytes)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let n_read = output.by_ref().take(limit).read_until(b'\n', &mut line)?;
    if n_read == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(Line::Text(line)));
    }
    if line.len() <= max_bytes {
        return Ok(Some(Line::Text(line)));
    }
    output.skip_until(b'\n')?;
    Ok(Some(Line::TooLong))
}

/// Reads to the end, so that the program never waits, and keeps the last bytes.
fn keep_last(mut error: ChildStderr, said: Arc<Mutex<VecDeque<u8>>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match error.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => {
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.extend(buffer.iter().take(n));
                    let n_over = said.len().saturating_sub(SAID_BYTES);
                    said.drain(..n_over);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}
