//! What was typed: the tables and keys of a config file, every one of them optional.
//!
//! These types are the format: the JSON Schema is made from them, and the resolved config is
//! written through them. What the values mean together is decided in `check.rs`. Names are those
//! of PEFT, TRL and transformers, so that nobody has to learn new ones.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agent_suites::RawAgentSuite;
use super::choices::{
    ArgumentMask, ComputeDtype, DataFormat, EvalStrategy, Flatten, FlattenCollisions,
    GradientCheckpointing, LrSchedulerType, ModulePattern, OnEmpty, OnLostReasoning, OnOverflow,
    Optim, Packing, ReportTo, Span, Straddle, Suite, TrainOn,
};
use super::defaults;
use super::patterns::Patterns;
pub use super::raw_goat::{
    RawExecutor, RawGoat, RawJudge, RawKindWeights, RawLoopLimits, RawTruncate,
};
pub use super::raw_retriever::{RawRetriever, RawRetrieverLora};
pub use super::raw_tool_suites::{RawNestful, RawSandbox, RawToolQa};
use super::read::{RawTable, reads};
use super::template_kwargs::TemplateKwargs;

/// The one setting outside the tables.
pub(crate) const DEVICE: &str = "device";

/// The tables and their keys, for messages about keys that stand in the wrong place.
pub(crate) const TABLES: &[(&str, &[&str])] = &[
    ("model", RawModel::KEYS),
    ("lora", RawLora::KEYS),
    ("data", RawData::KEYS),
    ("mask", RawMask::KEYS),
    ("goat", RawGoat::KEYS),
    ("retriever", RawRetriever::KEYS),
    ("train", RawTrain::KEYS),
    ("eval", RawEval::KEYS),
    ("checkpoint", RawCheckpoint::KEYS),
    ("log", RawLog::KEYS),
];

/// A tooltune config file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// Where to compute: "cpu", "cuda" or "cuda:1".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::DEVICE.to_string()))]
    pub device: Option<String>,
    /// The base model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<RawModel>,
    /// The low-rank adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<RawLora>,
    /// The rows to learn from and to evaluate on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<RawData>,
    /// Which tokens are learned, and how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<RawMask>,
    /// How trajectories become rows; for `data.format = "goat"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goat: Option<RawGoat>,
    /// The retriever that ranks API documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retriever: Option<RawRetriever>,
    /// Optimizer, schedule and length of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<RawTrain>,
    /// Evaluation while training; without this table there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<RawEval>,
    /// When the run is saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<RawCheckpoint>,
    /// Where metrics go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<RawLog>,
}
reads!(RawConfig {
    device,
    model,
    lora,
    data,
    mask,
    goat,
    retriever,
    train,
    eval,
    checkpoint,
    log
});

/// The base model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawModel {
    /// A folder with config.json, tokenizer.json and safetensors, or a GGUF file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name_or_path: Option<PathBuf>,
    /// The type of the numbers that products read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::COMPUTE_DTYPE))]
    pub compute_dtype: Option<ComputeDtype>,
}
reads!(RawModel {
    model_name_or_path,
    compute_dtype
});

/// The low-rank adapters, with PEFT's names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLora {
    /// Rank of the adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::LORA_R))]
    pub r: Option<usize>,
    /// The adapters are scaled by `lora_alpha / r`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LORA_ALPHA))]
    pub lora_alpha: Option<f64>,
    /// Share of the adapter's inputs that is zeroed while training, from 0 to below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = defaults::LORA_DROPOUT))]
    pub lora_dropout: Option<f64>,
    /// Which linear layers are adapted: a list of names, a regular expression over whole module
    /// paths, or "all-linear".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::ALL_LINEAR))]
    pub target_modules: Option<ModulePattern>,
    /// Which of them are left out again: a list of names or a regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude_modules: Option<ModulePattern>,
    /// Scale by `lora_alpha / sqrt(r)` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::USE_RSLORA))]
    pub use_rslora: Option<bool>,
    /// Ranks of single modules, by pattern; the first that matches counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_pattern: Option<Patterns<usize>>,
    /// Alphas of single modules, by pattern; the first that matches counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha_pattern: Option<Patterns<f64>>,
}
reads!(RawLora {
    r,
    lora_alpha,
    lora_dropout,
    target_modules,
    exclude_modules,
    use_rslora,
    rank_pattern,
    alpha_pattern,
});

/// A day of the calendar, in quotes or as TOML writes one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Day(pub String);

/// The rows to learn from and to evaluate on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawData {
    /// JSON Lines files to learn from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Vec<PathBuf>>,
    /// JSON Lines files to evaluate on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<Vec<PathBuf>>,
    /// The shape of the rows; "auto" reads it off the first row of each file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::DATA_FORMAT))]
    pub format: Option<DataFormat>,
    /// Longest row, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2), extend("default" = defaults::MAX_LENGTH))]
    pub max_length: Option<usize>,
    /// What happens to longer rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::ON_OVERFLOW))]
    pub on_overflow: Option<OnOverflow>,
    /// How rows share a sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::PACKING))]
    pub packing: Option<Packing>,
    /// A Jinja file to render conversations with, in place of the model's own template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,
    /// Variables that the template reads besides messages and tools, such as
    /// `{ enable_thinking = false }`; in training, evaluation, generation, requests and exports alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<TemplateKwargs>,
    /// The day that a template which asks for it prints, as "2026-01-31"; by default the day on which
    /// the run begins, also where it goes on later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_date: Option<Day>,
    /// Whether calls in rows with `tools` must be calls of these tools, with arguments that they
    /// declare; else calls are taken as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::CHECK_CALLS))]
    pub check_calls: Option<bool>,
    /// Which nested JSON Schemas, of slot rows or of tools, are shown flat, with answers or calls
    /// to match; answers are unflattened before they are scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::FLATTEN))]
    pub flatten: Option<Flatten>,
    /// Numbered copies of the items of a list of objects, as many at least; a longer list of a row
    /// gets as many as it needs, and 0 leaves lists as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::FLATTEN_SLOTS))]
    pub flatten_slots: Option<usize>,
    /// What joins the names on the way to a leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::FLATTEN_SEPARATOR))]
    pub flatten_separator: Option<String>,
    /// What becomes of flat names that collide.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::FLATTEN_COLLISIONS))]
    pub flatten_collisions: Option<FlattenCollisions>,
}
reads!(RawData {
    train,
    eval,
    format,
    max_length,
    on_overflow,
    packing,
    chat_template,
    chat_template_kwargs,
    template_date,
    check_calls,
    flatten,
    flatten_slots,
    flatten_separator,
    flatten_collisions,
});

/// Which tokens are learned, and how much.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawMask {
    /// The part of a row that is learned; "assistant" for the formats messages, sharegpt and alpaca,
    /// otherwise "completion".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_on: Option<TrainOn>,
    /// Weights of spans inside that part; 0 is not learned, 1 is learned as usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Vec<RawSpanWeight>>,
    /// Which values in the arguments of calls are left out of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::ARGUMENTS))]
    pub arguments: Option<ArgumentMask>,
    /// What a token on the border of such a span counts as.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::STRADDLE))]
    pub straddle: Option<Straddle>,
    /// What happens to a row without a learned token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::ON_EMPTY))]
    pub on_empty: Option<OnEmpty>,
    /// What happens to a row with a learned turn whose reasoning the template leaves out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::ON_LOST_REASONING))]
    pub on_lost_reasoning: Option<OnLostReasoning>,
}
reads!(RawMask {
    train_on,
    weights,
    arguments,
    straddle,
    on_empty,
    on_lost_reasoning
});

/// The weight of one kind of span.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawSpanWeight {
    /// The kind of span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
    /// Its weight in the loss, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub weight: Option<f64>,
}
reads!(RawSpanWeight { span, weight });

/// Optimizer, schedule and length of the run, with transformers' names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawTrain {
    /// The run directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_dir: Option<PathBuf>,
    /// Passes over the training rows; may be a fraction. Excludes `max_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::NUM_TRAIN_EPOCHS))]
    pub num_train_epochs: Option<f64>,
    /// Optimizer steps. Excludes `num_train_epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_steps: Option<u64>,
    /// Sequences in a micro-batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::PER_DEVICE_TRAIN_BATCH_SIZE))]
    pub per_device_train_batch_size: Option<usize>,
    /// Micro-batches in an optimizer step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::GRADIENT_ACCUMULATION_STEPS))]
    pub gradient_accumulation_steps: Option<usize>,
    /// Peak learning rate, reached after warm-up. Typical for LoRA: 1e-4 to 1e-3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LEARNING_RATE))]
    pub learning_rate: Option<f64>,
    /// How the learning rate goes after warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LR_SCHEDULER_TYPE))]
    pub lr_scheduler_type: Option<LrSchedulerType>,
    /// Share of the steps that the learning rate takes to rise. Excludes `warmup_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = defaults::WARMUP_RATIO))]
    pub warmup_ratio: Option<f64>,
    /// Steps that the learning rate takes to rise. Excludes `warmup_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// AdamW's decoupled weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::WEIGHT_DECAY))]
    pub weight_decay: Option<f64>,
    /// AdamW's decay of the first moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = defaults::ADAM_BETA1))]
    pub adam_beta1: Option<f64>,
    /// AdamW's decay of the second moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = defaults::ADAM_BETA2))]
    pub adam_beta2: Option<f64>,
    /// AdamW's epsilon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::ADAM_EPSILON))]
    pub adam_epsilon: Option<f64>,
    /// The optimizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::OPTIM))]
    pub optim: Option<Optim>,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::MAX_GRAD_NORM))]
    pub max_grad_norm: Option<f64>,
    /// Seed of the adapter's initial values, of dropout and of the order of the rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::SEED))]
    pub seed: Option<u64>,
    /// Batch rows of similar length together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::GROUP_BY_LENGTH))]
    pub group_by_length: Option<bool>,
    /// How many blocks keep their activations for the backward pass: "auto", "full" (none keep
    /// them), "none" (all keep them), or a number of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::GRADIENT_CHECKPOINTING))]
    pub gradient_checkpointing: Option<GradientCheckpointing>,
    /// Share of the loss that pulls the model towards what it was without its adapter
    /// (self-distillation), from 0 to 1; the rest is cross-entropy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = defaults::SELF_DISTILLATION_ALPHA))]
    pub self_distillation_alpha: Option<f64>,
    /// Logits are divided by it where distributions are compared for self-distillation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::SELF_DISTILLATION_TEMPERATURE))]
    pub self_distillation_temperature: Option<f64>,
    /// Steps in a row with a non-finite loss or gradient after which the run stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::MAX_NONFINITE))]
    pub max_nonfinite: Option<usize>,
    /// Optimizer steps between two lines of metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::LOGGING_STEPS))]
    pub logging_steps: Option<u64>,
}
reads!(RawTrain {
    output_dir,
    num_train_epochs,
    max_steps,
    per_device_train_batch_size,
    gradient_accumulation_steps,
    learning_rate,
    lr_scheduler_type,
    warmup_ratio,
    warmup_steps,
    weight_decay,
    adam_beta1,
    adam_beta2,
    adam_epsilon,
    optim,
    max_grad_norm,
    seed,
    group_by_length,
    gradient_checkpointing,
    self_distillation_alpha,
    self_distillation_temperature,
    max_nonfinite,
    logging_steps,
});

/// Evaluation while training and after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawEval {
    /// When the run evaluates; "steps" if this table exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_strategy: Option<EvalStrategy>,
    /// Optimizer steps between two evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::EVAL_STEPS))]
    pub eval_steps: Option<u64>,
    /// Benchmarks to run; ["slot"] for slot rows, otherwise only the loss is computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suites: Option<Vec<Suite>>,
    /// At most this many rows are evaluated, the first ones; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_samples: Option<usize>,
    /// Seconds that an answer may take, counted from when its prompt is read; in suites of agents
    /// those of the loop of a query, its share of what is generated together. Without limit by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub max_time: Option<f64>,
    /// Longest generated answer, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::MAX_NEW_TOKENS))]
    pub max_new_tokens: Option<usize>,
    /// Rows generated at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::EVAL_BATCH_SIZE))]
    pub batch_size: Option<usize>,
    /// Tokens that the keys and values of all rows generated at the same time may have room for;
    /// fewer rows are generated together where they would need more. As many as `batch_size` rows
    /// need by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_cache_tokens: Option<usize>,
    /// Whether the suite slot allows only tokens that keep to a row's JSON Schema, and the suites of
    /// calls only tokens of calls of the tools on offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub constrained: Option<bool>,
    /// Sampling temperature; 0 takes the most likely token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = 0.0))]
    pub temperature: Option<f64>,
    /// Samples among this many of the most likely tokens; among all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub top_k: Option<usize>,
    /// Samples among the fewest tokens whose probabilities sum to this share.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 1.0))]
    pub top_p: Option<f64>,
    /// Texts that end an answer, besides the model's own end of turn; they are cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_strings: Option<Vec<String>>,
    /// What the best checkpoint is chosen by: "loss", "suite.metric" or a weighted sum of such; by
    /// default the first suite's main metric, otherwise "loss".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_for_best_model: Option<String>,
    /// Whether more is better; by default false for "loss", rates of errors, lengths too many and
    /// steps, and true for all else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greater_is_better: Option<bool>,
    /// Ends the run after this many evaluations in a row without a better one. Never if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub early_stopping_patience: Option<u64>,
    /// An evaluation is better only if it is by more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = 0.0))]
    pub early_stopping_threshold: Option<f64>,
    /// Folder of the MiniLM encoder that content similarity is computed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<PathBuf>,
    /// The suite nestful.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nestful: Option<RawNestful>,
    /// The suite toolqa.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolqa: Option<RawToolQa>,
    /// The suite restbench.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restbench: Option<RawAgentSuite>,
    /// The suite apibank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apibank: Option<RawAgentSuite>,
    /// What runs functions for nestful and toolqa.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<RawSandbox>,
}
reads!(RawEval {
    eval_strategy,
    eval_steps,
    suites,
    max_samples,
    max_time,
    max_new_tokens,
    batch_size,
    kv_cache_tokens,
    constrained,
    temperature,
    top_k,
    top_p,
    stop_strings,
    metric_for_best_model,
    greater_is_better,
    early_stopping_patience,
    early_stopping_threshold,
    encoder,
    nestful,
    toolqa,
    restbench,
    apibank,
    sandbox,
});

/// When the run is saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawCheckpoint {
    /// Optimizer steps between two checkpoints; those of the evaluations if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::SAVE_STEPS))]
    pub save_steps: Option<u64>,
    /// Checkpoints that are kept at most, as in transformers: the best one and the newest others;
    /// with a limit of 1 both the best and the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::SAVE_TOTAL_LIMIT))]
    pub save_total_limit: Option<usize>,
}
reads!(RawCheckpoint {
    save_steps,
    save_total_limit
});

/// Where metrics go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLog {
    /// The places besides the terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::REPORT_TO))]
    pub report_to: Option<Vec<ReportTo>>,
}
reads!(RawLog { report_to });
