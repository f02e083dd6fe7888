//! Watches a run for a loss that rises to many times its best, while it can still be stopped.

/// Weight of a new step in the mean, so that the last five or so count and no single batch.
const NEW: f64 = 0.2;

/// How many times the best mean is many.
const MANY: f64 = 3.0;

/// Nats above the best below which a rise is noise, as between two losses near zero.
const LEAST_RISE: f64 = 0.5;

/// The mean loss of the last steps, and the lowest that it was.
#[derive(Debug, Clone, Default)]
pub(super) struct LossWatch {
    mean: Option<f64>,
    best: Option<Best>,
    /// The mean of which a warning has spoken.
    told: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Best {
    mean: f64,
    step: u64,
}

impl LossWatch {
    /// Takes the loss of a step; what to warn of, if the loss has risen that far. It is told again only
    /// where it has risen as much once more.
    pub(super) fn take(&mut self, step: u64, loss: f64, rate_key: &str) -> Option<String> {
        // Steps without an update have warnings of their own.
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
            "step {step}: the loss rises, {mean:.3} on average of the last steps after {:.3} at step \
             {}: the run diverges; stop it with Ctrl-C and lower {rate_key}, its checkpoints stay",
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
    fn a_loss_that_rises_to_many_times_its_best_is_told_and_told_again_if_it_goes_on() {
        let falls = (0..20).map(|i| 3.0 - 0.1 * f64::from(i));
        let found = warnings(falls.clone().chain([68.0; 12]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("step 21: the loss rises, "),
            "{found:?}"
        );
        assert!(
            found[0].contains("at step 20: the run diverges"),
            "{found:?}"
        );
        assert!(found[0].contains("lower train.learning_rate"), "{found:?}");
        assert!(warnings(falls).is_empty());
    }

    #[test]
    fn noise_and_losses_near_zero_are_not_told() {
        let noise = (0..50).map(|i| if i % 7 == 0 { 4.0 } else { 1.0 });
        assert!(warnings(noise).is_empty());
        let tiny = (0..50).map(|i| if i < 25 { 1e-4 } else { 0.1 });
        assert!(warnings(tiny).is_empty());
        assert!(warnings([f64::NAN, 1.0, f64::INFINITY, 1.0]).is_empty());
    }
}
