//! Makes an axis of a range of values, with ticks at round numbers.

use super::number::tick_labels;

/// Greatest size of a value that an axis reaches to, so that a range is always finite.
const MAX_SIZE: f64 = 1e300;

/// Smaller ranges are none: their steps would lose their digits.
const MIN_RANGE: f64 = 1e-290;

/// An axis: what it spans, and where its ticks are.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    /// Least value.
    pub(super) low: f64,
    /// Greatest value; above `low`.
    pub(super) high: f64,
    /// Values of the ticks with their labels, rising.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// The axis of a measured quantity: it begins and ends at a tick.
    ///
    /// A range without width is widened, so that a constant curve runs through the middle.
    pub(super) fn of_values(low: f64, high: f64, n_ticks: usize) -> Self {
        let (low, high) = widened(low, high);
        let step = round_step((high - low) / n_ticks.max(1) as f64);
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        let ticks = multiples(first, last, step);
        Self {
            low: first * step,
            high: last * step,
            ticks,
        }
    }

    /// The same with zero on it: from zero for what is never below it, so that a height is as much of
    /// the drawing as of the quantity. What is always zero lies on the ground of an axis to one.
    pub(super) fn with_zero(low: f64, high: f64, n_ticks: usize) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        if high - low <= MIN_RANGE {
            return Self::of_values(0.0, 1.0, n_ticks);
        }
        Self::of_values(low, high, n_ticks)
    }

    /// The axis of optimizer steps: from zero to the last one, with ticks at whole numbers.
    pub(super) fn of_steps(last_step: f64, n_ticks: usize) -> Self {
        let high = last_step.max(1.0);
        let step = round_step(high / n_ticks.max(1) as f64).max(1.0);
        Self {
            low: 0.0,
            high,
            ticks: multiples(0.0, (high / step + 1e-9).floor(), step),
        }
    }

    /// Where a value lies, as a share of the axis in 0..=1.
    pub(super) fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

fn widened(low: f64, high: f64) -> (f64, f64) {
    let (low, high) = (low.max(-MAX_SIZE), high.min(MAX_SIZE));
    // Below this share of its size a range is rounding alone.
    let least = (1e-9 * low.abs().max(high.abs())).max(MIN_RANGE);
    if high - low > least {
        return (low, high);
    }
    let is_nothing = low.abs() <= MIN_RANGE;
    let margin = if is_nothing { 1.0 } else { 0.5 * low.abs() };
    (low - margin, high + margin)
}

/// The least of 1, 2, 2.5 and 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0].map(|digit| digit * power);
    let fits = |candidate: &f64| *candidate >= step * (1.0 - 1e-9);
    round.into_iter().find(fits).unwrap_or(10.0 * power)
}

fn multiples(first: f64, last: f64, step: f64) -> Vec<(f64, String)> {
    let n = (last - first).clamp(0.0, 100.0) as usize;
    let values: Vec<f64> = (0..=n).map(|place| (first + place as f64) * step).collect();
    let labels = tick_labels(&values, step);
    values.into_iter().zip(labels).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_hold_the_range() {
        let loss = Axis::of_values(0.63, 2.41, 4);
        assert_eq!(labels(&loss), ["0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!((loss.low, loss.high), (0.5, 2.5));
        let steps = Axis::of_steps(1234.0, 5);
        assert_eq!(labels(&steps), ["0", "250", "500", "750", "1000"]);
        assert_eq!(steps.high, 1234.0);
        assert_eq!(labels(&Axis::of_steps(3.0, 5)), ["0", "1", "2", "3"]);
    }

    #[test]
    fn a_constant_curve_runs_through_the_middle() {
        for value in [0.0, 1.0, -3.5, 2e-5] {
            let axis = Axis::of_values(value, value, 4);
            let share = axis.share(value);
            assert!((0.3..0.7).contains(&share), "{value}: {share}");
        }
    }

    #[test]
    fn zero_is_on_the_axis_of_what_is_measured_from_it() {
        let ends = |low, high| {
            let axis = Axis::with_zero(low, high, 4);
            (axis.low, axis.high)
        };
        assert_eq!(ends(0.0, 0.0), (0.0, 1.0));
        assert_eq!(ends(0.8, 0.8), (0.0, 0.8));
        assert_eq!(ends(0.63, 2.41), (0.0, 3.0));
        assert_eq!(ends(-3.0, -1.0), (-3.0, 0.0));
        assert_eq!(ends(-1.0, 1.0), (-1.0, 1.0));
    }

    proptest! {
        #[test]
        fn every_range_has_a_few_ticks_that_hold_it(a in -1e9..1e9f64, b in -1e9..1e9f64) {
            let (low, high) = (a.min(b), a.max(b));
            let axis = Axis::of_values(low, high, 4);
            prop_assert!((2..=7).contains(&axis.ticks.len()), "{axis:?}");
            prop_assert!(axis.low <= low + 1e-6 && high <= axis.high + 1e-6, "{axis:?}");
            let rises = axis.ticks.windows(2).all(|pair| pair[0].0 < pair[1].0);
            prop_assert!(rises, "{axis:?}");
        }

        #[test]
        fn even_values_at_the_ends_of_what_floats_hold_lie_on_the_axis(
            a in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
            b in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
        ) {
            let axis = Axis::of_values(a.min(b), a.max(b), 4);
            for value in [a, b] {
                prop_assert!((0.0..=1.0).contains(&axis.share(value)), "{axis:?}");
            }
            prop_assert!((1..=9).contains(&axis.ticks.len()), "{axis:?}");
        }
    }
}
