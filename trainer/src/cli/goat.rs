//! The options of GOAT's data pipeline, and of the review of its rows.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand};

use super::{GeneratorArgs, OnMachine, PipelineArgs, examples};

/// `data goat`: the pipeline, or what is done with its rows.
#[derive(Debug)]
pub enum DataGoatCommand {
    /// The pipeline.
    Make(Box<OnMachine<DataGoatArgs>>),
    /// What is done with its rows.
    Rows(GoatRowsCommand),
}

// Derived, a command whose options are required could have no commands beside them.
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

/// What is done with trajectories that a model wrote.
#[derive(Debug, Subcommand)]
pub enum GoatRowsCommand {
    /// Write a file in which people say of each row what becomes of it.
    #[command(after_help = examples::REVIEW_FILE)]
    ReviewFile(ReviewFileArgs),
    /// Take the rows that a review accepts or edits.
    #[command(after_help = examples::APPLY_REVIEW)]
    ApplyReview(ApplyReviewArgs),
}

/// `tooltune data goat review-file goat/test_unseen.jsonl --output review.jsonl`
#[derive(Debug, Args)]
pub struct ReviewFileArgs {
    /// Trajectories as JSON Lines.
    pub rows: PathBuf,
    /// JSON Lines file to write, one line for each row; it must not be there yet.
    #[arg(long)]
    pub output: PathBuf,
}

/// `tooltune data goat apply-review goat/test_unseen.jsonl --review review.jsonl ...`
#[derive(Debug, Args)]
pub struct ApplyReviewArgs {
    /// Trajectories as JSON Lines.
    pub rows: PathBuf,
    /// JSON Lines file of API documents.
    #[arg(long)]
    pub documents: PathBuf,
    /// The review, a line for each row: {"id", "verdict": "accept", "edit" or "reject"}, with query,
    /// sub_queries or response as they are to be, and a reason if you like.
    #[arg(long)]
    pub review: PathBuf,
    /// JSON Lines file to write.
    #[arg(long)]
    pub output: PathBuf,
}

/// `tooltune data goat documents.jsonl --output goat --endpoint http://localhost:8000/v1`
#[derive(Debug, Args)]
pub struct DataGoatArgs {
    /// JSON Lines file of API documents.
    pub documents: PathBuf,
    /// Add the functions global/compare and global/difference, which compare two numbers that other
    /// APIs returned; documents.jsonl in the folder then has the documents of all.
    #[arg(long)]
    pub global_functions: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub pipeline: PipelineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generator: GeneratorArgs,
    /// A key of [goat.executor], which answers the calls, as in --executor kind=http --executor
    /// base_url=URL; may be repeated. By default the invented APIs of `data synth goat` do.
    #[arg(long, value_name = "KEY=VALUE")]
    pub executor: Vec<String>,
    /// sentence-transformers folder of the encoder that compares outputs with parameters.
    #[arg(long, default_value = "models/all-minilm-l6-v2")]
    pub retriever: PathBuf,
    /// Least cosine of an edge; the paper takes 0.2, and 0.05 for RestBench.
    #[arg(long, default_value_t = 0.2, conflicts_with = "seen_from")]
    pub threshold: f64,
    /// Edges that the model is asked about, the most alike ones; all by default.
    #[arg(long, conflicts_with = "seen_from")]
    pub max_edges: Option<usize>,
    /// Fewest calls of a task.
    #[arg(long, default_value_t = 2, conflicts_with = "seen_from")]
    pub min_calls: usize,
    /// Most calls of a task.
    #[arg(long, default_value_t = 4, conflicts_with = "seen_from")]
    pub max_calls: usize,
    /// Edges that are settled, as those of the stages in JSON Lines; the precision and recall of each
    /// stage are shown. With lines that say "holds": false, edges that the file does not name count
    /// nowhere; else they do not hold.
    #[arg(long, value_name = "FILE", conflicts_with = "seen_from")]
    pub true_edges: Option<PathBuf>,
    /// Most sub-graphs that are met before giving up.
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "seen_from")]
    pub max_subgraphs: usize,
    /// Tasks to draw, each of which may become a row.
    #[arg(long, default_value_t = 1_000)]
    pub rows: usize,
    /// Calls of APIs that may be made, over all runs in this folder.
    #[arg(long)]
    pub max_api_calls: Option<usize>,
    /// Make the rows of training of this folder of `data goat` anew, with other values: the same
    /// sub-graphs, calls in the same order. All rows are then in test_seen.jsonl.
    #[arg(long, value_name = "RUN")]
    pub seen_from: Option<PathBuf>,
    /// Tools, or APIs by their whole names, that test_unseen.jsonl alone calls; by default some are
    /// drawn whose rows are not too many.
    #[arg(long, value_name = "TOOL", num_args = 1.., conflicts_with_all = ["seen_from", "unseen_share"])]
    pub hold_out: Vec<String>,
    /// Share of the rows in dev.jsonl, at most.
    #[arg(long, default_value_t = 0.05, conflicts_with = "seen_from")]
    pub dev_share: f64,
    /// Share of the rows in test_seen.jsonl, at most: sub-graphs of their own, on the tools of
    /// training.
    #[arg(long, default_value_t = 0.1, conflicts_with = "seen_from")]
    pub seen_share: f64,
    /// Share of the rows in test_unseen.jsonl, at most: each with a tool that no other split calls.
    #[arg(long, default_value_t = 0.1, conflicts_with = "seen_from")]
    pub unseen_share: f64,
    /// Temperature at which values are made up; everything else is asked for at 0.
    #[arg(long, default_value_t = 0.7)]
    pub temperature: f64,
    /// Characters of a call's result in a prompt; what is longer is cut, and stays JSON.
    #[arg(long, default_value_t = 4_000)]
    pub output_limit: usize,
    /// Tokens that a reply may have.
    #[arg(long, default_value_t = 1_024)]
    pub reply_tokens: usize,
}
