//! Asks a model at an endpoint for verdicts on samples.
//!
//! If a reply has no verdict, the judge is asked again. If no reply has a verdict, the sample
//! counts as unparsed and not solved. Attempts after the first are sampled, because a judge at
//! temperature 0 would repeat its reply.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tooltune_endpoint::{
    ChatEndpoint, ChatOptions, EndpointError, EndpointProgress, FaultScope, Tolerance, in_parallel,
};
use tooltune_template::Message;

/// Maximum configurable number of attempts.
const MAX_ATTEMPTS: usize = 20;

/// A sample that a judge accepts or rejects.
pub trait JudgedItem: Sync {
    /// Sample id, for messages and files.
    fn id(&self) -> &str;

    /// The messages sent to the judge.
    fn messages(&self) -> Vec<Message>;

    /// Parses the verdict from a reply; `None` if the reply has none.
    fn parse_verdict(&self, reply: &str) -> Option<bool>;
}

/// How the judge is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeOptions {
    /// Attempts to get a parsable verdict, 1 to 20.
    pub attempts: usize,
    /// Number of samples judged concurrently, 1 to 64.
    pub concurrency: usize,
    /// Temperature of the attempts after the first.
    pub retry_temperature: f64,
    /// Options of every request; their temperature applies to the first attempt.
    pub chat: ChatOptions,
}

impl Default for JudgeOptions {
    fn default() -> Self {
        Self {
            attempts: 3,
            concurrency: 8,
            retry_temperature: 0.7,
            chat: ChatOptions {
                temperature: Some(0.0),
                max_tokens: Some(2048),
                ..ChatOptions::default()
            },
        }
    }
}

/// The judge's verdict on one sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeVerdict {
    /// Sample id.
    pub id: String,
    /// The verdict; null if no reply contained one.
    pub verdict: Option<bool>,
    /// The judge's raw replies. If there is a verdict, it is in the last reply.
    pub replies: Vec<String>,
    /// Why the judge did not reply; `None` if it replied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl JudgeVerdict {
    fn without_reply(id: &str, error: &EndpointError) -> Self {
        Self {
            id: id.to_owned(),
            verdict: None,
            replies: Vec::new(),
            error: Some(error.to_string()),
        }
    }

    /// Whether the sample counts as solved. A sample without a verdict does not.
    pub fn is_solved(&self) -> bool {
        self.verdict == Some(true)
    }
}

/// Number of verdicts that could not be parsed.
pub fn n_unparsed(verdicts: &[JudgeVerdict]) -> usize {
    let unread = verdicts.iter().filter(|verdict| verdict.verdict.is_none());
    unread.count()
}

/// Number of samples for which the judge did not reply, although it replied for other samples.
pub fn n_unanswered(verdicts: &[JudgeVerdict]) -> usize {
    let unanswered = verdicts.iter().filter(|verdict| verdict.error.is_some());
    unanswered.count()
}

/// An error that ends judging early; the verdicts so far are kept.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// An option is out of range.
    #[error(
        "judge: attempts is {attempts}; set it to a number from 1 to {MAX_ATTEMPTS} (default 3)"
    )]
    Attempts {
        /// The configured value.
        attempts: usize,
    },

    /// The endpoint failed.
    #[error("cannot judge sample {sample:?} ({} other samples were judged): {error}", judged.len())]
    Endpoint {
        /// Sample id.
        sample: String,
        /// The verdicts so far, in sample order.
        judged: Vec<JudgeVerdict>,
        /// The error, with the URL.
        error: Box<EndpointError>,
    },

    /// The caller stopped the work.
    #[error("judging stopped after {} samples", judged.len())]
    Stopped {
        /// The verdicts so far, in sample order.
        judged: Vec<JudgeVerdict>,
    },
}

/// Judges every sample and returns the verdicts in sample order. If the judge refuses a sample or
/// does not reply to it, but judges other samples, the sample has no verdict. It then counts like a
/// sample whose replies cannot be parsed.
///
/// `watch` is called in the caller's thread after each verdict and at least ten times per second.
/// It stops the work by returning `false`.
///
/// # Errors
///
/// - the number of attempts is 0 or above 20
/// - the endpoint fails for every sample, or with an error that affects every sample
///   ([`Tolerance`]), which stops the work at once
/// - `watch` stopped the work
pub fn judge_samples<S: JudgedItem>(
    endpoint: &ChatEndpoint,
    samples: &[S],
    options: &JudgeOptions,
    watch: &mut dyn FnMut(EndpointProgress) -> bool,
) -> Result<Vec<JudgeVerdict>, JudgeError> {
    let attempts = options.attempts;
    if !(1..=MAX_ATTEMPTS).contains(&attempts) {
        return Err(JudgeError::Attempts { attempts });
    }
    let (mut n_failed, mut tolerance) = (0, Tolerance::default());
    let (mut is_broken, mut is_ended) = (false, false);
    let results = in_parallel(
        samples,
        options.concurrency,
        &mut |event| {
            match event.latest {
                Some(Ok(_)) => tolerance.record_answer(),
                Some(Err(error)) => {
                    n_failed += 1;
                    is_broken |= !tolerance.can_continue_after(error);
                }
                None => {}
            }
            is_ended |= !watch(EndpointProgress {
                n_done: event.n_done,
                n_failed,
                n_all: samples.len(),
            });
            !is_broken && !is_ended
        },
        |sample, is_stopped| {
            let verdict = judge(endpoint, sample, options, is_stopped);
            if matches!(&verdict, Err(error) if error.scope() == FaultScope::All) {
                // Set the flag here, not at the next call of `watch`, so that this thread does not
                // start another sample.
                is_stopped.store(true, Ordering::Relaxed);
            }
            verdict
        },
    );
    // Errors specific to a sample leave only that sample without a verdict.
    let is_tolerated = |error: &EndpointError| {
        tolerance.has_answers() && (!is_broken || error.scope() == FaultScope::Request)
    };
    let mut judged = Vec::new();
    let mut failed = None;
    for (sample, result) in samples.iter().zip(results) {
        match result {
            Some(Ok(verdict)) => judged.push(verdict),
            Some(Err(EndpointError::Stopped { .. })) | None => {}
            Some(Err(error)) if is_tolerated(&error) => {
                judged.push(JudgeVerdict::without_reply(sample.id(), &error));
            }
            // Prefer an error that affects all samples over one that affects a single sample.
            Some(Err(error)) if failed.is_none() || error.scope() == FaultScope::All => {
                failed = Some((sample.id().to_owned(), Box::new(error)));
            }
            Some(Err(_)) => {}
        }
    }
    match failed.filter(|_| !is_ended) {
        Some((sample, error)) => Err(JudgeError::Endpoint {
            sample,
            judged,
            error,
        }),
        None if judged.len() < samples.len() => Err(JudgeError::Stopped { judged }),
        None => Ok(judged),
    }
}

fn judge(
    endpoint: &ChatEndpoint,
    sample: &impl JudgedItem,
    options: &JudgeOptions,
    is_stopped: &AtomicBool,
) -> Result<JudgeVerdict, EndpointError> {
    let messages = sample.messages();
    let mut chat = options.chat.clone();
    let mut replies = Vec::new();
    let mut verdict = None;
    while verdict.is_none() && replies.len() < options.attempts {
        let reply = endpoint.complete_unless(&messages, &chat, is_stopped)?;
        // A reply without text counts as an attempt without a verdict.
        verdict = sample.parse_verdict(&reply.text);
        replies.push(reply.text);
        chat.temperature = Some(options.retry_temperature);
    }
    Ok(JudgeVerdict {
        id: sample.id().to_owned(),
        verdict,
        replies,
        error: None,
    })
}
