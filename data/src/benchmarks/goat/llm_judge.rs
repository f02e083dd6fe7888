//! Queries with their calls and answers to verdicts, by a model behind an endpoint.
//!
//! A reply without a verdict is asked for again, and after the last attempt the query counts as
//! unsolved and the verdict as unread. The decision to question: attempts after the first are
//! sampled, because a judge at temperature 0 would only repeat itself.

#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::judge::{judge_messages, parse_judge};
use crate::agents::{AttemptedCall, Outcome};
use crate::endpoint::{ChatEndpoint, ChatOptions, EndpointError, EndpointProgress, in_parallel};

/// Attempts at a verdict that any configuration may ask for.
const MOST_ATTEMPTS: usize = 20;

/// What the judge is shown of one query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgeSample {
    /// The query's id, for messages and files.
    pub id: String,
    /// The query.
    pub query: String,
    /// The calls with what they returned, failed ones too, in the order of their execution.
    pub executions: Vec<Value>,
    /// The final answer.
    pub answer: String,
}

impl JudgeSample {
    /// The sample of a loop's end.
    ///
    /// A call is shown as `{"name", "arguments", "output"}`, a failed one with `"error"` instead
    /// of the output, one that could not be read with what was written as `"text"`.
    pub fn of_outcome(id: impl Into<String>, query: impl Into<String>, outcome: &Outcome) -> Self {
        Self {
            id: id.into(),
            query: query.into(),
            executions: outcome.calls.iter().map(execution).collect(),
            answer: outcome.response.clone(),
        }
    }
}

fn execution(call: &AttemptedCall) -> Value {
    let mut shown = json!({"name": call.name});
    if let Some(arguments) = &call.arguments {
        shown["arguments"] = Value::Object(arguments.clone());
    }
    if let Some(raw) = &call.raw {
        shown["text"] = Value::from(raw.as_str());
    }
    match &call.exception {
        None => shown["output"] = call.output.clone(),
        Some(message) => shown["error"] = Value::from(message.as_str()),
    }
    shown
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
    /// Whether the query is solved; null where no reply had a verdict.
    pub verdict: Option<bool>,
    /// The judge's replies as they came, the one with the verdict last.
    pub replies: Vec<String>,
}

impl JudgeVerdict {
    /// Whether the query counts as solved: not where no verdict could be read.
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
///
/// # Source
///
/// GOAT, section 4.2 and Figure 21.
pub fn judge_samples(
    endpoint: &ChatEndpoint,
    samples: &[JudgeSample],
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
        |sample, is_stopped| judge(endpoint, sample, options, is_stopped),
    );
    let mut judged = Vec::new();
    let mut failed = None;
    for (sample, result) in samples.iter().zip(results) {
        match result {
            Some(Ok(verdict)) => judged.push(verdict),
            Some(Err(EndpointError::Stopped { .. })) | None => {}
            Some(Err(error)) => {
                failed.get_or_insert((sample.id.clone(), Box::new(error)));
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
    sample: &JudgeSample,
    options: &JudgeOptions,
    is_stopped: &AtomicBool,
) -> Result<JudgeVerdict, EndpointError> {
    let messages = judge_messages(&sample.query, &sample.executions, &sample.answer);
    let mut chat = options.chat.clone();
    let mut replies = Vec::new();
    let mut verdict = None;
    while verdict.is_none() && replies.len() < options.attempts {
        let reply = endpoint.complete_unless(&messages, &chat, is_stopped)?;
        verdict = parse_judge(&reply);
        replies.push(reply);
        chat.temperature = Some(options.retry_temperature);
    }
    Ok(JudgeVerdict {
        id: sample.id.clone(),
        verdict,
        replies,
    })
}
