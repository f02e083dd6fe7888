//! Renders runs as HTML.

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
use super::number::group_digits;
use super::preview::{Preview, previews};
use super::results::{Suite, SuiteOpening, suite_openings, suites};
use super::run::{MetricFacts, ReportRun};
use super::samples::{Samples, sample_texts, samples};
use super::tiles::{Tile, tiles};
use super::truncation::{MAX_FILE, shorten_cell, truncate};

/// Template name and source. Escaping is on because the name ends in `.html`.
const TEMPLATE: (&str, &str) = ("report.html", include_str!("page/report.html"));

/// The start of every page, up to the style sheet. It needs `title` and `style`, and `script_hash`
/// if the page has a script.
const HEAD: (&str, &str) = ("head.html", include_str!("page/head.html"));

/// The style sheets. If two rules have equal specificity, the later one applies, so the order
/// matters.
const STYLE: &str = concat!(
    include_str!("page/base.css"),
    include_str!("page/curves.css"),
    include_str!("page/tables.css"),
    include_str!("page/texts.css"),
);

const SCRIPT: &str = include_str!("page/report.js");

/// The template's data.
#[derive(Serialize)]
struct Page {
    title: String,
    runs: Vec<RunHead>,
    /// `None` for a single run.
    compared: Option<RunsTable>,
    openings: Vec<SuiteOpening>,
    origins: Vec<RunOrigin>,
    /// Whether no run has a model that generates text.
    is_retriever_only: bool,
    tiles: Vec<Tile>,
    bests: Vec<BestStep>,
    /// Whether any curve is smoothed.
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

/// A description of an evaluation's model and data.
#[derive(Serialize)]
struct RunOrigin {
    run: usize,
    label: String,
    text: String,
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

/// Maximum number of runs per page, because each run has a letter.
pub(super) const MAX_RUNS: usize = 26;

/// Names of the run colours in the style sheet.
const COLOURS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Dash patterns of lines. Together with the colours they give each of the 26 runs a distinct look.
const DASHES: [&str; 5] = ["none", "6 3", "2 3", "10 3 2 3", "1 4"];

/// Renders the page of one run, or of several runs side by side. `facts` describes the metrics.
///
/// # Errors
///
/// - there is no run, or there are more runs than letters
/// - a line of the metrics or timing file has no step
/// - the metrics of a suite are not a JSON object
pub fn render(runs: &[ReportRun], facts: MetricFacts) -> Result<String, ReportError> {
    if !(1..=MAX_RUNS).contains(&runs.len()) {
        return Err(ReportError::NumberOfRuns { n: runs.len() });
    }
    let groups = chart_groups(runs, facts)?;
    let compared = match runs {
        [_] => None,
        _ => Some(compare_runs(runs, facts)?),
    };
    let page = Page {
        title: title(runs),
        runs: runs.iter().map(run_head).collect(),
        compared,
        openings: suite_openings(runs, facts)?,
        origins: origins(runs),
        is_retriever_only: runs.iter().all(|run| run.is_retriever_only),
        tiles: tiles(runs),
        bests: best_steps(runs),
        has_smoothed: groups.iter().any(ChartGroup::has_smoothed),
        chart_groups: groups,
        suites: suites(runs, facts)?,
        previews: previews(runs),
        samples: samples(runs),
        texts: sample_texts(runs),
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

/// The template environment. An undefined name in a template is an error.
fn environment() -> Result<Environment<'static>, ReportError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.add_template(HEAD.0, HEAD.1)?;
    Ok(environment)
}

/// Renders a page without a script from a template's name and source.
pub(super) fn render_without_script(
    (name, source): (&'static str, &'static str),
    page: impl Serialize,
) -> Result<String, ReportError> {
    let mut environment = environment()?;
    environment.add_template(name, source)?;
    Ok(environment.get_template(name)?.render(context! {
        page => Value::from(Serde(page)),
        style => STYLE,
    })?)
}

/// The letter that identifies a run, in addition to its colour and dashes.
fn letter(run: usize) -> String {
    let letter = u32::try_from(run)
        .ok()
        .and_then(|run| char::from_u32('A' as u32 + run));
    letter.map_or_else(String::new, String::from)
}

/// Style rules with the colour and dash pattern of each run.
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
    let names: Vec<String> = runs.iter().map(|run| shorten_cell(&run.name)).collect();
    match names.as_slice() {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        _ => names.concat(),
    }
}

fn run_head(run: &ReportRun) -> RunHead {
    RunHead {
        name: shorten_cell(&run.name),
        date: run.date.as_deref().map(shorten_cell),
    }
}

fn best_steps(runs: &[ReportRun]) -> Vec<BestStep> {
    let best = |(run, report_run): (usize, &ReportRun)| {
        let best = report_run.best.as_ref()?;
        Some(BestStep {
            run,
            step: group_digits(best.step),
        })
    };
    runs.iter().enumerate().filter_map(best).collect()
}

fn origins(runs: &[ReportRun]) -> Vec<RunOrigin> {
    let numbered_runs = runs.iter().enumerate();
    let of_run = |(run, report_run): (usize, &ReportRun)| -> Vec<RunOrigin> {
        let lines = report_run.origins.iter().map(|line| RunOrigin {
            run,
            label: shorten_cell(&line.label),
            text: shorten_cell(&line.text),
        });
        lines.collect()
    };
    numbered_runs.flat_map(of_run).collect()
}

fn files(runs: &[ReportRun]) -> Vec<RunFile> {
    let files = runs.iter().enumerate().flat_map(|(idx, run)| {
        [
            (idx, "config.resolved.toml", &run.config_toml),
            (idx, "run.lock.json", &run.lock_json),
        ]
    });
    let non_empty = files.filter(|(.., text)| !text.is_empty());
    non_empty
        .map(|(run, name, text)| {
            let (text, note) = truncate(text, MAX_FILE);
            RunFile {
                run,
                name,
                text: text.to_owned(),
                note,
            }
        })
        .collect()
}
