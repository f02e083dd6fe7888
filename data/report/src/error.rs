//! Errors from rendering a page.

use super::page::MAX_RUNS;

/// Why the page cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no run, or there are more runs than letters.
    #[error("{n} runs given; one report takes 1 to {MAX_RUNS} runs")]
    NumberOfRuns {
        /// Number of runs given.
        n: usize,
    },
    /// A line has no step.
    #[error(
        "{run}: line {line} of {file} is not a JSON object with an integer `step`; remove the line, or \
         train again into an empty folder"
    )]
    Line {
        /// Name of the run.
        run: String,
        /// `metrics.jsonl` or `timing.jsonl`.
        file: &'static str,
        /// Line number, from 1.
        line: usize,
    },
    /// The metrics of a suite are not an object.
    #[error(
        "{run}: the metrics of suite {suite} ({label}) are not a JSON object; run the evaluation \
         again to rewrite them"
    )]
    Suite {
        /// Name of the run.
        run: String,
        /// Name of the suite.
        suite: String,
        /// Label of the result.
        label: String,
    },
    /// The templates do not match their data.
    #[error("cannot render the report page: {0}; report this as a bug")]
    Template(#[from] minijinja::Error),
}
