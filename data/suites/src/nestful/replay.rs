//! The golds run before any prediction: what does not compute its own answer measures nothing.
//!
//! Some golds of the benchmark read the network or the clock, or draw random numbers.

use super::compare::{official_win, strict_win};
use super::error::NestfulError;
use super::row::NestfulRow;
use super::runner::{Execution, ToolRunner};
use super::sample::execute;
use super::sequence::Binding;

/// What became of a gold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoldReplay {
    /// It computes the gold answer, by the published or by the strict comparison.
    Wins,
    /// The runner does not have all tools of the row.
    NeedsTools,
    /// It computes another answer, or none.
    Fails {
        /// What it computes, or why not.
        reason: String,
    },
}

/// Runs the gold of a row, arguments by position.
///
/// # Errors
///
/// - the runner cannot work
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
                "the gold computes {}",
                tooltune_rows::python::python_repr(value)
            )
        }
    };
    Ok(GoldReplay::Fails { reason })
}
