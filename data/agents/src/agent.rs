//! Runs a loop from query to answer without a model: it asks for what it needs and is fed with it.
//!
//! Asking changes nothing and may be repeated; feeding moves on. So one caller can drive many
//! loops at once, generate for all of them in one batch, and stop any of them when its time is up.
//! The decision to question: nothing that a model writes is an error. A call that cannot be read,
//! or names an API that does not exist, is a failed call whose result says so, and the loop goes
//! on (GOAT, section 4.1).

use serde_json::{Map, Value};
use tooltune_rows::text::Conversation;
use tooltune_rows::tools::{ApiCatalogue, ApiDocument};

use super::method::{ExampleKind, Method};
use super::options::AgentLimits;
use super::outcome::{AttemptedCall, EndReason, Failure, Outcome, Retrieval};
use super::prompts::{Prompt, ShownCall, Task, one_line};
use super::reading::{self, UnreadableCall, WrittenCall, WrittenStep};
use super::shown_result::shown_result;
use super::text_schema::text_schema;
use crate::executors::CallResult;
use crate::flat::FlatDocuments;

/// What a loop needs next.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentRequest {
    /// The documents nearest to a text; answered by [`Agent::feed_documents`].
    Retrieve {
        /// The query or sub-query.
        text: String,
        /// How many.
        k: usize,
    },
    /// A text of the model; answered by [`Agent::feed_text`].
    Generate {
        /// The prompt.
        conversation: Conversation,
        /// Tokens that the text may have.
        max_new_tokens: usize,
        /// What the text is to be.
        kind: ExampleKind,
    },
    /// The result of a call; answered by [`Agent::feed_result`].
    Call {
        /// The API's name, which the catalogue knows.
        name: String,
        /// The arguments as the model wrote them, nested where it was shown a flat form.
        arguments: Map<String, Value>,
    },
    /// Nothing: the loop has ended.
    Done(Outcome),
}

/// A loop under one of the prompting methods.
#[derive(Debug, Clone)]
pub struct Agent<'a> {
    catalogue: &'a ApiCatalogue,
    /// The way back of what is written, where the catalogue is a flat one.
    flat: Option<&'a FlatDocuments>,
    limits: AgentLimits,
    query: String,
    documents: Vec<&'a ApiDocument>,
    calls: Vec<ShownCall>,
    /// Steps or sub-queries begun, of the methods without a plan.
    n_steps: usize,
    next: Next,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq)]
enum Next {
    Retrieve(String),
    Generate(Task),
    Call(WrittenCall),
    Done,
}

impl<'a> Agent<'a> {
    /// Begins a loop.
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
                Method::Global | Method::React => Next::Retrieve(query.to_owned()),
                Method::GlobalId => Next::Generate(Task::SubQueries),
                Method::ReactId => Next::Generate(Task::NextSubQuery),
            },
            outcome: Outcome {
                method,
                plan: Vec::new(),
                sub_queries: Vec::new(),
                path: Vec::new(),
                calls: Vec::new(),
                response: String::new(),
                retrievals: Vec::new(),
                failures: Vec::new(),
                end: EndReason::Answered,
                texts: Vec::new(),
            },
        }
    }

    /// Begins a loop that shows flat documents, whose calls are nested where they are made and kept.
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

    /// What the loop needs next; the same until it is fed.
    pub fn next(&self) -> AgentRequest {
        match &self.next {
            Next::Retrieve(text) => AgentRequest::Retrieve {
                text: text.clone(),
                k: self.limits.n_documents,
            },
            Next::Generate(task) => {
                let kind = task.kind();
                AgentRequest::Generate {
                    conversation: self.prompt(*task).conversation(),
                    max_new_tokens: self.limits.max_new_tokens(kind),
                    kind,
                }
            }
            Next::Call(call) => AgentRequest::Call {
                name: call.name.clone(),
                arguments: self.nested(call),
            },
            Next::Done => AgentRequest::Done(self.outcome.clone()),
        }
    }

    /// The JSON Schema of the text that the loop asks for, where that is JSON alone: a plan of
    /// documents that are shown, sub-queries, or the call of a document that is shown.
    pub fn text_schema(&self) -> Option<Value> {
        let Next::Generate(task) = self.next else {
            return None;
        };
        let planned = self.outcome.plan.get(self.calls.len());
        let planned = planned.and_then(|name| self.known_name(name));
        text_schema(
            task,
            &self.documents,
            planned.as_deref(),
            self.limits.max_calls,
        )
    }

    /// Whether the loop has ended.
    pub fn is_done(&self) -> bool {
        self.next == Next::Done
    }

    /// Ends the loop where it stands, such as at [`EndReason::Deadline`].
    pub fn stop(&mut self, reason: EndReason) {
        if !self.is_done() {
            self.outcome.end = reason;
            self.next = Next::Done;
        }
    }

    /// Takes the documents to show, as positions in the catalogue, in the order of showing.
    ///
    /// # Panics
    ///
    /// If the loop did not ask for documents, or a position is beyond the catalogue.
    pub fn feed_documents(&mut self, positions: &[usize]) {
        let Next::Retrieve(text) = &self.next else {
            panic!("the loop did not ask for documents");
        };
        let all = self.catalogue.documents();
        self.documents = positions.iter().map(|&position| &all[position]).collect();
        self.outcome.retrievals.push(Retrieval {
            text: text.clone(),
            documents: self
                .documents
                .iter()
                .map(|document| document.call_name())
                .collect(),
        });
        self.next = Next::Generate(match self.outcome.method {
            Method::Global => Task::Plan,
            Method::React => Task::Step,
            Method::GlobalId | Method::ReactId => Task::SubQueryCall,
        });
    }

    /// Takes what the model wrote, without special tokens.
    ///
    /// # Panics
    ///
    /// If the loop did not ask for a text.
    pub fn feed_text(&mut self, text: &str) {
        let Next::Generate(task) = self.next else {
            panic!("the loop did not ask for a text");
        };
        match task {
            Task::Plan => self.take_plan(text),
            Task::SubQueries => self.take_sub_queries(text),
            Task::NextSubQuery => self.take_sub_query(text),
            Task::PlannedCall | Task::SubQueryCall => {
                self.take_call(task, reading::read_call(text), text);
            }
            Task::Step => match reading::read_step(text) {
                WrittenStep::Finish(response) => self.answer(response),
                WrittenStep::Action(call) => self.take_call(task, call, text),
            },
            Task::Answer => self.answer(text.trim().to_owned()),
        }
    }

    /// Takes the result of the call.
    ///
    /// # Panics
    ///
    /// If the loop did not ask for a call.
    pub fn feed_result(&mut self, result: CallResult) {
        let Next::Call(call) = std::mem::replace(&mut self.next, Next::Done) else {
            panic!("the loop did not ask for a call");
        };
        self.calls.push(ShownCall::of_call(
            &call.name,
            &call.arguments,
            shown_result(&result, &self.limits),
        ));
        self.record(AttemptedCall {
            arguments: Some(self.nested(&call)),
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
                "this is no JSON array of API names",
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
        self.go_on();
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
            None => self.fail(kind, "this is no JSON array of sub-queries", text),
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
        self.go_on();
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
                self.next = Next::Retrieve(sub_query);
            }
            None => self.next = Next::Generate(Task::Answer),
        }
    }

    fn take_call(&mut self, task: Task, call: Result<WrittenCall, UnreadableCall>, text: &str) {
        if task == Task::Step {
            self.n_steps += 1;
        }
        match call {
            Ok(mut call) => match self.known_name(&call.name) {
                Some(name) => {
                    call.name = name;
                    let nested = self
                        .flat
                        .map(|flat| flat.nested_arguments(&call.name, &call.arguments));
                    let Some(Err(error)) = nested else {
                        self.next = Next::Call(call);
                        return;
                    };
                    let reason = format!("{}: {error}", call.name);
                    self.fail(task.kind(), &reason, text);
                    self.next = Next::Call(call);
                    self.feed_result(CallResult::failure(reason));
                }
                None => {
                    let result = CallResult::failure(self.unknown(&call.name));
                    self.next = Next::Call(call);
                    self.feed_result(result);
                }
            },
            Err(unreadable) => {
                self.fail(task.kind(), unreadable.reason, text);
                let planned = self.outcome.plan.get(self.calls.len()).cloned();
                let result = CallResult::failure(unreadable.reason);
                self.calls.push(ShownCall::of_text(
                    text,
                    shown_result(&result, &self.limits),
                ));
                self.record(AttemptedCall {
                    name: unreadable.name.or(planned),
                    arguments: None,
                    raw: Some(excerpt(text)),
                    output: result.output,
                    exception: result.exception,
                });
            }
        }
    }

    fn answer(&mut self, response: String) {
        self.outcome.response = response;
        self.next = Next::Done;
    }

    fn record(&mut self, call: AttemptedCall) {
        self.outcome.path.extend(call.name.clone());
        self.outcome.calls.push(call);
        self.go_on();
    }

    /// What comes after a plan, sub-queries or a call.
    fn go_on(&mut self) {
        let n_calls = self.calls.len();
        let is_over = self.n_steps >= self.limits.max_steps;
        self.next = match self.outcome.method {
            Method::Global => match self.outcome.plan.get(n_calls).cloned() {
                None => Next::Generate(Task::Answer),
                Some(name) => return self.go_to_planned(&name),
            },
            Method::GlobalId => match self.outcome.sub_queries.get(n_calls) {
                None => Next::Generate(Task::Answer),
                Some(sub_query) => Next::Retrieve(sub_query.clone()),
            },
            Method::React if is_over => {
                self.outcome.end = EndReason::StepLimit;
                Next::Done
            }
            Method::React => Next::Generate(Task::Step),
            Method::ReactId if is_over => {
                self.outcome.end = EndReason::StepLimit;
                Next::Generate(Task::Answer)
            }
            Method::ReactId => Next::Generate(Task::NextSubQuery),
        };
    }

    /// A planned name that nothing is called is a failed call without arguments.
    fn go_to_planned(&mut self, name: &str) {
        match self
            .known_name(name)
            .and_then(|name| self.catalogue.get(&name))
        {
            Some(document) => {
                self.documents = vec![document];
                self.next = Next::Generate(Task::PlannedCall);
            }
            None => {
                let result = CallResult::failure(self.unknown(name));
                self.calls.push(ShownCall::of_call(
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

    /// The arguments of a call as they are made; those that have no nested form, as they are written.
    fn nested(&self, call: &WrittenCall) -> Map<String, Value> {
        let flat = self.flat;
        let nested = flat.and_then(|flat| flat.nested_arguments(&call.name, &call.arguments).ok());
        nested.unwrap_or_else(|| call.arguments.clone())
    }

    fn unknown(&self, name: &str) -> String {
        format!("unknown API {name:?}{}", self.catalogue.hint(name))
    }

    /// The name as the catalogue has it, blanks around and inside it aside.
    fn known_name(&self, name: &str) -> Option<String> {
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
            text: excerpt(text),
        });
    }

    fn prompt(&self, task: Task) -> Prompt<'_> {
        Prompt {
            task,
            query: &self.query,
            documents: &self.documents,
            plan: &self.outcome.plan,
            // Of sub-queries written at once, those after the next call are still to come.
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

pub(super) fn excerpt(text: &str) -> String {
    const N_CHARACTERS: usize = 500;
    text.chars().take(N_CHARACTERS).collect()
}
