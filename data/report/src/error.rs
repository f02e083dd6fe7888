//! Says why there is no page.

use super::page::MAX_RUNS;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No run, or more than there are letters for.
    #[error("{n} runs were given; a report shows from 1 to {MAX_RUNS}")]
    NumberOfRuns {
        /// How many were given.
        n: usize,
    },
    /// A line that belongs to no step.
    #[error(
        "{run}: line {line} of {file} is no object with a whole number `step`; remove the line, or train \
         again into an empty folder"
    )]
    Line {
        /// Name of the run.
        run: String,
        /// `metrics.jsonl` or `timing.jsonl`.
        file: &'static str,
        /// From 1.
        line: usize,
    },
    /// Metrics of a suite that have no names.
    #[error(
        "{run}: the metrics of the suite {suite} ({label}) are no JSON object; evaluate again to \
         write them anew"
    )]
    Suite {
        /// Name of the run.
        run: String,
        /// Name of the suite.
        suite: String,
        /// Which of its results.
        label: String,
    },
    /// The page's own templates do not fit what they show.
    #[error("the page cannot be written: {0}")]
    Template(#[from] minijinja::Error),
}
