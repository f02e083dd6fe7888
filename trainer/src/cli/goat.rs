//! The options of GOAT's data pipeline, and of reviewing its rows.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand};

use super::{AllowArgs, GeneratorArgs, OnMachine, PipelineArgs, examples};

/// `data goat`: the pipeline, or a command on its rows.
#[derive(Debug)]
pub enum DataGoatCommand {
    /// The pipeline.
    Make(Box<OnMachine<DataGoatArgs>>),
    /// A command on the rows of the pipeline.
    Rows(GoatRowsCommand),
}

// Implemented manually, because a derived command with required options cannot have subcommands.
impl FromArgMatches for DataGoatCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        match matches.subcommand_name() {
            Some(_) => GoatRowsCommand::from_arg_matches_mut(matches).map(Self::Rows),
            None => OnMachine::from_arg_matches_mut(matches).map(|on| Self::Make(Box::new(on))),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for DataGoatCommand {
    fn augment_args(command: Command) -> Command {
        let command = OnMachine::<DataGoatArgs>::augment_args(command);
        GoatRowsCommand::augment_subcommands(command)
            .subcommand_required(false)
            .arg_required_else_help(false)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Commands on generated trajectories.
#[derive(Debug, Subcommand)]
pub enum GoatRowsCommand {
    /// Write a file in which people accept, edit or reject each row.
    #[command(after_help = examples::REVIEW_FILE)]
    ReviewFile(ReviewFileArgs),
    /// Write the rows that a review accepts or edits.
    #[command(after_help = examples::APPLY_REVIEW)]
    ApplyReview(ApplyReviewArgs),
}

/// `tooltune data goat review-file goat/test_unseen.jsonl --output review.jsonl`
#[derive(Debug, Args)]
pub struct ReviewFileArgs {
    /// JSON Lines file of trajectories.
    pub rows: PathBuf,
    /// Output file (JSON Lines), one line per row; must not exist.
    #[arg(long)]
    pub output: PathBuf,
}

/// `tooltune data goat apply-review goat/test_unseen.jsonl --review review.jsonl ...`
#[derive(Debug, Args)]
pub struct ApplyReviewArgs {
    /// JSON Lines file of trajectories.
    pub rows: PathBuf,
    /// JSON Lines file of API documents.
    #[arg(long)]
    pub documents: PathBuf,
    /// The review, one line per row: {"id", "verdict": "accept", "edit" or "reject"}, with the edited
    /// query, sub_queries or response, and optionally a reason.
    #[arg(long)]
    pub review: PathBuf,
    /// Output file (JSON Lines).
    #[arg(long)]
    pub output: PathBuf,
}

/// `tooltune data goat documents.jsonl --output goat --endpoint http://localhost:8000/v1`
#[derive(Debug, Args)]
pub struct DataGoatArgs {
    /// JSON Lines file of API documents.
    pub documents: PathBuf,
    /// Add the functions global/compare and global/difference, which compare two numbers returned by
    /// other APIs. documents.jsonl in the output folder then contains all documents.
    #[arg(long)]
    pub global_functions: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub pipeline: PipelineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generator: GeneratorArgs,
    /// Setting of [goat.executor], which executes the calls, as in --executor kind=http --executor
    /// base_url=URL; may be repeated. By default the synthetic APIs of `data synth goat` are used.
    #[arg(long, value_name = "KEY=VALUE")]
    pub executor: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub allow: AllowArgs,
    /// sentence-transformers folder of the encoder that compares outputs with parameters.
    #[arg(long, default_value = "models/all-minilm-l6-v2")]
    pub retriever: PathBuf,
    /// Minimum cosine similarity of an edge; the paper uses 0.2, and 0.05 for RestBench.
    #[arg(long, default_value_t = 0.2, conflicts_with = "seen_from")]
    pub threshold: f64,
    /// Maximum number of edges that the language model checks, the most similar ones first; all by
    /// default.
    #[arg(long, conflicts_with = "seen_from")]
    pub max_edges: Option<usize>,
    /// Minimum number of calls in a task.
    #[arg(long, default_value_t = 2, conflicts_with = "seen_from")]
    pub min_calls: usize,
    /// Maximum number of calls in a task.
    #[arg(long, default_value_t = 4, conflicts_with = "seen_from")]
    pub max_calls: usize,
    /// Reference edges, in the JSON Lines format of the stages. Prints the precision and recall of
    /// each stage. Edges that the file does not list count as wrong. If some lines have "holds":
    /// false, unlisted edges are not counted instead.
    #[arg(long, value_name = "FILE", conflicts_with = "seen_from")]
    pub true_edges: Option<PathBuf>,
    /// Maximum number of subgraphs to visit.
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "seen_from")]
    pub max_subgraphs: usize,
    /// Number of tasks to draw; each can become a row.
    #[arg(long, default_value_t = 1_000)]
    pub rows: usize,
    /// Maximum number of API calls, over all runs in this folder.
    #[arg(long)]
    pub max_api_calls: Option<usize>,
    /// Generate new values for the training rows of this `data goat` folder, with the same
    /// subgraphs and call orders. All rows are written to test_seen.jsonl.
    #[arg(long, value_name = "RUN")]
    pub seen_from: Option<PathBuf>,
    /// Tools, or APIs by full name, that only rows of test_unseen.jsonl call. By default they are
    /// drawn from the tools that have few enough rows.
    #[arg(long, value_name = "TOOL", num_args = 1.., conflicts_with_all = ["seen_from", "unseen_share"])]
    pub hold_out: Vec<String>,
    /// Maximum share of rows in dev.jsonl.
    #[arg(long, default_value_t = 0.05, conflicts_with = "seen_from")]
    pub dev_share: f64,
    /// Maximum share of rows in test_seen.jsonl, which has its own subgraphs of the training tools.
    #[arg(long, default_value_t = 0.1, conflicts_with = "seen_from")]
    pub seen_share: f64,
    /// Maximum share of rows in test_unseen.jsonl; each row needs a tool that no other split calls.
    #[arg(long, default_value_t = 0.1, conflicts_with = "seen_from")]
    pub unseen_share: f64,
    /// Temperature for generating values; all other requests use 0.
    #[arg(long, default_value_t = 0.7)]
    pub temperature: f64,
    /// Maximum number of characters of a call result in a prompt; longer results are cut to valid
    /// JSON.
    #[arg(long, default_value_t = 4_000)]
    pub output_limit: usize,
    /// Maximum number of tokens of a reply.
    #[arg(long, default_value_t = 1_024)]
    pub reply_tokens: usize,
}
