//! Groups the curves of all runs into charts under headings: training, retriever, each suite, rates.

use serde::Serialize;

use super::chart::{Chart, Curve, Heading};
use super::error::ReportError;
use super::run::{MetricWords, ReportRun};
use super::series::{PAIRS_PER_SEC, Series, TOKENS_PER_SEC, series};

/// Charts of one kind.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ChartGroup {
    /// Its heading.
    title: String,
    /// At least one.
    charts: Vec<Chart>,
}

impl ChartGroup {
    /// Whether any of its curves is drawn smoothed.
    pub(super) fn has_smoothed(&self) -> bool {
        self.charts.iter().any(Chart::has_smoothed)
    }
}

/// Curves with titles of their own, in the order in which they are shown: key, title, unit.
const KNOWN: [(&str, &str, &str); 7] = [
    ("loss", "Training loss", "nats per token"),
    ("eval/loss", "Evaluation loss", "nats per token"),
    ("learning_rate", "Learning rate", ""),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("retriever/loss", "Training loss", "nats per pair"),
    ("retriever/learning_rate", "Learning rate", ""),
    ("retriever/grad_norm", "Gradient norm", "before clipping"),
];

/// Rates, which stand behind all other curves.
const RATES: [(&str, &str, &str); 2] = [
    (TOKENS_PER_SEC, "Training", "tokens per second"),
    (PAIRS_PER_SEC, "Retriever", "pairs per second"),
];

/// All charts; the curves of one name of all runs share theirs.
///
/// # Errors
///
/// As [`series`].
pub(super) fn chart_groups(
    runs: &[ReportRun],
    words: MetricWords,
) -> Result<Vec<ChartGroup>, ReportError> {
    let of_runs = runs.iter().map(series).collect::<Result<Vec<_>, _>>()?;
    let all = || of_runs.iter().flatten();
    let steps = all().flat_map(|series| series.points.iter().map(|(step, _)| *step));
    let last_step = steps.fold(0.0, f64::max);
    let mut names: Vec<&str> = Vec::new();
    for Series { name, .. } in all() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let rank = |name: &str| KNOWN.iter().position(|(known, ..)| *known == name);
    names.sort_by_key(|name| (is_rate(name), rank(name).unwrap_or(KNOWN.len())));
    let mut groups: Vec<ChartGroup> = Vec::new();
    for (id, name) in names.into_iter().enumerate() {
        let place = place_of(name, words);
        let curves: Vec<Curve> = curves(runs, &of_runs, name);
        let heading = Heading {
            id,
            title: place.title,
            unit: place.unit.to_owned(),
            last_step,
            may_begin_high: is_loss(name),
        };
        let Some(chart) = Chart::new(heading, &curves) else {
            continue;
        };
        match groups.iter_mut().find(|group| group.title == place.group) {
            Some(group) => group.charts.push(chart),
            None => groups.push(ChartGroup {
                title: place.group,
                charts: vec![chart],
            }),
        }
    }
    Ok(groups)
}

fn curves(runs: &[ReportRun], of_runs: &[Vec<Series>], name: &str) -> Vec<Curve> {
    let both = runs.iter().zip(of_runs).enumerate();
    both.filter_map(|(idx, (run, of_run))| {
        let series = of_run.iter().find(|series| series.name == name)?;
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

/// A loss has no end that its values are near to, so that its last steps may be looked at closely.
fn is_loss(name: &str) -> bool {
    name.rsplit('/').next() == Some("loss")
}

fn is_rate(name: &str) -> bool {
    RATES.iter().any(|(rate, ..)| *rate == name)
}

/// Whether a curve is noisy from step to step; a schedule and the mean of an evaluation are not.
fn is_smoothed(name: &str) -> bool {
    let quantity = name.strip_prefix("retriever/").unwrap_or(name);
    is_rate(name) || matches!(quantity, "loss" | "grad_norm")
}

/// Where a curve is shown, and how it is called there.
struct CurveHeading {
    group: String,
    title: String,
    unit: &'static str,
}

fn place_of(name: &str, words: MetricWords) -> CurveHeading {
    let mut known = KNOWN.iter().chain(&RATES);
    let known = known.find(|(known, ..)| *known == name);
    let metric = name.strip_prefix("eval/");
    let suite = metric.and_then(|metric| Some((metric.split_once('.')?.0, metric)));
    let (group, rest) = match suite {
        Some((suite, metric)) => (format!("Evaluation: {suite}"), metric),
        None if is_rate(name) => ("Throughput".to_owned(), name),
        None => match name.strip_prefix("retriever/") {
            Some(rest) => ("Retriever".to_owned(), rest),
            None => ("Training".to_owned(), name),
        },
    };
    let (title, unit) = match known {
        Some((_, title, unit)) => ((*title).to_owned(), *unit),
        None => (rest.to_owned(), words(rest).unwrap_or_default()),
    };
    CurveHeading { group, title, unit }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let groups = chart_groups(&[run("a", 10), run("b", 20)], |name| {
            (name == "goat.sa").then_some("selection accuracy")
        })
        .expect("lines with steps");
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
        let drawn = serde_json::to_value(&groups).expect("serialisable");
        let lines = &drawn[0]["charts"][0]["lines"];
        assert_eq!(
            (&lines[0]["end_x"], &lines[1]["end_x"]),
            (&json!("50.00"), &json!("100.00"))
        );
    }
}
