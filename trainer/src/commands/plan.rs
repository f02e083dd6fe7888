//! `plan`: prints the predicted memory, disk use and time of a run, as text or JSON.

mod as_json;
mod room;
mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tooltune_checkpoints::ModelFiles;

use super::train::{check_world_size, say_remarks};
use super::{DeviceOption, load_config, print_result, say};
use crate::base_model::BaseModel;
use crate::cli::{OutputFormat, PlanArgs};
use crate::commands::plan::as_json::{as_json, outline_as_json, retriever_as_json};
use crate::commands::plan::room::{
    print_memory, refuse_too_large, refuse_too_large_offline, say_memory_of_ranks,
};
use crate::commands::plan::table::{PlanTable, evaluations};
use crate::commands::reading_report::{
    learning_rate_lines, report_rows, retriever_learning_rate_line,
};
use crate::commands::run_summary::{device_text, dtype_text, say_refusals, unusual_lines};
use crate::config::{Config, Device, LoadedConfig, Names};
use crate::error::Error;
use crate::export::{refusals, refusals_of_shape};
use crate::models::load::FrozenWeights;
use crate::plan::{
    self, Pace, PaceInput, Plan, Probe, RanksPlan, RanksSetup, RetrieverPlan, StepTime, size,
};
use crate::process::available_memory_bytes;
use crate::recipes::preparation::prepare_run;
use crate::recipes::{retriever, run_files};
use crate::rows::SharedFunctions;
use crate::settings;

pub(super) fn run(args: &PlanArgs, device_option: &DeviceOption) -> Result<(), Error> {
    if args.offline {
        return offline(args, device_option);
    }
    let mut config = load_config(&args.config)?;
    config.device = device_option.name(config.device)?;
    let setup = ranks_setup(args, &config)?;
    let resume_step = run_files::pin_run_settings(&mut config)?;
    if config.model.is_none() {
        return plan_retriever_run(&config, resume_step, args, device_option);
    }
    let device = device_option.open(config.device)?;
    let preparation = prepare_run(&config, &device)?;
    let plan = plan::plan(&config, &preparation, &device, n_node_ranks(setup))?;
    let probe = if args.probe {
        let batch = &plan.training.longest_batch;
        Some(plan::probe(&config, &preparation, batch, &device)?)
    } else {
        None
    };
    let ranks = setup.map(|setup| {
        let n_trained = plan.needs.n_trained;
        RanksPlan::prepared(&config, &preparation.training, n_trained, setup)
            .with_gathers(plan.needs.gathered_bytes, setup)
    });
    let pace = Pace::estimate(&PaceInput {
        config: &config,
        plan: &plan,
        model: &preparation.training.base.config,
        probe: probe.as_ref(),
        device: &device,
    });
    let shared_functions = SharedFunctions::read(&config, &preparation.eval_rows, &device)?;
    match args.format {
        OutputFormat::Text => {
            let mut rows = PlanTable::new();
            rows.counts(&config, &preparation, &plan);
            rows.setup(&config, &plan, &device)?;
            if let Some(ranks) = &ranks {
                rows.ranks(ranks);
            }
            if let Some(pace) = &pace {
                rows.time(pace, &plan, ranks.as_ref());
            }
            rows.print(&config, resume_step)?;
            report_rows(&config, &preparation)?;
            if let Some(shared) = shared_functions {
                say(&shared.line())?;
            }
            if let Some(retriever) = &preparation.retriever {
                say_remarks(retriever)?;
            }
            let planned = plan.retriever.as_ref();
            if let Some(line) = planned.and_then(RetrieverPlan::mini_batch_line) {
                say(&line)?;
            }
            let warnings = learning_rate_lines(&config, &preparation).into_iter();
            for line in warnings.chain(unusual_lines(&config)) {
                say(&line)?;
            }
            say_refusals(refusals(&config, &preparation.training.base)?)?;
            print_memory(&config, &plan.needs.memory, available_memory_bytes())?;
            say_memory_of_ranks(&config, &plan.needs.memory, setup)?;
            probe.map_or(Ok(()), |probe| print_probe(&plan, &probe))?;
        }
        OutputFormat::Json => {
            let mut answer = as_json(&config, &preparation, &plan, probe.as_ref());
            answer["learning_rate_warnings"] = json!(learning_rate_lines(&config, &preparation));
            answer["unusual"] = json!(unusual_lines(&config));
            answer["refused_exports"] = json!(refusals(&config, &preparation.training.base)?);
            answer["shared_functions"] = json!(shared_functions);
            answer["device"] = json!(device_text(&config, &device));
            answer["ranks"] = json!(ranks);
            answer["time"] = json!(pace.map(|pace| json!({
                "training_seconds": pace.training_seconds(&plan, ranks.as_ref()),
                "tokens_per_second": pace.tokens_per_second,
                "source": pace.source,
            })));
            print_json(answer, resume_step)?;
        }
    }
    refuse_too_large(&config, &plan.needs)
}

/// Refuses an option whose value is not a positive number.
fn positive(option: &str, value: Option<f64>, expected: &str) -> Result<(), Error> {
    match value {
        Some(value) if !(value.is_finite() && value > 0.0) => Err(Error::Usage(format!(
            "{option} is {value}; expected {expected}"
        ))),
        _ => Ok(()),
    }
}

/// The ranks to plan, if the user asks for them.
///
/// # Errors
///
/// Training refuses this number of ranks, or a rate is not a positive number.
fn ranks_setup(args: &PlanArgs, config: &Config) -> Result<Option<RanksSetup>, Error> {
    positive("--bandwidth", args.bandwidth, "GB/s above 0, such as 350")?;
    positive("--tflops", args.tflops, "TFLOP/s above 0, such as 440")?;
    let world_size = args.ranks.map_or(1, NonZeroUsize::get);
    let divides = settings::frozen_weights(config) == FrozenWeights::Node;
    if divides && config.device != Device::Cpu && world_size == 1 {
        return Err(Error::Usage(
            "model.frozen_weights = \"node\" divides the weights among the ranks of a node; add \
             --ranks with the number of GPUs"
                .to_owned(),
        ));
    }
    if args.ranks.is_none() {
        return Ok(None);
    }
    check_world_size(world_size, config)?;
    Ok(Some(RanksSetup {
        world_size,
        gb_per_second: args.bandwidth,
    }))
}

/// Number of GPUs that may divide the frozen weights.
fn n_node_ranks(setup: Option<RanksSetup>) -> usize {
    setup.map_or(1, RanksSetup::n_node_ranks)
}

/// Plans a run that trains only a retriever.
fn plan_retriever_run(
    config: &Config,
    resume_step: Option<u64>,
    args: &PlanArgs,
    device_option: &DeviceOption,
) -> Result<(), Error> {
    if args.probe {
        return Err(Error::Usage(
            "--probe runs a training step of a language model, but the config has none; omit \
             --probe"
                .to_owned(),
        ));
    }
    let device = device_option.open(config.device)?;
    let preparation = retriever::prepare_run(config)?;
    let Some(training) = config.trained_retriever() else {
        return Err(Error::Usage(
            "the config does not train a retriever".to_owned(),
        ));
    };
    let dtype = settings::compute_dtype(training.compute_dtype, &device)?;
    let retriever = plan::plan_retriever(training, &preparation, dtype);
    let needs = retriever.needs_alone(config);
    if args.format == OutputFormat::Json {
        let mut answer = retriever_as_json(config, &retriever, &needs);
        answer["device"] = json!(device_text(config, &device));
        answer["unusual"] = json!(unusual_lines(config));
        print_json(answer, resume_step)?;
        return refuse_too_large(config, &needs);
    }
    let mut rows = PlanTable::new();
    rows.add_retriever(config);
    rows.retriever(&retriever);
    rows.checkpoints(config, &needs);
    rows.add("device", device_text(config, &device));
    rows.add(
        "matmuls",
        dtype_text(training.compute_dtype, dtype).replace("model.", "retriever."),
    );
    rows.print(config, resume_step)?;
    say_remarks(&preparation)?;
    retriever
        .mini_batch_line()
        .map_or(Ok(()), |line| say(&line))?;
    let warning = retriever_learning_rate_line(config, &preparation);
    for line in warning.into_iter().chain(unusual_lines(config)) {
        say(&line)?;
    }
    print_memory(config, &needs.memory, available_memory_bytes())?;
    refuse_too_large(config, &needs)
}

/// Plans a config whose files are on another machine.
fn offline(args: &PlanArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let config = &args.config;
    let loaded = LoadedConfig::load_with(&config.config, &config.overrides, Names::Shapes)?;
    let mut config = loaded.config.clone();
    config.device = device_option.name(config.device)?;
    loaded.check_output_dir()?;
    let setup = ranks_setup(args, &config)?;
    let resume_step = run_files::pin_run_settings(&mut config)?;
    let Some(model) = &config.model else {
        return Err(Error::Usage(
            "--offline plans a language model, but the config has none; omit --offline, or add \
             [model] with model_name_or_path"
                .to_owned(),
        ));
    };
    let path = &model.model_name_or_path;
    if let Some(missing) = missing_shape(path) {
        let help = "copy the model's config.json there; --offline needs no other file of the model";
        let setting = "model.model_name_or_path";
        return Err(loaded.refuse_without(setting, &missing, help).into());
    }
    let model = BaseModel::open_shape(path)?;
    let is_quantised = ModelFiles::describes_nf4(path)?;
    let outline = plan::outline(&config, &model, is_quantised, n_node_ranks(setup))?;
    let n_trained = outline.needs.n_trained;
    let ranks = setup.map(|setup| {
        RanksPlan::offline(&config, n_trained, setup)
            .with_gathers(outline.needs.gathered_bytes, setup)
    });
    let operations = outline.step_operations;
    let time = StepTime::offline(&config, operations, args.tflops, ranks.as_ref());
    let refusals = refusals_of_shape(&config, path)?;
    if args.format == OutputFormat::Json {
        let mut answer = outline_as_json(&config, &outline);
        answer["refused_exports"] = json!(refusals);
        answer["ranks"] = json!(ranks);
        answer["step_time"] = json!(time);
        print_json(answer, resume_step)?;
        return refuse_too_large_offline(&config, &outline.needs);
    }
    let mut rows = PlanTable::new();
    rows.outline(&config, &model, &outline);
    if let Some(ranks) = &ranks {
        rows.ranks(ranks);
    }
    if let Some(time) = &time {
        rows.step_time(time, outline.steps, ranks.as_ref());
    }
    rows.print(&config, resume_step)?;
    // The planned GPU may be in another machine, so its memory is unknown.
    let available = match config.device {
        Device::Cpu => available_memory_bytes(),
        Device::Cuda(_) => None,
    };
    print_memory(&config, &outline.needs.memory, available)?;
    say_memory_of_ranks(&config, &outline.needs.memory, setup)?;
    say("\nNot included: the rows, which need 18 bytes per token.")?;
    say_refusals(refusals)?;
    say("run plan without --offline to find exports that the tokenizer or chat template prevents")?;
    refuse_too_large_offline(&config, &outline.needs)
}

/// The file with the model's config, if it is missing.
fn missing_shape(path: &Path) -> Option<PathBuf> {
    let file = path.join("config.json");
    let is_gguf = path.extension().is_some_and(|ending| ending == "gguf");
    match (is_gguf, path.is_dir()) {
        (true, false) if path.exists() => None,
        (true, false) => Some(path.to_owned()),
        (_, true) if BaseModel::open_shape(path).is_ok() => None,
        _ => (!file.exists()).then_some(file),
    }
}

fn print_probe(plan: &Plan, probe: &Probe) -> Result<(), Error> {
    say(&format!(
        "\nprobe: one step on the longest micro-batch, {} tokens, {} of them supervised\n\
         {:.2} s, {:.0} tokens/s, loss {:.4}; {:.2} hours of training at this rate",
        probe.n_tokens,
        probe.n_trained_tokens,
        probe.seconds,
        probe.tokens_per_second,
        probe.loss,
        plan.hours(probe).training
    ))?;
    if let Some(evaluation) = &plan.evaluation {
        let work = evaluations(evaluation);
        let read = match evaluation.n_prompt_tokens {
            0 => String::new(),
            n => format!(
                "; {} processes {n} prompt tokens each time",
                evaluation.suite_of_rows
            ),
        };
        say(&format!("not included: evaluations ({work}{read})"))?;
    }
    let Some(measurements) = probe.peak_rss_bytes else {
        return Ok(());
    };
    let predicted = plan.needs.step_bytes;
    say(&format!(
        "peak memory of the step: {} measured, {} predicted ({:+.0} %)",
        size(measurements),
        size(predicted),
        100.0 * (predicted as f64 / measurements as f64 - 1.0)
    ))
}

fn print_json(mut answer: Value, resume_step: Option<u64>) -> Result<(), Error> {
    answer["goes_on_from_step"] = json!(resume_step);
    let text = serde_json::to_string_pretty(&answer);
    print_result(&text.map_err(|error| Error::Usage(error.to_string()))?)
}
