//! Exports what a server loads of a checkpoint, and what each server would make of it (`export`).

use std::path::Path;

use tooltune_checkpoints::adapter::load_adapter;
use tooltune_checkpoints::weights::{FloatDtype, GgufDtype};
use tooltune_hub::{Hub, Upload};

use super::model_card::{Handed, model_card};
use super::{eprint_line, print_line, say};
use crate::base_model::{BaseModel, same_name};
use crate::cli::{ExportArgs, ExportDtype, ExportFormat};
use crate::config::{self, Config};
use crate::device;
use crate::error::Error;
use crate::export::{
    GgufPlace, HandedOn, Scaling, compatibility_table, export_base_gguf, export_gguf,
    export_merged, export_merged_gguf, export_peft,
};
use crate::lora::linear_layers;
use crate::progress::Fetching;
use crate::recipes::retriever::files;
use crate::recipes::run_lock::{BASE_MODEL, RETRIEVER, RunLock, Used};

/// Gigabytes of a file of merged weights, as `transformers` makes them.
const SHARD_GIGABYTES: f64 = 5.0;

pub(super) fn run(args: &ExportArgs) -> Result<(), Error> {
    let config = args.model.config(&[])?;
    refuse_unused(args)?;
    let base = || BaseModel::of(&config);
    let is_whole_gguf = args.to == ExportFormat::Gguf && args.merged && !args.check;
    if is_whole_gguf && args.model.checkpoint()? == "base" {
        args.model.check_used(&config, &[BASE_MODEL])?;
        let output = args.output.as_deref().unwrap_or(Path::new(""));
        export_base_gguf(&base()?, gguf_dtype(args), output)?;
        return done(&args.model.path, args, output);
    }
    let checkpoint = args.model.adapter(&config)?;
    if args.check {
        return say(&compatibility_table(&checkpoint, &base()?)?);
    }
    let output = args.output.as_deref().unwrap_or(Path::new(""));
    match args.to {
        ExportFormat::Peft => {
            let model = &config.language_model()?.model_name_or_path;
            let scaling = if args.neutral {
                Scaling::Neutral
            } else {
                Scaling::AsConfigured
            };
            // The base may be elsewhere; then every module is named.
            let linear = BaseModel::open_shape(model).map(|shape| linear_layers(&shape));
            let dtype = dtype(args.dtype, FloatDtype::F32)?;
            let linear = linear.ok();
            export_peft(
                &checkpoint,
                scaling,
                dtype,
                linear.as_deref(),
                HandedOn {
                    base: config.language_model()?,
                    card: &model_card(&config, &checkpoint, Handed::Adapter)?,
                },
                output,
            )?;
            if config.language_model()?.hub_id.is_none() {
                eprint_line(&format!(
                    "{}: base_model_name_or_path is {}, a path of this machine; set model.hub_id to the \
                     name of the base on the hub, as with --set model.hub_id=org/name",
                    output.display(),
                    config.language_model()?.model_name_or_path.display()
                ))?;
            }
        }
        ExportFormat::Gguf if args.merged => {
            let base = base()?;
            check_base(&checkpoint, &config, &base, true)?;
            export_merged_gguf(
                &checkpoint,
                &base,
                gguf_dtype(args),
                GgufPlace::File,
                output,
            )?;
        }
        ExportFormat::Ollama => {
            let base = base()?;
            check_base(&checkpoint, &config, &base, true)?;
            let place = GgufPlace::Ollama {
                card: &model_card(&config, &checkpoint, Handed::Merged)?,
                system: config.data.system.as_deref(),
            };
            let lacks = export_merged_gguf(&checkpoint, &base, gguf_dtype(args), place, output)?;
            if let Some(reason) = lacks {
                eprint_line(&format!(
                    "{}: the Modelfile has no TEMPLATE, since the chat template is more than turns one \
                     after another ({reason}); Ollama guesses one from the file, so compare what it \
                     writes, or write one",
                    output.display()
                ))?;
            }
        }
        ExportFormat::Gguf => {
            let (base, dtype) = (base()?, dtype(args.dtype, FloatDtype::F32)?);
            check_base(&checkpoint, &config, &base, false)?;
            export_gguf(&checkpoint, &base, dtype, output)?;
        }
        ExportFormat::Merged => {
            let dtype = dtype(args.dtype, FloatDtype::BF16)?;
            let shard = (args.max_shard_size.unwrap_or(SHARD_GIGABYTES) * 1e9) as u64;
            let base = base()?;
            check_base(&checkpoint, &config, &base, true)?;
            let card = model_card(&config, &checkpoint, Handed::Merged)?;
            export_merged(&checkpoint, &base, dtype, shard, &card, output)?;
        }
        ExportFormat::SentenceTransformers => {
            if let Some(lock) = RunLock::of_checkpoint(&checkpoint)? {
                lock.check_used(&config, Used::of(&[RETRIEVER]), &checkpoint)?;
            }
            let device = device::open(config::Device::Cpu)?;
            files::export(&config, &checkpoint, output, &device)?;
        }
    }
    done(&checkpoint, args, output)
}

/// Says what was written of what, and uploads it where that is asked for.
fn done(of: &Path, args: &ExportArgs, output: &Path) -> Result<(), Error> {
    print_line(&format!("{} -> {}", of.display(), output.display()))?;
    match &args.push_to_hub {
        Some(repo) => push(repo, args.private, output),
        None => Ok(()),
    }
}

/// Uploads what was written.
fn push(repo: &str, is_private: bool, output: &Path) -> Result<(), Error> {
    let upload = Upload {
        repo,
        path: output,
        is_private,
        message: "Upload with tooltune",
    };
    let view = Fetching::begin(format!("{} -> {repo}", output.display()));
    let pushed = Hub::of_process()?.push(upload, &|event| view.hear(event));
    let pushed = pushed.map_err(|source| Error::NotPushed {
        output: output.to_owned(),
        source: Box::new(source),
    })?;
    let summary = view.summary().unwrap_or_default();
    drop(view);
    match pushed.commit {
        Some(commit) => print_line(&format!("{} has {summary}, commit {commit}", pushed.page)),
        None => print_line(&format!("{} had all of it as it is", pushed.page)),
    }
}

/// Options that the format has no use for.
fn refuse_unused(args: &ExportArgs) -> Result<(), Error> {
    let refused = |message: &str| Err(Error::Usage(message.to_string()));
    let has_scaling = args.to == ExportFormat::Peft;
    if args.neutral && !has_scaling {
        return refused(
            "--neutral is for --to peft: other formats carry no scaling that a server could ignore",
        );
    }
    if args.merged && args.to != ExportFormat::Gguf {
        return refused("--merged is for --to gguf: --to merged and --to ollama are merged anyway");
    }
    if args.dtype.is_some() && args.to == ExportFormat::SentenceTransformers {
        return refused(
            "--dtype is for --to peft, gguf, ollama and merged; a retriever stays in f32",
        );
    }
    match args.max_shard_size {
        Some(_) if args.to != ExportFormat::Merged => {
            refused("--max-shard-size is for --to merged: other exports are one file")
        }
        Some(size) if !(size > 0.0 && size <= 1e6) => {
            refused("--max-shard-size is in gigabytes, above 0")
        }
        _ => Ok(()),
    }
}

fn dtype(typed: Option<ExportDtype>, default: FloatDtype) -> Result<FloatDtype, Error> {
    match typed.map(as_gguf) {
        None => Ok(default),
        Some(GgufDtype::Float(dtype)) => Ok(dtype),
        Some(GgufDtype::Q8_0) => Err(Error::Usage(
            "--dtype q8_0 is for whole models in GGUF: --to ollama, or --to gguf --merged"
                .to_owned(),
        )),
    }
}

fn as_gguf(typed: ExportDtype) -> GgufDtype {
    match typed {
        ExportDtype::F32 => GgufDtype::Float(FloatDtype::F32),
        ExportDtype::F16 => GgufDtype::Float(FloatDtype::F16),
        ExportDtype::Bf16 => GgufDtype::Float(FloatDtype::BF16),
        ExportDtype::Q8_0 => GgufDtype::Q8_0,
    }
}

/// The format of a whole model in GGUF.
fn gguf_dtype(args: &ExportArgs) -> GgufDtype {
    args.dtype
        .map_or(GgufDtype::Float(FloatDtype::F16), as_gguf)
}

/// Compares `base` with what the adapter was trained on: its files, by the hashes that the run keeps,
/// or their name where an adapter comes from elsewhere. With `whole`, every byte of the weights.
fn check_base(
    checkpoint: &Path,
    config: &Config,
    base: &BaseModel,
    whole: bool,
) -> Result<(), Error> {
    if let Some(lock) = RunLock::of_checkpoint(checkpoint)? {
        let used = Used {
            settings: &[BASE_MODEL],
            whole,
        };
        return lock.check_used(config, used, checkpoint);
    }
    let config = load_adapter(checkpoint)?.config;
    let named = config.base_model_name_or_path.as_deref();
    match named.filter(|named| !same_name(Path::new(named), &base.path)) {
        None => Ok(()),
        Some(other) => Err(Error::Usage(format!(
            "{}: the adapter was trained on {:?}, and the run's model is {}; if they are the same \
             weights, write that into base_model_name_or_path of its adapter_config.json",
            checkpoint.display(),
            other.chars().take(120).collect::<String>(),
            base.path.display()
        ))),
    }
}
