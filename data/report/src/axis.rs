//! Builds a chart axis for a range of values, with ticks at round numbers.

use super::number::tick_labels;

/// Largest magnitude that an axis reaches, so that its range is always finite.
const MAX_SIZE: f64 = 1e300;

/// Narrower ranges are widened; otherwise their tick steps would lose all digits.
const MIN_RANGE: f64 = 1e-290;

/// A chart axis: its range and its ticks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    /// Lower end.
    pub(super) low: f64,
    /// Upper end, above `low`.
    pub(super) high: f64,
    /// Tick values with their labels, in ascending order.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Builds the axis of a measured quantity, which starts and ends at a tick.
    ///
    /// An empty range is widened, so that a constant curve runs through the middle.
    pub(super) fn for_values(low: f64, high: f64, n_ticks: usize) -> Self {
        let (low, high) = widen(low, high);
        let step = round_step((high - low) / n_ticks.max(1) as f64);
        let first_multiple = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        let ticks = multiples(first_multiple, last, step);
        Self {
            low: first_multiple * step,
            high: last * step,
            ticks,
        }
    }

    /// Like [`Axis::for_values`], but the range includes zero, so that heights are proportional to
    /// values. If every value is zero, the axis runs from 0 to 1 and the curve is at the bottom.
    pub(super) fn with_zero(low: f64, high: f64, n_ticks: usize) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        if high - low <= MIN_RANGE {
            return Self::for_values(0.0, 1.0, n_ticks);
        }
        Self::for_values(low, high, n_ticks)
    }

    /// Builds the axis of optimizer steps, from zero to the last step, with ticks at whole numbers.
    pub(super) fn for_steps(last_step: f64, n_ticks: usize) -> Self {
        let high = last_step.max(1.0);
        let step = round_step(high / n_ticks.max(1) as f64).max(1.0);
        Self {
            low: 0.0,
            high,
            ticks: multiples(0.0, (high / step + 1e-9).floor(), step),
        }
    }

    /// Relative position of a value on the axis, in 0..=1.
    pub(super) fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

fn widen(low: f64, high: f64) -> (f64, f64) {
    let (low, high) = (low.max(-MAX_SIZE), high.min(MAX_SIZE));
    // A range below this fraction of the values is only rounding error.
    let min_width = (1e-9 * low.abs().max(high.abs())).max(MIN_RANGE);
    if high - low > min_width {
        return (low, high);
    }
    let is_zero = low.abs() <= MIN_RANGE;
    let margin = if is_zero { 1.0 } else { 0.5 * low.abs() };
    (low - margin, high + margin)
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0].map(|digit| digit * power);
    let fits = |candidate: &f64| *candidate >= step * (1.0 - 1e-9);
    round.into_iter().find(fits).unwrap_or(10.0 * power)
}

fn multiples(first_multiple: f64, last: f64, step: f64) -> Vec<(f64, String)> {
    let n = (last - first_multiple).clamp(0.0, 100.0) as usize;
    let values: Vec<f64> = (0..=n)
        .map(|idx| (first_multiple + idx as f64) * step)
        .collect();
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
    fn ticks_are_round_and_contain_the_range() {
        let loss = Axis::for_values(0.63, 2.41, 4);
        assert_eq!(labels(&loss), ["0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!((loss.low, loss.high), (0.5, 2.5));
        let steps = Axis::for_steps(1234.0, 5);
        assert_eq!(labels(&steps), ["0", "250", "500", "750", "1000"]);
        assert_eq!(steps.high, 1234.0);
        assert_eq!(labels(&Axis::for_steps(3.0, 5)), ["0", "1", "2", "3"]);
    }

    #[test]
    fn a_constant_curve_runs_through_the_middle() {
        for value in [0.0, 1.0, -3.5, 2e-5] {
            let axis = Axis::for_values(value, value, 4);
            let middle = axis.share(value);
            assert!((0.3..0.7).contains(&middle), "{value}: {middle}");
        }
    }

    #[test]
    fn with_zero_includes_zero() {
        let axis_ends = |low, high| {
            let axis = Axis::with_zero(low, high, 4);
            (axis.low, axis.high)
        };
        assert_eq!(axis_ends(0.0, 0.0), (0.0, 1.0));
        assert_eq!(axis_ends(0.8, 0.8), (0.0, 0.8));
        assert_eq!(axis_ends(0.63, 2.41), (0.0, 3.0));
        assert_eq!(axis_ends(-3.0, -1.0), (-3.0, 0.0));
        assert_eq!(axis_ends(-1.0, 1.0), (-1.0, 1.0));
    }

    proptest! {
        #[test]
        fn every_range_is_covered_by_a_few_ticks(a in -1e9..1e9f64, b in -1e9..1e9f64) {
            let (low, high) = (a.min(b), a.max(b));
            let axis = Axis::for_values(low, high, 4);
            prop_assert!((2..=7).contains(&axis.ticks.len()), "{axis:?}");
            prop_assert!(axis.low <= low + 1e-6 && high <= axis.high + 1e-6, "{axis:?}");
            let rises = axis.ticks.windows(2).all(|pair| pair[0].0 < pair[1].0);
            prop_assert!(rises, "{axis:?}");
        }

        #[test]
        fn extreme_floats_lie_on_the_axis(
            a in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
            b in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
        ) {
            let axis = Axis::for_values(a.min(b), a.max(b), 4);
            for value in [a, b] {
                prop_assert!((0.0..=1.0).contains(&axis.share(value)), "{axis:?}");
            }
            prop_assert!((1..=9).contains(&axis.ticks.len()), "{axis:?}");
        }
    }
}
