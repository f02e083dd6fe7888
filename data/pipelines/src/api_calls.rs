//! Calls of APIs, each made once in a folder, whatever stages need it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};

use crate::error::PipelineError;
use crate::run::{Progress, Run};

/// What stands before the keys of calls in the journal, in the place of a stage: a call that two
/// stages need is one.
const API: &str = "api";

/// What a report counts calls by.
const CALLS: &str = "calls of APIs";
const FAILED: &str = "calls of APIs that failed";
const UNANSWERED: &str = "calls of APIs that nothing answered, or a server that was busy";

/// A call of an API.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiCall {
    /// The API's name.
    pub name: String,
    /// Arguments by name.
    pub arguments: Map<String, Value>,
}

impl ApiCall {
    /// The call in words, for messages.
    pub fn shown(&self) -> String {
        format!("{} {}", self.name, Value::Object(self.arguments.clone()))
    }

    fn request(&self) -> Value {
        json!({"name": self.name, "arguments": self.arguments})
    }
}

/// Which calls a stage has needed, and whether they failed and were answered.
#[derive(Debug, Default)]
pub(crate) struct NeededCalls(BTreeMap<String, (bool, bool)>);

impl NeededCalls {
    /// What a report says of them.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let n_failed = self.0.values().filter(|call| call.0).count();
        let n_unanswered = self.0.values().filter(|call| call.1).count();
        let counts = [
            (CALLS, self.0.len()),
            (FAILED, n_failed),
            (UNANSWERED, n_unanswered),
        ];
        let counts = counts.into_iter().filter(|(_, n)| *n > 0);
        counts.map(|(what, n)| (what.to_owned(), n)).collect()
    }
}

impl Run<'_> {
    /// What each of `calls` gave, in their order. One that was made in this folder before, by this
    /// stage or another, is not made again; one that failed is kept, too.
    ///
    /// # Errors
    ///
    /// - the budget of calls is used up, or the user ends the work; a later run continues from there
    /// - the journal cannot be written
    pub fn call_apis(
        &mut self,
        stage: &'static str,
        calls: &[ApiCall],
        executor: &mut dyn Executor,
    ) -> Result<Vec<CallResult>, PipelineError> {
        let mut n_made = self.journal.n_outputs();
        let (n_prompt_tokens, n_tokens) = self.used_tokens();
        let mut results = Vec::with_capacity(calls.len());
        for (n_done, call) in calls.iter().enumerate() {
            let request = call.request();
            let progress = Progress {
                stage,
                n_done,
                n_all: calls.len(),
                n_prompt_tokens,
                n_tokens,
            };
            let made = match self.output(API, &call.name, &request) {
                Some(made) => made.clone(),
                None => {
                    self.may_call(stage, n_made, calls.len() - n_done)?;
                    self.go_on(&progress)?;
                    let result = executor.call(&call.name, &call.arguments);
                    if let Some(fault) = executor.fault() {
                        return Err(PipelineError::Usage(fault));
                    }
                    // A wait that a signal has ended is no answer.
                    if result.is_failure() {
                        self.go_on(&progress)?;
                    }
                    n_made += 1;
                    let mut made = json!({"output": result.output, "exception": result.exception});
                    if result.is_unanswered {
                        made["is_unanswered"] = true.into();
                    }
                    self.once(API, &call.name, &request, || Ok(made))?
                }
            };
            let result = CallResult {
                is_unanswered: made["is_unanswered"] == true,
                ..CallResult::of(
                    made["output"].clone(),
                    made["exception"].as_str().map(str::to_owned),
                )
            };
            let needed = self.needed_calls.entry(stage).or_default();
            let became = (result.is_failure(), result.is_unanswered);
            needed.0.insert(call.shown(), became);
            results.push(result);
        }
        Ok(results)
    }

    /// Ends the work if the user wants that.
    fn go_on(&mut self, progress: &Progress) -> Result<(), PipelineError> {
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
                used: format!("{n_made} of {most} calls of APIs"),
                n_left,
                what: "calls",
                option: "--max-api-calls",
            }),
            _ => Ok(()),
        }
    }
}
