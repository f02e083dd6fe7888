//! Aggregates turns whose rejected calls were tried again.

use serde::{Deserialize, Serialize};

use super::score::TurnScore;
use super::summary::CallsMetrics;
use crate::bootstrap::{Estimate, unbounded_mean};

/// The metrics of a run in which rejected calls are tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetrySummary {
    /// Maximum number of retries per turn.
    pub limit: usize,
    /// Mean number of tries per turn, at least 1.
    pub mean_tries: Option<Estimate>,
    /// Number of turns whose last try was also rejected.
    pub n_rejected: usize,
    /// The metrics as if every turn had ended after this many tries.
    pub after: Vec<AfterTries>,
}

/// The metrics after a number of tries.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AfterTries {
    /// Maximum number of tries.
    pub tries: usize,
    /// Number of turns.
    pub n: usize,
    /// Fraction of right turns.
    pub right: Option<Estimate>,
    /// Fraction of expected calls made with all arguments right.
    pub call_exact: Option<Estimate>,
    /// Fraction of predicted calls that are valid for their tool.
    pub valid: Option<Estimate>,
}

impl RetrySummary {
    /// Aggregates turns, each with the scores of its tries in order.
    pub fn new(limit: usize, turns: &[Vec<TurnScore>]) -> Self {
        let n_tries = turns.iter().map(|tries| Some(tries.len() as f64));
        let after = |n: usize| {
            let last = turns
                .iter()
                .filter_map(|tries| tries.get(n).or(tries.last()));
            let metrics = CallsMetrics::from_scores(&last.collect::<Vec<_>>());
            AfterTries {
                tries: n + 1,
                n: metrics.n,
                right: metrics.right,
                call_exact: metrics.call_exact,
                valid: metrics.valid,
            }
        };
        Self {
            limit,
            mean_tries: unbounded_mean(n_tries),
            n_rejected: turns
                .iter()
                .filter_map(|tries| tries.last())
                .filter(|last| last.is_rejected())
                .count(),
            after: (0..=limit).map(after).collect(),
        }
    }

    /// One line for the terminal.
    pub fn line(&self) -> String {
        let mean = self.mean_tries.map_or(1.0, |mean| mean.value);
        let right = self.after.iter().filter_map(|after| {
            let right = after.right?.value;
            Some(format!("{:.1} % after {}", 100.0 * right, after.tries))
        });
        format!(
            "retries: {mean:.2} tries per turn; right turns: {}; {} turns without a valid call in \
             the end",
            right.collect::<Vec<_>>().join(", "),
            self.n_rejected
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, score_calls, tide_call};
    use super::*;
    use serde_json::json;

    #[test]
    fn each_turn_counts_with_its_last_try_so_far() {
        let gold = || vec![tide_call("Rye")];
        let right = || score_calls(gold(), gold());
        let rejected = || score_calls(gold(), vec![call("tides", json!({"port": "Rye"}))]);
        let turns = [
            vec![right()],
            vec![rejected(), right()],
            vec![rejected(), rejected(), rejected()],
            vec![score_calls(gold(), vec![tide_call("Ulm")])],
        ];
        let summary = RetrySummary::new(2, &turns);
        assert_eq!(summary.mean_tries.map(|mean| mean.value), Some(7.0 / 4.0));
        assert_eq!(summary.n_rejected, 1);
        let right = summary
            .after
            .iter()
            .map(|after| after.right.map(|right| right.value));
        assert_eq!(
            right.collect::<Vec<_>>(),
            [Some(0.25), Some(0.5), Some(0.5)]
        );
        let valid = summary
            .after
            .iter()
            .map(|after| after.valid.map(|valid| valid.value));
        assert_eq!(
            valid.collect::<Vec<_>>(),
            [Some(0.5), Some(0.75), Some(0.75)]
        );
        assert_eq!(
            summary.line(),
            "retries: 1.75 tries per turn; right turns: 25.0 % after 1, 50.0 % after 2, 50.0 % \
             after 3; 1 turns without a valid call in the end"
        );
    }
}
