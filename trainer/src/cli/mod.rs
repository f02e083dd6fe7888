//! The command line: verbs and their options, nothing of what they do.

mod data;
mod examples;
mod export;
mod goat;
mod machine;
mod pipelines;
mod sandbox;
mod structure;
mod together;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub use data::*;
pub use export::*;
pub use goat::*;
pub use machine::*;
pub use pipelines::*;
pub use sandbox::*;
pub use structure::*;

use crate::config::Suite;

/// LoRA fine-tuning that turns small open language models into reliable tool users.
#[derive(Debug, Parser)]
#[command(name = "tooltune", version, max_term_width = 100, after_help = examples::TOOLTUNE)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process; a mistake ends it with the status 2.
    pub fn of_process() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// A command line, its program first.
    ///
    /// # Errors
    ///
    /// What clap refuses, and an option without the one that it belongs to.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(words)?;
        together::check(&mut command, &matches)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a commented config to begin with.
    #[command(after_help = examples::INIT)]
    Init(InitArgs),
    /// Show which tokens are supervised, before any training.
    #[command(after_help = examples::INSPECT)]
    Inspect(OnMachine<InspectArgs>),
    /// Check everything and predict memory, steps and checkpoint size.
    #[command(after_help = examples::PLAN)]
    Plan(OnMachine<PlanArgs>),
    /// Train, or resume a run that was interrupted.
    #[command(after_help = examples::TRAIN)]
    Train(OnMachine<TrainArgs>),
    /// Generate and score a suite with the base model or a checkpoint.
    #[command(after_help = examples::EVAL)]
    Eval(Box<OnMachine<EvalArgs>>),
    /// Show what the base model or a checkpoint writes after rows, or after a question of yours.
    #[command(after_help = examples::GENERATE)]
    Generate(OnMachine<GenerateArgs>),
    /// Turn texts into JSON that satisfies their schemas, row after row.
    #[command(after_help = examples::STRUCTURE)]
    Structure(Box<OnMachine<StructureArgs>>),
    /// Talk to the base model or a checkpoint on the terminal, with tools if you like.
    #[command(after_help = examples::CHAT)]
    Chat(OnMachine<ChatArgs>),
    /// Compute metrics over JSON Lines from any source.
    #[command(after_help = examples::SCORE)]
    Score(OnMachine<ScoreArgs>),
    /// Rank the checkpoints of a run by a metric and move its BEST pointer.
    #[command(after_help = examples::SELECT)]
    Select(OnMachine<SelectArgs>),
    /// Compare evaluations sample by sample, or runs by their settings and what they came to.
    #[command(after_help = examples::COMPARE)]
    Compare(CompareArgs),
    /// Write one HTML page with curves, results, supervised tokens and the worst samples of runs.
    #[command(after_help = examples::REPORT)]
    Report(OnMachine<ReportArgs>),
    /// Write the adapter or the retriever of a checkpoint for serving.
    #[command(after_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Fetch models and rows of the Hugging Face hub, for machines without a network.
    #[command(after_help = examples::FETCH)]
    Fetch(FetchArgs),
    /// Compare an export with its checkpoint, or write logits or embeddings for another comparison.
    #[command(after_help = examples::VERIFY)]
    Verify(OnMachine<VerifyArgs>),
    /// Make and measure data.
    #[command(subcommand)]
    Data(DataCommand),
    /// Check this machine: device, disk, write access.
    #[command(after_help = examples::DOCTOR)]
    Doctor(OnMachine<DoctorArgs>),
    /// Print the JSON Schema of the config, for editors.
    #[command(after_help = examples::SCHEMA)]
    Schema,
    /// Print what a shell completes the words of a command with.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Write the manual pages, one for each verb.
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

impl Command {
    /// Where the verb computes, if it does.
    pub fn machine(&self) -> Option<&MachineArgs> {
        match self {
            Self::Inspect(on) => Some(&on.machine),
            Self::Plan(on) => Some(&on.machine),
            Self::Train(on) => Some(&on.machine),
            Self::Eval(on) => Some(&on.machine),
            Self::Generate(on) => Some(&on.machine),
            Self::Structure(on) => Some(&on.machine),
            Self::Chat(on) => Some(&on.machine),
            Self::Score(on) => Some(&on.machine),
            Self::Select(on) => Some(&on.machine),
            Self::Report(on) => Some(&on.machine),
            Self::Verify(on) => Some(&on.machine),
            Self::Doctor(on) => Some(&on.machine),
            Self::Data(DataCommand::Graph(on)) => Some(&on.machine),
            Self::Data(DataCommand::Slot(on)) => Some(&on.machine),
            Self::Data(DataCommand::Goat(DataGoatCommand::Make(on))) => Some(&on.machine),
            Self::Init(_)
            | Self::Compare(_)
            | Self::Export(_)
            | Self::Fetch(_)
            | Self::Data(_)
            | Self::Schema
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }
}

/// Which shell is to complete.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Where manual pages go.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for tooltune.1, tooltune-train.1 and so on; it is made if need be, and the pages of an
    /// earlier version are replaced.
    pub folder: PathBuf,
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
    /// Translate this config of Axolotl, LLaMA-Factory, ms-swift or TRL in place of a preset: YAML,
    /// JSON, or a file with the arguments of a command line. What became what, and what could not be
    /// carried over, is said.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub from: Option<PathBuf>,
    /// File to write, in YAML if its name ends in .yaml or .yml; the terminal by default. An existing
    /// file is never overwritten.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// A config file and the settings that replace its own.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// TOML file, YAML if its name ends in .yaml or .yml, or the folder of a run, whose config is taken.
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
    /// Rows to show: 3 by default, and with --row all that it names.
    #[arg(short = 'n', long)]
    pub rows: Option<usize>,
    /// Show this row alone: its line number, or file:line; of a trajectory all its examples, or one by
    /// its id, as it is printed.
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
    /// Where to begin: auto (the newest checkpoint, if any), never, best, or a checkpoint of the run by
    /// its step, such as 20, its name or its path.
    #[arg(long, default_value = "auto")]
    pub resume: String,
    /// Write where the time of some steps goes, from the second one on: ten, or so many as are named. A
    /// table by operation and a trace for ui.perfetto.dev lie in the folder `profile` of the run.
    #[arg(
        long,
        value_name = "STEPS",
        num_args = 0..=1,
        require_equals = true,
        hide_default_value = true,
        default_value_t = 0,
        default_missing_value = "10"
    )]
    pub profile: u64,
}

/// A model with its settings.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// A run directory, a config file, a checkpoint, an exported adapter, or a model alone.
    #[arg(id = "target", value_name = "TARGET")]
    pub path: PathBuf,
    /// Replace a setting, as in --set eval.batch_size=32; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// base (no adapter), best, last, a step such as 20, or an adapter directory; best of a run, and
    /// the target itself where it is a checkpoint or an adapter.
    #[arg(long)]
    pub checkpoint: Option<String>,
}

/// A model with its settings, and the rows that it is given.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Take these rows instead of the config's data.eval; may be repeated.
    #[arg(long)]
    pub data: Vec<PathBuf>,
    /// At most this many rows.
    #[arg(long)]
    pub max_samples: Option<usize>,
}

/// `tooltune eval runs/quickstart --checkpoint best --output results`
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub target: TargetArgs,
    /// What to measure; by default the suite for rows of the format of data.eval, and the loss alone
    /// where there is none.
    #[arg(long, value_enum)]
    pub suite: Option<Suite>,
    /// Measure the loss of the rows alone: nothing is generated.
    #[arg(long, conflicts_with_all = ["suite", "predictions", "endpoint", "compare"])]
    pub loss_only: bool,
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
    /// A JSON object of further fields of every request, for what a server adds to the protocol, such
    /// as '{"repeat_penalty": 1.0}'.
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "endpoint")]
    pub extra_body: Option<serde_json::Map<String, serde_json::Value>>,
    /// Folder for predictions and metrics; it must not hold any yet. Texts are kept there as they
    /// come, so that the same command resumes after an interruption.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Print the change against this metrics.json of an earlier evaluation; for the suite slot. For
    /// others, and for intervals, see `tooltune compare`.
    #[arg(long)]
    pub compare: Option<PathBuf>,
}

/// `tooltune generate runs/sft --max-samples 5`, or
/// `tooltune generate runs/sft --message "Weather in Oslo?" --tools tools.json`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub target: TargetArgs,
    /// Which turns of the assistant are asked for, of rows of messages: calls (those with calls of
    /// tools, and the last one where no turn has any), last, all, or a number, counted from 1; calls by
    /// default.
    #[arg(long, value_name = "TURN", conflicts_with_all = ["text", "message", "prompt"])]
    pub turn: Option<TurnChoice>,
    /// Ask this in place of rows, with the prompt of training: a text that becomes JSON by --schema. A
    /// hyphen reads it from standard input.
    #[arg(long, value_name = "TEXT", requires = "schema",
          conflicts_with_all = ["data", "max_samples", "message", "prompt"])]
    pub text: Option<String>,
    /// JSON file with the JSON Schema of the answer to --text.
    #[arg(long, value_name = "FILE", requires = "text")]
    pub schema: Option<PathBuf>,
    /// Ask this in place of rows: one message of the user, rendered by the chat template. A hyphen
    /// reads it from standard input.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["data", "max_samples", "prompt"])]
    pub message: Option<String>,
    /// The system message before it; by default that of data.system.
    #[arg(long, value_name = "TEXT", requires = "message")]
    pub system: Option<String>,
    /// JSON file with the list of tools that the model may call, as in the field tools of a row.
    #[arg(long, value_name = "FILE", requires = "message")]
    pub tools: Option<PathBuf>,
    /// Continue this text in place of rows: no chat template, and no token that is not in it.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["data", "max_samples"])]
    pub prompt: Option<String>,
    /// JSON Lines file to write beside what is printed: an object for each text, with its prompt,
    /// reference and finish_reason. An existing file is never overwritten.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `tooltune chat runs/sft --tools tools.json`
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// The system message before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// JSON file with the list of tools that the model may call, as in the field tools of a row. Calls
    /// are shown as calls, and you type their results.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Let the executor of [goat.executor] answer calls.
    #[arg(long, requires = "tools")]
    pub execute: bool,
}

/// Which turns of the assistant are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnChoice {
    /// Those with calls of tools; the last one where no turn has any.
    Calls,
    /// The last one.
    Last,
    /// Every one.
    All,
    /// This one, counted from 1.
    Number(usize),
}

impl FromStr for TurnChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("calls", _) => Ok(Self::Calls),
            ("last", _) => Ok(Self::Last),
            ("all", _) => Ok(Self::All),
            (_, Ok(number)) if number > 0 => Ok(Self::Number(number)),
            _ => Err("expected calls, last, all, or a number from 1 on".to_owned()),
        }
    }
}

pub(super) fn json_object(
    text: &str,
) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no JSON object: {error}"))
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
    /// For NESTFUL's wins: the benchmark's data_v2/executable_functions, run in the sandbox; without
    /// it only rows of arithmetic have some.
    #[arg(long)]
    pub exec_dir: Option<PathBuf>,
    /// What runs those functions.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
}

/// `tooltune select runs/quickstart --metric slot.strict_keys_accuracy`
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// A run directory, or the config that it was trained with.
    pub run: PathBuf,
    /// Metric to rank by.
    #[arg(long)]
    pub metric: String,
    /// Rank the smallest value first, as losses and rates of errors are in any case.
    #[arg(long)]
    pub lower_is_better: bool,
    /// Evaluate every kept checkpoint first, with the suites of the run's config or of --set; results
    /// lie in RUN/selection and serve again while settings, rows and checkpoint are the same.
    #[arg(long)]
    pub evaluate: bool,
    /// Replace a setting of the evaluations, as in --set 'eval.suites=["nestful"]'; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "evaluate")]
    pub overrides: Vec<String>,
    /// Say what would be selected, and leave BEST where it is.
    #[arg(long)]
    pub dry_run: bool,
}

/// `tooltune compare before after`, or `tooltune compare runs/one runs/two runs/three`
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Evaluations on the same samples, each the --output of one, a checkpoint that was evaluated, or a
    /// predictions.jsonl; the first is what the others are compared with. Or run directories, or the
    /// configs that they were trained with.
    #[arg(required = true, num_args = 2.., value_name = "EVALUATION or RUN")]
    pub targets: Vec<PathBuf>,
    /// The suite, where checkpoints or runs were evaluated by several.
    #[arg(long, value_enum)]
    pub suite: Option<Suite>,
    /// Samples that are named for each score, of those that became better and worse [default: 10].
    #[arg(long)]
    pub show: Option<usize>,
}

/// `tooltune report runs/quickstart`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories, or the configs that they were trained with; several are shown beside each
    /// other.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Folders of `tooltune eval --output`, whose results and samples are shown under their names,
    /// such as base and best on test rows, and files of `tooltune generate --output`; with one run
    /// only.
    #[arg(long, value_name = "FOLDER", num_args = 1..)]
    pub eval: Vec<PathBuf>,
    /// HTML file to write; report.html in the directory of the first run by default.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// `tooltune doctor configs/quickstart.toml`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also check the files and folders of this config.
    pub config: Option<PathBuf>,
}
