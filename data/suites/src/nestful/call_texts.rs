//! Writes grounded calls as the texts that are compared: slots of a function, and whole calls.
//!
//! Values are printed as Python's `str` prints them, so that 2 and `"2"` are one text and 2.0 is
//! another.

use std::collections::BTreeMap;

use tooltune_rows::python::{PyValue, python_str};

use super::ground::GroundedCall;

/// Whose call is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Texts are as they are.
    Gold,
    /// A reference without its last `$` gets one.
    Prediction,
}

/// The texts `argument = value` of a call, in its order.
fn slots(call: &GroundedCall, side: Side) -> Vec<String> {
    let slot = |(argument, value): (&String, &PyValue)| {
        let mut text = python_str(value);
        let is_reference = matches!(value, PyValue::Text(_)) && text.starts_with('$');
        if side == Side::Prediction && is_reference && !text.ends_with('$') {
            text.push('$');
        }
        format!("{argument} = {text}")
    };
    call.arguments.iter().map(slot).collect()
}

/// A call that stands for no call.
fn is_dummy(call: &GroundedCall) -> bool {
    call.name == "dummy" && call.arguments.is_empty()
}

/// The names of the functions, in order.
pub(super) fn names(calls: &[GroundedCall]) -> Vec<String> {
    let real = calls.iter().filter(|call| !is_dummy(call));
    real.map(|call| call.name.clone()).collect()
}

/// The slots of each function, of its last call where it has several.
pub(super) fn slots_by_name(calls: &[GroundedCall], side: Side) -> BTreeMap<String, Vec<String>> {
    let real = calls.iter().filter(|call| !is_dummy(call));
    real.map(|call| (call.name.clone(), slots(call, side)))
        .collect()
}

/// Each call as `name(argument = value, ..)`, the slots sorted.
pub(super) fn whole(calls: &[GroundedCall], side: Side) -> Vec<CallTexts> {
    let text = |call: &GroundedCall| {
        let mut slots = slots(call, side);
        slots.sort_unstable();
        let text = format!("{}({})", call.name, slots.join(", "));
        // A name with a bracket in it is cut there, as the text is.
        let name = text.split_once('(').map_or("", |(name, _)| name).to_owned();
        CallTexts { name, text }
    };
    calls.iter().map(text).collect()
}

/// A call as it is aligned and compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallTexts {
    pub(super) name: String,
    pub(super) text: String,
}

/// The share of positions at which two sequences have the same call, 0 to 1.
///
/// Sequences of one length are compared as they stand. Otherwise the gold is passed over until its
/// name is that of the next predicted call, and what finds no partner counts as a position.
///
/// # Source
///
/// NESTFUL, section 4.2, partial sequence match, as the published scorer aligns it.
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
