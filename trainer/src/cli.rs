//! The command line: verbs and their options, nothing of what they do.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// LoRA fine-tuning that turns small open language models into reliable tool users.
#[derive(Debug, Parser)]
#[command(name = "tooltune", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Where to compute, in place of the config's `device`: cpu, cuda or cuda:INDEX.
    #[arg(long, global = true)]
    pub device: Option<String>,
    /// Threads on the CPU; all cores by default.
    #[arg(long, global = true)]
    pub threads: Option<usize>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a commented config to begin with.
    Init(InitArgs),
    /// Show which tokens are learned, before any training.
    Inspect(InspectArgs),
    /// Check everything and predict memory, steps and checkpoint size.
    Plan(PlanArgs),
    /// Train, or go on with a run that was interrupted.
    Train(TrainArgs),
    /// Generate and score a suite with the base model or a checkpoint.
    Eval(EvalArgs),
    /// Compute metrics over JSON Lines from any source.
    Score(ScoreArgs),
    /// Rank the checkpoints of a run by a metric and move its BEST pointer.
    Select(SelectArgs),
    /// Write the adapter or the retriever of a checkpoint for serving.
    Export(ExportArgs),
    /// Write logits or embeddings of fixed texts, for comparison with another implementation.
    Verify(VerifyArgs),
    /// Make and measure data.
    #[command(subcommand)]
    Data(DataCommand),
    /// Check this machine: device, disk, write access.
    Doctor(DoctorArgs),
    /// Print the JSON Schema of the config, for editors.
    Schema,
}

/// Starting points for a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PresetName {
    /// Text to JSON by schema.
    Slot,
    /// Prompts and completions, or chats.
    Sft,
    /// Calls of APIs, from trajectories.
    Goat,
    /// A retriever alone, from pairs.
    Retriever,
    /// Calls of APIs, and the retriever that finds them.
    Joint,
}

/// `tooltune init --preset slot > my.toml`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Starting point.
    #[arg(long, value_enum, default_value = "slot")]
    pub preset: PresetName,
    /// File to write; the terminal by default. An existing file is never overwritten.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// A config file and the settings that replace its own.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// TOML file, or YAML if its name ends in .yaml or .yml.
    pub config: PathBuf,
    /// Replace a setting, as in --set train.learning_rate=2e-4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `tooltune inspect configs/quickstart.toml -n 2`
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
    /// Rows to show.
    #[arg(short = 'n', long, default_value_t = 3)]
    pub rows: usize,
    /// Show this row alone: its line number, or file:line.
    #[arg(long)]
    pub row: Option<String>,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    pub format: OutputFormat,
}

/// `tooltune plan configs/quickstart.toml --probe`, or before anything is fetched
/// `tooltune plan configs/slot-llama3.2-1b.toml --offline`
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
    /// Also run one real step on the longest batch and show what it took.
    #[arg(long)]
    pub probe: bool,
    /// Look at the config and the config.json of the model's folder alone: no weights, tokenizer,
    /// data or GPU need be here, and every batch counts as the largest that there may be.
    #[arg(long, conflicts_with = "probe")]
    pub offline: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    pub format: OutputFormat,
}

/// `tooltune train configs/quickstart.toml --set train.max_steps=20`
#[derive(Debug, Args)]
pub struct TrainArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
    /// Where to begin: auto (the newest checkpoint, if any), never, or a checkpoint of the run.
    #[arg(long, default_value = "auto")]
    pub resume: String,
}

/// Benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuiteName {
    /// Text to JSON by schema.
    Slot,
    /// Queries to calls of APIs and an answer, with the retriever's documents.
    Goat,
    /// Queries to a ranking of documents, with the retriever.
    Retrieval,
    /// RestBench: queries to a path of endpoints, with the retriever's documents.
    Restbench,
    /// API-Bank: samples of level 3, or dialogues of levels 1 and 2, to calls and answers.
    Apibank,
}

/// `tooltune eval runs/quickstart --checkpoint best --output results`
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// A run directory, or a config file.
    pub target: PathBuf,
    /// Replace a setting, as in --set eval.batch_size=32; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// What to measure.
    #[arg(long, value_enum, default_value = "slot")]
    pub suite: SuiteName,
    /// base (no adapter), best, last, or an adapter directory.
    #[arg(long, default_value = "best")]
    pub checkpoint: String,
    /// Evaluate on these rows instead of the config's data.eval; may be repeated.
    #[arg(long)]
    pub data: Vec<PathBuf>,
    /// At most this many rows.
    #[arg(long)]
    pub max_samples: Option<usize>,
    /// Score this predictions.jsonl of a former evaluation instead of generating; no model is
    /// read. Not for the suite retrieval.
    #[arg(long)]
    pub predictions: Option<PathBuf>,
    /// Ask this OpenAI-compatible server instead of the model here, such as vLLM with the exported
    /// adapter: the URL before /chat/completions, as in http://localhost:8000/v1.
    #[arg(long, value_name = "URL", conflicts_with = "predictions")]
    pub endpoint: Option<String>,
    /// The server's name for the model.
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub endpoint_model: Option<String>,
    /// The environment variable that holds the server's key.
    #[arg(long, value_name = "VARIABLE", requires = "endpoint")]
    pub api_key_env: Option<String>,
    /// Requests to the server at once.
    #[arg(long, default_value_t = 8, requires = "endpoint")]
    pub concurrency: usize,
    /// Folder for predictions and metrics; it must not hold any yet. Texts are kept there as they
    /// come, so that the same command goes on after an interruption.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Print the change against this metrics file of an earlier evaluation.
    #[arg(long)]
    pub compare: Option<PathBuf>,
}

/// `tooltune score predictions.jsonl > scores.jsonl`
#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// JSON Lines file; standard input by default.
    pub file: Option<PathBuf>,
    /// List the operations and their fields.
    #[arg(long)]
    pub ops: bool,
    /// all-MiniLM-L6-v2 folder of the operations that embed text.
    #[arg(long, default_value = "models/all-minilm-l6-v2")]
    pub encoder: PathBuf,
}

/// `tooltune select runs/quickstart --metric slot.strict_keys_accuracy`
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// Run directory.
    pub run: PathBuf,
    /// Metric to rank by.
    #[arg(long)]
    pub metric: String,
    /// Rank the smallest value first.
    #[arg(long)]
    pub lower_is_better: bool,
}

/// Formats of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// adapter_config.json and adapter_model.safetensors, for PEFT and vLLM.
    Peft,
    /// The retriever, as a folder of sentence-transformers.
    SentenceTransformers,
}

/// `tooltune export runs/quickstart --to peft --output my-adapter`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Run directory.
    pub run: PathBuf,
    /// Format.
    #[arg(long, value_enum, default_value = "peft")]
    pub to: ExportFormat,
    /// Folder to make.
    #[arg(long)]
    pub output: PathBuf,
    /// best, last, or a checkpoint directory.
    #[arg(long, default_value = "best")]
    pub checkpoint: String,
    /// Fold the scaling into B, so that every server computes the same whatever it ignores.
    #[arg(long)]
    pub neutral: bool,
}

/// `tooltune verify runs/quickstart --logits logits.safetensors`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Run directory.
    pub run: PathBuf,
    /// best, last, or an adapter directory.
    #[arg(long, default_value = "best")]
    pub checkpoint: String,
    /// safetensors file to write: promptN.input_ids and promptN.logits for rows of data.eval.
    #[arg(long, required_unless_present = "embeddings")]
    pub logits: Option<PathBuf>,
    /// JSON Lines file to write: each text that the retriever is evaluated on, with its embedding.
    #[arg(long)]
    pub embeddings: Option<PathBuf>,
    /// Prompts, or queries and as many documents.
    #[arg(short = 'n', long, default_value_t = 4)]
    pub rows: usize,
}

/// Data commands.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Make rows by rule; no text from elsewhere.
    #[command(subcommand)]
    Synth(SynthCommand),
    /// Turn API documentation of other layouts into API documents.
    Import(ImportArgs),
    /// Find which APIs can feed which, and the tasks that follow: GOAT's pipeline as far as it
    /// asks no language model.
    Graph(GraphArgs),
    /// Turn trajectories into pairs that a retriever learns from.
    Pairs(PairsArgs),
    /// Lengths, token counts and the seven JSON measures of the SLOT paper.
    Stats(StatsArgs),
}

/// What can be made.
#[derive(Debug, Subcommand)]
pub enum SynthCommand {
    /// Texts with facts, a JSON schema, and the JSON that follows.
    Slot(SynthSlotArgs),
    /// Queries, the calls of invented APIs that answer them, and the answers.
    Goat(SynthGoatArgs),
}

/// Disjoint groups of schema families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitName {
    /// To learn from.
    Train,
    /// To select checkpoints by.
    Dev,
    /// To report.
    Test,
}

/// `tooltune data synth slot --rows 1000 --seed 1 --split train --output train.jsonl`
#[derive(Debug, Args)]
pub struct SynthSlotArgs {
    /// Rows to make.
    #[arg(long)]
    pub rows: usize,
    /// Equal seeds give equal bytes.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// Group of schema families.
    #[arg(long, value_enum, default_value = "train")]
    pub split: SplitName,
    /// JSON Lines file to write; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// Disjoint groups of queries and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GoatSplitName {
    /// To learn from.
    Train,
    /// To select checkpoints by.
    Dev,
    /// To report, on the tools of training.
    TestSeen,
    /// To report, each query with a tool that training never calls.
    TestUnseen,
}

/// `tooltune data synth goat --split train --output train.jsonl --documents documents.jsonl`
#[derive(Debug, Args)]
pub struct SynthGoatArgs {
    /// Trajectories to make; 3000, 100, 300 and 300 by default for the four splits.
    #[arg(long)]
    pub rows: Option<usize>,
    /// Equal seeds give equal bytes.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// Group of queries and calls.
    #[arg(long, value_enum, default_value = "train")]
    pub split: GoatSplitName,
    /// Most calls of a trajectory, from 1 to 4.
    #[arg(long, default_value_t = 3)]
    pub max_calls: usize,
    /// JSON Lines file to write; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// JSON Lines file for the documents of all APIs, too; they are the same for every split.
    #[arg(long)]
    pub documents: Option<PathBuf>,
}

/// Layouts of API documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// An OpenAPI 3 specification, JSON or YAML; request bodies become parameters.
    Openapi,
    /// API-Bank's documents of level 3.
    ApibankLevel3,
    /// API-Bank's documents of levels 1 and 2.
    ApibankLevel12,
    /// StableToolBench's documents or query files.
    Stabletoolbench,
}

/// `tooltune data import openapi petstore.json --output documents.jsonl`
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Layout.
    #[arg(value_enum)]
    pub format: ImportFormat,
    /// File to read; gzip is unpacked.
    pub file: PathBuf,
    /// JSON Lines file to write.
    #[arg(long)]
    pub output: PathBuf,
}

/// How parameters are described to the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ParameterTextName {
    /// Name and description.
    NameAndDescription,
    /// The description alone, where it says what it describes.
    Description,
}

/// How outputs are described to the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputTextName {
    /// What the document says is returned, else its description.
    Returned,
    /// The API's description, for specifications that describe responses as "An album".
    Description,
}

/// `tooltune data graph documents.jsonl --threshold 0.2 --output tasks.jsonl`
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// JSON Lines file of API documents.
    pub documents: PathBuf,
    /// JSON Lines file to write: {"apis": names in the order of their calls, "edges": [{"source",
    /// "target", "parameter"}]}; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// sentence-transformers folder of the encoder that compares outputs with parameters.
    #[arg(long, default_value = "models/all-minilm-l6-v2")]
    pub retriever: PathBuf,
    /// Least cosine of an edge; the paper takes 0.2, and 0.05 for RestBench.
    #[arg(long, default_value_t = 0.2)]
    pub threshold: f64,
    /// What stands for a parameter.
    #[arg(long, value_enum, default_value = "name-and-description")]
    pub parameter_text: ParameterTextName,
    /// What stands for an output.
    #[arg(long, value_enum, default_value = "returned")]
    pub output_text: OutputTextName,
    /// Fewest calls of a task.
    #[arg(long, default_value_t = 2)]
    pub min_calls: usize,
    /// Most calls of a task.
    #[arg(long, default_value_t = 4)]
    pub max_calls: usize,
    /// Most sub-graphs that are met before giving up.
    #[arg(long, default_value_t = 1_000_000)]
    pub limit: usize,
    /// Equal seeds break cycles at the same edges.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// JSON Lines file to write the edges to, for a filter of your own.
    #[arg(long)]
    pub edges: Option<PathBuf>,
    /// Read the edges from such a file instead of comparing texts.
    #[arg(long, conflicts_with_all = ["edges", "threshold"])]
    pub from_edges: Option<PathBuf>,
}

/// `tooltune data pairs train.jsonl --documents documents.jsonl --output pairs.jsonl`
#[derive(Debug, Args)]
pub struct PairsArgs {
    /// JSON Lines file of trajectories.
    pub file: PathBuf,
    /// JSON Lines file of API documents.
    #[arg(long)]
    pub documents: PathBuf,
    /// Pair documents with sub-queries instead of whole queries, for the methods that decompose.
    #[arg(long)]
    pub sub_queries: bool,
    /// JSON Lines file to write: {"query", "positive"}; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// `tooltune data stats train.jsonl --model models/smollm2-135m-instruct.gguf`
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// SLOT rows as JSON Lines.
    pub file: PathBuf,
    /// Model whose tokenizer counts; without it, no token counts.
    #[arg(long)]
    pub model: Option<PathBuf>,
}

/// `tooltune doctor configs/quickstart.toml`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also check the files and folders of this config.
    pub config: Option<PathBuf>,
}
