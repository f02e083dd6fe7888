//! The calls suite as operations of `tooltune score`.
//!
//! Each function only reads the fields of a line and calls this module; it contains no scoring
//! rules.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    CallsAnswer, CallsItem, CallsScorer, CallsSummary, MAX_CALLS, ToolSet, TurnScore, WrittenCall,
    read_calls,
};
use crate::is_cut;
use crate::operations::{Fields, InputField, LineError, Operation, Request};

const TOOLS: InputField = InputField::new("tools", "the tools of the row");
const GOLD: InputField = InputField::new(
    "gold",
    "array of {name, arguments}; empty if the gold answer is text",
);
const RAW: InputField = InputField::new("raw", "the answer as a string");
const FINISH_REASON: InputField = InputField::new(
    "finish_reason",
    "why generation ended, a string; optional; an answer that was cut off is never right",
);

/// Operations of `tooltune score` that parse and score calls.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        name: "calls.read",
        fields: &[TOOLS, RAW],
        definition: "{calls, malformed, dialect} of an answer",
        run: |request| {
            let tools = tools(&request.input)?;
            let CallsAnswer {
                calls,
                malformed,
                dialect,
                ..
            } = read_calls(request.input.text("raw")?, &tools);
            Ok(json!({"calls": calls, "malformed": malformed, "dialect": dialect}))
        },
    },
    Operation {
        name: "calls.turn",
        fields: &[TOOLS, GOLD, RAW, FINISH_REASON],
        definition: "all scores of an answer, with the broken rules",
        run: turn,
    },
    Operation {
        name: "calls.dataset",
        fields: &[InputField::new(
            "rows",
            "array of {tools, gold, raw, finish_reason?}",
        )],
        definition: "means over many answers, by number of calls, schema depth and tool",
        run: dataset,
    },
];

fn tools(fields: &Fields<'_>) -> Result<ToolSet, LineError> {
    let tools = fields.value("tools")?.as_array();
    let tools = tools.ok_or_else(|| fields.wrong_type("tools", "an array of tools"))?;
    Ok(ToolSet::new(tools))
}

fn score_line(fields: &Fields<'_>, scorer: &mut CallsScorer) -> Result<TurnScore, LineError> {
    const CALLS: &str = "an array of {name, arguments}";
    let gold = fields.value("gold")?.as_array();
    let gold = gold.and_then(|gold| {
        let calls = gold.iter().map(WrittenCall::from_value);
        calls.collect::<Result<Vec<_>, _>>().ok()
    });
    let gold = gold.ok_or_else(|| fields.wrong_type("gold", CALLS))?;
    if gold.len() > MAX_CALLS {
        return Err(LineError::NoValue {
            kind: "too_large",
            message: format!(
                "`gold` has {} calls; at most {MAX_CALLS} calls per turn are compared",
                gold.len()
            ),
        });
    }
    let item = CallsItem {
        id: String::new(),
        message: 0,
        gold,
        tools: Arc::new(tools(fields)?),
    };
    let answer = read_calls(fields.text("raw")?, &item.tools);
    let answer = match fields.optional_text("finish_reason")? {
        Some(reason) if is_cut(reason) => answer.truncate(),
        _ => answer,
    };
    Ok(scorer.score_turn(&item, &answer))
}

fn turn(request: &Request<'_>) -> Result<Value, LineError> {
    Ok(json!(score_line(
        &request.input,
        &mut CallsScorer::default()
    )?))
}

fn dataset(request: &Request<'_>) -> Result<Value, LineError> {
    let mut scorer = CallsScorer::default();
    let rows = request.input.objects("rows")?;
    if rows.is_empty() {
        return Err(LineError::NoValue {
            kind: "empty_dataset",
            message: "`rows` is empty; provide at least one row".to_owned(),
        });
    }
    let scores: Vec<TurnScore> = rows
        .iter()
        .map(|row| score_line(row, &mut scorer))
        .collect::<Result<_, _>>()?;
    let summary = CallsSummary::new(&scores);
    let means = CallsSummary::NAMES.map(|name| {
        let value = summary.value(name).map(|estimate| estimate.value);
        (name.to_owned(), json!(value))
    });
    let groups = |groups: &[super::CallGroup]| -> Value {
        let group_lines = groups.iter().map(|group| {
            let value = |estimate: Option<crate::Estimate>| {
                estimate.map(|group_estimate| group_estimate.value)
            };
            json!({"group": group.group, "n": group.n, "name": value(group.name),
                "arguments": value(group.arguments), "exact": value(group.exact)})
        });
        group_lines.collect()
    };
    let by_n_calls = summary.by_n_calls.iter().map(|group| {
        let right = group.metrics.right.map(|right| right.value);
        json!({"group": group.group, "n": group.metrics.n, "right": right})
    });
    let mut value = json!({
        "n": summary.overall.n,
        "n_calls": summary.overall.n_calls,
        "by_n_calls": by_n_calls.collect::<Value>(),
        "by_schema_depth": groups(&summary.by_schema_depth),
        "by_tool": groups(&summary.by_tool),
        "faults": summary.faults,
    });
    if let Some(fields) = value.as_object_mut() {
        fields.extend(means);
    }
    Ok(value)
}
