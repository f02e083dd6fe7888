//! Reads the lines of a metrics file as curves, thinned so that their extremes stay.

use serde_json::Value;

use super::error::ReportError;
use super::run::ReportRun;

/// Buckets that a longer curve is thinned to; each keeps its least and its greatest value.
const N_BUCKETS: usize = 240;

/// Windows that rates are averaged over.
const N_WINDOWS: usize = 240;

/// Values that a curve must have to be smoothed.
const MIN_SMOOTHED: usize = 20;

/// The moving average reaches back over this share of a curve.
const SMOOTHED_SHARE: f64 = 0.05;

/// Counters, which only ever rise; the summary shows where they end.
const COUNTERS: [&str; 7] = [
    "step",
    "epoch",
    "tokens",
    "trained_tokens",
    "retriever/step",
    "retriever/epoch",
    "retriever/pairs",
];

/// Tokens of a step over its seconds.
pub(super) const TOKENS_PER_SEC: &str = "tokens_per_sec";

/// Pairs of a retriever's step over its seconds.
pub(super) const PAIRS_PER_SEC: &str = "retriever/pairs_per_sec";

/// A number over the steps of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    /// Its key in the metrics file.
    pub(super) name: String,
    /// Steps, rising, with their values; none where there was no value.
    pub(super) points: Points,
    /// The same, smoothed; empty where there are too few to smooth.
    pub(super) smoothed: Points,
}

/// Rising steps with their values; none where there was no value.
pub(super) type Points = Vec<(f64, Option<f64>)>;

/// All curves of a run: those of its metrics in the order in which they first come, then rates.
///
/// # Errors
///
/// - a line is no object with a whole number `step`
pub(super) fn series(run: &ReportRun) -> Result<Vec<Series>, ReportError> {
    let mut found: Vec<Series> = Vec::new();
    for (line, value) in run.metrics.iter().enumerate() {
        let step = step_of(run, "metrics.jsonl", line, value)?;
        for (name, value) in value.as_object().into_iter().flatten() {
            let is_curve = value.is_number() || value.is_null();
            if !is_curve || COUNTERS.contains(&name.as_str()) {
                continue;
            }
            let point = (step, value.as_f64());
            match found.iter_mut().find(|series| series.name == *name) {
                Some(series) => series.points.push(point),
                None => found.push(Series {
                    name: name.clone(),
                    points: vec![point],
                    smoothed: Vec::new(),
                }),
            }
        }
    }
    found.extend(rates(run)?);
    for series in &mut found {
        let points = in_order(std::mem::take(&mut series.points));
        series.smoothed = thinned(smoothed(&points));
        series.points = thinned(points);
    }
    found.retain(|series| series.points.iter().any(|(_, value)| value.is_some()));
    Ok(found)
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

/// Rates of a run's steps: sums over windows of steps, so that long steps count as much as they
/// last.
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

/// By step; of several values of a step the last one, as a resumed run writes it.
fn in_order(mut points: Points) -> Points {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.reverse();
    points.dedup_by_key(|point| point.0);
    points.reverse();
    points
}

/// The exponential moving average, without the bias to zero at its beginning; nothing of few values.
fn smoothed(points: &[(f64, Option<f64>)]) -> Points {
    let n_values = points.iter().filter(|(_, value)| value.is_some()).count();
    if n_values < MIN_SMOOTHED {
        return Vec::new();
    }
    let kept = 1.0 - 1.0 / (SMOOTHED_SHARE * n_values as f64).max(2.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let mut average = |value: f64| {
        sum = kept * sum + (1.0 - kept) * value;
        weight = kept * weight + (1.0 - kept);
        sum / weight
    };
    let point = |&(step, value): &(f64, Option<f64>)| (step, value.map(&mut average));
    points.iter().map(point).collect()
}

/// Keeps the first and the last point, of each bucket the extremes, and one gap where it has any.
fn thinned(points: Points) -> Points {
    if points.len() <= 2 * N_BUCKETS {
        return points;
    }
    let bucket_len = points.len().div_ceil(N_BUCKETS);
    let last = points.len() - 1;
    let mut kept = Vec::new();
    for (bucket, part) in points.chunks(bucket_len).enumerate() {
        let by_value = |a: &&(usize, f64), b: &&(usize, f64)| a.1.total_cmp(&b.1);
        let values: Vec<(usize, f64)> = part
            .iter()
            .enumerate()
            .filter_map(|(place, (_, value))| Some((place, (*value)?)))
            .collect();
        let mut places: Vec<usize> = [
            values.iter().min_by(by_value),
            values.iter().max_by(by_value),
        ]
        .into_iter()
        .flatten()
        .map(|(place, _)| *place)
        .collect();
        places.extend(part.iter().position(|(_, value)| value.is_none()));
        let start = bucket * bucket_len;
        places.extend((start == 0).then_some(0));
        places.extend(last.checked_sub(start).filter(|place| *place < part.len()));
        places.sort_unstable();
        places.dedup();
        kept.extend(places.into_iter().filter_map(|place| part.get(place)));
    }
    kept
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
    fn every_number_but_the_counters_is_a_curve() {
        let found = series(&run(
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
        let by_name: Vec<_> = found
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
    fn a_line_without_a_step_is_an_error_with_its_place() {
        let lines = vec![json!({"step": 1}), json!([1])];
        let error = series(&run(lines, Vec::new())).expect_err("no step");
        assert!(
            error
                .to_string()
                .starts_with("r: line 2 of metrics.jsonl is no object"),
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
    fn an_average_follows_a_long_curve_and_few_values_have_none() {
        let mut points: Points = (0..100).map(|n| (f64::from(n), Some(2.0))).collect();
        points[7].1 = None;
        assert_eq!(smoothed(&points), points, "without a bias at its beginning");
        points[50].1 = Some(12.0);
        let found = smoothed(&points);
        // The gap is in no average; a fifth of what is new moves it from 2 towards 12.
        let moved = found[50].1.expect("a value");
        assert!((moved - 4.0).abs() < 0.05, "{moved}");
        assert!(found[60].1 < Some(2.25) && found[60].1 > Some(2.0));
        assert_eq!(smoothed(&points[..MIN_SMOOTHED]), Points::new());
    }

    #[test]
    fn a_long_curve_keeps_its_ends_its_extremes_and_its_gaps() {
        let mut points: Vec<(f64, Option<f64>)> = (0..100_000)
            .map(|n| (f64::from(n), Some((f64::from(n) / 900.0).sin())))
            .collect();
        points[54_321].1 = Some(40.0);
        points[54_322].1 = Some(-40.0);
        points[77_777].1 = None;
        let kept = thinned(points.clone());
        assert!(kept.len() <= 3 * N_BUCKETS + 2, "{}", kept.len());
        for place in [0, 54_321, 54_322, 77_777, 99_999] {
            assert!(kept.contains(&points[place]), "{place}");
        }
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(thinned(points[..100].to_vec()), points[..100]);
    }
}
