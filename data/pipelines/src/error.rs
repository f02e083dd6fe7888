//! Why a pipeline ended without its result.

use std::path::{Path, PathBuf};

use thiserror::Error;
use tooltune_rows::text::DataError;
use tooltune_rows::tools::ToolsError;
use tooltune_synth::graph::GraphError;

/// A reason why a pipeline ended; what was paid for is in its journal.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A file of the pipeline's folder, or one that it is given.
    #[error("{path}: cannot {doing}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The first line of a journal cannot be read.
    #[error(
        "{path}:1: the line that says what the replies follow from is damaged ({reason}); remove the \
         file, or name another --output"
    )]
    JournalHead {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// A folder was begun with other settings.
    #[error(
        "{path} was begun with other settings: {differences}; give the same ones, or name another \
         --output"
    )]
    OtherSettings {
        /// The journal.
        path: PathBuf,
        /// Each setting that differs, with both values.
        differences: String,
    },

    /// A prompt file, or rows that the pipeline is given.
    #[error("{0}")]
    Data(#[from] DataError),

    /// A folder of prompts that holds none of the pipeline's.
    #[error("{dir}: {reason}")]
    PromptFolder {
        /// The folder.
        dir: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// There is no stage of this name.
    #[error("--stage {given}: there is no such stage; the stages are {stages}")]
    NoStage {
        /// The name.
        given: String,
        /// Those that there are, in their order.
        stages: String,
    },

    /// A stage whose input is not made yet.
    #[error("--stage {stage}: the stage {before} comes first and is not done; run it before")]
    StageBefore {
        /// The stage that was asked for.
        stage: String,
        /// The one that is missing.
        before: &'static str,
    },

    /// A file of a stage that cannot be read.
    #[error("{place}: {reason}; run the stage {stage} again with --stage {stage}")]
    Item {
        /// File and line.
        place: String,
        /// What is wrong.
        reason: String,
        /// The stage that wrote the file.
        stage: &'static str,
    },

    /// Rows, documents or texts that the pipeline is given.
    #[error(transparent)]
    Input(#[from] ToolsError),

    /// Edges, or what they are made of.
    #[error(transparent)]
    Graph(#[from] GraphError),

    /// An option that cannot be used, with how to fix it.
    #[error("{0}")]
    Usage(String),

    /// The budget is used up.
    #[error(
        "the budget is used up in the stage {stage}: {used}, and {n_left} {what} are left; the same \
         command with a larger {option} continues from there"
    )]
    Budget {
        /// Where.
        stage: &'static str,
        /// What was used of what.
        used: String,
        /// What is left of the stage.
        n_left: usize,
        /// What that is: requests, or calls of APIs.
        what: &'static str,
        /// The option with the budget.
        option: &'static str,
    },

    /// What generates cannot continue; the replies so far are kept.
    #[error("{message}; {n_replies} replies are kept, and the same command continues from there")]
    Generator {
        /// What is wrong, and what to check.
        message: String,
        /// Replies in the journal.
        n_replies: usize,
    },

    /// The user ended the work; the replies so far are kept.
    #[error("stopped; {n_replies} replies are kept, and the same command continues from there")]
    Stopped {
        /// Replies in the journal.
        n_replies: usize,
    },
}

impl PipelineError {
    /// A failure about `path`.
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
