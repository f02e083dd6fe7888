//! The rules for broken traces.
//!
//! A trace ends before its first broken message, because the model's later answers depend on it:
//!
//! - a message of an unknown role, or with an image
//! - a call whose arguments are not a JSON object
//! - a result of no earlier call, or the second result of one
//! - an answer without text and calls
//!
//! A call that has no result before the next message is the end of the trace: the model is trained
//! on the call, as in a logged request whose response is a call. Messages after the last answer are
//! removed. A trace without an answer, or whose first message is not the user's, is dropped.
//!
//! Calls get the ids `call00001`, `call00002`, … in their order: the ids of a trace are random, and
//! Mistral's templates accept only nine letters or digits.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tooltune_template::conversation::Role;

use crate::trace::{Call, Problem, Trace, Turn};

pub(crate) const BAD_ARGUMENTS: Problem = "the arguments of a call are not a JSON object";
pub(crate) const NO_RESULT: Problem = "a call has no result before the next message";
pub(crate) const NO_CALL: Problem = "a result belongs to no call before it";
pub(crate) const SECOND_RESULT: Problem = "a call has two results";
pub(crate) const EMPTY_ANSWER: Problem = "an answer has neither text nor calls";
pub(crate) const NO_ANSWER: Problem = "there is no answer of the model";
pub(crate) const NOT_USER: Problem = "the first message is not the user's";
pub(crate) const AFTER_ANSWER: Problem = "removed the messages after the last answer";
pub(crate) const PARTIAL_RESULTS: Problem = "removed the results of a turn that lacks others";
pub(crate) const DERIVED_TOOLS: Problem = "derived the tools from the calls";
pub(crate) const GIVEN_TOOLS: Problem = "took the tools from --tools";

/// A repaired trace.
pub(crate) struct Repaired {
    pub(crate) trace: Trace,
    /// What was changed.
    pub(crate) repairs: Vec<Problem>,
}

/// Repairs a trace.
///
/// # Errors
///
/// The reason to drop it.
pub(crate) fn repair(mut trace: Trace) -> Result<Repaired, Problem> {
    let mut repairs = Vec::new();
    let mut checked = Checked::default();
    let mut cut = trace.cut.take();
    for turn in std::mem::take(&mut trace.turns) {
        if let Err(problem) = checked.add(turn) {
            cut = Some(problem);
            break;
        }
    }
    if checked.end_open_turn() {
        repairs.push(PARTIAL_RESULTS);
    }
    let mut turns = checked.turns;
    let last_answer = turns.iter().rposition(|turn| turn.role == Role::Assistant);
    let end = last_answer.ok_or(cut.unwrap_or(NO_ANSWER))? + 1;
    if end < turns.len() && cut.is_none() {
        repairs.push(AFTER_ANSWER);
    }
    turns.truncate(end);
    let is_instruction = |turn: &&Turn| matches!(turn.role, Role::System | Role::Developer);
    let first = turns.iter().find(|turn| !is_instruction(turn));
    if first.is_some_and(|turn| turn.role != Role::User) {
        return Err(NOT_USER);
    }
    repairs.extend(cut);
    renumber(&mut turns);
    trace.turns = turns;
    Ok(Repaired { trace, repairs })
}

/// Gives a trace with calls and without tool definitions the tools of `--tools`, or those that its
/// calls use; returns which.
///
/// This is the last step: the tools of a conversation then do not depend on how long it is, and
/// their arguments have the names after redaction.
pub(crate) fn add_tools(trace: &mut Trace, given: Option<&[Value]>) -> Option<Problem> {
    let has_calls = trace.turns.iter().any(|turn| !turn.calls.is_empty());
    if !trace.tools.is_empty() || !has_calls {
        return None;
    }
    let (tools, repair) = match given {
        Some(tools) => (tools.to_vec(), GIVEN_TOOLS),
        None => (derive_tools(&trace.turns), DERIVED_TOOLS),
    };
    trace.tools = tools;
    Some(repair)
}

/// Inserts the results that are recorded elsewhere after calls without a result.
pub(crate) fn fill_results(turns: &mut Vec<Turn>, results: &HashMap<String, String>) {
    if results.is_empty() {
        return;
    }
    let mut filled: Vec<Turn> = Vec::with_capacity(turns.len());
    let mut open: Vec<Call> = Vec::new();
    let close = |open: &mut Vec<Call>, filled: &mut Vec<Turn>| {
        for call in open.drain(..) {
            let id = call.id.unwrap_or_default();
            if let Some(content) = results.get(&id) {
                filled.push(Turn::result(Some(id), None, content.clone()));
            }
        }
    };
    for turn in turns.drain(..) {
        if turn.role == Role::Tool {
            open.retain(|call| call.id != turn.call_id);
        } else {
            close(&mut open, &mut filled);
            open = turn.calls.clone();
        }
        filled.push(turn);
    }
    close(&mut open, &mut filled);
    *turns = filled;
}

/// The turns before the first broken one.
#[derive(Default)]
struct Checked {
    turns: Vec<Turn>,
    /// Index of the last turn with calls, and whether each call has its result.
    open: Option<(usize, Vec<bool>)>,
}

impl Checked {
    fn add(&mut self, mut turn: Turn) -> Result<(), Problem> {
        if turn.role == Role::Tool {
            return self.add_result(turn);
        }
        if let Some((_, answered)) = &self.open
            && answered.contains(&false)
        {
            return Err(NO_RESULT);
        }
        self.open = None;
        if turn.role == Role::Assistant {
            if turn.is_empty() {
                return Err(EMPTY_ANSWER);
            }
            for call in &mut turn.calls {
                call.arguments = Value::Object(read_arguments(&call.arguments)?);
            }
            if !turn.calls.is_empty() {
                self.open = Some((self.turns.len(), vec![false; turn.calls.len()]));
            }
        }
        self.turns.push(turn);
        Ok(())
    }

    /// A result belongs to the call with its id; without ids, to the first call of its tool that
    /// has no result.
    fn add_result(&mut self, mut turn: Turn) -> Result<(), Problem> {
        let (answer, answered) = self.open.as_mut().ok_or(NO_CALL)?;
        let calls = &self.turns[*answer].calls;
        let has_id = |call: &Call| call.id.is_some() && call.id == turn.call_id;
        let is_next = |&idx: &usize| {
            let is_named = turn
                .name
                .as_ref()
                .is_none_or(|name| *name == calls[idx].name);
            !answered[idx] && is_named && (calls[idx].id.is_none() || turn.call_id.is_none())
        };
        let with_id = (0..calls.len()).filter(|&idx| has_id(&calls[idx]));
        let idx = match with_id.clone().find(|&idx| !answered[idx]) {
            Some(idx) => idx,
            None if with_id.count() > 0 => return Err(SECOND_RESULT),
            None => (0..calls.len()).find(is_next).ok_or(NO_CALL)?,
        };
        answered[idx] = true;
        // The position of the call; `renumber` replaces it by the new id.
        turn.call_id = Some(idx.to_string());
        turn.name = Some(calls[idx].name.clone());
        self.turns.push(turn);
        Ok(())
    }

    /// Removes the results of the last turn with calls if some are missing; whether there were any.
    fn end_open_turn(&mut self) -> bool {
        match self.open.take() {
            Some((answer, answered)) if answered.contains(&false) => {
                let has_results = self.turns.len() > answer + 1;
                self.turns.truncate(answer + 1);
                has_results
            }
            _ => false,
        }
    }
}

fn read_arguments(arguments: &Value) -> Result<Map<String, Value>, Problem> {
    match arguments {
        Value::Object(arguments) => Ok(arguments.clone()),
        Value::Null => Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        Value::String(text) => {
            if tooltune_json::oversized_integer(text, |_| true).is_some() {
                return Err(BAD_ARGUMENTS);
            }
            match tooltune_json::parse_unique(text) {
                Ok(Value::Object(arguments)) => Ok(arguments),
                _ => Err(BAD_ARGUMENTS),
            }
        }
        _ => Err(BAD_ARGUMENTS),
    }
}

/// Gives all calls new ids, and their results the same ones.
fn renumber(turns: &mut [Turn]) {
    let mut n_before = 0;
    let mut n_calls = 0;
    let id = |n: usize| format!("call{n:05}");
    for turn in turns {
        match turn.role {
            Role::Tool => {
                let position = turn
                    .call_id
                    .take()
                    .and_then(|idx| idx.parse::<usize>().ok());
                turn.call_id = position.map(|idx| id(n_before + idx + 1));
            }
            _ if !turn.calls.is_empty() => {
                n_before = n_calls;
                for call in &mut turn.calls {
                    n_calls += 1;
                    call.id = Some(id(n_calls));
                }
            }
            _ => {}
        }
    }
}

/// The tools that the calls use: each argument with the types of its values, none required.
fn derive_tools(turns: &[Turn]) -> Vec<Value> {
    let mut tools: Map<String, Value> = Map::new();
    for call in turns.iter().flat_map(|turn| &turn.calls) {
        let properties = tools
            .entry(call.name.clone())
            .or_insert_with(|| json!({}))
            .as_object_mut();
        let Some(properties) = properties else {
            continue;
        };
        for (name, value) in call.arguments() {
            let kind = Value::from(match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(number) if number.is_f64() => "number",
                Value::Number(_) => "integer",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            });
            match properties.get_mut(name) {
                None => {
                    properties.insert(name.clone(), json!({"type": kind}));
                }
                Some(property) => add_type(&mut property["type"], kind),
            }
        }
    }
    let tool = |(name, properties): (String, Value)| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    tools.into_iter().map(tool).collect()
}

/// Adds a type to the types of a property.
fn add_type(types: &mut Value, kind: Value) {
    match types {
        Value::Array(all) if !all.contains(&kind) => all.push(kind),
        Value::Array(_) => {}
        one if *one == kind => {}
        one => *one = Value::Array(vec![one.take(), kind]),
    }
}
