//! Warns if the loss diverges: its moving average is far above the lowest average so far.

/// Weight of a new step in the moving average, which then covers about five steps.
const SMOOTHING: f64 = 0.2;

/// The loss is diverging if its average exceeds the best average by more than this factor.
const DIVERGENCE_RATIO: f64 = 3.0;

/// Smallest rise in nats that triggers a warning. Smaller rises of a loss near zero are noise.
const MIN_RISE: f64 = 0.5;

/// Moving average of the loss, and its lowest value so far.
#[derive(Debug, Clone, Default)]
pub(super) struct LossWatch {
    mean: Option<f64>,
    best: Option<Best>,
    /// The average at the last warning.
    last_warned: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Best {
    mean: f64,
    step: u64,
}

impl LossWatch {
    /// Adds the loss of a step and returns a warning if the loss has risen too far. The warning is
    /// repeated only after a further rise by the same ratio.
    pub(super) fn take(&mut self, step: u64, loss: f64, rate_key: &str) -> Option<String> {
        // Steps without an update have their own warnings.
        if !loss.is_finite() {
            return None;
        }
        let mean = self
            .mean
            .map_or(loss, |mean| mean + SMOOTHING * (loss - mean));
        self.mean = Some(mean);
        let best = match self.best {
            Some(best) if best.mean <= mean => best,
            _ => *self.best.insert(Best { mean, step }),
        };
        let threshold = DIVERGENCE_RATIO * self.last_warned.unwrap_or(best.mean);
        if mean <= threshold || mean - best.mean < MIN_RISE {
            return None;
        }
        self.last_warned = Some(mean);
        Some(format!(
            "step {step}: the loss rises: its moving average is {mean:.3}, the lowest was {:.3} at step {}: \
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
    fn a_diverging_loss_is_reported_repeatedly() {
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
