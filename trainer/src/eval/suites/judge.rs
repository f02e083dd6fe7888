//! A table of a judge to verdicts on the outcomes of loops and on answers.

use std::time::Instant;

use serde::Serialize;
use tooltune_agents::Outcome;
use tooltune_endpoint::{ChatEndpoint, ChatOptions, EndpointOptions, EndpointProgress};
use tooltune_suites::goat::{
    JudgeError, JudgeOptions, JudgeSample, JudgeVerdict, judge_samples, n_unanswered, n_unparsed,
};
use tooltune_suites::toolqa::{self, ToolQaSample, judge_answers, n_neither};

use super::agents::AgentTask;
use crate::config::JudgeConfig;
use crate::error::Error;
use crate::progress::{GenerationProgress, Waiting};

/// Where the judge of agents stands in a config.
pub const GOAT_JUDGE: &str = "goat.judge";

/// A model behind an endpoint that says which queries are solved, or which answers are right.
#[derive(Debug)]
pub struct Judge {
    endpoint: ChatEndpoint,
    options: JudgeOptions,
}

/// What `metrics.json` says of the judging.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JudgeSummary {
    /// The server's name of the model.
    pub model: String,
    /// Queries that were judged.
    pub n: usize,
    /// Queries without a verdict that could be read; they count as unsolved.
    pub n_unparsed: usize,
    /// Those of them that the judge refused or did not answer, though it answered others.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_unanswered: usize,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl JudgeSummary {
    /// What a user is told: of what was judged, what could not be read, and what that counts as.
    pub fn line(&self, judged: &str, counts_as: &str) -> String {
        let Self {
            model,
            n,
            n_unparsed,
            n_unanswered,
        } = self;
        let mut line = format!(
            "{model} judged {n} {judged}; {n_unparsed} replies could not be read and count as \
             {counts_as}"
        );
        if *n_unanswered > 0 {
            line += &format!(
                ", {n_unanswered} of them because the judge refused or did not answer; judge.jsonl \
                 says why"
            );
        }
        line
    }
}

/// Verdicts in the order of the queries, or why there are not all of them.
#[derive(Debug)]
pub struct Judged {
    /// Those that there are.
    pub verdicts: Vec<JudgeVerdict>,
    /// What ended the judging before its end.
    pub failure: Option<Error>,
}

impl Judge {
    /// Nothing is sent yet; `table` is where the config stands, for messages.
    ///
    /// # Errors
    ///
    /// An address that is none, or the variable of the key is not set.
    pub fn open(table: &str, config: &JudgeConfig) -> Result<Self, Error> {
        let options = EndpointOptions {
            api_key_env: config.api_key_env.clone(),
            timeout_secs: config.timeout_secs,
            total_secs: config.total_secs,
            retries: config.retries,
            ..EndpointOptions::new(config.base_url.clone(), config.model.clone())
        };
        let endpoint = ChatEndpoint::new(&options)
            .map_err(|error| Error::Usage(format!("{table}: {error}")))?;
        let defaults = JudgeOptions::default();
        Ok(Self {
            endpoint,
            options: JudgeOptions {
                attempts: config.attempts,
                concurrency: config.concurrency,
                chat: ChatOptions {
                    max_tokens: Some(config.max_tokens),
                    ..defaults.chat
                },
                ..defaults
            },
        })
    }

    /// Has every outcome judged.
    pub fn judge(
        &self,
        tasks: &[AgentTask],
        outcomes: &[Outcome],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Judged {
        let samples: Vec<JudgeSample> = tasks
            .iter()
            .zip(outcomes)
            .map(|(task, outcome)| JudgeSample::of_outcome(&task.id, &task.query, outcome))
            .collect();
        let mut watch = self.watching(watch);
        Judged::of(judge_samples(
            &self.endpoint,
            &samples,
            &self.options,
            &mut watch,
        ))
    }

    /// Has every answer judged by the question's gold.
    pub fn judge_answers(
        &self,
        samples: &[ToolQaSample],
        prompts: &toolqa::PromptSet,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Judged {
        let mut watch = self.watching(watch);
        Judged::of(judge_answers(
            &self.endpoint,
            samples,
            prompts,
            &self.options,
            &mut watch,
        ))
    }

    /// The progress of the judging as that of a generation.
    fn watching<'a>(
        &'a self,
        watch: &'a mut dyn FnMut(GenerationProgress) -> bool,
    ) -> impl FnMut(EndpointProgress) -> bool + 'a {
        let (mut n_before, mut last) = (0, Instant::now());
        move |progress: EndpointProgress| {
            if progress.n_done > n_before {
                (n_before, last) = (progress.n_done, Instant::now());
            }
            watch(GenerationProgress {
                n_done: progress.n_done,
                n_total: progress.n_all,
                n_tokens: 0,
                waiting: Some(Waiting {
                    what: "requests to the judge",
                    n: self
                        .options
                        .concurrency
                        .min(progress.n_all - progress.n_done),
                    seconds: last.elapsed().as_secs(),
                }),
            })
        }
    }

    /// What is to be said of verdicts.
    pub fn summary(&self, verdicts: &[JudgeVerdict]) -> JudgeSummary {
        JudgeSummary {
            model: self.endpoint.model().to_string(),
            n: verdicts.len(),
            n_unparsed: n_unparsed(verdicts),
            n_unanswered: n_unanswered(verdicts),
        }
    }

    /// As [`Judge::summary`], of answers about outputs of tools: a reply that says neither true nor
    /// false is a no, as published, and is counted as one that could not be read.
    pub fn summary_of_answers(&self, verdicts: &[JudgeVerdict]) -> JudgeSummary {
        JudgeSummary {
            n_unparsed: n_neither(verdicts),
            ..self.summary(verdicts)
        }
    }
}

impl Judged {
    fn of(judged: Result<Vec<JudgeVerdict>, JudgeError>) -> Self {
        let (verdicts, failure) = match judged {
            Ok(verdicts) => (verdicts, None),
            Err(JudgeError::Stopped { judged }) => (judged, Some(Error::Stopped)),
            Err(error) => {
                let failure = Error::Judge(error.to_string());
                let judged = match error {
                    JudgeError::Endpoint { judged, .. } => judged,
                    _ => Vec::new(),
                };
                (judged, Some(failure))
            }
        };
        Self { verdicts, failure }
    }
}
