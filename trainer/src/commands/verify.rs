//! `export`, and `verify`: what was written beside what the checkpoint computes.

use std::path::Path;

use burn::tensor::Device;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_data::benchmarks::slot::SentenceEncoder;
use tooltune_data::text::prompt_ids;
use tooltune_kernels::ComputeDtype;

use super::evaluate::attach;
use super::{Place, say};
use crate::base_model::BaseModel;
use crate::cli::{ExportArgs, ExportFormat, VerifyArgs};
use crate::config::{self, Config, LoadedConfig};
use crate::device;
use crate::error::Error;
use crate::eval::retrieval::RetrievalSuite;
use crate::export::{CheckpointChoice, Scaling, export_peft};
use crate::models::BatchContext;
use crate::recipes::retriever::files;
use crate::recipes::sft;

pub(super) fn export(args: &ExportArgs) -> Result<(), Error> {
    let config = LoadedConfig::load(&args.run.join("config.resolved.toml"), &[])?.config;
    let checkpoint = CheckpointChoice::parse(&args.checkpoint).resolve(&args.run)?;
    match args.to {
        ExportFormat::Peft => {
            let template = config.data.chat_template.as_deref();
            let base = BaseModel::open(&config.language_model()?.model_name_or_path, template)?;
            let scaling = match args.neutral {
                true => Scaling::Neutral,
                false => Scaling::AsConfigured,
            };
            export_peft(&checkpoint, &base.config, scaling, &args.output)?;
        }
        ExportFormat::SentenceTransformers if args.neutral => {
            return Err(Error::Usage(
                "--neutral is for adapters: a retriever has no scaling to fold".to_string(),
            ));
        }
        ExportFormat::SentenceTransformers => {
            let device = device::open(config::Device::Cpu)?;
            files::export(&config, &checkpoint, &args.output, &device)?;
        }
    }
    say(&format!(
        "{} -> {}",
        checkpoint.display(),
        args.output.display()
    ))
}

pub(super) fn run(args: &VerifyArgs, place: &Place) -> Result<(), Error> {
    let config = LoadedConfig::load(&args.run.join("config.resolved.toml"), &[])?.config;
    let device = place.open(config.device)?;
    let checkpoint = CheckpointChoice::parse(&args.checkpoint).resolve(&args.run)?;
    if let Some(path) = &args.embeddings {
        embeddings(&config, &checkpoint, (path, args.rows), &device)?;
    }
    match &args.logits {
        Some(path) => logits(&config, &checkpoint, (path, args.rows), &device),
        None => Ok(()),
    }
}

/// Texts of the suite retrieval with their embeddings, one JSON object a line.
fn embeddings(
    config: &Config,
    checkpoint: &Path,
    (path, rows): (&Path, usize),
    device: &Device,
) -> Result<(), Error> {
    let encoder = files::encoder(config, checkpoint, device)?.ok_or_else(|| {
        let checkpoint = checkpoint.display();
        Error::Usage(format!(
            "{checkpoint} holds no retriever: the run has trained none"
        ))
    })?;
    let suite = RetrievalSuite::open(config)?;
    let first = |texts: &[String]| -> Vec<String> { texts.iter().take(rows).cloned().collect() };
    let texts = [first(suite.queries()), first(suite.documents())].concat();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut lines = String::new();
    for (text, embedding) in texts.iter().zip(encoder.encode(&texts)?) {
        let line = serde_json::json!({"text": text, "embedding": embedding});
        lines.push_str(&format!("{line}\n"));
    }
    write_atomic(path, lines.as_bytes())?;
    say(&format!(
        "embeddings of {} texts in {}",
        texts.len(),
        path.display()
    ))
}

fn logits(
    config: &Config,
    checkpoint: &Path,
    (path, rows): (&Path, usize),
    device: &Device,
) -> Result<(), Error> {
    let template = config.data.chat_template.as_deref();
    let base = BaseModel::open(&config.language_model()?.model_name_or_path, template)?;
    let mut decoder = base.decoder(ComputeDtype::F32, device)?;
    attach(&mut decoder, checkpoint, device)?;
    let mut prompts = Vec::new();
    for row in sft::eval_rows(config, device)?.iter().take(rows) {
        let ids = prompt_ids(row, &base.template, &base.tokenizer)?;
        let positions: Vec<u32> = (0..ids.len() as u32).collect();
        let context = BatchContext::new(&decoder, &positions, &[0, ids.len()]);
        let logits = decoder.logits(decoder.forward(&ids, &context));
        prompts.push((ids, logits.into_data().iter::<f32>().collect::<Vec<f32>>()));
    }
    write_logits(path, &prompts)?;
    say(&format!(
        "logits of {} prompts in {}",
        prompts.len(),
        path.display()
    ))
}

/// Writes `promptN.input_ids` `[n]`, i64, and `promptN.logits` `[n, v]`, f32.
fn write_logits(path: &Path, prompts: &[(Vec<u32>, Vec<f32>)]) -> Result<(), Error> {
    let bytes: Vec<(Vec<u8>, Vec<u8>)> = prompts
        .iter()
        .map(|(ids, logits)| {
            (
                ids.iter()
                    .flat_map(|&id| i64::from(id).to_le_bytes())
                    .collect(),
                logits
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
            )
        })
        .collect();
    let mut views = Vec::with_capacity(2 * prompts.len());
    for (i, ((ids, logits), (id_bytes, logit_bytes))) in prompts.iter().zip(&bytes).enumerate() {
        let n = ids.len();
        let parts = [
            ("input_ids", Dtype::I64, vec![n], id_bytes),
            ("logits", Dtype::F32, vec![n, logits.len() / n], logit_bytes),
        ];
        for (name, dtype, shape, data) in parts {
            let view = TensorView::new(dtype, shape, data);
            views.push((format!("prompt{i}.{name}"), view.map_err(unwritable(path))?));
        }
    }
    let file = safetensors::serialize(views, None).map_err(unwritable(path))?;
    Ok(write_atomic(path, &file)?)
}

fn unwritable(path: &Path) -> impl Fn(safetensors::SafeTensorError) -> Error {
    move |error| Error::Usage(format!("{}: {error}", path.display()))
}
