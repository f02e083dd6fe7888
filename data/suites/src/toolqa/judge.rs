//! Asks a model behind an endpoint for verdicts on answers beside their golds.
//!
//! The judge is lenient and has many false positives (section 3.1 of the paper); what does not
//! begin with "true" is a no, so every reply is a verdict.

use tooltune_endpoint::{ChatEndpoint, EndpointProgress};
use tooltune_rows::python::{PyValue, is_blank, python_repr};
use tooltune_rows::text::{Message, Role};

use super::prompts::PromptSet;
use super::run::ToolQaSample;
use crate::llm_judge::{JudgeError, JudgeOptions, JudgeVerdict, Judged, judge_samples};

/// Whether the judge's reply says that the answer matches.
///
/// # Source
///
/// The published evaluation.
pub fn judge_verdict(reply: &str) -> bool {
    let reply = reply.trim_matches(is_blank).to_lowercase();
    reply.starts_with("true")
}

/// Verdicts whose reply says neither true nor false, which the published evaluation counts as no.
pub fn n_neither(verdicts: &[JudgeVerdict]) -> usize {
    let says = |reply: &str, word| {
        let reply = reply.trim_matches(is_blank).to_lowercase();
        reply.starts_with(word)
    };
    let is_clear = |reply: &&String| says(reply, "true") || says(reply, "false");
    let last = verdicts.iter().map(|judged| judged.replies.last());
    last.filter(|reply| reply.filter(is_clear).is_none())
        .count()
}

/// Has the answers of a run judged; the verdicts are in the order of the samples.
///
/// Samples without an answer are not shown to the judge and have no verdict. An answer that is no
/// text, which only code returns, is shown as Python writes it.
///
/// # Errors
///
/// - those of [`judge_samples`](crate::judge_samples)
pub fn judge_answers(
    endpoint: &ChatEndpoint,
    samples: &[ToolQaSample],
    prompts: &PromptSet,
    options: &JudgeOptions,
    watch: &mut dyn FnMut(EndpointProgress) -> bool,
) -> Result<Vec<JudgeVerdict>, JudgeError> {
    let answered = samples.iter().filter(|sample| sample.has_answer());
    let asked: Vec<AskedAnswer> = answered
        .map(|sample| AskedAnswer::new(sample, prompts))
        .collect();
    judge_samples(endpoint, &asked, options, watch)
}

struct AskedAnswer {
    uid: String,
    prompt: String,
}

impl AskedAnswer {
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

impl Judged for AskedAnswer {
    fn id(&self) -> &str {
        &self.uid
    }

    fn messages(&self) -> Vec<Message> {
        vec![Message::new(Role::User, self.prompt.as_str())]
    }

    fn verdict(&self, reply: &str) -> Option<bool> {
        Some(judge_verdict(reply))
    }
}

#[cfg(test)]
mod tests;
