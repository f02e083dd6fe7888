//! Sums of integers over all ranks: followers send to the leader, which adds and sends back.

use crate::all_reduce::AllReduce;
use crate::channel::{Frame, Kind};
use crate::error::{RanksError, Result};
use crate::link::Shared;
use crate::messages::made_progress;

/// Values per frame of a sum: 512 KiB.
const SUM_VALUES: usize = 64 << 10;

/// Frames that a follower sends ahead of the sums that it has received. Together they must fit into
/// [`INBOX_BYTES`](crate::budgets::INBOX_BYTES): then neither side can block the other.
const SUM_FRAMES_AHEAD: usize = 4;

/// Adds the values of all followers to `sums`, and sends them the result.
pub(crate) fn add_as_leader(shared: &Shared, sums: &mut [i64]) -> Result<()> {
    let n_links = shared.links.len();
    receive_lengths(shared, sums.len())?;
    let mut bytes = Vec::with_capacity(SUM_VALUES * 8);
    for part in sums.chunks_mut(SUM_VALUES) {
        for idx in 0..n_links {
            let frame = shared.receive(idx, Kind::Sums)?;
            check_sums(shared, idx, part, &frame)?;
            let (values, _) = frame.bytes.as_chunks();
            for (sum, value) in part.iter_mut().zip(values) {
                *sum = sum.wrapping_add(i64::from_le_bytes(*value));
            }
        }
        fill_with(&mut bytes, part);
        for idx in 0..n_links {
            shared.send(idx, Kind::Sums, false, &bytes)?;
        }
    }
    made_progress(shared);
    Ok(())
}

/// Adds the values of all ranks by another way, once every rank has come with as many values.
pub(crate) fn add_by(shared: &Shared, by: &mut dyn AllReduce, sums: &mut [i64]) -> Result<()> {
    let n_values = (sums.len() as u64).to_le_bytes();
    if shared.rank > 0 {
        shared.send(0, Kind::Sums, false, &n_values)?;
    }
    receive_lengths(shared, sums.len())?;
    if shared.rank == 0 {
        for idx in 0..shared.links.len() {
            shared.send(idx, Kind::Sums, false, &n_values)?;
        }
    }
    let added = by.add_all(sums, &|| shared.check().is_ok());
    if let Err(reason) = added {
        // The library may have given up because another rank was lost.
        shared.check()?;
        return Err(shared.fail(RanksError::AllReduce { reason }));
    }
    made_progress(shared);
    Ok(())
}

/// Waits until every peer has sent the number of its values.
///
/// # Errors
///
/// The number is another one than `n_values`.
fn receive_lengths(shared: &Shared, n_values: usize) -> Result<()> {
    let n_values = (n_values as u64).to_le_bytes();
    for idx in 0..shared.links.len() {
        let frame = shared.receive(idx, Kind::Sums)?;
        if frame.bytes != n_values {
            return Err(wrong_sums(shared, idx, &n_values, &frame.bytes));
        }
    }
    Ok(())
}

/// Sends `sums` to the leader, and replaces them by its result.
pub(crate) fn add_as_follower(shared: &Shared, sums: &mut [i64]) -> Result<()> {
    shared.send(0, Kind::Sums, false, &(sums.len() as u64).to_le_bytes())?;
    let n_frames = sums.len().div_ceil(SUM_VALUES);
    let mut bytes = Vec::with_capacity(SUM_VALUES * 8);
    let mut n_sent = 0;
    for i in 0..n_frames {
        while n_sent < n_frames.min(i + SUM_FRAMES_AHEAD) {
            fill_with(&mut bytes, frame_of(sums, n_sent));
            shared.send(0, Kind::Sums, false, &bytes)?;
            n_sent += 1;
        }
        let frame = shared.receive(0, Kind::Sums)?;
        let end = sums.len().min((i + 1) * SUM_VALUES);
        let part = &mut sums[i * SUM_VALUES..end];
        check_sums(shared, 0, part, &frame)?;
        let (values, _) = frame.bytes.as_chunks();
        for (sum, value) in part.iter_mut().zip(values) {
            *sum = i64::from_le_bytes(*value);
        }
    }
    made_progress(shared);
    Ok(())
}

fn frame_of(sums: &[i64], i: usize) -> &[i64] {
    &sums[i * SUM_VALUES..sums.len().min((i + 1) * SUM_VALUES)]
}

/// Fills `bytes` with the values, 8 bytes each, little-endian.
fn fill_with(bytes: &mut Vec<u8>, values: &[i64]) {
    bytes.resize(values.len() * 8, 0);
    let (chunks, _) = bytes.as_chunks_mut();
    for (chunk, value) in chunks.iter_mut().zip(values) {
        *chunk = value.to_le_bytes();
    }
}

fn check_sums(shared: &Shared, idx: usize, part: &[i64], frame: &Frame) -> Result<()> {
    if frame.bytes.len() == part.len() * 8 && !frame.has_more {
        return Ok(());
    }
    let n_bytes = |n: usize| (n as u64).to_le_bytes();
    let (own, other) = (n_bytes(part.len() * 8), n_bytes(frame.bytes.len()));
    Err(wrong_sums(shared, idx, &own, &other))
}

/// The error about sums of different lengths.
fn wrong_sums(shared: &Shared, idx: usize, own: &[u8; 8], other: &[u8]) -> RanksError {
    let found = match <[u8; 8]>::try_from(other) {
        Ok(other) => format!("sums of length {}", u64::from_le_bytes(other)),
        Err(_) => "values instead of their number".to_owned(),
    };
    let link = &shared.links[idx];
    shared.fail(RanksError::OutOfStep {
        rank: link.rank,
        host: link.host.clone(),
        expected: format!("sums of length {}", u64::from_le_bytes(*own)),
        found,
    })
}
