//! `export`: a checkpoint to what a server loads, and what each server would make of it.

use std::path::Path;

use tooltune_checkpoints::weights::FloatDtype;

use super::say;
use crate::base_model::BaseModel;
use crate::cli::{ExportArgs, ExportDtype, ExportFormat};
use crate::config::{self, LoadedConfig};
use crate::device;
use crate::error::Error;
use crate::export::{
    CheckpointChoice, Scaling, compatibility_table, export_gguf, export_merged, export_peft,
};
use crate::recipes::retriever::files;

pub(super) fn run(args: &ExportArgs) -> Result<(), Error> {
    let config = LoadedConfig::load(&args.run.join("config.resolved.toml"), &[])?.config;
    let checkpoint = CheckpointChoice::parse(&args.checkpoint).resolve(&args.run)?;
    refuse_unused(args)?;
    let base = || {
        let template = config.data.chat_template.as_deref();
        BaseModel::open(&config.language_model()?.model_name_or_path, template)
    };
    if args.check {
        return say(&compatibility_table(&checkpoint, &base()?)?);
    }
    let output = args.output.as_deref().unwrap_or(Path::new(""));
    match args.to {
        ExportFormat::Peft => {
            config.language_model()?;
            let scaling = match args.neutral {
                true => Scaling::Neutral,
                false => Scaling::AsConfigured,
            };
            export_peft(&checkpoint, scaling, output)?;
        }
        ExportFormat::Gguf => {
            let dtype = dtype(args.dtype, FloatDtype::F32);
            export_gguf(&checkpoint, &base()?, dtype, output)?;
        }
        ExportFormat::Merged => {
            let dtype = dtype(args.dtype, FloatDtype::BF16);
            let shard = (args.max_shard_size * 1e9) as u64;
            export_merged(&checkpoint, &base()?, (dtype, shard), output)?;
        }
        ExportFormat::SentenceTransformers => {
            let device = device::open(config::Device::Cpu)?;
            files::export(&config, &checkpoint, output, &device)?;
        }
    }
    say(&format!("{} -> {}", checkpoint.display(), output.display()))
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
    if args.dtype.is_some() && !matches!(args.to, ExportFormat::Gguf | ExportFormat::Merged) {
        return refused("--dtype is for --to gguf and --to merged");
    }
    if !(args.max_shard_size > 0.0 && args.max_shard_size <= 1e6) {
        return refused("--max-shard-size is in gigabytes, above 0");
    }
    Ok(())
}

fn dtype(typed: Option<ExportDtype>, default: FloatDtype) -> FloatDtype {
    match typed {
        None => default,
        Some(ExportDtype::F32) => FloatDtype::F32,
        Some(ExportDtype::F16) => FloatDtype::F16,
        Some(ExportDtype::Bf16) => FloatDtype::BF16,
    }
}
