//! A language-model judge for the outcomes of suites, opened from a table of the config.

use std::time::Instant;

use serde::Serialize;
use tooltune_endpoint::{ChatEndpoint, ChatOptions, EndpointOptions, EndpointProgress};
use tooltune_suites::{JudgeError, JudgeOptions, JudgeVerdict, n_unanswered, n_unparsed};

use crate::config::JudgeConfig;
use crate::error::Error;
use tooltune_terminal::{GenerationProgress, Waiting, Work};

/// A model behind an endpoint that decides which queries are solved, or which answers are correct.
#[derive(Debug)]
pub(super) struct Judge {
    /// Config table of the judge.
    table: String,
    endpoint: ChatEndpoint,
    options: JudgeOptions,
}

/// Summary of the judging in `metrics.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct JudgeSummary {
    /// Model name on the server.
    pub model: String,
    /// Number of judged queries.
    pub n: usize,
    /// Queries without a parsable verdict; they count as unsolved.
    pub n_unparsed: usize,
    /// The number of these queries that the judge rejected or did not answer, although it answered
    /// others.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_unanswered: usize,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl JudgeSummary {
    /// Describes the judging; `counts_as` is how unparsable replies are scored.
    pub(super) fn line(&self, judged: &str, counts_as: &str) -> String {
        let Self {
            model,
            n,
            n_unparsed,
            n_unanswered,
        } = self;
        let mut line = format!(
            "{model} judged {n} {judged}; {n_unparsed} replies could not be parsed and count as \
             {counts_as}"
        );
        if *n_unanswered > 0 {
            line += &format!(
                ", {n_unanswered} of them because the judge rejected or did not answer the \
                 request; see judge.jsonl"
            );
        }
        line
    }
}

/// Verdicts in the order of the queries, incomplete if judging failed.
#[derive(Debug)]
pub(super) struct Judged {
    /// The verdicts so far.
    pub verdicts: Vec<JudgeVerdict>,
    /// Why judging ended early.
    pub failure: Option<Error>,
}

impl Judge {
    /// Opens the judge without sending a request; `table` is its config table, for messages.
    ///
    /// # Errors
    ///
    /// The address is invalid, or the environment variable of the key is not set.
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

    /// Collects verdicts with `ask`, which gets the server, the options and a progress callback.
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

    /// Converts the progress of judging to the progress of a generation.
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

    /// Summarizes verdicts for `metrics.json`.
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
