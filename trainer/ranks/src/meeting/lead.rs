//! The leader's side of a meeting: it listens, and accepts the ranks of its run.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Identity, hello_of, ports_after};
use crate::Settings;
use crate::address;
use crate::budgets::{HANDSHAKE_SECONDS, HANDSHAKES};
use crate::channel::Kind;
use crate::door::{Ranks, first_difference};
use crate::error::{RanksError, Result};
use crate::handshake::{self, Begin, Failed, Hello, Refusal, Timed};
use crate::launcher::Launch;
use crate::ranks_file::{RanksFile, WrittenFile};
use crate::token::{PROOF_BYTES, Token};

/// How often the leader looks for a connection.
const ACCEPT_POLL: Duration = Duration::from_millis(10);

/// An authenticated follower.
struct Arrival {
    connection: Timed,
    hello: Hello,
    /// The leader's proof for it.
    proof: [u8; PROOF_BYTES],
}

/// Connections that were not from this run.
#[derive(Debug, Default)]
struct Strangers {
    n: usize,
    last: String,
}

impl Strangers {
    fn note(&self) -> String {
        match self.n {
            0 => String::new(),
            1 => format!(" (1 connection was refused: {})", self.last),
            n => format!(
                " ({n} connections were refused, the last because: {})",
                self.last
            ),
        }
    }
}

/// The leader's listener and the threads that authenticate connections.
struct Reception {
    listener: TcpListener,
    launch: Arc<Launch>,
    n_handshakes: Arc<AtomicUsize>,
    strangers: Arc<Mutex<Strangers>>,
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
}

impl Reception {
    fn new(listener: TcpListener, launch: Launch) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (sender, arrivals) = channel();
        Ok(Self {
            listener,
            launch: Arc::new(launch),
            n_handshakes: Arc::default(),
            strangers: Arc::default(),
            sender,
            arrivals,
        })
    }

    /// Accepts a waiting connection, if any. Errors concern only that connection.
    fn accept(&self) {
        let (stream, address) = match self.listener.accept() {
            Ok(accepted) => accepted,
            Err(_) => return std::thread::sleep(ACCEPT_POLL),
        };
        let n = self.n_handshakes.fetch_add(1, Ordering::AcqRel);
        let slot = Slot(self.n_handshakes.clone());
        if n >= HANDSHAKES + self.launch.world_size {
            let reason = "too many connections at once";
            return note_stranger(&self.strangers, address, reason);
        }
        let (launch, sender) = (self.launch.clone(), self.sender.clone());
        let strangers = self.strangers.clone();
        let handshake = move || {
            let _slot = slot;
            let deadline = Instant::now() + Duration::from_secs(HANDSHAKE_SECONDS);
            let result =
                Timed::new(stream, deadline)
                    .map_err(Failed::from)
                    .and_then(|mut connection| {
                        let (hello, proof) = handshake::accept(&mut connection, &launch)?;
                        Ok(Arrival {
                            connection,
                            hello,
                            proof,
                        })
                    });
            match result {
                // The meeting may be over.
                Ok(arrival) => drop(sender.send(arrival)),
                Err(Failed::Stranger(reason) | Failed::Unreachable(reason)) => {
                    note_stranger(&strangers, address, &reason);
                }
                Err(Failed::Refused(refusal)) => {
                    note_stranger(&strangers, address, &refusal.reason);
                }
            }
        };
        let name = "handshake".to_owned();
        // Without a thread, the connection closes, and a rank tries again.
        let _ = std::thread::Builder::new().name(name).spawn(handshake);
    }

    fn note(&self) -> String {
        self.strangers
            .lock()
            .map_or_else(|_| String::new(), |s| s.note())
    }
}

/// Frees a handshake's slot in whatever way its thread ends.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn note_stranger(strangers: &Mutex<Strangers>, address: SocketAddr, reason: &str) {
    tracing::debug!("refused a connection from {address}: {reason}");
    if let Ok(mut strangers) = strangers.lock() {
        strangers.n += 1;
        strangers.last = format!("{}: {reason}", address.ip());
        if strangers.n == 1 {
            tracing::warn!("refused a connection from {address}: {reason}; waiting for the ranks");
        }
    }
}

/// Meets the followers, until all have arrived or `deadline`.
pub(super) fn lead(
    launch: &Launch,
    identity: &Identity,
    directory: Option<&Path>,
    settings: &Settings,
    deadline: Instant,
) -> Result<Ranks> {
    let listener = listen(launch)?;
    let address = listener.local_addr().map_err(|error| RanksError::Listen {
        address: "the chosen port".to_owned(),
        reason: error.to_string(),
    })?;
    let mut launch = launch.clone();
    let _file = if launch.leader.is_none() {
        let directory = directory.ok_or(RanksError::NoAddress {
            launcher: launch.launcher.name(),
        })?;
        let token = launch.token.get_or_insert_with(Token::random);
        let file = RanksFile {
            run_id: launch.run_id.clone(),
            address: address.to_string(),
            token: token.secret().to_owned(),
        };
        Some(WrittenFile::create(directory, file)?)
    } else {
        None
    };
    if launch.token.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            "ranks meet at {address} without a token: any process that can reach it and knows the \
             run ID can join; set TOOLTUNE_RANKS_TOKEN for all ranks"
        );
    }
    tracing::debug!("waiting for {} ranks at {address}", launch.world_size - 1);
    let own = hello_of(&launch, identity);
    let reception = Reception::new(listener, launch).map_err(|error| RanksError::Listen {
        address: address.to_string(),
        reason: error.to_string(),
    })?;
    let mut table: Vec<Option<Arrival>> = (1..own.world_size).map(|_| None).collect();
    while table.iter().any(Option::is_none) {
        if Instant::now() > deadline {
            let error = RanksError::Missing {
                missing: missing(&table),
                seconds: settings.meeting_seconds,
                address: address.to_string(),
                refused: reception.note(),
            };
            refuse_all(&mut table, &error.to_string());
            return Err(error);
        }
        reception.accept();
        while let Ok(arrival) = reception.arrivals.try_recv() {
            seat(&own, &mut table, arrival)?;
        }
        if table.iter().all(Option::is_some) {
            forget_departed(&mut table);
        }
    }
    begin(own, table, settings)
}

/// Gives an arrived follower its place, or ends the meeting.
fn seat(own: &Hello, table: &mut [Option<Arrival>], mut arrival: Arrival) -> Result<()> {
    if let Err(error) = judge(own, table, &arrival.hello) {
        let reason = error.to_string();
        refuse_one(&mut arrival.connection, &reason);
        refuse_all(table, &reason);
        return Err(error);
    }
    let proof = arrival.proof;
    // A follower that has closed in the meantime will connect again.
    if arrival.connection.send(Kind::Welcome, &proof).is_ok() {
        let idx = arrival.hello.rank - 1;
        table[idx] = Some(arrival);
    }
    Ok(())
}

/// Whether a follower belongs to this run.
fn judge(own: &Hello, table: &[Option<Arrival>], hello: &Hello) -> Result<()> {
    let (rank, host) = (hello.rank, &hello.host);
    let equal = |name: &str, value: &str, leader: &str| {
        if value == leader {
            return Ok(());
        }
        Err(RanksError::Differs {
            name: name.to_owned(),
            rank,
            host: host.clone(),
            value: value.to_owned(),
            leader: leader.to_owned(),
        })
    };
    let decimal = |n: usize| n.to_string();
    equal(
        "protocol version",
        &hello.protocol.to_string(),
        &own.protocol.to_string(),
    )?;
    equal("program version", &hello.version, &own.version)?;
    equal(
        "world size",
        &decimal(hello.world_size),
        &decimal(own.world_size),
    )?;
    if rank == 0 || rank >= own.world_size {
        return Err(RanksError::RankOutOfRange {
            rank,
            host: host.clone(),
            last: own.world_size - 1,
        });
    }
    if let Some(other) = &table[rank - 1]
        && !has_departed(&other.connection.stream)
    {
        return Err(RanksError::DuplicateRank {
            rank,
            host: host.clone(),
            other_host: other.hello.host.clone(),
        });
    }
    if let Some((name, value, leader)) = first_difference(&hello.digests, &own.digests) {
        equal(&name, &value, &leader)?;
    }
    let others = table.iter().flatten().map(|arrival| &arrival.hello);
    let others = others.filter(|other| other.rank != rank);
    for other in std::iter::once(own).chain(others) {
        let shared = hello
            .unique
            .iter()
            .find(|(name, value)| &other.host == host && other.unique.get(*name) == Some(value));
        if let Some((name, value)) = shared {
            return Err(RanksError::Shared {
                name: name.clone(),
                value: value.clone(),
                rank,
                other_rank: other.rank,
                host: host.clone(),
            });
        }
    }
    Ok(())
}

/// Whether the other side has closed. A follower sends nothing before the begin.
fn has_departed(stream: &TcpStream) -> bool {
    let peek = || {
        stream.set_nonblocking(true)?;
        let result = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        result
    };
    match peek() {
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        // The end of the stream, or data that does not belong here.
        Ok(_) => true,
    }
}

/// Frees the places of followers that have gone; they may come again.
fn forget_departed(table: &mut [Option<Arrival>]) {
    for place in table {
        if place
            .as_ref()
            .is_some_and(|a| has_departed(&a.connection.stream))
        {
            *place = None;
        }
    }
}

/// Tells all followers to begin.
fn begin(own: Hello, table: Vec<Option<Arrival>>, settings: &Settings) -> Result<Ranks> {
    let mut arrivals: Vec<Arrival> = table.into_iter().flatten().collect();
    let mut hosts = vec![own.host];
    hosts.extend(arrivals.iter().map(|arrival| arrival.hello.host.clone()));
    let begin = Begin {
        hosts: hosts.clone(),
    };
    let begin = serde_json::to_vec(&begin).expect("host names are JSON");
    let deadline = Instant::now() + Duration::from_secs(HANDSHAKE_SECONDS);
    for arrival in &mut arrivals {
        arrival.connection.set_deadline(deadline);
        let sent = arrival.connection.send(Kind::Begin, &begin);
        sent.map_err(|error| RanksError::Lost {
            rank: arrival.hello.rank,
            host: arrival.hello.host.clone(),
            phase: "meeting".to_owned(),
            reason: error.to_string(),
        })?;
    }
    let streams = arrivals
        .into_iter()
        .map(|arrival| (arrival.hello.rank, arrival.connection.stream));
    Ranks::connected(0, hosts, streams.collect(), settings.clone())
}

fn refuse_one(connection: &mut Timed, reason: &str) {
    connection.set_deadline(Instant::now() + Duration::from_secs(1));
    let refusal = Refusal {
        is_other_run: false,
        is_token: false,
        reason: reason.to_owned(),
    };
    // The other side may already have closed.
    let _ = handshake::refuse(connection, &refusal);
}

fn refuse_all(table: &mut [Option<Arrival>], reason: &str) {
    for arrival in table.iter_mut().flatten() {
        refuse_one(&mut arrival.connection, reason);
    }
}

/// The ranks without a follower, such as "ranks 1, 3 to 5".
fn missing(table: &[Option<Arrival>]) -> String {
    let absent: Vec<usize> = (1..=table.len())
        .filter(|rank| table[rank - 1].is_none())
        .collect();
    let runs = absent.chunk_by(|a, b| a + 1 == *b);
    let names: Vec<String> = runs
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first} to {last}"),
            [] => String::new(),
        })
        .collect();
    let noun = if absent.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", names.join(", "))
}

/// Opens the leader's listener on one address of this host, never on all.
fn listen(launch: &Launch) -> Result<TcpListener> {
    let ports = match &launch.leader {
        Some(leader) => ports_after(leader.port),
        None => 0..=0,
    };
    let addresses = address::to_listen_on(launch)?;
    let mut reason = String::new();
    for ip in &addresses {
        for port in ports.clone() {
            match TcpListener::bind(SocketAddr::new(*ip, port)) {
                Ok(listener) => return Ok(listener),
                Err(error) => reason = error.to_string(),
            }
        }
    }
    let ips: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    Err(RanksError::Listen {
        address: format!(
            "{} port {} to {}",
            ips.join(", "),
            ports.start(),
            ports.end()
        ),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named_in_runs() {
        let table = |n: usize| (0..n).map(|_| None).collect::<Vec<Option<Arrival>>>();
        assert_eq!(missing(&table(1)), "rank 1");
        assert_eq!(missing(&table(2)), "ranks 1 to 2");
        assert_eq!(missing(&table(7)), "ranks 1 to 7");
    }
}
