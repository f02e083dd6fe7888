//! `report`: the files of one or two runs to one HTML page.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::Device;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_data::flat::FlattenReport;
use tooltune_data::report::{
    BestCheckpoint, PreviewRow, ReportRun, SampleScoreView, SampleView, SuiteResult, render,
};
use tooltune_data::text::{Row, inspect_row};
use tooltune_data::tools::JsonLines;

use super::{Place, say, say_aside};
use crate::base_model::BaseModel;
use crate::cli::ReportArgs;
use crate::config::{Config, LoadedConfig, Suite};
use crate::error::Error;
use crate::recipes::rows::with_rows;
use crate::recipes::{settings, sft};

/// Training rows whose tokens are shown.
const N_PREVIEWS: usize = 3;

/// Samples that are shown, the worst first.
const N_SAMPLES: usize = 25;

pub(super) fn run(args: &ReportArgs, place: &Place) -> Result<(), Error> {
    let runs = [Some(&args.run), args.other.as_ref()];
    let runs = runs
        .into_iter()
        .flatten()
        .map(|run| report_run(run, place))
        .collect::<Result<Vec<_>, Error>>()?;
    let page = render(&runs)?;
    let output = args.output.clone();
    let output = output.unwrap_or_else(|| args.run.join("report.html"));
    write_atomic(&output, page.as_bytes())?;
    say(&format!("{} bytes in {}", page.len(), output.display()))
}

fn report_run(run: &Path, place: &Place) -> Result<ReportRun, Error> {
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
    let found = previews(&config, &device);
    let mask_preview = or_nothing(found, "the rows that it learned from")?;
    let samples = match shown {
        Some(checkpoint) => {
            let rows = sft::eval_rows(&config, &device, &mut FlattenReport::default());
            samples(checkpoint, &or_nothing(rows, "the rows of data.eval")?)?
        }
        None => Vec::new(),
    };
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
        mask_preview,
        samples,
        config_toml: text(&resolved)?,
        lock_json: text(&run.join("run.lock.json"))?,
    })
}

fn or_nothing<T: Default>(found: Result<T, Error>, what: &str) -> Result<T, Error> {
    match found {
        Ok(found) => Ok(found),
        Err(error) => {
            say_aside(&format!("{what} are not in the report: {error}"))?;
            Ok(T::default())
        }
    }
}

fn text(path: &Path) -> Result<String, Error> {
    match path.exists() {
        true => std::fs::read_to_string(path).map_err(Error::io(path, "read")),
        false => Ok(String::new()),
    }
}

fn lines(path: &Path) -> Result<Vec<Value>, Error> {
    if !path.exists() {
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
    for &suite in Suite::WORDS {
        for checkpoint in checkpoints {
            let path = checkpoint.path.join(format!("eval.{suite}.metrics.json"));
            if !path.exists() {
                continue;
            }
            let metrics = serde_json::from_str(&text(&path)?);
            let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
            let is_best = Some(checkpoint.step) == best;
            results.push(SuiteResult {
                suite: suite.to_owned(),
                label: match is_best {
                    true => format!("step {}, best", checkpoint.step),
                    false => format!("step {}", checkpoint.step),
                },
                // Reports of agents hold their suite's table under its name.
                metrics: metrics.get(suite).cloned().unwrap_or(metrics),
            });
        }
    }
    Ok(results)
}

fn previews(config: &Config, device: &Device) -> Result<Vec<PreviewRow>, Error> {
    let template = config.data.chat_template.as_deref();
    let base = BaseModel::open(&config.language_model()?.model_name_or_path, template)?;
    let options = settings::prepare_options(config, &base.stop_ids);
    let files = (config.data.train.as_slice(), device);
    with_rows(config, files, &mut FlattenReport::default(), |rows| {
        rows.take(N_PREVIEWS)
            .map(|row| {
                let row = inspect_row(&row?, &base.template, &base.tokenizer, &options)?;
                Ok(PreviewRow::from(&row))
            })
            .collect()
    })
}

/// The samples of a checkpoint that score least.
fn samples(checkpoint: &Checkpoint, rows: &[Row]) -> Result<Vec<SampleView>, Error> {
    let rows: HashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut samples = Vec::new();
    // Rankings have no text to show beside a gold one.
    let is_written = |suite: &&&str| **suite != Suite::Retrieval.as_str();
    for suite in Suite::WORDS.iter().filter(is_written) {
        let path = checkpoint
            .path
            .join(format!("eval.{suite}.predictions.jsonl"));
        let predictions = lines(&path)?;
        samples.extend(predictions.iter().map(|line| sample(suite, line, &rows)));
    }
    let total = |sample: &SampleView| -> f64 { sample.scores.iter().map(|s| s.value).sum() };
    samples.sort_by(|a, b| total(a).total_cmp(&total(b)));
    samples.truncate(N_SAMPLES);
    Ok(samples)
}

fn sample(suite: &str, line: &Value, rows: &HashMap<&str, &Row>) -> SampleView {
    let id = line["id"].as_str().or(line["uid"].as_str());
    let id = id.unwrap_or_default();
    let row = rows.get(id).copied();
    let message = |at: fn(&Row) -> Option<&tooltune_data::text::Message>| {
        let content = row.and_then(at).and_then(|message| message.content.clone());
        content.unwrap_or_default()
    };
    // Lines of suites other than slot say themselves what was asked for.
    let text = |keys: &[&str]| {
        let mut found = keys.iter().filter_map(|key| line[*key].as_str());
        found.next().map(str::to_owned)
    };
    let query = text(&["query", "question"]);
    let written = text(&["prediction", "model_output"]);
    let gold = text(&["gold", "gold_answer"]);
    let done = [&line["outcome"], &line["steps"]];
    let done = done.into_iter().find(|done| !done.is_null());
    SampleView {
        suite: suite.to_owned(),
        id: id.to_owned(),
        prompt: query.unwrap_or_else(|| message(|row| row.conversation.prompt().last())),
        prediction: written.unwrap_or_else(|| done.map(pretty).unwrap_or_default()),
        gold: gold.unwrap_or_else(|| {
            message(|row| {
                let messages = &row.conversation.messages;
                messages.get(row.conversation.completion_start..)?.first()
            })
        }),
        // The scores of some stand among the other fields.
        scores: scores(line.get("score").unwrap_or(line)),
        notes: notes(line),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Numbers and truths of a sample's score.
fn scores(score: &Value) -> Vec<SampleScoreView> {
    let fields = score.as_object().into_iter().flatten();
    fields
        .filter_map(|(name, value)| {
            let value = match value {
                Value::Bool(is) => f64::from(u8::from(*is)),
                value => value.as_f64()?,
            };
            Some(SampleScoreView {
                name: name.clone(),
                value,
            })
        })
        .collect()
}

fn notes(line: &Value) -> Vec<String> {
    let reason = line["finish_reason"].as_str().unwrap_or_default();
    let cut = (!matches!(reason, "" | "stop")).then(|| format!("cut by its limit of {reason}"));
    let malformed = line["scored"]["malformed"].as_str();
    let malformed = malformed.map(|kind| format!("malformed: {kind}"));
    let failures = line["outcome"]["failures"].as_array().into_iter().flatten();
    cut.into_iter()
        .chain(malformed)
        .chain(failures.map(|failure| json!(failure).to_string()))
        .collect()
}
