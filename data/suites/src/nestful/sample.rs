//! One completion beside its row: matches of texts, and whether the calls compute the answer.
//!
//! A completion that cannot be read, or does not run, is never an error: it scores zero.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tooltune_rows::python::PyValue;

use super::call_texts::{Side, names, partial_match, slots_by_name, whole};
use super::compare::{official_win, strict_win};
use super::dag::{DagStatistics, dag_statistics};
use super::error::NestfulError;
use super::ground::ground;
use super::parse::Parser;
use super::row::{NestfulRow, ToolSpec};
use super::runner::{Execution, ToolRunner};
use super::sequence::{Binding, Sequence};

/// The scores of one completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleScore {
    /// Whether the completion could not be read, or one of its calls is no call.
    pub parse_error: bool,
    /// Calls that are compared.
    pub n_pred: usize,
    /// The functions that the gold calls.
    pub gold_names: Vec<String>,
    /// The functions that the completion calls.
    pub pred_names: Vec<String>,
    /// For each function of either, in the order of their names, the slots of its last call.
    pub slot_rows: Vec<SlotTexts>,
    /// Share of equal positions in the aligned sequences, 0 to 1.
    pub partial: f64,
    /// Whether all positions are equal.
    pub full: bool,
    /// Whether the calls compute the gold answer.
    pub win: Win,
    /// The shape of the gold.
    pub gold_dag: DagStatistics,
}

/// The texts `argument = value` of a function's last call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotTexts {
    /// Those of the gold; none if it does not call the function.
    pub gold: Vec<String>,
    /// Those of the completion.
    pub pred: Vec<String>,
}

/// Whether calls compute the gold answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Win {
    /// They were run, or there was nothing to run.
    Scored {
        /// By position and the published comparison; none where the published scorer stops.
        official: Option<bool>,
        /// By name and the strict comparison.
        strict: bool,
    },
    /// The row has tools that the runner does not have.
    NeedsTools,
    /// The gold itself does not compute the gold answer.
    GoldFails,
}

impl Win {
    /// A sequence without calls.
    pub const LOSS: Self = Self::Scored {
        official: Some(false),
        strict: false,
    };

    /// Whether the published scorer would count a win, where it stops none; none if not scored.
    pub fn official(self) -> Option<bool> {
        match self {
            Self::Scored { official, .. } => Some(official == Some(true)),
            Self::NeedsTools | Self::GoldFails => None,
        }
    }

    /// Whether the strict comparison has a win; none if not scored.
    pub fn strict(self) -> Option<bool> {
        match self {
            Self::Scored { strict, .. } => Some(strict),
            Self::NeedsTools | Self::GoldFails => None,
        }
    }
}

/// Scores one completion. The gold is taken for replayable; [`super::score_rows`] makes sure.
///
/// # Errors
///
/// - the gold has no calls
/// - the runner cannot work
///
/// # Source
///
/// NESTFUL, section 4.2, and the published scorer for all that the paper leaves open.
pub fn score_sample(
    row: &NestfulRow,
    completion: &str,
    parser: Parser,
    runner: &dyn ToolRunner,
) -> Result<SampleScore, NestfulError> {
    let gold = ground(&row.output).unwrap_or_default();
    if gold.is_empty() {
        return Err(NestfulError::EmptyGold);
    }
    let parsed = parser.parse(completion);
    let grounded = ground(&parsed.calls);
    let parse_error = parsed.is_error || grounded.is_none();
    let pred = grounded.unwrap_or_default();
    let mut gold_slots = slots_by_name(&gold, Side::Gold);
    let mut pred_slots = slots_by_name(&pred, Side::Prediction);
    let all_names: BTreeSet<String> = gold_slots
        .keys()
        .chain(pred_slots.keys())
        .cloned()
        .collect();
    let partial = partial_match(&whole(&gold, Side::Gold), &whole(&pred, Side::Prediction));
    Ok(SampleScore {
        parse_error,
        n_pred: pred.len(),
        gold_names: names(&gold),
        pred_names: names(&pred),
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

/// Binds and runs calls; what cannot be bound has failed.
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
