//! Scores one completion of a row: matching texts, and whether the calls compute the answer.
//!
//! A completion that cannot be parsed or executed is never an error: it scores zero.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tooltune_json::python::PyValue;

use super::call_texts::{SlotSide, call_names, call_texts, partial_match, slots_by_name};
use super::compare::{official_win, strict_win};
use super::dag::{DagStatistics, dag_statistics};
use super::error::NestfulError;
use super::ground::ground_calls;
use super::parse::Parser;
use super::row::{NestfulRow, ToolSpec};
use super::runner::{Execution, ToolRunner};
use super::sequence::{Binding, Sequence};

/// The scores of one completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleScore {
    /// Whether the completion could not be parsed, or contains an invalid call.
    pub parse_error: bool,
    /// Number of compared calls.
    pub n_pred: usize,
    /// Names of the gold functions.
    pub gold_names: Vec<String>,
    /// Names of the predicted functions.
    pub pred_names: Vec<String>,
    /// The slots of the last call of each gold or predicted function, ordered by function name.
    pub slot_rows: Vec<SlotTexts>,
    /// Fraction of equal positions in the aligned sequences, 0 to 1.
    pub partial: f64,
    /// Whether all positions are equal.
    pub full: bool,
    /// Whether the calls compute the gold answer.
    pub win: Win,
    /// The shape of the gold sequence.
    pub gold_dag: DagStatistics,
}

/// The texts `argument = value` for a function's last call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotTexts {
    /// The gold slots; empty if the function is not called.
    pub gold: Vec<String>,
    /// The predicted slots.
    pub pred: Vec<String>,
}

/// Whether calls compute the gold answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Win {
    /// The calls were run, or there were none.
    Scored {
        /// By position and the published comparison; `None` if the published scorer raises an
        /// error.
        official: Option<bool>,
        /// By name and the strict comparison.
        strict: bool,
    },
    /// The runner does not have some tools of the row.
    NeedsTools,
    /// The gold calls do not compute the gold answer.
    GoldFails,
}

impl Win {
    /// The result of a sequence without calls.
    pub const LOSS: Self = Self::Scored {
        official: Some(false),
        strict: false,
    };

    /// Whether it is a win by the published rules; a failure of the published scorer is not a win.
    /// `None` if not scored.
    pub fn official(self) -> Option<bool> {
        match self {
            Self::Scored { official, .. } => Some(official == Some(true)),
            Self::NeedsTools | Self::GoldFails => None,
        }
    }

    /// Whether it is a win by the strict rules; `None` if not scored.
    pub fn strict(self) -> Option<bool> {
        match self {
            Self::Scored { strict, .. } => Some(strict),
            Self::NeedsTools | Self::GoldFails => None,
        }
    }
}

/// Scores one completion. This assumes that the gold calls compute the gold answer, which
/// [`super::score_rows`] checks.
///
/// # Errors
///
/// - the gold sequence has no calls
/// - the runner fails
///
/// # Source
///
/// NESTFUL, section 4.2; the published scorer for everything that the paper does not specify.
pub fn score_sample(
    row: &NestfulRow,
    completion: &str,
    parser: Parser,
    runner: &dyn ToolRunner,
) -> Result<SampleScore, NestfulError> {
    let gold = ground_calls(&row.output).unwrap_or_default();
    if gold.is_empty() {
        return Err(NestfulError::EmptyGold);
    }
    let parsed = parser.parse(completion);
    let grounded = ground_calls(&parsed.calls);
    let parse_error = parsed.is_error || grounded.is_none();
    let pred = grounded.unwrap_or_default();
    let mut gold_slots = slots_by_name(&gold, SlotSide::Gold);
    let mut pred_slots = slots_by_name(&pred, SlotSide::Prediction);
    let all_names: BTreeSet<String> = gold_slots
        .keys()
        .chain(pred_slots.keys())
        .cloned()
        .collect();
    let partial = partial_match(
        &call_texts(&gold, SlotSide::Gold),
        &call_texts(&pred, SlotSide::Prediction),
    );
    Ok(SampleScore {
        parse_error,
        n_pred: pred.len(),
        gold_names: call_names(&gold),
        pred_names: call_names(&pred),
        slot_rows: all_names
            .iter()
            .map(|name| SlotTexts {
                gold: gold_slots.remove(name).unwrap_or_default(),
                pred: pred_slots.remove(name).unwrap_or_default(),
            })
            .collect(),
        partial,
        full: partial == 1.0,
        win: if row.is_runnable(runner) {
            win(&parsed.calls, row, runner)?
        } else {
            Win::NeedsTools
        },
        gold_dag: dag_statistics(&row.output),
    })
}

fn win(calls: &[PyValue], row: &NestfulRow, runner: &dyn ToolRunner) -> Result<Win, NestfulError> {
    if calls.is_empty() {
        return Ok(Win::LOSS);
    }
    let by_position = execute(calls, &row.tools, Binding::Position, runner)?;
    let by_name = execute(calls, &row.tools, Binding::Name, runner)?;
    Ok(Win::Scored {
        official: official_win(&by_position, &row.gold_answer),
        strict: strict_win(&by_name, &row.gold_answer),
    })
}

/// Binds and runs calls; binding errors are failed executions.
pub(super) fn execute(
    calls: &[PyValue],
    tools: &[ToolSpec],
    binding: Binding,
    runner: &dyn ToolRunner,
) -> Result<Execution, NestfulError> {
    match Sequence::bind(calls, tools, binding) {
        Ok(sequence) => runner.run(&sequence),
        Err(failure) => Ok(Execution::Failed(failure)),
    }
}
