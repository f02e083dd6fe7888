//! Converts the checked config into the types of each crate.

use std::path::Path;

use burn::tensor::Device;
use tooltune_agents::flat::{FlattenOptions, FlattenWhen, OnCollision, RowFlattening};
use tooltune_agents::{GoatOptions, KindWeights};
use tooltune_disk::budgets::TEMPLATE_BYTES;
use tooltune_disk::regular_file;
use tooltune_hub::RepoKind;
use tooltune_kernels::{AdamW, ComputeDtype, Distillation, multiplies_bf16};
use tooltune_rows::batches::{GroupByLength, OrderOptions, Packing, Shuffle};
use tooltune_rows::text;
use tooltune_rows::text::{MaskConfig, PrepareOptions, SlotPrompt};
use tooltune_template::ChatTemplate;

use crate::config::{self, Config, fetch_hint};
use crate::error::Error;
use crate::models::load::{FrozenWeights, Quantization};
use crate::models::minilm::EmbeddingHead;
use crate::optim::EmbeddingNoise;
use crate::retriever::{Direction, InfoNce};

/// Checks that the model named by a setting exists.
///
/// # Errors
///
/// The path does not exist; the error names the setting and the fix.
pub fn must_be_here(setting: &str, path: &Path) -> Result<(), Error> {
    if path.exists() {
        return Ok(());
    }
    let from = match std::env::current_dir() {
        Ok(folder) if path.is_relative() => format!(
            " in {}; run the command in the folder that the path is relative to, or set",
            folder.display()
        ),
        _ => "; restore the model, or set".to_owned(),
    };
    let hub = fetch_hint(RepoKind::Model, path).map(|hint| format!("; {hint}"));
    Err(Error::Usage(format!(
        "{setting} is {path}, but there is no such file or folder{from} a new path with --set \
         {setting}=PATH{hub}",
        path = path.display(),
        hub = hub.unwrap_or_default()
    )))
}

/// Returns the prompt template for SLOT rows.
///
/// # Errors
///
/// The template cannot be read or is invalid.
pub fn slot_prompt(config: &config::DataConfig) -> Result<SlotPrompt, Error> {
    match config.slot_prompt.as_deref() {
        None => Ok(SlotPrompt::default()),
        Some(path) => match path.to_str().and_then(SlotPrompt::built_in) {
            Some(prompt) => Ok(prompt),
            None if !path.exists() => {
                Err(unknown_name("data.slot_prompt", path, &SlotPrompt::NAMES))
            }
            None => Ok(SlotPrompt::read(path)?),
        },
    }
}

/// Source of the template that `data.chat_template` names.
///
/// # Errors
///
/// The file cannot be read.
pub fn chat_template(path: &Path) -> Result<String, Error> {
    match path.to_str().and_then(ChatTemplate::built_in) {
        Some(source) => Ok(source.to_owned()),
        None if !path.exists() => Err(unknown_name(
            "data.chat_template",
            path,
            &ChatTemplate::NAMES,
        )),
        None => {
            let text = regular_file::read_text(path, TEMPLATE_BYTES);
            text.map_err(Error::io(path, "read"))
        }
    }
}

fn unknown_name(setting: &str, path: &Path, names: &[&str]) -> Error {
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    Error::Usage(format!(
        "{setting} is {}, which does not exist; it can be {} or a Jinja file",
        path.display(),
        names.join(", ")
    ))
}

/// How frozen projections are stored; `is_quantised` means that bitsandbytes quantised the model's
/// folder. Without the setting, the codes of such a folder are kept, except with PiSSA, which
/// changes the weights.
pub fn quantization(config: &Config, is_quantised: bool) -> Quantization {
    let set = config.model.as_ref().and_then(|model| model.quantization);
    match set {
        Some(config::Quantization::Nf4) => Quantization::Nf4,
        Some(config::Quantization::None) => Quantization::None,
        None if is_quantised && config.lora.init_weights.is_none() => Quantization::Nf4,
        None => Quantization::None,
    }
}

/// Where frozen projections are stored.
pub fn frozen_weights(config: &Config) -> FrozenWeights {
    match config.model.as_ref().map(|model| model.frozen_weights) {
        Some(config::FrozenWeights::Host) => FrozenWeights::Host,
        Some(config::FrozenWeights::Node) => FrozenWeights::Node,
        Some(config::FrozenWeights::Resident) | None => FrozenWeights::Resident,
    }
}

/// Options for flattening row schemas, if enabled.
///
/// # Errors
///
/// Same as [`slot_prompt`].
pub fn flattening(config: &config::DataConfig) -> Result<Option<RowFlattening>, Error> {
    let when = match config.flatten {
        config::Flatten::None => return Ok(None),
        config::Flatten::Advised => FlattenWhen::Advised,
        config::Flatten::Always => FlattenWhen::Always,
    };
    Ok(Some(RowFlattening {
        when,
        options: FlattenOptions {
            separator: config.flatten_separator.clone(),
            slots: config.flatten_slots,
            on_collision: collision_rule(config.flatten_collisions),
        },
        slot_prompt: slot_prompt(config)?,
    }))
}

/// How to handle flat names that collide.
pub fn collision_rule(collisions: config::FlattenCollisions) -> OnCollision {
    match collisions {
        config::FlattenCollisions::Number => OnCollision::Number,
        config::FlattenCollisions::Error => OnCollision::Error,
    }
}

/// Options of the `[goat]` table.
pub fn goat(config: &config::GoatConfig) -> GoatOptions {
    GoatOptions {
        distractors: config.distractors,
        n_documents: config.n_documents,
        output_limit: config.output_limit,
        truncate: config.truncate.as_ref().map(config::TruncateConfig::shape),
        limits: config.limits,
        weights: KindWeights {
            plan: config.weights.plan as f32,
            call: config.weights.call as f32,
            step: config.weights.step as f32,
            decompose: config.weights.decompose as f32,
            answer: config.weights.answer as f32,
        },
        ..GoatOptions::new(config.method, &config.documents)
    }
}

/// The compute dtype of matmuls. `auto` selects the fastest dtype on the device.
///
/// # Errors
///
/// bf16 is set, but the GPU has a compute capability below 8.0.
pub fn compute_dtype(
    setting: config::ComputeDtype,
    device: &Device,
) -> Result<ComputeDtype, Error> {
    match setting {
        config::ComputeDtype::Auto => Ok(ComputeDtype::fastest_on(device)),
        config::ComputeDtype::F32 => Ok(ComputeDtype::F32),
        config::ComputeDtype::Bf16 => bf16_if_supported(multiplies_bf16(device)),
    }
}

fn bf16_if_supported(is_supported: bool) -> Result<ComputeDtype, Error> {
    if is_supported {
        Ok(ComputeDtype::Bf16)
    } else {
        Err(Error::Device(
            "this GPU does not support bf16 matmuls, which need compute capability 8.0 (A100, RTX \
             30) or higher; set model.compute_dtype, or retriever.compute_dtype, to \"f32\" or \
             \"auto\""
                .to_owned(),
        ))
    }
}

/// Which tokens of a row are supervised, and its maximum length.
pub fn prepare_options(config: &Config, stop_ids: &[u32]) -> PrepareOptions {
    PrepareOptions {
        mask: mask(&config.mask),
        max_length: config.data.max_length,
        on_overflow: config.data.on_overflow,
        stop_ids: stop_ids.to_vec(),
    }
}

fn mask(config: &config::MaskConfig) -> MaskConfig {
    MaskConfig {
        train_on: config.train_on,
        weights: config
            .weights
            .iter()
            .map(|weight| text::SpanWeight {
                span: weight.span.as_str().to_string(),
                weight: weight.weight as f32,
            })
            .collect(),
        arguments: config.arguments,
        straddle: config.straddle,
        on_empty: config.on_empty,
        on_lost_reasoning: config.on_lost_reasoning,
    }
}

/// How examples are batched into steps.
pub fn order_options(config: &Config) -> OrderOptions {
    OrderOptions {
        seed: config.train.seed,
        per_device_train_batch_size: config.train.per_device_train_batch_size,
        gradient_accumulation_steps: config.train.gradient_accumulation_steps,
        packing: match config.data.packing {
            config::Packing::None => Packing::None,
            config::Packing::BlockDiagonal => Packing::BlockDiagonal {
                max_length: config.data.max_length,
            },
        },
        group_by_length: if config.train.group_by_length {
            GroupByLength::On
        } else {
            GroupByLength::Off
        },
        shuffle: Shuffle::On,
    }
}

/// Weight of self-distillation from the model without its adapter, if enabled.
pub fn distillation(config: &config::TrainConfig) -> Option<Distillation> {
    let alpha = config.self_distillation_alpha;
    (alpha > 0.0).then_some(Distillation {
        alpha,
        temperature: config.self_distillation_temperature,
    })
}

/// AdamW hyperparameters.
pub fn adamw(config: &config::TrainConfig) -> AdamW {
    AdamW {
        beta1: config.adam_beta1,
        beta2: config.adam_beta2,
        eps: config.adam_epsilon,
        weight_decay: config.weight_decay,
    }
}

/// Embedding noise (NEFTune) for a micro-batch of optimizer step `step`, if enabled.
pub fn embedding_noise(
    config: &config::TrainConfig,
    step: u64,
    micro_batch: usize,
) -> Option<EmbeddingNoise> {
    let alpha = config.neftune_noise_alpha?;
    Some(EmbeddingNoise::new(alpha, config.seed, step, micro_batch))
}

/// Default scale of cosine similarities, equal to a temperature of 0.05.
const SCALE: f64 = 20.0;

/// Loss of a retriever.
///
/// # Source
///
/// sentence-transformers 6.2, `MultipleNegativesRankingLoss`: 20 for cosines, 1 for dot products.
pub fn info_nce(config: &config::RetrieverConfig, head: EmbeddingHead) -> InfoNce {
    let scale = if head.normalize { SCALE } else { 1.0 };
    InfoNce {
        scale: config.scale.unwrap_or(scale),
        direction: if config.symmetric {
            Direction::Symmetric
        } else {
            Direction::QueryToDocument
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_without_hardware_support_is_refused_with_the_setting() {
        let cpu = crate::device::open(config::Device::Cpu).expect("a CPU");
        let bf16 = compute_dtype(config::ComputeDtype::Bf16, &cpu);
        assert_eq!(bf16.expect("every CPU supports bf16"), ComputeDtype::Bf16);
        let refused = bf16_if_supported(false).expect_err("no tensor cores for bf16");
        assert_eq!(refused.exit_code(), 2);
        assert!(refused.to_string().contains("compute_dtype"), "{refused}");
    }

    #[test]
    fn a_missing_model_is_named_with_its_setting_and_remedy() {
        const SETTING: &str = "model.model_name_or_path";
        let message =
            |path: &str| must_be_here(SETTING, Path::new(path)).map_err(|error| error.to_string());
        let relative = message("models/gone.gguf").expect_err("not there");
        for part in [
            "model.model_name_or_path is models/gone.gguf, but there is no such file or folder in \
             /",
            "run the command in the folder that the path is relative to",
            "--set model.model_name_or_path=PATH",
        ] {
            assert!(relative.contains(part), "{relative}");
        }
        let absolute = message("/nowhere/gone.gguf").expect_err("not there");
        assert!(absolute.contains("restore the model"), "{absolute}");
        let name = message("org/name-of-the-hub").expect_err("a name");
        assert!(name.contains("tooltune fetch"), "{name}");
        message(env!("CARGO_MANIFEST_DIR")).expect("a folder");
    }
}
