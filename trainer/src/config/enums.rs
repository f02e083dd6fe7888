//! What a setting can be beside a number or a text: words, and values of mixed kinds.
//!
//! Every closed choice of the config is an enum made by [`choices!`](choices), which says the word
//! in the file and on the command line once. Values of mixed kinds (a word or a number, a word or a
//! list) and what several keys say together follow below.

use std::fmt;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_agents::truncation::TruncationOptions;
use tooltune_rows::text;
use tooltune_suites::{Reduction, Shortening};

/// Defines an enum whose variants are words in the config file.
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
            /// The words of the config file, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word in the config file.
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
    /// Precision of what matrix products read; sums, adapters and the residual stream are f32.
    ComputeDtype {
        /// bf16 on CUDA and on CPUs that multiply it (AVX-512 BF16), else f32.
        Auto = "auto",
        /// 32-bit floats: exact to the reference.
        F32 = "f32",
        /// 16-bit floats with the range of f32; on any device.
        Bf16 = "bf16",
    }
}

choices! {
    /// The shape of the rows in the data files.
    DataFormat {
        /// As the first row of each file shows it.
        Auto = "auto",
        /// `{input_text, json_schema, gold}`: text to JSON by schema.
        Slot = "slot",
        /// `{prompt, completion}`.
        PromptCompletion = "prompt-completion",
        /// `{messages, tools?}`, rendered by the chat template.
        Messages = "messages",
        /// `{conversations, system?, tools?}` with `{from, value}` for messages.
        ShareGpt = "sharegpt",
        /// `{instruction, input?, output, history?, system?, tools?}`.
        Alpaca = "alpaca",
        /// `{query, tools, answers}`: a question and the calls that answer it.
        Xlam = "xlam",
        /// Trajectories `{query, calls, response}`, expanded by the `[goat]` table.
        Goat = "goat",
    }
}

impl DataFormat {
    /// The format of this word.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::value_variants()
            .iter()
            .copied()
            .find(|format| format.as_str() == word)
    }
}

choices! {
    /// What answers the calls of agents.
    ExecutorKind {
        /// The invented APIs of `tooltune data synth goat`.
        Synthetic = "synthetic",
        /// Recorded calls, found by name and arguments.
        Replay = "replay",
        /// One fixed response for each endpoint, whatever the arguments.
        Canned = "canned",
        /// A server, by its OpenAPI specification.
        Http = "http",
        /// The tools of an MCP server, which is started.
        Mcp = "mcp",
        /// StableToolBench's cache, a server of its form, or both.
        Stabletoolbench = "stabletoolbench",
    }
}

choices! {
    /// How rows share a sequence.
    Packing {
        /// One row per sequence, padded to the longest of the batch.
        None = "none",
        /// Several rows per sequence that do not see each other.
        BlockDiagonal = "block-diagonal",
    }
}

choices! {
    /// Which nested JSON Schemas of rows are shown flat.
    Flatten {
        /// None.
        None = "none",
        /// Those where it helps a model: with several nested levels, or five leaves.
        Advised = "advised",
        /// All that have a flat form.
        Always = "always",
    }
}

choices! {
    /// What becomes of parts of a schema whose flat names collide.
    FlattenCollisions {
        /// All but the first are numbered.
        Number = "number",
        /// The schema stays nested.
        Error = "error",
    }
}

choices! {
    /// A part of the rendered conversation that can be given its own weight.
    Span {
        /// A whole turn of the assistant, with its end.
        Assistant = "assistant",
        /// The text of a turn of the assistant.
        AssistantContent = "assistant.content",
        /// A turn of the assistant that belongs to the row's completion.
        Completion = "completion",
        /// The name of a called tool.
        ToolCallName = "tool_call.name",
        /// A key in the arguments of a call, at any depth.
        ToolCallArgumentsKey = "tool_call.arguments.key",
        /// A value in the arguments of a call, at any depth.
        ToolCallArgumentsValue = "tool_call.arguments.value",
        /// Such a value that the user gave.
        ToolCallArgumentsValueFixed = "tool_call.arguments.value.fixed",
        /// Such a value that came from an earlier call.
        ToolCallArgumentsValueDerived = "tool_call.arguments.value.derived",
    }
}

choices! {
    /// How the learning rate goes after warm-up.
    LrSchedulerType {
        /// Stays at the peak from the first step; there is no warm-up.
        Constant = "constant",
        /// Falls to zero in a straight line.
        Linear = "linear",
        /// Falls to zero along half a cosine.
        Cosine = "cosine",
        /// Stays at the peak.
        ConstantWithWarmup = "constant_with_warmup",
    }
}

choices! {
    /// The optimizer.
    Optim {
        /// AdamW with decoupled weight decay.
        AdamwTorch = "adamw_torch",
        /// Read as `adamw_torch`: the state of an adapter is too small to need paging.
        PagedAdamw32bit = "paged_adamw_32bit",
    }
}

choices! {
    /// How many blocks keep their activations for the backward pass, in a word.
    CheckpointingMode {
        /// As many as the memory allows.
        Auto = "auto",
        /// None: every block is computed again.
        Full = "full",
        /// All: no block is computed again.
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
    /// How a response is shortened in prompts.
    ResponseReduction {
        /// As the benchmark does: a list item stays if it brings a new key.
        Official = "official",
        /// The first item of a list, and those that bring a new path of keys.
        Paths = "paths",
        /// Long lists are sliced, deep objects summarised, and long texts cut, each with a note.
        Truncate = "truncate",
    }
}

impl ResponseReduction {
    /// What the word means; `options` are those of [`ResponseReduction::Truncate`].
    pub fn shortening(self, options: TruncationOptions) -> Shortening {
        match self {
            Self::Official => Shortening::Reduce(Reduction::Official),
            Self::Paths => Shortening::Reduce(Reduction::Paths),
            Self::Truncate => Shortening::Truncate(options),
        }
    }
}

choices! {
    /// Where metrics go besides the terminal.
    ReportTo {
        /// Event files under `tb/` in the run directory.
        Tensorboard = "tensorboard",
        /// `metrics.jsonl` in the run directory, which is written in any case.
        Jsonl = "jsonl",
    }
}

/// How many blocks keep their activations for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GradientCheckpointing {
    /// In a word.
    Mode(CheckpointingMode),
    /// This many blocks keep theirs; the others are computed again.
    KeepBlocks(usize),
}

/// What a retriever learns from: the word `trajectories`, or files of pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RetrieverData {
    /// Files of pairs.
    Pairs(Vec<std::path::PathBuf>),
    /// `trajectories`.
    Word(PairSource),
}

choices! {
    /// Rows that hold pairs without being some.
    PairSource {
        /// Queries and the documents of the APIs that their calls name.
        Trajectories = "trajectories",
    }
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is no device"))
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

/// Where the principal singular values come from: `lora.init_weights`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrincipalInit {
    /// `pissa`: the singular values themselves.
    Exact,
    /// `pissa_niter_N`: a random sketch after so many iterations.
    Sketched(usize),
}

impl PrincipalInit {
    /// Reads PEFT's words for `init_lora_weights`; `None` for any other.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("pissa_niter_") {
            Some(n) => {
                let n = n.parse().ok()?;
                (n <= MOST_ITERATIONS).then_some(Self::Sketched(n))
            }
            None => (text == "pissa").then_some(Self::Exact),
        }
    }
}

/// Iterations of a sketch beyond this find nothing new.
const MOST_ITERATIONS: usize = 1000;

/// How long a run lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    /// Passes over the rows, above 0.
    Epochs(f64),
    /// Optimizer steps, at least 1.
    Steps(u64),
}

impl RunLength {
    /// What `num_train_epochs` and `max_steps` say, of which a checked config has one.
    pub(super) fn new(num_train_epochs: Option<f64>, max_steps: Option<u64>) -> Self {
        match max_steps {
            Some(steps) => Self::Steps(steps),
            None => Self::Epochs(num_train_epochs.unwrap_or(0.0)),
        }
    }
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

impl DataFormat {
    /// The format of rows; `None` for trajectories, which are expanded to rows, and where it is not
    /// known because the files of the config are not here.
    pub fn of_rows(self) -> Option<text::DataFormat> {
        match self {
            Self::Slot => Some(text::DataFormat::Slot),
            Self::PromptCompletion => Some(text::DataFormat::PromptCompletion),
            Self::Messages => Some(text::DataFormat::Messages),
            Self::ShareGpt => Some(text::DataFormat::ShareGpt),
            Self::Alpaca => Some(text::DataFormat::Alpaca),
            Self::Xlam => Some(text::DataFormat::Xlam),
            Self::Goat | Self::Auto => None,
        }
    }
}
