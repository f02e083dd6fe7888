//! The options of `data`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS};

use super::{DataGoatCommand, DataSlotArgs, MathQaArgs, OnMachine, examples};
use crate::config::{FlattenCollisions, ResponseReduction};

/// Commands for data.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Generate synthetic rows by rule, without a language model.
    #[command(subcommand)]
    Synth(SynthCommand),
    /// Generate SLOT rows with a language model: texts with their JSON, or the JSON for given texts.
    /// Follows the SLOT paper's pipeline and its two validations.
    #[command(after_help = examples::DATA_SLOT)]
    Slot(Box<OnMachine<DataSlotArgs>>),
    /// Generate trajectories from API documents with a language model, and execute their calls.
    /// Follows the GOAT paper's pipeline.
    #[command(after_help = examples::DATA_GOAT)]
    Goat(DataGoatCommand),
    /// Convert API documentation to API documents, and public data sets to rows.
    #[command(after_help = examples::IMPORT)]
    Import(ImportArgs),
    /// Find APIs whose outputs can be inputs of other APIs, and list tasks: the part of GOAT's
    /// pipeline that needs no language model.
    #[command(after_help = examples::GRAPH)]
    Graph(OnMachine<GraphArgs>),
    /// Convert trajectories to training pairs for a retriever.
    #[command(after_help = examples::PAIRS)]
    Pairs(PairsArgs),
    /// Convert rows to another file format, by the extension of the output: JSON Lines, a JSON array,
    /// Parquet or Arrow.
    #[command(after_help = examples::CONVERT)]
    Convert(ConvertArgs),
    /// Show the size of the cache of prepared rows, or empty it.
    #[command(after_help = examples::CACHE)]
    Cache(CacheArgs),
    /// Measure lengths, token counts and the SLOT paper's seven JSON measures.
    #[command(after_help = examples::STATS)]
    Stats(StatsArgs),
    /// Flatten nested schemas and answers of SLOT rows, if this helps a model.
    #[command(after_help = examples::FLATTEN)]
    Flatten(FlattenArgs),
    /// Convert flat predictions back to nested ones, to score them against the nested rows.
    #[command(after_help = examples::UNFLATTEN)]
    Unflatten(UnflattenArgs),
    /// Shorten tool outputs for prompts.
    #[command(after_help = examples::REDUCE)]
    Reduce(ReduceArgs),
}

/// `tooltune data convert rows.jsonl --output rows.parquet`
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Input files of any supported format, compressed or not, concatenated in this order.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Output file: .jsonl or .json, optionally followed by .gz or .zst; .parquet or .arrow. Must not
    /// exist.
    #[arg(long)]
    pub output: PathBuf,
}

/// `tooltune data cache --purge`
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Remove the contents of the cache.
    #[arg(long)]
    pub purge: bool,
}

/// `tooltune data flatten nested.jsonl --output flat.jsonl`
#[derive(Debug, Args)]
pub struct FlattenArgs {
    /// JSON Lines file of SLOT rows.
    pub file: PathBuf,
    /// Output file (JSON Lines); standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub form: FlatFormArgs,
}

/// How schemas are flattened; `unflatten` needs the same options.
#[derive(Debug, Args)]
pub struct FlatFormArgs {
    /// Minimum number of slots that replace a list of objects. Each slot is a numbered copy of the
    /// item's fields. A row with a longer list gets more slots. With 0, lists stay nested.
    #[arg(long, default_value_t = 1)]
    pub slots: usize,
    /// Separator that joins the names on the path to a leaf.
    #[arg(long, default_value = "_")]
    pub separator: String,
    /// Which schemas to flatten.
    #[arg(long, value_enum, default_value = "advised")]
    pub when: FlattenWhenName,
    /// What to do if two flat names are equal.
    #[arg(long, value_enum, default_value = "number")]
    pub collisions: FlattenCollisions,
}

/// Which schemas to flatten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlattenWhenName {
    /// Schemas that are easier for a model when flat: several nested levels, or five leaves.
    Advised,
    /// All schemas that can be flattened.
    Always,
}

/// `tooltune data unflatten predictions.jsonl --rows nested.jsonl --output nested-predictions.jsonl`
#[derive(Debug, Args)]
pub struct UnflattenArgs {
    /// The predictions.jsonl of an evaluation on flat rows.
    pub predictions: PathBuf,
    /// The nested SLOT rows that the flat rows were made from.
    #[arg(long)]
    pub rows: PathBuf,
    /// Output file (JSON Lines); standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub form: FlatFormArgs,
}

/// `tooltune data reduce outputs.jsonl --output short.jsonl`
#[derive(Debug, Args)]
pub struct ReduceArgs {
    /// JSON Lines file of tool outputs; each line is any JSON value.
    pub file: PathBuf,
    /// Output file (JSON Lines); standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Rule for shortening.
    #[arg(long, value_enum, default_value = "truncate")]
    pub rule: ResponseReduction,
    /// JMESPath expression, applied first.
    #[arg(long, visible_alias = "filter")]
    pub jmespath: Option<String>,
    /// For the rule truncate: maximum number of list items.
    #[arg(long, default_value_t = MAX_ITEMS)]
    pub max_items: usize,
    /// For the rule truncate: maximum number of nested levels.
    #[arg(long, default_value_t = MAX_DEPTH)]
    pub max_depth: usize,
    /// For the rule truncate: maximum number of characters in a string.
    #[arg(long, default_value_t = MAX_CHARS)]
    pub max_chars: usize,
}

/// Kinds of synthetic rows.
#[derive(Debug, Subcommand)]
pub enum SynthCommand {
    /// SLOT rows: texts with facts, a JSON Schema, and the JSON of the facts.
    #[command(after_help = examples::SYNTH_SLOT)]
    Slot(SynthSlotArgs),
    /// GOAT trajectories: queries, calls to synthetic APIs, and answers.
    #[command(after_help = examples::SYNTH_GOAT)]
    Goat(SynthGoatArgs),
    /// Questions about given tool responses, with answers computed by programs.
    #[command(after_help = examples::SYNTH_TOOLQA)]
    Toolqa(SynthToolqaArgs),
}

/// `tooltune data synth toolqa --responses recorded.jsonl --rows 500 --output questions.jsonl
/// --output-responses responses.jsonl`
#[derive(Debug, Args)]
pub struct SynthToolqaArgs {
    /// Files of tool responses: rows with `response`, `endpoint`, `response_id` and `split`, of which
    /// only `response` is required, or any other JSON values.
    #[arg(long, required = true, num_args = 1..)]
    pub responses: Vec<PathBuf>,
    /// TOML file of templates; by default templates are drawn from the structure of the responses.
    #[arg(long)]
    pub templates: Option<PathBuf>,
    /// Number of rows to draw. Fewer are written if questions are ambiguous or repeated.
    #[arg(long, visible_alias = "n", default_value_t = 500)]
    pub rows: usize,
    /// Random seed; equal seeds give equal bytes.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// Sizes in tokens, such as 10000,20000: each response is grown with records of other responses
    /// of its endpoint, or cut, to one of them. The rows use the sizes in turn.
    #[arg(long, value_delimiter = ',')]
    pub target_tokens: Vec<usize>,
    /// Eighths of the list, such as 1,8, to which the record with the answer is moved, in turn. Only
    /// questions with one such record are drawn.
    #[arg(long, value_delimiter = ',')]
    pub answer_position: Vec<usize>,
    /// Model whose tokenizer counts tokens; without it, four characters are one token.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Output file of questions (JSON Lines).
    #[arg(long)]
    pub output: PathBuf,
    /// Output file of the responses that they are about (JSON Lines).
    #[arg(long)]
    pub output_responses: PathBuf,
}

/// Splits with disjoint schema families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitName {
    /// For training
    Train,
    /// For selecting checkpoints
    Dev,
    /// For reported results
    Test,
}

/// `tooltune data synth slot --rows 1000 --seed 1 --split train --output train.jsonl`
#[derive(Debug, Args)]
pub struct SynthSlotArgs {
    /// Number of rows.
    #[arg(long)]
    pub rows: usize,
    /// Random seed; equal seeds give equal bytes.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// Split, with its own schema families.
    #[arg(long, value_enum, default_value = "train")]
    pub split: SplitName,
    /// Output file (JSON Lines); standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// Splits with disjoint queries and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GoatSplitName {
    /// For training
    Train,
    /// For selecting checkpoints
    Dev,
    /// For reported results, on the tools of the training split
    TestSeen,
    /// For reported results; each query needs a tool that the training split never calls
    TestUnseen,
}

/// `tooltune data synth goat --split train --output train.jsonl --documents documents.jsonl`
#[derive(Debug, Args)]
pub struct SynthGoatArgs {
    /// Number of trajectories; by default 3000, 100, 300 and 300 for the four splits.
    #[arg(long)]
    pub rows: Option<usize>,
    /// Random seed; equal seeds give equal bytes.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// Split, with its own queries and calls.
    #[arg(long, value_enum, default_value = "train")]
    pub split: GoatSplitName,
    /// Maximum number of calls in a trajectory, from 1 to 4.
    #[arg(long, default_value_t = 3)]
    pub max_calls: usize,
    /// Output file (JSON Lines); standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Also write the documents of all APIs, which are the same for every split, to this JSON Lines
    /// file.
    #[arg(long)]
    pub documents: Option<PathBuf>,
    /// Also write the dependencies between APIs to this JSON Lines file: an edge from each output
    /// to each required parameter with the same kind of value.
    #[arg(long)]
    pub edges: Option<PathBuf>,
}

/// Formats of API documentation, and public data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// An OpenAPI 3 specification, JSON or YAML; fields of request bodies become parameters
    Openapi,
    /// API-Bank's documents of all levels, or its tool_catalog.json; the four names that occur in
    /// both sets become lv1_lv2/NAME and lv3/NAME
    Apibank,
    /// API-Bank's documents of level 3, or its folder lv3_apis
    ApibankLevel3,
    /// API-Bank's documents of levels 1 and 2, or its folder apis
    ApibankLevel12,
    /// API-Bank's folder of dialogues, lv1-lv2-samples, as rows for the suite apibank
    ApibankDialogues,
    /// Recorded calls for the executor "replay", from API-Bank's reference answers: level-3.json, and
    /// the output of apibank-dialogues
    ApibankCalls,
    /// StableToolBench's documents or query files
    Stabletoolbench,
    /// The tools of an MCP server: the JSON of its tools/list, or --command
    Mcp,
    /// WebNLG's XML files
    Webnlg,
    /// A CSV file of the E2E challenge, raw or cleaned
    E2e,
    /// WikiBio: the .box file, then the file of texts
    Wikibio,
    /// ToTTo's JSON Lines
    Totto,
    /// MathQA's train.json, dev.json or test.json as rows for the suite nestful
    Mathqa,
    /// The published questions about tool outputs and their responses, as two files for the suite
    Toolqa,
    /// GitHub issues by their form: the form's YAML, then the issues' JSON
    GithubIssues,
    /// Traces of agents, as rows of messages with tools
    Traces,
}

/// The layout of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceSourceName {
    /// OTLP/JSON with GenAI attributes of OpenTelemetry, OpenInference or OpenLLMetry
    Otlp,
    /// Logged requests and responses of OpenAI's or Anthropic's API
    Requests,
    /// Session files of Claude Code
    ClaudeCode,
    /// Rollout files of the Codex CLI
    Codex,
    /// Message lists of LangChain and LangGraph
    Langchain,
}

/// Options of `data import traces`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options for traces")]
pub struct TraceArgs {
    /// Layout of all files; by default, the fields of each entry decide.
    #[arg(long, value_enum)]
    pub source: Option<TraceSourceName>,
    /// TOML file with more redaction rules. Each `rule` has a name, a pattern or key, and a
    /// replacement.
    #[arg(long, value_name = "FILE")]
    pub redact: Option<PathBuf>,
    /// Switch off a redaction rule, such as phone; may be repeated.
    #[arg(long, value_name = "RULE")]
    pub keep: Vec<String>,
    /// Switch on a redaction rule that is off by default: ipv4 or ipv6; may be repeated.
    #[arg(long, value_name = "RULE")]
    pub also: Vec<String>,
    /// JSON pointer to the outcome in an entry or span, such as /metadata/score. An outcome in
    /// (0, 1] becomes the weight of the answers; 0 drops the trace.
    #[arg(long, value_name = "POINTER")]
    pub outcome: Option<String>,
    /// Drop traces with a smaller outcome or none.
    #[arg(long, value_name = "NUMBER")]
    pub min_outcome: Option<f64>,
    /// JSON file with the tools of traces without tool definitions; by default, they are derived
    /// from the calls.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
}

/// Which rows of an E2E file to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum E2eRowsName {
    /// All rows
    Every,
    /// One row per meaning representation
    OnePerMeaning,
    /// Rows whose text mentions every value
    Mentioned,
}

impl TraceArgs {
    /// The first option that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        let options = [
            ("--source", self.source.is_some()),
            ("--redact", self.redact.is_some()),
            ("--keep", !self.keep.is_empty()),
            ("--also", !self.also.is_empty()),
            ("--outcome", self.outcome.is_some()),
            ("--min-outcome", self.min_outcome.is_some()),
            ("--tools", self.tools.is_some()),
        ];
        let given = options.into_iter().find(|(_, is_given)| *is_given);
        given.map(|(option, _)| option)
    }
}

/// `tooltune data import openapi petstore.json --output documents.jsonl`
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Format of the input.
    #[arg(value_enum)]
    pub format: ImportFormat,
    /// Input files, or the folder of the format; gzip files are decompressed. Most formats have one
    /// file.
    #[arg(required_unless_present = "command")]
    pub files: Vec<PathBuf>,
    /// For mcp: command that starts the server, such as
    /// "npx -y @modelcontextprotocol/server-everything".
    #[arg(long, conflicts_with = "files")]
    pub command: Option<String>,
    /// For --command: environment variable to pass to the server, such as its API key; may be
    /// repeated.
    #[arg(long, requires = "command", value_name = "VARIABLE")]
    pub environment: Vec<String>,
    /// For e2e: the rows to use.
    #[arg(long, value_enum, default_value = "every")]
    pub e2e_rows: E2eRowsName,
    /// For openapi: do not turn fields of request bodies into parameters. RestBench's published
    /// counts need this.
    #[arg(long)]
    pub no_bodies: bool,
    /// For openapi: names of the APIs. The executor "http" accepts both kinds.
    #[arg(long, value_enum, default_value = "operation-ids")]
    pub names: OperationNamesName,
    /// For openapi: also write the example responses to this JSON Lines file, for the executor
    /// "canned". For toolqa: write the responses to this file; required.
    #[arg(long, value_name = "FILE")]
    pub responses: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub mathqa: MathQaArgs,
    /// Output file (JSON Lines).
    #[arg(long)]
    pub output: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub traces: TraceArgs,
}

/// Names of the APIs of an OpenAPI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OperationNamesName {
    /// The operationId, such as createOrder; METHOD /path if it is missing or not unique
    OperationIds,
    /// METHOD /path, as in RestBench
    Paths,
}

/// The text of a parameter that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ParameterTextName {
    /// Name and description
    NameAndDescription,
    /// Description only, for documents whose descriptions need no name
    Description,
}

/// The text of an output that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputTextName {
    /// The description of the returned value, or the API's description if there is none
    Returned,
    /// The API's description, for specifications that describe responses only as "An album" or the
    /// like
    Description,
}

/// `tooltune data graph documents.jsonl --threshold 0.2 --output tasks.jsonl`
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// JSON Lines file of API documents.
    pub documents: PathBuf,
    /// Output file (JSON Lines) of {"apis": names in call order, "edges": [{"source", "target",
    /// "parameter", "field", "score"}]}; standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// sentence-transformers folder of the encoder that compares outputs with parameters.
    #[arg(long, default_value = "models/all-minilm-l6-v2")]
    pub retriever: PathBuf,
    /// Minimum cosine similarity of an edge; the paper uses 0.2, and 0.05 for RestBench.
    #[arg(long, default_value_t = 0.2)]
    pub threshold: f64,
    /// Text that describes a parameter.
    #[arg(long, value_enum, default_value = "name-and-description")]
    pub parameter_text: ParameterTextName,
    /// Text that describes an output.
    #[arg(long, value_enum, default_value = "returned")]
    pub output_text: OutputTextName,
    /// Minimum number of calls in a task.
    #[arg(long, default_value_t = 2)]
    pub min_calls: usize,
    /// Maximum number of calls in a task.
    #[arg(long, default_value_t = 4)]
    pub max_calls: usize,
    /// Maximum number of subgraphs to visit.
    #[arg(long, default_value_t = 1_000_000)]
    pub limit: usize,
    /// Random seed; equal seeds break cycles at the same edges.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
    /// Also write the edges to this JSON Lines file, for example to filter them.
    #[arg(long)]
    pub edges: Option<PathBuf>,
    /// Also write every subgraph to this JSON Lines file, including those without a call order:
    /// {"apis": names in ascending order}.
    #[arg(long)]
    pub subgraphs: Option<PathBuf>,
    /// Read the edges from a file of --edges instead of comparing texts.
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
    /// Pair documents with sub-queries instead of whole queries, for methods that decompose queries.
    #[arg(long)]
    pub sub_queries: bool,
    /// Output file (JSON Lines) of {"query", "positive"}; standard output by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// `tooltune data stats train.jsonl --model models/smollm2-135m-instruct.gguf`
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// File of SLOT rows, trajectories, questions about tool outputs, tool outputs,
    /// messages, or prompts with completions. The first row determines the kind of rows.
    pub file: PathBuf,
    /// For trajectories: API documents, to count domains.
    #[arg(long)]
    pub documents: Option<PathBuf>,
    /// For questions about tool outputs: the responses.
    #[arg(long)]
    pub responses: Option<PathBuf>,
    /// Model whose tokenizer counts tokens; without it, tokens are not counted.
    #[arg(long)]
    pub model: Option<PathBuf>,
}
