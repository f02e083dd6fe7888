//! Writes one HTML page of the files of runs, and of further evaluations (`report`).

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::{Map, Value};
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

use super::target::run_folder;
use super::{DeviceOption, eprint_line, print_line};
use crate::base_model::BaseModel;
use crate::budgets::RUN_FILE_BYTES;
use crate::cli::ReportArgs;
use crate::config::{Config, LoadedConfig, Suite, flat};
use crate::error::Error;
use crate::recipes::run_lock::{BASE_MODEL, PROMPTS, RunLock, Used};
use crate::rows::{ReadingReport, RowFiles, eval_rows, with_rows};
use crate::settings;
use evaluations::{Evaluated, Evaluation, Ranked, evaluations, ranked};

mod evaluations;
mod generated;

/// Training rows whose tokens are shown.
const N_PREVIEWS: usize = 3;

pub(super) fn run(args: &ReportArgs, place: &DeviceOption) -> Result<(), Error> {
    if args.runs.len() > 1 && !args.eval.is_empty() {
        return Err(Error::Usage(
            "--eval is for a page of one run; the evaluations in a run's own folder eval are found by \
             themselves"
                .to_owned(),
        ));
    }
    let folders = args.runs.iter().map(|run| run_folder(run));
    let folders = folders.collect::<Result<Vec<_>, Error>>()?;
    let mut runs = Vec::with_capacity(folders.len());
    for (folder, name) in folders.iter().zip(names(&folders)) {
        let found = FoundRun::read(folder, name, &args.eval)?;
        runs.push(found.with_rows(place)?);
    }
    for (run, folder) in runs.iter().zip(&folders) {
        if run.samples.is_empty() && run.texts.is_empty() {
            let folder = folder.display();
            eprint_line(&format!(
                "{folder}: no sample was measured one by one, and none is shown; `tooltune generate \
                 {folder} --output {folder}/eval/best.jsonl` writes texts beside those of the rows, \
                 `tooltune eval {folder} --output {folder}/eval/best` measures each row, and the next \
                 report has them"
            ))?;
        }
    }
    let page = render(&runs, metric_words)?;
    let beside = folders.first().map(|run| run.join("report.html"));
    let output = args.output.clone().or(beside).unwrap_or_default();
    write_atomic(&output, page.as_bytes())?;
    print_line(&format!("{} bytes in {}", page.len(), output.display()))
}

/// What runs are called: their folders' names, or their paths where two have the same name.
pub(super) fn names(folders: &[PathBuf]) -> Vec<String> {
    let name = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let named = |folder: &PathBuf| {
        let n_same = folders.iter().filter(|other| name(other) == name(folder));
        match n_same.count() {
            1 => name(folder),
            _ => folder.display().to_string(),
        }
    };
    folders.iter().map(named).collect()
}

/// What the files of a run say, without the rows that it read.
pub(super) struct FoundRun {
    folder: PathBuf,
    config: Config,
    evaluations: Vec<Evaluation>,
    /// The best checkpoint, or the last where none was selected.
    shown: Option<Checkpoint>,
    best_step: Option<u64>,
    pub(super) run: ReportRun,
}

impl FoundRun {
    /// Reads a run's folder, with the evaluations in its own folder `eval` and those of `further`.
    ///
    /// # Errors
    ///
    /// A folder that is no run, or a file that cannot be read.
    pub(super) fn read(folder: &Path, name: String, further: &[PathBuf]) -> Result<Self, Error> {
        let Evaluated { evaluations, texts } = evaluations(folder, further)?;
        let resolved = folder.join("config.resolved.toml");
        let config = LoadedConfig::load(&resolved, &[])?.config;
        let run_dir = RunDir::open_to_read(folder)?;
        let checkpoints = run_dir.list()?;
        let best = run_dir.best()?;
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
            suites: suites(&checkpoints, best_step, &metrics)?,
            evaluations: evaluations.iter().flat_map(Evaluation::results).collect(),
            settings: flat(&config),
            texts,
            metrics,
            config_toml: text(&resolved)?,
            lock_json: text(&folder.join("run.lock.json"))?,
            ..ReportRun::default()
        };
        Ok(Self {
            folder: folder.to_owned(),
            shown: shown.cloned(),
            config,
            evaluations,
            best_step,
            run,
        })
    }

    /// The run with rows that it learned from, and samples beside their rows.
    fn with_rows(self, place: &DeviceOption) -> Result<ReportRun, Error> {
        let Self {
            config,
            evaluations,
            best_step,
            mut run,
            ..
        } = self;
        let device = place.open(config.device)?;
        // What a run has learned from may have moved since; the rest of the page does not need it.
        let found = same_base(&config, &self.folder).and_then(|()| previews(&config, &device));
        let learned = or_nothing(found, "the rows that it learned from")?;
        run.mask_preview = learned.previews;
        run.n_rows = (learned.n_rows > 0).then_some(learned.n_rows);
        let rows = match (&self.shown, evaluations.as_slice()) {
            (None, []) => Vec::new(),
            _ => rows(&config, &evaluations, &device)?,
        };
        let rows: HashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        if let Some(checkpoint) = &self.shown {
            run.samples = samples(checkpoint, &label(checkpoint.step, best_step), &rows)?;
        }
        let further = evaluations.iter();
        run.samples
            .extend(further.flat_map(|evaluation| evaluation.samples(&rows)));
        Ok(run)
    }
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
        config.data.evaluate_on(vec![file]);
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

/// What the untrained model and each kept checkpoint were worth, in their order. The evaluation of
/// step 0 stays where its checkpoint is gone: as the metrics file has it, without intervals.
fn suites(
    checkpoints: &[Checkpoint],
    best: Option<u64>,
    metrics: &[Value],
) -> Result<Vec<SuiteResult>, Error> {
    let mut results = Vec::new();
    for suite in Suite::words() {
        let mut of_suite = Vec::new();
        for checkpoint in checkpoints {
            let path = checkpoint.path.join(format!("eval.{suite}.metrics.json"));
            if !is_there(&path)? {
                continue;
            }
            let metrics = serde_json::from_str(&text(&path)?);
            let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
            of_suite.push(SuiteResult {
                suite: suite.to_owned(),
                label: label(checkpoint.step, best),
                step: Some(checkpoint.step),
                // Reports of agents hold their suite's table under its name.
                metrics: of_suite_alone(suite, metrics),
            });
        }
        if of_suite.iter().all(|result| result.step != Some(0)) {
            let prefix = format!("eval/{suite}.");
            let first = measured_at(0, metrics, |key| key.strip_prefix(&prefix));
            results.extend(first.map(|metrics| SuiteResult {
                suite: suite.to_owned(),
                label: label(0, best),
                step: Some(0),
                metrics,
            }));
        }
        results.extend(of_suite);
    }
    results.extend(losses(checkpoints, best, metrics));
    Ok(results)
}

/// The suite's own table, with what its gold scores.
fn of_suite_alone(suite: &str, metrics: Value) -> Value {
    const CEILINGS: &str = "ceilings";
    let Some(mut own) = metrics.get(suite).cloned() else {
        return metrics;
    };
    if let (Some(own), Some(ceilings)) = (own.as_object_mut(), metrics.get(CEILINGS)) {
        own.insert(CEILINGS.to_owned(), ceilings.clone());
    }
    own
}

/// The loss at step 0 and of each kept checkpoint, which the metrics file alone has.
fn losses(checkpoints: &[Checkpoint], best: Option<u64>, metrics: &[Value]) -> Vec<SuiteResult> {
    let kept = checkpoints.iter().map(|checkpoint| checkpoint.step);
    let steps: BTreeSet<u64> = std::iter::once(0).chain(kept).collect();
    let loss = |step: u64| {
        let of_loss = |key: &'_ str| (key == "eval/loss").then_some(SuiteResult::LOSS);
        Some(SuiteResult {
            suite: SuiteResult::LOSS.to_owned(),
            label: label(step, best),
            step: Some(step),
            metrics: measured_at(step, metrics, of_loss)?,
        })
    };
    steps.into_iter().filter_map(loss).collect()
}

/// The numbers of a step by the names that `name` gives to some keys; of several lines of a step the
/// last, as a resumed run writes it.
fn measured_at<'k>(
    step: u64,
    metrics: &'k [Value],
    name: impl Fn(&'k str) -> Option<&'k str>,
) -> Option<Value> {
    let of_step = metrics.iter().rev();
    let mut of_step = of_step.filter(|line| line["step"].as_u64() == Some(step));
    of_step.find_map(|line| {
        let numbers = line.as_object().into_iter().flatten();
        let numbers = numbers.filter_map(|(key, value)| {
            // A metric is a number with a fraction, also where it is whole.
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

/// What is shown of the rows that a run learned from, and how many there are.
#[derive(Default)]
struct Learned {
    previews: Vec<PreviewRow>,
    n_rows: u64,
}

fn previews(config: &Config, device: &Device) -> Result<Learned, Error> {
    let base = BaseModel::of(config)?;
    let options = settings::prepare_options(config, &base.stop_ids);
    let files = RowFiles::training(config);
    let mut report = ReadingReport::default();
    with_rows(config, &files, device, &mut report, |rows| {
        let mut learned = Learned::default();
        for row in rows {
            let row = row?;
            learned.n_rows += 1;
            if learned.previews.len() < N_PREVIEWS {
                let row = inspect_row(&row, &base.template, &base.tokenizer, &options)?;
                learned.previews.push(PreviewRow::from(&row));
            }
        }
        Ok(learned)
    })
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
        let of = Ranked {
            suite: suite.info(),
            result,
            is_base: false,
        };
        samples.extend(ranked(of, &lines(&path)?, rows));
    }
    Ok(samples)
}
