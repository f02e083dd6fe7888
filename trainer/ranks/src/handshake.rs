//! The first frames of a connection: both sides prove that they know the run's token, and a follower
//! describes itself.
//!
//! Leader to follower: challenge (random number). Follower to leader: proof, and a hello with its own
//! random number. Leader to follower: proof, or a reason not to accept it. A proof is an HMAC of both
//! random numbers and the hello, so the token is never sent and a recorded proof is worthless.
//! These frames keep their layout in all protocol versions.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::budgets::{FRAME_BYTES, HELLO_BYTES};
use crate::channel::{self, Frame, FrameError, Kind};
use crate::launcher::Launch;
use crate::token::{self, PROOF_BYTES};

/// Version of everything that follows the handshake.
pub(crate) const PROTOCOL: u32 = 2;

/// The first bytes of a challenge.
const MAGIC: &[u8; 8] = b"tooltune";

const OF_FOLLOWER: &[u8] = b"tooltune follower";
const OF_LEADER: &[u8] = b"tooltune leader";

/// A follower's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) version: String,
    pub(crate) run_id: String,
    pub(crate) world_size: usize,
    pub(crate) rank: usize,
    pub(crate) host: String,
    /// Values that must be equal on all ranks.
    pub(crate) digests: BTreeMap<String, String>,
    /// Values that must differ between ranks.
    pub(crate) unique: BTreeMap<String, String>,
    /// The follower's random number.
    pub(crate) nonce: String,
}

/// A reason not to accept a follower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refusal {
    /// Whether the follower may try again: it found the leader of another run.
    pub(crate) is_other_run: bool,
    /// Whether the follower has another token.
    pub(crate) is_token: bool,
    pub(crate) reason: String,
}

/// The first frame after everyone has arrived.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Begin {
    /// Host name of each rank.
    pub(crate) hosts: Vec<String>,
}

/// Why a handshake did not succeed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nothing listens there.
    Unreachable(String),
    /// The other side is not a rank, or not of this run.
    Stranger(String),
    /// The leader refused.
    Refused(Refusal),
}

impl From<FrameError> for Failed {
    fn from(error: FrameError) -> Self {
        Failed::Stranger(error.to_string())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Stranger(error.to_string())
    }
}

/// A connection with a deadline for everything that is read and written.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    pub(crate) fn new(stream: TcpStream, deadline: Instant) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, deadline })
    }

    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "no reply in time"));
        }
        Ok(Some(left))
    }

    pub(crate) fn send(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        let mut frame = channel::header(kind, false, bytes).to_vec();
        frame.extend_from_slice(bytes);
        self.write_all(&frame)
    }

    pub(crate) fn receive(&mut self, limit: usize) -> Result<Frame, FrameError> {
        channel::read(self, limit)
    }
}

/// The system reports a timeout of a socket as `WouldBlock`.
fn name_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "no reply in time"),
        _ => error,
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(buffer).map_err(name_timeout)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(bytes).map_err(name_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The key of proofs. Without a token, the run ID separates runs but protects nothing.
fn key(launch: &Launch) -> Vec<u8> {
    let (tag, secret) = match &launch.token {
        Some(token) => ("token:", token.secret()),
        None => ("run:", launch.run_id.as_str()),
    };
    [tag.as_bytes(), secret.as_bytes()].concat()
}

/// The leader's side, up to an authenticated hello and the proof for the welcome.
pub(crate) fn accept(
    connection: &mut Timed,
    launch: &Launch,
) -> Result<(Hello, [u8; PROOF_BYTES]), Failed> {
    let nonce = token::random_bytes();
    let challenge = [&MAGIC[..], &PROTOCOL.to_le_bytes(), &nonce].concat();
    connection.send(Kind::Challenge, &challenge)?;
    let frame = connection.receive(HELLO_BYTES)?;
    let not_a_hello = || Failed::Stranger("its first frame is not a hello".to_owned());
    if frame.kind != Kind::Hello || frame.has_more {
        return Err(not_a_hello());
    }
    let split = frame.bytes.split_first_chunk::<PROOF_BYTES>();
    let (proof, json) = split.ok_or_else(not_a_hello)?;
    let hello: Hello = serde_json::from_slice(json).map_err(|_| not_a_hello())?;
    let refusal = if hello.run_id != launch.run_id {
        Some(Refusal {
            is_other_run: true,
            is_token: false,
            reason: format!("this is the leader of run {:?}", launch.run_id),
        })
    } else if !token::is_equal(
        proof,
        &token::proof(&key(launch), &[OF_FOLLOWER, &nonce, json]),
    ) {
        Some(Refusal {
            is_other_run: false,
            is_token: true,
            reason: "the token differs; give all ranks the same TOOLTUNE_RANKS_TOKEN".to_owned(),
        })
    } else {
        None
    };
    if let Some(refusal) = refusal {
        let reason = match refusal.is_token {
            true => "it has another token".to_owned(),
            false => "it belongs to another run".to_owned(),
        };
        // The other side may already have closed.
        let _ = refuse(connection, &refusal);
        return Err(Failed::Stranger(reason));
    }
    let answer = token::proof(&key(launch), &[OF_LEADER, &nonce, json]);
    Ok((printable(hello), answer))
}

/// Without control characters in the values that errors print.
fn printable(hello: Hello) -> Hello {
    let clean = |value: String| crate::link::text(value.as_bytes()).replace('\n', "?");
    let clean_map = |map: BTreeMap<String, String>| {
        let entries = map.into_iter();
        entries.map(|(k, v)| (clean(k), clean(v))).collect()
    };
    Hello {
        version: clean(hello.version),
        host: clean(hello.host),
        digests: clean_map(hello.digests),
        unique: clean_map(hello.unique),
        ..hello
    }
}

/// Tells a follower why it is not accepted.
pub(crate) fn refuse(connection: &mut Timed, refusal: &Refusal) -> io::Result<()> {
    let bytes = serde_json::to_vec(refusal).expect("strings are JSON");
    connection.send(Kind::Refused, &bytes)
}

/// The follower's side, up to the leader's welcome.
pub(crate) fn introduce(
    connection: &mut Timed,
    launch: &Launch,
    hello: &Hello,
) -> Result<(), Failed> {
    let not_a_leader = || Failed::Stranger("something else listens there".to_owned());
    let frame = connection.receive(HELLO_BYTES)?;
    let content = frame.bytes.strip_prefix(&MAGIC[..]);
    let content = content.and_then(|rest| rest.split_first_chunk::<4>());
    let Some((_, nonce)) = content.filter(|_| frame.kind == Kind::Challenge) else {
        return Err(not_a_leader());
    };
    let json = serde_json::to_vec(hello).expect("a hello is JSON");
    let proof = token::proof(&key(launch), &[OF_FOLLOWER, nonce, &json]);
    connection.send(Kind::Hello, &[&proof[..], &json].concat())?;
    let frame = connection.receive(HELLO_BYTES)?;
    match frame.kind {
        Kind::Welcome => {
            let expected = token::proof(&key(launch), &[OF_LEADER, nonce, &json]);
            let given = <[u8; PROOF_BYTES]>::try_from(&frame.bytes[..]);
            if given.is_ok_and(|given| token::is_equal(&given, &expected)) {
                Ok(())
            } else {
                Err(Failed::Stranger(
                    "it does not know the run's token".to_owned(),
                ))
            }
        }
        Kind::Refused => Err(read_refusal(&frame)),
        _ => Err(not_a_leader()),
    }
}

/// Waits for the begin of the run, and returns the host of each rank.
pub(crate) fn wait_for_begin(
    connection: &mut Timed,
    world_size: usize,
) -> Result<Vec<String>, Failed> {
    let frame = connection.receive(FRAME_BYTES)?;
    match frame.kind {
        Kind::Begin => {
            let begin: Option<Begin> = serde_json::from_slice(&frame.bytes).ok();
            let hosts = begin.map(|begin| begin.hosts);
            hosts
                .filter(|hosts| hosts.len() == world_size)
                .ok_or_else(|| Failed::Stranger("invalid list of hosts".to_owned()))
        }
        Kind::Refused => Err(read_refusal(&frame)),
        _ => Err(Failed::Stranger(format!("it sent {}", frame.kind.name()))),
    }
}

fn read_refusal(frame: &Frame) -> Failed {
    match serde_json::from_slice::<Refusal>(&frame.bytes) {
        Ok(refusal) => Failed::Refused(Refusal {
            reason: crate::link::text(refusal.reason.as_bytes()),
            ..refusal
        }),
        Err(_) => Failed::Stranger("invalid refusal".to_owned()),
    }
}
