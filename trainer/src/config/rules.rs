//! The rules that many settings share: present, in range, alone.
//!
//! A rule reports and returns; whoever calls it goes on with the value as it is. Something that is
//! missing is shown at the nearest table around it, because it has no line of its own.

use std::ops::RangeInclusive;

use super::diagnostics::{Place, Problem};
use super::read::{Findings, Places};
use crate::budgets::LORA_RANK;

/// Passes over the data beyond which a number is a mistake.
const MOST_EPOCHS: f64 = 1e5;

/// Adds what the checks find to what reading found.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    pub(super) findings: &'a mut Findings,
}

impl Checker<'_> {
    pub(super) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let place = place_of(&self.findings.places, path);
        self.findings.problems.push(Problem {
            message: message.into(),
            help: help.into(),
            place,
        });
    }

    /// Whether the setting stands in a source, readable or not.
    pub(super) fn is_typed(&self, path: &str) -> bool {
        self.findings.places.contains_key(path)
    }

    pub(super) fn typed_of<'a>(&self, first: &'a str, second: &'a str) -> &'a str {
        if self.is_typed(first) { first } else { second }
    }

    pub(super) fn required<T: Default>(&mut self, typed: Option<T>, path: &str, help: &str) -> T {
        typed.unwrap_or_else(|| {
            self.missing(path, help);
            T::default()
        })
    }

    /// Reports an absent setting, unless it is there and unreadable or under another name.
    pub(super) fn missing(&mut self, path: &str, help: &str) {
        if !self.is_typed(path) && !self.findings.misnamed.iter().any(|meant| meant == path) {
            self.report(path, format!("`{path}` is missing"), help);
        }
    }

    pub(super) fn require_table(&mut self, typed: bool, table: &str, reason: &str) {
        let prefix = format!("{table}.");
        let misnamed = self
            .findings
            .misnamed
            .iter()
            .any(|meant| meant.starts_with(&prefix));
        if !typed && !misnamed && !self.is_typed(table) {
            let message = format!("the table [{table}] is missing");
            self.report(table, message, format!("{reason}: add [{table}]"));
        }
    }

    pub(super) fn exclusive(&mut self, first: &str, second: &str) {
        let places = &self.findings.places;
        if let (Some(one), Some(other)) = (places.get(first), places.get(second)) {
            let is_later = (one.source, one.start) > (other.source, other.start);
            let later = if is_later { first } else { second };
            let message = format!("`{first}` and `{second}` exclude each other");
            self.report(later, message, "delete one of the two");
        }
    }

    pub(super) fn at_least(&mut self, path: &str, value: u64, least: u64) {
        if value < least {
            let message = format!("`{path}` is {value}");
            self.report(path, message, format!("it must be at least {least}"));
        }
    }

    /// The rank of an adapter.
    pub(super) fn rank(&mut self, path: &str, rank: usize) {
        self.at_least(path, rank as u64, 1);
        if rank > LORA_RANK {
            let help = format!(
                "it must be at most {LORA_RANK}: beyond the width of the model's matrices a rank adds \
                 memory alone, and those in use end at 1024"
            );
            self.report(path, format!("`{path}` is {rank}"), help);
        }
    }

    pub(super) fn above_zero(&mut self, path: &str, value: f64) {
        if value <= 0.0 {
            self.report(path, format!("`{path}` is {value:?}"), "it must be above 0");
        }
    }

    pub(super) fn epochs(&mut self, path: &str, value: f64) {
        self.above_zero(path, value);
        self.within(path, value, f64::MIN..=MOST_EPOCHS);
    }

    pub(super) fn below_one(&mut self, path: &str, value: f64) {
        if !(0.0..1.0).contains(&value) {
            let help = "it must be at least 0 and below 1";
            self.report(path, format!("`{path}` is {value:?}"), help);
        }
    }

    pub(super) fn within(&mut self, path: &str, value: f64, range: RangeInclusive<f64>) {
        if range.contains(&value) {
            return;
        }
        let (least, most) = (*range.start(), *range.end());
        let help = match (least > f64::MIN, most < f64::MAX) {
            (true, true) => format!("it must be from {least:?} to {most:?}"),
            (false, _) => format!("it must be at most {most:?}"),
            (true, false) => format!("it must be at least {least:?}"),
        };
        self.report(path, format!("`{path}` is {value:?}"), help);
    }
}

/// The place of a setting, or of the nearest table around it that was typed.
fn place_of(places: &Places, path: &str) -> Option<Place> {
    let mut path = path;
    loop {
        if let Some(place) = places.get(path) {
            return Some(*place);
        }
        path = match path.rfind(['.', '[']) {
            Some(end) => &path[..end],
            None => return None,
        };
    }
}
