//! Prompts to what was read out of their replies, each asked at most twice and paid for once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::error::PipelineError;
use crate::generator::{Came, ModelInfo, Prompt, Unanswered};
use crate::journal::{Entry, Journal};
use crate::prompts::digest;
use crate::reply::excerpt;
use crate::report::{AGAIN, Dropped};
use crate::run::{Progress, Run};

/// The prompt that every pipeline has: what is said when a reply could not be read.
pub const AGAIN_PROMPT: crate::prompts::PromptFile = crate::prompts::PromptFile {
    name: "again",
    variables: &["prompt", "reason"],
    source: include_str!("../../../configs/prompts/again.jinja"),
};

/// Why something is dropped whose reply cannot be read.
pub const UNREADABLE: &str = "the reply cannot be read";
/// Why something is dropped whose request has no reply.
pub const NO_REPLY: &str = "no reply";

/// Requests that are handed over at once, each of them copied for that.
const MOST_AT_ONCE: usize = 16_384;

/// Characters of a digest in a key: enough to tell the requests of one item apart.
const KEY_CHARS: usize = 16;

/// Something that is asked about.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Its name, unique within the stage.
    pub id: String,
    /// What is asked.
    pub prompt: Prompt,
}

/// A request under the key that the journal has it by.
struct Request<'p> {
    key: String,
    prompt: &'p Prompt,
}

/// The key of a request: its stage and item, which time it is, and a digest of the request.
fn key(stage: &str, id: &str, time: &str, prompt: &Prompt) -> String {
    key_of(stage, id, time, &json!(prompt))
}

fn key_of(stage: &str, id: &str, time: &str, request: &Value) -> String {
    let mut digest = digest(request.to_string().as_bytes());
    digest.truncate(KEY_CHARS);
    format!("{stage}/{id}{time}{digest}")
}

/// Whether a key is of a request that was sent at this time, whatever the name of its item is.
pub(crate) fn is_time(key: &str, time: &str) -> bool {
    let end = key.len().saturating_sub(KEY_CHARS);
    key.get(..end).is_some_and(|key| key.ends_with(time))
}

const FIRST: &str = "/first/";
const MADE: &str = "/made/";

/// What a stage would ask, before anything is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    /// The stage.
    pub stage: &'static str,
    /// Requests.
    pub n_requests: usize,
    /// Those of them whose reply is there already.
    pub n_there: usize,
    /// Tokens of the prompts that are left to send.
    pub n_prompt_tokens: usize,
    /// The most tokens that their replies may have.
    pub n_max_tokens: usize,
    /// Calls of APIs that are left to make, at most.
    pub n_api_calls: usize,
    /// Whether an earlier stage may still lower all of this.
    pub is_at_most: bool,
}

impl StagePlan {
    /// What is left to ask.
    pub fn of(
        stage: &'static str,
        asked: &[Asked],
        journal: &Journal,
        model: &dyn ModelInfo,
    ) -> Self {
        let is_left = |item: &&Asked| {
            let key = key(stage, &item.id, FIRST, &item.prompt);
            journal.get(&key).is_none()
        };
        let left: Vec<&Asked> = asked.iter().filter(is_left).collect();
        let tokens = left
            .iter()
            .map(|item| model.count_tokens(&item.prompt.text));
        Self {
            stage,
            n_requests: asked.len(),
            n_there: asked.len() - left.len(),
            n_prompt_tokens: tokens.sum(),
            n_max_tokens: left.iter().map(|item| item.prompt.max_tokens).sum(),
            n_api_calls: 0,
            is_at_most: false,
        }
    }

    /// Requests of a stage that are done with, those that were sent again not counted twice.
    pub(crate) fn n_first(stage: &str, journal: &Journal) -> usize {
        let of_stage = journal
            .entries_of(stage)
            .filter(|(key, _)| key[stage.len()..].starts_with('/') && is_time(key, FIRST));
        of_stage.count()
    }

    /// What may be asked of so many items that are not there yet, each by a prompt of so many tokens.
    pub fn at_most(
        stage: &'static str,
        n_requests: usize,
        n_prompt_tokens: usize,
        max_tokens: usize,
    ) -> Self {
        Self {
            stage,
            n_requests,
            n_there: 0,
            n_prompt_tokens: n_requests.saturating_mul(n_prompt_tokens),
            n_max_tokens: n_requests.saturating_mul(max_tokens),
            n_api_calls: 0,
            is_at_most: true,
        }
    }
}

impl Run<'_> {
    /// What `read` finds in the reply to each of `asked`, in their order.
    ///
    /// Replies that the journal has are taken from there. A reply that `read` refuses is asked for
    /// once more, with the reason; a request without a reply is sent once more after all others.
    /// What then has none, or none that can be read, is dropped.
    ///
    /// # Errors
    ///
    /// - the budget is used up, the user ends the work, or what generates cannot continue; a
    ///   later run continues from there
    /// - the journal cannot be written
    pub fn ask<T>(
        &mut self,
        stage: &'static str,
        asked: &[Asked],
        read: &dyn Fn(usize, &str) -> Result<T, String>,
    ) -> Result<Vec<Result<T, Dropped>>, PipelineError> {
        let first: Vec<Request<'_>> = asked
            .iter()
            .map(|item| Request {
                key: key(stage, &item.id, FIRST, &item.prompt),
                prompt: &item.prompt,
            })
            .collect();
        self.complete(stage, &first)?;
        let mut results = Vec::with_capacity(asked.len());
        let mut unread: Vec<(usize, Prompt)> = Vec::new();
        for (idx, request) in first.iter().enumerate() {
            let result = self.read_reply(&asked[idx].id, idx, &request.key, read);
            if let Err(dropped) = &result
                && dropped.reason == UNREADABLE
            {
                unread.push((idx, self.again(request.prompt, &dropped.detail)?));
            }
            results.push(result);
        }
        let again: Vec<Request<'_>> = unread
            .iter()
            .map(|(idx, prompt)| Request {
                key: key(stage, &asked[*idx].id, AGAIN, prompt),
                prompt,
            })
            .collect();
        self.complete(stage, &again)?;
        for ((idx, _), request) in unread.iter().zip(&again) {
            results[*idx] = self.read_reply(&asked[*idx].id, *idx, &request.key, read);
        }
        Ok(results)
    }

    /// What comes of something that is no prompt, such as the call of an API: `make` is asked once
    /// for each `request` of an item, and what it gave is on the disk before it is used.
    ///
    /// # Errors
    ///
    /// What `make` says, which is not kept, or the journal cannot be written.
    pub fn once(
        &mut self,
        stage: &'static str,
        id: &str,
        request: &Value,
        make: impl FnOnce() -> Result<Value, PipelineError>,
    ) -> Result<Value, PipelineError> {
        if let Some(output) = self.output(stage, id, request) {
            return Ok(output.clone());
        }
        let key = key_of(stage, id, MADE, request);
        let output = make()?;
        self.journal.add(&key, Entry::Output(output.clone()))?;
        self.journal.sync()?;
        Ok(output)
    }

    /// What came of something that is no prompt, if it was made before.
    pub(crate) fn output(&self, stage: &str, id: &str, request: &Value) -> Option<&Value> {
        match self.journal.get(&key_of(stage, id, MADE, request)) {
            Some(Entry::Output(output)) => Some(output),
            _ => None,
        }
    }

    fn again(&self, prompt: &Prompt, reason: &str) -> Result<Prompt, PipelineError> {
        let values = [("prompt", prompt.text.as_str()), ("reason", reason)];
        Ok(Prompt {
            text: self.prompts().render(AGAIN_PROMPT.name, &values)?,
            ..prompt.clone()
        })
    }

    fn read_reply<T>(
        &self,
        id: &str,
        idx: usize,
        key: &str,
        read: &dyn Fn(usize, &str) -> Result<T, String>,
    ) -> Result<T, Dropped> {
        match self.journal.get(key) {
            Some(Entry::Reply(reply)) => read(idx, &reply.text).map_err(|reason| {
                let reason = match (&reply.without_text, reply.finish_reason.as_str()) {
                    (Some(what), _) => format!("there is {what} in place of a text"),
                    (None, "length") => format!("{reason}; it was cut off at its limit of tokens"),
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

    /// Sends what the journal does not have, until it has everything.
    fn complete(
        &mut self,
        stage: &'static str,
        requests: &[Request<'_>],
    ) -> Result<(), PipelineError> {
        let mut held: BTreeMap<usize, Unanswered> = BTreeMap::new();
        // What has no reply for no fault of its own is sent once more, after all others.
        for _ in 0..2 {
            let mut keys = BTreeSet::new();
            let is_left = |idx: &usize| {
                let key = requests[*idx].key.as_str();
                let may_fare_better = held.get(idx).is_none_or(|fault| !fault.is_final);
                self.journal.get(key).is_none() && may_fare_better && keys.insert(key)
            };
            let left: Vec<usize> = (0..requests.len()).filter(is_left).collect();
            self.send_within_budget(stage, requests, &left, &mut held)?;
        }
        if let Some(fault) = held.values().next()
            && self.journal.n_replies() == 0
        {
            let message = format!("{}; no request has a reply", fault.message);
            return Err(self.failed(message));
        }
        for (idx, fault) in held {
            self.journal
                .add(&requests[idx].key, Entry::Unanswered(fault))?;
        }
        self.journal.sync()
    }

    fn failed(&self, message: String) -> PipelineError {
        PipelineError::Generator {
            message,
            n_replies: self.journal.n_replies(),
        }
    }

    /// In parts that are sure to stay within the budget, whatever the replies take.
    fn send_within_budget(
        &mut self,
        stage: &'static str,
        requests: &[Request<'_>],
        left: &[usize],
        held: &mut BTreeMap<usize, Unanswered>,
    ) -> Result<(), PipelineError> {
        let mut left = left;
        while !left.is_empty() {
            let n = self.affordable(stage, requests, left)?.min(MOST_AT_ONCE);
            let (now, later) = left.split_at(n);
            self.send(stage, requests, now, held)?;
            left = later;
        }
        Ok(())
    }

    /// How many of `left` the budget is enough for, at least one.
    fn affordable(
        &self,
        stage: &'static str,
        requests: &[Request<'_>],
        left: &[usize],
    ) -> Result<usize, PipelineError> {
        let used_up = |used: String, option| PipelineError::Budget {
            stage,
            used,
            n_left: left.len(),
            what: "requests",
            option,
        };
        let mut n = left.len();
        if let Some(most) = self.limits.max_requests {
            let used = self.journal.n_requests() + self.n_failed;
            n = n.min(most.saturating_sub(used));
            if n == 0 {
                return Err(used_up(
                    format!("{used} of {most} requests"),
                    "--max-requests",
                ));
            }
        }
        if let Some(most) = self.limits.max_tokens {
            let used = self.used_tokens();
            let mut free = most.saturating_sub(used.0 + used.1);
            let fits = |idx: &&usize| {
                let prompt = requests[**idx].prompt;
                let needed = self.generator.count_tokens(&prompt.text) + prompt.max_tokens;
                free.checked_sub(needed).is_some_and(|rest| {
                    free = rest;
                    true
                })
            };
            n = left.iter().take(n).take_while(fits).count();
            if n == 0 {
                let used = used.0 + used.1;
                let used = format!(
                    "{used} of {most} tokens, and the next request may take more than the rest"
                );
                return Err(used_up(used, "--max-tokens"));
            }
        }
        Ok(n)
    }

    /// Tokens of prompts and of replies so far.
    pub(crate) fn used_tokens(&self) -> (usize, usize) {
        let entries = self.journal.entries();
        entries.fold((0, 0), |(prompt, text), (_, entry)| match entry {
            Entry::Reply(reply) => (prompt + reply.n_prompt_tokens, text + reply.n_tokens),
            Entry::Unanswered(_) | Entry::Output(_) => (prompt, text),
        })
    }

    fn send(
        &mut self,
        stage: &'static str,
        requests: &[Request<'_>],
        now: &[usize],
        held: &mut BTreeMap<usize, Unanswered>,
    ) -> Result<(), PipelineError> {
        let (n_prompt_tokens, n_tokens) = self.used_tokens();
        let is_there = |request: &&Request<'_>| self.journal.get(&request.key).is_some();
        let mut progress = Progress {
            stage,
            n_done: requests.iter().filter(is_there).count(),
            n_all: requests.len(),
            n_prompt_tokens,
            n_tokens,
        };
        let prompts: Vec<&Prompt> = now.iter().map(|idx| requests[*idx].prompt).collect();
        let (journal, watch, n_failed) = (&mut self.journal, &mut *self.watch, &mut self.n_failed);
        let mut failure = None;
        let mut is_stopped = !watch(&progress);
        let mut take = |came: Option<Came>| {
            if let Some(Came { number, result }) = came {
                let idx = now[number];
                match result {
                    Ok(reply) => {
                        progress.n_done += 1;
                        progress.n_prompt_tokens += reply.n_prompt_tokens;
                        progress.n_tokens += reply.n_tokens;
                        held.remove(&idx);
                        let kept = journal.add(&requests[idx].key, Entry::Reply(reply));
                        failure = failure.take().or(kept.err());
                    }
                    Err(fault) => {
                        *n_failed += 1;
                        held.insert(idx, fault);
                    }
                }
            }
            is_stopped |= !watch(&progress);
            failure.is_none() && !is_stopped
        };
        let asked = self.generator.ask(&prompts, &mut take);
        self.journal.sync()?;
        match (failure, asked) {
            (Some(failure), _) => Err(failure),
            _ if is_stopped => Err(PipelineError::Stopped {
                n_replies: self.journal.n_replies(),
            }),
            (None, Err(failure)) => Err(self.failed(failure.to_string())),
            (None, Ok(())) => Ok(()),
        }
    }
}
