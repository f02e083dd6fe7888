//! Writes one HTML page of the files of one or two runs, and of further evaluations (`report`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_report::{BestCheckpoint, PreviewRow, ReportRun, SampleView, SuiteResult, render};
use tooltune_rows::regular_file;
use tooltune_rows::text::{Row, inspect_row};
use tooltune_rows::tools::JsonLines;
use tooltune_suites::metric_words;

use super::{DeviceOption, eprint_line, print_line};
use crate::base_model::BaseModel;
use crate::budgets::RUN_FILE_BYTES;
use crate::cli::ReportArgs;
use crate::config::{Config, LoadedConfig, Suite};
use crate::error::Error;
use crate::recipes::run_lock::{BASE_MODEL, PROMPTS, RunLock, Used};
use crate::rows::{ReadingReport, eval_rows, with_rows};
use crate::settings;
use evaluations::{Evaluation, evaluations, ranked};

mod evaluations;

/// Training rows whose tokens are shown.
const N_PREVIEWS: usize = 3;

pub(super) fn run(args: &ReportArgs, place: &DeviceOption) -> Result<(), Error> {
    let mut runs = vec![report_run(&args.run, &args.eval, place)?];
    if let Some(other) = &args.other {
        runs.push(report_run(other, &[], place)?);
    }
    let page = render(&runs, metric_words)?;
    let output = args.output.clone();
    let output = output.unwrap_or_else(|| args.run.join("report.html"));
    write_atomic(&output, page.as_bytes())?;
    print_line(&format!("{} bytes in {}", page.len(), output.display()))
}

/// What a run's folder holds, with the evaluations in its own folder `eval` and those of `further`.
fn report_run(run: &Path, further: &[PathBuf], place: &DeviceOption) -> Result<ReportRun, Error> {
    let evaluations = &*evaluations(run, further)?;
    let resolved = run.join("config.resolved.toml");
    let config = LoadedConfig::load(&resolved, &[])?.config;
    let run_dir = RunDir::open_to_read(run)?;
    let checkpoints = run_dir.list()?;
    let best = run_dir.best()?;
    let name = run.file_name().unwrap_or(run.as_os_str());
    let best_step = best.as_ref().map(|best| best.step);
    let shown = checkpoints.iter().rev();
    let shown = shown.max_by_key(|checkpoint| Some(checkpoint.step) == best_step);
    let device = place.open(config.device)?;
    // What a run has learned from may have moved since; the rest of the page does not need it.
    let found = same_base(&config, run).and_then(|()| previews(&config, &device));
    let mask_preview = or_nothing(found, "the rows that it learned from")?;
    let rows = match (shown, evaluations) {
        (None, []) => Vec::new(),
        _ => rows(&config, evaluations, &device)?,
    };
    let rows: HashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut samples = match shown {
        Some(checkpoint) => samples(checkpoint, &label(checkpoint, best_step), &rows)?,
        None => Vec::new(),
    };
    let further = evaluations.iter();
    samples.extend(further.flat_map(|evaluation| evaluation.samples(&rows)));
    Ok(ReportRun {
        name: name.to_string_lossy().into_owned(),
        date: written_at(&resolved),
        metrics: lines(&run.join("metrics.jsonl"))?,
        timing: lines(&run.join("timing.jsonl"))?,
        best: best.and_then(|best| {
            Some(BestCheckpoint {
                step: best.step,
                metric: best.metric?,
                value: best.value?,
            })
        }),
        suites: suites(&checkpoints, best_step)?,
        evaluations: evaluations.iter().map(Evaluation::result).collect(),
        mask_preview,
        samples,
        texts: Vec::new(),
        settings: settings_by_path(&resolved)?,
        n_rows: None,
        config_toml: text(&resolved)?,
        lock_json: text(&run.join("run.lock.json"))?,
    })
}

/// Every setting of a resolved config by its path, such as `lora.r`, with its value as it is written.
fn settings_by_path(resolved: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut settings = BTreeMap::new();
    let table = text(resolved)?.parse::<toml::Table>();
    let table = table.map_err(|error| {
        Error::Usage(format!(
            "{}: {error}; it is written by `train`, and not to be edited",
            resolved.display()
        ))
    })?;
    let mut tables = vec![(String::new(), table)];
    while let Some((place, table)) = tables.pop() {
        for (key, value) in table {
            let path = if place.is_empty() {
                key
            } else {
                format!("{place}.{key}")
            };
            match value {
                toml::Value::Table(inner) => tables.push((path, inner)),
                value => drop(settings.insert(path, value.to_string())),
            }
        }
    }
    Ok(settings)
}

/// The rows that were evaluated: those of `data.eval`, and those of other files that predictions of
/// `evaluations` are named for.
fn rows(config: &Config, evaluations: &[Evaluation], device: &Device) -> Result<Vec<Row>, Error> {
    let found = eval_rows(config, device, &mut ReadingReport::default());
    let mut rows = or_nothing(found, "the rows of data.eval")?;
    let known: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let files = evaluations.iter().flat_map(|one| one.row_files(&known));
    let files: BTreeSet<_> = files.collect();
    for file in files {
        let what = format!("prompts and golds of {}", file.display());
        let mut config = config.clone();
        config.data.eval = vec![file];
        config.eval.max_samples = None;
        let found = eval_rows(&config, device, &mut ReadingReport::default());
        rows.extend(or_nothing(found, &what)?);
    }
    Ok(rows)
}

/// Another tokenizer or template would show other tokens than those that were learned.
fn same_base(config: &Config, run: &Path) -> Result<(), Error> {
    match RunLock::of_run(run)? {
        Some(lock) => {
            let used = [&[BASE_MODEL][..], &PROMPTS].concat();
            lock.check_used(config, Used::of(&used), run)
        }
        None => Ok(()),
    }
}

fn or_nothing<T: Default>(found: Result<T, Error>, what: &str) -> Result<T, Error> {
    match found {
        Ok(found) => Ok(found),
        Err(error) => {
            eprint_line(&format!("{what} are not in the report: {error}"))?;
            Ok(T::default())
        }
    }
}

fn text(path: &Path) -> Result<String, Error> {
    if is_there(path)? {
        regular_file::read_text(path, RUN_FILE_BYTES).map_err(Error::io(path, "read"))
    } else {
        Ok(String::new())
    }
}

/// Whether a file of a run is there; what is no file is an error.
fn is_there(path: &Path) -> Result<bool, Error> {
    regular_file::is_there(path).map_err(Error::io(path, "read"))
}

fn lines(path: &Path) -> Result<Vec<Value>, Error> {
    if !is_there(path)? {
        return Ok(Vec::new());
    }
    let lines = JsonLines::open(path)?.map(|line| Ok(line?.1));
    lines.collect()
}

/// When a file was last written, in UTC.
fn written_at(path: &Path) -> Option<String> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    let text = OffsetDateTime::from(modified).format(&Rfc3339).ok()?;
    let (day, time) = text.split_once('T')?;
    Some(format!("{day}, {} UTC", time.get(..5)?))
}

/// What each kept checkpoint was worth, in their order.
fn suites(checkpoints: &[Checkpoint], best: Option<u64>) -> Result<Vec<SuiteResult>, Error> {
    let mut results = Vec::new();
    for suite in Suite::words() {
        for checkpoint in checkpoints {
            let path = checkpoint.path.join(format!("eval.{suite}.metrics.json"));
            if !is_there(&path)? {
                continue;
            }
            let metrics = serde_json::from_str(&text(&path)?);
            let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
            results.push(SuiteResult {
                suite: suite.to_owned(),
                label: label(checkpoint, best),
                step: Some(checkpoint.step),
                // Reports of agents hold their suite's table under its name.
                metrics: metrics.get(suite).cloned().unwrap_or(metrics),
            });
        }
    }
    Ok(results)
}

fn label(checkpoint: &Checkpoint, best: Option<u64>) -> String {
    if Some(checkpoint.step) == best {
        format!("step {}, best", checkpoint.step)
    } else {
        format!("step {}", checkpoint.step)
    }
}

fn previews(config: &Config, device: &Device) -> Result<Vec<PreviewRow>, Error> {
    let base = BaseModel::of(config)?;
    let options = settings::prepare_options(config, &base.stop_ids);
    let files = config.data.train.as_slice();
    with_rows(
        config,
        files,
        device,
        &mut ReadingReport::default(),
        |rows| {
            rows.take(N_PREVIEWS)
                .map(|row| {
                    let row = inspect_row(&row?, &base.template, &base.tokenizer, &options)?;
                    Ok(PreviewRow::from(&row))
                })
                .collect()
        },
    )
}

/// The samples of a checkpoint with its predictions, those of each suite ranked by what it scores.
fn samples(
    checkpoint: &Checkpoint,
    result: &str,
    rows: &HashMap<&str, &Row>,
) -> Result<Vec<SampleView>, Error> {
    let mut samples = Vec::new();
    for suite in Suite::all() {
        let path = checkpoint
            .path
            .join(format!("eval.{suite}.predictions.jsonl"));
        samples.extend(ranked(suite.info(), result, &lines(&path)?, rows));
    }
    Ok(samples)
}
