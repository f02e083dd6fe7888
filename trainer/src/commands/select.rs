//! `select`: ranks the checkpoints of a run by a metric that was recorded during training or is
//! measured now.
//!
//! New measurements are stored in `selection/` of the run directory, with one folder per
//! checkpoint. Each folder has the same files as an evaluation during training.

use std::path::Path;

use burn::tensor::Device;
use serde_json::{Value, json};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_checkpoints::run_dir::{Checkpoint, Pointer, RunDir, Selected};
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;

use super::target::{attach, run_folder};
use super::{DeviceOption, eprint_line, print_line};
use crate::cli::SelectArgs;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::config::{Config, LoadedConfig, MetricExpression, named_files};
use crate::error::Error;
use crate::eval::in_loop::{EvalTarget, EvaluationOutcome, Evaluator};
use crate::eval::report_files::ceilings_in;
use crate::eval::suites::{Files, LoadedSuites, Metrics};
use crate::models::Decoder;
use crate::recipes::preparation::{Preparation, prepare_run};
use crate::recipes::retriever::files as retriever_files;
use crate::recipes::run_lock::{MODELS, PROMPTS, RunLock, Used};
use crate::recipes::selection::{self, Ranked, TieBreak, measured_lines, rank_checkpoints};
use crate::settings;
use tooltune_terminal::Progress;

/// File with the results of an evaluation and a digest of their inputs.
const VALUES_FILE: &str = "values.json";

pub(super) fn run(mut args: SelectArgs, device_option: &DeviceOption) -> Result<(), Error> {
    args.run = run_folder(&args.run)?;
    let args = &args;
    // --evaluate writes its files even in a dry run, because they do not affect the selection.
    let run_dir = if args.dry_run {
        RunDir::open_to_read(&args.run)?
    } else {
        RunDir::create_or_open(&args.run)?
    };
    let metric = MetricExpression::parse(&args.metric)
        .map_err(|problem| Error::Usage(format!("--metric {}: {problem}", args.metric)))?;
    let lines = if args.evaluate {
        evaluate_checkpoints(args, &run_dir, device_option)?
    } else {
        measured_lines(&run_dir)?
    };
    let greater_is_better = metric.greater_is_better() && !args.lower_is_better;
    let mut ranked = rank_checkpoints(&run_dir, &lines, &metric, greater_is_better)?;
    let was = read_best(&run_dir)?;
    break_ties(args, &run_dir, was.as_ref(), &mut ranked)?;
    let Some(&Ranked { step, value }) = ranked.first() else {
        return Err(no_such_metric(args, &lines));
    };
    for one in &ranked {
        print_line(&format!(
            "{:.4}  {}",
            one.value,
            run_dir.checkpoint_path(one.step).display()
        ))?;
    }
    let checkpoint = run_dir.checkpoint_path(step);
    let folder = match (args.evaluate, checkpoint.file_name()) {
        (true, Some(name)) => args.run.join("selection").join(name),
        _ => checkpoint,
    };
    for line in ceilings(&folder, &metric)? {
        print_line(&line)?;
    }
    if !args.dry_run {
        run_dir.set_best(Selected {
            step,
            metric: &args.metric,
            value,
            chosen_at: run_dir.list()?.last().map(|newest| newest.step),
        })?;
    }
    let path = run_dir.checkpoint_path(step);
    let path = path.display();
    let best = match (&was, args.dry_run) {
        (Some(best), _) if best.step == step => format!("BEST remains {path}"),
        (_, true) => format!("BEST would become {path}"),
        (_, false) => format!("BEST is now {path}"),
    };
    let before = was
        .as_ref()
        .map_or_else(|| "not set".to_owned(), |best| describe(best, &run_dir));
    print_line(&format!("BEST was {before}"))?;
    print_line(&best)
}

/// Reads `BEST`; `None` if it is damaged, because the selection rewrites it.
fn read_best(run_dir: &RunDir) -> Result<Option<Pointer>, Error> {
    match run_dir.best() {
        Ok(best) => Ok(best),
        Err(error @ CheckpointError::DamagedPointer { .. }) => {
            eprint_line(&error.to_string())?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Describes the checkpoint of a pointer, with the metric that selected it.
fn describe(best: &Pointer, run_dir: &RunDir) -> String {
    let path = run_dir.checkpoint_path(best.step);
    let removed = if path.is_dir() { "" } else { " (deleted)" };
    match (&best.metric, best.value) {
        (Some(metric), Some(value)) => {
            format!("{} ({metric} {value:.4}){removed}", path.display())
        }
        _ => format!("{}{removed}", path.display()),
    }
}

/// Orders checkpoints with equal values: the current BEST first, then by the run's own metric.
fn break_ties(
    args: &SelectArgs,
    run_dir: &RunDir,
    best: Option<&Pointer>,
    ranked: &mut [Ranked],
) -> Result<(), Error> {
    if ranked.windows(2).all(|pair| pair[0].value != pair[1].value) {
        return Ok(());
    }
    let loaded = LoadedConfig::load(&args.run.join("config.resolved.toml"), &[]);
    let own = match loaded {
        Ok(loaded) => {
            let eval = loaded.config.eval;
            let own = MetricExpression::parse(&eval.metric_for_best_model).map_err(Error::Usage)?;
            let lines = measured_lines(run_dir)?;
            let greater = eval.greater_is_better;
            (
                selection::rank_checkpoints(run_dir, &lines, &own, greater)?,
                greater,
            )
        }
        Err(error) => {
            eprint_line(&format!(
                "cannot break ties by the run's own metric: {error}"
            ))?;
            (Vec::new(), true)
        }
    };
    let tie = TieBreak {
        best: best.map(|best| best.step),
        own: &own.0,
        greater_is_better: own.1,
    };
    tie.apply(ranked);
    Ok(())
}

/// One line for each selection metric in which the reference answers do not have the best score.
/// `folder` contains the evaluation files of a checkpoint.
pub(super) fn ceilings(folder: &Path, metric: &MetricExpression) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    for name in metric.names() {
        let Some((suite, of_suite)) = name.split_once('.') else {
            continue;
        };
        let path = folder.join(format!("eval.{suite}.metrics.json"));
        let found = regular_file::read_if_there(&path, RUN_FILE_BYTES);
        let Some(bytes) = found.map_err(Error::io(&path, "read"))? else {
            continue;
        };
        let metrics: Value =
            tooltune_json::from_slice(&bytes).map_err(CheckpointError::json(&path))?;
        let ceiling = ceilings_in(&metrics).find(|(known, _)| *known == of_suite);
        lines.extend(ceiling.map(|(_, value)| {
            format!(
                "{name}: the reference answers themselves score {value:.4} on these rows, so a \
                 correct answer can score lower than a wrong one"
            )
        }));
    }
    Ok(lines)
}

/// Evaluates each kept checkpoint with the settings of the run and the command line; returns one
/// line per checkpoint in the format of `metrics.jsonl`.
fn evaluate_checkpoints(
    args: &SelectArgs,
    run_dir: &RunDir,
    device_option: &DeviceOption,
) -> Result<Vec<Value>, Error> {
    let mut overrides = args.overrides.clone();
    overrides.push("eval.eval_strategy=steps".to_string());
    overrides.push(format!("eval.metric_for_best_model={}", args.metric));
    let loaded = LoadedConfig::load(&args.run.join("config.resolved.toml"), &overrides)?;
    loaded.check_files()?;
    let mut config = loaded.config;
    config.device = device_option.name(config.device)?;
    let device = device_option.open(config.device)?;
    if let Some(lock) = RunLock::read_for_run(&args.run)? {
        let used = [&MODELS[..], &PROMPTS].concat();
        lock.check_used(&config, Used::settings(&used), &args.run)?;
    }
    let inputs = inputs(&config)?;
    // Rows and weights are loaded when the first checkpoint needs them.
    let mut evaluation = None;
    let mut lines = Vec::new();
    for checkpoint in run_dir.list()? {
        checkpoint.verify()?;
        let name = run_dir.checkpoint_path(checkpoint.step);
        let folder = args.run.join("selection");
        let folder = folder.join(name.file_name().unwrap_or_default());
        let input_digest = format!("{inputs}\n{}", checkpoint.digest()?);
        let input_digest = sha256_bytes(input_digest.as_bytes());
        let values = match read_values(&folder, &input_digest)? {
            Some(values) => values,
            None => {
                eprint_line(&format!("evaluating {}", name.display()))?;
                let evaluation = match &mut evaluation {
                    Some(evaluation) => evaluation,
                    None => evaluation.insert(Evaluation::open(&config, &device)?),
                };
                let (metrics, files) = evaluation.evaluate(&checkpoint)?;
                write(&folder, &input_digest, &metrics, &files)?
            }
        };
        let mut line = json!({"step": checkpoint.step});
        for (name, value) in values.as_object().into_iter().flatten() {
            line[format!("eval/{name}")] = value.clone();
        }
        lines.push(line);
    }
    Ok(lines)
}

/// The inputs of the values: the settings, and hashes of the files that the settings name. Models
/// are not hashed, because they are too large.
fn inputs(config: &Config) -> Result<String, Error> {
    let settings = config.to_toml();
    let mut inputs = settings.map_err(|error| Error::Usage(format!("the settings: {error}")))?;
    let is_model = |setting: &str| setting.ends_with("model_name_or_path");
    for (setting, file) in named_files(config) {
        if !is_model(&setting) && !file.is_dir() {
            inputs.push_str(&format!("{setting} {}\n", sha256_file(&file)?));
        }
    }
    Ok(inputs)
}

/// Reads the stored values of a folder if the inputs are unchanged.
fn read_values(folder: &Path, input_digest: &str) -> Result<Option<Value>, Error> {
    let path = folder.join(VALUES_FILE);
    let found = regular_file::read_if_there(&path, RUN_FILE_BYTES);
    let Some(bytes) = found.map_err(Error::io(&path, "read"))? else {
        return Ok(None);
    };
    let mut record: Value = tooltune_json::from_slice(&bytes)
        .map_err(|error| Error::Usage(format!("{}: {error}; remove it", path.display())))?;
    Ok((record["from"] == input_digest).then(|| record["metrics"].take()))
}

fn write(
    folder: &Path,
    input_digest: &str,
    metrics: &Metrics,
    files: &Files,
) -> Result<Value, Error> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    for (name, bytes) in files {
        write_atomic(&folder.join(name), bytes)?;
    }
    // Write the values last, because they mark a complete evaluation.
    let record = json!({"from": input_digest, "metrics": metrics});
    write_atomic(&folder.join(VALUES_FILE), record.to_string().as_bytes())?;
    Ok(json!(metrics))
}

/// Evaluates checkpoints one after another.
struct Evaluation<'a> {
    config: &'a Config,
    device: &'a Device,
    suites: Suites,
}

enum Suites {
    /// A run with a language model.
    Model(Box<(Preparation, Evaluator, Decoder)>),
    /// A retriever-only run.
    Retriever(LoadedSuites),
}

impl<'a> Evaluation<'a> {
    fn open(config: &'a Config, device: &'a Device) -> Result<Self, Error> {
        let suites = match &config.model {
            None => Suites::Retriever(LoadedSuites::open(config, device)?),
            Some(model) => {
                let preparation = prepare_run(config, device)?;
                let dtype = settings::compute_dtype(model.compute_dtype, device)?;
                let decoder = preparation.training.base.decoder(dtype, device)?;
                let evaluator = Evaluator::new(config, preparation.eval_inputs(), device)?;
                let evaluator = evaluator.ok_or_else(|| {
                    Error::Usage("the config does not set up an evaluation".to_string())
                })?;
                Suites::Model(Box::new((preparation, evaluator, decoder)))
            }
        };
        Ok(Self {
            config,
            device,
            suites,
        })
    }

    fn evaluate(&mut self, checkpoint: &Checkpoint) -> Result<(Metrics, Files), Error> {
        let (config, device) = (self.config, self.device);
        let retriever = retriever_files::encoder(config, &checkpoint.path, device)?;
        let (preparation, evaluator, decoder) = match &mut self.suites {
            Suites::Retriever(suites) => {
                let no_retriever = || {
                    let path = checkpoint.path.display();
                    Error::Usage(format!("{path} does not contain a retriever"))
                };
                return suites.evaluate_rankings(retriever.as_ref().ok_or_else(no_retriever)?);
            }
            Suites::Model(parts) => (&parts.0, &parts.1, &mut parts.2),
        };
        let model = &config.language_model()?.model_name_or_path;
        attach(decoder, &checkpoint.path, model, device)?;
        let mut progress = Progress::begin();
        let mut watch = |state| {
            progress.show(state);
            true
        };
        let target = EvalTarget {
            served: None,
            decoder,
            base: &preparation.training.base,
            retriever: retriever.as_ref(),
        };
        let outcome = evaluator.evaluate(target, &mut watch)?;
        progress.finish();
        match outcome {
            EvaluationOutcome::Done { metrics, files } => Ok((metrics, files)),
            EvaluationOutcome::Interrupted => Err(Error::Stopped),
        }
    }
}

fn no_such_metric(args: &SelectArgs, lines: &[Value]) -> Error {
    let mut known: Vec<&str> = lines
        .iter()
        .filter_map(Value::as_object)
        .flat_map(|line| line.keys())
        .filter_map(|key| key.strip_prefix("eval/"))
        .collect();
    known.sort_unstable();
    known.dedup();
    let evaluated = match known.as_slice() {
        [] => "no checkpoint has metrics".to_owned(),
        known => format!("measured metrics: {}", known.join(", ")),
    };
    Error::Usage(format!(
        "--metric {}: no kept checkpoint of {} has this metric; {evaluated}; use --evaluate to \
         measure others",
        args.metric,
        args.run.display()
    ))
}
