//! Measures the connections between ranks before a long run.
//!
//! All traffic of a run passes rank 0, so the connection of each rank to rank 0 is measured on its
//! own, then orders, sums and gathered messages of all ranks together.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::budgets::MESSAGE_BYTES;
use crate::channel::FrameError;
use crate::door::Ranks;
use crate::error::{RanksError, Result};

/// Round trips per rank, and orders to all ranks. Their median is robust against a busy moment.
const ROUND_TRIPS: usize = 33;

/// Bytes sent to a rank and back, to measure its bandwidth.
const PAIR_BYTES: usize = 16 << 20;

/// Bytes above which one repetition is enough.
const ONCE_BYTES: usize = 256 << 20;

/// The connection of a rank to rank 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The rank, from 1.
    pub rank: usize,
    /// Median time of a message of 8 bytes and its reply.
    pub round_trip: Duration,
    /// Longest such time.
    pub longest: Duration,
    /// Bytes per second from rank 0 to the rank.
    pub to_rank: f64,
    /// Bytes per second from the rank to rank 0.
    pub from_rank: f64,
}

impl Pair {
    /// Bytes per second in the slower direction.
    pub fn slower_direction(&self) -> f64 {
        self.to_rank.min(self.from_rank)
    }
}

/// The time of one operation of all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Bytes of the summed values on each rank, or of the gathered messages of all other ranks together.
    pub bytes: usize,
    /// Median time until all ranks are done.
    pub time: Duration,
}

impl Timed {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What rank 0 has measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Preflight {
    /// The connections of all other ranks, in order of rank.
    pub pairs: Vec<Pair>,
    /// Median time of an order to all ranks and their replies.
    pub order: Duration,
    /// Sums of 64-bit integers, as for gradients, by size.
    pub sums: Vec<Timed>,
    /// Messages of all ranks to rank 0, by size.
    pub gathers: Vec<Timed>,
}

impl Preflight {
    /// The connection with the lowest bandwidth.
    pub fn slowest(&self) -> Option<&Pair> {
        let by_rate = |a: &&Pair, b: &&Pair| a.slower_direction().total_cmp(&b.slower_direction());
        self.pairs.iter().min_by(by_rate)
    }

    /// The connection with the longest median round trip.
    pub fn most_distant(&self) -> Option<&Pair> {
        self.pairs.iter().max_by_key(|pair| pair.round_trip)
    }
}

/// The leader's sizes, which all ranks use.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    bytes: Vec<usize>,
}

/// Measures the connections. All ranks call it; rank 0 gets the result, the others `None`.
///
/// - `bytes`: sizes of sums and gathered messages, from rank 0; the other ranks' are ignored.
///   Each rank needs memory for the largest, and rank 0 for twice that.
///
/// # Errors
///
/// - The run has failed, or a rank makes another call.
/// - A sum is wrong.
/// - A size exceeds [`MESSAGE_BYTES`].
pub fn measure(ranks: &mut Ranks, bytes: &[usize]) -> Result<Option<Preflight>> {
    let own = Sizes {
        bytes: bytes.to_vec(),
    };
    let sizes = ranks.broadcast(serde_json::to_vec(&own).expect("integers are JSON"))?;
    let sizes: Sizes = serde_json::from_slice(&sizes).map_err(|_| invalid(ranks, 0, "sizes"))?;
    if sizes.bytes.iter().any(|&bytes| bytes > MESSAGE_BYTES) {
        return Err(RanksError::TooLong {
            limit: MESSAGE_BYTES,
        });
    }
    if ranks.world_size() == 1 {
        return Ok(None);
    }
    ranks.pulse().phase("measuring connections");
    let pairs = if ranks.is_leader() {
        let followers = 1..ranks.world_size();
        let pairs = followers.map(|rank| measure_pair(ranks, rank));
        pairs.collect::<Result<Vec<_>>>()?
    } else {
        answer_pair(ranks)?;
        Vec::new()
    };
    let order = repeat(ranks, ROUND_TRIPS, |_| Ok(()))?;
    let mut sums = Vec::new();
    let mut gathers = Vec::new();
    for &bytes in &sizes.bytes {
        ranks.pulse().phase(&format!("adding {bytes} bytes"));
        let time = measure_sums(ranks, bytes)?;
        sums.push(Timed { bytes, time });
        ranks.pulse().phase(&format!("gathering {bytes} bytes"));
        // The message of rank 0 stays where it is.
        let n_senders = ranks.world_size() - 1;
        let share = (bytes / n_senders).max(1);
        let message = vec![0; if ranks.is_leader() { 0 } else { share }];
        let time = repeat(ranks, repetitions(bytes), |ranks| {
            ranks.gather(&message).map(drop)
        })?;
        let bytes = share * n_senders;
        gathers.push(Timed { bytes, time });
    }
    Ok(ranks.is_leader().then_some(Preflight {
        pairs,
        order,
        sums,
        gathers,
    }))
}

fn repetitions(bytes: usize) -> usize {
    if bytes > ONCE_BYTES { 1 } else { 5 }
}

/// Times one connection, from rank 0.
fn measure_pair(ranks: &mut Ranks, rank: usize) -> Result<Pair> {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        ranks.send_to(rank, &[0; 8])?;
        ranks.receive_from(rank)?;
        times.push(start.elapsed());
    }
    // Each direction ends with a reply of a few bytes.
    let start = Instant::now();
    ranks.send_to(rank, &vec![0; PAIR_BYTES])?;
    ranks.receive_from(rank)?;
    let to_rank = start.elapsed();
    let start = Instant::now();
    ranks.send_to(rank, &[0])?;
    ranks.receive_from(rank)?;
    let from_rank = start.elapsed();
    let rate = |time: Duration| PAIR_BYTES as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
    Ok(Pair {
        rank,
        longest: times.iter().copied().max().unwrap_or_default(),
        round_trip: median(times),
        to_rank: rate(to_rank),
        from_rank: rate(from_rank),
    })
}

/// The replies of another rank to [`measure_pair`].
fn answer_pair(ranks: &mut Ranks) -> Result<()> {
    for _ in 0..ROUND_TRIPS {
        let message = ranks.receive_from(0)?;
        ranks.send_to(0, &message)?;
    }
    ranks.receive_from(0)?;
    ranks.send_to(0, &[0])?;
    ranks.receive_from(0)?;
    ranks.send_to(0, &vec![0; PAIR_BYTES])
}

/// Times a sum, and checks it.
fn measure_sums(ranks: &mut Ranks, bytes: usize) -> Result<Duration> {
    let own = ranks.rank() as i64 + 1;
    let n_ranks = ranks.world_size() as i64;
    let mut values = vec![own; bytes.div_ceil(8)];
    let time = repeat(ranks, repetitions(bytes), |ranks| {
        values.fill(own);
        ranks.add_all(&mut values)
    })?;
    let expected = n_ranks * (n_ranks + 1) / 2;
    match values.iter().all(|&value| value == expected) {
        true => Ok(time),
        false => Err(invalid(ranks, 0, "sums")),
    }
}

/// Median time from an order of rank 0 until all ranks have done `work` and replied. The first
/// repetition, which fills caches, is not counted unless it is the only one.
fn repeat(
    ranks: &mut Ranks,
    n: usize,
    mut work: impl FnMut(&mut Ranks) -> Result<()>,
) -> Result<Duration> {
    let mut times = Vec::with_capacity(n);
    for _ in 0..n {
        let start = Instant::now();
        if ranks.is_leader() {
            ranks.order(&[0])?;
        } else {
            ranks.obey()?;
        }
        work(ranks)?;
        ranks.gather(&[])?;
        times.push(start.elapsed());
    }
    if times.len() > 1 {
        times.remove(0);
    }
    Ok(median(times))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn invalid(ranks: &Ranks, rank: usize, content: &'static str) -> RanksError {
    RanksError::Malformed {
        rank,
        host: ranks.hosts()[rank].clone(),
        source: FrameError::Content(content),
    }
}
