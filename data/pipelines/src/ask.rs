//! Sends prompts and parses their replies. Replies are journaled, so an interrupted run never sends
//! an answered request again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::error::PipelineError;
use crate::generator::{ModelInfo, Prompt, PromptResult, Unanswered};
use crate::journal::{Entry, Journal};
use crate::prompts::digest;
use crate::reply::excerpt;
use crate::report::{Dropped, RETRY};
use crate::run::{Progress, Run};

/// The prompt that repeats a request whose reply could not be parsed; every pipeline includes it.
pub const RETRY_PROMPT: crate::prompts::PromptFile = crate::prompts::PromptFile {
    name: "again",
    variables: &["prompt", "reason"],
    source: include_str!("../../../configs/prompts/again.jinja"),
};

/// Drop reason of an item whose reply cannot be parsed.
pub const UNREADABLE: &str = "the reply cannot be parsed";
/// Drop reason of an item whose request has no reply.
pub const NO_REPLY: &str = "no reply";

/// Maximum batch size passed to the generator. Each request is copied, so this bounds memory.
const MAX_BATCH_REQUESTS: usize = 16_384;

/// Length of the digest in a journal key; enough to distinguish the requests of one item.
const KEY_CHARS: usize = 16;

/// Whether the drop reason is a missing or unparsable reply, not the content of a reply.
fn is_failed_reply(reason: &str) -> bool {
    reason == UNREADABLE || reason.starts_with(NO_REPLY)
}

/// The stage in a journal key.
fn request_stage(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}

/// Counts of parsable and failed replies of a stage.
#[derive(Debug, Default)]
pub(crate) struct ReplyCounts {
    pub(crate) n: usize,
    pub(crate) n_failed_replies: usize,
    pub(crate) first_failed_reply: Option<FailedReply>,
}

/// The first request of a stage without a parsable reply.
#[derive(Debug, Clone)]
pub(crate) struct FailedReply {
    pub(crate) id: String,
    pub(crate) reason: String,
    /// The start of the reply, if there is one.
    pub(crate) reply: String,
}

/// An item and its prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemPrompt {
    /// Id, unique within the stage.
    pub id: String,
    /// The prompt.
    pub prompt: Prompt,
}

/// A request with its journal key.
struct Request<'p> {
    key: String,
    prompt: &'p Prompt,
}

/// The journal key of a prompt: stage, item, attempt, and a digest of the prompt.
fn prompt_key(stage: &str, id: &str, attempt: &str, prompt: &Prompt) -> String {
    request_key(stage, id, attempt, &json!(prompt))
}

fn request_key(stage: &str, id: &str, attempt: &str, request: &Value) -> String {
    let mut digest = digest(request.to_string().as_bytes());
    digest.truncate(KEY_CHARS);
    format!("{stage}/{id}{attempt}{digest}")
}

/// Whether a key belongs to this attempt, whatever the item's id is.
pub(crate) fn is_attempt(key: &str, attempt: &str) -> bool {
    let end = key.len().saturating_sub(KEY_CHARS);
    key.get(..end).is_some_and(|key| key.ends_with(attempt))
}

const FIRST: &str = "/first/";
const OUTPUT: &str = "/made/";

/// The requests that a stage would send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    /// The stage.
    pub stage: &'static str,
    /// Number of requests.
    pub n_requests: usize,
    /// Number of requests that have a reply already.
    pub n_stored: usize,
    /// Prompt tokens of the remaining requests.
    pub n_prompt_tokens: usize,
    /// Maximum number of tokens of their replies.
    pub n_max_tokens: usize,
    /// Maximum number of remaining API calls.
    pub n_api_calls: usize,
    /// Whether the numbers are upper bounds: an earlier stage that has not run may drop items.
    pub is_at_most: bool,
}

impl StagePlan {
    /// The plan for known items.
    pub fn for_items(
        stage: &'static str,
        item_prompts: &[ItemPrompt],
        journal: &Journal,
        model: &dyn ModelInfo,
    ) -> Self {
        let is_unsent = |item: &&ItemPrompt| {
            let key = prompt_key(stage, &item.id, FIRST, &item.prompt);
            journal.get(&key).is_none()
        };
        let missing: Vec<&ItemPrompt> = item_prompts.iter().filter(is_unsent).collect();
        let tokens = missing
            .iter()
            .map(|item| model.count_tokens(&item.prompt.text));
        Self {
            stage,
            n_requests: item_prompts.len(),
            n_stored: item_prompts.len() - missing.len(),
            n_prompt_tokens: tokens.sum(),
            n_max_tokens: (missing.iter().map(|item| item.prompt.max_tokens))
                .fold(0, usize::saturating_add),
            n_api_calls: 0,
            is_at_most: false,
        }
    }

    /// Number of completed requests of a stage; repeated requests do not count.
    pub(crate) fn n_first_replies(stage: &str, journal: &Journal) -> usize {
        let stage_entries = journal
            .entries_of(stage)
            .filter(|(key, _)| key[stage.len()..].starts_with('/') && is_attempt(key, FIRST));
        stage_entries.count()
    }

    /// The upper bound for items that do not exist yet, with prompts of a given length.
    pub fn upper_bound(
        stage: &'static str,
        n_requests: usize,
        n_prompt_tokens: usize,
        max_tokens: usize,
    ) -> Self {
        Self {
            stage,
            n_requests,
            n_stored: 0,
            n_prompt_tokens: n_requests.saturating_mul(n_prompt_tokens),
            n_max_tokens: n_requests.saturating_mul(max_tokens),
            n_api_calls: 0,
            is_at_most: true,
        }
    }
}

impl Run<'_> {
    /// Returns the parsed reply to each of `item_prompts`, in order.
    ///
    /// Replies in the journal are reused. If `parse_reply` rejects a reply, the request is repeated
    /// once with the reason. Requests without a reply are repeated once, after all others. Items
    /// that still have no parsable reply are dropped; `--ask-again` repeats their requests.
    ///
    /// # Errors
    ///
    /// - the budget is used up, the user stops the work, or the generator fails; a later run
    ///   continues from there
    /// - the journal cannot be written
    pub fn ask<T>(
        &mut self,
        stage: &'static str,
        item_prompts: &[ItemPrompt],
        parse_reply: &dyn Fn(usize, &str) -> Result<T, String>,
    ) -> Result<Vec<Result<T, Dropped>>, PipelineError> {
        let requests: Vec<Request<'_>> = item_prompts
            .iter()
            .map(|item| Request {
                key: prompt_key(stage, &item.id, FIRST, &item.prompt),
                prompt: &item.prompt,
            })
            .collect();
        if self.ask_again == Some(stage) {
            self.forget_failed_replies(item_prompts, &requests, parse_reply)?;
        }
        self.send_missing(stage, &requests)?;
        let mut results = Vec::with_capacity(item_prompts.len());
        let mut unparsable: Vec<(usize, Prompt)> = Vec::new();
        for (idx, request) in requests.iter().enumerate() {
            let result = self.read_reply(&item_prompts[idx].id, idx, &request.key, parse_reply);
            if let Err(dropped) = &result
                && dropped.reason == UNREADABLE
            {
                unparsable.push((idx, self.repeat_prompt(request.prompt, &dropped.detail)?));
            }
            results.push(result);
        }
        let repeats: Vec<Request<'_>> = unparsable
            .iter()
            .map(|(idx, prompt)| Request {
                key: prompt_key(stage, &item_prompts[*idx].id, RETRY, prompt),
                prompt,
            })
            .collect();
        self.send_missing(stage, &repeats)?;
        for ((idx, _), request) in unparsable.iter().zip(&repeats) {
            results[*idx] =
                self.read_reply(&item_prompts[*idx].id, *idx, &request.key, parse_reply);
        }
        let keys = requests.iter().map(|request| request.key.as_str());
        self.count_replies(stage, &results, keys);
        Ok(results)
    }

    /// Forgets failed requests and unparsable replies, so that they are sent again. The journal
    /// file is unchanged.
    fn forget_failed_replies<T>(
        &mut self,
        item_prompts: &[ItemPrompt],
        requests: &[Request<'_>],
        parse_reply: &dyn Fn(usize, &str) -> Result<T, String>,
    ) -> Result<(), PipelineError> {
        for (idx, request) in requests.iter().enumerate() {
            let id = &item_prompts[idx].id;
            let Err(dropped) = self.read_reply(id, idx, &request.key, parse_reply) else {
                continue;
            };
            if dropped.reason == UNREADABLE {
                let prompt = self.repeat_prompt(request.prompt, &dropped.detail)?;
                let repeat_key = prompt_key(request_stage(&request.key), id, RETRY, &prompt);
                if self.read_reply(id, idx, &repeat_key, parse_reply).is_ok() {
                    continue;
                }
                self.journal.forget(&repeat_key);
            }
            self.journal.forget(&request.key);
        }
        Ok(())
    }

    /// Counts the parsable replies of a stage, and records the first failed request.
    fn count_replies<'k, T>(
        &mut self,
        stage: &'static str,
        results: &[Result<T, Dropped>],
        keys: impl Iterator<Item = &'k str>,
    ) {
        let readable = self.readable.entry(stage).or_default();
        for (result, key) in results.iter().zip(keys) {
            let dropped = match result {
                Err(dropped) if is_failed_reply(&dropped.reason) => dropped,
                _ => {
                    readable.n += 1;
                    continue;
                }
            };
            readable.n_failed_replies += 1;
            if readable.first_failed_reply.is_none() {
                let text = match self.journal.get(key) {
                    Some(Entry::Reply(reply)) => excerpt(&reply.text),
                    _ => String::new(),
                };
                readable.first_failed_reply = Some(FailedReply {
                    id: dropped.id.clone(),
                    reason: format!("{}: {}", dropped.reason, dropped.detail),
                    reply: text,
                });
            }
        }
    }

    /// Runs a step that is not a prompt, such as an API call, at most once per item and `request`.
    /// The result is written to the journal before it is returned.
    ///
    /// # Errors
    ///
    /// `make` fails (the failure is not stored), or the journal cannot be written.
    pub fn run_once(
        &mut self,
        stage: &'static str,
        id: &str,
        request: &Value,
        make: impl FnOnce() -> Result<Value, PipelineError>,
    ) -> Result<Value, PipelineError> {
        if let Some(output) = self.output(stage, id, request) {
            return Ok(output.clone());
        }
        let key = request_key(stage, id, OUTPUT, request);
        let output = make()?;
        self.journal.add(&key, Entry::Output(output.clone()))?;
        self.journal.sync()?;
        Ok(output)
    }

    /// The stored output of [`Run::run_once`], if there is one.
    pub(crate) fn output(&self, stage: &str, id: &str, request: &Value) -> Option<&Value> {
        match self.journal.get(&request_key(stage, id, OUTPUT, request)) {
            Some(Entry::Output(output)) => Some(output),
            _ => None,
        }
    }

    fn repeat_prompt(&self, prompt: &Prompt, reason: &str) -> Result<Prompt, PipelineError> {
        let values = [("prompt", prompt.text.as_str()), ("reason", reason)];
        Ok(Prompt {
            text: self.prompts().render(RETRY_PROMPT.name, &values)?,
            ..prompt.clone()
        })
    }

    fn read_reply<T>(
        &self,
        id: &str,
        idx: usize,
        key: &str,
        parse_reply: &dyn Fn(usize, &str) -> Result<T, String>,
    ) -> Result<T, Dropped> {
        match self.journal.get(key) {
            Some(Entry::Reply(reply)) => parse_reply(idx, &reply.text).map_err(|reason| {
                let reason = match (&reply.without_text, reply.finish_reason.as_str()) {
                    (Some(what), _) => format!("the reply has {what} instead of text"),
                    (None, "length") => format!("{reason}; it was cut off at the token limit"),
                    (None, _) => reason,
                };
                Dropped::new(id, UNREADABLE, reason)
            }),
            Some(Entry::Unanswered(fault)) => {
                let reason = format!("{NO_REPLY}: {}", fault.kind);
                Err(Dropped::new(id, reason, excerpt(&fault.message)))
            }
            Some(Entry::Output(_)) | None => {
                Err(Dropped::new(id, NO_REPLY, "the request was not sent"))
            }
        }
    }

    /// Sends the requests without a journal entry, and repeats failed ones once.
    fn send_missing(
        &mut self,
        stage: &'static str,
        requests: &[Request<'_>],
    ) -> Result<(), PipelineError> {
        let mut unanswered: BTreeMap<usize, Unanswered> = BTreeMap::new();
        // Retryable failures are repeated once, after all other requests.
        for _ in 0..2 {
            let mut keys = BTreeSet::new();
            let is_unsent = |idx: &usize| {
                let key = requests[*idx].key.as_str();
                let is_retryable = unanswered.get(idx).is_none_or(|fault| !fault.is_final);
                self.journal.get(key).is_none() && is_retryable && keys.insert(key)
            };
            let missing: Vec<usize> = (0..requests.len()).filter(is_unsent).collect();
            self.send_within_budget(stage, requests, &missing, &mut unanswered)?;
        }
        if let Some(fault) = unanswered.values().next()
            && self.journal.n_replies() == 0
        {
            let message = format!("{}; no request has a reply", fault.message);
            return Err(self.generator_error(message));
        }
        for (idx, fault) in unanswered {
            self.journal
                .add(&requests[idx].key, Entry::Unanswered(fault))?;
        }
        self.journal.sync()
    }

    fn generator_error(&self, message: String) -> PipelineError {
        PipelineError::Generator {
            message,
            n_replies: self.journal.n_replies(),
        }
    }

    /// Sends requests in batches that stay within the budget even if every reply has its maximum length.
    fn send_within_budget(
        &mut self,
        stage: &'static str,
        requests: &[Request<'_>],
        missing: &[usize],
        unanswered: &mut BTreeMap<usize, Unanswered>,
    ) -> Result<(), PipelineError> {
        let mut missing = missing;
        while !missing.is_empty() {
            let n = self
                .n_affordable(stage, requests, missing)?
                .min(MAX_BATCH_REQUESTS);
            let (batch, later) = missing.split_at(n);
            self.send(stage, requests, batch, unanswered)?;
            missing = later;
        }
        Ok(())
    }

    /// The number of requests in `missing` that the budget allows, at least one.
    fn n_affordable(
        &self,
        stage: &'static str,
        requests: &[Request<'_>],
        missing: &[usize],
    ) -> Result<usize, PipelineError> {
        let used_up = |used: String, option| PipelineError::Budget {
            stage,
            used,
            n_left: missing.len(),
            what: "requests",
            option,
        };
        let mut n = missing.len();
        if let Some(limit) = self.limits.max_requests {
            let used = self.journal.n_requests() + self.n_failed;
            n = n.min(limit.saturating_sub(used));
            if n == 0 {
                return Err(used_up(
                    format!("{used} of {limit} requests"),
                    "--max-requests",
                ));
            }
        }
        if let Some(limit) = self.limits.max_tokens {
            let (prompt_tokens, reply_tokens) = self.journal.used_tokens();
            let used = prompt_tokens.saturating_add(reply_tokens);
            let mut n_free = limit.saturating_sub(used);
            let fits = |idx: &&usize| {
                let prompt = requests[**idx].prompt;
                let n_prompt_tokens = self.generator.count_tokens(&prompt.text);
                let n_needed = n_prompt_tokens.saturating_add(prompt.max_tokens);
                n_free.checked_sub(n_needed).is_some_and(|n_rest| {
                    n_free = n_rest;
                    true
                })
            };
            n = missing.iter().take(n).take_while(fits).count();
            if n == 0 {
                let used = format!(
                    "{used} of {limit} tokens, and the next request may need more than the remainder"
                );
                return Err(used_up(used, "--max-tokens"));
            }
        }
        Ok(n)
    }

    fn send(
        &mut self,
        stage: &'static str,
        requests: &[Request<'_>],
        batch: &[usize],
        unanswered: &mut BTreeMap<usize, Unanswered>,
    ) -> Result<(), PipelineError> {
        let (n_prompt_tokens, n_tokens) = self.journal.used_tokens();
        let is_stored = |request: &&Request<'_>| self.journal.get(&request.key).is_some();
        let mut progress = Progress {
            stage,
            n_done: requests.iter().filter(is_stored).count(),
            n_all: requests.len(),
            n_prompt_tokens,
            n_tokens,
        };
        let prompts: Vec<&Prompt> = batch.iter().map(|idx| requests[*idx].prompt).collect();
        let (journal, watch, n_failed) = (&mut self.journal, &mut *self.watch, &mut self.n_failed);
        let mut failure = None;
        let mut is_stopped = !watch(&progress);
        let mut take = |arrival: Option<PromptResult>| {
            if let Some(PromptResult { number, result }) = arrival {
                let idx = batch[number];
                match result {
                    Ok(reply) => {
                        progress.n_done += 1;
                        let Progress {
                            n_prompt_tokens,
                            n_tokens,
                            ..
                        } = &mut progress;
                        *n_prompt_tokens = n_prompt_tokens.saturating_add(reply.n_prompt_tokens);
                        *n_tokens = n_tokens.saturating_add(reply.n_tokens);
                        unanswered.remove(&idx);
                        let stored = journal.add(&requests[idx].key, Entry::Reply(reply));
                        failure = failure.take().or(stored.err());
                    }
                    Err(fault) => {
                        *n_failed += 1;
                        unanswered.insert(idx, fault);
                    }
                }
            }
            is_stopped |= !watch(&progress);
            failure.is_none() && !is_stopped
        };
        let outcome = self.generator.ask(&prompts, &mut take);
        self.journal.sync()?;
        match (failure, outcome) {
            (Some(failure), _) => Err(failure),
            _ if is_stopped => Err(PipelineError::Stopped {
                n_replies: self.journal.n_replies(),
            }),
            (None, Err(failure)) => Err(self.generator_error(failure.to_string())),
            (None, Ok(())) => Ok(()),
        }
    }
}
