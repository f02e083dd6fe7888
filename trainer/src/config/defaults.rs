//! The value of every setting that has one when it is not typed.
//!
//! Nowhere else: the checks, the JSON Schema and the resolved config all read them here. Those of
//! optimizer and schedule are transformers', except where its choice suits full fine-tuning only
//! (the learning rate) or hides mistakes (what is too long is an error).

use tooltune_agents::LoopLimits;
pub(crate) use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS};
use tooltune_suites::toolqa::Setting;

use super::choices::{
    ArgumentMask, CheckpointingMode, ComputeDtype, DataFormat, Distractors, Flatten,
    FlattenCollisions, GoatMethod, GradientCheckpointing, LrSchedulerType, OnEmpty,
    OnLostReasoning, OnOverflow, Optim, Packing, RecordedSet, ReportTo, Straddle,
};
use super::settings::Device;

pub(crate) const DEVICE: Device = Device::Cpu;
pub(crate) const COMPUTE_DTYPE: ComputeDtype = ComputeDtype::Auto;

pub(crate) const LORA_R: usize = 8;
pub(crate) const LORA_ALPHA: f64 = 16.0;
pub(crate) const LORA_DROPOUT: f64 = 0.0;
/// The word that means every linear layer except the head.
pub(crate) const ALL_LINEAR: &str = "all-linear";
pub(crate) const USE_RSLORA: bool = false;

pub(crate) const DATA_FORMAT: DataFormat = DataFormat::Auto;
pub(crate) const MAX_LENGTH: usize = 2048;
pub(crate) const ON_OVERFLOW: OnOverflow = OnOverflow::Error;
pub(crate) const PACKING: Packing = Packing::None;
pub(crate) const CHECK_CALLS: bool = true;
pub(crate) const FLATTEN: Flatten = Flatten::None;
pub(crate) const FLATTEN_SLOTS: usize = 1;
pub(crate) const FLATTEN_SEPARATOR: &str = "_";
pub(crate) const FLATTEN_COLLISIONS: FlattenCollisions = FlattenCollisions::Number;

pub(crate) const ARGUMENTS: ArgumentMask = ArgumentMask::None;
pub(crate) const STRADDLE: Straddle = Straddle::Mask;
pub(crate) const ON_EMPTY: OnEmpty = OnEmpty::Error;
pub(crate) const ON_LOST_REASONING: OnLostReasoning = OnLostReasoning::Error;

pub(crate) const GOAT_METHOD: GoatMethod = GoatMethod::Global;
pub(crate) const DISTRACTORS: Distractors = Distractors::Random;
pub(crate) const N_DOCUMENTS: usize = 5;
pub(crate) const OUTPUT_LIMIT: usize = 1200;
pub(crate) const KIND_WEIGHT: f64 = 1.0;

/// How far agents go.
pub(crate) fn loop_limits() -> LoopLimits {
    LoopLimits::default()
}

pub(crate) const RECORDED_SET: RecordedSet = RecordedSet::All;
pub(crate) const CONNECT_TIMEOUT_SECS: f64 = 5.0;
pub(crate) const CALL_TIMEOUT_SECS: f64 = 20.0;
pub(crate) const JUDGE_ATTEMPTS: usize = 3;
pub(crate) const JUDGE_CONCURRENCY: usize = 8;
pub(crate) const JUDGE_MAX_TOKENS: usize = 2048;
pub(crate) const JUDGE_RETRIES: usize = 4;
pub(crate) const JUDGE_TIMEOUT_SECS: f64 = 120.0;
pub(crate) const JUDGE_TOTAL_SECS: f64 = 600.0;
pub(crate) const JUDGE_IN_LOOP: bool = false;

pub(crate) const NUM_TRAIN_EPOCHS: f64 = 3.0;
pub(crate) const PER_DEVICE_TRAIN_BATCH_SIZE: usize = 8;
pub(crate) const GRADIENT_ACCUMULATION_STEPS: usize = 1;
pub(crate) const LEARNING_RATE: f64 = 2e-4;
pub(crate) const LR_SCHEDULER_TYPE: LrSchedulerType = LrSchedulerType::Linear;
pub(crate) const WARMUP_RATIO: f64 = 0.0;
pub(crate) const WEIGHT_DECAY: f64 = 0.0;
pub(crate) const ADAM_BETA1: f64 = 0.9;
pub(crate) const ADAM_BETA2: f64 = 0.999;
pub(crate) const ADAM_EPSILON: f64 = 1e-8;
pub(crate) const OPTIM: Optim = Optim::AdamwTorch;
pub(crate) const MAX_GRAD_NORM: f64 = 1.0;
pub(crate) const SEED: u64 = 42;
pub(crate) const GROUP_BY_LENGTH: bool = false;
pub(crate) const GRADIENT_CHECKPOINTING: GradientCheckpointing =
    GradientCheckpointing::Mode(CheckpointingMode::Auto);
pub(crate) const SELF_DISTILLATION_ALPHA: f64 = 0.0;
pub(crate) const SELF_DISTILLATION_TEMPERATURE: f64 = 1.0;
pub(crate) const MAX_NONFINITE: usize = 3;
pub(crate) const LOGGING_STEPS: u64 = 10;

pub(crate) const RETRIEVER_BATCH_SIZE: usize = 64;
pub(crate) const RETRIEVER_LEARNING_RATE: f64 = 2e-5;
/// sentence-transformers' `scale`: a temperature of 0.05.
pub(crate) const SCALE: f64 = 20.0;
pub(crate) const SYMMETRIC: bool = false;
pub(crate) const HARD_NEGATIVES: usize = 0;

pub(crate) const EVAL_STEPS: u64 = 100;
pub(crate) const MAX_NEW_TOKENS: usize = 512;
pub(crate) const EVAL_BATCH_SIZE: usize = 8;

pub(crate) const NESTFUL_FAMILY: &str = "json_list";
/// The paper's best column.
pub(crate) const NESTFUL_EXAMPLES: usize = 3;
/// The paper's.
pub(crate) const NESTFUL_STEPS: usize = 10;
pub(crate) const TOOLQA_SETTING: Setting = Setting::Answer;
/// The paper's, for answers, reasoning and code alike.
pub(crate) const TOOLQA_MAX_NEW_TOKENS: usize = 1_000;
pub(crate) const PYTHON: &str = "python3";

pub(crate) const SAVE_STEPS: u64 = 100;
pub(crate) const SAVE_TOTAL_LIMIT: usize = 3;

pub(crate) const REPORT_TO: &[ReportTo] = &[ReportTo::Tensorboard, ReportTo::Jsonl];
