//! Samples to verdicts, by a model behind an endpoint.
//!
//! A reply without a verdict is asked for again, and after the last attempt the verdict counts as
//! unread and the sample as not approved. The decision to question: attempts after the first are
//! sampled, because a judge at temperature 0 would only repeat itself.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::endpoint::{ChatEndpoint, ChatOptions, EndpointError, EndpointProgress, in_parallel};
use crate::text::Message;

/// Attempts at a verdict that any configuration may ask for.
const MOST_ATTEMPTS: usize = 20;

/// Something that a judge says yes or no to.
pub trait Judged: Sync {
    /// Its id, for messages and files.
    fn id(&self) -> &str;

    /// What the judge is asked.
    fn messages(&self) -> Vec<Message>;

    /// The verdict of a reply, or nothing that can be read.
    fn verdict(&self, reply: &str) -> Option<bool>;
}

/// How the judge is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeOptions {
    /// Attempts at a verdict that can be read, 1 to 20.
    pub attempts: usize,
    /// Samples that are judged at once, 1 to 64.
    pub concurrency: usize,
    /// Of the attempts after the first.
    pub retry_temperature: f64,
    /// What every request says beside its messages; its temperature is that of the first
    /// attempt.
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

/// What the judge said of one sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeVerdict {
    /// The sample's id.
    pub id: String,
    /// What the judge said; null where no reply had a verdict.
    pub verdict: Option<bool>,
    /// The judge's replies as they came, the one with the verdict last.
    pub replies: Vec<String>,
}

impl JudgeVerdict {
    /// Whether the sample counts as solved: not where no verdict could be read.
    pub fn is_solved(&self) -> bool {
        self.verdict == Some(true)
    }
}

/// How many of the verdicts could not be read.
pub fn n_unparsed(verdicts: &[JudgeVerdict]) -> usize {
    let unread = verdicts.iter().filter(|judged| judged.verdict.is_none());
    unread.count()
}

/// Why not all samples have a verdict; what was judged until then can be kept.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// The options cannot be used.
    #[error("judge: attempts is {attempts}; give 1 to {MOST_ATTEMPTS}, 3 as usual")]
    Attempts {
        /// What was given.
        attempts: usize,
    },

    /// The endpoint failed.
    #[error("sample {sample:?} cannot be judged, after {} others were: {error}", judged.len())]
    Endpoint {
        /// The sample's id.
        sample: String,
        /// The verdicts until then, in the order of the samples.
        judged: Vec<JudgeVerdict>,
        /// What is wrong, with the URL.
        error: Box<EndpointError>,
    },

    /// The caller ended the work.
    #[error("the judging was stopped after {} samples", judged.len())]
    Stopped {
        /// The verdicts until then, in the order of the samples.
        judged: Vec<JudgeVerdict>,
    },
}

/// Has every sample judged; the verdicts are in the order of the samples.
///
/// `watch` is called in the caller's thread after each verdict and at least ten times a second,
/// and may end the work by returning `false`.
///
/// # Errors
///
/// - the options allow no attempt, or more than 20
/// - the endpoint fails, which ends the work at once: what fails for one sample after all
///   retries will fail for the next
/// - `watch` ended the work
pub fn judge_samples<S: Judged>(
    endpoint: &ChatEndpoint,
    samples: &[S],
    options: &JudgeOptions,
    watch: &mut dyn FnMut(EndpointProgress) -> bool,
) -> Result<Vec<JudgeVerdict>, JudgeError> {
    let attempts = options.attempts;
    if !(1..=MOST_ATTEMPTS).contains(&attempts) {
        return Err(JudgeError::Attempts { attempts });
    }
    let mut n_failed = 0;
    let results = in_parallel(
        samples,
        options.concurrency,
        &mut |watched| {
            n_failed += usize::from(watched.latest.is_some_and(Result::is_err));
            let goes_on = watch(EndpointProgress {
                n_done: watched.n_done,
                n_failed,
                n_all: samples.len(),
            });
            goes_on && n_failed == 0
        },
        |sample, is_stopped| {
            let verdict = judge(endpoint, sample, options, is_stopped);
            if verdict.is_err() {
                // Before the thread takes another sample, not when `watch` is next called.
                is_stopped.store(true, Ordering::Relaxed);
            }
            verdict
        },
    );
    let mut judged = Vec::new();
    let mut failed = None;
    for (sample, result) in samples.iter().zip(results) {
        match result {
            Some(Ok(verdict)) => judged.push(verdict),
            Some(Err(EndpointError::Stopped { .. })) | None => {}
            Some(Err(error)) => {
                failed.get_or_insert((sample.id().to_owned(), Box::new(error)));
            }
        }
    }
    match failed {
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
    sample: &impl Judged,
    options: &JudgeOptions,
    is_stopped: &AtomicBool,
) -> Result<JudgeVerdict, EndpointError> {
    let messages = sample.messages();
    let mut chat = options.chat.clone();
    let mut replies = Vec::new();
    let mut verdict = None;
    while verdict.is_none() && replies.len() < options.attempts {
        let reply = endpoint.complete_unless(&messages, &chat, is_stopped)?;
        // A reply without a text is an attempt without a verdict.
        verdict = sample.verdict(&reply.text);
        replies.push(reply.text);
        chat.temperature = Some(options.retry_temperature);
    }
    Ok(JudgeVerdict {
        id: sample.id().to_owned(),
        verdict,
        replies,
    })
}
