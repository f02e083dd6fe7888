//! The options of `data`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS};

use super::{DataGoatCommand, DataSlotArgs, OnMachine, examples};
use crate::config::{FlattenCollisions, ResponseReduction};

/// Data commands.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Make rows by rule; no text from elsewhere.
    #[command(subcommand)]
    Synth(SynthCommand),
    /// Let a language model write texts with their JSON, or the JSON of given texts: SLOT's data
    /// pipeline, with its two validations.
    #[command(after_help = examples::DATA_SLOT)]
    Slot(Box<OnMachine<DataSlotArgs>>),
    /// Let a language model make trajectories of API documents: GOAT's data pipeline, whose calls are
    /// executed.
    #[command(after_help = examples::DATA_GOAT)]
    Goat(DataGoatCommand),
    /// Turn API documentation of other layouts into API documents, and public data sets into SLOT
    /// rows.
    #[command(after_help = examples::IMPORT)]
    Import(ImportArgs),
    /// Find which APIs can feed which, and the tasks that follow: GOAT's pipeline as far as it
    /// asks no language model.
    #[command(after_help = examples::GRAPH)]
    Graph(OnMachine<GraphArgs>),
    /// Turn trajectories into pairs that a retriever learns from.
    #[command(after_help = examples::PAIRS)]
    Pairs(PairsArgs),
    /// Write rows in another form of file: JSON Lines, a JSON array, Parquet or Arrow, by the name of the
    /// output.
    #[command(after_help = examples::CONVERT)]
    Convert(ConvertArgs),
    /// Say what the cache of prepared rows holds, or empty it.
    #[command(after_help = examples::CACHE)]
    Cache(CacheArgs),
    /// Lengths, token counts and the seven JSON measures of the SLOT paper.
    #[command(after_help = examples::STATS)]
    Stats(StatsArgs),
    /// Make nested schemas and answers of SLOT rows flat where that helps a model.
    #[command(after_help = examples::FLATTEN)]
    Flatten(FlattenArgs),
    /// Bring flat predictions back to the nested form, to be scored against the nested rows.
    #[command(after_help = examples::UNFLATTEN)]
    Unflatten(UnflattenArgs),
    /// Shorten outputs of tools for prompts.
    #[command(after_help = examples::REDUCE)]
    Reduce(ReduceArgs),
}

/// `tooltune data convert rows.jsonl --output rows.parquet`
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Files of rows in any form, compressed or not; their rows are written one file after the other.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The file to write, which must not exist: .jsonl or .json, with .gz or .zst behind it if you
    /// like, .parquet or .arrow.
    #[arg(long)]
    pub output: PathBuf,
}

/// `tooltune data cache --purge`
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Remove all that it holds.
    #[arg(long)]
    pub purge: bool,
}

/// `tooltune data flatten nested.jsonl --output flat.jsonl`
#[derive(Debug, Args)]
pub struct FlattenArgs {
    /// SLOT rows as JSON Lines.
    pub file: PathBuf,
    /// JSON Lines file to write; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub form: FlatFormArgs,
}

/// How nested schemas become flat; the way back needs the same options.
#[derive(Debug, Args)]
pub struct FlatFormArgs {
    /// Numbered copies of the items of a list of objects, as many at least; a longer list of a row
    /// gets as many as it needs, and 0 leaves lists as they are.
    #[arg(long, default_value_t = 1)]
    pub slots: usize,
    /// What joins the names on the way to a leaf.
    #[arg(long, default_value = "_")]
    pub separator: String,
    /// Which schemas are flattened.
    #[arg(long, value_enum, default_value = "advised")]
    pub when: FlattenWhenName,
    /// What becomes of names that collide.
    #[arg(long, value_enum, default_value = "number")]
    pub collisions: FlattenCollisions,
}

/// Which schemas are flattened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlattenWhenName {
    /// Those where it helps a model: with several nested levels, or five leaves.
    Advised,
    /// All that have a flat form.
    Always,
}

/// `tooltune data unflatten predictions.jsonl --rows nested.jsonl --output nested-predictions.jsonl`
#[derive(Debug, Args)]
pub struct UnflattenArgs {
    /// The predictions.jsonl of an evaluation on flat rows.
    pub predictions: PathBuf,
    /// The nested SLOT rows that the flat ones were made of.
    #[arg(long)]
    pub rows: PathBuf,
    /// JSON Lines file to write; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub form: FlatFormArgs,
}

/// `tooltune data reduce outputs.jsonl --output short.jsonl`
#[derive(Debug, Args)]
pub struct ReduceArgs {
    /// JSON Lines file of outputs, any JSON each.
    pub file: PathBuf,
    /// JSON Lines file to write; the terminal by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// How they are shortened.
    #[arg(long, value_enum, default_value = "truncate")]
    pub rule: ResponseReduction,
    /// JMESPath expression that picks parts first.
    #[arg(long, visible_alias = "filter")]
    pub jmespath: Option<String>,
    /// Items of a list that stay, by the rule truncate.
    #[arg(long, default_value_t = MAX_ITEMS)]
    pub max_items: usize,
    /// Levels that stay, by the rule truncate.
    #[arg(long, default_value_t = MAX_DEPTH)]
    pub max_depth: usize,
    /// Characters that stay, by the rule truncate.
    #[arg(long, default_value_t = MAX_CHARS)]
    pub max_chars: usize,
}

/// What can be made.
#[derive(Debug, Subcommand)]
pub enum SynthCommand {
    /// Texts with facts, a JSON schema, and the JSON that follows.
    #[command(after_help = examples::SYNTH_SLOT)]
    Slot(SynthSlotArgs),
    /// Queries, the calls of invented APIs that answer them, and the answers.
    #[command(after_help = examples::SYNTH_GOAT)]
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
    /// JSON Lines file for the dependencies between the APIs, too: each output and required parameter
    /// that hold the same kind of value.
    #[arg(long)]
    pub edges: Option<PathBuf>,
}

/// Layouts of API documentation, and public data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// An OpenAPI 3 specification, JSON or YAML; fields of request bodies become parameters.
    Openapi,
    /// API-Bank's documents of all levels, or its tool_catalog.json; the four names that stand in
    /// both of its sets are called lv1_lv2/NAME and lv3/NAME.
    Apibank,
    /// API-Bank's documents of level 3, or its folder lv3_apis.
    ApibankLevel3,
    /// API-Bank's documents of levels 1 and 2, or its folder apis.
    ApibankLevel12,
    /// API-Bank's folder of dialogues, lv1-lv2-samples, as rows for the suite apibank.
    ApibankDialogues,
    /// Recorded calls for the executor "replay", from API-Bank's right answers: level-3.json, and
    /// what apibank-dialogues has written.
    ApibankCalls,
    /// StableToolBench's documents or query files.
    Stabletoolbench,
    /// The tools of an MCP server: the JSON of its tools/list, or --command.
    Mcp,
    /// WebNLG's XML files.
    Webnlg,
    /// A CSV file of the E2E challenge, raw or cleaned.
    E2e,
    /// WikiBio: the .box file, then the file of texts.
    Wikibio,
    /// ToTTo's JSON Lines.
    Totto,
    /// GitHub issues by their form: the form's YAML, then the issues' JSON.
    GithubIssues,
}

/// Which rows of an E2E file are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum E2eRowsName {
    /// All.
    Every,
    /// One for each meaning.
    OnePerMeaning,
    /// Those whose text mentions every value.
    Mentioned,
}

/// `tooltune data import openapi petstore.json --output documents.jsonl`
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Layout.
    #[arg(value_enum)]
    pub format: ImportFormat,
    /// Files to read, or the layout's folder; gzip is unpacked. Most layouts take one.
    #[arg(required_unless_present = "command")]
    pub files: Vec<PathBuf>,
    /// For mcp: the command that starts the server, which is asked for its tools, such as
    /// "npx -y @modelcontextprotocol/server-everything".
    #[arg(long, conflicts_with = "files")]
    pub command: Option<String>,
    /// For --command: an environment variable that the server has from here, such as that of its
    /// key; may be given more than once.
    #[arg(long, requires = "command", value_name = "VARIABLE")]
    pub environment: Vec<String>,
    /// Rows of E2E.
    #[arg(long, value_enum, default_value = "every")]
    pub e2e_rows: E2eRowsName,
    /// Leave the fields of request bodies out of an OpenAPI specification's parameters, as the
    /// published counts of RestBench do.
    #[arg(long)]
    pub no_bodies: bool,
    /// For openapi: JSON Lines file for the examples of the responses, too, which the executor
    /// "canned" answers with.
    #[arg(long, value_name = "FILE")]
    pub responses: Option<PathBuf>,
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
    /// "target", "parameter", "field", "score"}]}; the terminal by default.
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
    /// JSON Lines file to write every sub-graph to, those without an order of calls too: {"apis":
    /// names in ascending order}.
    #[arg(long)]
    pub subgraphs: Option<PathBuf>,
    /// Read the edges from such a file as --edges writes instead of comparing texts.
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
    /// Rows as JSON Lines: of SLOT, trajectories, questions about outputs of tools or these outputs,
    /// messages, or prompts with completions. The first row tells which.
    pub file: PathBuf,
    /// API documents, for the domains of trajectories.
    #[arg(long)]
    pub documents: Option<PathBuf>,
    /// The responses that questions are about.
    #[arg(long)]
    pub responses: Option<PathBuf>,
    /// Model whose tokenizer counts; without it, no token counts.
    #[arg(long)]
    pub model: Option<PathBuf>,
}
