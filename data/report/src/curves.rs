//! Groups the curves of all runs into charts under headings: training, retriever, each suite,
//! throughput.

use serde::Serialize;

use super::chart::{Chart, Curve, Heading};
use super::error::ReportError;
use super::run::{MetricFacts, ReportRun};
use super::series::{PAIRS_PER_SEC, Series, TOKENS_PER_SEC, series};

/// Charts under one heading.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ChartGroup {
    /// The heading.
    title: String,
    charts: Vec<Chart>,
    /// Charts in which every value is 0.
    zeros: Vec<Chart>,
}

impl ChartGroup {
    /// Whether any curve is smoothed.
    pub(super) fn has_smoothed(&self) -> bool {
        self.charts
            .iter()
            .chain(&self.zeros)
            .any(Chart::has_smoothed)
    }
}

/// Curves with fixed titles, in display order: key, title, unit.
const KNOWN: [(&str, &str, &str); 7] = [
    ("loss", "Training loss", "nats per token"),
    ("eval/loss", "Evaluation loss", "nats per token"),
    ("learning_rate", "Learning rate", ""),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("retriever/loss", "Training loss", "nats per pair"),
    ("retriever/learning_rate", "Learning rate", ""),
    ("retriever/grad_norm", "Gradient norm", "before clipping"),
];

/// Throughput curves, which come after all other curves.
const RATES: [(&str, &str, &str); 2] = [
    (TOKENS_PER_SEC, "Training", "tokens per second"),
    (PAIRS_PER_SEC, "Retriever", "pairs per second"),
];

/// Builds all charts. Curves with the same name share one chart for all runs.
///
/// # Errors
///
/// As for [`series`].
pub(super) fn chart_groups(
    runs: &[ReportRun],
    facts: MetricFacts,
) -> Result<Vec<ChartGroup>, ReportError> {
    let series_by_run = runs.iter().map(series).collect::<Result<Vec<_>, _>>()?;
    let all_series = || series_by_run.iter().flatten();
    let steps = all_series().flat_map(|series| series.points.iter().map(|(step, _)| *step));
    let last_step = steps.fold(0.0, f64::max);
    let mut names: Vec<&str> = Vec::new();
    for Series { name, .. } in all_series() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let rank = |name: &str| {
        KNOWN
            .iter()
            .position(|(known_name, ..)| *known_name == name)
    };
    names.sort_by_key(|name| (is_rate(name), rank(name).unwrap_or(KNOWN.len())));
    let mut groups: Vec<ChartGroup> = Vec::new();
    for (id, name) in names.into_iter().enumerate() {
        let curve_heading = curve_heading(name, facts);
        let curves: Vec<Curve> = curves(runs, &series_by_run, name);
        let heading = Heading {
            id,
            title: curve_heading.title,
            unit: curve_heading.unit.to_owned(),
            last_step,
            may_start_above_zero: is_loss(name),
        };
        let Some(chart) = Chart::new(heading, &curves) else {
            continue;
        };
        let position = groups
            .iter()
            .position(|group| group.title == curve_heading.group);
        let position = position.unwrap_or_else(|| {
            groups.push(ChartGroup {
                title: curve_heading.group,
                charts: Vec::new(),
                zeros: Vec::new(),
            });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(position) {
            match chart.is_zero() {
                true => group.zeros.push(chart),
                false => group.charts.push(chart),
            }
        }
    }
    Ok(groups)
}

fn curves(runs: &[ReportRun], series_by_run: &[Vec<Series>], name: &str) -> Vec<Curve> {
    let both = runs.iter().zip(series_by_run).enumerate();
    both.filter_map(|(idx, (run, run_series))| {
        let series = run_series.iter().find(|series| series.name == name)?;
        Some(Curve {
            run: idx,
            points: series.points.clone(),
            smoothed: match is_smoothed(name) {
                true => series.smoothed.clone(),
                false => Vec::new(),
            },
            best_step: run.best.as_ref().map(|best| best.step),
        })
    })
    .collect()
}

/// Whether the curve is a loss. A loss has no fixed upper or lower bound, so its axis may zoom in
/// on the last steps.
fn is_loss(name: &str) -> bool {
    name.rsplit('/').next() == Some("loss")
}

fn is_rate(name: &str) -> bool {
    RATES.iter().any(|(rate, ..)| *rate == name)
}

/// Whether a curve is noisy from step to step. Learning-rate schedules and evaluation means are
/// not.
fn is_smoothed(name: &str) -> bool {
    let quantity = name.strip_prefix("retriever/").unwrap_or(name);
    is_rate(name) || matches!(quantity, "loss" | "grad_norm")
}

/// The group, title and unit of a curve.
struct CurveHeading {
    group: String,
    title: String,
    unit: &'static str,
}

fn curve_heading(name: &str, facts: MetricFacts) -> CurveHeading {
    let mut known_names = KNOWN.iter().chain(&RATES);
    let known_names = known_names.find(|(known_names, ..)| *known_names == name);
    let metric = name.strip_prefix("eval/");
    let suite = metric.and_then(|metric| Some((metric.split_once('.')?.0, metric)));
    let (group, after_suite) = match suite {
        Some((suite, metric)) => (format!("Evaluation: {suite}"), metric),
        None if is_rate(name) => ("Throughput".to_owned(), name),
        None => match name.strip_prefix("retriever/") {
            Some(after_suite) => ("Retriever".to_owned(), after_suite),
            None => ("Training".to_owned(), name),
        },
    };
    let (title, unit) = match known_names {
        Some((_, title, unit)) => ((*title).to_owned(), *unit),
        None => (
            after_suite.to_owned(),
            (facts.plain_name)(after_suite).unwrap_or_default(),
        ),
    };
    CurveHeading { group, title, unit }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_zero_charts_are_separate() {
        let run = ReportRun {
            metrics: vec![
                json!({"step": 0, "eval/slot.mean": 0.0, "eval/slot.exact_match": 0.0}),
                json!({"step": 4, "eval/slot.mean": 0.5, "eval/slot.exact_match": 0.0}),
            ],
            ..ReportRun::default()
        };
        let facts = MetricFacts {
            plain_name: |_| None,
            greater_is_better: |_| None,
        };
        let groups = chart_groups(&[run], facts).expect("lines with steps");
        let titles = |charts: &[Chart]| -> Vec<String> {
            charts.iter().map(|chart| chart.title.clone()).collect()
        };
        assert_eq!(titles(&groups[0].charts), ["slot.mean"]);
        assert_eq!(titles(&groups[0].zeros), ["slot.exact_match"]);
    }

    #[test]
    fn curves_of_one_name_share_a_chart_under_its_heading() {
        let run = |name: &str, last: u64| ReportRun {
            name: name.to_owned(),
            metrics: vec![
                json!({"step": 0, "eval/slot.mean": 0.1, "eval/goat.sa": 0.2}),
                json!({"step": last, "grad_norm": 1.0, "loss": 0.5, "retriever/loss": 2.0,
                       "good_mood": 3}),
            ],
            timing: vec![json!({"step": 1, "seconds": 2.0, "tokens": 10})],
            ..ReportRun::default()
        };
        let facts = MetricFacts {
            plain_name: |name| (name == "goat.sa").then_some("selection accuracy"),
            greater_is_better: |_| None,
        };
        let runs = [run("a", 10), run("b", 20)];
        let groups = chart_groups(&runs, facts).expect("lines with steps");
        let titles: Vec<_> = groups
            .iter()
            .map(|group| {
                let charts = group.charts.iter().map(|chart| chart.title.as_str());
                (group.title.as_str(), charts.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            titles,
            [
                (
                    "Training",
                    vec!["Training loss", "Gradient norm", "good_mood"]
                ),
                ("Retriever", vec!["Training loss"]),
                ("Evaluation: slot", vec!["slot.mean"]),
                ("Evaluation: goat", vec!["goat.sa"]),
                ("Throughput", vec!["Training"]),
            ]
        );
        assert_eq!(groups[3].charts[0].unit, "selection accuracy");
        let groups_json = serde_json::to_value(&groups).expect("serialisable");
        let lines = &groups_json[0]["charts"][0]["lines"];
        assert_eq!(
            (&lines[0]["end_x"], &lines[1]["end_x"]),
            (&json!("50.00"), &json!("100.00"))
        );
    }
}
