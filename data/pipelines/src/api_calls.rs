//! API calls. Each call is made once per folder, even if several stages need it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};

use crate::error::PipelineError;
use crate::run::{Progress, Run};

/// Prefix of call keys in the journal, instead of a stage name, so that stages share calls.
const API: &str = "api";

/// Names of the call counts in a report.
const CALLS: &str = "API calls";
const FAILED: &str = "failed API calls";
const UNANSWERED: &str = "API calls without an answer, or with a busy server";

/// An API call.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiCall {
    /// Name of the API.
    pub name: String,
    /// Arguments by name.
    pub arguments: Map<String, Value>,
}

impl ApiCall {
    /// The call as text, for messages.
    pub fn text(&self) -> String {
        format!("{} {}", self.name, Value::Object(self.arguments.clone()))
    }

    fn request(&self) -> Value {
        json!({"name": self.name, "arguments": self.arguments})
    }
}

/// The calls that a stage needed: whether each one failed, and whether it was left unanswered.
#[derive(Debug, Default)]
pub(crate) struct NeededCalls(BTreeMap<String, (bool, bool)>);

impl NeededCalls {
    /// The counts for a report.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let n_failed = self.0.values().filter(|call| call.0).count();
        let n_unanswered = self.0.values().filter(|call| call.1).count();
        let counts = [
            (CALLS, self.0.len()),
            (FAILED, n_failed),
            (UNANSWERED, n_unanswered),
        ];
        let counts = counts.into_iter().filter(|(_, n)| *n > 0);
        counts.map(|(status, n)| (status.to_owned(), n)).collect()
    }
}

impl Run<'_> {
    /// Returns the results of `calls` in order. A call that any stage has already made in this
    /// folder is not repeated; results of failed calls are also stored.
    ///
    /// # Errors
    ///
    /// - the call budget is used up, or the user stops the work; a later run continues from there
    /// - the journal cannot be written
    pub fn call_apis(
        &mut self,
        stage: &'static str,
        calls: &[ApiCall],
        executor: &mut dyn Executor,
    ) -> Result<Vec<CallResult>, PipelineError> {
        let mut n_made = self.journal.n_outputs();
        let (n_prompt_tokens, n_tokens) = self.journal.used_tokens();
        let mut results = Vec::with_capacity(calls.len());
        for (n_done, call) in calls.iter().enumerate() {
            // A refused call has no result to store.
            if let Some(reason) = executor.refusal(&call.name) {
                results.push(CallResult::failure(reason));
                continue;
            }
            let request = call.request();
            let progress = Progress {
                stage,
                n_done,
                n_all: calls.len(),
                n_prompt_tokens,
                n_tokens,
            };
            let stored = match self.output(API, &call.name, &request) {
                Some(stored) => stored.clone(),
                None => {
                    self.may_call(stage, n_made, calls.len() - n_done)?;
                    self.check_stop(&progress)?;
                    let result = executor.call(&call.name, &call.arguments);
                    if let Some(fault) = executor.fault() {
                        return Err(PipelineError::Usage(fault));
                    }
                    // A failure while the user stops the run is not the API's answer.
                    if result.is_failure() {
                        self.check_stop(&progress)?;
                    }
                    n_made += 1;
                    let mut stored =
                        json!({"output": result.output, "exception": result.exception});
                    if result.is_unanswered {
                        stored["is_unanswered"] = true.into();
                    }
                    self.run_once(API, &call.name, &request, || Ok(stored))?
                }
            };
            let result = CallResult {
                is_unanswered: stored["is_unanswered"] == true,
                ..CallResult::new(
                    stored["output"].clone(),
                    stored["exception"].as_str().map(str::to_owned),
                )
            };
            let needed = self.needed_calls.entry(stage).or_default();
            let status = (result.is_failure(), result.is_unanswered);
            needed.0.insert(call.text(), status);
            results.push(result);
        }
        Ok(results)
    }

    /// Returns an error if the user wants to stop.
    fn check_stop(&mut self, progress: &Progress) -> Result<(), PipelineError> {
        if (self.watch)(progress) {
            return Ok(());
        }
        Err(PipelineError::Stopped {
            n_replies: self.journal.n_replies(),
        })
    }

    fn may_call(
        &self,
        stage: &'static str,
        n_made: usize,
        n_left: usize,
    ) -> Result<(), PipelineError> {
        match self.limits.max_api_calls {
            Some(most) if n_made >= most => Err(PipelineError::Budget {
                stage,
                used: format!("{n_made} of {most} API calls"),
                n_left,
                what: "calls",
                option: "--max-api-calls",
            }),
            _ => Ok(()),
        }
    }
}
