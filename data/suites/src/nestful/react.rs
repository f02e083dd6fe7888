//! A ReAct loop of thoughts, calls and results, as a state machine without a model or a process. It
//! emits requests, and the caller feeds it the results.
//!
//! The paper's loop has no published code. This loop follows its description: no examples, at most
//! ten steps, one call per step with values instead of references, and a win if the last result
//! equals the gold answer. Model output is never an error: if a call cannot be parsed or fails, the
//! loop shows the reason to the model and continues.

use tooltune_json::python::{PyDict, PyValue, dumps};
use tooltune_template::{Conversation, Message, Role};

use super::lenient::json_values;
use super::prompts::{ToolsEncoding, tools_text};
use super::row::NestfulRow;
use super::runner::Execution;
use super::sequence::{Binding, CallFailure, Sequence};

const ACTION: &str = "Action:";
const FINISH: &str = "Finish:";
const OBSERVATION: &str = "Observation:";

/// Limits of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReactLimits {
    /// Maximum number of model turns; 10 in the paper.
    pub max_steps: usize,
    /// Maximum number of tokens per turn.
    pub max_new_tokens: usize,
    /// Maximum number of characters shown of a result.
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

/// The next request of a loop.
#[derive(Debug, Clone)]
pub enum ReactRequest {
    /// Generate a model turn, then call [`ReactLoop::feed_text`].
    Generate {
        /// The prompt.
        conversation: Conversation,
        /// Maximum number of tokens.
        max_new_tokens: usize,
    },
    /// Run a sequence of one call, then call [`ReactLoop::feed_result`].
    Run(Sequence),
    /// The loop has ended.
    Done(ReactOutcome),
}

/// The outcome of a loop.
#[derive(Debug, Clone)]
pub struct ReactOutcome {
    /// The steps, in order.
    pub steps: Vec<ReactStep>,
    /// The text after `Finish:`, if the model wrote one.
    pub answer: Option<String>,
    /// Why the loop ended.
    pub end: ReactEnd,
}

/// A model turn and its result.
#[derive(Debug, Clone)]
pub struct ReactStep {
    /// The text as generated.
    pub text: String,
    /// The result of its call, or the error; `None` for a step that finishes.
    pub result: Option<Result<PyValue, String>>,
    /// Whether a call or a finish could be parsed.
    pub is_readable: bool,
}

/// Why a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactEnd {
    /// The model finished.
    Finished,
    /// The steps were used up.
    StepLimit,
    /// The caller stopped it.
    Stopped,
}

/// A loop for one row.
#[derive(Debug, Clone)]
pub struct ReactLoop<'r> {
    row: &'r NestfulRow,
    limits: ReactLimits,
    outcome: ReactOutcome,
    next: NextAction,
}

#[derive(Debug, Clone)]
enum NextAction {
    Generate,
    Run(Sequence),
    Done,
}

impl ReactOutcome {
    /// The result of the last successful call.
    pub fn last_result(&self) -> Option<&PyValue> {
        let mut steps = self.steps.iter().rev();
        steps.find_map(|step| step.result.as_ref()?.as_ref().ok())
    }
}

impl<'r> ReactLoop<'r> {
    /// Starts a loop.
    pub fn new(row: &'r NestfulRow, limits: ReactLimits) -> Self {
        let mut react_loop = Self {
            row,
            limits,
            outcome: ReactOutcome {
                steps: Vec::new(),
                answer: None,
                end: ReactEnd::Stopped,
            },
            next: NextAction::Generate,
        };
        react_loop.end_if_used_up();
        react_loop
    }

    /// The next request. It remains the same until the loop is fed.
    pub fn next(&self) -> ReactRequest {
        match &self.next {
            NextAction::Generate => ReactRequest::Generate {
                conversation: self.conversation(),
                max_new_tokens: self.limits.max_new_tokens,
            },
            NextAction::Run(sequence) => ReactRequest::Run(sequence.clone()),
            NextAction::Done => ReactRequest::Done(self.outcome.clone()),
        }
    }

    /// Whether the loop has ended.
    pub fn is_done(&self) -> bool {
        matches!(self.next, NextAction::Done)
    }

    /// Stops the loop in its current state, for example at a deadline.
    pub fn stop(&mut self) {
        self.next = NextAction::Done;
    }

    /// Feeds the model's text, without special tokens. Ignored if the loop did not request text.
    pub fn feed_text(&mut self, text: &str) {
        if !matches!(self.next, NextAction::Generate) {
            return;
        }
        let mut step = ReactStep {
            text: text.to_owned(),
            result: None,
            is_readable: true,
        };
        match read_step(text) {
            ParsedStep::Finish(answer) => {
                self.outcome.answer = Some(answer);
                self.end_with(ReactEnd::Finished);
            }
            ParsedStep::Call(call) => match self.bind(call) {
                Ok(sequence) => self.next = NextAction::Run(sequence),
                Err(failure) => step.result = Some(Err(failure.reason)),
            },
            ParsedStep::Unreadable => {
                step.is_readable = false;
                let reason = "no call could be read; write Action: and one JSON object with name \
                              and arguments";
                step.result = Some(Err(reason.to_owned()));
            }
        }
        self.outcome.steps.push(step);
        self.end_if_used_up();
    }

    /// Feeds the result of the call. Ignored if the loop did not request a result.
    pub fn feed_result(&mut self, execution: Execution) {
        if !matches!(self.next, NextAction::Run(_)) {
            return;
        }
        if let Some(step) = self.outcome.steps.last_mut() {
            step.result = Some(match execution {
                Execution::Value(value) => Ok(value),
                Execution::Failed(failure) => Err(failure.reason),
            });
        }
        self.next = NextAction::Generate;
        self.end_if_used_up();
    }

    fn end_with(&mut self, end: ReactEnd) {
        self.outcome.end = end;
        self.next = NextAction::Done;
    }

    fn end_if_used_up(&mut self) {
        let is_used_up = self.outcome.steps.len() >= self.limits.max_steps;
        if is_used_up && matches!(self.next, NextAction::Generate) {
            self.end_with(ReactEnd::StepLimit);
        }
    }

    /// Binds arguments by name, because the model sees the specifications with parameter names.
    /// Adds a label, because the model does not write a label for a single call.
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
                let observation = format!("{OBSERVATION} {}", self.observation(result));
                messages.push(Message::new(Role::User, observation));
            }
        }
        Conversation::new(messages)
    }

    fn observation(&self, result: &Result<PyValue, String>) -> String {
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

enum ParsedStep {
    Call(PyDict),
    Finish(String),
    Unreadable,
}

/// Parses a step. The first line that starts an action or a finish determines the kind. Without
/// such a line, the text may be a bare call. The text after the call is ignored, because models
/// continue with made-up results.
fn read_step(text: &str) -> ParsedStep {
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let start = position + (line.len() - trimmed.len());
        if trimmed.starts_with(ACTION) {
            return read_call(&text[start + ACTION.len()..]);
        }
        if trimmed.starts_with(FINISH) {
            return ParsedStep::Finish(text[start + FINISH.len()..].trim().to_owned());
        }
        position += line.len();
    }
    read_call(text)
}

/// Parses the first object with a name; `parameters` may replace missing `arguments`.
fn read_call(text: &str) -> ParsedStep {
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
        return ParsedStep::Unreadable;
    };
    if !call.contains_key("arguments") {
        let arguments = call.shift_remove("parameters");
        let arguments = arguments.unwrap_or_else(|| PyValue::Dict(PyDict::new()));
        call.insert("arguments".to_owned(), arguments);
    }
    ParsedStep::Call(call)
}
