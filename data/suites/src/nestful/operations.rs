//! The NESTFUL suite as operations of `tooltune score`.
//!
//! Each function only reads the fields of a line and calls the suite; it contains no scoring rules.
//! The wins of a row are null if its functions cannot be run.

use super::{
    MathRunner, MathToolError, NestfulError, NestfulReport, NestfulRow, Parser, SampleScore,
    ToolRunner, ToolSpec, Win, dag_statistics, gold_calls, math_tool, score_sample,
};
use num_bigint::BigInt;
use serde_json::{Value, json};
use tooltune_json::python::{PyValue, python_repr};

use crate::operations::{InputField, LineError, Operation, Request};

/// The caller's tool runner; if there is none, the arithmetic functions.
fn tools<'l>(request: &Request<'l>) -> &'l dyn ToolRunner {
    let runner = request.outside::<Box<dyn ToolRunner>>();
    runner.map_or(&MathRunner, |tools| &**tools)
}

/// All operations of the suite.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        name: "nestful.sample",
        fields: &[
            InputField::new("gold", "array of {name, label, arguments}"),
            InputField::new("gold_answer", "the result of the last gold call"),
            InputField::new("tools", "array of specifications"),
            InputField::new("prediction", "the completion as generated"),
            InputField::new("parser", PARSERS),
        ],
        definition: "parse error, slot texts, partial and full match, wins; null if tools are missing",
        run: sample,
    },
    Operation {
        name: "nestful.corpus",
        fields: &[InputField::new(
            "samples",
            "array of inputs of nestful.sample",
        )],
        definition: "macro F1 of functions and parameters, mean matches and wins",
        run: corpus,
    },
    Operation {
        name: "nestful.dag",
        fields: &[InputField::new(
            "calls",
            "array of {name, label, arguments}",
        )],
        definition: "depth, dependencies and pattern of a sequence of calls",
        run: |request| {
            let input = request.python_input()?;
            Ok(json!(dag_statistics(list(&input, "input.", "calls")?)))
        },
    },
    Operation {
        name: "nestful.tool",
        fields: &[
            InputField::new("name", "one of the 40 arithmetic functions"),
            InputField::new("args", "its arguments by position"),
        ],
        definition: "the function's result, with Python's type",
        run: tool,
    },
];

const PARSERS: &str = "\"json_list\", \"granite31\", \"llama\", \"hammer\", \"hermes\", \"xlam\", \
                       \"toolace\" or \"lenient\"";

impl From<NestfulError> for LineError {
    fn from(error: NestfulError) -> Self {
        let kind = match error {
            NestfulError::MissingField { field } => {
                return Self::MissingField {
                    field: format!("input.{field}"),
                };
            }
            NestfulError::WrongType {
                field, expected, ..
            } => {
                return Self::WrongType {
                    field: format!("input.{field}"),
                    expected,
                };
            }
            NestfulError::EmptyGold => "empty_gold",
            NestfulError::NoSamples => "empty_dataset",
            NestfulError::Runner { .. } => "runner_failed",
            _ => "bad_row",
        };
        Self::NoValue {
            kind,
            message: error.to_string(),
        }
    }
}

impl From<MathToolError> for LineError {
    fn from(error: MathToolError) -> Self {
        Self::NoValue {
            kind: "tool_failed",
            message: error.to_string(),
        }
    }
}

/// A field of an input that may be an element of a list; `path` is the path of the input.
fn input_field<'v>(input: &'v PyValue, path: &str, name: &str) -> Result<&'v PyValue, LineError> {
    let missing = || LineError::MissingField {
        field: format!("{path}{name}"),
    };
    input.get(name).ok_or_else(missing)
}

fn text<'v>(input: &'v PyValue, path: &str, name: &str) -> Result<&'v str, LineError> {
    let type_error = || LineError::WrongType {
        field: format!("{path}{name}"),
        expected: "a string",
    };
    input_field(input, path, name)?
        .as_text()
        .ok_or_else(type_error)
}

fn list<'v>(input: &'v PyValue, path: &str, name: &str) -> Result<&'v [PyValue], LineError> {
    let type_error = || LineError::WrongType {
        field: format!("{path}{name}"),
        expected: "an array",
    };
    input_field(input, path, name)?
        .as_list()
        .ok_or_else(type_error)
}

fn score(input: &PyValue, path: &str, tools: &dyn ToolRunner) -> Result<SampleScore, LineError> {
    let field_path = path.strip_prefix("input.").unwrap_or(path);
    let row = NestfulRow {
        sample_id: String::new(),
        input: String::new(),
        output: gold_calls(
            input_field(input, path, "gold")?,
            &format!("{field_path}gold"),
        )?,
        tools: ToolSpec::list(
            input_field(input, path, "tools")?,
            &format!("{field_path}tools"),
        )?,
        gold_answer: input_field(input, path, "gold_answer")?.clone(),
    };
    let parser = text(input, path, "parser")?;
    let parser = Parser::from_name(parser).ok_or_else(|| LineError::WrongType {
        field: format!("{path}parser"),
        expected: PARSERS,
    })?;
    let completion = text(input, path, "prediction")?;
    Ok(score_sample(&row, completion, parser, tools)?)
}

fn sample(request: &Request<'_>) -> Result<Value, LineError> {
    let score = score(&request.python_input()?, "input.", tools(request))?;
    let (official, strict) = match score.win {
        Win::Scored { official, strict } => (json!(official), json!(strict)),
        Win::NeedsTools | Win::GoldFails => (Value::Null, Value::Null),
    };
    let slot_rows: Vec<Value> = score
        .slot_rows
        .iter()
        .map(|row| json!([row.gold, row.pred]))
        .collect();
    Ok(json!({
        "parse_error": score.parse_error,
        "n_pred": score.n_pred,
        "pred_names": score.pred_names,
        "slot_rows": slot_rows,
        "partial": score.partial,
        "full": u8::from(score.full),
        "win_official": official,
        "win_strict": strict,
    }))
}

fn corpus(request: &Request<'_>) -> Result<Value, LineError> {
    let input = request.python_input()?;
    let samples = list(&input, "input.", "samples")?.iter().enumerate();
    let scores: Vec<SampleScore> = samples
        .map(|(idx, sample)| score(sample, &format!("input.samples[{idx}]."), tools(request)))
        .collect::<Result<_, _>>()?;
    let report = NestfulReport::new(&scores)?;
    // A rate over some samples would not be the rate of the data set, so it is null.
    let of_all = |name: &str| {
        let rate = report.value(name).filter(|_| report.n_need_tools == 0);
        rate.map(|estimate| estimate.value)
    };
    let (functions, parameters) = (report.f1_function, report.f1_parameter);
    Ok(json!({
        "n": scores.len(),
        "p_func": functions.precision,
        "r_func": functions.recall,
        "f1_func": functions.f1,
        "p_param": parameters.precision,
        "r_param": parameters.recall,
        "f1_param": parameters.f1,
        "partial": report.overall.partial.value,
        "full": report.overall.full.value,
        "win_official": of_all("win_official"),
        "win_strict": of_all("win_strict"),
        "parse_errors": scores.iter().filter(|score| score.parse_error).count(),
        "alt_trajectory": of_all("alternate_trajectory"),
    }))
}

fn tool(request: &Request<'_>) -> Result<Value, LineError> {
    let input = request.python_input()?;
    let name = text(&input, "input.", "name")?;
    let tool = math_tool(name).ok_or_else(|| LineError::NoValue {
        kind: "unknown_tool",
        message: format!("{name:?} is not one of the arithmetic functions"),
    })?;
    let result = tool.run(list(&input, "input.", "args")?)?;
    let kind = result.type_name();
    Ok(match result {
        PyValue::Int(integer) => integer_value(&integer),
        PyValue::Bool(boolean) => json!({"value": boolean, "type": kind}),
        PyValue::Float(float) if float.is_finite() => json!({"value": float, "type": kind}),
        other => json!({"value": python_repr(&other), "type": kind}),
    })
}

/// Converts an integer that 64-bit floats cannot represent to a marked string.
fn integer_value(integer: &BigInt) -> Value {
    const EXACT: i64 = 1 << 53;
    match i64::try_from(integer) {
        Ok(small) if (-EXACT..=EXACT).contains(&small) => json!({"value": small, "type": "int"}),
        _ => json!({"value": integer.to_string(), "type": "int", "big": true}),
    }
}
