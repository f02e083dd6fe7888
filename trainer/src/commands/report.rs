//! `report`: writes one HTML page for runs and additional evaluations.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooltune_apis::JsonLines;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;
use tooltune_report::{
    BestCheckpoint, MetricFacts, PreviewRow, ReportRun, SampleView, SuiteResult, render,
};
use tooltune_rows::text::{Row, inspect_row};
use tooltune_suites::{greater_is_better, leaf_errors, plain_metric_name};

use super::target::run_folder;
use super::{DeviceOption, eprint_line, print_line};
use crate::base_model::BaseModel;
use crate::cli::ReportArgs;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::config::{Config, LoadedConfig, Suite, flat};
use crate::error::Error;
use crate::eval::groups::SharedKeys;
use crate::recipes::run_lock::{BASE_MODEL, PROMPTS, RunLock, Used};
use crate::rows::{ReadingReport, RowFiles, eval_rows, with_rows};
use crate::settings;
use evaluations::{Evaluated, Evaluation, LineSource, evaluations, rank_lines};

mod evaluations;
mod generated;

/// How metrics are named and compared, for all suites.
pub(super) const METRIC_FACTS: MetricFacts = MetricFacts {
    plain_name: plain_metric_name,
    greater_is_better,
};

/// Number of training rows whose tokens are shown.
const N_PREVIEWS: usize = 3;

pub(super) fn run(args: &ReportArgs, device_option: &DeviceOption) -> Result<(), Error> {
    if args.runs.len() > 1 && !args.eval.is_empty() {
        return Err(Error::Usage(
            "--eval only applies to a page of one run; evaluations in a run's own eval folder are \
             included automatically"
                .to_owned(),
        ));
    }
    let folders = args.runs.iter().map(|run| run_folder(run));
    let folders = folders.collect::<Result<Vec<_>, Error>>()?;
    let mut runs = Vec::with_capacity(folders.len());
    for (folder, name) in folders.iter().zip(names(&folders)) {
        let run_files = RunFiles::read(folder, name, &args.eval, &args.by)?;
        runs.push(run_files.with_rows(device_option)?);
    }
    for (run, folder) in runs.iter().zip(&folders) {
        let quoted = |path: &Path| {
            let path = path.display().to_string();
            shlex::try_quote(&path).map_or_else(|_| path.clone(), Into::into)
        };
        let best = folder.join("eval/best");
        if run.is_retriever_only && run.evaluations.is_empty() {
            eprint_line(&format!(
                "{}: no evaluations to compare; run `tooltune eval {run} --checkpoint base \
                 --output {}` and `tooltune eval {run} --output {}` to rank the documents before \
                 and after training, then write the report again",
                folder.display(),
                quoted(&folder.join("eval/base")),
                quoted(&best),
                run = quoted(folder)
            ))?;
        } else if !run.is_retriever_only && run.samples.is_empty() && run.texts.is_empty() {
            eprint_line(&format!(
                "{}: no samples to show; `tooltune generate {run} --output {}` saves completions \
                 next to their references, `tooltune eval {run} --output {}` measures each row; \
                 then write the report again",
                folder.display(),
                quoted(&best.with_extension("jsonl")),
                quoted(&best),
                run = quoted(folder)
            ))?;
        }
    }
    let page = render(&runs, METRIC_FACTS)?;
    let default_path = folders.first().map(|run| run.join("report.html"));
    let output = args.output.clone().or(default_path).unwrap_or_default();
    write_atomic(&output, page.as_bytes())?;
    print_line(&format!("{} bytes in {}", page.len(), output.display()))
}

/// Names runs by their folder, or by their path if two folders have the same name.
pub(super) fn names(folders: &[PathBuf]) -> Vec<String> {
    let name = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let unique_name = |folder: &PathBuf| {
        let n_same = folders.iter().filter(|other| name(other) == name(folder));
        match n_same.count() {
            1 => name(folder),
            _ => folder.display().to_string(),
        }
    };
    folders.iter().map(unique_name).collect()
}

/// Data from the files of a run, without its rows.
pub(super) struct RunFiles {
    folder: PathBuf,
    config: Config,
    evaluations: Vec<Evaluation>,
    /// The best checkpoint, or the last if none was selected.
    shown_checkpoint: Option<Checkpoint>,
    best_step: Option<u64>,
    pub(super) run: ReportRun,
}

impl RunFiles {
    /// Reads a run's folder, and the evaluations in its `eval` folder and in `further`. Samples are
    /// grouped by the keys of `by`.
    ///
    /// # Errors
    ///
    /// The folder is not a run, a file cannot be read, or no suite has a key.
    pub(super) fn read(
        folder: &Path,
        name: String,
        further: &[PathBuf],
        by: &[String],
    ) -> Result<Self, Error> {
        let mut keys = SharedKeys::new(by);
        let Evaluated {
            mut evaluations,
            texts,
        } = evaluations(folder, further)?;
        for evaluation in &mut evaluations {
            evaluation.add_groups(&mut keys);
        }
        let resolved = folder.join("config.resolved.toml");
        let config = LoadedConfig::load(&resolved, &[])?.config;
        let run_dir = RunDir::open_to_read(folder)?;
        let checkpoints = run_dir.list()?;
        let best = run_dir.best_checkpoint()?.map(|(_, best)| best);
        let best_step = best.as_ref().map(|best| best.step);
        let shown = checkpoints.iter().rev();
        let shown = shown.max_by_key(|checkpoint| Some(checkpoint.step) == best_step);
        let metrics = lines(&folder.join("metrics.jsonl"))?;
        let run = ReportRun {
            name,
            date: written_at(&resolved),
            timing: lines(&folder.join("timing.jsonl"))?,
            best: best.and_then(|best| {
                Some(BestCheckpoint {
                    step: best.step,
                    metric: best.metric?,
                    value: best.value?,
                })
            }),
            suites: suites(&checkpoints, best_step, &metrics, &mut keys)?,
            evaluations: evaluations.iter().flat_map(Evaluation::results).collect(),
            origins: evaluations.iter().map(Evaluation::origin).collect(),
            is_retriever_only: config.model.is_none(),
            settings: flat(&config),
            texts,
            metrics,
            config_toml: text(&resolved)?,
            lock_json: text(&folder.join("run.lock.json"))?,
            ..ReportRun::default()
        };
        keys.check()?;
        Ok(Self {
            folder: folder.to_owned(),
            shown_checkpoint: shown.cloned(),
            config,
            evaluations,
            best_step,
            run,
        })
    }

    /// Adds previews of training rows, and the samples with their rows.
    fn with_rows(self, device_option: &DeviceOption) -> Result<ReportRun, Error> {
        let Self {
            config,
            evaluations,
            best_step,
            mut run,
            ..
        } = self;
        let device = device_option.open(config.device)?;
        // Training files may have been moved; the rest of the page does not need them.
        let previews_result =
            check_base_unchanged(&config, &self.folder).and_then(|()| previews(&config, &device));
        let training = or_default(previews_result, "its training rows")?;
        run.mask_preview = training.previews;
        run.n_rows = (training.n_rows > 0).then_some(training.n_rows);
        let rows = match (&self.shown_checkpoint, evaluations.as_slice()) {
            (None, []) => Vec::new(),
            _ => rows(&config, &evaluations, &device)?,
        };
        let rows: HashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        if let Some(checkpoint) = &self.shown_checkpoint {
            run.samples = samples(checkpoint, &label(checkpoint.step, best_step), &rows)?;
        }
        let further = evaluations.iter();
        run.samples
            .extend(further.flat_map(|evaluation| evaluation.samples(&rows)));
        Ok(run)
    }
}

/// The evaluated rows: the rows of `data.eval`, and of other files that the predictions name.
fn rows(config: &Config, evaluations: &[Evaluation], device: &Device) -> Result<Vec<Row>, Error> {
    let result = eval_rows(config, device, &mut ReadingReport::default());
    let mut rows = or_default(result, "the rows of data.eval")?;
    let known: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let files = evaluations.iter().flat_map(|one| one.row_files(&known));
    let files: BTreeSet<_> = files.collect();
    for file in files {
        let what = format!("prompts and references of {}", file.display());
        let mut config = config.clone();
        config.data.evaluate_on(vec![file]);
        config.eval.max_samples = None;
        let result = eval_rows(&config, device, &mut ReadingReport::default());
        rows.extend(or_default(result, &what)?);
    }
    Ok(rows)
}

/// Fails if the tokenizer or template changed, because the page would show different tokens than
/// training used.
fn check_base_unchanged(config: &Config, run: &Path) -> Result<(), Error> {
    match RunLock::read_for_run(run)? {
        Some(lock) => {
            let used = [&[BASE_MODEL][..], &PROMPTS].concat();
            lock.check_used(config, Used::settings(&used), run)
        }
        None => Ok(()),
    }
}

fn or_default<T: Default>(result: Result<T, Error>, what: &str) -> Result<T, Error> {
    match result {
        Ok(result) => Ok(result),
        Err(error) => {
            eprint_line(&format!("the report omits {what}: {error}"))?;
            Ok(T::default())
        }
    }
}

fn text(path: &Path) -> Result<String, Error> {
    if file_exists(path)? {
        regular_file::read_text(path, RUN_FILE_BYTES).map_err(Error::io(path, "read"))
    } else {
        Ok(String::new())
    }
}

/// Whether a file of a run exists; an error if it is not a regular file.
fn file_exists(path: &Path) -> Result<bool, Error> {
    regular_file::is_there(path).map_err(Error::io(path, "read"))
}

fn lines(path: &Path) -> Result<Vec<Value>, Error> {
    if !file_exists(path)? {
        return Ok(Vec::new());
    }
    let lines = JsonLines::open(path)?.map(|line| Ok(line?.1));
    lines.collect()
}

/// The modification time of a file, in UTC.
fn written_at(path: &Path) -> Option<String> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    let text = OffsetDateTime::from(modified).format(&Rfc3339).ok()?;
    let (day, time) = text.split_once('T')?;
    Some(format!("{day}, {} UTC", time.get(..5)?))
}

/// Results of the untrained model and each kept checkpoint, in order. If the checkpoint of step 0
/// was deleted, its result comes from the metrics file, without intervals.
fn suites(
    checkpoints: &[Checkpoint],
    best: Option<u64>,
    metrics: &[Value],
    keys: &mut SharedKeys<'_>,
) -> Result<Vec<SuiteResult>, Error> {
    let mut results = Vec::new();
    for (info, suite) in Suite::all().map(|suite| (suite.info(), suite.as_str())) {
        let mut suite_results = Vec::new();
        for checkpoint in checkpoints {
            let path = checkpoint.path.join(format!("eval.{suite}.metrics.json"));
            if !file_exists(&path)? {
                continue;
            }
            let metrics = tooltune_json::from_slice(text(&path)?.as_bytes());
            let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
            // Reports of agent suites nest the table under the suite's name.
            let mut metrics = unnest_suite(suite, metrics);
            if let Some(metrics) = metrics.as_object_mut().filter(|_| keys.is_any()) {
                let path = predictions_path(checkpoint, suite);
                keys.add_groups(metrics, info, &lines(&path)?);
            }
            suite_results.push(SuiteResult {
                suite: suite.to_owned(),
                label: label(checkpoint.step, best),
                step: Some(checkpoint.step),
                metrics,
            });
        }
        if suite_results.iter().all(|result| result.step != Some(0)) {
            let prefix = format!("eval/{suite}.");
            let first = measured_at(0, metrics, |key| key.strip_prefix(&prefix));
            results.extend(first.map(|metrics| SuiteResult {
                suite: suite.to_owned(),
                label: label(0, best),
                step: Some(0),
                metrics,
            }));
        }
        results.extend(suite_results);
    }
    results.extend(losses(checkpoints, best, metrics));
    Ok(results)
}

fn predictions_path(checkpoint: &Checkpoint, suite: &str) -> PathBuf {
    let name = format!("eval.{suite}.predictions.jsonl");
    checkpoint.path.join(name)
}

/// The metrics of one suite, including the scores of the references and the errors of leaves.
fn unnest_suite(suite: &str, metrics: Value) -> Value {
    let Some(mut own) = metrics.get(suite).cloned() else {
        return metrics;
    };
    for shared in ["ceilings", leaf_errors::FIELD] {
        if let (Some(own), Some(value)) = (own.as_object_mut(), metrics.get(shared)) {
            own.insert(shared.to_owned(), value.clone());
        }
    }
    own
}

/// The loss at step 0 and at each kept checkpoint, from the metrics file.
fn losses(checkpoints: &[Checkpoint], best: Option<u64>, metrics: &[Value]) -> Vec<SuiteResult> {
    let saved = checkpoints.iter().map(|checkpoint| checkpoint.step);
    let steps: BTreeSet<u64> = std::iter::once(0).chain(saved).collect();
    let loss = |step: u64| {
        let rename_loss = |key: &'_ str| (key == "eval/loss").then_some(SuiteResult::LOSS);
        Some(SuiteResult {
            suite: SuiteResult::LOSS.to_owned(),
            label: label(step, best),
            step: Some(step),
            metrics: measured_at(step, metrics, rename_loss)?,
        })
    };
    steps.into_iter().filter_map(loss).collect()
}

/// The metrics of a step, renamed by `name`. If a step has several lines, for example after a
/// resume, the last line is used.
fn measured_at<'k>(
    step: u64,
    metrics: &'k [Value],
    name: impl Fn(&'k str) -> Option<&'k str>,
) -> Option<Value> {
    let step_lines = metrics.iter().rev();
    let mut step_lines = step_lines.filter(|line| line["step"].as_u64() == Some(step));
    step_lines.find_map(|line| {
        let numbers = line.as_object().into_iter().flatten();
        let numbers = numbers.filter_map(|(key, value)| {
            // Keep metrics as floats even if they are integers.
            Some((name(key)?.to_owned(), Value::from(value.as_f64()?)))
        });
        let numbers: Map<String, Value> = numbers.collect();
        (!numbers.is_empty()).then_some(Value::Object(numbers))
    })
}

fn label(step: u64, best: Option<u64>) -> String {
    if Some(step) == best {
        format!("step {step}, best")
    } else {
        format!("step {step}")
    }
}

/// Previews of training rows, and the number of training rows.
#[derive(Default)]
struct TrainingPreviews {
    previews: Vec<PreviewRow>,
    n_rows: u64,
}

fn previews(config: &Config, device: &Device) -> Result<TrainingPreviews, Error> {
    let base = BaseModel::from_config(config)?;
    let options = settings::prepare_options(config, &base.stop_ids);
    let files = RowFiles::training(config);
    let mut report = ReadingReport::default();
    with_rows(config, &files, device, &mut report, |rows| {
        let mut training = TrainingPreviews::default();
        for row in rows {
            let row = row?;
            training.n_rows += 1;
            if training.previews.len() < N_PREVIEWS {
                let row = inspect_row(&row, &base.template, &base.tokenizer, &options)?;
                training.previews.push(PreviewRow::from(&row));
            }
        }
        Ok(training)
    })
}

/// The samples of a checkpoint with predictions, ranked within each suite by its score.
fn samples(
    checkpoint: &Checkpoint,
    result: &str,
    rows: &HashMap<&str, &Row>,
) -> Result<Vec<SampleView>, Error> {
    let mut samples = Vec::new();
    for suite in Suite::all() {
        let path = predictions_path(checkpoint, suite.as_str());
        let source = LineSource {
            suite: suite.info(),
            result,
            is_base: false,
        };
        samples.extend(rank_lines(source, &lines(&path)?, rows));
    }
    Ok(samples)
}
