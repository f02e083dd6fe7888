//! The errors that end a command, and their exit statuses.

mod loading;
mod pipelines;

use std::path::PathBuf;

use signal_hook::consts::SIGTERM;
use thiserror::Error;
use tooltune_apis::ToolsError;
use tooltune_checkpoints::CheckpointError;
use tooltune_disk::DiskError;
use tooltune_disk::regular_file::NotUtf8;
use tooltune_files::ConvertError;
use tooltune_grammar::GrammarError;
use tooltune_hub::HubError;
use tooltune_kernels::recording::RecordingError;
use tooltune_pipelines::PipelineError;
use tooltune_ranks::local::{OTHER_RANK_STATUS, StartError};
use tooltune_ranks::{LaunchError, RanksError};
use tooltune_report::ReportError;
use tooltune_rows::batches::BatchError;
use tooltune_rows::examples::ExamplesError;
use tooltune_rows::text::DataError;
use tooltune_sandbox::SandboxError;
use tooltune_score::StreamError;
use tooltune_suites::ranking::RetrievalError;
use tooltune_synth::goat::GoatSynthError;
use tooltune_synth::graph::GraphError;
use tooltune_synth::import::ImportError;
use tooltune_synth::toolqa::SynthError;
use tooltune_template::TemplateError;
use tooltune_traces::TraceError;

use crate::config::{ConfigError, NoLanguageModel};
use crate::lora::LoraError;
use crate::models::config::DecoderConfigError;
use crate::optim::StepError;
use crate::out_of_memory::OutOfMemory;

/// An error that ends a command.
#[derive(Debug, Error)]
pub enum Error {
    /// Invalid config file or option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The command needs a language model, but the config has none.
    #[error(transparent)]
    NoLanguageModel(#[from] NoLanguageModel),
    /// Invalid option or combination of options; the message includes the fix.
    #[error("{0}")]
    Usage(String),
    /// The rows contain nothing that a suite can evaluate.
    #[error("{0}")]
    NothingToEvaluate(String),
    /// Invalid row of a data file.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Invalid conversation or chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Prepared examples on disk cannot be read or written.
    #[error(transparent)]
    Examples(#[from] ExamplesError),
    /// Rows that cannot be converted.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// An example that does not fit into a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Invalid API documents or trajectories, or data that cannot be imported as these.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// Trajectories that cannot be generated.
    #[error(transparent)]
    Synth(#[from] GoatSynthError),
    /// An API graph that cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A judge that cannot score samples; the message includes what to check.
    #[error("{table}: {message}")]
    Judge {
        /// Config table of the judge.
        table: String,
        /// The problem.
        message: String,
    },
    /// Runs that cannot be reported.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Invalid hub name, or a failed hub request.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// An export that was written but not uploaded.
    #[error(
        "{output} was written but not uploaded to the hub: {source}; run the same command again to \
         upload it without exporting again",
        output = output.display()
    )]
    NotPushed {
        /// Path of the export.
        output: PathBuf,
        /// Why the upload failed.
        source: Box<HubError>,
    },
    /// An export whose results differ from its checkpoint.
    #[error(
        "{export} does not compute the same results as its checkpoint ({found}); {fix}",
        export = export.display()
    )]
    ExportDiffers {
        /// Path of the export.
        export: PathBuf,
        /// The comparison in numbers.
        found: String,
        /// How to fix it; depends on the format.
        fix: &'static str,
    },
    /// A merged folder whose config.json transformers cannot load.
    #[error(
        "{export}: transformers cannot load this folder: in config.json, {wrong}; export it again \
         with --to merged, or correct these fields",
        export = export.display()
    )]
    ExportUnloadable {
        /// Path of the export.
        export: PathBuf,
        /// The wrong fields and their types.
        wrong: String,
    },
    /// Suite samples that cannot be prompted or scored, or invalid suite files.
    #[error(transparent)]
    Suite(Box<dyn std::error::Error + Send + Sync>),
    /// A suite's file that cannot be read.
    #[error(transparent)]
    SuiteFile(Box<dyn std::error::Error + Send + Sync>),
    /// Model-generated code that cannot be run safely.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A data set that cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Traces that cannot be imported.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// Questions about tool outputs cannot be generated or imported.
    #[error(transparent)]
    ToolQuestions(#[from] SynthError),
    /// A server that does not return the requested completion or list of tools; the message
    /// includes what to check.
    #[error("{option}: {message}")]
    Endpoint {
        /// Option that names the server.
        option: &'static str,
        /// The problem.
        message: String,
    },
    /// A tokenizer or schema that does not support constrained decoding.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A data pipeline that ended without a result.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A retrieval metric that cannot be computed.
    #[error(transparent)]
    Retrieval(#[from] RetrievalError),
    /// A model, adapter or run directory that cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file or folder that cannot be read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An invalid `config.json` of the model.
    #[error("{path}: {source}")]
    DecoderConfig {
        /// Path of the model.
        path: PathBuf,
        /// The problem in the config.
        source: DecoderConfigError,
    },
    /// A `[lora]` table that does not fit the model.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// A step without a gradient.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The device cannot be opened.
    #[error("{0}")]
    Device(String),
    /// The planned run needs more memory than is available.
    #[error(
        "the run does not fit: it needs {needed}, but only {available} are available. {advice}"
    )]
    DoesNotFit {
        /// Predicted peak, formatted.
        needed: String,
        /// Available memory, formatted.
        available: String,
        /// The largest parts, and which settings to lower.
        advice: String,
    },
    /// The device ran out of memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A user file that cannot be read or written.
    #[error("{path}: cannot {doing}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The attempted operation.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The loss or gradient norm remained NaN or infinite.
    #[error(
        "loss or gradient norm was NaN or infinite for {in_a_row} steps in a row, up to step \
         {step} (rows {rows}); the last good checkpoint is {checkpoint}; lower \
         {learning_rate_key} or check these rows"
    )]
    NonFinite {
        /// Number of consecutive steps.
        in_a_row: usize,
        /// The last of these steps.
        step: u64,
        /// Rows of the batch at that step.
        rows: String,
        /// Newest checkpoint of the run.
        checkpoint: String,
        /// Config key of the learning rate.
        learning_rate_key: &'static str,
    },
    /// The base weights make every loss NaN or infinite.
    #[error(
        "{what}, because base weights are NaN or infinite: {tensors}; download or convert them \
         again"
    )]
    NonFiniteWeights {
        /// The value that is not finite because of these weights.
        what: String,
        /// The files and tensors with weights that are not finite.
        tensors: String,
    },
    /// The logits are not finite although the weights are.
    #[error(
        "the logits after a prompt are NaN or infinite, so no token can be chosen; use another \
         checkpoint, or set model.compute_dtype = \"f32\" if it is \"bf16\""
    )]
    NonFiniteLogits,
    /// A recorded CUDA graph cannot be replayed.
    #[error(
        "the GPU cannot replay the recorded decoding step: {0}; set the environment variable \
         TOOLTUNE_CUDA_GRAPHS=0 to run without CUDA graphs"
    )]
    Recording(#[from] RecordingError),
    /// No step of a run had a finite loss and gradient norm.
    #[error(
        "none of the {steps} steps had a finite loss and gradient norm, so the model was not \
         trained; lower {learning_rate_key}, or check the rows named in the warnings"
    )]
    NeverFinite {
        /// Number of steps.
        steps: u64,
        /// Config key of the learning rate.
        learning_rate_key: &'static str,
    },
    /// An evaluation during a run failed; the run was saved.
    #[error(
        "{source}; saved {checkpoint}; the same command resumes from there and repeats this \
         evaluation"
    )]
    EvaluationFailed {
        /// The failure.
        source: Box<Error>,
        /// Path of the saved checkpoint.
        checkpoint: String,
    },
    /// The examples of a step cannot be read; the run was saved.
    #[error("{source}; saved {checkpoint}; the same command resumes from there")]
    StepFailed {
        /// The failure.
        source: Box<Error>,
        /// Path of the saved checkpoint.
        checkpoint: String,
    },
    /// The disk is too small for the run's checkpoints.
    #[error("not enough disk space for the run: {found}; {remedy}")]
    NoDiskSpace {
        /// Available and needed space.
        found: String,
        /// How to fix it.
        remedy: &'static str,
    },
    /// The reader of standard output closed it. Commands that write a stream then end without a
    /// message.
    #[error("standard output was closed by its reader")]
    ReaderGone,
    /// A signal stopped the run after its state was saved.
    #[error("stopped; saved {checkpoint}; the same command resumes from there")]
    Interrupted {
        /// Path of the saved checkpoint.
        checkpoint: String,
    },
    /// Processes that cannot train together, or of which one was lost.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// NCCL, which connects the GPUs of several ranks, failed.
    #[error("NCCL: {0}")]
    Nccl(String),
    /// Variables of a launcher that do not describe a run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Processes that cannot be started.
    #[error(transparent)]
    StartRanks(#[from] StartError),
    /// The first process of a run ended it.
    #[error("rank 0 ended the run with exit status {exit_code}")]
    LeaderStopped {
        /// Its exit status.
        exit_code: u8,
    },
    /// This process stopped because another one of the run did.
    #[error(transparent)]
    OtherRank(RanksError),
    /// A signal stopped the processes that this one started.
    #[error("the ranks have stopped")]
    RanksStopped {
        /// The exit status for this process.
        exit_code: u8,
    },
    /// One of the processes that this one started failed; it has printed why.
    #[error("rank {rank} failed: {how}")]
    RankFailed {
        /// The rank.
        rank: usize,
        /// Its exit status or signal, in words.
        how: String,
        /// The exit status for this process.
        exit_code: u8,
    },
    /// A signal stopped work other than training.
    #[error("{}: {source}", name_of(*signal))]
    BySignal {
        /// Signal number.
        signal: i32,
        /// How the work ended.
        source: Box<Self>,
    },
    /// A signal stopped an evaluation; the completions so far were saved.
    #[error(
        "stopped; {n_texts} completions are saved in {dir}; the same command resumes from there"
    )]
    StoppedWithTexts {
        /// Number of saved completions.
        n_texts: usize,
        /// Folder of the evaluation.
        dir: String,
    },
    /// A signal stopped work that has nothing to save.
    #[error("stopped; nothing was written")]
    Stopped,
    /// The input or output of `score` failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A `score` input without any lines.
    #[error(
        "{input}: no lines to score; write one JSON object per line as described by `tooltune \
         score --ops`"
    )]
    NothingToScore {
        /// The file, or `standard input`.
        input: String,
    },
    /// Some lines of a `score` input were malformed.
    #[error("{n_malformed} of {n_lines} lines are malformed; see the errors in their output lines")]
    MalformedLines {
        /// Number of malformed lines.
        n_malformed: usize,
        /// Number of all lines.
        n_lines: usize,
    },
}

/// Errors of suites, which become [`Error::Suite`] or [`Error::SuiteFile`].
pub trait SuiteError: std::error::Error + Send + Sync + 'static {
    /// Whether the error is an unreadable file rather than an invalid row.
    fn is_system_error(&self) -> bool {
        false
    }
}

impl<E: SuiteError> From<E> for Error {
    fn from(error: E) -> Self {
        match error.is_system_error() {
            true => Self::SuiteFile(Box::new(error)),
            false => Self::Suite(Box::new(error)),
        }
    }
}

impl Error {
    /// Whether a signal ended the work, rather than a failure.
    pub fn is_stop(&self) -> bool {
        matches!(
            self,
            Self::Stopped
                | Self::StoppedWithTexts { .. }
                | Self::Interrupted { .. }
                | Self::Pipeline(PipelineError::Stopped { .. })
        )
    }

    /// The exit status of the process: 2 config, 3 data, 4 out of device memory, 5 non-finite, 75
    /// stopped by SIGTERM with saved state, 128 plus the signal number if a signal stopped other
    /// work, otherwise 1. A run stopped by SIGINT exits with 130 even if its state was saved: 75
    /// asks a scheduler to restart the run, which a user who pressed Ctrl-C does not want.
    pub fn exit_code(&self) -> u8 {
        match self {
            _ if self.is_unreadable_file() => 1,
            Self::Graph(GraphError::File(_)) => 3,
            Self::Traces(error) if error.is_about_options() => 2,
            Self::Config(_)
            | Self::NoLanguageModel(_)
            | Self::Usage(_)
            | Self::NothingToEvaluate(_)
            | Self::Lora(_)
            | Self::Device(_)
            | Self::Synth(_)
            | Self::Launch(_)
            | Self::Graph(_) => 2,
            Self::Io { source, .. } if is_not_utf8(source) => 3,
            Self::Stream(StreamError::LineWithoutEnd { .. }) => 3,
            Self::Data(_)
            | Self::Template(_)
            | Self::Convert(ConvertError::Rows(_))
            | Self::Tools(_)
            | Self::Batch(_)
            | Self::Grammar(_)
            | Self::Import(_)
            | Self::Traces(_)
            | Self::ToolQuestions(_)
            | Self::Suite(_)
            | Self::Retrieval(_)
            | Self::NothingToScore { .. }
            | Self::MalformedLines { .. } => 3,
            Self::EvaluationFailed { source, .. } | Self::StepFailed { source, .. } => {
                source.exit_code()
            }
            Self::OutOfMemory(_) | Self::DoesNotFit { .. } => 4,
            Self::NonFinite { .. }
            | Self::NonFiniteWeights { .. }
            | Self::NonFiniteLogits
            | Self::NeverFinite { .. } => 5,
            Self::BySignal { signal, source } => match **source {
                Self::StoppedWithTexts { .. }
                | Self::Interrupted { .. }
                | Self::Pipeline(PipelineError::Stopped { .. })
                    if *signal == SIGTERM =>
                {
                    75
                }
                _ => u8::try_from(128 + signal).unwrap_or(1),
            },
            Self::Interrupted { .. } | Self::StoppedWithTexts { .. } => 75,
            // The launcher may start the run again, which resumes from its last checkpoint.
            Self::Ranks(
                RanksError::Lost { .. } | RanksError::Silent { .. } | RanksError::Stalled { .. },
            ) => 75,
            // An error of one rank ends all with its exit status.
            Self::Ranks(RanksError::Ended {
                status: Some(status),
                ..
            })
            | Self::OtherRank(RanksError::Ended {
                status: Some(status),
                ..
            }) => *status,
            Self::LeaderStopped { exit_code }
            | Self::RanksStopped { exit_code }
            | Self::RankFailed { exit_code, .. } => *exit_code,
            Self::OtherRank(_) => u8::try_from(OTHER_RANK_STATUS).unwrap_or(1),
            Self::ReaderGone => 0,
            Self::Pipeline(error) => pipelines::exit_code(error),
            Self::Hub(HubError::Name(_)) => 2,
            Self::Hub(_) => 1,
            Self::Stopped
            | Self::Convert(_)
            | Self::Examples(_)
            | Self::SuiteFile(_)
            | Self::Stream(_)
            | Self::Judge { .. }
            | Self::Endpoint { .. }
            | Self::Sandbox(_)
            | Self::Report(_)
            | Self::NotPushed { .. }
            | Self::ExportDiffers { .. }
            | Self::ExportUnloadable { .. }
            | Self::Checkpoint(_)
            | Self::Disk(_)
            | Self::DecoderConfig { .. }
            | Self::Step(_)
            | Self::Recording(_)
            | Self::NoDiskSpace { .. }
            | Self::Ranks(_)
            | Self::Nccl(_)
            | Self::StartRanks(_)
            | Self::Io { .. } => 1,
        }
    }

    /// The exit status with which the other ranks of a run end after this error of one rank. `None`
    /// if a signal or the loss of a rank caused it.
    pub fn status_for_other_ranks(&self) -> Option<u8> {
        match self {
            Self::Ranks(error) | Self::OtherRank(error) => error.status(),
            Self::EvaluationFailed { source, .. } | Self::StepFailed { source, .. } => {
                source.status_for_other_ranks()
            }
            error if error.is_stop() => None,
            error => Some(error.exit_code()),
        }
    }

    /// Whether the error is an unreadable data file rather than an invalid row.
    fn is_unreadable_file(&self) -> bool {
        match self {
            Self::Data(error) | Self::Convert(ConvertError::Rows(error)) => error.is_system_error(),
            Self::Template(error) => error.is_system_error(),
            Self::Tools(error)
            | Self::Graph(GraphError::File(error))
            | Self::Import(ImportError::Tools(error))
            | Self::ToolQuestions(SynthError::File(error)) => error.is_system_error(),
            Self::Import(ImportError::Folder { .. }) => true,
            Self::Traces(error) => error.is_system_error(),
            _ => false,
        }
    }

    /// Wraps the failure of an evaluation with the result of saving the run afterwards.
    pub(crate) fn with_saved(self, saved: Result<PathBuf, Self>) -> Self {
        match saved {
            Ok(checkpoint) => Self::EvaluationFailed {
                source: Box::new(self),
                checkpoint: checkpoint.display().to_string(),
            },
            Err(error) => {
                tracing::warn!("the run could not be saved after its evaluation failed: {error}");
                self
            }
        }
    }

    /// Wraps the failure of a step with the result of saving the run in its state before the step.
    pub(crate) fn with_saved_step(self, saved: Result<PathBuf, Self>) -> Self {
        match saved {
            Ok(checkpoint) => Self::StepFailed {
                source: Box::new(self),
                checkpoint: checkpoint.display().to_string(),
            },
            Err(error) => {
                tracing::warn!("the run could not be saved after its step failed: {error}");
                self
            }
        }
    }

    pub(crate) fn io(
        path: &std::path::Path,
        doing: &'static str,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            path,
            doing,
            source,
        }
    }
}

fn is_not_utf8(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<NotUtf8>())
}

fn name_of(signal: i32) -> &'static str {
    match signal {
        SIGTERM => "SIGTERM",
        _ => "SIGINT",
    }
}
