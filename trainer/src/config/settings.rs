//! What a config means: every value present, in range and consistent with the others.
//!
//! Made only by `check.rs`; whoever holds a [`Config`] need not check it again. Values that follow
//! from others (scaling, steps) are computed where they are used and have no field here.

use std::fmt;
use std::path::PathBuf;

use tooltune_agents::LoopLimits;
use tooltune_agents::truncation::ShapeOptions;
use tooltune_rows::text::TemplateDate;

use super::agent_suites::AgentSuiteConfig;
use super::choices::{
    ArgumentMask, ComputeDtype, DataFormat, Distractors, EvalStrategy, Flatten, FlattenCollisions,
    GoatMethod, GradientCheckpointing, LrSchedulerType, ModulePattern, OnEmpty, OnLostReasoning,
    OnOverflow, Optim, Packing, ReportTo, RetrieverData, Span, Straddle, Suite, TrainOn,
};
use super::patterns::Patterns;
pub use super::services::{ExecutorConfig, HttpExecutorConfig, JudgeConfig};
use super::template_kwargs::TemplateKwargs;
pub use super::tool_suites::{NestfulConfig, SandboxConfig, ToolQaConfig};

/// A checked config.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where to compute.
    pub device: Device,
    /// The base model; `None` in a run that trains a retriever alone.
    pub model: Option<ModelConfig>,
    /// The adapters.
    pub lora: LoraConfig,
    /// The rows.
    pub data: DataConfig,
    /// The learned tokens.
    pub mask: MaskConfig,
    /// How trajectories become rows; present where the rows are trajectories.
    pub goat: Option<GoatConfig>,
    /// The retriever that ranks API documents.
    pub retriever: Option<RetrieverConfig>,
    /// The optimizer steps.
    pub train: TrainConfig,
    /// The evaluations.
    pub eval: EvalConfig,
    /// The saves.
    pub checkpoint: CheckpointConfig,
    /// The metric files.
    pub log: LogConfig,
}

/// A config without a model, where one is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this needs a language model, and the config has none: add [model] with model_name_or_path"
)]
pub struct NoLanguageModel;

impl Config {
    /// The base model.
    ///
    /// # Errors
    ///
    /// The run trains a retriever alone.
    pub fn language_model(&self) -> Result<&ModelConfig, NoLanguageModel> {
        self.model.as_ref().ok_or(NoLanguageModel)
    }

    /// How the retriever learns, if it does.
    pub fn retriever_training(&self) -> Option<&RetrieverTraining> {
        self.retriever.as_ref()?.training.as_ref()
    }
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// The CUDA device with this index.
    Cuda(usize),
}

impl Device {
    /// Reads `cpu`, `cuda` (the first device) or `cuda:INDEX`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:")?.parse().ok().map(Self::Cuda),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(index) => write!(formatter, "cuda:{index}"),
        }
    }
}

/// The base model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// A folder of Hugging Face files, or a GGUF file.
    pub model_name_or_path: PathBuf,
    /// The type of the numbers that products read.
    pub compute_dtype: ComputeDtype,
}

/// The adapters.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank, at least 1.
    pub r: usize,
    /// Numerator of the scaling, above 0.
    pub lora_alpha: f64,
    /// Share of zeroed inputs, in 0..1.
    pub lora_dropout: f64,
    /// The adapted linear layers.
    pub target_modules: TargetModules,
    /// Those left out again.
    pub exclude_modules: Option<ModulePattern>,
    /// Whether the denominator of the scaling is the root of the rank.
    pub use_rslora: bool,
    /// Ranks by module pattern, each at least 1.
    pub rank_pattern: Patterns<usize>,
    /// Alphas by module pattern, each above 0.
    pub alpha_pattern: Patterns<f64>,
}

/// The adapted linear layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetModules {
    /// All but the head.
    AllLinear,
    /// Those whose path is one of the names or ends with one after a dot; never empty.
    Names(Vec<String>),
    /// Those whose whole path matches the regular expression.
    Pattern(String),
}

/// The rows.
#[derive(Debug, Clone, PartialEq)]
pub struct DataConfig {
    /// Files to learn from; never empty.
    pub train: Vec<PathBuf>,
    /// Files to evaluate on.
    pub eval: Vec<PathBuf>,
    /// The shape of the rows.
    pub format: DataFormat,
    /// Longest row, in tokens; at least 2.
    pub max_length: usize,
    /// What happens to longer rows.
    pub on_overflow: OnOverflow,
    /// How rows share a sequence.
    pub packing: Packing,
    /// A template in place of the model's own.
    pub chat_template: Option<PathBuf>,
    /// Variables that templates read besides messages and tools, by name.
    pub chat_template_kwargs: TemplateKwargs,
    /// The day that templates read; the system's clock where it is not set.
    pub template_date: Option<TemplateDate>,
    /// Whether calls must fit the tools of their row.
    pub check_calls: bool,
    /// How nested schemas are shown.
    pub flatten: FlattenConfig,
}

/// How nested schemas are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlattenConfig {
    /// Which are shown flat.
    pub which: Flatten,
    /// Numbered copies of the items of lists of objects, at least; 0 leaves lists as they are.
    pub slots: usize,
    /// What joins the names on the way to a leaf.
    pub separator: String,
    /// What becomes of names that collide.
    pub collisions: FlattenCollisions,
}

/// The learned tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskConfig {
    /// The learned part of a row.
    pub train_on: TrainOn,
    /// Weights of spans inside it; no span twice.
    pub weights: Vec<SpanWeight>,
    /// The values in the arguments of calls that are left out of the loss.
    pub arguments: ArgumentMask,
    /// What a token on the border of a span counts as.
    pub straddle: Straddle,
    /// What happens to a row without a learned token.
    pub on_empty: OnEmpty,
    /// What happens to a row with a learned turn whose reasoning the template leaves out.
    pub on_lost_reasoning: OnLostReasoning,
}

/// The weight of one kind of span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanWeight {
    /// The kind of span.
    pub span: Span,
    /// Its factor in the loss, at least 0.
    pub weight: f64,
}

/// How trajectories become rows.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatConfig {
    /// The file of API documents.
    pub documents: PathBuf,
    /// How the model is prompted.
    pub method: GoatMethod,
    /// Which documents stand beside the gold ones.
    pub distractors: Distractors,
    /// Documents in a prompt, at least 1.
    pub n_documents: usize,
    /// Characters of a call's result in a prompt, at least 40.
    pub output_limit: usize,
    /// How a result is shortened before that; not at all if absent.
    pub truncate: Option<ShapeOptions>,
    /// How much each kind of example counts.
    pub weights: KindWeights,
    /// How far agents go, each at least 1.
    pub limits: LoopLimits,
    /// What answers the calls of agents.
    pub executor: ExecutorConfig,
    /// The model that says which queries are solved; `None` leaves it to the facts.
    pub judge: Option<JudgeConfig>,
}

/// How much each kind of example of a trajectory counts, each at least 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindWeights {
    /// Plans.
    pub plan: f64,
    /// Calls.
    pub call: f64,
    /// Thoughts with calls, and the answers of such loops.
    pub step: f64,
    /// Sub-queries.
    pub decompose: f64,
    /// Answers.
    pub answer: f64,
}

/// The retriever that ranks API documents.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrieverConfig {
    /// A sentence-transformers folder.
    pub model_name_or_path: PathBuf,
    /// How it learns; `None` uses it as it is.
    pub training: Option<RetrieverTraining>,
    /// Files of pairs whose queries are evaluated; those of the trajectories if there are none.
    pub eval: Vec<PathBuf>,
    /// Further documents that evaluation searches among.
    pub documents: Option<PathBuf>,
    /// Tokens at which texts are cut, at least 2; as the folder says by default.
    pub max_seq_length: Option<usize>,
    /// What is put before queries; as the folder says by default.
    pub query_prompt: Option<String>,
    /// What is put before documents; as the folder says by default.
    pub document_prompt: Option<String>,
}

/// How the retriever learns.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrieverTraining {
    /// Where pairs come from.
    pub data: RetrieverData,
    /// How long it learns.
    pub length: RunLength,
    /// Its steps for each step of the language model, above 0.
    pub steps_per_lm_step: Option<f64>,
    /// Pairs in a step, at least 1.
    pub per_device_train_batch_size: usize,
    /// Texts under autodiff at a time, at least 1.
    pub mini_batch_size: Option<usize>,
    /// Peak learning rate, above 0 and at most 1.
    pub learning_rate: f64,
    /// How the learning rate goes after warm-up.
    pub lr_scheduler_type: LrSchedulerType,
    /// Share of the steps in which it rises, in 0..=1.
    pub warmup_ratio: f64,
    /// AdamW's decay of matrices, at least 0.
    pub weight_decay: f64,
    /// The largest global gradient norm; `None` does not clip.
    pub max_grad_norm: Option<f64>,
    /// One over the temperature, above 0; by default as the folder's similarity needs it.
    pub scale: Option<f64>,
    /// Whether documents choose among queries, too.
    pub symmetric: bool,
    /// Mined negatives of each pair.
    pub hard_negatives: usize,
    /// What products read.
    pub compute_dtype: ComputeDtype,
    /// Factors that learn; `None` for all parameters.
    pub lora: Option<RetrieverLora>,
}

impl RetrieverTraining {
    /// Optimizer steps beside `lm_steps` of the language model, at least one; `None` where the
    /// training has a length of its own.
    pub fn steps_beside(&self, lm_steps: u64) -> Option<u64> {
        let rate = self.steps_per_lm_step?;
        Some(((rate * lm_steps as f64).round() as u64).max(1))
    }
}

/// Low-rank factors of the retriever.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrieverLora {
    /// Rank, at least 1.
    pub r: usize,
    /// Numerator of the scaling, above 0.
    pub lora_alpha: f64,
    /// Names of linear layers, at least one.
    pub target_modules: Vec<String>,
}

/// The optimizer steps.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainConfig {
    /// The run directory.
    pub output_dir: PathBuf,
    /// How long the run goes on.
    pub length: RunLength,
    /// Sequences in a micro-batch, at least 1.
    pub per_device_train_batch_size: usize,
    /// Micro-batches in a step, at least 1.
    pub gradient_accumulation_steps: usize,
    /// Peak learning rate, above 0 and at most 1.
    pub learning_rate: f64,
    /// How the learning rate goes after warm-up.
    pub lr_scheduler_type: LrSchedulerType,
    /// How long the learning rate rises.
    pub warmup: Warmup,
    /// AdamW's decoupled weight decay, at least 0.
    pub weight_decay: f64,
    /// AdamW's first beta, in 0..1.
    pub adam_beta1: f64,
    /// AdamW's second beta, in 0..1.
    pub adam_beta2: f64,
    /// AdamW's epsilon, above 0.
    pub adam_epsilon: f64,
    /// The optimizer.
    pub optim: Optim,
    /// The largest global gradient norm; `None` does not clip.
    pub max_grad_norm: Option<f64>,
    /// Seed of adapters, dropout and order.
    pub seed: u64,
    /// Whether rows of similar length share batches.
    pub group_by_length: bool,
    /// How many blocks keep their activations.
    pub gradient_checkpointing: GradientCheckpointing,
    /// Share of self-distillation in the loss, in 0..=1.
    pub self_distillation_alpha: f64,
    /// Its temperature, above 0.
    pub self_distillation_temperature: f64,
    /// Non-finite steps in a row that stop the run, at least 1.
    pub max_nonfinite: usize,
    /// Steps between two metric lines, at least 1.
    pub logging_steps: u64,
}

/// How long a run goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    /// Passes over the rows, above 0.
    Epochs(f64),
    /// Optimizer steps, at least 1.
    Steps(u64),
}

/// How long the learning rate rises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    /// Share of all steps, in 0..=1.
    Ratio(f64),
    /// Optimizer steps.
    Steps(u64),
}

impl Warmup {
    /// Warm-up steps of a run of `total_steps`, rounded up as transformers does.
    pub fn steps(self, total_steps: u64) -> u64 {
        match self {
            Self::Ratio(ratio) => (total_steps as f64 * ratio).ceil() as u64,
            Self::Steps(steps) => steps,
        }
    }
}

/// The evaluations.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalConfig {
    /// When the run evaluates.
    pub eval_strategy: EvalStrategy,
    /// Steps between two evaluations, at least 1.
    pub eval_steps: u64,
    /// Benchmarks to run besides the loss.
    pub suites: Vec<Suite>,
    /// At most this many rows; `None` is all.
    pub max_samples: Option<usize>,
    /// Seconds of an answer or of the loop of a query, above 0; `None` is no limit.
    pub max_time: Option<f64>,
    /// Longest generated answer, in tokens; at least 1.
    pub max_new_tokens: usize,
    /// Rows generated at the same time, at least 1.
    pub batch_size: usize,
    /// Room of all their keys and values in tokens, at least 1; `None` is what the rows need.
    pub kv_cache_tokens: Option<usize>,
    /// Whether answers keep to the rows' schemas.
    pub constrained: bool,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Texts that end an answer, none of them empty.
    pub stop_strings: Vec<String>,
    /// `loss` or `suite.metric`, the suite being one of `suites`, or a weighted sum of such; see
    /// [`MetricExpression`](super::MetricExpression).
    pub metric_for_best_model: String,
    /// Whether more of it is better.
    pub greater_is_better: bool,
    /// Evaluations without a better one that end the run, at least 1; `None` is never.
    pub early_stopping_patience: Option<u64>,
    /// By how much an evaluation must be better, at least 0.
    pub early_stopping_threshold: f64,
    /// Folder of the encoder for content similarity.
    pub encoder: Option<PathBuf>,
    /// The suite nestful.
    pub nestful: Option<NestfulConfig>,
    /// The suite toolqa.
    pub toolqa: Option<ToolQaConfig>,
    /// The suite restbench.
    pub restbench: Option<AgentSuiteConfig>,
    /// The suite apibank.
    pub apibank: Option<AgentSuiteConfig>,
    /// What runs functions for nestful and toolqa.
    pub sandbox: SandboxConfig,
}

/// How a token is chosen among the likely ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f64,
    /// Among this many of the most likely, at least 1; `None` is all.
    pub top_k: Option<usize>,
    /// Among the fewest whose probabilities sum to this share, above 0 and at most 1.
    pub top_p: f64,
}

/// The saves.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointConfig {
    /// Steps between two checkpoints, at least 1.
    pub save_steps: u64,
    /// Checkpoints that are kept, at least 1; of 1 both the best and the newest stay.
    pub save_total_limit: usize,
}

/// The metric files.
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// The places besides the terminal; no place twice.
    pub report_to: Vec<ReportTo>,
}
