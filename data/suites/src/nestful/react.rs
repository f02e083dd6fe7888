//! A loop of thoughts, calls and results, without a model and without a process: it asks for what it
//! needs and is fed with it.
//!
//! The paper's loop has no published code; this one is after its description: no examples, at most
//! ten steps, one call a step with values instead of references, and a win if the last result of a
//! call equals the gold answer. Nothing that a model writes is an error: what cannot be read or run
//! is answered with the reason, and the loop continues.

use tooltune_rows::python::{PyDict, PyValue, dumps};
use tooltune_rows::text::{Conversation, Message, Role};

use super::lenient::json_values;
use super::prompts::{ToolsEncoding, tools_text};
use super::row::NestfulRow;
use super::runner::Execution;
use super::sequence::{Binding, CallFailure, Sequence};

const ACTION: &str = "Action:";
const FINISH: &str = "Finish:";
const OBSERVATION: &str = "Observation:";

/// What a loop may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReactLimits {
    /// Texts of the model; 10 in the paper.
    pub max_steps: usize,
    /// Tokens of each text.
    pub max_new_tokens: usize,
    /// Characters of a result that are shown.
    pub max_observation_characters: usize,
}

impl Default for ReactLimits {
    fn default() -> Self {
        Self {
            max_steps: 10,
            max_new_tokens: 512,
            max_observation_characters: 2_000,
        }
    }
}

/// What a loop needs next.
#[derive(Debug, Clone)]
pub enum ReactRequest {
    /// A text of the model; answered by [`ReactLoop::feed_text`].
    Generate {
        /// The prompt.
        conversation: Conversation,
        /// Tokens that the text may have.
        max_new_tokens: usize,
    },
    /// The result of a sequence of one call; answered by [`ReactLoop::feed_result`].
    Run(Sequence),
    /// Nothing: the loop has ended.
    Done(ReactOutcome),
}

/// What a loop came to.
#[derive(Debug, Clone)]
pub struct ReactOutcome {
    /// The steps, in order.
    pub steps: Vec<ReactStep>,
    /// What the model wrote after `Finish:`, if it did.
    pub answer: Option<String>,
    /// Why the loop ended.
    pub end: ReactEnd,
}

/// A text of the model and what came of it.
#[derive(Debug, Clone)]
pub struct ReactStep {
    /// The text as generated.
    pub text: String,
    /// What its call returned, or why there is nothing; none for a step that finishes.
    pub result: Option<Result<PyValue, String>>,
    /// Whether a call could be read from it, or an end.
    pub is_readable: bool,
}

/// Why a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactEnd {
    /// The model finished.
    Finished,
    /// The steps were used up.
    StepLimit,
    /// Somebody stopped it.
    Stopped,
}

/// A loop over one row.
#[derive(Debug, Clone)]
pub struct ReactLoop<'r> {
    row: &'r NestfulRow,
    limits: ReactLimits,
    outcome: ReactOutcome,
    next: Next,
}

#[derive(Debug, Clone)]
enum Next {
    Generate,
    Run(Sequence),
    Done,
}

impl ReactOutcome {
    /// What the last call that succeeded returned.
    pub fn last_result(&self) -> Option<&PyValue> {
        let mut steps = self.steps.iter().rev();
        steps.find_map(|step| step.result.as_ref()?.as_ref().ok())
    }
}

impl<'r> ReactLoop<'r> {
    /// Begins a loop.
    pub fn new(row: &'r NestfulRow, limits: ReactLimits) -> Self {
        let mut begun = Self {
            row,
            limits,
            outcome: ReactOutcome {
                steps: Vec::new(),
                answer: None,
                end: ReactEnd::Stopped,
            },
            next: Next::Generate,
        };
        begun.end_if_used_up();
        begun
    }

    /// What the loop needs next; the same until it is fed.
    pub fn next(&self) -> ReactRequest {
        match &self.next {
            Next::Generate => ReactRequest::Generate {
                conversation: self.conversation(),
                max_new_tokens: self.limits.max_new_tokens,
            },
            Next::Run(sequence) => ReactRequest::Run(sequence.clone()),
            Next::Done => ReactRequest::Done(self.outcome.clone()),
        }
    }

    /// Whether the loop has ended.
    pub fn is_done(&self) -> bool {
        matches!(self.next, Next::Done)
    }

    /// Ends the loop where it stands, such as at a deadline.
    pub fn stop(&mut self) {
        self.next = Next::Done;
    }

    /// Takes what the model wrote, without special tokens. A loop that asks for no text ignores it.
    pub fn feed_text(&mut self, text: &str) {
        if !matches!(self.next, Next::Generate) {
            return;
        }
        let mut step = ReactStep {
            text: text.to_owned(),
            result: None,
            is_readable: true,
        };
        match read_step(text) {
            WrittenStep::Finish(answer) => {
                self.outcome.answer = Some(answer);
                self.end(ReactEnd::Finished);
            }
            WrittenStep::Call(call) => match self.bind(call) {
                Ok(sequence) => self.next = Next::Run(sequence),
                Err(failure) => step.result = Some(Err(failure.reason)),
            },
            WrittenStep::Unreadable => {
                step.is_readable = false;
                let reason = "no call could be read; write Action: and one JSON object with name \
                              and arguments";
                step.result = Some(Err(reason.to_owned()));
            }
        }
        self.outcome.steps.push(step);
        self.end_if_used_up();
    }

    /// Takes the result of the call. A loop that asks for none ignores it.
    pub fn feed_result(&mut self, execution: Execution) {
        if !matches!(self.next, Next::Run(_)) {
            return;
        }
        if let Some(step) = self.outcome.steps.last_mut() {
            step.result = Some(match execution {
                Execution::Value(value) => Ok(value),
                Execution::Failed(failure) => Err(failure.reason),
            });
        }
        self.next = Next::Generate;
        self.end_if_used_up();
    }

    fn end(&mut self, end: ReactEnd) {
        self.outcome.end = end;
        self.next = Next::Done;
    }

    fn end_if_used_up(&mut self) {
        let is_used_up = self.outcome.steps.len() >= self.limits.max_steps;
        if is_used_up && matches!(self.next, Next::Generate) {
            self.end(ReactEnd::StepLimit);
        }
    }

    /// Arguments are bound by name, since the model is shown the specifications, where they have
    /// names; a label is added, which a single call does not need.
    fn bind(&self, mut call: PyDict) -> Result<Sequence, CallFailure> {
        let label = PyValue::Text("$var_1".to_owned());
        call.insert("label".to_owned(), label);
        Sequence::bind(&[PyValue::Dict(call)], &self.row.tools, Binding::Name)
    }

    fn conversation(&self) -> Conversation {
        let task = format!(
            "Answer the question with the help of the functions below, one call at a time.\n\
             In each turn write a thought and one action, and stop there:\n\
             Thought: what is to be done next\n\
             {ACTION} {{\"name\": \"...\", \"arguments\": {{...}}}}\n\
             Arguments are values, not references: write out what earlier calls returned. You are \
             then told the result as {OBSERVATION}\n\
             When the last result answers the question, write\n\
             {FINISH} the answer\n\n\
             Functions:\n{}\n\nQuestion: {}",
            tools_text(&self.row.tools, ToolsEncoding::Once),
            self.row.input
        );
        let mut messages = vec![Message::new(Role::User, task)];
        for step in &self.outcome.steps {
            messages.push(Message::new(Role::Assistant, step.text.trim().to_owned()));
            if let Some(result) = &step.result {
                let shown = format!("{OBSERVATION} {}", self.shown(result));
                messages.push(Message::new(Role::User, shown));
            }
        }
        Conversation::new(messages)
    }

    fn shown(&self, result: &Result<PyValue, String>) -> String {
        let text = match result {
            Ok(value) => dumps(value),
            Err(reason) => format!("error: {reason}"),
        };
        match text
            .char_indices()
            .nth(self.limits.max_observation_characters)
        {
            None => text,
            Some((end, _)) => format!("{} ... (cut)", &text[..end]),
        }
    }
}

enum WrittenStep {
    Call(PyDict),
    Finish(String),
    Unreadable,
}

/// The first line that begins an action or the end decides; a text with neither may be a bare call.
/// What follows the call is ignored: models go on and write results of their own.
fn read_step(text: &str) -> WrittenStep {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let begun = line.trim_start();
        let start = at + (line.len() - begun.len());
        if begun.starts_with(ACTION) {
            return read_call(&text[start + ACTION.len()..]);
        }
        if begun.starts_with(FINISH) {
            return WrittenStep::Finish(text[start + FINISH.len()..].trim().to_owned());
        }
        at += line.len();
    }
    read_call(text)
}

/// The first object with a name, `parameters` standing in for missing `arguments`.
fn read_call(text: &str) -> WrittenStep {
    let is_named = |fields: &PyDict| {
        fields
            .get("name")
            .is_some_and(|name| name.as_text().is_some())
    };
    let call = json_values(text).find_map(|(value, _)| match value {
        PyValue::Dict(fields) if is_named(&fields) => Some(fields),
        _ => None,
    });
    let Some(mut call) = call else {
        return WrittenStep::Unreadable;
    };
    if !call.contains_key("arguments") {
        let arguments = call.shift_remove("parameters");
        let arguments = arguments.unwrap_or_else(|| PyValue::Dict(PyDict::new()));
        call.insert("arguments".to_owned(), arguments);
    }
    WrittenStep::Call(call)
}
