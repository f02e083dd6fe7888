//! Renders runs as the text of the page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::compared::{RunsTable, compare_runs};
use super::curves::{ChartGroup, chart_groups};
use super::error::ReportError;
use super::number::count;
use super::preview::{Preview, previews};
use super::results::{Opening, Suite, openings, suites};
use super::run::{MetricWords, ReportRun};
use super::samples::{Samples, samples, texts};
use super::shortened::{MAX_FILE, cell, shortened};
use super::tiles::{Tile, tiles};

/// The name ends in `.html`, which is what turns escaping on.
const TEMPLATE: (&str, &str) = ("report.html", include_str!("page/report.html"));

/// Later rules win over earlier ones of the same weight, so the order counts.
pub(super) const STYLE: &str = concat!(
    include_str!("page/base.css"),
    include_str!("page/curves.css"),
    include_str!("page/tables.css"),
    include_str!("page/texts.css"),
);

const SCRIPT: &str = include_str!("page/report.js");

/// What the template shows.
#[derive(Serialize)]
struct Page {
    title: String,
    runs: Vec<RunHead>,
    /// Absent for a run alone.
    compared: Option<RunsTable>,
    openings: Vec<Opening>,
    tiles: Vec<Tile>,
    bests: Vec<BestStep>,
    /// Whether any curve is drawn smoothed.
    has_smoothed: bool,
    chart_groups: Vec<ChartGroup>,
    suites: Vec<Suite>,
    previews: Vec<Preview>,
    samples: Samples,
    texts: Samples,
    files: Vec<RunFile>,
}

#[derive(Serialize)]
struct RunHead {
    name: String,
    date: Option<String>,
}

#[derive(Serialize)]
struct BestStep {
    run: usize,
    step: String,
}

#[derive(Serialize)]
struct RunFile {
    run: usize,
    name: &'static str,
    text: String,
    note: Option<String>,
}

/// Runs of a page at most: each has a letter.
pub(super) const MAX_RUNS: usize = 26;

/// Colours of runs by their names in the style sheet.
const COLOURS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Dashes of lines; with the colours, no two of as many runs as there are letters look alike.
const DASHES: [&str; 5] = ["none", "6 3", "2 3", "10 3 2 3", "1 4"];

/// Writes the page of one run, or of several beside each other; `words` says what people call a
/// metric.
///
/// # Errors
///
/// - no run, or more than there are letters for
/// - a line of metrics or timing without a step
/// - metrics of a suite that are no object
pub fn render(runs: &[ReportRun], words: MetricWords) -> Result<String, ReportError> {
    if !(1..=MAX_RUNS).contains(&runs.len()) {
        return Err(ReportError::NumberOfRuns { n: runs.len() });
    }
    let groups = chart_groups(runs, words)?;
    let compared = match runs {
        [_] => None,
        _ => Some(compare_runs(runs, words)?),
    };
    let page = Page {
        title: title(runs),
        runs: runs.iter().map(head).collect(),
        compared,
        openings: openings(runs, words)?,
        tiles: tiles(runs),
        bests: bests(runs),
        has_smoothed: groups.iter().any(ChartGroup::has_smoothed),
        chart_groups: groups,
        suites: suites(runs, words)?,
        previews: previews(runs),
        samples: samples(runs),
        texts: texts(runs),
        files: files(runs),
    };
    let mut environment = environment()?;
    environment.add_filter("letter", letter);
    environment.add_template(TEMPLATE.0, TEMPLATE.1)?;
    let script_hash = STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()));
    Ok(environment.get_template(TEMPLATE.0)?.render(context! {
        page => Value::from(Serde(page)),
        style => format!("{STYLE}{}", run_style(runs.len())),
        script => SCRIPT,
        script_hash,
    })?)
}

/// What every page is rendered in: a name that a template does not have is an error.
pub(super) fn environment() -> Result<Environment<'static>, ReportError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    Ok(environment)
}

/// What tells runs apart beside their colours and dashes.
fn letter(run: usize) -> String {
    let letter = u32::try_from(run)
        .ok()
        .and_then(|run| char::from_u32('A' as u32 + run));
    letter.map_or_else(String::new, String::from)
}

/// The colour and the dashes of each run.
fn run_style(n_runs: usize) -> String {
    let of_run = |run: usize| {
        let colour = COLOURS[run % COLOURS.len()];
        let dashes = DASHES[(run + run / COLOURS.len()) % DASHES.len()];
        format!(
            ".run{run} {{ --run: var(--run-{colour}); }}\n\
             .line.run{run}, .run{run} .key.curve path {{ stroke-dasharray: {dashes}; }}\n"
        )
    };
    (0..n_runs).map(of_run).collect()
}

fn title(runs: &[ReportRun]) -> String {
    let names: Vec<String> = runs.iter().map(|run| cell(&run.name)).collect();
    match names.as_slice() {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        _ => names.concat(),
    }
}

fn head(run: &ReportRun) -> RunHead {
    RunHead {
        name: cell(&run.name),
        date: run.date.as_deref().map(cell),
    }
}

fn bests(runs: &[ReportRun]) -> Vec<BestStep> {
    let best = |(run, of): (usize, &ReportRun)| {
        let best = of.best.as_ref()?;
        Some(BestStep {
            run,
            step: count(best.step),
        })
    };
    runs.iter().enumerate().filter_map(best).collect()
}

fn files(runs: &[ReportRun]) -> Vec<RunFile> {
    let files = runs.iter().enumerate().flat_map(|(idx, run)| {
        [
            (idx, "config.resolved.toml", &run.config_toml),
            (idx, "run.lock.json", &run.lock_json),
        ]
    });
    let shown = files.filter(|(.., text)| !text.is_empty());
    shown
        .map(|(run, name, text)| {
            let (text, note) = shortened(text, MAX_FILE);
            RunFile {
                run,
                name,
                text: text.to_owned(),
                note,
            }
        })
        .collect()
}
