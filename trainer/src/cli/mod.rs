//! The command line: commands and options, without their implementation.

mod data;
mod examples;
mod export;
mod goat;
mod machine;
mod mathqa;
mod pipelines;
mod sandbox;
mod structure;
mod together;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub use data::*;
pub use export::*;
pub use goat::*;
pub use machine::*;
pub use mathqa::*;
pub use pipelines::*;
pub use sandbox::*;
pub use structure::*;

use crate::config::{Preset, Suite};
use tooltune_ranks::RequestedRanks;

/// LoRA fine-tuning that turns small open language models into reliable tool users.
#[derive(Debug, Parser)]
#[command(name = "tooltune", version, max_term_width = 100, after_help = examples::TOOLTUNE)]
pub struct Cli {
    /// The command with its options.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line of this process; a mistake exits with status 2.
    pub fn from_env() -> Self {
        Self::from_words(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Parses a command line that starts with the program name.
    ///
    /// # Errors
    ///
    /// clap refuses an argument, or an option is given without the option that it requires.
    pub fn from_words(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(words)?;
        together::check(&mut command, &matches)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a commented starting config.
    #[command(after_help = examples::INIT)]
    Init(InitArgs),
    /// Show which tokens are supervised.
    #[command(after_help = examples::INSPECT)]
    Inspect(OnMachine<InspectArgs>),
    /// Check a config and its data, and predict memory, steps and checkpoint size.
    #[command(after_help = examples::PLAN)]
    Plan(OnMachine<PlanArgs>),
    /// Train, or resume an interrupted run.
    #[command(after_help = examples::TRAIN)]
    Train(OnMachine<TrainArgs>),
    /// Evaluate the base model or a checkpoint on a suite.
    #[command(after_help = examples::EVAL)]
    Eval(Box<OnMachine<EvalArgs>>),
    /// Generate completions for rows, or for your own message.
    #[command(after_help = examples::GENERATE)]
    Generate(OnMachine<GenerateArgs>),
    /// Extract JSON that satisfies each row's schema from text.
    #[command(after_help = examples::STRUCTURE)]
    Structure(Box<OnMachine<StructureArgs>>),
    /// Chat with the base model or a checkpoint in the terminal, optionally with tools.
    #[command(after_help = examples::CHAT)]
    Chat(OnMachine<ChatArgs>),
    /// Compute metrics for JSON Lines from any source.
    #[command(after_help = examples::SCORE)]
    Score(OnMachine<ScoreArgs>),
    /// Rank the checkpoints of a run by a metric and move its BEST pointer.
    #[command(after_help = examples::SELECT)]
    Select(OnMachine<SelectArgs>),
    /// Compare evaluations sample by sample, or runs by settings and results.
    #[command(after_help = examples::COMPARE)]
    Compare(CompareArgs),
    /// Write an HTML report with curves, results, supervised tokens and the worst samples.
    #[command(after_help = examples::REPORT)]
    Report(OnMachine<ReportArgs>),
    /// Export the adapter or the retriever of a checkpoint for serving.
    #[command(after_help = examples::EXPORT)]
    Export(ExportArgs),
    /// Download models and data sets from the Hugging Face Hub, for machines without a network.
    #[command(after_help = examples::FETCH)]
    Fetch(FetchArgs),
    /// Check that an export computes the same results as its checkpoint, or write logits or
    /// embeddings.
    #[command(after_help = examples::VERIFY)]
    Verify(OnMachine<VerifyArgs>),
    /// Create, import and measure data.
    #[command(subcommand)]
    Data(DataCommand),
    /// Check this machine: device, disk, write access.
    #[command(after_help = examples::DOCTOR)]
    Doctor(OnMachine<DoctorArgs>),
    /// Print the JSON Schema of the config, for editors.
    #[command(after_help = examples::SCHEMA)]
    Schema,
    /// Print the completion script for a shell.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Write one manual page per command.
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

impl Command {
    /// The options for the machine, if the command computes.
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

/// `tooltune completions bash`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `tooltune man DIR`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for tooltune.1, tooltune-train.1 and so on; created if missing. Existing pages are
    /// replaced.
    pub folder: PathBuf,
}

/// `tooltune init --preset slot > my.toml`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Starting point.
    #[arg(long, value_enum, default_value = "slot")]
    pub preset: Preset,
    /// Translate this Axolotl, LLaMA-Factory, ms-swift or TRL config instead of using a preset: a
    /// YAML or JSON file, or a shell script that starts the training. Prints how each key was
    /// translated, and which keys have no equivalent.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub from: Option<PathBuf>,
    /// If the script starts several runs: the number of the run to translate, counted from 1.
    #[arg(long, value_name = "NUMBER", requires = "from")]
    pub command: Option<usize>,
    /// Output file, in YAML if its name ends in .yaml or .yml; standard output by default. Existing
    /// files are not overwritten.
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// A config file, and settings that override it.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Config in TOML, or in YAML if its name ends in .yaml or .yml; or a run directory.
    pub config: PathBuf,
    /// Override a setting, as in --set train.learning_rate=2e-4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// `tooltune inspect configs/quickstart.toml -n 2`
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
    /// Number of rows to show: by default 3, or all rows that --row selects.
    #[arg(short = 'n', long)]
    pub rows: Option<usize>,
    /// Show only this row, by its line number or file:line. For a trajectory, this shows all of its
    /// examples; use the printed id of an example to show only that one.
    #[arg(long)]
    pub row: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: OutputFormat,
}

/// `tooltune plan configs/quickstart.toml --probe`, or before any download
/// `tooltune plan configs/slot-llama3.2-1b.toml --offline`
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
    /// Also run one real step on the longest batch, and show its time and memory.
    #[arg(long)]
    pub probe: bool,
    /// Read only the config and the model's config.json. Weights, tokenizer, data and GPU are not
    /// needed; every batch is assumed to have the largest possible size.
    #[arg(long, conflicts_with = "probe")]
    pub offline: bool,
    /// Plan for this many processes (ranks) that divide the micro-batches of each step. Memory is
    /// then per rank.
    #[arg(long, value_name = "N")]
    pub ranks: Option<NonZeroUsize>,
    /// GB/s between ranks: what each rank sends with NCCL, or what rank 0 sends and receives by TCP.
    /// By default a rate is assumed and printed.
    #[arg(long, value_name = "GB/S", requires = "ranks")]
    pub bandwidth: Option<f64>,
    /// With --offline: TFLOP/s of a rank over a whole step, for the predicted time. By default the
    /// rate of an H100 is assumed for a GPU.
    #[arg(long, value_name = "TFLOP/S", requires = "offline")]
    pub tflops: Option<f64>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: OutputFormat,
}

/// `tooltune train configs/quickstart.toml --set train.max_steps=20`
#[derive(Debug, Args)]
pub struct TrainArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub config: ConfigArgs,
    /// Where to start: auto (the newest checkpoint, if any), never (from the beginning), best, or a
    /// checkpoint by its step (such as 20), name or path.
    #[arg(long, default_value = "auto")]
    pub resume: String,
    /// Profile this many steps (10 by default), starting with the second. Writes a table by operation
    /// and a trace for ui.perfetto.dev to the folder `profile` of the run.
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
    /// Train with this many processes of this host, which divide the micro-batches of each step; auto:
    /// one per GPU, or the number that the environment sets. torchrun, srun and mpiexec need no option.
    #[arg(long, value_name = "N|auto")]
    pub ranks: Option<RequestedRanks>,
}

/// A model with its settings.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Run directory, config file, checkpoint, exported adapter, or base model.
    #[arg(id = "target", value_name = "TARGET")]
    pub path: PathBuf,
    /// Override a setting, as in --set eval.batch_size=32; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// base (no adapter), best, last, a step such as 20, or an adapter directory. Default: best for a
    /// run; the target itself if it is a checkpoint or an adapter.
    #[arg(long)]
    pub checkpoint: Option<String>,
}

/// A model with its settings, and its input rows.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Use these rows instead of the config's data.eval; may be repeated.
    #[arg(long)]
    pub data: Vec<PathBuf>,
    /// Use at most this many rows.
    #[arg(long)]
    pub max_samples: Option<usize>,
}

/// `tooltune eval runs/quickstart --checkpoint best --output results`
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub target: TargetArgs,
    /// Suite to evaluate. Default: the suite for the format of data.eval, or only the loss if there
    /// is no such suite.
    #[arg(long, value_enum)]
    pub suite: Option<Suite>,
    /// Measure only the loss of the rows, without generating.
    #[arg(long, conflicts_with_all = ["suite", "predictions", "endpoint", "compare"])]
    pub loss_only: bool,
    /// Score this predictions.jsonl instead of generating; no model is loaded. Not available for the
    /// suite retrieval.
    #[arg(long)]
    pub predictions: Option<PathBuf>,
    /// Use an OpenAI-compatible server instead of the local model, such as vLLM with the exported
    /// adapter. Give the part of the URL before /chat/completions, as in http://localhost:8000/v1.
    #[arg(long, value_name = "URL", conflicts_with = "predictions")]
    pub endpoint: Option<String>,
    /// Name of the model on the server.
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub endpoint_model: Option<String>,
    /// Environment variable that contains the server's key.
    #[arg(long, value_name = "VARIABLE", requires = "endpoint")]
    pub api_key_env: Option<String>,
    /// Maximum number of concurrent requests.
    #[arg(long, default_value_t = 8, requires = "endpoint")]
    pub concurrency: usize,
    /// JSON object of additional request fields for server-specific options, such as
    /// '{"repeat_penalty": 1.0}'.
    #[arg(long, value_name = "JSON", value_parser = extra_body, requires = "endpoint")]
    pub extra_body: Option<serde_json::Map<String, serde_json::Value>>,
    /// Folder for predictions and metrics; must not contain an evaluation yet. Completions are saved
    /// as they arrive, so the same command resumes after an interruption.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Print the change from this earlier metrics.json; suite slot only. For other suites and for
    /// confidence intervals, use `tooltune compare`.
    #[arg(long)]
    pub compare: Option<PathBuf>,
    /// Also print the metrics of groups of samples, such as tool, n_calls, depth or file; may be
    /// repeated. An unknown key lists the keys of the suite.
    #[arg(long, value_name = "KEY", conflicts_with = "loss_only")]
    pub by: Vec<String>,
    /// Use people's verdicts in place of a judge: JSON Lines with {"id", "solved"}, one line per
    /// query. For the suites goat, restbench, apibank and toolqa.
    #[arg(long, value_name = "FILE", requires = "predictions")]
    pub verdicts: Option<PathBuf>,
}

/// `tooltune generate runs/sft --max-samples 5`, or
/// `tooltune generate runs/sft --message "Weather in Oslo?" --tools tools.json`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub target: TargetArgs,
    /// For rows with messages, the assistant turns to generate: calls (turns with tool calls, or the
    /// last turn if there are none), last, all, or a number counted from 1 [default: calls]
    #[arg(long, value_name = "TURN", conflicts_with_all = ["text", "message", "prompt"])]
    pub turn: Option<TurnChoice>,
    /// Extract JSON from this text, by --schema and with the prompt of training, instead of using
    /// rows. Use - for standard input, without its final line break.
    #[arg(long, value_name = "TEXT", requires = "schema",
          conflicts_with_all = ["data", "max_samples", "message", "prompt"])]
    pub text: Option<String>,
    /// File with the JSON Schema for --text.
    #[arg(long, value_name = "FILE", requires = "text")]
    pub schema: Option<PathBuf>,
    /// Use this user message instead of rows, rendered by the chat template. Use - for standard
    /// input, without its final line break.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["data", "max_samples", "prompt"])]
    pub message: Option<String>,
    /// System message; data.system by default.
    #[arg(long, value_name = "TEXT", requires = "message")]
    pub system: Option<String>,
    /// JSON file with the list of available tools, as in the field tools of a row.
    #[arg(long, value_name = "FILE", requires = "message")]
    pub tools: Option<PathBuf>,
    /// Continue this text instead of rows, without a chat template or added tokens. Use - for standard
    /// input, which is continued exactly.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["data", "max_samples"])]
    pub prompt: Option<String>,
    /// Also write a JSON Lines file with one object per completion: its prompt, reference and
    /// finish_reason. Existing files are not overwritten.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `tooltune chat runs/sft --tools tools.json`
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// System message of the conversation.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// JSON file with the list of available tools, as in the field tools of a row. Calls are shown,
    /// and you type their results.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Execute calls with [goat.executor] instead of asking you for their results.
    #[arg(long, requires = "tools")]
    pub execute: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub allow: AllowArgs,
}

/// Permission for calls that may change data.
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// For kind=http: allow this method in addition to GET, HEAD and OPTIONS, as
    /// goat.executor.allow_methods does; may be repeated or comma-separated.
    #[arg(long, value_name = "METHOD", value_delimiter = ',')]
    pub allow_method: Vec<String>,
    /// For kind=mcp: allow this tool even if the server does not mark it as read-only, as
    /// goat.executor.allow_tools does; may be repeated; * allows all tools.
    #[arg(long, value_name = "TOOL")]
    pub allow_tool: Vec<String>,
}

/// The assistant turns to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnChoice {
    /// Turns with tool calls, or the last turn if there are none.
    Calls,
    /// The last turn.
    Last,
    /// All turns.
    All,
    /// The turn with this number, counted from 1.
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
            _ => Err("expected calls, last, all, or a number of at least 1".to_owned()),
        }
    }
}

pub(crate) fn extra_body(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    let fields = serde_json::from_str(text);
    let fields = fields.map_err(|error| format!("expected a JSON object: {error}"))?;
    tooltune_endpoint::check_extra_body(&fields)?;
    Ok(fields)
}

/// `tooltune score predictions.jsonl > scores.jsonl`
#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// JSON Lines file; standard input by default.
    pub file: Option<PathBuf>,
    /// List the operations and their fields.
    #[arg(long)]
    pub ops: bool,
    /// all-MiniLM-L6-v2 folder for the operations that embed text.
    #[arg(long, default_value = "models/all-minilm-l6-v2")]
    pub encoder: PathBuf,
    /// The NESTFUL benchmark's data_v2/executable_functions, run in the sandbox. Without it, only
    /// arithmetic samples have a win rate.
    #[arg(long)]
    pub exec_dir: Option<PathBuf>,
    /// The sandbox that runs the functions.
    #[command(flatten)]
    pub sandbox: SandboxArgs,
}

/// `tooltune select runs/quickstart --metric slot.strict_keys_accuracy`
#[derive(Debug, Args)]
pub struct SelectArgs {
    /// Run directory, or the config that it was trained with.
    pub run: PathBuf,
    /// Metric to rank by.
    #[arg(long)]
    pub metric: String,
    /// Rank the smallest value first. This is the default for losses and error rates.
    #[arg(long)]
    pub lower_is_better: bool,
    /// First evaluate every kept checkpoint with the suites of the run's config or of --set. Results
    /// are saved in RUN/selection and reused if settings, rows and checkpoint have not changed.
    #[arg(long)]
    pub evaluate: bool,
    /// Override a setting of the evaluations, as in --set 'eval.suites=["nestful"]'; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "evaluate")]
    pub overrides: Vec<String>,
    /// Print the selection without moving BEST.
    #[arg(long)]
    pub dry_run: bool,
}

/// `tooltune compare before after`, or `tooltune compare runs/one runs/two runs/three`
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Evaluations of the same samples: folders of --output, evaluated checkpoints, or
    /// predictions.jsonl files. The others are compared with the first. To compare runs, name run
    /// directories or the configs that they were trained with.
    #[arg(required = true, num_args = 2.., value_name = "EVALUATION or RUN")]
    pub targets: Vec<PathBuf>,
    /// The suite to compare, if there are evaluations on several suites.
    #[arg(long, value_enum)]
    pub suite: Option<Suite>,
    /// Number of samples to list per score, both improved and worse [default: 10]
    #[arg(long)]
    pub show: Option<usize>,
    /// Also compare the groups of samples with this property, such as tool, n_calls, depth or file.
    #[arg(long, value_name = "KEY")]
    pub by: Option<String>,
}

/// `tooltune report runs/quickstart`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories, or the configs that they were trained with; several are shown side by side.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Folders of `tooltune eval --output` and files of `tooltune generate --output`, shown under
    /// their names, for example base and best on test rows. Requires a single run.
    #[arg(long, value_name = "FOLDER", num_args = 1..)]
    pub eval: Vec<PathBuf>,
    /// HTML file to write [default: report.html in the first run directory]
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Add tables of the groups of samples with this property, such as tool, n_calls, depth or file;
    /// may be repeated. Suites without it have no such table.
    #[arg(long, value_name = "KEY")]
    pub by: Vec<String>,
}

/// `tooltune doctor configs/quickstart.toml`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also check the files and folders of this config.
    pub config: Option<PathBuf>,
    /// Also start this many processes, and time the connections between them; auto: as for `train`.
    /// Under torchrun, srun and mpiexec, this happens without the option.
    #[arg(long, value_name = "N|auto")]
    pub ranks: Option<RequestedRanks>,
    /// Seconds to wait for all processes [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub wait: Option<u64>,
    /// Also time sums and messages of this many megabytes between processes, such as 1700.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4000))]
    pub megabytes: Option<u64>,
}
