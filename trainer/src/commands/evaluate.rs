//! `eval`: a suite over the base model, a checkpoint, or predictions that exist already.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_checkpoints::adapter::load_adapter;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_data::benchmarks::retrieval::retrieval_table;
use tooltune_data::benchmarks::slot::{DatasetScore, before_after_rows, markdown_table};

use super::{Place, agent_suites, say};
use crate::base_model::BaseModel;
use crate::cli::{EvalArgs, SuiteName};
use crate::config::{Config, LoadedConfig};
use crate::error::Error;
use crate::eval::documents::untrained;
use crate::eval::encoder::MiniLmEncoder;
use crate::eval::generate::{GenerationOptions, GenerationProgress};
use crate::eval::in_loop::encoder;
use crate::eval::retrieval::RetrievalSuite;
use crate::eval::slot::{self, Prediction, SlotEvaluation};
use crate::export::CheckpointChoice;
use crate::lora::{Adapters, LoraSpec};
use crate::models::Decoder;
use crate::progress::Progress;
use crate::recipes::interrupt::Interrupt;
use crate::recipes::retriever::files;
use crate::recipes::{settings, sft};

pub(super) fn run(args: &EvalArgs, place: &Place) -> Result<(), Error> {
    let mut config = target_config(args)?;
    config.device = place.name(config.device)?;
    if let Some(output) = &args.output
        && output.join("metrics.json").exists()
    {
        return Err(Error::Usage(format!(
            "{} holds an evaluation; name another --output",
            output.display()
        )));
    }
    let device = place.open(config.device)?;
    match args.suite {
        SuiteName::Slot => slot_suite(args, &config, &device),
        SuiteName::Goat | SuiteName::Restbench | SuiteName::Apibank => {
            agent_suites::run(args, &config, &device)
        }
        SuiteName::Retrieval => retrieval_suite(args, &config, &device),
    }
}

fn slot_suite(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    let rows = sft::eval_rows(config, device)?;
    let encoder = encoder(config, device)?;
    let evaluation = match &args.predictions {
        Some(path) => slot::score(&rows, read_predictions(path)?, encoder.as_ref())?,
        None => generated(args, config, rows.len(), device, |generator, watch| {
            let Generator {
                decoder,
                base,
                options,
            } = generator;
            slot::evaluate(decoder, base, &rows, options, encoder.as_ref(), watch)
        })?,
    };
    write_files(args, &evaluation.files()?)?;
    print(args, &evaluation)
}

/// Refuses options that rankings have no use for.
fn without_predictions(args: &EvalArgs) -> Result<(), Error> {
    for (given, option) in [
        (args.predictions.is_some(), "--predictions"),
        (args.compare.is_some(), "--compare"),
    ] {
        if given {
            return Err(Error::Usage(format!(
                "{option} is not for the suite retrieval; take it out"
            )));
        }
    }
    Ok(())
}

/// The retriever of the chosen checkpoint, if one was trained; else that of the config.
pub(super) fn retriever(
    args: &EvalArgs,
    config: &Config,
    device: &Device,
) -> Result<MiniLmEncoder, Error> {
    if args.checkpoint != "base" {
        let dir = checkpoint(args, config)?;
        if let Some(trained) = files::encoder(config, &dir, device)? {
            return Ok(trained);
        }
    }
    untrained(config, device)
}

fn retrieval_suite(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    without_predictions(args)?;
    let suite = RetrievalSuite::open(config)?;
    let evaluation = suite.evaluate(&retriever(args, config, device)?)?;
    write_files(args, &evaluation.files()?)?;
    say(&retrieval_table(&[(
        args.checkpoint.as_str(),
        &evaluation.report,
    )]))
}

pub(super) fn write_files(args: &EvalArgs, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Error> {
    let Some(output) = &args.output else {
        return Ok(());
    };
    std::fs::create_dir_all(output).map_err(Error::io(output, "create"))?;
    // The metrics come last: their presence says that the evaluation is complete.
    for (name, bytes) in files.iter().rev() {
        write_atomic(&output.join(name), bytes)?;
    }
    Ok(())
}

/// The run's own config, or the given one, with the overrides and paths of the command line.
fn target_config(args: &EvalArgs) -> Result<Config, Error> {
    let path = match args.target.is_dir() {
        true => args.target.join("config.resolved.toml"),
        false => args.target.clone(),
    };
    let mut config = LoadedConfig::load(&path, &args.overrides)?.config;
    if !args.data.is_empty() {
        config.data.eval = args.data.clone();
        config.eval.max_samples = None;
    }
    if args.max_samples.is_some() {
        config.eval.max_samples = args.max_samples;
    }
    Ok(config)
}

/// What completes prompts.
pub(super) struct Generator<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) base: &'a BaseModel,
    pub(super) options: &'a GenerationOptions,
}

/// Loads model and checkpoint and lets `work` evaluate them, with a progress bar over `n` rows.
pub(super) fn generated<R>(
    args: &EvalArgs,
    config: &Config,
    n: usize,
    device: &Device,
    work: impl FnOnce(
        Generator<'_>,
        &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<R>, Error>,
) -> Result<R, Error> {
    let interrupt = Interrupt::listen()?;
    let template = config.data.chat_template.as_deref();
    let base = BaseModel::open(&config.language_model()?.model_name_or_path, template)?;
    let mut decoder = base.decoder(
        settings::compute_dtype(config.language_model()?.compute_dtype, device),
        device,
    )?;
    if args.checkpoint != "base" {
        attach(&mut decoder, &checkpoint(args, config)?, device)?;
    }
    let options = settings::generation(&config.eval, &base.stop_ids);
    let mut progress = Progress::generation(n);
    let mut watch = |state| {
        progress.generated(state);
        !interrupt.is_set()
    };
    let generator = Generator {
        decoder: &decoder,
        base: &base,
        options: &options,
    };
    let evaluation = work(generator, &mut watch)?;
    progress.finish();
    evaluation.ok_or(Error::Stopped)
}

fn checkpoint(args: &EvalArgs, config: &Config) -> Result<PathBuf, Error> {
    let run = match args.target.is_dir() {
        true => args.target.clone(),
        false => config.train.output_dir.clone(),
    };
    CheckpointChoice::parse(&args.checkpoint).resolve(&run)
}

/// Loads a PEFT adapter directory into the projections of `decoder`.
///
/// # Errors
///
/// A damaged directory, or an adapter of another model.
pub(super) fn attach(decoder: &mut Decoder, dir: &Path, device: &Device) -> Result<(), Error> {
    let adapter = load_adapter(dir)?;
    let slots = LoraSpec::from_peft(&adapter.config).slots(&decoder.config)?;
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(|slot| slot.tensors())
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(dir, &expected)?;
    Adapters::from_tensors(slots, &adapter.tensors, device).attach(decoder);
    Ok(())
}

fn read_predictions(path: &Path) -> Result<Vec<Prediction>, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|error| {
                Error::Usage(format!(
                    "{}:{}: {error}; each line is {{\"id\": ..., \"prediction\": ...}}",
                    path.display(),
                    i + 1
                ))
            })
        })
        .collect()
}

fn print(args: &EvalArgs, evaluation: &SlotEvaluation) -> Result<(), Error> {
    let Some(earlier) = &args.compare else {
        for (name, value) in evaluation.metrics() {
            say(&format!("{name:<32} {value:.4}"))?;
        }
        return say(&format!("{:<32} {}", "n", evaluation.score.n));
    };
    let bytes = std::fs::read(earlier).map_err(Error::io(earlier, "read"))?;
    let before: DatasetScore = serde_json::from_slice(&bytes).map_err(|error| {
        let earlier = earlier.display();
        Error::Usage(format!(
            "{earlier}: {error}; --compare takes the metrics.json of an evaluation"
        ))
    })?;
    say(&markdown_table(&before_after_rows(
        &before,
        &evaluation.score,
    )))
}
