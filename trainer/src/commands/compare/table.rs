//! The comparison table: one row per metric, and the samples that improved or got worse.

use tooltune_suites::{
    Flip, PairedComparison, SampleMeasure, SampleScore, SampleScores, SuiteInfo, few_samples,
};

/// The smallest p value that is not 0 with four decimals.
const MIN_SHOWN_P: f64 = 0.000_05;

/// The comparison table.
pub(super) struct Table {
    suite: Option<&'static SuiteInfo>,
    /// The heading of the column that names the evaluation or group of a row, if there are several.
    label: Option<&'static str>,
    lines: Vec<Line>,
}

/// A row: the metrics of one evaluation whose scores agree in every sample.
struct Line {
    /// Names of the metrics.
    metrics: Vec<String>,
    greater_is_better: bool,
    /// The evaluation that is compared with the first one, or the group.
    after: String,
    scores: [Vec<SampleScore>; 2],
    comparison: PairedComparison,
}

impl Table {
    pub(super) fn new(format: &SampleScores, label: Option<&'static str>) -> Self {
        Self {
            suite: format.suite(),
            label,
            lines: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Name of the metric that aggregates a score.
    fn metric(&self, measure: &SampleMeasure) -> String {
        let suite_metric = self.suite.map(|suite| suite.metric(measure.key));
        suite_metric.unwrap_or_else(|| measure.key.to_owned())
    }

    pub(super) fn metric_label(&self, measure: &SampleMeasure, after: &str) -> String {
        let metric = self.metric(measure);
        match self.label {
            Some(_) => format!("{metric}, {after}"),
            None => metric,
        }
    }

    /// Adds a metric. If a row has the same scores in every sample, only adds the metric's name to
    /// that row.
    pub(super) fn add(
        &mut self,
        measure: &SampleMeasure,
        after: &str,
        scores: [Vec<SampleScore>; 2],
        comparison: PairedComparison,
    ) {
        let metric = self.metric(measure);
        let has_equal_scores = |line: &&mut Line| {
            line.after == after
                && line.greater_is_better == measure.greater_is_better
                && line.scores == scores
        };
        if let Some(line) = self.lines.iter_mut().find(has_equal_scores) {
            line.metrics.push(metric);
            return;
        }
        self.lines.push(Line {
            metrics: vec![metric],
            greater_is_better: measure.greater_is_better,
            after: after.to_owned(),
            scores,
            comparison,
        });
    }

    /// Formats the table, up to `max_samples` changed samples per row, and a note if there are few
    /// samples.
    pub(super) fn text(&self, max_samples: usize) -> String {
        let has_several = self.label.is_some();
        let heading = self
            .label
            .map_or_else(String::new, |label| format!(" {label} |"));
        let rule = if has_several { "---|" } else { "" };
        let mut lines = vec![
            format!(
                "| metric |{heading} n | before | after | difference, 95 % | p | better | worse |"
            ),
            format!("|---|{rule}--:|--:|--:|--:|--:|--:|--:|"),
        ];
        lines.extend(self.lines.iter().map(|line| line.row(has_several)));
        let flips = self
            .lines
            .iter()
            .flat_map(|line| line.flips(has_several, max_samples));
        let flips: Vec<String> = flips.collect();
        if !flips.is_empty() {
            lines.push(String::new());
            lines.extend(flips);
        }
        let fewest = self.lines.iter().min_by_key(|line| line.comparison.n);
        let note = fewest.and_then(|line| {
            let note = few_samples(line.comparison.n)?;
            Some(format!(
                "{note}; p cannot be below {}",
                p_text(line.comparison.least_p)
            ))
        });
        if let Some(note) = note {
            lines.extend([String::new(), note]);
        }
        lines.join("\n")
    }
}

impl Line {
    /// The metric names. Only the first one includes its suite.
    fn name(&self) -> String {
        let short = |name: &String| {
            let key = name.split_once('.').map(|(_, key)| key);
            key.unwrap_or(name).to_owned()
        };
        let (first, others) = match self.metrics.split_first() {
            Some((first, others)) => (first.clone(), others),
            None => return String::new(),
        };
        let others = others.iter().map(short);
        std::iter::once(first)
            .chain(others)
            .collect::<Vec<_>>()
            .join(" = ")
    }

    /// The samples that improved and the samples that got worse.
    fn better_and_worse(&self) -> [&[Flip]; 2] {
        match self.greater_is_better {
            true => [&self.comparison.won, &self.comparison.lost],
            false => [&self.comparison.lost, &self.comparison.won],
        }
    }

    fn row(&self, has_several: bool) -> String {
        let note = match self.greater_is_better {
            true => "",
            false => " (lower is better)",
        };
        let evaluation = match has_several {
            true => format!(" {} |", self.after.replace('|', "\\|")),
            false => String::new(),
        };
        let difference = self.comparison.difference;
        let interval = difference.interval();
        let interval = interval.map_or_else(String::new, |[low, high]| {
            format!(" [{low:+.3}, {high:+.3}]")
        });
        let [better, worse] = self.better_and_worse();
        format!(
            "| {}{note} |{evaluation} {} | {:.3} | {:.3} | {:+.3}{interval} | {} | {} | {} |",
            self.name(),
            self.comparison.n,
            self.comparison.before,
            self.comparison.after,
            difference.value,
            p_text(self.comparison.p),
            better.len(),
            worse.len(),
        )
    }

    fn flips(&self, has_several: bool, max_samples: usize) -> Vec<String> {
        let name = match has_several {
            true => format!("{}, {}", self.name(), self.after),
            false => self.name(),
        };
        let [better, worse] = self.better_and_worse();
        let sides = [("better", better), ("worse", worse)].into_iter();
        let sides = sides.filter(|(_, samples)| !samples.is_empty() && max_samples > 0);
        sides
            .map(|(what, samples)| {
                format!("{name}, {what}: {}", name_samples(samples, max_samples))
            })
            .collect()
    }
}

/// Formats a p value, which is never zero.
fn p_text(p: f64) -> String {
    match p < MIN_SHOWN_P {
        true => "< 0.0001".to_owned(),
        false => format!("{p:.4}"),
    }
}

/// Lists the first `max_samples` samples. IDs with spaces, such as queries, are quoted.
fn name_samples(samples: &[Flip], max_samples: usize) -> String {
    let name = |flip: &Flip| {
        if flip.id.contains(char::is_whitespace) {
            format!("{:?}", flip.id)
        } else {
            flip.id.clone()
        }
    };
    let names: Vec<String> = samples.iter().take(max_samples).map(name).collect();
    let mut text = names.join(", ");
    if samples.len() > max_samples {
        text.push_str(&format!(" and {} more", samples.len() - max_samples));
    }
    text
}

#[cfg(test)]
mod tests {
    use tooltune_suites::{PairedOptions, compare_pairs};

    use super::*;

    fn format() -> &'static SampleScores {
        SampleScores::all()
            .find(|format| format.of == "retrieval")
            .expect("a format")
    }

    fn scores(values: &[f64]) -> Vec<SampleScore> {
        let score_of = |(n, score): (usize, &f64)| SampleScore::new(format!("q{n}"), *score);
        values.iter().enumerate().map(score_of).collect()
    }

    fn table(metrics: &[(usize, &[f64], &[f64])]) -> String {
        let format = format();
        let mut table = Table::new(format, None);
        for (idx, before, after) in metrics {
            let both = [scores(before), scores(after)];
            let comparison = compare_pairs(&both[0], &both[1], PairedOptions::default());
            table.add(
                &format.measures[*idx],
                "after",
                both,
                comparison.expect("the same samples"),
            );
        }
        table.text(2)
    }

    #[test]
    fn metrics_with_the_same_scores_share_a_line_and_few_samples_are_named() {
        let (worse, same) = ([0.0; 6], [1.0; 6]);
        let text = table(&[(0, &same, &worse), (1, &same, &worse), (2, &same, &same)]);
        let line = "| retrieval.recall_at_gt = recall_at_1 | 6 | 1.000 | 0.000 | -1.000 \
                    [-1.000, -0.448] | 0.0312 | 0 | 6 |";
        assert!(text.contains(line), "{text}");
        assert_eq!(
            text.matches("worse: q0, q1 and 4 more").count(),
            1,
            "{text}"
        );
        assert!(text.contains("| retrieval.recall_at_3 | 6 |"), "{text}");
        let note = text.lines().last().unwrap_or_default();
        assert!(
            note.starts_with("n is 6: with fewer than 30 samples"),
            "{note}"
        );
        assert!(note.ends_with("p cannot be below 0.0312"), "{note}");
    }

    #[test]
    fn a_p_value_is_never_zero_and_many_samples_need_no_note() {
        let text = table(&[(0, &[1.0; 40], &[0.0; 40])]);
        assert!(text.contains("| < 0.0001 |"), "{text}");
        assert!(!text.contains("fewer than 30"), "{text}");
    }
}
