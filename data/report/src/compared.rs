//! Lays several runs beside each other: the settings in which they differ, and what they came to.

use serde::Serialize;

use super::error::ReportError;
use super::headline::{Headline, of_runs, suites};
use super::number::{beside_ceiling, count, estimate};
use super::results::{Figure, figures};
use super::run::{MetricWords, ReportRun, SuiteResult};
use super::shortened::cell;

/// Settings that differ between any two runs and explain nothing.
const PLACES: [&str; 2] = ["train.output_dir", "data.template_date"];

/// Stands where a run has no such value.
const DASH: &str = "–";

/// What the same line says of every run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunsTable {
    /// The names of the runs, one for each column.
    pub runs: Vec<String>,
    /// The settings in which they differ, by path.
    pub settings: Vec<SettingLine>,
    /// What they were evaluated on and what they came to.
    pub results: Vec<ResultLine>,
}

/// A setting in all runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingLine {
    /// Its path, such as `train.learning_rate`.
    pub setting: String,
    /// Its value in each run.
    pub values: Vec<String>,
}

/// A metric of one moment in all runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultLine {
    /// The metric, such as `slot.mean`, or what else is said of the evaluations.
    pub name: String,
    /// What people call it.
    pub words: Option<&'static str>,
    /// Whether the name stands in the line above.
    pub continues: bool,
    /// `step 0`, `best`, `last`, or for the loss `least`; empty for what is of both.
    pub moment: &'static str,
    /// Its value in each run.
    pub cells: Vec<RunCell>,
}

/// The value of a metric in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunCell {
    /// As text.
    pub value: String,
    /// Its 95 % interval, where it has one.
    pub interval: Option<[String; 2]>,
}

impl RunCell {
    fn plain(value: String) -> Self {
        Self {
            value,
            interval: None,
        }
    }

    fn of(figure: Option<&Figure>) -> Self {
        let Some(figure) = figure else {
            return Self::plain(DASH.to_owned());
        };
        let interval = figure.interval;
        Self {
            value: beside_ceiling(figure.value, figure.ceiling),
            interval: interval.map(|(low, high)| [low, high].map(estimate)),
        }
    }

    fn text(&self) -> String {
        match &self.interval {
            None => self.value.clone(),
            Some([low, high]) => format!("{} [{low}, {high}]", self.value),
        }
    }
}

/// Lines runs up: settings that differ, then every metric at step 0, at the best and at the last
/// checkpoint, where that is another one.
///
/// # Errors
///
/// - the metrics of a result are no object
pub fn compare_runs(runs: &[ReportRun], words: MetricWords) -> Result<RunsTable, ReportError> {
    let mut results = vec![best_steps(runs)];
    for suite in suites(runs) {
        results.extend(of_suite(runs, suite, words)?);
    }
    Ok(RunsTable {
        runs: names(runs),
        settings: settings(runs),
        results,
    })
}

fn names(runs: &[ReportRun]) -> Vec<String> {
    runs.iter().map(|run| cell(&run.name)).collect()
}

fn settings(runs: &[ReportRun]) -> Vec<SettingLine> {
    let known = runs.iter().flat_map(|run| run.settings.keys());
    let paths: std::collections::BTreeSet<&String> = known.collect();
    let line = |path: &&String| {
        let values: Vec<Option<&String>> = runs.iter().map(|run| run.settings.get(*path)).collect();
        let differs = values.windows(2).any(|pair| pair[0] != pair[1]);
        let shown = |value: &Option<&String>| value.map_or_else(|| DASH.to_owned(), |v| cell(v));
        (differs && !PLACES.contains(&path.as_str())).then(|| SettingLine {
            setting: cell(path),
            values: values.iter().map(shown).collect(),
        })
    };
    paths.iter().filter_map(line).collect()
}

fn best_steps(runs: &[ReportRun]) -> ResultLine {
    let step = |run: &ReportRun| {
        let best = run.best.as_ref();
        RunCell::plain(best.map_or_else(|| DASH.to_owned(), |best| count(best.step)))
    };
    ResultLine {
        name: "best checkpoint, step".to_owned(),
        words: None,
        continues: false,
        moment: "",
        cells: runs.iter().map(step).collect(),
    }
}

fn of_suite(
    runs: &[ReportRun],
    suite: &str,
    words: MetricWords,
) -> Result<Vec<ResultLine>, ReportError> {
    let headlines = of_runs(runs, suite);
    let both = |moment: fn(&Headline<'_>) -> Option<SuiteResult>| {
        let of_run = |(run, headline): (&ReportRun, &Option<Headline<'_>>)| {
            let result = headline.as_ref().and_then(moment);
            result.map_or_else(|| Ok(Vec::new()), |result| figures(run, &result))
        };
        let pairs = runs.iter().zip(&headlines);
        pairs.map(of_run).collect::<Result<Vec<_>, _>>()
    };
    let mut moments = vec![
        ("step 0", both(|one| one.base.cloned())?),
        ("best", both(|one| one.best.cloned())?),
    ];
    let ends_elsewhere = |one: &Headline<'_>| {
        let step = |result: Option<&SuiteResult>| result.and_then(|result| result.step);
        one.last.is_some() && step(one.last) != step(one.best)
    };
    if headlines.iter().flatten().any(ends_elsewhere) {
        moments.push(("last", both(|one| one.last.cloned())?));
    }
    let mut names: Vec<&str> = Vec::new();
    for figure in moments
        .iter()
        .flat_map(|(_, of_runs)| of_runs.iter().flatten())
    {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let n = |headline: &Option<Headline<'_>>| {
        let n = headline.as_ref().and_then(Headline::n);
        RunCell::plain(n.map_or_else(|| DASH.to_owned(), count))
    };
    let mut lines = Vec::new();
    if headlines.iter().flatten().any(|one| one.n().is_some()) {
        lines.push(ResultLine {
            name: format!("{suite}: samples"),
            words: None,
            continues: false,
            moment: "",
            cells: headlines.iter().map(n).collect(),
        });
    }
    for name in names {
        for (place, (moment, of_runs)) in moments.iter().enumerate() {
            let cell = |figures: &Vec<Figure>| {
                RunCell::of(figures.iter().find(|figure| figure.name == name))
            };
            lines.push(ResultLine {
                name: name.to_owned(),
                words: words(name),
                continues: place > 0,
                moment,
                cells: of_runs.iter().map(cell).collect(),
            });
        }
    }
    if suite == SuiteResult::LOSS {
        lines.push(least_loss(runs)?);
    }
    Ok(lines)
}

/// The least loss of each run, with the step that it was measured at: a checkpoint may be the best by
/// another metric.
fn least_loss(runs: &[ReportRun]) -> Result<ResultLine, ReportError> {
    let mut cells = Vec::with_capacity(runs.len());
    for run in runs {
        let mut least: Option<(f64, Option<u64>)> = None;
        let results = run.suites.iter();
        for result in results.filter(|result| result.suite == SuiteResult::LOSS) {
            for figure in figures(run, result)? {
                let is_less = least.is_none_or(|(value, _)| figure.value < value);
                if figure.name == SuiteResult::LOSS && is_less {
                    least = Some((figure.value, result.step));
                }
            }
        }
        let text = |(value, step): (f64, Option<u64>)| match step {
            Some(step) => format!("{} (step {})", estimate(value), count(step)),
            None => estimate(value),
        };
        cells.push(RunCell::plain(least.map_or_else(|| DASH.to_owned(), text)));
    }
    Ok(ResultLine {
        name: SuiteResult::LOSS.to_owned(),
        words: None,
        continues: true,
        moment: "least",
        cells,
    })
}

impl RunsTable {
    /// As Markdown: the settings that differ, then the results.
    pub fn markdown(&self) -> String {
        let heads: Vec<String> = self.runs.iter().map(|run| escaped(run)).collect();
        let heads = heads.join(" | ");
        let columns = "--:|".repeat(self.runs.len());
        let mut text = match self.settings.is_empty() {
            true => "the runs do not differ in their settings\n".to_owned(),
            false => format!("| setting | {heads} |\n|---|{columns}\n"),
        };
        for SettingLine { setting, values } in &self.settings {
            let values: Vec<String> = values.iter().map(|value| escaped(value)).collect();
            text.push_str(&format!("| {setting} | {} |\n", values.join(" | ")));
        }
        text.push_str(&format!(
            "\n| metric | at | {heads} |\n|---|---|{columns}\n"
        ));
        for line in &self.results {
            let cells: Vec<String> = line.cells.iter().map(RunCell::text).collect();
            let name = escaped(&line.name);
            let cells = cells.join(" | ");
            text.push_str(&format!("| {name} | {} | {cells} |\n", line.moment));
        }
        text
    }
}

/// A text within the cell of a Markdown table.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests;
