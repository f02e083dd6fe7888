//! `train`: trains as a config describes, and writes a run directory.

pub(super) mod ranks;

use std::path::PathBuf;

use burn::tensor::Device;
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_ranks::{Launch, Ranks, Role, local};

use super::select::ceilings;
use super::{DeviceOption, count_noun, load_config, say};
use crate::cli::TrainArgs;
use crate::commands::reading_report::{
    learning_rate_lines, report_rows, retriever_learning_rate_line,
};
use crate::commands::run_summary::{model_lines, retriever_line, unusual_lines};
use crate::config::{ArgumentMask, Config, MetricExpression};
use crate::device;
use crate::error::Error;
use crate::models::load::FrozenWeights;
use crate::out_of_memory::{
    GENERATION_SETTINGS, RETRIEVER_SETTINGS, TRAINING_SETTINGS, catch_out_of_memory,
};
use crate::plan::{self, GENERATION, RanksSetup, size};
use crate::recipes::data_plane::DataPlane;
use crate::recipes::preparation::{Preparation, prepare_run};
use crate::recipes::ranks::{Working, divides_retriever};
use crate::recipes::resume::Resume;
use crate::recipes::retriever::{self, RetrieverPreparation};
use crate::recipes::run_files;
use crate::recipes::run_lock::InputTimes;
use crate::recipes::sft::train;
use crate::recipes::summary::RunSummary;

pub(super) use ranks::{check_world_size, role, threads_of_rank};

pub(super) fn run(args: &TrainArgs, role: Role, device_option: &DeviceOption) -> Result<(), Error> {
    match role {
        Role::Alone => run_rank(args, device_option, None),
        Role::Rank(launch) => run_rank(args, device_option, Some(&launch)),
        Role::Start(node) => ranks::start(&node),
    }
}

/// Trains in this process: alone, or as one rank of a run.
fn run_rank(
    args: &TrainArgs,
    device_option: &DeviceOption,
    launch: Option<&Launch>,
) -> Result<(), Error> {
    let mut config = load_config(&args.config)?;
    config.device = device_option.name(config.device)?;
    let Some(launch) = launch else {
        return lead(args, config, Ranks::alone());
    };
    local::watch_parent(launch)?;
    config.device = ranks::device_of_rank(config.device, launch);
    let connected = ranks::meet(launch, &config)?;
    match connected.is_leader() {
        true => lead(args, config, connected),
        false => ranks::run_follower(config, connected),
    }
}

/// Trains with the other ranks, writes the run directory, and reports the result.
fn lead(args: &TrainArgs, config: Config, mut ranks: Ranks) -> Result<(), Error> {
    let profiled_steps = args.profile;
    let trained = train_run(args, config, &mut ranks);
    let (config, summary) = ranks::end_run(ranks, trained)?;
    report_end(&config, &summary, profiled_steps)
}

fn train_run(
    args: &TrainArgs,
    mut config: Config,
    ranks: &mut Ranks,
) -> Result<(Config, RunSummary), Error> {
    run_files::pin_run_settings(&mut config)?;
    ranks::send_pinned(ranks, &config)?;
    let device = device::open(config.device)?;
    let resume = match args.resume.as_str() {
        "auto" => Resume::Auto,
        "never" => Resume::Never,
        path => Resume::From(PathBuf::from(path)),
    };
    let summary = match config.model {
        Some(_) => train_model(&config, &resume, &device, args.profile, ranks)?,
        None => train_retriever(&config, &resume, &device, args.profile, ranks)?,
    };
    Ok((config, summary))
}

fn train_retriever(
    config: &Config,
    resume: &Resume,
    device: &Device,
    profiled_steps: u64,
    ranks: &mut Ranks,
) -> Result<RunSummary, Error> {
    let inputs = InputTimes::list(config);
    let working = Working::begin(ranks, "preparing pairs");
    let preparation = retriever::prepare_run(config)?;
    drop(working);
    ranks::compare_pairs(ranks, &preparation)?;
    say(&retriever_line(config, device)?)?;
    report_pairs(&preparation)?;
    let warning = retriever_learning_rate_line(config, &preparation);
    for line in warning.into_iter().chain(unusual_lines(config)) {
        say(&line)?;
    }
    let data_plane = open_data_plane(config, device, FrozenWeights::Resident, ranks)?;
    catch_out_of_memory(RETRIEVER_SETTINGS, || {
        retriever::train(
            config,
            &preparation,
            (&inputs, resume),
            device,
            profiled_steps,
            (ranks, data_plane),
        )
    })
    .map_err(|error| with_checkpoint(error, config))
}

/// Decides with the other ranks how gradients are added, and reports it.
fn open_data_plane(
    config: &Config,
    device: &Device,
    frozen_weights: FrozenWeights,
    ranks: &mut Ranks,
) -> Result<DataPlane, Error> {
    let data_plane = DataPlane::open(ranks, device, config.device, frozen_weights)?;
    if let Some(description) = data_plane.description() {
        say(description)?;
    }
    Ok(data_plane)
}

/// Reports how a run ended.
fn report_end(config: &Config, summary: &RunSummary, profiled_steps: u64) -> Result<(), Error> {
    say(&format!(
        "{} done; run directory {}",
        count_noun(summary.steps as usize, "step"),
        summary.run_dir.display()
    ))?;
    if let Some(evaluations) = summary.stopped_early {
        say(&format!(
            "stopped early: {evaluations} evaluations in a row did not improve {} \
             (eval.early_stopping_patience; eval.early_stopping_threshold = {})",
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
        None if profiled_steps > 0 => say(
            "no profile: profiling starts with the second step of a process, and this process ran fewer",
        )?,
        None => {}
    }
    say_best(summary)
}

/// Reports the selected checkpoint, which may be the untrained one.
fn say_best(summary: &RunSummary) -> Result<(), Error> {
    let last = summary.last.display();
    let Some(best) = &summary.best else {
        return say(&format!("last checkpoint {last}"));
    };
    let (path, metric, value) = (best.path.display(), &best.metric, best.value);
    match best.step {
        0 => say(&format!(
            "no checkpoint was better than the untrained model, whose {metric} is {value:.4}: BEST \
             is {path}, which is untrained; train longer or with other settings, rank by \
             another metric with `tooltune select`, or name the last one with --checkpoint last \
             ({last})"
        )),
        _ => say(&format!("best checkpoint {path} with {metric} {value:.4}")),
    }?;
    // An invalid expression was rejected before the run.
    let Ok(metric) = MetricExpression::parse(metric) else {
        return Ok(());
    };
    ceilings(&best.path, &metric)?
        .iter()
        .try_for_each(|line| say(line))
}

/// Reports the data of a retriever run, with warnings about its rows.
fn report_pairs(preparation: &RetrieverPreparation) -> Result<(), Error> {
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

/// Prints warnings about the rows of a retriever.
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
    ranks: &mut Ranks,
) -> Result<RunSummary, Error> {
    let inputs = InputTimes::list(config);
    let working = Working::begin(ranks, "preparing rows");
    let preparation = prepare_run(config, device)?;
    drop(working);
    ranks::compare_inputs(ranks, &preparation.training)?;
    if let Some(pairs) = preparation
        .retriever
        .as_ref()
        .filter(|_| divides_retriever(config))
    {
        ranks::compare_pairs(ranks, pairs)?;
    }
    let report = &preparation.report;
    say(&format!(
        "{}, {}, {} tokens per epoch, {} of them supervised; {}",
        count_noun(report.n_rows, "row"),
        count_noun(preparation.training.examples.len(), "example"),
        report.n_tokens,
        report.n_trained_tokens,
        count_noun(preparation.training.total_steps as usize, "step")
    ))?;
    let setup = RanksSetup {
        world_size: ranks.world_size(),
        gb_per_second: None,
    };
    let n_node_ranks = setup.n_node_ranks();
    say(&model_lines(config, &preparation, device, n_node_ranks)?)?;
    if config.mask.arguments != ArgumentMask::None {
        let n = report.n_masked_values;
        say(&format!(
            "{n} argument values of calls are masked (not supervised)"
        ))?;
    }
    report_rows(config, &preparation)?;
    if let Some(retriever) = &preparation.retriever {
        report_pairs(retriever)?;
        if ranks.world_size() > 1 && !divides_retriever(config) {
            say(
                "retriever: rank 0 trains it alone; set retriever.mini_batch_size to divide its steps \
                 among the ranks",
            )?;
        }
    }
    let warnings = learning_rate_lines(config, &preparation).into_iter();
    for line in warnings.chain(unusual_lines(config)) {
        say(&line)?;
    }
    let frozen_weights = preparation.training.base.frozen_weights;
    let data_plane = open_data_plane(config, device, frozen_weights, ranks)?;
    let n_node_ranks = data_plane.n_node_ranks();
    catch_out_of_memory(TRAINING_SETTINGS, || {
        train(
            config,
            &preparation,
            (&inputs, resume),
            device,
            profiled_steps,
            (ranks, data_plane),
        )
    })
    .map_err(|error| with_planned_memory(error, config, &preparation, (device, n_node_ranks)))
}

/// Adds the planned memory of the largest phase to an out-of-memory error.
fn with_planned_memory(
    error: Error,
    config: &Config,
    preparation: &Preparation,
    (device, n_node_ranks): (&Device, usize),
) -> Error {
    let Error::OutOfMemory(mut out_of_memory) = error else {
        return error;
    };
    if let Ok(plan) = plan::plan(config, preparation, device, n_node_ranks) {
        // Phases are sorted, the largest first.
        if let Some(largest) = plan.needs.memory.phases.first() {
            let parts = largest.parts.iter();
            out_of_memory.parts = parts
                .map(|part| format!("{} {}", part.name, size(part.bytes)))
                .collect();
            if largest.name == GENERATION {
                out_of_memory.settings = GENERATION_SETTINGS;
            }
        }
    }
    with_checkpoint(Error::OutOfMemory(out_of_memory), config)
}

/// Adds the newest checkpoint of the run to the error. A failed step leaves that checkpoint intact.
fn with_checkpoint(error: Error, config: &Config) -> Error {
    let Error::OutOfMemory(mut out_of_memory) = error else {
        return error;
    };
    let run_dir = RunDir::open_to_read(&config.train.output_dir);
    let checkpoints = run_dir.and_then(|run_dir| run_dir.list());
    out_of_memory.checkpoint = checkpoints
        .ok()
        .and_then(|mut list| list.pop())
        .map(|checkpoint| checkpoint.path);
    Error::OutOfMemory(out_of_memory)
}
