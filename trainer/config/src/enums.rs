//! Types of settings other than numbers and strings: choices, and values of mixed types.
//!
//! [`choices!`](choices) defines the enum of each choice, with the words for files and the command
//! line. Types of mixed values (a word or a number, a word or a list) and of values from several
//! keys follow below.

use std::fmt;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_agents::truncation::TruncationOptions;
use tooltune_rows::text;
use tooltune_suites::{Reduction, Shortening};

/// Defines an enum whose variants are words in a config file.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] #[value(name = $word)] $variant),*
        }

        impl $name {
            /// Words for config files, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word for config files.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.as_str())
            }
        }
    };
}

choices! {
    /// Dtype of matrix-multiplication inputs; sums, adapters and the residual stream are f32.
    ComputeDtype {
        /// bf16 if the hardware multiplies it natively (GPUs with compute capability 8.0 or newer,
        /// CPUs with AVX-512 BF16), otherwise f32.
        Auto = "auto",
        /// 32-bit floats, as in the reference.
        F32 = "f32",
        /// 16-bit floats with the range of f32; on any device.
        Bf16 = "bf16",
    }
}

choices! {
    /// How the frozen linear layers are stored.
    Quantization {
        /// In `model.compute_dtype`.
        None = "none",
        /// In 4-bit NormalFloat with double quantisation, as bitsandbytes stores them (QLoRA).
        Nf4 = "nf4",
    }
}

choices! {
    /// Where the frozen linear layers are.
    FrozenWeights {
        /// In the memory of the device.
        Resident = "resident",
        /// In pinned host memory, from which a CUDA GPU copies each block ahead of its use.
        Host = "host",
        /// Divided among the CUDA GPUs of a node, which gather each block ahead of its use.
        Node = "node",
    }
}

choices! {
    /// Format of the rows in the data files.
    DataFormat {
        /// Detected from the first row of each file.
        Auto = "auto",
        /// `{input_text, json_schema, gold}`: text to JSON with a schema.
        Slot = "slot",
        /// `{prompt, completion}`.
        PromptCompletion = "prompt-completion",
        /// `{messages, tools?}`, rendered by the chat template.
        Messages = "messages",
        /// `{conversations, system?, tools?}` with messages `{from, value}`.
        ShareGpt = "sharegpt",
        /// `{instruction, input?, output, history?, system?, tools?}`.
        Alpaca = "alpaca",
        /// `{query, tools, answers}`: a question and the calls that answer it.
        Xlam = "xlam",
        /// Any of these formats except slot, detected for each row by its fields.
        Chat = "chat",
        /// Trajectories `{query, calls, response}`, expanded by the `[goat]` table.
        Goat = "goat",
    }
}

impl DataFormat {
    /// Finds the format with this word.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::value_variants()
            .iter()
            .copied()
            .find(|format| format.as_str() == word)
    }
}

choices! {
    /// Executor of agents' calls.
    ExecutorKind {
        /// The synthetic APIs of `tooltune data synth goat`.
        Synthetic = "synthetic",
        /// Recorded calls, matched by name and arguments.
        Replay = "replay",
        /// One fixed response per endpoint, for any arguments.
        Canned = "canned",
        /// A server with an OpenAPI specification.
        Http = "http",
        /// Tools of an MCP server, which is started.
        Mcp = "mcp",
        /// StableToolBench's cache, a compatible server, or both.
        Stabletoolbench = "stabletoolbench",
    }
}

choices! {
    /// How rows share a sequence.
    Packing {
        /// One row per sequence, padded to the longest of the batch.
        None = "none",
        /// Several rows per sequence, without attention between them.
        BlockDiagonal = "block-diagonal",
    }
}

choices! {
    /// Which nested JSON Schemas of rows are flattened.
    Flatten {
        /// None.
        None = "none",
        /// Schemas for which flattening helps models: several nested levels, or at least five
        /// leaves.
        Advised = "advised",
        /// All schemas that can be flattened.
        Always = "always",
    }
}

choices! {
    /// How flat names that collide are handled.
    FlattenCollisions {
        /// All but the first are numbered.
        Number = "number",
        /// The schema is not flattened.
        Error = "error",
    }
}

choices! {
    /// A part of the rendered conversation that can have its own weight.
    Span {
        /// A complete assistant turn, including its end.
        Assistant = "assistant",
        /// The text of an assistant turn.
        AssistantContent = "assistant.content",
        /// An assistant turn in the row's completion.
        Completion = "completion",
        /// The name of a called tool.
        ToolCallName = "tool_call.name",
        /// A key in the arguments of a call, at any depth.
        ToolCallArgumentsKey = "tool_call.arguments.key",
        /// A value in the arguments of a call, at any depth.
        ToolCallArgumentsValue = "tool_call.arguments.value",
        /// An argument value given by the user.
        ToolCallArgumentsValueFixed = "tool_call.arguments.value.fixed",
        /// An argument value from the result of an earlier call.
        ToolCallArgumentsValueDerived = "tool_call.arguments.value.derived",
    }
}

choices! {
    /// Learning-rate schedule after warm-up.
    LrSchedulerType {
        /// Constant from the first step, without warm-up.
        Constant = "constant",
        /// Linear decay to zero.
        Linear = "linear",
        /// Decay to zero along half a cosine.
        Cosine = "cosine",
        /// Constant after warm-up.
        ConstantWithWarmup = "constant_with_warmup",
    }
}

choices! {
    /// The optimizer.
    Optim {
        /// AdamW with decoupled weight decay.
        AdamwTorch = "adamw_torch",
        /// Same as `adamw_torch`: the state of an adapter does not need paging.
        PagedAdamw32bit = "paged_adamw_32bit",
    }
}

choices! {
    /// Which blocks keep their activations for the backward pass, as a word.
    CheckpointingMode {
        /// The largest number that fits into memory.
        Auto = "auto",
        /// None: every block is recomputed.
        Full = "full",
        /// None, and a CUDA GPU keeps the inputs of the blocks in host memory.
        Offload = "offload",
        /// All: no block is recomputed.
        None = "none",
    }
}

choices! {
    /// When the run evaluates.
    EvalStrategy {
        /// Never.
        No = "no",
        /// Before the first step and every `eval.eval_steps`.
        Steps = "steps",
    }
}

choices! {
    /// How responses are shortened in prompts.
    ResponseReduction {
        /// As in the benchmark: a list item is kept if it has a new key.
        Official = "official",
        /// The first item of a list, and items with a new key path.
        Paths = "paths",
        /// Long lists are sliced, deep objects summarised and long strings truncated, with a note.
        Truncate = "truncate",
    }
}

impl ResponseReduction {
    /// Shortening with this reduction; `options` apply to [`ResponseReduction::Truncate`].
    pub fn shortening(self, options: TruncationOptions) -> Shortening {
        match self {
            Self::Official => Shortening::Reduce(Reduction::Official),
            Self::Paths => Shortening::Reduce(Reduction::Paths),
            Self::Truncate => Shortening::Truncate(options),
        }
    }
}

choices! {
    /// Where metrics are written in addition to the terminal.
    ReportTo {
        /// Event files under `tb/` in the run directory.
        Tensorboard = "tensorboard",
        /// `metrics.jsonl` in the run directory, which is always written.
        Jsonl = "jsonl",
    }
}

/// Which blocks keep their activations for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GradientCheckpointing {
    /// Written as a word.
    Mode(CheckpointingMode),
    /// This number of blocks; the others are recomputed.
    KeepBlocks(usize),
}

/// Training data of a retriever: the word `trajectories`, or files of pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RetrieverData {
    /// Files of pairs.
    Pairs(Vec<std::path::PathBuf>),
    /// `trajectories`.
    Word(PairSource),
}

choices! {
    /// Rows from which pairs are extracted.
    PairSource {
        /// Trajectories: queries with the documents of the APIs that they call.
        Trajectories = "trajectories",
    }
}

/// Device for computations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The CUDA device with this index.
    Cuda(usize),
}

impl Device {
    /// Parses `cpu`, `cuda` (the first device) or `cuda:INDEX`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:")?.parse().ok().map(Self::Cuda),
        }
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a device"))
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
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

/// Method for principal singular values: `lora.init_weights`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrincipalInit {
    /// `pissa`: exact singular values.
    Exact,
    /// `pissa_niter_N`: a random sketch with N iterations.
    Sketched(usize),
}

impl PrincipalInit {
    /// Parses PEFT's words for `init_lora_weights`; `None` for other words.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("pissa_niter_") {
            Some(n) => {
                let n = n.parse().ok()?;
                (n <= MAX_ITERATIONS).then_some(Self::Sketched(n))
            }
            None => (text == "pissa").then_some(Self::Exact),
        }
    }
}

/// Largest number of iterations; more do not improve a sketch.
const MAX_ITERATIONS: usize = 1000;

/// Length of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    /// Passes over the rows, above 0.
    Epochs(f64),
    /// Optimizer steps, at least 1.
    Steps(u64),
}

impl RunLength {
    /// Combines `num_train_epochs` and `max_steps`. A checked config has exactly one of them.
    pub(super) fn new(num_train_epochs: Option<f64>, max_steps: Option<u64>) -> Self {
        match max_steps {
            Some(steps) => Self::Steps(steps),
            None => Self::Epochs(num_train_epochs.unwrap_or(0.0)),
        }
    }
}

/// Length of warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    /// Share of all steps, 0 to 1.
    Ratio(f64),
    /// Optimizer steps.
    Steps(u64),
}

impl Warmup {
    /// Warm-up steps of a run with `total_steps`, rounded up as in transformers.
    pub fn steps(self, total_steps: u64) -> u64 {
        match self {
            Self::Ratio(ratio) => (total_steps as f64 * ratio).ceil() as u64,
            Self::Steps(steps) => steps,
        }
    }
}

/// Sampling of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Temperature; 0 selects the most likely token.
    pub temperature: f64,
    /// Number of most likely tokens to sample from, at least 1; `None` means all.
    pub top_k: Option<usize>,
    /// Probability mass of the most likely tokens to sample from, above 0 and at most 1.
    pub top_p: f64,
}

impl DataFormat {
    /// Format of rows. `None` for trajectories, which are expanded to rows, and if the format is
    /// unknown because the files of the config are missing.
    pub fn row_format(self) -> Option<text::DataFormat> {
        match self {
            Self::Slot => Some(text::DataFormat::Slot),
            Self::PromptCompletion => Some(text::DataFormat::PromptCompletion),
            Self::Messages => Some(text::DataFormat::Messages),
            Self::ShareGpt => Some(text::DataFormat::ShareGpt),
            Self::Alpaca => Some(text::DataFormat::Alpaca),
            Self::Xlam => Some(text::DataFormat::Xlam),
            Self::Chat => Some(text::DataFormat::Chat),
            Self::Goat | Self::Auto => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_rounds_up_as_transformers_does() {
        assert_eq!(Warmup::Ratio(0.05).steps(40), 2);
        assert_eq!(Warmup::Ratio(0.03).steps(40), 2);
        assert_eq!(Warmup::Ratio(0.0).steps(40), 0);
        assert_eq!(Warmup::Steps(5).steps(40), 5);
    }
}
