//! What the model should write: the gold texts of a trajectory, with their argument values.

use tooltune_rows::text::{ContentValue, Message, Role, ValueOrigin};
use tooltune_rows::tools::{Trajectory, TrajectoryCall};

use super::call_text::render_call;
use super::prompts::{one_line, texts};

/// Says that there is no sub-query left.
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
    Message::new(Role::Assistant, texts(&names))
}

pub(super) fn sub_queries(trajectory: &Trajectory) -> Message {
    let all: Vec<String> = trajectory.calls.iter().map(sub_query_text).collect();
    Message::new(Role::Assistant, texts(&all))
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

/// A thought or sub-query takes one line, because the next line says what is done with it.
fn sub_query_text(call: &TrajectoryCall) -> String {
    one_line(&call.sub_query)
}
