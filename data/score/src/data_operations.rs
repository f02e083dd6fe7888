//! Score operations on spans of training targets.

use std::ops::Range;

use serde_json::{Value, json};
use tooltune_agents::{CallPart, CallSpan, render_calls, tokens_within};

use tooltune_suites::operations::{InputField, LineError, Operation, Request};

/// All operations on targets.
pub(super) static TABLE: &[Operation] = &[Operation {
    name: "data.call_spans",
    fields: &[
        InputField::new("calls", "array of {name, arguments, label?}"),
        InputField::new("tokens", "array of [start, end] in code points"),
        InputField::new(
            "kinds",
            "array of name, label, key, value, reference: the parts that the mask selects",
        ),
    ],
    definition: "the calls as text, the spans of their parts, and the tokens that overlap such a span",
    run: call_spans,
}];

fn call_spans(request: &Request<'_>) -> Result<Value, LineError> {
    let input = &request.input;
    let calls = input.value("calls")?.as_array();
    let calls = calls.ok_or_else(|| input.wrong_type("calls", "an array of calls"))?;
    let kinds = kinds(&input.texts("kinds")?)
        .ok_or_else(|| input.wrong_type("kinds", "an array of kinds of spans"))?;
    let tokens = token_ranges(input.value("tokens")?)
        .ok_or_else(|| input.wrong_type("tokens", "an array of [start, end]"))?;
    let rendered = render_calls(calls).map_err(|error| LineError::NoValue {
        kind: "too_large",
        message: error.to_string(),
    })?;
    let spans: Vec<Value> = rendered.spans.iter().map(span).collect();
    let is_in_span = tokens_within(&rendered.spans, &tokens, &kinds);
    let mask: Vec<u8> = is_in_span.into_iter().map(u8::from).collect();
    Ok(json!({"text": rendered.text, "spans": spans, "mask": mask}))
}

fn kinds(names: &[&str]) -> Option<Vec<CallPart>> {
    let kind = |name: &&str| serde_json::from_value(Value::from(*name)).ok();
    names.iter().map(kind).collect()
}

fn token_ranges(value: &Value) -> Option<Vec<Range<usize>>> {
    let token = |token: &Value| match token.as_array()?.as_slice() {
        [start, end] => {
            let to_position = |value: &Value| usize::try_from(value.as_u64()?).ok();
            Some(to_position(start)?..to_position(end)?)
        }
        _ => None,
    };
    value.as_array()?.iter().map(token).collect()
}

fn span(span: &CallSpan) -> Value {
    json!({
        "kind": span.kind, "path": span.path, "start": span.chars.start, "end": span.chars.end,
    })
}
