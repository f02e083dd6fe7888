//! Converts the checked config into the types that each crate takes.

use std::path::Path;

use burn::tensor::Device;
use tooltune_agents::flat::{FlattenOptions, FlattenWhen, OnCollision, RowFlattening};
use tooltune_agents::{GoatOptions, KindWeights};
use tooltune_kernels::{AdamW, ComputeDtype, Distillation, multiplies_bf16};
use tooltune_rows::batches::{GroupByLength, OrderOptions, Packing, Shuffle};
use tooltune_rows::budgets::TEMPLATE_BYTES;
use tooltune_rows::regular_file;
use tooltune_rows::text::{self, ChatTemplate, MaskConfig, PrepareOptions, SlotPrompt};

use crate::config::{self, Config};
use crate::error::Error;
use crate::models::minilm::EmbeddingHead;
use crate::optim::{EmbeddingNoise, LearningRateSchedule};
use crate::retriever::{Direction, InfoNce};

/// How SLOT rows are asked.
///
/// # Errors
///
/// A template that cannot be read, or is none.
pub fn slot_prompt(config: &config::DataConfig) -> Result<SlotPrompt, Error> {
    match config.slot_prompt.as_deref() {
        None => Ok(SlotPrompt::default()),
        Some(named) => match named.to_str().and_then(SlotPrompt::built_in) {
            Some(prompt) => Ok(prompt),
            None if !named.exists() => Err(no_such("data.slot_prompt", named, &SlotPrompt::NAMES)),
            None => Ok(SlotPrompt::read(named)?),
        },
    }
}

/// The text of a template, which `data.chat_template` names.
///
/// # Errors
///
/// A file that cannot be read.
pub fn chat_template(named: &Path) -> Result<String, Error> {
    match named.to_str().and_then(ChatTemplate::built_in) {
        Some(source) => Ok(source.to_owned()),
        None if !named.exists() => Err(no_such("data.chat_template", named, &ChatTemplate::NAMES)),
        None => {
            let text = regular_file::read_text(named, TEMPLATE_BYTES);
            text.map_err(Error::io(named, "read"))
        }
    }
}

fn no_such(setting: &str, named: &Path, names: &[&str]) -> Error {
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    Error::Usage(format!(
        "{setting} names {}, which does not exist; it can be {} or a Jinja file",
        named.display(),
        names.join(", ")
    ))
}

/// How the schemas of rows are flattened, if they are.
///
/// # Errors
///
/// As [`slot_prompt`].
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
            on_collision: on_collision(config.flatten_collisions),
        },
        slot_prompt: slot_prompt(config)?,
    }))
}

/// What becomes of flat names that collide.
pub fn on_collision(collisions: config::FlattenCollisions) -> OnCollision {
    match collisions {
        config::FlattenCollisions::Number => OnCollision::Number,
        config::FlattenCollisions::Error => OnCollision::Error,
    }
}

/// The `[goat]` table.
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

/// The dtype of matrix products: `auto` is what the device multiplies fastest.
///
/// # Errors
///
/// bf16 on a GPU that does not multiply it: one of compute capability below 8.0.
pub fn compute_dtype(typed: config::ComputeDtype, device: &Device) -> Result<ComputeDtype, Error> {
    match typed {
        config::ComputeDtype::Auto => Ok(ComputeDtype::best_of(device)),
        config::ComputeDtype::F32 => Ok(ComputeDtype::F32),
        config::ComputeDtype::Bf16 => bf16_where(multiplies_bf16(device)),
    }
}

fn bf16_where(is_multiplied: bool) -> Result<ComputeDtype, Error> {
    if is_multiplied {
        Ok(ComputeDtype::Bf16)
    } else {
        Err(Error::Device(
            "this GPU does not multiply bf16, for which it needs compute capability 8.0 (A100, RTX \
             30) or more; set model.compute_dtype, or retriever.compute_dtype, to \"f32\" or \
             \"auto\""
                .to_owned(),
        ))
    }
}

/// What is learned of a row, and how long it may be.
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

/// How examples become steps.
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

/// How much the model without its adapter teaches it, if at all.
pub fn distillation(config: &config::TrainConfig) -> Option<Distillation> {
    let alpha = config.self_distillation_alpha;
    (alpha > 0.0).then_some(Distillation {
        alpha,
        temperature: config.self_distillation_temperature,
    })
}

/// AdamW's hyper-parameters.
pub fn adamw(config: &config::TrainConfig) -> AdamW {
    AdamW {
        beta1: config.adam_beta1,
        beta2: config.adam_beta2,
        eps: config.adam_epsilon,
        weight_decay: config.weight_decay,
    }
}

/// The noise on the embeddings of a micro-batch of optimizer step `step`, if there is any.
pub fn embedding_noise(
    config: &config::TrainConfig,
    step: u64,
    micro_batch: usize,
) -> Option<EmbeddingNoise> {
    let alpha = config.neftune_noise_alpha?;
    Some(EmbeddingNoise::new(alpha, config.seed, step, micro_batch))
}

/// The schedule of a retriever that learns for `total_steps`.
pub fn retriever_learning_rate(
    config: &config::RetrieverConfig,
    total_steps: u64,
) -> LearningRateSchedule {
    LearningRateSchedule {
        schedule: config.lr_scheduler_type,
        peak: config.learning_rate,
        warmup_steps: config::Warmup::Ratio(config.warmup_ratio).steps(total_steps),
        total_steps,
    }
}

/// The scale of cosines: a temperature of 0.05.
const SCALE: f64 = 20.0;

/// The loss of a retriever.
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

/// The schedule of a run of `total_steps`.
pub fn learning_rate(config: &config::TrainConfig, total_steps: u64) -> LearningRateSchedule {
    LearningRateSchedule {
        schedule: config.lr_scheduler_type,
        peak: config.learning_rate,
        warmup_steps: config.warmup().steps(total_steps),
        total_steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_refused_with_what_to_set_where_nothing_multiplies_it() {
        let cpu = crate::device::open(config::Device::Cpu).expect("a CPU");
        let bf16 = compute_dtype(config::ComputeDtype::Bf16, &cpu);
        assert_eq!(bf16.expect("any CPU multiplies bf16"), ComputeDtype::Bf16);
        let refused = bf16_where(false).expect_err("no tensor cores for bf16");
        assert_eq!(refused.exit_code(), 2);
        assert!(refused.to_string().contains("compute_dtype"), "{refused}");
    }
}
