//! Evaluates suites that ask one prompt per sample: requests, constraints, generation, journal, and
//! scoring of saved predictions.
//!
//! Such a suite implements [`PromptSuite`] with its prompts and its scores. Suites whose samples
//! need several completions, such as agents, implement [`LoadedSuite`] themselves.

use std::cell::OnceCell;
use std::fmt::Debug;
use std::path::Path;

use serde_json::Value;
use tooltune_suites::SuiteInfo;
use tooltune_template::Conversation;

use super::{EvalContext, Files, LoadedSuite, SuiteResult};
use crate::config::{EvalConfig, Suite};
use crate::error::Error;
use crate::eval::constraints::{Constraints, Unsupported};
use crate::eval::generator::{Completion, GenerationRequest, Generator, PromptText, Rounds};
use crate::eval::journal::Journal;
use crate::eval::prediction::{FailedTry, Prediction};
use crate::eval::saved::{Joined, JoinedRows, join_saved, read_saved};
use tooltune_terminal::GenerationProgress;

/// A suite with one prompt per sample.
pub(super) trait PromptSuite: Debug {
    /// The answer to a sample, as it is scored.
    type Answer: Answer;

    /// Registry entry of the suite.
    fn info(&self) -> &'static SuiteInfo;

    /// The ids of its samples, in order.
    fn ids(&self) -> Vec<&str>;

    /// How saved predictions are joined with the samples.
    fn join(&self) -> JoinBy;

    /// Builds the prompt of a sample.
    ///
    /// # Errors
    ///
    /// The prompt cannot be built from the sample.
    fn prompt(&self, sample: usize) -> Result<PromptText<'_>, Error>;

    /// Scores one answer per sample, in the order of the samples.
    ///
    /// # Errors
    ///
    /// A judge or a sandbox that fails, or [`Error::Stopped`] if `scoring.watch` ended the work.
    fn score(&self, answers: Vec<Self::Answer>, scoring: Scoring<'_>)
    -> Result<SuiteResult, Error>;

    /// Warnings about the data, shown before anything is generated.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Rejects a model whose completions the suite cannot score.
    ///
    /// # Errors
    ///
    /// The suite cannot score this model.
    fn check(&self, _: &Generator<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Compiles the constraints of `eval.constrained`.
    ///
    /// # Errors
    ///
    /// The tokenizer does not support constrained decoding, or a schema cannot be built.
    fn constraints(&self, _: &Generator<'_>) -> Result<Constraints, Error> {
        Ok(Constraints::default())
    }

    /// Maximum number of further completions of a sample whose completion is rejected.
    fn max_retries(&self) -> usize {
        0
    }

    /// Checks the completion of a sample; `None` if it is accepted. `retried` is the prompt if it
    /// is not the first one.
    fn rejection(
        &self,
        _sample: usize,
        _retried: Option<&Conversation>,
        _completion: &Completion,
    ) -> Option<Rejection> {
        None
    }
}

/// Why a completion is rejected.
#[derive(Debug)]
pub(super) struct Rejection {
    /// The messages after the completion.
    pub feedback: Vec<String>,
    /// The next prompt: the previous one, the completion, and the messages.
    pub conversation: Conversation,
}

/// An answer to score, from a new completion or from a line of saved predictions.
pub(super) trait Answer: Sized {
    /// Converts the completion of the sample with this id to its answer.
    fn from_completion(id: &str, completion: Completion) -> Self;

    /// Reads an answer from a line of saved predictions.
    ///
    /// # Errors
    ///
    /// The line lacks a field, or a field has another type.
    fn from_line(line: Value) -> Result<Self, String>;

    /// Adds the earlier, rejected completions.
    #[must_use]
    fn with_failed_tries(self, _: Vec<FailedTry>) -> Self {
        self
    }
}

impl Answer for Prediction {
    fn from_completion(id: &str, completion: Completion) -> Self {
        Self::new(id.to_owned(), completion)
    }

    fn from_line(line: Value) -> Result<Self, String> {
        Self::parse_line(line)
    }

    fn with_failed_tries(self, failed_tries: Vec<FailedTry>) -> Self {
        Self {
            failed_tries,
            ..self
        }
    }
}

impl Answer for Completion {
    fn from_completion(_: &str, completion: Completion) -> Self {
        completion
    }

    fn from_line(line: Value) -> Result<Self, String> {
        Prediction::parse_line(line).map(Self::from)
    }
}

/// How saved predictions are joined with samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct JoinBy {
    /// The plural noun for samples in messages.
    pub noun: &'static str,
    /// Whether ids are positions in files, such as `dev.jsonl:3`. The folder of the file is then
    /// ignored.
    pub ids_are_positions: bool,
    /// The field of the id in published predictions, if it is not `id`.
    pub published_id: Option<&'static str>,
}

/// Inputs for scoring a suite.
pub(super) struct Scoring<'c> {
    /// The samples that were generated without their constraint; `None` if nothing is constrained.
    pub unsupported: Option<&'c [Unsupported]>,
    /// Keeps files that must survive the failure of a judge.
    pub keep: &'c mut dyn FnMut(&Files) -> Result<(), Error>,
    /// Receives the progress; `false` stops the work.
    pub watch: &'c mut dyn FnMut(GenerationProgress) -> bool,
}

/// Settings that all suites with one prompt per sample share.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptSettings {
    pub max_new_tokens: usize,
    pub constrained: bool,
    /// Whether `eval.max_samples` is set, so that samples may be left out.
    pub is_limited: bool,
}

impl PromptSettings {
    pub(super) fn from_config(eval: &EvalConfig) -> Self {
        Self {
            max_new_tokens: eval.max_new_tokens,
            constrained: eval.constrained,
            is_limited: eval.max_samples.is_some(),
        }
    }
}

/// A [`PromptSuite`] with its settings and compiled constraints.
#[derive(Debug)]
pub(super) struct PromptEvaluation<S> {
    suite: S,
    settings: PromptSettings,
    /// Compiled at the first evaluation.
    constraints: OnceCell<Constraints>,
}

impl<S: PromptSuite + 'static> PromptEvaluation<S> {
    /// Wraps the suite for evaluations.
    pub(super) fn into_loaded(suite: S, settings: PromptSettings) -> Box<dyn LoadedSuite> {
        Box::new(Self {
            suite,
            settings,
            constraints: OnceCell::new(),
        })
    }

    fn requests<'a>(
        &'a self,
        constraints: Option<&'a Constraints>,
    ) -> Result<Vec<GenerationRequest<'a>>, Error> {
        requests(&self.suite, self.settings.max_new_tokens, constraints)
    }

    /// Generates rejected completions again, and returns the rejected ones of each sample. `None` if
    /// `watch` stopped the work.
    fn retry(
        &self,
        generator: &Generator<'_>,
        requests: &[GenerationRequest<'_>],
        texts: &mut [Completion],
        mut journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Vec<FailedTry>>>, Error> {
        let mut rounds = Rounds::new(texts.len());
        let mut failed: Vec<Vec<FailedTry>> = texts.iter().map(|_| Vec::new()).collect();
        let mut retried: Vec<Option<Conversation>> = texts.iter().map(|_| None).collect();
        // Completions that were accepted once do not change.
        let mut pending: Vec<usize> = (0..texts.len()).collect();
        for _ in 0..self.suite.max_retries() {
            let rejections = pending.iter().filter_map(|&sample| {
                let retried = retried[sample].as_ref();
                let rejection = self.suite.rejection(sample, retried, &texts[sample])?;
                Some((sample, rejection))
            });
            let rejections: Vec<(usize, Rejection)> = rejections.collect();
            if rejections.is_empty() {
                break;
            }
            pending = rejections.iter().map(|(sample, _)| *sample).collect();
            let prompts = rejections
                .iter()
                .map(|(sample, rejection)| GenerationRequest {
                    text: PromptText::Chat(&rejection.conversation),
                    ..requests[*sample]
                });
            let prompts: Vec<GenerationRequest<'_>> = prompts.collect();
            let n_done = texts.len() - prompts.len();
            let journal = journal.as_deref_mut();
            let Some(new) = rounds.write(generator, &prompts, n_done, journal, watch)? else {
                return Ok(None);
            };
            for ((sample, rejection), completion) in rejections.into_iter().zip(new) {
                let rejected = std::mem::replace(&mut texts[sample], completion);
                failed[sample].push(FailedTry::new(rejected, rejection.feedback));
                retried[sample] = Some(rejection.conversation);
            }
        }
        Ok(Some(failed))
    }

    /// The constraints, with a warning at the first evaluation about samples that have none.
    fn constraints(&self, generator: &Generator<'_>) -> Result<Option<&Constraints>, Error> {
        if !self.settings.constrained {
            return Ok(None);
        }
        if let Some(constraints) = self.constraints.get() {
            return Ok(Some(constraints));
        }
        let constraints = self.suite.constraints(generator)?;
        if let Some(line) = constraints.line(self.n_samples()) {
            tracing::warn!("{line}");
        }
        Ok(Some(self.constraints.get_or_init(|| constraints)))
    }
}

/// One request per sample.
///
/// # Errors
///
/// Same as [`PromptSuite::prompt`].
pub(super) fn requests<'a, S: PromptSuite>(
    suite: &'a S,
    max_new_tokens: usize,
    constraints: Option<&'a Constraints>,
) -> Result<Vec<GenerationRequest<'a>>, Error> {
    let ids = suite.ids().into_iter().enumerate();
    ids.map(|(sample, id)| {
        Ok(GenerationRequest {
            id,
            text: suite.prompt(sample)?,
            max_new_tokens,
            constraint: constraints.and_then(|all| all.prompt_constraint(sample)),
        })
    })
    .collect()
}

/// The result, or `None` if the work was stopped.
pub(super) fn unless_stopped(
    scored: Result<SuiteResult, Error>,
) -> Result<Option<SuiteResult>, Error> {
    match scored {
        Err(Error::Stopped) => Ok(None),
        scored => scored.map(Some),
    }
}

/// Scores saved predictions, joined by id. `is_limited`: as in [`PromptSettings`]. `None` if the work
/// was stopped.
///
/// # Errors
///
/// The file cannot be read, or its ids do not match the samples.
pub(super) fn score_saved<S: PromptSuite>(
    suite: &S,
    is_limited: bool,
    path: &Path,
    context: EvalContext<'_>,
) -> Result<Option<SuiteResult>, Error> {
    let JoinBy {
        noun,
        ids_are_positions,
        published_id,
    } = suite.join();
    let rows = JoinedRows {
        what: noun,
        ids: suite.ids(),
        are_places: ids_are_positions,
        are_limited: is_limited,
    };
    let saved = read_saved(path, suite.info(), published_id, S::Answer::from_line)?;
    let Joined { values, note } = join_saved(path, saved, &rows)?;
    let scoring = Scoring {
        unsupported: None,
        keep: context.keep,
        watch: context.watch,
    };
    let mut scored = unless_stopped(suite.score(values, scoring))?;
    if let Some(result) = &mut scored {
        result.notes.extend(note);
    }
    Ok(scored)
}

impl<S: PromptSuite + 'static> LoadedSuite for PromptEvaluation<S> {
    fn suite(&self) -> Suite {
        Suite::from_info(self.suite.info())
    }

    fn n_samples(&self) -> usize {
        self.suite.ids().len()
    }

    fn remarks(&self) -> Vec<String> {
        self.suite.remarks()
    }

    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        self.requests(None)
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        self.suite.check(&generator)?;
        let EvalContext {
            mut journal,
            keep,
            watch,
            ..
        } = context;
        let constraints = self.constraints(&generator)?;
        let requests = self.requests(constraints)?;
        let texts = generator.write(&requests, journal.as_deref_mut(), watch)?;
        let Some(mut texts) = texts else {
            return Ok(None);
        };
        let failed = self.retry(&generator, &requests, &mut texts, journal, watch)?;
        let Some(failed) = failed else {
            return Ok(None);
        };
        let answers = self.suite.ids().into_iter().zip(texts).zip(failed);
        let answers = answers.map(|((id, completion), failed)| {
            S::Answer::from_completion(id, completion).with_failed_tries(failed)
        });
        let enforced = constraints.filter(|constraints| !constraints.by_prompt.is_empty());
        let scoring = Scoring {
            unsupported: enforced.map(|constraints| constraints.unsupported.as_slice()),
            keep,
            watch,
        };
        unless_stopped(self.suite.score(answers.collect(), scoring))
    }

    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        score_saved(&self.suite, self.settings.is_limited, path, context)
    }
}
