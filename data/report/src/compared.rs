//! Tabulates several runs side by side: their differing settings, and their results.

use serde::Serialize;

use super::error::ReportError;
use super::headline::{Headline, comparable_headlines, suite_names};
use super::number::{estimate, group_digits, with_ceiling};
use super::results::{Figure, figures};
use super::run::{MetricFacts, ReportRun, SuiteResult};
use super::truncation::shorten_cell;

/// Settings that nearly always differ between runs and are not informative.
const IGNORED_SETTINGS: [&str; 2] = ["train.output_dir", "data.template_date"];

/// Shown if a run has no value.
const DASH: &str = "–";

/// Runs side by side, one column per run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunsTable {
    /// Run names, one per column.
    pub runs: Vec<String>,
    /// Settings that differ between the runs, by path.
    pub settings: Vec<SettingLine>,
    /// Number of evaluated samples and the metrics.
    pub results: Vec<ResultLine>,
}

/// One setting in all runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingLine {
    /// Path of the setting, such as `train.learning_rate`.
    pub setting: String,
    /// The value in each run.
    pub values: Vec<String>,
}

/// One metric in all runs, at one checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultLine {
    /// The metric, such as `slot.mean`, or another fact about the evaluations.
    pub name: String,
    /// Plain-language name of the metric.
    pub plain_name: Option<&'static str>,
    /// Whether the previous line has the same name.
    pub continues: bool,
    /// `step 0`, `best`, `last`, or `least` for the lowest loss; empty if the line applies to all
    /// checkpoints.
    pub moment: &'static str,
    /// The value in each run.
    pub cells: Vec<RunCell>,
}

/// The value of a metric in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunCell {
    /// The formatted value.
    pub value: String,
    /// The 95 % interval, if there is one.
    pub interval: Option<[String; 2]>,
    /// Whether the value is better than the values of all other runs.
    pub is_best: bool,
}

impl RunCell {
    fn plain_cell(value: String) -> Self {
        Self {
            value,
            interval: None,
            is_best: false,
        }
    }

    fn from_figure(figure: Option<&Figure>) -> Self {
        let Some(figure) = figure else {
            return Self::plain_cell(DASH.to_owned());
        };
        let interval = figure.interval;
        Self {
            value: with_ceiling(figure.value, figure.ceiling),
            interval: interval.map(|(low, high)| [low, high].map(estimate)),
            is_best: false,
        }
    }

    fn text(&self) -> String {
        match &self.interval {
            None => self.value.clone(),
            Some([low, high]) => format!("{} [{low}, {high}]", self.value),
        }
    }
}

/// Compares runs: their differing settings, then every metric at step 0, at the best checkpoint,
/// and at the last checkpoint if it is not the best.
///
/// # Errors
///
/// The metrics of a result are not a JSON object.
pub fn compare_runs(runs: &[ReportRun], facts: MetricFacts) -> Result<RunsTable, ReportError> {
    let mut results = vec![best_steps(runs)];
    for suite in suite_names(runs) {
        results.extend(suite_lines(runs, suite, facts)?);
    }
    Ok(RunsTable {
        runs: run_names(runs),
        settings: settings(runs),
        results,
    })
}

fn run_names(runs: &[ReportRun]) -> Vec<String> {
    runs.iter().map(|run| shorten_cell(&run.name)).collect()
}

fn settings(runs: &[ReportRun]) -> Vec<SettingLine> {
    let names = runs.iter().flat_map(|run| run.settings.keys());
    let paths: std::collections::BTreeSet<&String> = names.collect();
    let line = |path: &&String| {
        let values: Vec<Option<&String>> = runs.iter().map(|run| run.settings.get(*path)).collect();
        let differs = values.windows(2).any(|pair| pair[0] != pair[1]);
        let value_text =
            |value: &Option<&String>| value.map_or_else(|| DASH.to_owned(), |v| shorten_cell(v));
        (differs && !IGNORED_SETTINGS.contains(&path.as_str())).then(|| SettingLine {
            setting: shorten_cell(path),
            values: values.iter().map(value_text).collect(),
        })
    };
    paths.iter().filter_map(line).collect()
}

fn best_steps(runs: &[ReportRun]) -> ResultLine {
    let step = |run: &ReportRun| {
        let best = run.best.as_ref();
        RunCell::plain_cell(best.map_or_else(|| DASH.to_owned(), |best| group_digits(best.step)))
    };
    ResultLine {
        name: "best checkpoint, step".to_owned(),
        plain_name: None,
        continues: false,
        moment: "",
        cells: runs.iter().map(step).collect(),
    }
}

fn suite_lines(
    runs: &[ReportRun],
    suite: &str,
    facts: MetricFacts,
) -> Result<Vec<ResultLine>, ReportError> {
    let headlines = comparable_headlines(runs, suite);
    let both = |moment: fn(&Headline<'_>) -> Option<SuiteResult>| {
        let run_result = |(run, headline): (&ReportRun, &Option<Headline<'_>>)| {
            let result = headline.as_ref().and_then(moment);
            result.map_or_else(|| Ok(Vec::new()), |result| figures(run, &result))
        };
        let pairs = runs.iter().zip(&headlines);
        pairs.map(run_result).collect::<Result<Vec<_>, _>>()
    };
    let mut moments = vec![
        ("step 0", both(|suite_result| suite_result.base.cloned())?),
        ("best", both(|suite_result| suite_result.best.cloned())?),
    ];
    let ends_elsewhere = |suite_result: &Headline<'_>| {
        let step = |result: Option<&SuiteResult>| result.and_then(|result| result.step);
        suite_result.last.is_some() && step(suite_result.last) != step(suite_result.best)
    };
    if headlines.iter().flatten().any(ends_elsewhere) {
        moments.push(("last", both(|suite_result| suite_result.last.cloned())?));
    }
    let mut names: Vec<&str> = Vec::new();
    for figure in moments
        .iter()
        .flat_map(|(_, result_per_run)| result_per_run.iter().flatten())
    {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let n = |headline: &Option<Headline<'_>>| {
        let n = headline.as_ref().and_then(Headline::n_samples);
        RunCell::plain_cell(n.map_or_else(|| DASH.to_owned(), group_digits))
    };
    let mut lines = Vec::new();
    if headlines
        .iter()
        .flatten()
        .any(|suite_result| suite_result.n_samples().is_some())
    {
        lines.push(ResultLine {
            name: format!("{suite}: samples"),
            plain_name: None,
            continues: false,
            moment: "",
            cells: headlines.iter().map(n).collect(),
        });
    }
    for name in names {
        for (idx, (moment, result_per_run)) in moments.iter().enumerate() {
            let figures: Vec<Option<&Figure>> = result_per_run
                .iter()
                .map(|figures| figures.iter().find(|figure| figure.name == name))
                .collect();
            let values: Vec<Option<f64>> = figures
                .iter()
                .map(|figure| Some((*figure)?.value))
                .collect();
            let best = facts.best(name, &values);
            let cell = |(figure, is_best): (&Option<&Figure>, bool)| RunCell {
                is_best,
                ..RunCell::from_figure(*figure)
            };
            lines.push(ResultLine {
                name: name.to_owned(),
                plain_name: (facts.plain_name)(name),
                continues: idx > 0,
                moment,
                cells: figures.iter().zip(best).map(cell).collect(),
            });
        }
    }
    if suite == SuiteResult::LOSS {
        lines.push(least_loss(runs)?);
    }
    Ok(lines)
}

/// The lowest loss of each run and its step. The best checkpoint may have been selected by a
/// different metric.
fn least_loss(runs: &[ReportRun]) -> Result<ResultLine, ReportError> {
    let mut cells = Vec::with_capacity(runs.len());
    for run in runs {
        let mut lowest: Option<(f64, Option<u64>)> = None;
        let results = run.suites.iter();
        for result in results.filter(|result| result.suite == SuiteResult::LOSS) {
            for figure in figures(run, result)? {
                let is_less = lowest.is_none_or(|(value, _)| figure.value < value);
                if figure.name == SuiteResult::LOSS && is_less {
                    lowest = Some((figure.value, result.step));
                }
            }
        }
        let text = |(value, step): (f64, Option<u64>)| match step {
            Some(step) => format!("{} (step {})", estimate(value), group_digits(step)),
            None => estimate(value),
        };
        cells.push(RunCell::plain_cell(
            lowest.map_or_else(|| DASH.to_owned(), text),
        ));
    }
    Ok(ResultLine {
        name: SuiteResult::LOSS.to_owned(),
        plain_name: None,
        continues: true,
        moment: "least",
        cells,
    })
}

impl RunsTable {
    /// Formats the table as Markdown: the differing settings, then the results.
    pub fn markdown(&self) -> String {
        let run_names: Vec<String> = self.runs.iter().map(|run| escape_cell(run)).collect();
        let run_names = run_names.join(" | ");
        let columns = "--:|".repeat(self.runs.len());
        let mut text = match self.settings.is_empty() {
            true => "the runs have the same settings\n".to_owned(),
            false => format!("| setting | {run_names} |\n|---|{columns}\n"),
        };
        for SettingLine { setting, values } in &self.settings {
            let values: Vec<String> = values.iter().map(|value| escape_cell(value)).collect();
            text.push_str(&format!("| {setting} | {} |\n", values.join(" | ")));
        }
        text.push_str(&format!(
            "\n| metric | at | {run_names} |\n|---|---|{columns}\n"
        ));
        for line in &self.results {
            let cells: Vec<String> = line.cells.iter().map(RunCell::text).collect();
            let name = escape_cell(&line.name);
            let cells = cells.join(" | ");
            text.push_str(&format!("| {name} | {} | {cells} |\n", line.moment));
        }
        text
    }
}

/// Escapes a string for a Markdown table cell.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests;
