//! Asks a model behind an endpoint for verdicts on samples.
//!
//! A reply without a verdict is asked for again, and after the last attempt the verdict counts as
//! unread and the sample as not approved. The decision to question: attempts after the first are
//! sampled, because a judge at temperature 0 would only repeat itself.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tooltune_endpoint::{
    ChatEndpoint, ChatOptions, Concern, EndpointError, EndpointProgress, Tolerance, in_parallel,
};
use tooltune_rows::text::Message;

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
    /// Why the judge did not answer, where it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl JudgeVerdict {
    fn unanswered(id: &str, error: &EndpointError) -> Self {
        Self {
            id: id.to_owned(),
            verdict: None,
            replies: Vec::new(),
            error: Some(error.to_string()),
        }
    }

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

/// How many samples the judge did not answer, though it answered others.
pub fn n_unanswered(verdicts: &[JudgeVerdict]) -> usize {
    let unanswered = verdicts.iter().filter(|judged| judged.error.is_some());
    unanswered.count()
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

/// Has every sample judged; the verdicts are in the order of the samples. A sample that the judge
/// refuses or does not answer, though it answers others, has no verdict, as one whose replies cannot
/// be read.
///
/// `watch` is called in the caller's thread after each verdict and at least ten times a second,
/// and may end the work by returning `false`.
///
/// # Errors
///
/// - the options allow no attempt, or more than 20
/// - the endpoint fails for every sample, or as it would for every one ([`Tolerance`]), which ends
///   the work at once
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
    let (mut n_failed, mut tolerance) = (0, Tolerance::default());
    let (mut is_broken, mut is_ended) = (false, false);
    let results = in_parallel(
        samples,
        options.concurrency,
        &mut |watched| {
            match watched.latest {
                Some(Ok(_)) => tolerance.answered(),
                Some(Err(error)) => {
                    n_failed += 1;
                    is_broken |= !tolerance.goes_on_after(error);
                }
                None => {}
            }
            is_ended |= !watch(EndpointProgress {
                n_done: watched.n_done,
                n_failed,
                n_all: samples.len(),
            });
            !is_broken && !is_ended
        },
        |sample, is_stopped| {
            let verdict = judge(endpoint, sample, options, is_stopped);
            if matches!(&verdict, Err(error) if error.concern() == Concern::All) {
                // Before the thread takes another sample, not when `watch` is next called.
                is_stopped.store(true, Ordering::Relaxed);
            }
            verdict
        },
    );
    // Faults of their own keep their samples from a verdict, and no others.
    let is_tolerated = |error: &EndpointError| {
        tolerance.has_answers() && (!is_broken || error.concern() == Concern::Request)
    };
    let mut judged = Vec::new();
    let mut failed = None;
    for (sample, result) in samples.iter().zip(results) {
        match result {
            Some(Ok(verdict)) => judged.push(verdict),
            Some(Err(EndpointError::Stopped { .. })) | None => {}
            Some(Err(error)) if is_tolerated(&error) => {
                judged.push(JudgeVerdict::unanswered(sample.id(), &error));
            }
            // What concerns all samples is what to fix.
            Some(Err(error)) if failed.is_none() || error.concern() == Concern::All => {
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
        error: None,
    })
}
