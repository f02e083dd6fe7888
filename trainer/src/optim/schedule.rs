//! Learning-rate schedules of transformers.

use crate::config::{LrSchedulerType, RetrieverConfig, TrainConfig};

/// Parameters of a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRateSchedule {
    /// Schedule type.
    pub schedule: LrSchedulerType,
    /// Learning rate after warm-up.
    pub peak: f64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
}

impl LearningRateSchedule {
    /// The schedule of a run of `total_steps`.
    pub fn for_training(config: &TrainConfig, total_steps: u64) -> Self {
        Self {
            schedule: config.lr_scheduler_type,
            peak: config.learning_rate,
            warmup_steps: config.warmup().steps(total_steps),
            total_steps,
        }
    }

    /// The schedule of a retriever run of `total_steps`.
    pub fn for_retriever(config: &RetrieverConfig, total_steps: u64) -> Self {
        let settings = TrainConfig {
            lr_scheduler_type: config.lr_scheduler_type,
            learning_rate: config.learning_rate,
            warmup_ratio: Some(config.warmup_ratio),
            ..TrainConfig::default()
        };
        Self::for_training(&settings, total_steps)
    }

    /// Learning rate of update `step`, counted from 1.
    ///
    /// # Source
    ///
    /// `transformers/optimization.py` 5.23, `_get_*_schedule_*_lr_lambda`, whose `current_step` is
    /// the number of earlier updates, `step - 1`.
    pub fn at(&self, step: u64) -> f64 {
        let done = step.saturating_sub(1);
        let warming = self.schedule != LrSchedulerType::Constant && done < self.warmup_steps;
        if warming {
            return self.peak * done as f64 / self.warmup_steps.max(1) as f64;
        }
        let decay_steps = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let progress =
            (done.saturating_sub(self.warmup_steps) as f64 / decay_steps as f64).min(1.0);
        self.peak
            * match self.schedule {
                LrSchedulerType::Constant | LrSchedulerType::ConstantWithWarmup => 1.0,
                LrSchedulerType::Linear => 1.0 - progress,
                LrSchedulerType::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            }
    }

    /// Largest learning rate of the run: below the peak if warm-up covers all steps, and 0 for a
    /// run of one step with warm-up.
    pub fn largest(&self) -> f64 {
        // The rate only rises during warm-up.
        let after_warmup = self.warmup_steps.saturating_add(1);
        self.at(after_warmup.min(self.total_steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule with peak 2.
    fn schedule(
        kind: LrSchedulerType,
        warmup_steps: u64,
        total_steps: u64,
    ) -> LearningRateSchedule {
        let config = TrainConfig {
            lr_scheduler_type: kind,
            learning_rate: 2.0,
            warmup_steps: Some(warmup_steps),
            ..TrainConfig::default()
        };
        LearningRateSchedule::for_training(&config, total_steps)
    }

    fn at(kind: LrSchedulerType, step: u64) -> f64 {
        schedule(kind, 4, 24).at(step)
    }

    /// Values of `get_scheduler(name, opt, 4, 24).get_last_lr()`, transformers 5.23.
    #[test]
    fn schedules_agree_with_transformers() {
        let expected = [
            (LrSchedulerType::Constant, [2.0, 2.0, 2.0, 2.0]),
            (LrSchedulerType::ConstantWithWarmup, [0.0, 1.0, 2.0, 2.0]),
            (LrSchedulerType::Linear, [0.0, 1.0, 2.0, 1.0]),
            (LrSchedulerType::Cosine, [0.0, 1.0, 2.0, 1.0]),
        ];
        for (schedule, values) in expected {
            for (step, value) in [1, 3, 5, 15].into_iter().zip(values) {
                let got = at(schedule, step);
                assert!(
                    (got - value).abs() < 1e-12,
                    "{schedule:?} step {step}: {got}"
                );
            }
        }
        assert!((at(LrSchedulerType::Cosine, 10) - 1.707_106_781_186_547_5).abs() < 1e-12);
    }

    #[test]
    fn the_largest_rate_is_the_maximum_over_steps() {
        let schedules = [
            LrSchedulerType::Constant,
            LrSchedulerType::ConstantWithWarmup,
            LrSchedulerType::Linear,
            LrSchedulerType::Cosine,
        ];
        for kind in schedules {
            for (warmup_steps, total_steps) in [(0, 1), (1, 1), (1, 2), (4, 24), (9, 9), (30, 7)] {
                let schedule = schedule(kind, warmup_steps, total_steps);
                let steps = (1..=total_steps).map(|step| schedule.at(step));
                assert_eq!(
                    schedule.largest(),
                    steps.fold(0.0, f64::max),
                    "{schedule:?}"
                );
            }
        }
    }
}
