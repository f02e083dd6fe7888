//! Sums outcomes of loops up as win rates, the only metric that the paper has for them.

use serde::{Deserialize, Serialize};

use super::compare::{official_win, strict_win};
use super::error::NestfulError;
use super::react::ReactOutcome;
use super::replay::{GoldReplay, replay_gold};
use super::row::NestfulRow;
use super::runner::{Execution, ToolRunner};
use super::sample::Win;
use crate::bootstrap::{Estimate, estimates, indicator, mean};

/// The numbers of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactScore {
    /// Whether the last result of a call equals the gold answer.
    pub win: Win,
    /// Texts of the model.
    pub n_steps: usize,
    /// Whether any of them could not be read.
    pub parse_error: bool,
}

/// The numbers of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReactReport {
    /// Loops.
    pub n: usize,
    /// Loops whose wins count.
    pub n_run: usize,
    /// Share of wins by the published comparison.
    pub win_official: Option<Estimate>,
    /// Share of wins by the strict comparison.
    pub win_strict: Option<Estimate>,
    /// Share of loops with a text that could not be read.
    pub parse_error_rate: Estimate,
    /// Mean number of texts.
    pub steps: Estimate,
}

/// Scores a loop. Without a call that succeeded there is no win.
///
/// # Errors
///
/// - the runner cannot work
pub fn score_react(
    row: &NestfulRow,
    outcome: &ReactOutcome,
    runner: &dyn ToolRunner,
) -> Result<ReactScore, NestfulError> {
    let win = match replay_gold(row, runner)? {
        GoldReplay::NeedsTools => Win::NeedsTools,
        GoldReplay::Fails { .. } => Win::GoldFails,
        GoldReplay::Wins => outcome.last_result().map_or(Win::LOSS, |value| {
            let execution = Execution::Value(value.clone());
            Win::Scored {
                official: official_win(&execution, &row.gold_answer),
                strict: strict_win(&execution, &row.gold_answer),
            }
        }),
    };
    Ok(ReactScore {
        win,
        n_steps: outcome.steps.len(),
        parse_error: outcome.steps.iter().any(|step| !step.is_readable),
    })
}

impl ReactReport {
    /// Names that [`ReactReport::value`] knows.
    pub const NAMES: [&'static str; 4] =
        ["win_official", "win_strict", "parse_error_rate", "steps"];

    /// The estimate of that name; none if the name is unknown or the run has no such number.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        match name {
            "win_official" => self.win_official,
            "win_strict" => self.win_strict,
            "parse_error_rate" => Some(self.parse_error_rate),
            "steps" => Some(self.steps),
            _ => None,
        }
    }

    /// Gathers the scores of a run.
    ///
    /// # Errors
    ///
    /// - there is no score
    pub fn new(scores: &[ReactScore]) -> Result<Self, NestfulError> {
        if scores.is_empty() {
            return Err(NestfulError::NoSamples);
        }
        let columns = |score: &ReactScore| [indicator(score.parse_error), score.n_steps as f64];
        let rows: Vec<[f64; 2]> = scores.iter().map(columns).collect();
        let [parse_error_rate, steps] = estimates(&rows);
        let share = |wins: fn(Win) -> Option<bool>| {
            mean(scores.iter().map(|score| wins(score.win).map(indicator)))
        };
        Ok(Self {
            n: scores.len(),
            n_run: scores
                .iter()
                .filter(|score| score.win.strict().is_some())
                .count(),
            win_official: share(Win::official),
            win_strict: share(Win::strict),
            parse_error_rate,
            steps,
        })
    }
}
