//! An agent loop from query to answer, as a state machine without a model: it emits requests, and
//! the caller feeds it the results.
//!
//! Reading a request changes nothing, so it can be repeated; feeding a result advances the loop.
//! One caller can therefore drive many loops at once, batch their generations, and stop any of them
//! at a deadline. Model output is never an error: a call that cannot be parsed, or that names an
//! unknown API, becomes a failed call with the reason as its result, and the loop continues (GOAT,
//! section 4.1).

use serde_json::{Map, Value};
use tooltune_apis::{ApiCatalogue, ApiDocument};
use tooltune_template::Conversation;

use super::method::{ExampleKind, Method};
use super::options::AgentLimits;
use super::outcome::{AttemptedCall, EndReason, Failure, Outcome, Retrieval};
use super::prompts::{Prompt, ShownCall, Task, one_line};
use super::reading::{self, CallParseError, ParsedCall, ParsedStep};
use super::shown_result::shown_result;
use super::text_schema::text_schema;
use crate::executors::CallResult;
use crate::flat::FlatDocuments;

/// The next request of a loop.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentRequest {
    /// Retrieve the documents nearest to a text, then call [`Agent::feed_documents`].
    Retrieve {
        /// The query or sub-query.
        text: String,
        /// Number of documents.
        k: usize,
    },
    /// Generate a text, then call [`Agent::feed_text`].
    Generate {
        /// The prompt.
        conversation: Conversation,
        /// Maximum number of tokens.
        max_new_tokens: usize,
        /// The kind of text.
        kind: ExampleKind,
    },
    /// Call an API, then call [`Agent::feed_result`].
    Call {
        /// Name of the API; the catalogue contains it.
        name: String,
        /// The arguments as the model wrote them; nested if the model saw a flat schema.
        arguments: Map<String, Value>,
    },
    /// The loop has ended.
    Done(Outcome),
}

/// A loop with one of the prompting methods.
#[derive(Debug, Clone)]
pub struct Agent<'a> {
    catalogue: &'a ApiCatalogue,
    /// Unflattens the model's output, if the catalogue is flat.
    flat: Option<&'a FlatDocuments>,
    limits: AgentLimits,
    query: String,
    documents: Vec<&'a ApiDocument>,
    calls: Vec<ShownCall>,
    /// Number of started steps or sub-queries, for methods without a plan.
    n_steps: usize,
    next: NextAction,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq)]
enum NextAction {
    Retrieve(String),
    Generate(Task),
    Call(ParsedCall),
    Done,
}

impl<'a> Agent<'a> {
    /// Starts a loop.
    pub fn new(
        method: Method,
        query: &str,
        catalogue: &'a ApiCatalogue,
        limits: AgentLimits,
    ) -> Self {
        Self {
            catalogue,
            flat: None,
            limits,
            query: query.to_owned(),
            documents: Vec::new(),
            calls: Vec::new(),
            n_steps: 0,
            next: match method {
                Method::Global | Method::React => NextAction::Retrieve(query.to_owned()),
                Method::GlobalId => NextAction::Generate(Task::SubQueries),
                Method::ReactId => NextAction::Generate(Task::NextSubQuery),
            },
            outcome: Outcome::empty(method),
        }
    }

    /// Starts a loop that shows flat documents. Calls are converted to the nested form before they
    /// are made and recorded.
    pub fn with_flat_documents(
        method: Method,
        query: &str,
        flat: &'a FlatDocuments,
        limits: AgentLimits,
    ) -> Self {
        Self {
            flat: Some(flat),
            ..Self::new(method, query, flat.catalogue(), limits)
        }
    }

    /// The next request. It stays the same until the loop is fed.
    pub fn next(&self) -> AgentRequest {
        match &self.next {
            NextAction::Retrieve(text) => AgentRequest::Retrieve {
                text: text.clone(),
                k: self.limits.n_documents,
            },
            NextAction::Generate(task) => {
                let kind = task.kind();
                AgentRequest::Generate {
                    conversation: self.prompt(*task).conversation(),
                    max_new_tokens: self.limits.max_new_tokens(kind),
                    kind,
                }
            }
            NextAction::Call(call) => AgentRequest::Call {
                name: call.name.clone(),
                arguments: self.nested_arguments_of(call),
            },
            NextAction::Done => AgentRequest::Done(self.outcome.clone()),
        }
    }

    /// The JSON Schema of the requested text, if it must be pure JSON: a plan of shown documents,
    /// sub-queries, or a call of a shown document.
    pub fn text_schema(&self) -> Option<Value> {
        let NextAction::Generate(task) = self.next else {
            return None;
        };
        let planned = self.outcome.plan.get(self.calls.len());
        let planned = planned.and_then(|name| self.catalogue_name(name));
        text_schema(
            task,
            &self.documents,
            planned.as_deref(),
            self.limits.max_calls,
        )
    }

    /// Whether the loop has ended.
    pub fn is_done(&self) -> bool {
        self.next == NextAction::Done
    }

    /// Stops the loop in its current state, for example with [`EndReason::Deadline`].
    pub fn stop(&mut self, reason: EndReason) {
        if !self.is_done() {
            self.outcome.end = reason;
            self.next = NextAction::Done;
        }
    }

    /// Feeds the documents to show, as indices into the catalogue, in display order.
    ///
    /// # Panics
    ///
    /// If the loop did not request documents, or an index is out of range.
    pub fn feed_documents(&mut self, positions: &[usize]) {
        let NextAction::Retrieve(text) = &self.next else {
            panic!("the loop did not request documents");
        };
        let documents = self.catalogue.documents();
        self.documents = positions
            .iter()
            .map(|&position| &documents[position])
            .collect();
        self.outcome.retrievals.push(Retrieval {
            text: text.clone(),
            documents: self
                .documents
                .iter()
                .map(|document| document.call_name())
                .collect(),
        });
        self.next = NextAction::Generate(match self.outcome.method {
            Method::Global => Task::Plan,
            Method::React => Task::Step,
            Method::GlobalId | Method::ReactId => Task::SubQueryCall,
        });
    }

    /// Feeds the model's text, without special tokens.
    ///
    /// # Panics
    ///
    /// If the loop did not request a text.
    pub fn feed_text(&mut self, text: &str) {
        let NextAction::Generate(task) = self.next else {
            panic!("the loop did not request a text");
        };
        match task {
            Task::Plan => self.take_plan(text),
            Task::SubQueries => self.take_sub_queries(text),
            Task::NextSubQuery => self.take_sub_query(text),
            Task::PlannedCall | Task::SubQueryCall => {
                self.take_call(task, reading::read_call(text), text);
            }
            Task::Step => match reading::read_step(text) {
                ParsedStep::Finish(response) => self.answer(response),
                ParsedStep::Action(call) => self.take_call(task, call, text),
            },
            Task::Answer => self.answer(text.trim().to_owned()),
        }
    }

    /// Feeds the result of the call.
    ///
    /// # Panics
    ///
    /// If the loop did not request a call.
    pub fn feed_result(&mut self, result: CallResult) {
        let NextAction::Call(call) = std::mem::replace(&mut self.next, NextAction::Done) else {
            panic!("the loop did not request a call");
        };
        self.calls.push(ShownCall::from_call(
            &call.name,
            &call.arguments,
            shown_result(&result, &self.limits),
        ));
        self.record(AttemptedCall {
            arguments: Some(self.nested_arguments_of(&call)),
            name: Some(call.name),
            raw: None,
            output: result.output,
            exception: result.exception,
        });
    }

    fn take_plan(&mut self, text: &str) {
        match reading::read_texts(text) {
            Some(names) => self.outcome.plan = names,
            None => self.fail(
                ExampleKind::Plan,
                "this is not a JSON array of API names",
                text,
            ),
        }
        if self.outcome.plan.len() > self.limits.max_calls {
            let reason = format!(
                "the plan has {} calls, of which {} are made",
                self.outcome.plan.len(),
                self.limits.max_calls
            );
            self.fail(ExampleKind::Plan, &reason, text);
            self.outcome.plan.truncate(self.limits.max_calls);
        }
        self.next_step();
    }

    fn take_sub_queries(&mut self, text: &str) {
        let kind = ExampleKind::Decompose;
        match reading::read_texts(text) {
            Some(texts) => {
                self.outcome.sub_queries = texts
                    .iter()
                    .filter_map(|text| reading::read_sub_query(text))
                    .collect();
            }
            None => self.fail(kind, "this is not a JSON array of sub-queries", text),
        }
        if self.outcome.sub_queries.len() > self.limits.max_calls {
            let reason = format!(
                "there are {} sub-queries, of which {} are asked",
                self.outcome.sub_queries.len(),
                self.limits.max_calls
            );
            self.fail(kind, &reason, text);
            self.outcome.sub_queries.truncate(self.limits.max_calls);
        }
        self.next_step();
    }

    fn take_sub_query(&mut self, text: &str) {
        if text.trim().is_empty() {
            self.fail(
                ExampleKind::Decompose,
                "this is neither a sub-query nor DONE",
                text,
            );
        }
        match reading::read_sub_query(text) {
            Some(sub_query) => {
                self.outcome.sub_queries.push(sub_query.clone());
                self.n_steps += 1;
                self.next = NextAction::Retrieve(sub_query);
            }
            None => self.next = NextAction::Generate(Task::Answer),
        }
    }

    fn take_call(&mut self, task: Task, call: Result<ParsedCall, CallParseError>, text: &str) {
        if task == Task::Step {
            self.n_steps += 1;
        }
        match call {
            Ok(mut call) => match self.catalogue_name(&call.name) {
                Some(name) => {
                    call.name = name;
                    let nested = self
                        .flat
                        .map(|flat| flat.nested_arguments(&call.name, &call.arguments));
                    let Some(Err(error)) = nested else {
                        self.next = NextAction::Call(call);
                        return;
                    };
                    let reason = format!("{}: {error}", call.name);
                    self.fail(task.kind(), &reason, text);
                    self.next = NextAction::Call(call);
                    self.feed_result(CallResult::failure(reason));
                }
                None => {
                    let result = CallResult::failure(self.unknown_message(&call.name));
                    self.next = NextAction::Call(call);
                    self.feed_result(result);
                }
            },
            Err(error) => {
                self.fail(task.kind(), error.reason, text);
                let planned = self.outcome.plan.get(self.calls.len()).cloned();
                let result = CallResult::failure(error.reason);
                self.calls.push(ShownCall::from_text(
                    text,
                    shown_result(&result, &self.limits),
                ));
                self.record(AttemptedCall {
                    name: error.name.or(planned),
                    arguments: None,
                    raw: Some(shorten(text)),
                    output: result.output,
                    exception: result.exception,
                });
            }
        }
    }

    fn answer(&mut self, response: String) {
        self.outcome.response = response;
        self.next = NextAction::Done;
    }

    fn record(&mut self, call: AttemptedCall) {
        self.outcome.path.extend(call.name.clone());
        self.outcome.calls.push(call);
        self.next_step();
    }

    /// Continues after a plan, sub-queries or a call.
    fn next_step(&mut self) {
        let n_calls = self.calls.len();
        let is_at_step_limit = self.n_steps >= self.limits.max_steps;
        self.next = match self.outcome.method {
            Method::Global => match self.outcome.plan.get(n_calls).cloned() {
                None => NextAction::Generate(Task::Answer),
                Some(name) => return self.start_planned_call(&name),
            },
            Method::GlobalId => match self.outcome.sub_queries.get(n_calls) {
                None => NextAction::Generate(Task::Answer),
                Some(sub_query) => NextAction::Retrieve(sub_query.clone()),
            },
            Method::React if is_at_step_limit => {
                self.outcome.end = EndReason::StepLimit;
                NextAction::Done
            }
            Method::React => NextAction::Generate(Task::Step),
            Method::ReactId if is_at_step_limit => {
                self.outcome.end = EndReason::StepLimit;
                NextAction::Generate(Task::Answer)
            }
            Method::ReactId => NextAction::Generate(Task::NextSubQuery),
        };
    }

    /// Handles the next planned name. An unknown name becomes a failed call without arguments.
    fn start_planned_call(&mut self, name: &str) {
        match self
            .catalogue_name(name)
            .and_then(|name| self.catalogue.get(&name))
        {
            Some(document) => {
                self.documents = vec![document];
                self.next = NextAction::Generate(Task::PlannedCall);
            }
            None => {
                let result = CallResult::failure(self.unknown_message(name));
                self.calls.push(ShownCall::from_call(
                    name,
                    &Map::new(),
                    shown_result(&result, &self.limits),
                ));
                self.record(AttemptedCall {
                    name: Some(name.to_owned()),
                    arguments: None,
                    raw: None,
                    output: result.output,
                    exception: result.exception,
                });
            }
        }
    }

    /// The arguments of a call in nested form; unchanged if they cannot be unflattened.
    fn nested_arguments_of(&self, call: &ParsedCall) -> Map<String, Value> {
        let flat = self.flat;
        let nested = flat.and_then(|flat| flat.nested_arguments(&call.name, &call.arguments).ok());
        nested.unwrap_or_else(|| call.arguments.clone())
    }

    fn unknown_message(&self, name: &str) -> String {
        format!("unknown API {name:?}{}", self.catalogue.hint(name))
    }

    /// The name as spelled in the catalogue, ignoring whitespace differences.
    fn catalogue_name(&self, name: &str) -> Option<String> {
        let collapsed = one_line(name);
        [name, &collapsed]
            .into_iter()
            .find(|name| self.catalogue.get(name).is_some())
            .map(str::to_owned)
    }

    fn fail(&mut self, kind: ExampleKind, reason: &str, text: &str) {
        self.outcome.failures.push(Failure {
            kind,
            reason: reason.to_owned(),
            text: shorten(text),
        });
    }

    fn prompt(&self, task: Task) -> Prompt<'_> {
        Prompt {
            task,
            query: &self.query,
            documents: &self.documents,
            plan: &self.outcome.plan,
            // If all sub-queries were written at once, hide those after the next call.
            sub_queries: match task {
                Task::SubQueryCall => &self.outcome.sub_queries[..self.calls.len() + 1],
                _ => &self.outcome.sub_queries,
            },
            calls: &self.calls,
        }
    }
}

impl Task {
    fn kind(self) -> ExampleKind {
        match self {
            Self::Plan => ExampleKind::Plan,
            Self::PlannedCall | Self::SubQueryCall => ExampleKind::Call,
            Self::Step => ExampleKind::Step,
            Self::SubQueries | Self::NextSubQuery => ExampleKind::Decompose,
            Self::Answer => ExampleKind::Final,
        }
    }
}

pub(super) fn shorten(text: &str) -> String {
    const N_CHARACTERS: usize = 500;
    text.chars().take(N_CHARACTERS).collect()
}
