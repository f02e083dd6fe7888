//! Rows, a seed and a split in, GOAT trajectories out: a query, the calls that answer it with their
//! outputs, and the answer.
//!
//! Calls come first (GOAT, section 3.1): a connected set of APIs is drawn, its calls are bound to
//! each other and executed on invented tables, and only then put into words. Every value that no
//! call gives stands in the query; rows where it does not are drawn again.
//! The decision to question: the world of tables and APIs is one constant, not a function of the
//! seed, so that one executor and one set of documents serve every data set.

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
use tooltune_rows::tools::{ApiDocument, Trajectory};

use self::api::Role;
use self::apis::TOOLS;
use self::catalogue::{Catalogue, Entry};

pub use executor::{CallProblem, GoatExecutor};
pub use statistics::{GoatStatistics, statistics};

/// Most calls of a trajectory unless the options say otherwise.
pub const DEFAULT_MAX_CALLS: usize = 3;
/// The greatest value that `max_calls` may have.
pub const GREATEST_MAX_CALLS: usize = 4;

/// Which rows are drawn; no query and no sequence of calls is in two splits, whatever their seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GoatSplit {
    /// For training.
    Train,
    /// For choosing a checkpoint.
    Dev,
    /// For the final measure on the tools and the sets of APIs of training.
    TestSeen,
    /// For the final measure: every row calls a tool that no other split calls.
    TestUnseen,
}

impl GoatSplit {
    /// All splits.
    pub const ALL: [Self; 4] = [Self::Train, Self::Dev, Self::TestSeen, Self::TestUnseen];

    /// As file names and options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Dev => "dev",
            Self::TestSeen => "test_seen",
            Self::TestUnseen => "test_unseen",
        }
    }

    /// Number of rows of the usual data set.
    pub fn default_rows(self) -> usize {
        match self {
            Self::Train => 3_000,
            Self::Dev => 100,
            Self::TestSeen | Self::TestUnseen => 300,
        }
    }
}

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoatSynthOptions {
    /// Number of rows. The rows of a smaller set are the first rows of a larger one.
    pub rows: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// Which rows may be drawn.
    pub split: GoatSplit,
    /// Most calls of a trajectory, 1 to 4.
    pub max_calls: usize,
}

impl GoatSynthOptions {
    /// The usual number of rows and of calls.
    pub fn new(split: GoatSplit, seed: u64) -> Self {
        Self {
            rows: split.default_rows(),
            seed,
            split,
            max_calls: DEFAULT_MAX_CALLS,
        }
    }
}

/// Why there are no rows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GoatSynthError {
    /// `max_calls` is out of range.
    #[error("max_calls must be from 1 to {GREATEST_MAX_CALLS}, not {0}")]
    MaxCalls(usize),
    /// The split does not have so many different rows.
    #[error(
        "split {split} has {found} different rows with these options, {asked} were asked for; \
         ask for at most {found}"
    )]
    TooMany {
        /// The split's name.
        split: &'static str,
        /// Rows that were asked for.
        asked: usize,
        /// Rows that were found.
        found: usize,
    },
}

/// An output that fits a parameter, because both hold the same kind of value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SemanticEdge {
    /// Call name of the API that gives the value.
    pub source: String,
    /// Where the value stands in its output, such as `inns[].inn_id`.
    pub path: String,
    /// Call name of the API that takes the value.
    pub target: String,
    /// The parameter that takes it.
    pub parameter: String,
    /// The kind of value, such as `inn.id`; no document names it.
    pub kind: String,
}

/// Generates the rows; a pure function of `options`.
///
/// # Errors
///
/// - `max_calls` is not from 1 to 4
/// - the split has fewer different rows than asked for; the error says how many
pub fn generate(options: &GoatSynthOptions) -> Result<Vec<Trajectory>, GoatSynthError> {
    rows::generate(options)
}

/// The documents of all APIs, held-out tools included, in a fixed order.
pub fn documents() -> Vec<ApiDocument> {
    let catalogue = Catalogue::new();
    catalogue.entries().iter().map(Entry::document).collect()
}

/// Every pair of an output and a required parameter that hold the same kind of value.
pub fn semantic_edges() -> Vec<SemanticEdge> {
    Catalogue::new().semantic_edges()
}

/// The tools that only [`GoatSplit::TestUnseen`] calls.
pub fn held_out_tools() -> Vec<&'static str> {
    let held_out = TOOLS.iter().filter(|tool| tool.role == Role::HeldOut);
    held_out.map(|tool| tool.name.as_str()).collect()
}
