//! Calls of tools as operations of `tooltune score`.
//!
//! Each function takes the fields of one line and calls this module; no rule of scoring lives here.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    CallsAnswer, CallsItem, CallsScorer, CallsSummary, MAX_CALLS, ToolSet, TurnScore, WrittenCall,
    read_calls,
};
use crate::operations::{Fields, InputField, LineError, Operation, Request};

const fn field(name: &'static str, holds: &'static str) -> InputField {
    InputField { name, holds }
}

const TOOLS: InputField = field("tools", "the tools of the row");
const GOLD: InputField = field("gold", "array of {name, arguments}; empty for a text");
const RAW: InputField = field("raw", "the answer, a string");

/// The operations of `tooltune score` that read and score calls.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        name: "calls.read",
        fields: &[TOOLS, RAW],
        definition: "{calls, malformed, dialect} of an answer",
        run: read,
    },
    Operation {
        name: "calls.turn",
        fields: &[TOOLS, GOLD, RAW],
        definition: "every score of an answer, with the rules that it breaks",
        run: turn,
    },
    Operation {
        name: "calls.dataset",
        fields: &[field("rows", "array of {tools, gold, raw}")],
        definition: "means over many answers, by number of calls, depth of schema and tool",
        run: dataset,
    },
];

fn tools(fields: &Fields<'_>) -> Result<ToolSet, LineError> {
    let tools = fields.value("tools")?.as_array();
    let tools = tools.ok_or_else(|| fields.wrong_type("tools", "an array of tools"))?;
    Ok(ToolSet::new(tools))
}

fn read(request: &Request<'_>) -> Result<Value, LineError> {
    let tools = tools(&request.input)?;
    let CallsAnswer {
        calls,
        malformed,
        dialect,
    } = read_calls(request.input.text("raw")?, &tools);
    Ok(json!({"calls": calls, "malformed": malformed, "dialect": dialect}))
}

fn scored(fields: &Fields<'_>, scorer: &mut CallsScorer) -> Result<TurnScore, LineError> {
    const CALLS: &str = "an array of {name, arguments}";
    let gold = fields.value("gold")?.as_array();
    let gold = gold.and_then(|gold| {
        let calls = gold.iter().map(WrittenCall::of_value);
        calls.collect::<Result<Vec<_>, _>>().ok()
    });
    let gold = gold.ok_or_else(|| fields.wrong_type("gold", CALLS))?;
    if gold.len() > MAX_CALLS {
        return Err(LineError::NoValue {
            kind: "too_large",
            message: format!(
                "`gold` has {} calls; those of a turn are compared up to {MAX_CALLS}",
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
    Ok(scorer.score_turn(&item, &read_calls(fields.text("raw")?, &item.tools)))
}

fn turn(request: &Request<'_>) -> Result<Value, LineError> {
    Ok(json!(scored(&request.input, &mut CallsScorer::default())?))
}

fn dataset(request: &Request<'_>) -> Result<Value, LineError> {
    let mut scorer = CallsScorer::default();
    let rows = request.input.objects("rows")?;
    if rows.is_empty() {
        return Err(LineError::NoValue {
            kind: "empty_dataset",
            message: "there are no rows".to_owned(),
        });
    }
    let scores: Vec<TurnScore> = rows
        .iter()
        .map(|row| scored(row, &mut scorer))
        .collect::<Result<_, _>>()?;
    let summary = CallsSummary::new(&scores);
    let means = CallsSummary::NAMES.map(|name| {
        let value = summary.value(name).map(|estimate| estimate.value);
        (name.to_owned(), json!(value))
    });
    let groups = |groups: &[super::CallGroup]| -> Value {
        let shown = groups.iter().map(|group| {
            let value = |estimate: Option<crate::Estimate>| estimate.map(|one| one.value);
            json!({"group": group.group, "n": group.n, "name": value(group.name),
                "arguments": value(group.arguments), "exact": value(group.exact)})
        });
        shown.collect()
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
