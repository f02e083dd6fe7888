//! `train` and `select`.

use std::path::PathBuf;

use burn::tensor::Device;
use serde_json::Value;
use tooltune_checkpoints::run_dir::{MetricsFile, RunDir};

use super::{Place, load_config, say};
use crate::cli::{SelectArgs, TrainArgs};
use crate::config::{Config, MetricExpression};
use crate::error::Error;
use crate::recipes::interrupt::Interrupt;
use crate::recipes::resume::Resume;
use crate::recipes::retriever::{self, RetrieverPreparation};
use crate::recipes::selection::ranked;
use crate::recipes::sft::{Preparation, prepare_run, train};
use crate::recipes::summary::RunSummary;

pub(super) fn run(args: &TrainArgs, place: &Place) -> Result<(), Error> {
    let mut config = load_config(&args.config)?;
    config.device = place.name(config.device)?;
    let device = place.open(config.device)?;
    let interrupt = Interrupt::listen()?;
    let resume = match args.resume.as_str() {
        "auto" => Resume::Auto,
        "never" => Resume::Never,
        path => Resume::From(PathBuf::from(path)),
    };
    let summary = match config.model {
        Some(_) => train_model(&config, &resume, &device, interrupt)?,
        None => {
            let preparation = retriever::prepare_run(&config)?;
            say_pairs(&preparation)?;
            retriever::train(&config, &preparation, &resume, &device, &interrupt)?
        }
    };
    say(&format!(
        "{} steps done; run directory {}",
        summary.steps,
        summary.run_dir.display()
    ))?;
    if let Some(evaluations) = summary.stopped_early {
        say(&format!(
            "stopped early: {evaluations} evaluations in a row were not better by {} \
             (eval.early_stopping_patience, of eval.early_stopping_threshold {})",
            config.eval.metric_for_best_model, config.eval.early_stopping_threshold
        ))?;
    }
    match &summary.best {
        Some((path, metric, value)) => say(&format!(
            "best checkpoint {} with {metric} {value:.4}",
            path.display()
        )),
        None => say(&format!("last checkpoint {}", summary.last.display())),
    }
}

fn say_pairs(preparation: &RetrieverPreparation) -> Result<(), Error> {
    let set = &preparation.set;
    say(&format!(
        "retriever: {} pairs of {} queries and {} documents; {} steps",
        set.pairs().len(),
        set.queries().len(),
        set.documents().len(),
        preparation.total_steps
    ))
}

fn train_model(
    config: &Config,
    resume: &Resume,
    device: &Device,
    interrupt: Interrupt,
) -> Result<RunSummary, Error> {
    let preparation = prepare_run(config, device)?;
    let report = &preparation.report;
    say(&format!(
        "{} rows, {} examples, {} tokens of which {} learned; {} steps",
        report.n_rows,
        preparation.examples.len(),
        report.n_tokens,
        report.n_trained_tokens,
        preparation.total_steps
    ))?;
    for dropped in &report.dropped {
        say(&format!("dropped {}: {:?}", dropped.id, dropped.reason))?;
    }
    say_flattened(&preparation)?;
    if let Some(retriever) = &preparation.retriever {
        say_pairs(retriever)?;
    }
    train(config, &preparation, resume, device, interrupt)
}

/// What became of nested schemas, where the config flattens them.
pub(super) fn say_flattened(preparation: &Preparation) -> Result<(), Error> {
    let Some(flattened) = &preparation.flattened else {
        return Ok(());
    };
    for (files, report) in [
        ("data.train", &flattened.train),
        ("data.eval", &flattened.eval),
    ] {
        for line in report.lines() {
            say(&format!("{files}: {line}"))?;
        }
    }
    Ok(())
}

pub(super) fn select(args: &SelectArgs) -> Result<(), Error> {
    let run_dir = RunDir::create_or_open(&args.run)?;
    let metric = MetricExpression::parse(&args.metric)
        .map_err(|problem| Error::Usage(format!("--metric {}: {problem}", args.metric)))?;
    let lines = MetricsFile::read(&args.run.join("metrics.jsonl"))?;
    let greater_is_better = metric.greater_is_better() && !args.lower_is_better;
    let ranked = ranked(&run_dir, &lines, &metric, greater_is_better)?;
    if ranked.is_empty() {
        return Err(no_such_metric(args, &lines));
    }
    for (step, value) in &ranked {
        say(&format!(
            "{value:.4}  {}",
            run_dir.checkpoint_path(*step).display()
        ))?;
    }
    let (step, value) = ranked[0];
    run_dir.set_best(&args.metric, step, value)?;
    say(&format!(
        "BEST is now {}",
        run_dir.checkpoint_path(step).display()
    ))
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
    Error::Usage(format!(
        "--metric {}: no kept checkpoint of {} has it; evaluated are: {}",
        args.metric,
        args.run.display(),
        known.join(", ")
    ))
}
