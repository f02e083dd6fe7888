//! Everything that ends a command, and the exit status it ends with.

use std::path::PathBuf;

use signal_hook::consts::SIGTERM;
use thiserror::Error;
use tooltune_checkpoints::CheckpointError;
use tooltune_files::ConvertError;
use tooltune_grammar::GrammarError;
use tooltune_hub::HubError;
use tooltune_kernels::recording::RecordingError;
use tooltune_pipelines::PipelineError;
use tooltune_report::ReportError;
use tooltune_rows::batches::BatchError;
use tooltune_rows::examples::ExamplesError;
use tooltune_rows::text::DataError;
use tooltune_rows::tools::ToolsError;
use tooltune_sandbox::SandboxError;
use tooltune_suites::ranking::RetrievalError;
use tooltune_synth::goat::GoatSynthError;
use tooltune_synth::graph::GraphError;
use tooltune_synth::import::ImportError;

use crate::config::{ConfigError, NoLanguageModel};
use crate::lora::LoraError;
use crate::models::config::DecoderConfigError;
use crate::optim::StepError;
use crate::out_of_memory::OutOfMemory;

/// Why a command ended without its result.
#[derive(Debug, Error)]
pub enum Error {
    /// The config file or an option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A command for a language model on a config that has none.
    #[error(transparent)]
    NoLanguageModel(#[from] NoLanguageModel),
    /// An option or a combination of them, with how to fix it.
    #[error("{0}")]
    Usage(String),
    /// Rows in which a suite finds nothing to ask.
    #[error("{0}")]
    NothingToAsk(String),
    /// A row of a data file.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Prepared examples on disk.
    #[error(transparent)]
    Examples(#[from] ExamplesError),
    /// Rows that cannot be converted.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// An example that fits no batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// API documents, trajectories or what is imported as such.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// Trajectories that cannot be made.
    #[error(transparent)]
    Synth(#[from] GoatSynthError),
    /// A graph of APIs that cannot be made.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A judge that cannot say which samples are right, with what to check.
    #[error("{table}: {message}")]
    Judge {
        /// Where the judge stands in the config.
        table: String,
        /// What is wrong.
        message: String,
    },
    /// Runs that cannot be shown.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// What a name of the hub means, or the hub itself.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// An export that was written and not uploaded.
    #[error(
        "{output} is written, and not on the hub: {source}; the same upload may be tried again with \
         `hf upload`",
        output = output.display()
    )]
    NotPushed {
        /// What was exported.
        output: PathBuf,
        /// Why it was not uploaded.
        source: Box<HubError>,
    },
    /// An export that computes something else than its checkpoint.
    #[error(
        "{export} computes something else than its checkpoint ({found}); {fix}",
        export = export.display()
    )]
    ExportDiffers {
        /// What was exported.
        export: PathBuf,
        /// The comparison in numbers.
        found: String,
        /// What to do, which depends on the format.
        fix: &'static str,
    },
    /// Samples of a suite that cannot be asked for or scored, or files of its own.
    #[error(transparent)]
    Suite(Box<dyn std::error::Error + Send + Sync>),
    /// Code of a model that cannot be run safely.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A data set that cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A server that does not write what it is asked for, with what to check.
    #[error("{option}: {message}")]
    Endpoint {
        /// The option that names it.
        option: &'static str,
        /// What is wrong.
        message: String,
    },
    /// A tokenizer or schema that cannot constrain what is written.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A data pipeline that ended without its result.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A measure of retrieval that cannot be computed.
    #[error(transparent)]
    Retrieval(#[from] RetrievalError),
    /// A model, adapter or run directory.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model's `config.json`.
    #[error("{path}: {source}")]
    DecoderConfig {
        /// Where the model lies.
        path: PathBuf,
        /// What is wrong with its config.
        source: DecoderConfigError,
    },
    /// The `[lora]` table beside the model.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// A step without a gradient.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The device cannot be opened.
    #[error("{0}")]
    Device(String),
    /// A plan of a run that needs more memory than there is.
    #[error("the run does not fit: it needs {needed}, and {available} are available. {advice}")]
    DoesNotFit {
        /// The predicted peak, for people.
        needed: String,
        /// What is available, for people.
        available: String,
        /// What costs most, and what to lower.
        advice: String,
    },
    /// The device had no memory left.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A file of the user's.
    #[error("{path}: cannot {doing}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The loss stayed NaN or infinite.
    #[error(
        "loss or gradient norm was not finite in {in_a_row} steps in a row, up to step {step} \
         (rows {rows}); the last good checkpoint is {checkpoint}; \
         lower {learning_rate_key} or look at these rows"
    )]
    NonFinite {
        /// Consecutive steps.
        in_a_row: usize,
        /// The last of them.
        step: u64,
        /// Rows of its batch.
        rows: String,
        /// The newest checkpoint of the run.
        checkpoint: String,
        /// The key of the learning rate.
        learning_rate_key: &'static str,
    },
    /// The weights of the base make every loss NaN or infinite.
    #[error(
        "{what}, because weights of the base are not finite: {tensors}; fetch or convert them again"
    )]
    NonFiniteWeights {
        /// What is not finite because of them.
        what: String,
        /// Files and tensors.
        tensors: String,
    },
    /// The logits of a model whose weights are finite are not.
    #[error(
        "the logits after a prompt are NaN or infinite, so that no token can be chosen; take another \
         checkpoint, or model.compute_dtype = \"f32\" where it is \"bf16\""
    )]
    NonFiniteLogits,
    /// Launches that were recorded cannot be made again.
    #[error(
        "a GPU does not compute the next tokens as it did those before: {0}; with the environment \
         variable TOOLTUNE_CUDA_GRAPHS=0 it is not asked to"
    )]
    Recording(#[from] RecordingError),
    /// No step of a run had a finite loss and gradient.
    #[error(
        "none of the {steps} steps had a finite loss and gradient norm, so that nothing was learned; \
         lower {learning_rate_key}, or look at the rows that the warnings name"
    )]
    NeverFinite {
        /// All steps.
        steps: u64,
        /// The key of the learning rate.
        learning_rate_key: &'static str,
    },
    /// An evaluation within a run failed; the run itself was saved.
    #[error(
        "{source}; saved {checkpoint}; the same command resumes from there, with this evaluation"
    )]
    EvaluationFailed {
        /// What went wrong.
        source: Box<Error>,
        /// Where the run was saved.
        checkpoint: String,
    },
    /// A signal ended the run after its state was saved.
    #[error("stopped; saved {checkpoint}; the same command resumes from there")]
    Interrupted {
        /// Where the state was saved.
        checkpoint: String,
    },
    /// A signal ended work that is no training.
    #[error("{} came: {source}", name_of(*signal))]
    BySignal {
        /// Its number.
        signal: i32,
        /// What became of the work.
        source: Box<Self>,
    },
    /// A signal ended an evaluation whose texts so far are kept.
    #[error("stopped; {n_texts} texts are in {dir}; the same command resumes from there")]
    StoppedWithTexts {
        /// How many there are.
        n_texts: usize,
        /// The folder of the evaluation.
        dir: String,
    },
    /// A signal ended work that has nothing to save.
    #[error("stopped; nothing was written")]
    Stopped,
    /// The input or output of `score` broke off.
    #[error(transparent)]
    Stream(#[from] tooltune_score::StreamError),
    /// A `score` input without a line.
    #[error(
        "{input}: there is no line to score; give one JSON object a line, as `tooltune score --ops` \
         describes them"
    )]
    NothingToScore {
        /// The file, or `standard input`.
        input: String,
    },
    /// Some lines of a `score` input were malformed.
    #[error("{n_malformed} of {n_lines} lines were malformed; their answers say why")]
    MalformedLines {
        /// Lines with an error of form.
        n_malformed: usize,
        /// All lines.
        n_lines: usize,
    },
}

/// The exit status after a data pipeline.
fn of_pipeline(error: &PipelineError) -> u8 {
    match error {
        PipelineError::OtherSettings { .. }
        | PipelineError::PromptFolder { .. }
        | PipelineError::NoStage { .. }
        | PipelineError::StageBefore { .. }
        | PipelineError::Usage(_) => 2,
        PipelineError::Graph(GraphError::File(_)) => 3,
        PipelineError::Graph(_) => 2,
        PipelineError::Data(_)
        | PipelineError::Input(_)
        | PipelineError::Item { .. }
        | PipelineError::JournalHead { .. } => 3,
        PipelineError::Stopped { .. } => 75,
        _ => 1,
    }
}

/// The error of a suite, which becomes [`Error::Suite`].
pub trait SuiteError: std::error::Error + Send + Sync + 'static {}

impl<E: SuiteError> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Suite(Box::new(error))
    }
}

impl Error {
    /// Whether a signal, and nothing that is wrong, has ended the work.
    pub fn is_stop(&self) -> bool {
        matches!(
            self,
            Self::Stopped
                | Self::StoppedWithTexts { .. }
                | Self::Interrupted { .. }
                | Self::Pipeline(PipelineError::Stopped { .. })
        )
    }

    /// The process's exit status: 2 config, 3 data, 4 no memory left on the device, 5 non-finite, 75
    /// preempted by SIGTERM and saved, 128 and the number of a signal that ended other work, else 1.
    /// SIGINT gives 130 for what is saved, too: who typed it needs no second run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Graph(GraphError::File(_)) => 3,
            Self::Config(_)
            | Self::NoLanguageModel(_)
            | Self::Usage(_)
            | Self::NothingToAsk(_)
            | Self::Lora(_)
            | Self::Device(_)
            | Self::Synth(_)
            | Self::Graph(_) => 2,
            Self::Data(DataError::Read(error)) | Self::Tools(ToolsError::Read(error))
                if error.is_of_the_system() =>
            {
                1
            }
            Self::Data(_)
            | Self::Convert(ConvertError::Rows(_))
            | Self::Tools(_)
            | Self::Batch(_)
            | Self::Grammar(_)
            | Self::Import(_)
            | Self::Suite(_)
            | Self::Retrieval(_)
            | Self::NothingToScore { .. }
            | Self::MalformedLines { .. } => 3,
            Self::EvaluationFailed { source, .. } => source.exit_code(),
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
            Self::Pipeline(error) => of_pipeline(error),
            Self::Hub(HubError::Name(_)) => 2,
            Self::Hub(_) => 1,
            Self::Stopped
            | Self::Convert(_)
            | Self::Examples(_)
            | Self::Stream(_)
            | Self::Judge { .. }
            | Self::Endpoint { .. }
            | Self::Sandbox(_)
            | Self::Report(_)
            | Self::NotPushed { .. }
            | Self::ExportDiffers { .. }
            | Self::Checkpoint(_)
            | Self::DecoderConfig { .. }
            | Self::Step(_)
            | Self::Recording(_)
            | Self::Io { .. } => 1,
        }
    }

    /// The failure of an evaluation whose run was saved afterwards, or could not be.
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

fn name_of(signal: i32) -> &'static str {
    match signal {
        SIGTERM => "SIGTERM",
        _ => "SIGINT",
    }
}
