//! Renders runs as the text of the page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use serde::Serialize;
use sha2::{Digest, Sha256};
use similar::{ChangeTag, TextDiff};

use super::curves::{ChartGroup, chart_groups};
use super::error::ReportError;
use super::number::count;
use super::preview::{Preview, previews};
use super::results::{Opening, Suite, openings, suites};
use super::run::ReportRun;
use super::samples::{Samples, samples};
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
    openings: Vec<Opening>,
    tiles: Vec<Tile>,
    bests: Vec<BestStep>,
    /// Whether any curve is drawn smoothed.
    has_smoothed: bool,
    chart_groups: Vec<ChartGroup>,
    suites: Vec<Suite>,
    previews: Vec<Preview>,
    samples: Samples,
    files: Vec<RunFile>,
    /// Lines in which the configs of two runs differ, with the table that they stand in.
    config_changes: Vec<ConfigChange>,
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

#[derive(Serialize)]
struct ConfigChange {
    run: usize,
    table: String,
    line: String,
}

/// Writes the page of one run, or of two beside each other.
///
/// # Errors
///
/// - no run, or more than two
/// - a line of metrics or timing without a step
/// - metrics of a suite that are no object
pub fn render(runs: &[ReportRun]) -> Result<String, ReportError> {
    if !(1..=2).contains(&runs.len()) {
        return Err(ReportError::NumberOfRuns { n: runs.len() });
    }
    let groups = chart_groups(runs)?;
    let page = Page {
        title: title(runs),
        runs: runs.iter().map(head).collect(),
        openings: openings(runs)?,
        tiles: tiles(runs),
        bests: bests(runs),
        has_smoothed: groups.iter().any(ChartGroup::has_smoothed),
        chart_groups: groups,
        suites: suites(runs)?,
        previews: previews(runs),
        samples: samples(runs),
        files: files(runs),
        config_changes: config_changes(runs),
    };
    let mut environment = environment()?;
    environment.add_filter("letter", letter);
    environment.add_template(TEMPLATE.0, TEMPLATE.1)?;
    let script_hash = STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()));
    Ok(environment.get_template(TEMPLATE.0)?.render(context! {
        page => Value::from(Serde(page)),
        style => STYLE,
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

/// What tells two runs apart beside their colours.
fn letter(run: usize) -> &'static str {
    if run == 0 { "A" } else { "B" }
}

fn title(runs: &[ReportRun]) -> String {
    let names: Vec<String> = runs.iter().map(|run| cell(&run.name)).collect();
    names.join(" and ")
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

fn config_changes(runs: &[ReportRun]) -> Vec<ConfigChange> {
    let [one, other] = runs else {
        return Vec::new();
    };
    if one.config_toml.is_empty() || other.config_toml.is_empty() {
        return Vec::new();
    }
    let (one, _) = shortened(&one.config_toml, MAX_FILE);
    let (other, _) = shortened(&other.config_toml, MAX_FILE);
    let mut tables = [String::new(), String::new()];
    let mut changes = Vec::new();
    for change in TextDiff::from_lines(one, other).iter_all_changes() {
        let line = change.value().trim();
        let runs: &[usize] = match change.tag() {
            ChangeTag::Delete => &[0],
            ChangeTag::Insert => &[1],
            ChangeTag::Equal => &[0, 1],
        };
        for run in runs {
            let Some(table) = tables.get_mut(*run) else {
                continue;
            };
            if line.starts_with('[') && line.ends_with(']') && !line.contains('=') {
                *table = cell(line);
            }
            if change.tag() != ChangeTag::Equal && !line.is_empty() {
                changes.push(ConfigChange {
                    run: *run,
                    table: table.clone(),
                    line: cell(line),
                });
            }
        }
    }
    changes
}
