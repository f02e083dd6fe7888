//! Queries with their calls and answers to verdicts, by a model behind an endpoint.
//!
//! A reply without a verdict is asked for again, and after the last attempt the query counts as
//! unsolved and the verdict as unread. The decision to question: attempts after the first are
//! sampled, because a judge at temperature 0 would only repeat itself.

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
    #[error("sample {sample:?} cannot be judged ({} are): {error}", judged.len())]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{EndReason, Method};
    use crate::endpoint::chat_server::{
        chat_server, completion, environment, last_content, options,
    };
    use crate::http::test_server::{Answer, TestServer};

    fn sample(id: &str, answer: &str) -> JudgeSample {
        JudgeSample {
            id: id.to_owned(),
            query: "When is low water?".to_owned(),
            executions: vec![json!({"name": "Tides/Low", "output": {"at": "06:10"}})],
            answer: answer.to_owned(),
        }
    }

    fn endpoint(server: &TestServer) -> ChatEndpoint {
        ChatEndpoint::with_environment(&options(&server.url()), &environment).expect("options")
    }

    /// A judge that reads the case: solved if the answer holds the time that the tool gave.
    fn strict(request: &Value) -> Answer {
        let case = last_content(request);
        let (details, answer) = case.split_once("Final answer:\n").expect("the layout");
        let time = details.split("\"at\": \"").nth(1).expect("an execution");
        let status = match answer.contains(&time[..5]) {
            true => "Solved",
            false => "Unsolved",
        };
        completion(&format!("I looked. {{\"answer_status\": \"{status}\"}}"))
    }

    #[test]
    fn verdicts_keep_the_order_and_the_replies() {
        let server = chat_server(|request, _| strict(request));
        let samples: Vec<JudgeSample> = (0..20)
            .map(|n| {
                sample(
                    &n.to_string(),
                    if n % 3 == 0 { "At 06:10." } else { "At noon." },
                )
            })
            .collect();
        let mut last = None;
        let mut watch = |progress| {
            last = Some(progress);
            true
        };
        let verdicts = judge_samples(
            &endpoint(&server),
            &samples,
            &JudgeOptions::default(),
            &mut watch,
        )
        .expect("all judged");
        for (n, judged) in verdicts.iter().enumerate() {
            assert_eq!(
                (judged.id.clone(), judged.is_solved()),
                (n.to_string(), n % 3 == 0)
            );
            assert_eq!(judged.replies.len(), 1);
            assert!(judged.replies[0].starts_with("I looked."));
        }
        assert_eq!(n_unparsed(&verdicts), 0);
        let done = EndpointProgress {
            n_done: 20,
            n_failed: 0,
            n_all: 20,
        };
        assert_eq!(last, Some(done));
        let line = serde_json::to_string(&verdicts[0]).expect("written");
        assert_eq!(
            serde_json::from_str::<JudgeVerdict>(&line).expect("read"),
            verdicts[0]
        );
    }

    #[test]
    fn a_reply_without_a_verdict_is_asked_for_again_and_then_unsolved() {
        let server = chat_server(|request, number| {
            let is_first = request["temperature"] == 0.0;
            match last_content(request).contains("hopeless") {
                true => completion(&format!("Well, number {number}")),
                false if is_first => completion("{\"answer_status\": \"Unsure\"}"),
                false => strict(request),
            }
        });
        let samples = [sample("a", "At 06:10."), sample("b", "hopeless")];
        let options = JudgeOptions {
            concurrency: 1,
            ..JudgeOptions::default()
        };
        let verdicts = judge_samples(&endpoint(&server), &samples, &options, &mut |_| true);
        let verdicts = verdicts.expect("both judged");
        assert_eq!(
            (verdicts[0].verdict, verdicts[0].replies.len()),
            (Some(true), 2)
        );
        assert_eq!(verdicts[1].verdict, None);
        let replies = ["Well, number 2", "Well, number 3", "Well, number 4"];
        assert_eq!(verdicts[1].replies, replies);
        assert!(!verdicts[1].is_solved());
        assert_eq!(n_unparsed(&verdicts), 1);
    }

    #[test]
    fn a_failed_endpoint_names_the_url_and_the_sample_and_keeps_what_was_judged() {
        let server = chat_server(
            |request, _| match last_content(request).contains("too long") {
                true => Answer::json(400, &json!({"error": "context length exceeded"})),
                false => strict(request),
            },
        );
        let mut samples: Vec<JudgeSample> = (0..40).map(|n| sample(&n.to_string(), "x")).collect();
        samples[3].answer = "too long".to_owned();
        let options = JudgeOptions {
            concurrency: 1,
            ..JudgeOptions::default()
        };
        let error = judge_samples(&endpoint(&server), &samples, &options, &mut |_| true);
        let error = error.expect_err("sample 3");
        let message = error.to_string();
        for part in [
            "sample \"3\" cannot be judged",
            &server.url(),
            "400",
            "context length",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let JudgeError::Endpoint { judged, .. } = error else {
            panic!("{error}");
        };
        let ids: Vec<&str> = judged.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(&ids[..3], ["0", "1", "2"]);
        assert!(server.received().len() < 10, "{}", server.received().len());
    }

    #[test]
    fn the_caller_may_end_the_work_and_wrong_options_never_begin_it() {
        let server = chat_server(|request, _| strict(request));
        let samples: Vec<JudgeSample> = (0..40).map(|n| sample(&n.to_string(), "x")).collect();
        let mut watch = |progress: EndpointProgress| progress.n_done < 2;
        let options = JudgeOptions {
            concurrency: 2,
            ..JudgeOptions::default()
        };
        let error = judge_samples(&endpoint(&server), &samples, &options, &mut watch);
        let Err(JudgeError::Stopped { judged }) = error else {
            panic!("{error:?}");
        };
        assert!((2..10).contains(&judged.len()), "{}", judged.len());
        let n_before = server.received().len();
        let none = JudgeOptions {
            attempts: 0,
            ..JudgeOptions::default()
        };
        let error = judge_samples(&endpoint(&server), &samples, &none, &mut |_| true);
        assert_eq!(error, Err(JudgeError::Attempts { attempts: 0 }));
        assert_eq!(server.received().len(), n_before);
    }

    #[test]
    fn a_loop_is_shown_with_its_failed_calls() {
        let call = |name: Option<&str>, exception: Option<&str>| AttemptedCall {
            name: name.map(str::to_owned),
            arguments: name.map(|_| json!({"port": "Emden"}).as_object().expect("one").clone()),
            raw: name.is_none().then(|| "call Emden".to_owned()),
            output: json!({"at": "06:10"}),
            exception: exception.map(str::to_owned),
        };
        let outcome = Outcome {
            method: Method::React,
            plan: Vec::new(),
            sub_queries: Vec::new(),
            path: Vec::new(),
            calls: vec![
                call(Some("Tides/Low"), None),
                call(Some("Tides/Low"), Some("no row")),
                call(None, Some("no call")),
            ],
            response: "At 06:10.".to_owned(),
            retrievals: Vec::new(),
            failures: Vec::new(),
            end: EndReason::Answered,
        };
        let shown = JudgeSample::of_outcome("1", "q", &outcome);
        assert_eq!(
            shown.executions,
            [
                json!({"name": "Tides/Low", "arguments": {"port": "Emden"}, "output": {"at": "06:10"}}),
                json!({"name": "Tides/Low", "arguments": {"port": "Emden"}, "error": "no row"}),
                json!({"name": null, "text": "call Emden", "error": "no call"}),
            ]
        );
        assert_eq!(shown.answer, "At 06:10.");
    }
}
