//! `export`: writes the files that servers load, and reports how each server would load them.

pub(super) mod model_card;
pub(super) mod nf4;
pub(super) mod pending_upload;
pub(super) mod published;
pub(super) mod upload;

use std::path::Path;

use tooltune_checkpoints::adapter::load_adapter;
use tooltune_checkpoints::weights::{FloatDtype, GgufDtype};

use super::{eprint_line, print_line, say};
use crate::base_model::{BaseModel, same_name};
use crate::cli::{ExportArgs, ExportDtype, ExportFormat};
use crate::commands::export::model_card::{CardKind, model_card};
use crate::commands::export::pending_upload::PendingUpload;
use crate::config::{self, Config};
use crate::device;
use crate::error::Error;
use crate::export::{
    Addition, ExportExtras, GgufMatrices, GgufTarget, MergeBase, MergedFolder, Nf4Projections,
    Scaling, compatibility_table, export_gguf, export_merged, export_peft, export_whole_gguf,
};
use crate::lora::linear_layers;
use crate::recipes::retriever::files;
use crate::recipes::run_lock::{BASE_MODEL, RETRIEVER, RunLock, Used};

/// Default shard size of merged weights in gigabytes, as in transformers.
const SHARD_GIGABYTES: f64 = 5.0;

pub(super) fn run(args: &ExportArgs) -> Result<(), Error> {
    refuse_unused(args)?;
    match &args.push_to_hub {
        Some(repo) => upload::run(args, repo, || write(args)),
        None => {
            write(args)?;
            // The record may belong to an earlier export at the same path, which was deleted before
            // its upload.
            args.output
                .as_deref()
                .map_or(Ok(()), PendingUpload::remove_record)
        }
    }
}

/// Writes the export, or prints how servers would load the adapter.
fn write(args: &ExportArgs) -> Result<(), Error> {
    let config = args.model.config(&[])?;
    let is_merged = match args.to {
        ExportFormat::Gguf => args.merged,
        ExportFormat::Ollama | ExportFormat::Merged => true,
        ExportFormat::Peft | ExportFormat::SentenceTransformers => false,
    };
    let output = args.output.as_deref().unwrap_or(Path::new(""));
    if is_merged && !args.check && args.model.checkpoint()? == "base" {
        args.model.check_used(&config, &[BASE_MODEL])?;
        let base = BaseModel::from_config(&config)?;
        nf4::merge_base(args.base, &base, false)?;
        write_merged(args, &config, &Addition::none(), &base, Merged::Base)?;
        return print_destination(&args.model.path, output);
    }
    let checkpoint = args.model.adapter(&config)?;
    if args.check {
        return say(&compatibility_table(
            &checkpoint,
            &BaseModel::from_config(&config)?,
        )?);
    }
    if is_merged {
        let base = BaseModel::from_config(&config)?;
        check_base(&checkpoint, &config, &base, true)?;
        let onto = nf4::merge_base(args.base, &base, true)?;
        if let Some(onto) = onto {
            print_remarks(output, &[nf4::merge_remark(onto, &base)])?;
        }
        let card = model_card(&config, &checkpoint, CardKind::Merged(onto))?;
        let addition = Addition::read(&checkpoint)?;
        let merged = Merged::Adapter { onto, card: &card };
        write_merged(args, &config, &addition, &base, merged)?;
        return print_destination(&checkpoint, output);
    }
    match args.to {
        ExportFormat::SentenceTransformers => {
            if let Some(lock) = RunLock::read_for_checkpoint(&checkpoint)? {
                lock.check_used(&config, Used::settings(&[RETRIEVER]), &checkpoint)?;
            }
            let device = device::open(config::Device::Cpu)?;
            files::export(&config, &checkpoint, output, &device)?;
        }
        ExportFormat::Gguf => {
            let (base, dtype) = (
                BaseModel::from_config(&config)?,
                dtype(args.dtype, FloatDtype::F32)?,
            );
            check_base(&checkpoint, &config, &base, false)?;
            let max_length = config.data.max_length;
            print_remarks(
                output,
                &export_gguf(&checkpoint, &base, dtype, max_length, output)?,
            )?;
        }
        _ => write_peft(args, &config, &checkpoint)?,
    }
    print_destination(&checkpoint, output)
}

/// Writes the adapter of `checkpoint` as a PEFT folder.
fn write_peft(args: &ExportArgs, config: &Config, checkpoint: &Path) -> Result<(), Error> {
    let output = args.output.as_deref().unwrap_or(Path::new(""));
    let model = config.language_model()?;
    let trained_in_nf4 = nf4::is_trained_in_nf4(config);
    let scaling = match args.neutral {
        true => Scaling::Neutral,
        false => Scaling::AsConfigured,
    };
    // Without the base model, list every module by name.
    let linear = BaseModel::open_shape(&model.model_name_or_path);
    let linear = linear.map(|shape| linear_layers(&shape)).ok();
    let dtype = dtype(args.dtype, FloatDtype::F32)?;
    let extras = ExportExtras {
        base: model,
        card: &model_card(config, checkpoint, CardKind::Adapter)?,
    };
    export_peft(
        checkpoint,
        scaling,
        dtype,
        linear.as_deref(),
        extras,
        output,
    )?;
    if trained_in_nf4 {
        eprint_line(&format!(
            "{}: the adapter was trained with NF4 weights; load its base in 4 bits, as in its \
             README.md, or with `vllm serve --quantization bitsandbytes`",
            output.display()
        ))?;
    }
    match model.hub_id {
        Some(_) => Ok(()),
        None => eprint_line(&format!(
            "{}: base_model_name_or_path is {}, a local path; set model.hub_id to the name of the \
             base model on the hub, for example with --set model.hub_id=org/name",
            output.display(),
            model.model_name_or_path.display()
        )),
    }
}

/// What a merged export contains.
#[derive(Debug, Clone, Copy)]
enum Merged<'a> {
    /// The base without an adapter.
    Base,
    /// An adapter merged onto the weights `onto`, and the content of README.md.
    Adapter {
        onto: Option<MergeBase>,
        card: &'a str,
    },
}

/// Writes a merged model (the base plus the weight change) and its model card.
fn write_merged(
    args: &ExportArgs,
    config: &Config,
    addition: &Addition,
    base: &BaseModel,
    merged: Merged<'_>,
) -> Result<(), Error> {
    let output = args.output.as_deref().unwrap_or(Path::new(""));
    let (onto, card) = match merged {
        Merged::Base => (None, None),
        Merged::Adapter { onto, card } => (onto, Some(card)),
    };
    let writes_nf4 = args.dtype == Some(ExportDtype::Nf4);
    let projections = nf4::projections(config, base, onto, writes_nf4)?;
    let weights = projections.as_ref().map(Nf4Projections::weights);
    let dequantised = weights.filter(|_| onto == Some(MergeBase::Dequantised));
    let target = match args.to {
        ExportFormat::Ollama => GgufTarget::Ollama {
            card,
            system: config.data.system.as_deref(),
        },
        ExportFormat::Gguf => GgufTarget::File,
        _ => {
            let folder = MergedFolder {
                gguf_dtype: match writes_nf4 {
                    true => FloatDtype::BF16,
                    false => dtype(args.dtype, FloatDtype::BF16)?,
                },
                max_shard_bytes: (args.max_shard_size.unwrap_or(SHARD_GIGABYTES) * 1e9) as u64,
                card,
                dequantised,
                quantised: weights.filter(|_| writes_nf4),
            };
            return export_merged(addition, base, folder, output);
        }
    };
    let matrices = GgufMatrices {
        dtype: gguf_dtype(args)?,
        dequantised,
    };
    let max_length = config.data.max_length;
    let remarks = export_whole_gguf(addition, base, matrices, max_length, target, output)?;
    print_remarks(output, &remarks)
}

/// Prints remarks about an export, one per line.
fn print_remarks(output: &Path, remarks: &[String]) -> Result<(), Error> {
    let mut remarks = remarks.iter();
    remarks.try_for_each(|remark| eprint_line(&format!("{}: {remark}", output.display())))
}

/// Prints source and destination of the export.
fn print_destination(source: &Path, output: &Path) -> Result<(), Error> {
    print_line(&format!("{} -> {}", source.display(), output.display()))
}

/// Rejects options that the format does not support.
fn refuse_unused(args: &ExportArgs) -> Result<(), Error> {
    let refused = |message: &str| Err(Error::Usage(message.to_string()));
    let has_scaling = args.to == ExportFormat::Peft;
    if args.neutral && !has_scaling {
        return refused(
            "--neutral only applies to --to peft: other formats have no scaling to ignore",
        );
    }
    if args.merged && args.to != ExportFormat::Gguf {
        return refused(
            "--merged only applies to --to gguf: --to merged and --to ollama always merge",
        );
    }
    if args.dtype.is_some() && args.to == ExportFormat::SentenceTransformers {
        return refused(
            "--dtype only applies to --to peft, gguf, ollama and merged; retrievers are exported \
             as f32",
        );
    }
    let is_merged = args.merged || matches!(args.to, ExportFormat::Merged | ExportFormat::Ollama);
    if args.base.is_some() && !is_merged {
        return refused(
            "--base only applies to --to merged, --to ollama and --to gguf --merged: adapters are not \
             merged",
        );
    }
    match args.max_shard_size {
        Some(_) if args.to != ExportFormat::Merged => {
            refused("--max-shard-size only applies to --to merged: other exports are one file")
        }
        Some(size) if !(size > 0.0 && size <= 1e6) => {
            refused("--max-shard-size must be a number of gigabytes above 0")
        }
        _ => Ok(()),
    }
}

fn dtype(typed: Option<ExportDtype>, default: FloatDtype) -> Result<FloatDtype, Error> {
    match typed.map(as_gguf).transpose()? {
        None => Ok(default),
        Some(GgufDtype::Float(dtype)) => Ok(dtype),
        Some(GgufDtype::Q8_0) => Err(Error::Usage(
            "--dtype q8_0 only applies to whole GGUF models: --to ollama, or --to gguf --merged"
                .to_owned(),
        )),
    }
}

fn as_gguf(typed: ExportDtype) -> Result<GgufDtype, Error> {
    match typed {
        ExportDtype::F32 => Ok(GgufDtype::Float(FloatDtype::F32)),
        ExportDtype::F16 => Ok(GgufDtype::Float(FloatDtype::F16)),
        ExportDtype::Bf16 => Ok(GgufDtype::Float(FloatDtype::BF16)),
        ExportDtype::Q8_0 => Ok(GgufDtype::Q8_0),
        ExportDtype::Nf4 => Err(Error::Usage(
            "--dtype nf4 only applies to --to merged: adapters and GGUF files have no NF4"
                .to_owned(),
        )),
    }
}

/// The dtype of a whole GGUF model, f16 by default.
fn gguf_dtype(args: &ExportArgs) -> Result<GgufDtype, Error> {
    let typed = args.dtype.map(as_gguf).transpose()?;
    Ok(typed.unwrap_or(GgufDtype::Float(FloatDtype::F16)))
}

/// Checks that `base` is the model that the adapter was trained on. Adapters of a run are checked
/// by the file hashes of the run, and adapters from other programs by the name of the base. If
/// `hash_all` is set, large files are hashed even if they look unchanged.
fn check_base(
    checkpoint: &Path,
    config: &Config,
    base: &BaseModel,
    hash_all: bool,
) -> Result<(), Error> {
    if let Some(lock) = RunLock::read_for_checkpoint(checkpoint)? {
        let used = Used {
            settings: &[BASE_MODEL],
            hash_all,
        };
        return lock.check_used(config, used, checkpoint);
    }
    let config = load_adapter(checkpoint)?.config;
    let base_name = config.base_model_name_or_path.as_deref();
    match base_name.filter(|base_name| !same_name(Path::new(base_name), &base.path)) {
        None => Ok(()),
        Some(other) => Err(Error::Usage(format!(
            "{}: the adapter was trained on {:?}, but the model of the run is {}; if they have \
             the same weights, change base_model_name_or_path in its adapter_config.json",
            checkpoint.display(),
            other.chars().take(120).collect::<String>(),
            base.path.display()
        ))),
    }
}
