//! Reads the lines of a metrics file as curves, and thins them without losing extremes.

use serde_json::Value;

use super::error::ReportError;
use super::run::ReportRun;

/// Number of buckets for thinning a longer curve; each bucket keeps its minimum and maximum.
const N_BUCKETS: usize = 240;

/// Number of windows over which throughput is averaged.
const N_WINDOWS: usize = 240;

/// Minimum number of values for smoothing.
const MIN_SMOOTHED: usize = 20;

/// Window of the moving average, as a fraction of the curve.
const SMOOTHED_SHARE: f64 = 0.05;

/// Counters, which only increase. The summary shows their final values.
const COUNTERS: [&str; 7] = [
    "step",
    "epoch",
    "tokens",
    "trained_tokens",
    "retriever/step",
    "retriever/epoch",
    "retriever/pairs",
];

/// Tokens per second of a step.
pub(super) const TOKENS_PER_SEC: &str = "tokens_per_sec";

/// Pairs per second of a retriever step.
pub(super) const PAIRS_PER_SEC: &str = "retriever/pairs_per_sec";

/// A number over the steps of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    /// Key in the metrics file.
    pub(super) name: String,
    /// Ascending steps with their values.
    pub(super) points: Points,
    /// The smoothed points; empty if there are too few to smooth.
    pub(super) smoothed: Points,
}

/// Ascending steps with their values; `None` marks a missing value.
pub(super) type Points = Vec<(f64, Option<f64>)>;

/// All curves of a run: the metrics in order of first appearance, then throughput.
///
/// # Errors
///
/// A line is not an object with an integer `step`.
pub(super) fn series(run: &ReportRun) -> Result<Vec<Series>, ReportError> {
    let mut all_series: Vec<Series> = Vec::new();
    for (line, value) in run.metrics.iter().enumerate() {
        let step = step_of(run, "metrics.jsonl", line, value)?;
        for (name, value) in value.as_object().into_iter().flatten() {
            let is_curve = value.is_number() || value.is_null();
            if !is_curve || COUNTERS.contains(&name.as_str()) {
                continue;
            }
            let point = (step, value.as_f64());
            match all_series.iter_mut().find(|series| series.name == *name) {
                Some(series) => series.points.push(point),
                None => all_series.push(Series {
                    name: name.clone(),
                    points: vec![point],
                    smoothed: Vec::new(),
                }),
            }
        }
    }
    all_series.extend(rates(run)?);
    for series in &mut all_series {
        let points = sort_by_step(std::mem::take(&mut series.points));
        series.smoothed = thin_out(moving_average(&points));
        series.points = thin_out(points);
    }
    all_series.retain(|series| series.points.iter().any(|(_, value)| value.is_some()));
    Ok(all_series)
}

fn step_of(
    run: &ReportRun,
    file: &'static str,
    line: usize,
    value: &Value,
) -> Result<f64, ReportError> {
    let step = value["step"].as_u64().map(|step| step as f64);
    step.ok_or_else(|| ReportError::Line {
        run: run.name.clone(),
        file,
        line: line + 1,
    })
}

/// The throughput of a run over windows of steps. Each window divides sums, so that steps are
/// weighted by their duration.
fn rates(run: &ReportRun) -> Result<Vec<Series>, ReportError> {
    let mut steps = Vec::with_capacity(run.timing.len());
    for (line, value) in run.timing.iter().enumerate() {
        steps.push((step_of(run, "timing.jsonl", line, value)?, value));
    }
    let window = steps.len().div_ceil(N_WINDOWS).max(1);
    let rate = |name: &str, amount: &str, seconds: &str| Series {
        name: name.to_owned(),
        points: steps
            .chunks(window)
            .filter_map(|steps| {
                let sum = |key| {
                    steps
                        .iter()
                        .filter_map(|(_, line)| line[key].as_f64())
                        .sum()
                };
                let (amount, seconds): (f64, f64) = (sum(amount), sum(seconds));
                let has_both = amount > 0.0 && seconds > 0.0;
                Some((steps.last()?.0, has_both.then_some(amount / seconds)))
            })
            .collect(),
        smoothed: Vec::new(),
    };
    Ok(vec![
        rate(TOKENS_PER_SEC, "tokens", "seconds"),
        rate(PAIRS_PER_SEC, "retriever_pairs", "retriever_seconds"),
    ])
}

/// Sorts by step. If a resumed run wrote a step twice, the last value is kept.
fn sort_by_step(mut points: Points) -> Points {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.reverse();
    points.dedup_by_key(|point| point.0);
    points.reverse();
    points
}

/// The bias-corrected exponential moving average; empty for few values.
fn moving_average(points: &[(f64, Option<f64>)]) -> Points {
    let n_values = points.iter().filter(|(_, value)| value.is_some()).count();
    if n_values < MIN_SMOOTHED {
        return Vec::new();
    }
    let decay = 1.0 - 1.0 / (SMOOTHED_SHARE * n_values as f64).max(2.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let mut average = |value: f64| {
        sum = decay * sum + (1.0 - decay) * value;
        weight = decay * weight + (1.0 - decay);
        sum / weight
    };
    let point = |&(step, value): &(f64, Option<f64>)| (step, value.map(&mut average));
    points.iter().map(point).collect()
}

/// Keeps the first and last point, and in each bucket the extremes and one gap if there is any.
fn thin_out(points: Points) -> Points {
    if points.len() <= 2 * N_BUCKETS {
        return points;
    }
    let bucket_len = points.len().div_ceil(N_BUCKETS);
    let last = points.len() - 1;
    let mut kept_points = Vec::new();
    for (bucket, part) in points.chunks(bucket_len).enumerate() {
        let by_value = |a: &&(usize, f64), b: &&(usize, f64)| a.1.total_cmp(&b.1);
        let values: Vec<(usize, f64)> = part
            .iter()
            .enumerate()
            .filter_map(|(idx, (_, value))| Some((idx, (*value)?)))
            .collect();
        let mut idxs: Vec<usize> = [
            values.iter().min_by(by_value),
            values.iter().max_by(by_value),
        ]
        .into_iter()
        .flatten()
        .map(|(idx, _)| *idx)
        .collect();
        idxs.extend(part.iter().position(|(_, value)| value.is_none()));
        let start = bucket * bucket_len;
        idxs.extend((start == 0).then_some(0));
        idxs.extend(last.checked_sub(start).filter(|idx| *idx < part.len()));
        idxs.sort_unstable();
        idxs.dedup();
        kept_points.extend(idxs.into_iter().filter_map(|idx| part.get(idx)));
    }
    kept_points
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(metrics: Vec<Value>, timing: Vec<Value>) -> ReportRun {
        ReportRun {
            name: "r".to_owned(),
            metrics,
            timing,
            ..ReportRun::default()
        }
    }

    #[test]
    fn every_number_except_counters_is_a_curve() {
        let all_series = series(&run(
            vec![
                json!({"step": 0, "eval/slot.mean": 0.25}),
                json!({"step": 10, "epoch": 0.1, "loss": null, "tokens": 5}),
                json!({"step": 20, "epoch": 0.2, "loss": 1.5, "tokens": 9, "note": "warm"}),
                json!({"step": 20, "loss": 1.25}),
            ],
            vec![
                json!({"step": 1, "seconds": 2.0, "tokens": 10}),
                json!({"step": 2, "seconds": 0.0, "tokens": 0}),
            ],
        ))
        .expect("lines with steps");
        let by_name: Vec<_> = all_series
            .iter()
            .map(|series| (series.name.as_str(), series.points.as_slice()))
            .collect();
        assert_eq!(
            by_name,
            [
                ("eval/slot.mean", [(0.0, Some(0.25))].as_slice()),
                ("loss", &[(10.0, None), (20.0, Some(1.25))]),
                ("tokens_per_sec", &[(1.0, Some(5.0)), (2.0, None)]),
            ]
        );
    }

    #[test]
    fn a_line_without_a_step_is_an_error_with_its_line_number() {
        let lines = vec![json!({"step": 1}), json!([1])];
        let error = series(&run(lines, Vec::new())).expect_err("no step");
        assert!(
            error
                .to_string()
                .starts_with("r: line 2 of metrics.jsonl is not a JSON object"),
            "{error}"
        );
        let lines = vec![json!({"step": "1"})];
        let error = series(&run(Vec::new(), lines)).expect_err("no step");
        assert!(
            error.to_string().contains("line 1 of timing.jsonl"),
            "{error}"
        );
    }

    #[test]
    fn long_curves_are_smoothed_and_short_ones_are_not() {
        let mut points: Points = (0..100).map(|n| (f64::from(n), Some(2.0))).collect();
        points[7].1 = None;
        assert_eq!(moving_average(&points), points, "no bias at the start");
        points[50].1 = Some(12.0);
        let smoothed = moving_average(&points);
        // The gap does not enter the average; the weight of a new value is a fifth, so the average
        // moves from 2 towards 12.
        let moved = smoothed[50].1.expect("a value");
        assert!((moved - 4.0).abs() < 0.05, "{moved}");
        assert!(smoothed[60].1 < Some(2.25) && smoothed[60].1 > Some(2.0));
        assert_eq!(moving_average(&points[..MIN_SMOOTHED]), Points::new());
    }

    #[test]
    fn thinning_keeps_ends_extremes_and_gaps() {
        let mut points: Vec<(f64, Option<f64>)> = (0..100_000)
            .map(|n| (f64::from(n), Some((f64::from(n) / 900.0).sin())))
            .collect();
        points[54_321].1 = Some(40.0);
        points[54_322].1 = Some(-40.0);
        points[77_777].1 = None;
        let thinned = thin_out(points.clone());
        assert!(thinned.len() <= 3 * N_BUCKETS + 2, "{}", thinned.len());
        for idx in [0, 54_321, 54_322, 77_777, 99_999] {
            assert!(thinned.contains(&points[idx]), "{idx}");
        }
        assert!(thinned.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(thin_out(points[..100].to_vec()), points[..100]);
    }
}
