//! Counts of what an import drops, repairs and leaves out, with the first location of each.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// How often something happened, and where first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// How often.
    pub n: usize,
    /// The first location as `file:line`, or `file:number` in an array.
    pub first: String,
}

/// Counts by reason, in the order of the reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Cow<'static, str>, Count>);

impl Counts {
    /// Adds one.
    pub(crate) fn add(&mut self, reason: impl Into<Cow<'static, str>>, location: &str) {
        let first = || Count {
            n: 0,
            first: location.to_owned(),
        };
        self.0.entry(reason.into()).or_insert_with(first).n += 1;
    }

    /// The counts with their reasons.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Count)> {
        self.0.iter().map(|(reason, count)| (&**reason, count))
    }

    /// The number of times for one reason.
    pub fn of(&self, reason: &str) -> usize {
        self.0.get(reason).map_or(0, |count| count.n)
    }

    /// The number of times for all reasons.
    pub fn total(&self) -> usize {
        self.0.values().map(|count| count.n).sum()
    }
}
