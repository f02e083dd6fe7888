//! Detects a loss that rises to a multiple of its best, while the run can still be stopped.

/// Weight of a new step in the moving average, which then covers about five steps.
const NEW: f64 = 0.2;

/// Ratio to the best average from which the loss counts as diverging.
const MANY: f64 = 3.0;

/// Smallest rise in nats that is not treated as noise, for losses near zero.
const LEAST_RISE: f64 = 0.5;

/// Moving average of the loss, and its lowest value so far.
#[derive(Debug, Clone, Default)]
pub(super) struct LossWatch {
    mean: Option<f64>,
    best: Option<Best>,
    /// The average at the last warning.
    told: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Best {
    mean: f64,
    step: u64,
}

impl LossWatch {
    /// Adds the loss of a step and returns a warning if the loss has risen too far. The warning
    /// repeats only after another rise by the same ratio.
    pub(super) fn take(&mut self, step: u64, loss: f64, rate_key: &str) -> Option<String> {
        // Steps without an update have their own warnings.
        if !loss.is_finite() {
            return None;
        }
        let mean = self.mean.map_or(loss, |mean| mean + NEW * (loss - mean));
        self.mean = Some(mean);
        let best = match self.best {
            Some(best) if best.mean <= mean => best,
            _ => *self.best.insert(Best { mean, step }),
        };
        let many = MANY * self.told.unwrap_or(best.mean);
        if mean <= many || mean - best.mean < LEAST_RISE {
            return None;
        }
        self.told = Some(mean);
        Some(format!(
            "step {step}: the loss rises: average of the last steps {mean:.3}, was {:.3} at step {}: \
             the run diverges; stop it with Ctrl-C and lower {rate_key}; its checkpoints are kept",
            best.mean, best.step
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(losses: impl IntoIterator<Item = f64>) -> Vec<String> {
        let mut watch = LossWatch::default();
        let steps = losses.into_iter().zip(1..);
        steps
            .filter_map(|(loss, step)| watch.take(step, loss, "train.learning_rate"))
            .collect()
    }

    #[test]
    fn a_diverging_loss_is_reported_and_again_if_it_continues() {
        let falls = (0..20).map(|i| 3.0 - 0.1 * f64::from(i));
        let messages = warnings(falls.clone().chain([68.0; 12]));
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(
            messages[0].starts_with("step 21: the loss rises: "),
            "{messages:?}"
        );
        assert!(
            messages[0].contains("at step 20: the run diverges"),
            "{messages:?}"
        );
        assert!(
            messages[0].contains("lower train.learning_rate"),
            "{messages:?}"
        );
        assert!(warnings(falls).is_empty());
    }

    #[test]
    fn noise_and_losses_near_zero_are_not_reported() {
        let noise = (0..50).map(|i| if i % 7 == 0 { 4.0 } else { 1.0 });
        assert!(warnings(noise).is_empty());
        let tiny = (0..50).map(|i| if i < 25 { 1e-4 } else { 0.1 });
        assert!(warnings(tiny).is_empty());
        assert!(warnings([f64::NAN, 1.0, f64::INFINITY, 1.0]).is_empty());
    }
}
