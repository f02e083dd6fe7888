//! Asks a model behind an endpoint whether answers match their gold answers.
//!
//! The judge is lenient and has many false positives (section 3.1 of the paper). Every reply is a
//! verdict: a reply that does not start with "true" rejects the answer.

use tooltune_endpoint::{ChatEndpoint, EndpointProgress};
use tooltune_json::blank::is_blank;
use tooltune_json::python::{PyValue, python_repr};
use tooltune_template::{Message, Role};

use super::prompts::PromptSet;
use super::run::ToolQaSample;
use crate::llm_judge::{JudgeError, JudgeOptions, JudgeVerdict, JudgedItem, judge_samples};

/// Whether the judge's reply accepts the answer.
///
/// # Source
///
/// The published evaluation.
pub fn judge_verdict(reply: &str) -> bool {
    let reply = reply.trim_matches(is_blank).to_lowercase();
    reply.starts_with("true")
}

/// Number of verdicts whose reply is neither true nor false. The published evaluation counts them
/// as rejections.
pub fn n_neither(verdicts: &[JudgeVerdict]) -> usize {
    let says = |reply: &str, word| {
        let reply = reply.trim_matches(is_blank).to_lowercase();
        reply.starts_with(word)
    };
    let is_clear = |reply: &&String| says(reply, "true") || says(reply, "false");
    let last = verdicts
        .iter()
        .map(|last_replies| last_replies.replies.last());
    last.filter(|reply| reply.filter(is_clear).is_none())
        .count()
}

/// Lets the judge compare the answers of a run with the gold answers, and returns the verdicts in
/// sample order.
///
/// Samples without an answer are not shown to the judge and have no verdict. Code may return an
/// answer that is not a string; it is shown in Python notation.
///
/// # Errors
///
/// As for [`judge_samples`](crate::judge_samples).
pub fn judge_answers(
    endpoint: &ChatEndpoint,
    samples: &[ToolQaSample],
    prompts: &PromptSet,
    options: &JudgeOptions,
    watch: &mut dyn FnMut(EndpointProgress) -> bool,
) -> Result<Vec<JudgeVerdict>, JudgeError> {
    let answered = samples.iter().filter(|sample| sample.has_answer());
    let answered_samples: Vec<JudgedAnswer> = answered
        .map(|sample| JudgedAnswer::new(sample, prompts))
        .collect();
    judge_samples(endpoint, &answered_samples, options, watch)
}

struct JudgedAnswer {
    uid: String,
    prompt: String,
}

impl JudgedAnswer {
    fn new(sample: &ToolQaSample, prompts: &PromptSet) -> Self {
        let answer = match sample.answer.as_str() {
            Some(text) => text.to_owned(),
            None => python_repr(&PyValue::from(&sample.answer)),
        };
        Self {
            uid: sample.uid.clone(),
            prompt: prompts.judge(&sample.gold_answer, &answer),
        }
    }
}

impl JudgedItem for JudgedAnswer {
    fn id(&self) -> &str {
        &self.uid
    }

    fn messages(&self) -> Vec<Message> {
        vec![Message::new(Role::User, self.prompt.as_str())]
    }

    fn parse_verdict(&self, reply: &str) -> Option<bool> {
        Some(judge_verdict(reply))
    }
}

#[cfg(test)]
mod tests;
