//! Messages: one or more frames of the same kind.

use crate::budgets::{FRAME_BYTES, MESSAGE_BYTES};
use crate::channel::Frame;
use crate::error::{RanksError, Result};
use crate::link::Shared;

/// Notes that this rank has done something.
pub(crate) fn made_progress(shared: &Shared) {
    let mut state = shared.state();
    state.own.progress = state.own.progress.wrapping_add(1);
}

/// The frames of a message: content, and whether another one follows.
pub(crate) fn pieces(bytes: &[u8]) -> Result<impl Iterator<Item = (&[u8], bool)>> {
    if bytes.len() > MESSAGE_BYTES {
        return Err(RanksError::TooLong {
            limit: MESSAGE_BYTES,
        });
    }
    let n_frames = bytes.len().div_ceil(FRAME_BYTES).max(1);
    let piece = move |i: usize| {
        let end = bytes.len().min((i + 1) * FRAME_BYTES);
        (&bytes[i * FRAME_BYTES..end], i + 1 < n_frames)
    };
    Ok((0..n_frames).map(piece))
}

/// The message that begins with this frame.
pub(crate) fn rest_of(shared: &Shared, idx: usize, first: Frame) -> Result<Vec<u8>> {
    let Frame {
        kind,
        mut has_more,
        mut bytes,
    } = first;
    while has_more {
        let frame = shared.receive(idx, kind)?;
        if bytes.len() + frame.bytes.len() > MESSAGE_BYTES {
            return Err(shared.fail(RanksError::TooLong {
                limit: MESSAGE_BYTES,
            }));
        }
        bytes.extend_from_slice(&frame.bytes);
        has_more = frame.has_more;
    }
    Ok(bytes)
}
