//! The gold completions of a trajectory, with the spans of argument values.

use tooltune_apis::{Trajectory, TrajectoryCall};
use tooltune_template::{ContentValue, Message, Role, ValueOrigin};

use super::call_text::render_call;
use super::prompts::{list_texts, one_line};

/// The model writes this if there are no more sub-queries.
pub(super) const DONE: &str = "DONE";
pub(super) const THOUGHT: &str = "Thought:";
pub(super) const ACTION: &str = "Action:";
pub(super) const FINISH: &str = "Finish:";

pub(super) fn plan(trajectory: &Trajectory) -> Message {
    let names: Vec<String> = trajectory
        .calls
        .iter()
        .map(|call| call.name.clone())
        .collect();
    Message::new(Role::Assistant, list_texts(&names))
}

pub(super) fn sub_queries(trajectory: &Trajectory) -> Message {
    let lines: Vec<String> = trajectory.calls.iter().map(sub_query_text).collect();
    Message::new(Role::Assistant, list_texts(&lines))
}

pub(super) fn sub_query(call: &TrajectoryCall) -> Message {
    Message::new(Role::Assistant, sub_query_text(call))
}

pub(super) fn no_sub_query() -> Message {
    Message::new(Role::Assistant, DONE)
}

pub(super) fn call(call: &TrajectoryCall) -> Message {
    after_prefix("", call)
}

pub(super) fn step(call: &TrajectoryCall) -> Message {
    let prefix = format!("{THOUGHT} {}\n{ACTION} ", sub_query_text(call));
    after_prefix(&prefix, call)
}

pub(super) fn finish(trajectory: &Trajectory) -> Message {
    Message::new(
        Role::Assistant,
        format!("{FINISH} {}", trajectory.response.trim()),
    )
}

pub(super) fn answer(trajectory: &Trajectory) -> Message {
    Message::new(Role::Assistant, trajectory.response.trim())
}

fn after_prefix(prefix: &str, call: &TrajectoryCall) -> Message {
    let rendered = render_call(&call.name, &call.arguments);
    let content_values = rendered
        .value_spans
        .into_iter()
        .map(|span| ContentValue {
            range: prefix.len() + span.range.start..prefix.len() + span.range.end,
            origin: if call.derived.contains_key(span.argument) {
                ValueOrigin::Derived
            } else {
                ValueOrigin::Fixed
            },
        })
        .collect();
    Message {
        content_values,
        ..Message::new(Role::Assistant, format!("{prefix}{}", rendered.text))
    }
}

/// A thought or sub-query must be a single line, because the next line contains the action.
fn sub_query_text(call: &TrajectoryCall) -> String {
    one_line(&call.sub_query)
}
