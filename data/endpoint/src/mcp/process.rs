//! Runs the process of a server: exchanges lines with it, and ends it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::budgets::MCP_UNREAD_MESSAGES;

use super::descendants::Descendants;
use super::error::McpError;
use crate::http::{Redactor, excerpt};

/// Time for a server to end by itself after its input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// How often an ending server is checked.
const TICK: Duration = Duration::from_millis(20);

/// Number of bytes that are kept from the end of standard error.
const STDERR_BYTES: usize = 4096;

/// Number of lines that wait to be processed, each up to the size limit. While the queue is full,
/// the server's output is not read.
const QUEUED_LINES: usize = 1;

/// A line from a server.
#[derive(Debug)]
pub(super) enum Line {
    /// A line without its line feed.
    Text(Vec<u8>),
    /// A line that exceeds the limit; its bytes are discarded.
    TooLong,
    /// There are no more lines.
    End,
}

/// A process that runs until this value is dropped.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    /// `None` once the input is closed.
    input: Option<SyncSender<Vec<u8>>>,
    lines: Receiver<Line>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    /// Reads standard error to its end.
    stderr_reader: JoinHandle<()>,
    has_ended: bool,
    /// The processes it started, including those that left its process group.
    descendants: Descendants,
}

impl ServerProcess {
    /// Starts a process whose lines have at most `max_line_bytes`.
    ///
    /// # Errors
    ///
    /// The system cannot start it.
    pub(super) fn start(mut command: Command, max_line_bytes: usize) -> io::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Use a separate group, so that the processes it starts can be ended with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let descendants = Descendants::mark(&mut command);
        let mut child = command.spawn()?;
        let without = || io::Error::other("the process has no pipes");
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (input, to_write) = sync_channel(MCP_UNREAD_MESSAGES);
        let (line_sender, lines) = sync_channel(QUEUED_LINES);
        let stderr_bytes = Arc::default();
        write_lines(stdin.ok_or_else(without)?, to_write);
        read_lines(stdout.ok_or_else(without)?, max_line_bytes, line_sender);
        let stderr_reader = keep_last_bytes(stderr.ok_or_else(without)?, Arc::clone(&stderr_bytes));
        Ok(Self {
            stderr_reader,
            child,
            input: Some(input),
            lines,
            stderr: stderr_bytes,
            has_ended: false,
            descendants,
        })
    }

    /// Sends a line. Lines to an ended server are dropped; reading reports its end.
    ///
    /// # Errors
    ///
    /// The server has left [`MCP_UNREAD_MESSAGES`] unread.
    pub(super) fn send(&self, mut line: Vec<u8>) -> Result<(), McpError> {
        line.push(b'\n');
        let result = self.input.as_ref().map(|input| input.try_send(line));
        match result {
            Some(Err(TrySendError::Full(_))) => Err(McpError::BadMessage {
                reason: format!(
                    "sends requests but does not read its standard input: {MCP_UNREAD_MESSAGES} \
                     messages are waiting (MCP_UNREAD_MESSAGES in docs/limits.md)"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// The next line, if one arrives within `time`.
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

    /// Whether no further lines will arrive.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The end of its standard error without secrets, formatted as the end of a message: `; its
    /// standard error ends with: ...`.
    pub(super) fn stderr_excerpt(&self, redactor: &Redactor) -> String {
        let stderr_bytes = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes: Vec<u8> = stderr_bytes.iter().copied().collect();
        if bytes.len() == STDERR_BYTES {
            // The first word may be the end of a truncated secret.
            let n_first = bytes.iter().position(u8::is_ascii_whitespace);
            bytes.drain(..n_first.unwrap_or(bytes.len()));
        }
        let text = redactor.redact(String::from_utf8_lossy(&bytes).into_owned());
        // Programs print the cause of their failure last.
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let last = lines.iter().rev().take(2).rev();
        let last: Vec<&str> = last.copied().collect();
        match excerpt(&last.join(" ")) {
            stderr_bytes if stderr_bytes.is_empty() => String::new(),
            stderr_bytes => format!("; its standard error ends with: {stderr_bytes}"),
        }
    }

    /// The error for a server that has ended, with its status.
    pub(super) fn end_error(&mut self, redactor: &Redactor) -> McpError {
        self.finish();
        let deadline = Instant::now() + GRACE;
        while !self.stderr_reader.is_finished() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        let status = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "its output was closed".to_owned(),
        };
        McpError::Ended {
            status,
            stderr: self.stderr_excerpt(redactor),
        }
    }

    /// Closes the input, waits briefly for the end, and kills the rest of the group.
    fn finish(&mut self) {
        self.descendants.record(self.child.id());
        self.input = None;
        let deadline = Instant::now() + GRACE;
        while !self.is_gone() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        self.kill();
        self.descendants.end().report_once();
        // A killed process is reaped at once; one that cannot be killed is not waited for.
        drop(self.child.try_wait());
        let collected = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < collected {
            thread::sleep(TICK);
        }
    }

    /// Whether the process has ended. It is not reaped, so its ID still identifies its group.
    #[cfg(unix)]
    fn is_gone(&self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(pid) = self.pid() else {
            return true;
        };
        // An error means that there is nothing to wait for.
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
            // An empty group is not an error.
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
        // A reaped process no longer has a group.
        if matches!(self.child.try_wait(), Ok(Some(_))) && self.input.is_none() {
            self.descendants.end().report_once();
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
            let is_too_long = matches!(line, Line::TooLong);
            if lines.send(line).is_err() {
                return;
            }
            // Report the line before reading the rest of it, because the line may never end.
            if is_too_long && output.skip_until(b'\n').is_err() {
                break;
            }
        }
        drop(lines.send(Line::End));
    });
}

/// A line without its line feed; `None` at the end. After [`Line::TooLong`] the rest of the line is
/// still unread.
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
    Ok(Some(Line::TooLong))
}

/// Reads to the end, so that the process never blocks, and keeps the last bytes.
fn keep_last_bytes(
    mut error: ChildStderr,
    stderr_bytes: Arc<Mutex<VecDeque<u8>>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match error.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => {
                    let mut stderr_bytes =
                        stderr_bytes.lock().unwrap_or_else(PoisonError::into_inner);
                    stderr_bytes.extend(buffer.iter().take(n));
                    let n_over = stderr_bytes.len().saturating_sub(STDERR_BYTES);
                    stderr_bytes.drain(..n_over);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}
