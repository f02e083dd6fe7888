//! Trains a config into a run directory (`train`).

use std::path::PathBuf;

use burn::tensor::Device;
use tooltune_checkpoints::run_dir::RunDir;

use super::reading::{learning_rate_lines, retriever_learning_rate_line, say_reading};
use super::select::ceilings;
use super::setup::{model_lines, retriever_line, unusual_lines};
use super::{DeviceOption, counted, load_config, say};
use crate::cli::TrainArgs;
use crate::config::{ArgumentMask, Config, MetricExpression};
use crate::error::Error;
use crate::out_of_memory::{GENERATION_SETTINGS, RETRIEVER_SETTINGS, TRAINING_SETTINGS, caught};
use crate::plan::{self, GENERATION, size};
use crate::recipes::preparation::{Preparation, prepare_run};
use crate::recipes::resume::Resume;
use crate::recipes::retriever::{self, RetrieverPreparation};
use crate::recipes::run_files;
use crate::recipes::run_lock::InputTimes;
use crate::recipes::sft::train;
use crate::recipes::summary::RunSummary;

pub(super) fn run(args: &TrainArgs, place: &DeviceOption) -> Result<(), Error> {
    let mut config = load_config(&args.config)?;
    config.device = place.name(config.device)?;
    run_files::pin_run_settings(&mut config)?;
    let device = place.open(config.device)?;
    let resume = match args.resume.as_str() {
        "auto" => Resume::Auto,
        "never" => Resume::Never,
        path => Resume::From(PathBuf::from(path)),
    };
    let summary = match config.model {
        Some(_) => train_model(&config, &resume, &device, args.profile)?,
        None => {
            let inputs = InputTimes::of(&config);
            let preparation = retriever::prepare_run(&config)?;
            say(&retriever_line(&config, &device)?)?;
            say_pairs(&preparation)?;
            let warning = retriever_learning_rate_line(&config, &preparation);
            for line in warning.into_iter().chain(unusual_lines(&config)) {
                say(&line)?;
            }
            caught(RETRIEVER_SETTINGS, || {
                let profiled_steps = args.profile;
                retriever::train(
                    &config,
                    &preparation,
                    &inputs,
                    &resume,
                    &device,
                    profiled_steps,
                )
            })
            .map_err(|error| with_checkpoint(error, &config))?
        }
    };
    say(&format!(
        "{} done; run directory {}",
        counted(summary.steps as usize, "step"),
        summary.run_dir.display()
    ))?;
    if let Some(evaluations) = summary.stopped_early {
        say(&format!(
            "stopped early: {evaluations} evaluations in a row were not better by {} \
             (eval.early_stopping_patience, of eval.early_stopping_threshold {})",
            config.eval.metric_for_best_model, config.eval.early_stopping_threshold
        ))?;
    }
    match &summary.profile {
        Some(profile) => say(&format!(
            "profile of steps {} to {}: {} and {}",
            profile.steps.start(),
            profile.steps.end(),
            profile.table.display(),
            profile.trace.display()
        ))?,
        None if args.profile > 0 => {
            say("no profile: it begins with the second step of this start, and there was none")?
        }
        None => {}
    }
    say_best(&summary)
}

/// The selected checkpoint, which may be where the run began.
fn say_best(summary: &RunSummary) -> Result<(), Error> {
    let last = summary.last.display();
    let Some(best) = &summary.best else {
        return say(&format!("last checkpoint {last}"));
    };
    let (path, metric, value) = (best.path.display(), &best.metric, best.value);
    match best.step {
        0 => say(&format!(
            "no checkpoint was better than the untrained model, whose {metric} is {value:.4}: BEST \
             is {path}, which has learned nothing; train longer or with other settings, rank by \
             another metric with `tooltune select`, or name the last one with --checkpoint last \
             ({last})"
        )),
        _ => say(&format!("best checkpoint {path} with {metric} {value:.4}")),
    }?;
    // What cannot be read as an expression was refused before the run.
    let Ok(metric) = MetricExpression::parse(metric) else {
        return Ok(());
    };
    ceilings(&best.path, &metric)?
        .iter()
        .try_for_each(|line| say(line))
}

/// What a retriever learns from, and what it does not learn as it stands.
fn say_pairs(preparation: &RetrieverPreparation) -> Result<(), Error> {
    let set = &preparation.set;
    say(&format!(
        "retriever: {} pairs of {} queries and {} documents; {} steps",
        set.pairs().len(),
        set.queries().len(),
        set.documents().len(),
        preparation.total_steps
    ))?;
    say_remarks(preparation)
}

/// What a retriever does not learn as it stands.
pub(super) fn say_remarks(preparation: &RetrieverPreparation) -> Result<(), Error> {
    for line in preparation.remarks() {
        say(&format!("retriever.train: {line}"))?;
    }
    Ok(())
}

fn train_model(
    config: &Config,
    resume: &Resume,
    device: &Device,
    profiled_steps: u64,
) -> Result<RunSummary, Error> {
    let inputs = InputTimes::of(config);
    let preparation = prepare_run(config, device)?;
    let report = &preparation.report;
    say(&format!(
        "{}, {}, {} tokens of which {} learned; {}",
        counted(report.n_rows, "row"),
        counted(preparation.examples.len(), "example"),
        report.n_tokens,
        report.n_trained_tokens,
        counted(preparation.total_steps as usize, "step")
    ))?;
    say(&model_lines(config, &preparation, device)?)?;
    if config.mask.arguments != ArgumentMask::None {
        let n = report.n_masked_values;
        say(&format!(
            "{n} argument values of calls are left out of the loss"
        ))?;
    }
    say_reading(config, &preparation)?;
    if let Some(retriever) = &preparation.retriever {
        say_pairs(retriever)?;
    }
    let warnings = learning_rate_lines(config, &preparation).into_iter();
    for line in warnings.chain(unusual_lines(config)) {
        say(&line)?;
    }
    caught(TRAINING_SETTINGS, || {
        train(
            config,
            &preparation,
            &inputs,
            resume,
            device,
            profiled_steps,
        )
    })
    .map_err(|error| with_parts(error, config, &preparation, device))
}

/// A device without memory left, with what the run holds in its largest phase by the plan.
fn with_parts(error: Error, config: &Config, preparation: &Preparation, device: &Device) -> Error {
    let Error::OutOfMemory(mut found) = error else {
        return error;
    };
    if let Ok(plan) = plan::plan(config, preparation, device) {
        // The phases stand with the largest first.
        if let Some(largest) = plan.needs.memory.phases.first() {
            let parts = largest.parts.iter();
            found.parts = parts
                .map(|part| format!("{} {}", part.name, size(part.bytes)))
                .collect();
            if largest.name == GENERATION {
                found.settings = GENERATION_SETTINGS;
            }
        }
    }
    with_checkpoint(Error::OutOfMemory(found), config)
}

/// The same with the newest checkpoint of the run, which an error of a step does not touch.
fn with_checkpoint(error: Error, config: &Config) -> Error {
    let Error::OutOfMemory(mut found) = error else {
        return error;
    };
    let run_dir = RunDir::open_to_read(&config.train.output_dir);
    let checkpoints = run_dir.and_then(|run_dir| run_dir.list());
    found.checkpoint = checkpoints
        .ok()
        .and_then(|mut list| list.pop())
        .map(|checkpoint| checkpoint.path);
    Error::OutOfMemory(found)
}
