//! Runs the gold calls before any prediction, because a gold sequence that does not compute its own
//! answer cannot measure predictions.
//!
//! Some gold sequences of the benchmark use the network, the clock or random numbers.

use super::compare::{official_win, strict_win};
use super::error::NestfulError;
use super::row::NestfulRow;
use super::runner::{Execution, ToolRunner};
use super::sample::execute;
use super::sequence::Binding;

/// The result of running a gold sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoldReplay {
    /// It computes the gold answer, by the published or by the strict comparison.
    Wins,
    /// The runner does not have some tools of the row.
    NeedsTools,
    /// It computes a different answer, or no answer.
    Fails {
        /// The computed answer or the error.
        reason: String,
    },
}

/// Runs the gold calls of a row, with positional arguments.
///
/// # Errors
///
/// The runner fails.
pub fn replay_gold(row: &NestfulRow, runner: &dyn ToolRunner) -> Result<GoldReplay, NestfulError> {
    if !row.is_runnable(runner) {
        return Ok(GoldReplay::NeedsTools);
    }
    let execution = execute(&row.output, &row.tools, Binding::Position, runner)?;
    let reason = match &execution {
        Execution::Failed(failure) => failure.to_string(),
        Execution::Value(value) => {
            let is_win = official_win(&execution, &row.gold_answer) == Some(true);
            if is_win || strict_win(&execution, &row.gold_answer) {
                return Ok(GoldReplay::Wins);
            }
            format!(
                "the gold calls compute {}",
                tooltune_json::python::python_repr(value)
            )
        }
    };
    Ok(GoldReplay::Fails { reason })
}
