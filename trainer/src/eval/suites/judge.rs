//! A table of a judge to verdicts on whatever a suite shows to it.

use std::time::Instant;

use serde::Serialize;
use tooltune_endpoint::{ChatEndpoint, ChatOptions, EndpointOptions, EndpointProgress};
use tooltune_suites::{JudgeError, JudgeOptions, JudgeVerdict, n_unanswered, n_unparsed};

use crate::config::JudgeConfig;
use crate::error::Error;
use crate::progress::{GenerationProgress, Waiting, Work};

/// A model behind an endpoint that says which queries are solved, or which answers are right.
#[derive(Debug)]
pub(super) struct Judge {
    /// Where its table stands.
    table: String,
    endpoint: ChatEndpoint,
    options: JudgeOptions,
}

/// What `metrics.json` says of the judging.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct JudgeSummary {
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
    pub(super) fn line(&self, judged: &str, counts_as: &str) -> String {
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
pub(super) struct Judged {
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
    pub(super) fn open(table: &str, config: &JudgeConfig) -> Result<Self, Error> {
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
            table: table.to_owned(),
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

    /// What `ask` hears from the judge, which is given the server, how to ask it and whom to tell of
    /// the progress.
    pub(super) fn verdicts(
        &self,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        ask: impl FnOnce(
            &ChatEndpoint,
            &JudgeOptions,
            &mut dyn FnMut(EndpointProgress) -> bool,
        ) -> Result<Vec<JudgeVerdict>, JudgeError>,
    ) -> Judged {
        let mut watch = self.watching(watch);
        self.judged(ask(&self.endpoint, &self.options, &mut watch))
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
                work: Work::Judging,
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
    pub(super) fn summary(&self, verdicts: &[JudgeVerdict]) -> JudgeSummary {
        JudgeSummary {
            model: self.endpoint.model().to_string(),
            n: verdicts.len(),
            n_unparsed: n_unparsed(verdicts),
            n_unanswered: n_unanswered(verdicts),
        }
    }

    fn judged(&self, judged: Result<Vec<JudgeVerdict>, JudgeError>) -> Judged {
        let (verdicts, failure) = match judged {
            Ok(verdicts) => (verdicts, None),
            Err(JudgeError::Stopped { judged }) => (judged, Some(Error::Stopped)),
            Err(error) => {
                let failure = Error::Judge {
                    table: self.table.clone(),
                    message: error.to_string(),
                };
                let judged = match error {
                    JudgeError::Endpoint { judged, .. } => judged,
                    _ => Vec::new(),
                };
                (judged, Some(failure))
            }
        };
        Judged { verdicts, failure }
    }
}
