//! One connection: its writer, which the training thread and the beat thread share.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::channel::{self, Kind};

/// How often a blocked write looks for a failure.
pub(crate) const POLL: Duration = Duration::from_millis(200);

/// Another rank, as seen from this one.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) rank: usize,
    pub(crate) host: String,
    stream: TcpStream,
    writer: Mutex<Writer>,
    /// Milliseconds from [`Shared::started`](crate::link::Shared::started) to the last byte that arrived.
    heard_ms: AtomicU64,
}

/// The writing half of a connection.
#[derive(Debug)]
struct Writer {
    stream: TcpStream,
    /// The rest of a frame that could not be sent at once. It precedes everything else.
    unsent: VecDeque<u8>,
}

impl Link {
    /// Takes over a connected stream.
    pub(crate) fn new(rank: usize, host: String, stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(POLL))?;
        let writer = Writer {
            stream: stream.try_clone()?,
            unsent: VecDeque::new(),
        };
        Ok(Self {
            rank,
            host,
            stream,
            writer: Mutex::new(writer),
            heard_ms: AtomicU64::new(0),
        })
    }

    /// Reads what has arrived, waiting for it.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(buffer)
    }

    /// Sends one frame. While the other side does not read, `continues` decides whether to wait.
    ///
    /// # Errors
    ///
    /// `continues` returned `false`, or the connection breaks.
    pub(crate) fn send(
        &self,
        kind: Kind,
        has_more: bool,
        bytes: &[u8],
        continues: impl Fn() -> bool,
    ) -> Result<(), Stopped> {
        let header = channel::header(kind, has_more, bytes);
        self.writer().send([&header, bytes], continues)
    }

    /// Milliseconds from [`Shared::started`](crate::link::Shared::started) to the last byte that arrived.
    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Restarts the silence clock.
    pub(crate) fn set_heard_ms(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a small frame without waiting; what does not fit into the system's buffer follows
    /// later. Does nothing if another thread is sending.
    pub(crate) fn send_at_once(&self, kind: Kind, bytes: &[u8]) {
        let Ok(mut writer) = self.writer.try_lock() else {
            return;
        };
        // An unsent rest means that the peer does not read: another beat would not help.
        if writer.unsent.is_empty() {
            let header = channel::header(kind, false, bytes);
            writer.unsent.extend(header.iter().chain(bytes));
        }
        let _ = writer.flush_at_once();
    }

    /// Sends a last frame, waiting until `deadline`.
    pub(crate) fn send_last(&self, kind: Kind, bytes: &[u8], deadline: Instant) {
        // A peer that does not read the message notices the closed connection.
        let _ = self.send(kind, false, bytes, || Instant::now() < deadline);
    }

    /// Tells the peer that nothing more will be sent.
    pub(crate) fn close_writing(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection, and the reader thread with it.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Why a frame was not sent completely.
pub(crate) enum Stopped {
    /// The caller did not want to continue.
    Early,
    Io(io::Error),
}

impl Writer {
    /// Sends the parts of one frame. Between timeouts of the system, `continues` decides whether
    /// to try again; if not, the rest is kept, because a later frame must not begin inside this one.
    fn send(&mut self, parts: [&[u8]; 2], continues: impl Fn() -> bool) -> Result<(), Stopped> {
        while !self.unsent.is_empty() {
            match self.stream.write(self.unsent.as_slices().0) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) => check_retry(error, &continues)?,
            }
        }
        for (i, part) in parts.iter().enumerate() {
            let mut left = *part;
            while !left.is_empty() {
                let stopped = match self.stream.write(left) {
                    Ok(n) => {
                        left = &left[n..];
                        continue;
                    }
                    Err(error) => check_retry(error, &continues),
                };
                if let Err(stopped) = stopped {
                    let is_begun = i > 0 || left.len() < part.len();
                    if is_begun {
                        self.unsent.extend(left);
                        self.unsent.extend(parts[i + 1..].iter().copied().flatten());
                    }
                    return Err(stopped);
                }
            }
        }
        Ok(())
    }

    /// Sends what the system accepts without waiting.
    fn flush_at_once(&mut self) -> io::Result<()> {
        // The shortest timeout that the system knows; non-blocking mode would apply to the reader,
        // because both share the socket.
        self.stream
            .set_write_timeout(Some(Duration::from_millis(1)))?;
        let mut result = Ok(());
        while !self.unsent.is_empty() && result.is_ok() {
            result = match self.stream.write(self.unsent.as_slices().0) {
                Ok(n) => {
                    self.unsent.drain(..n);
                    Ok(())
                }
                Err(error) => Err(error),
            };
        }
        self.stream.set_write_timeout(Some(POLL))?;
        result
    }
}

/// Whether to try a write again.
fn check_retry(error: io::Error, continues: &impl Fn() -> bool) -> Result<(), Stopped> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
            if continues() {
                Ok(())
            } else {
                Err(Stopped::Early)
            }
        }
        _ => Err(Stopped::Io(error)),
    }
}
