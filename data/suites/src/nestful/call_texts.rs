//! Formats grounded calls as the texts that are compared: the slots of each function, and whole
//! calls.
//!
//! Values are formatted like Python's `str`, so 2 and `"2"` have the same text, but 2.0 has a
//! different text.

use std::collections::BTreeMap;

use tooltune_json::python::{PyValue, python_str};

use super::ground::GroundedCall;

/// The origin of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotSide {
    /// Strings are unchanged.
    Gold,
    /// If a reference lacks its closing `$`, it is added.
    Prediction,
}

/// The texts `argument = value` of a call, in order.
fn slot_texts(call: &GroundedCall, side: SlotSide) -> Vec<String> {
    let slot = |(argument, value): (&String, &PyValue)| {
        let mut text = python_str(value);
        let is_reference = matches!(value, PyValue::Text(_)) && text.starts_with('$');
        if side == SlotSide::Prediction && is_reference && !text.ends_with('$') {
            text.push('$');
        }
        format!("{argument} = {text}")
    };
    call.arguments.iter().map(slot).collect()
}

/// Whether the call is a placeholder that means "no call".
fn is_dummy(call: &GroundedCall) -> bool {
    call.name == "dummy" && call.arguments.is_empty()
}

/// Names of the functions, in order.
pub(super) fn call_names(calls: &[GroundedCall]) -> Vec<String> {
    let real = calls.iter().filter(|call| !is_dummy(call));
    real.map(|call| call.name.clone()).collect()
}

/// The slots of each function. If a function is called several times, its last call is used.
pub(super) fn slots_by_name(
    calls: &[GroundedCall],
    side: SlotSide,
) -> BTreeMap<String, Vec<String>> {
    let real = calls.iter().filter(|call| !is_dummy(call));
    real.map(|call| (call.name.clone(), slot_texts(call, side)))
        .collect()
}

/// Each call as `name(argument = value, ..)`, with sorted slots.
pub(super) fn call_texts(calls: &[GroundedCall], side: SlotSide) -> Vec<CallTexts> {
    let text = |call: &GroundedCall| {
        let mut slots = slot_texts(call, side);
        slots.sort_unstable();
        let text = format!("{}({})", call.name, slots.join(", "));
        // The text is cut at the first parenthesis. A name that contains a parenthesis is also cut
        // there.
        let name = text.split_once('(').map_or("", |(name, _)| name).to_owned();
        CallTexts { name, text }
    };
    calls.iter().map(text).collect()
}

/// The name and text of a call, for alignment and comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallTexts {
    pub(super) name: String,
    pub(super) text: String,
}

/// Fraction of positions at which two sequences have the same call, 0 to 1.
///
/// Sequences of equal length are compared position by position. Otherwise gold calls are skipped
/// until the name equals the name of the next predicted call, and calls without a partner also
/// count as positions.
///
/// # Source
///
/// NESTFUL, section 4.2, partial sequence match, with the alignment of the published scorer.
pub(super) fn partial_match(gold: &[CallTexts], pred: &[CallTexts]) -> f64 {
    if gold.len() == pred.len() {
        let n_equal = gold.iter().zip(pred).filter(|(g, p)| g == p).count();
        return share(n_equal, gold.len());
    }
    let (mut gold_idx, mut pred_idx) = (0, 0);
    let (mut n_positions, mut n_equal) = (0, 0);
    loop {
        n_positions += match (gold.get(gold_idx), pred.get(pred_idx)) {
            (None, None) => return share(n_equal, n_positions),
            (Some(left), Some(right)) if left.name == right.name => {
                n_equal += usize::from(left == right);
                gold_idx += 1;
                pred_idx += 1;
                1
            }
            (Some(_), _) => {
                gold_idx += 1;
                1
            }
            (None, Some(_)) => {
                pred_idx += 1;
                1
            }
        };
    }
}

fn share(n: usize, n_all: usize) -> f64 {
    match n_all {
        0 => 0.0,
        n_all => n as f64 / n_all as f64,
    }
}
