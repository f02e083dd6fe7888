//! Aggregates the outcomes of loops as win rates, which are the paper's only metric for loops.

use serde::{Deserialize, Serialize};

use super::compare::{official_win, strict_win};
use super::error::NestfulError;
use super::react::ReactOutcome;
use super::replay::{GoldReplay, replay_gold};
use super::row::NestfulRow;
use super::runner::{Execution, ToolRunner};
use super::sample::Win;
use crate::bootstrap::{Estimate, estimates, indicator, mean, unbounded_mean};
use crate::named_metrics::named_estimates;

/// The scores of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactScore {
    /// Whether the last result of a call equals the gold answer.
    pub win: Win,
    /// Number of model turns.
    pub n_steps: usize,
    /// Whether any turn could not be parsed.
    pub parse_error: bool,
}

/// The metrics of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReactReport {
    /// Number of loops.
    pub n: usize,
    /// Number of loops with a defined win.
    pub n_run: usize,
    /// Win rate by the published comparison.
    pub win_official: Option<Estimate>,
    /// Win rate by the strict comparison.
    pub win_strict: Option<Estimate>,
    /// Fraction of loops with an unparsable turn.
    pub parse_error_rate: Estimate,
    /// Mean number of turns.
    pub steps: Estimate,
}

/// Scores a loop. A loop without a successful call does not win.
///
/// # Errors
///
/// The runner fails.
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

named_estimates!(
    ReactReport,
    |report| report,
    [win_official, win_strict, parse_error_rate, steps]
);

impl ReactReport {
    /// Aggregates the scores of a run.
    ///
    /// # Errors
    ///
    /// There are no scores.
    pub fn new(scores: &[ReactScore]) -> Result<Self, NestfulError> {
        if scores.is_empty() {
            return Err(NestfulError::NoSamples);
        }
        let parse_errors: Vec<[f64; 1]> = scores
            .iter()
            .map(|sample_score| [indicator(sample_score.parse_error)])
            .collect();
        let [parse_error_rate] = estimates(&parse_errors);
        let steps = unbounded_mean(scores.iter().map(|score| Some(score.n_steps as f64)));
        let estimate_of = |wins: fn(Win) -> Option<bool>| {
            mean(scores.iter().map(|score| wins(score.win).map(indicator)))
        };
        Ok(Self {
            n: scores.len(),
            n_run: scores
                .iter()
                .filter(|score| score.win.strict().is_some())
                .count(),
            win_official: estimate_of(Win::official),
            win_strict: estimate_of(Win::strict),
            parse_error_rate,
            steps: steps.unwrap_or_default(),
        })
    }
}
