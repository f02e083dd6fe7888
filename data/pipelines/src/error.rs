//! Errors that stop a pipeline.

use std::path::{Path, PathBuf};

use thiserror::Error;
use tooltune_apis::ToolsError;
use tooltune_rows::text::DataError;
use tooltune_synth::graph::GraphError;
use tooltune_template::TemplateError;

/// The reason why a pipeline stopped; all replies received so far are in its journal.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A file of the pipeline's folder or an input file cannot be accessed.
    #[error("{path}: cannot {doing}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted operation.
        doing: &'static str,
        /// The underlying error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The first line of a journal is damaged.
    #[error(
        "{path}:1: the line with the settings is damaged ({reason}); remove the \
         file, or choose another --output"
    )]
    JournalHead {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// The folder was created with other settings.
    #[error(
        "{path} was created with different settings: {differences}; use the same settings, or choose another \
         --output"
    )]
    DifferentSettings {
        /// The journal.
        path: PathBuf,
        /// The differing settings with both values.
        differences: String,
    },

    /// An error in a prompt file or in input rows.
    #[error("{0}")]
    Data(#[from] DataError),

    /// A prompt file cannot be used as a template.
    #[error("{0}")]
    Template(#[from] TemplateError),

    /// A folder of prompts is invalid.
    #[error("{dir}: {reason}")]
    PromptFolder {
        /// The folder.
        dir: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// There is no stage with this name.
    #[error("{option} {given}: unknown stage; the stages are {stages}")]
    NoStage {
        /// The option with the name.
        option: &'static str,
        /// The given name.
        given: String,
        /// The existing stages, in order.
        stages: String,
    },

    /// An earlier stage has not been run.
    #[error("--stage {stage}: the earlier stage {before} is not done; run it first")]
    StageBefore {
        /// The requested stage.
        stage: String,
        /// The missing stage.
        before: &'static str,
    },

    /// A stage file cannot be read.
    #[error("{place}: {reason}; run the stage {stage} again with --stage {stage}")]
    Item {
        /// File and line.
        place: String,
        /// What is wrong.
        reason: String,
        /// The stage that writes the file.
        stage: &'static str,
    },

    /// An error in input rows, documents or user-provided texts.
    #[error(transparent)]
    Input(#[from] ToolsError),

    /// An error in the edges or their input.
    #[error(transparent)]
    Graph(#[from] GraphError),

    /// An invalid option; the message says how to fix it.
    #[error("{0}")]
    Usage(String),

    /// No reply of a stage can be parsed.
    #[error(
        "stage {stage}: none of {n} replies can be parsed; the first, for {id}: {reason}{}; see \
         {dropped}, check the model and the prompt, and run the same command with --ask-again {stage}",
        if .reply.is_empty() { String::new() } else { format!(" (the reply begins with {:?})", .reply) },
        dropped = .dropped.display()
    )]
    Unreadable {
        /// The stage.
        stage: &'static str,
        /// Number of requests.
        n: usize,
        /// Item of the first request.
        id: String,
        /// The parse error of its reply.
        reason: String,
        /// The start of its reply.
        reply: String,
        /// The file that lists all of them.
        dropped: PathBuf,
    },

    /// A stage drops all items.
    #[error(
        "stage {stage} dropped all {n_in} items ({reasons}); see {dropped}, then change the stage's input, \
         threshold or prompt",
        dropped = .dropped.display()
    )]
    NothingKept {
        /// The stage.
        stage: &'static str,
        /// Number of input items.
        n_in: usize,
        /// The drop reasons with their counts.
        reasons: String,
        /// The file that lists all of them.
        dropped: PathBuf,
    },

    /// The budget is used up.
    #[error(
        "the budget is used up in stage {stage}: {used}, and {n_left} {what} are left; to continue, \
         run the same command with a larger {option}"
    )]
    Budget {
        /// The stage.
        stage: &'static str,
        /// The used part of the budget.
        used: String,
        /// Number of remaining requests or calls of the stage.
        n_left: usize,
        /// Unit of the remaining work: requests, or API calls.
        what: &'static str,
        /// The option with the budget.
        option: &'static str,
    },

    /// The generator cannot continue; the replies so far are kept.
    #[error("{message}; {n_replies} replies are kept; run the same command to continue")]
    Generator {
        /// What is wrong, and what to check.
        message: String,
        /// Number of replies in the journal.
        n_replies: usize,
    },

    /// The user stopped the work; the replies so far are kept.
    #[error("stopped; {n_replies} replies are kept; run the same command to continue")]
    Stopped {
        /// Number of replies in the journal.
        n_replies: usize,
    },
}

impl PipelineError {
    /// Wraps an I/O error about `path`.
    pub fn io<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        path: &Path,
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            path,
            doing,
            source: source.into(),
        }
    }
}
