//! The calls with which the ranks of a run work together.
//!
//! The leader gives orders and followers obey them. Within an order, all ranks make the same calls
//! in the same order: a different one is [`RanksError::OutOfStep`], not a wrong result.

use std::collections::BTreeMap;
use std::net::TcpStream;

use serde::{Deserialize, Serialize};

use crate::Settings;
use crate::all_reduce::AllReduce;
use crate::beat::Pulse;
use crate::budgets::TEXT_BYTES;
use crate::channel::Kind;
use crate::connected::Connected;
use crate::error::{RanksError, Result};
use crate::link::Shared;
use crate::messages::{made_progress, pieces, rest_of};
use crate::sums::{add_as_follower, add_as_leader, add_by};

/// The ranks of a run, as seen from one of them.
///
/// Dropping it without [`end`](Self::end) tells the other ranks that this one failed. With one rank,
/// every call returns at once and does nothing.
#[derive(Debug)]
pub struct Ranks {
    rank: usize,
    world_size: usize,
    /// Host name of each rank.
    hosts: Vec<String>,
    /// `None` with one rank, and after the end.
    connected: Option<Connected>,
    /// Adds in place of the connections.
    all_reduce: Option<Box<dyn AllReduce>>,
}

/// The result of comparing values of all ranks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    name: String,
    rank: usize,
    host: String,
    value: String,
    leader: String,
}

impl Ranks {
    /// A run of one rank.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            hosts: vec![crate::host_name()],
            connected: None,
            all_reduce: None,
        }
    }

    /// Takes over authenticated connections: to all followers in order of rank, or to the leader.
    pub(crate) fn connected(
        rank: usize,
        hosts: Vec<String>,
        streams: Vec<(usize, TcpStream)>,
        settings: Settings,
    ) -> Result<Self> {
        let named = |(rank, stream): (usize, TcpStream)| (rank, hosts[rank].clone(), stream);
        let streams = streams.into_iter().map(named).collect();
        let connected = Connected::start(rank, streams, settings)?;
        Ok(Self {
            rank,
            world_size: hosts.len(),
            hosts,
            connected: Some(connected),
            all_reduce: None,
        })
    }

    /// The rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Whether this is rank 0, which gives the orders.
    pub fn is_leader(&self) -> bool {
        self.rank == 0
    }

    /// The host name of each rank.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Reports phase and progress of this rank, from any thread.
    pub fn pulse(&self) -> Pulse {
        let shared = self.connected.as_ref().map(|c| c.shared().clone());
        Pulse(shared)
    }

    /// Sets what to do once if the run fails, in a thread of its own, after the error was sent to the
    /// other ranks. A caller whose thread may be blocked in a driver can wait here for a while and
    /// then end the process.
    pub fn on_failure(&mut self, hook: impl FnOnce(&RanksError) + Send + 'static) {
        if let Some(connected) = &self.connected {
            connected.set_hook(Box::new(hook));
        }
    }

    /// # Errors
    ///
    /// The run has failed: a rank was lost, is silent, makes no progress, or has ended with an
    /// error.
    pub fn check(&self) -> Result<()> {
        self.connected
            .as_ref()
            .map_or(Ok(()), |c| c.shared().check())
    }

    /// Sends an order to all followers. Only the leader may call it.
    ///
    /// # Errors
    ///
    /// - This rank is a follower.
    /// - The run has failed, or `order` exceeds
    ///   [`MESSAGE_BYTES`](crate::budgets::MESSAGE_BYTES).
    pub fn order(&mut self, order: &[u8]) -> Result<()> {
        self.must_lead("give orders")?;
        self.send_all(Kind::Order, order)
    }

    /// Waits for the leader's next order. Only a follower may call it.
    ///
    /// # Errors
    ///
    /// - This rank is the leader.
    /// - The run has failed or has ended, or the leader makes another call.
    pub fn obey(&mut self) -> Result<Vec<u8>> {
        self.must_follow("obey orders")?;
        self.receive_message(0, Kind::Order)
    }

    /// Collects the bytes of all ranks. The leader gets them in the order of ranks, its own first;
    /// a follower gets `None` without waiting.
    ///
    /// # Errors
    ///
    /// The run has failed, a rank makes another call, or a message exceeds
    /// [`MESSAGE_BYTES`](crate::budgets::MESSAGE_BYTES).
    pub fn gather(&mut self, own: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
        if !self.is_leader() {
            self.send_message(0, Kind::Gather, own)?;
            return Ok(None);
        }
        let mut all = vec![own.to_vec()];
        for idx in 0..self.world_size - 1 {
            all.push(self.receive_message(idx, Kind::Gather)?);
        }
        Ok(Some(all))
    }

    /// Gives the leader's bytes to all ranks. The argument of a follower is ignored.
    ///
    /// # Errors
    ///
    /// The run has failed, a rank makes another call, or the leader's bytes exceed
    /// [`MESSAGE_BYTES`](crate::budgets::MESSAGE_BYTES).
    pub fn broadcast(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        if self.is_leader() {
            self.send_all(Kind::Broadcast, &bytes)?;
            Ok(bytes)
        } else {
            self.receive_message(0, Kind::Broadcast)
        }
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    ///
    /// The run has failed, or a rank makes another call.
    pub fn barrier(&mut self) -> Result<()> {
        self.gather(&[])?;
        self.broadcast(Vec::new())?;
        Ok(())
    }

    /// Makes [`add_all`](Self::add_all) add by `all_reduce` instead of over the connections. All
    /// ranks call it.
    pub fn add_by(&mut self, all_reduce: Box<dyn AllReduce>) {
        self.all_reduce = Some(all_reduce);
    }

    /// Replaces `sums` on all ranks by the elementwise sums over all ranks, modulo 2^64. Integer
    /// sums have no order, so the result does not depend on the number of ranks.
    ///
    /// Without [`add_by`](Self::add_by), the followers send to the leader, which adds and sends the
    /// sums back. The leader needs memory for [`INBOX_BYTES`](crate::budgets::INBOX_BYTES) per
    /// follower.
    ///
    /// # Errors
    ///
    /// - The run has failed, or a rank makes another call.
    /// - The lengths differ between ranks.
    pub fn add_all(&mut self, sums: &mut [i64]) -> Result<()> {
        let Some(connected) = &self.connected else {
            return Ok(());
        };
        let shared = connected.shared();
        if let Some(by) = &mut self.all_reduce {
            add_by(shared, &mut **by, sums)
        } else if self.rank == 0 {
            add_as_leader(shared, sums)
        } else {
            add_as_follower(shared, sums)
        }
    }

    /// Checks that named values, such as digests, are equal on all ranks. All ranks call it and get
    /// the same result.
    ///
    /// # Errors
    ///
    /// - A value of another rank differs from the leader's; the error names the value and the rank.
    /// - The run has failed, or a rank makes another call.
    pub fn agree(&mut self, values: &BTreeMap<String, String>) -> Result<()> {
        let own = serde_json::to_vec(values).expect("a map of strings is JSON");
        let gathered = self.gather(&own)?;
        let verdict = match &gathered {
            Some(all) => self.compare(values, all)?,
            None => None,
        };
        let verdict = serde_json::to_vec(&verdict).expect("strings are JSON");
        let verdict = self.broadcast(verdict)?;
        let verdict: Option<Difference> =
            serde_json::from_slice(&verdict).map_err(|_| self.malformed(0, "a verdict"))?;
        let Some(found) = verdict else {
            return Ok(());
        };
        // A rank that fails ends the others, so every rank must have the verdict before one fails.
        // An error here means that another rank has already failed with it.
        let _ = self.barrier();
        Err(self.failed(RanksError::Differs {
            name: found.name,
            rank: found.rank,
            host: found.host,
            value: found.value,
            leader: found.leader,
        }))
    }

    fn compare(
        &self,
        leader: &BTreeMap<String, String>,
        all: &[Vec<u8>],
    ) -> Result<Option<Difference>> {
        for (rank, bytes) in all.iter().enumerate() {
            let values: BTreeMap<String, String> =
                serde_json::from_slice(bytes).map_err(|_| self.malformed(rank, "values"))?;
            if let Some((name, value, leader)) = first_difference(&values, leader) {
                return Ok(Some(Difference {
                    name,
                    rank,
                    host: self.hosts[rank].clone(),
                    value,
                    leader,
                }));
            }
        }
        Ok(None)
    }

    /// Sends a message to one rank, for work that the leader hands out in portions. A follower can
    /// send only to rank 0.
    ///
    /// # Errors
    ///
    /// - There is no connection to that rank.
    /// - The run has failed, or `bytes` exceeds
    ///   [`MESSAGE_BYTES`](crate::budgets::MESSAGE_BYTES).
    pub fn send_to(&mut self, rank: usize, bytes: &[u8]) -> Result<()> {
        let idx = self.link_of(rank)?;
        self.send_message(idx, Kind::Direct, bytes)
    }

    /// Waits for the next message of [`send_to`](Self::send_to) from one rank. A follower can
    /// receive only from rank 0.
    ///
    /// # Errors
    ///
    /// - There is no connection to that rank.
    /// - The run has failed, or that rank makes another call.
    pub fn receive_from(&mut self, rank: usize) -> Result<Vec<u8>> {
        let idx = self.link_of(rank)?;
        self.receive_message(idx, Kind::Direct)
    }

    /// Waits for the next message of [`send_to`](Self::send_to) from any rank, and returns the rank
    /// with it.
    ///
    /// # Errors
    ///
    /// - There is only one rank.
    /// - The run has failed, or a rank makes another call.
    pub fn receive_any(&mut self) -> Result<(usize, Vec<u8>)> {
        let shared = self.shared("receive a message")?;
        let all: Vec<usize> = (0..shared.links.len()).collect();
        let (idx, first) = shared.receive_any(&all, Kind::Direct)?;
        Ok((shared.links[idx].rank, rest_of(shared, idx, first)?))
    }

    /// [`receive_any`](Self::receive_any) without waiting: `None` if no message has begun to arrive.
    ///
    /// # Errors
    ///
    /// The run has failed, or a rank makes another call.
    pub fn try_receive_any(&mut self) -> Result<Option<(usize, Vec<u8>)>> {
        let Some(connected) = &self.connected else {
            return Ok(None);
        };
        let shared = connected.shared();
        let all: Vec<usize> = (0..shared.links.len()).collect();
        match shared.try_receive_any(&all, Kind::Direct)? {
            None => Ok(None),
            Some((idx, first)) => Ok(Some((shared.links[idx].rank, rest_of(shared, idx, first)?))),
        }
    }

    /// Writes a warning into the leader's log, with the rank and its host. The leader's own warnings
    /// go directly to the log.
    ///
    /// # Errors
    ///
    /// The run has failed.
    pub fn warn(&mut self, message: &str) -> Result<()> {
        let message = &message[..message.floor_char_boundary(TEXT_BYTES)];
        match &self.connected {
            Some(connected) if self.rank > 0 => {
                connected
                    .shared()
                    .send(0, Kind::Warning, false, message.as_bytes())
            }
            _ => {
                tracing::warn!("{message}");
                Ok(())
            }
        }
    }

    /// Ends the run in order. All ranks call it; it returns when the others have done so as well.
    ///
    /// # Errors
    ///
    /// The run has failed, or a rank does not end within `step_seconds`.
    pub fn end(mut self) -> Result<()> {
        let all_reduce = self.all_reduce.take();
        let connected = self.connected.take();
        connected.map_or(Ok(()), |connected| connected.end(all_reduce))
    }

    /// Ends the run with an error of this rank. The others end with an error that contains
    /// `message`, and with the exit status `status` if it is an error of this rank's own.
    pub fn fail(mut self, message: &str, status: Option<u8>) {
        if let Some(connected) = self.connected.take() {
            connected.fail(message, status, self.all_reduce.take());
        }
    }

    fn shared(&self, call: &'static str) -> Result<&Shared> {
        let wrong = RanksError::WrongRole {
            rank: self.rank,
            world_size: self.world_size,
            call,
        };
        self.connected.as_ref().map(|c| &**c.shared()).ok_or(wrong)
    }

    fn must_lead(&self, call: &'static str) -> Result<()> {
        if self.is_leader() {
            return Ok(());
        }
        Err(RanksError::WrongRole {
            rank: self.rank,
            world_size: self.world_size,
            call,
        })
    }

    fn must_follow(&self, call: &'static str) -> Result<()> {
        if !self.is_leader() {
            return Ok(());
        }
        Err(RanksError::WrongRole {
            rank: self.rank,
            world_size: self.world_size,
            call,
        })
    }

    /// The index of the connection to a rank.
    fn link_of(&self, rank: usize) -> Result<usize> {
        let shared = self.shared("send or receive a message")?;
        let found = shared.links.iter().position(|link| link.rank == rank);
        found.ok_or(RanksError::WrongRole {
            rank: self.rank,
            world_size: self.world_size,
            call: "reach that rank; followers are connected only to rank 0",
        })
    }

    /// Records an error of this rank, so that the others end with it.
    fn failed(&self, error: RanksError) -> RanksError {
        if let Some(connected) = &self.connected {
            connected.shared().fail(error.clone());
        }
        error
    }

    fn malformed(&self, rank: usize, what: &'static str) -> RanksError {
        self.failed(RanksError::Malformed {
            rank,
            host: self.hosts[rank].clone(),
            source: crate::channel::FrameError::Content(what),
        })
    }

    /// Sends a message to all followers in pieces, each piece to all before the next one.
    fn send_all(&mut self, kind: Kind, bytes: &[u8]) -> Result<()> {
        let Some(connected) = &self.connected else {
            return Ok(());
        };
        for (piece, has_more) in pieces(bytes)? {
            for idx in 0..connected.shared().links.len() {
                connected.shared().send(idx, kind, has_more, piece)?;
            }
        }
        made_progress(connected.shared());
        Ok(())
    }

    fn send_message(&self, idx: usize, kind: Kind, bytes: &[u8]) -> Result<()> {
        let shared = self.shared("send a message")?;
        for (piece, has_more) in pieces(bytes)? {
            shared.send(idx, kind, has_more, piece)?;
        }
        made_progress(shared);
        Ok(())
    }

    fn receive_message(&self, idx: usize, kind: Kind) -> Result<Vec<u8>> {
        let shared = self.shared("receive a message")?;
        let first = shared.receive(idx, kind)?;
        rest_of(shared, idx, first)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if let Some(connected) = self.connected.take() {
            let failure = connected.shared().check().err();
            let status = failure.as_ref().and_then(RanksError::status);
            let message = match failure {
                Some(failure) => failure.to_string(),
                None if std::thread::panicking() => {
                    "it panicked; look at its log for the message".to_owned()
                }
                None => "it stopped without a message; look at its log".to_owned(),
            };
            connected.fail(&message, status, self.all_reduce.take());
        }
    }
}

/// The first name whose values differ, with this rank's value and the leader's.
pub(crate) fn first_difference(
    values: &BTreeMap<String, String>,
    leader: &BTreeMap<String, String>,
) -> Option<(String, String, String)> {
    let names = values.keys().chain(leader.keys());
    let value_in = |map: &BTreeMap<String, String>, name: &String| {
        map.get(name).cloned().unwrap_or_else(|| "none".to_owned())
    };
    let mut differing = names.filter(|name| values.get(*name) != leader.get(*name));
    let name = differing.next()?;
    Some((name.clone(), value_in(values, name), value_in(leader, name)))
}
