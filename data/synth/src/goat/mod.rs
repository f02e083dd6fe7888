//! Generates GOAT trajectories: a query, the calls that answer it with their outputs, and the
//! answer.
//!
//! Calls are generated first (GOAT, section 3.1): a connected set of APIs is drawn, its calls are
//! bound to each other and executed on synthetic tables, and only then put into words. The query
//! states every value that no call returns; rows that violate this are drawn again.
//!
//! The world of tables and APIs is constant and does not depend on the seed, so one executor and
//! one set of documents are valid for every data set.

mod api;
mod apis;
mod binding;
mod catalogue;
mod check;
mod executor;
mod functions;
mod kinds;
mod language;
mod partition;
mod rows;
mod statistics;
mod subgraphs;
mod world;

#[cfg(test)]
mod tests;

use serde::Serialize;
use thiserror::Error;
use tooltune_apis::{ApiDocument, Trajectory};

use self::api::Role;
use self::apis::TOOLS;
use self::catalogue::{Catalogue, Entry};

pub use executor::{CallProblem, GoatExecutor};
pub use statistics::{GoatStatistics, statistics};

/// Default maximum number of calls per trajectory.
pub const DEFAULT_MAX_CALLS: usize = 3;
/// Upper limit of `max_calls`.
pub const GREATEST_MAX_CALLS: usize = 4;

/// The split to draw. No query and no sequence of calls occurs in two splits, whatever their seeds
/// are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GoatSplit {
    /// For training.
    Train,
    /// For checkpoint selection.
    Dev,
    /// For the final evaluation on the tools and API sets of training.
    TestSeen,
    /// For the final evaluation; every row calls a tool that no other split calls.
    TestUnseen,
}

impl GoatSplit {
    /// All splits.
    pub const ALL: [Self; 4] = [Self::Train, Self::Dev, Self::TestSeen, Self::TestUnseen];

    /// The name used in files and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Dev => "dev",
            Self::TestSeen => "test_seen",
            Self::TestUnseen => "test_unseen",
        }
    }

    /// Default number of rows.
    pub fn default_rows(self) -> usize {
        match self {
            Self::Train => 3_000,
            Self::Dev => 100,
            Self::TestSeen | Self::TestUnseen => 300,
        }
    }
}

/// Options of the generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoatSynthOptions {
    /// Number of rows. A smaller set is a prefix of a larger one.
    pub rows: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// The split of the rows.
    pub split: GoatSplit,
    /// Maximum number of calls per trajectory, 1 to 4.
    pub max_calls: usize,
}

impl GoatSynthOptions {
    /// Default numbers of rows and calls.
    pub fn new(split: GoatSplit, seed: u64) -> Self {
        Self {
            rows: split.default_rows(),
            seed,
            split,
            max_calls: DEFAULT_MAX_CALLS,
        }
    }
}

/// Why no rows were generated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GoatSynthError {
    /// `max_calls` is out of range.
    #[error("max_calls is {0}; set it to a number from 1 to {GREATEST_MAX_CALLS}")]
    MaxCalls(usize),
    /// The split has fewer distinct rows than requested.
    #[error(
        "split {split} has only {found} distinct rows with these options, but {asked} were \
         requested; request at most {found}"
    )]
    TooMany {
        /// Name of the split.
        split: &'static str,
        /// Number of requested rows.
        asked: usize,
        /// Number of available rows.
        found: usize,
    },
}

/// An output that can fill a parameter, because both have the same kind of value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SemanticEdge {
    /// Call name of the source API.
    pub source: String,
    /// Path of the value in the output, such as `inns[].inn_id`.
    pub path: String,
    /// Call name of the target API.
    pub target: String,
    /// Name of the parameter.
    pub parameter: String,
    /// The kind of value, such as `inn.id`; documents never contain it.
    pub kind: String,
}

/// Generates the rows, depending only on `options`.
///
/// # Errors
///
/// - `max_calls` is not from 1 to 4
/// - the split has fewer distinct rows than requested; the error contains the number
pub fn generate(options: &GoatSynthOptions) -> Result<Vec<Trajectory>, GoatSynthError> {
    rows::generate(options)
}

/// The documents of all APIs, including held-out tools, in a fixed order.
pub fn documents() -> Vec<ApiDocument> {
    let catalogue = Catalogue::new();
    catalogue.entries().iter().map(Entry::document).collect()
}

/// All pairs of an output and a required parameter with the same kind of value.
pub fn semantic_edges() -> Vec<SemanticEdge> {
    Catalogue::new().semantic_edges()
}

/// The tools that only [`GoatSplit::TestUnseen`] calls.
pub fn held_out_tools() -> Vec<&'static str> {
    let held_out = TOOLS.iter().filter(|tool| tool.role == Role::HeldOut);
    held_out.map(|tool| tool.name.as_str()).collect()
}
