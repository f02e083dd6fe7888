//! The tool-output QA suite as operations of `tooltune score`.
//!
//! Each function only reads the fields of a line and calls the suite; it contains no scoring rules.
//! If an operation has a single value, that value is the whole `input`.

use std::collections::BTreeMap;

use super::{
    AnswerFacts, AnswerMetric, AnswerStatus, CODE_EXECUTION_ERROR, CodeRule, PARSING_ERROR,
    QuestionClassifier, ScoredAnswer, TaskType, ToolQaError, ToolQaNumbers, ToolQaReport,
    ToolQaScore, contains, exact_match, extract_code, infer_schema, judge_verdict, number_strict,
};
use serde_json::{Map, Value, json};

use crate::operations::{Fields, InputField, LineError, Operation, Request, WHOLE_INPUT};
use crate::row_suite::score_operation;
use crate::shortening::{Reduction, reduce};

const METRICS: &str =
    "\"accuracy_string\", \"approx_number_match\" or \"unordered_list_str_match\"";
const METRIC: InputField = InputField::new("metric", METRICS);
const GOLD: InputField = InputField::new("gold", "the gold answer, a string");
const PRED: InputField = InputField::new("pred", "the answer; wrong if it is not a string");
const REPLY: InputField = InputField::new(WHOLE_INPUT, "the model's output, a string");
const RESPONSE: InputField = InputField::new(WHOLE_INPUT, "the response, any JSON value");

/// All operations of the suite.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        name: "toolqa.exact_match",
        fields: &[METRIC, GOLD, PRED],
        definition: "whether the answer is right by its metric, as published",
        run: exact,
    },
    Operation {
        name: "toolqa.contains",
        fields: &[METRIC, GOLD, PRED],
        definition: "whether the answer is right or contains the gold answer",
        run: |request| {
            let metric = metric(&request.input)?;
            compare(request, |gold, pred| contains(metric, gold, pred))
        },
    },
    Operation {
        name: "toolqa.number_strict",
        fields: &[GOLD, PRED],
        definition: "whether the answer has exactly one number, equal to the gold number",
        run: |request| compare(request, number_strict),
    },
    Operation {
        name: "toolqa.judge",
        fields: &[REPLY],
        definition: "whether the judge's reply begins with \"true\"",
        run: judge,
    },
    Operation {
        name: "toolqa.classifier",
        fields: &[REPLY],
        definition: "the type of question that an output names, or \"parsing error\"",
        run: classifier,
    },
    score_operation::<QuestionClassifier>(
        "toolqa.classification",
        "{accuracy, parse_error_rate} of a classifier's output, each true or false",
    ),
    Operation {
        name: "toolqa.extract_code",
        fields: &[REPLY],
        definition: "{code, name} of the output's function by the published rule, or null",
        run: |request| {
            let code = extract_code(request.input.text(WHOLE_INPUT)?, CodeRule::Official);
            Ok(json!(code))
        },
    },
    Operation {
        name: "toolqa.extract_code_robust",
        fields: &[REPLY],
        definition: "{code, name} of the last function in the first block that has one, or null",
        run: |request| {
            let code = extract_code(request.input.text(WHOLE_INPUT)?, CodeRule::Robust);
            Ok(json!(code))
        },
    },
    Operation {
        name: "toolqa.reduce_official",
        fields: &[RESPONSE],
        definition: "the response with only the list items that have a new key name, as published",
        run: |request| {
            Ok(reduce(
                request.input.value(WHOLE_INPUT)?,
                Reduction::Official,
            ))
        },
    },
    Operation {
        name: "toolqa.reduce_paths",
        fields: &[RESPONSE],
        definition: "the response with only the first list items and those with a new key path",
        run: |request| Ok(reduce(request.input.value(WHOLE_INPUT)?, Reduction::Paths)),
    },
    Operation {
        name: "toolqa.schema",
        fields: &[RESPONSE],
        definition: "the JSON Schema inferred from the response",
        run: |request| Ok(infer_schema([request.input.value(WHOLE_INPUT)?])),
    },
    Operation {
        name: "toolqa.aggregate",
        fields: &[InputField::new(
            WHOLE_INPUT,
            "array of {metric, gold_answer, pred, model_output?, code_exec_status?, task_type, endpoint}",
        )],
        definition: "rates of exact match, contains and code errors: total, by type and endpoint",
        run: aggregate,
    },
];

impl From<ToolQaError> for LineError {
    fn from(error: ToolQaError) -> Self {
        let kind = match error {
            ToolQaError::NoSamples => "empty_dataset",
            _ => "bad_row",
        };
        Self::NoValue {
            kind,
            message: error.to_string(),
        }
    }
}

fn metric(fields: &Fields<'_>) -> Result<AnswerMetric, LineError> {
    let named_metric = AnswerMetric::from_name(fields.text("metric")?);
    named_metric.ok_or_else(|| fields.wrong_type("metric", METRICS))
}

/// Compares a gold answer with a string prediction.
fn compare(request: &Request<'_>, rule: impl Fn(&str, &str) -> bool) -> Result<Value, LineError> {
    let (gold, pred) = (request.input.text("gold")?, request.input.value("pred")?);
    Ok(json!(pred.as_str().is_some_and(|pred| rule(gold, pred))))
}

fn exact(request: &Request<'_>) -> Result<Value, LineError> {
    let metric = metric(&request.input)?;
    compare(request, |gold, pred| exact_match(metric, gold, pred))
}

fn judge(request: &Request<'_>) -> Result<Value, LineError> {
    Ok(json!(judge_verdict(request.input.text(WHOLE_INPUT)?)))
}

fn classifier(request: &Request<'_>) -> Result<Value, LineError> {
    let parsed_type = TaskType::from_output(request.input.text(WHOLE_INPUT)?);
    let name = parsed_type.map(|task_type| task_type.name().to_lowercase());
    Ok(json!(name.as_deref().unwrap_or(PARSING_ERROR)))
}

fn aggregate(request: &Request<'_>) -> Result<Value, LineError> {
    let rows = request.input.objects(WHOLE_INPUT)?;
    let answers: Vec<ScoredAnswer<'_>> =
        rows.iter().map(scored_answer).collect::<Result<_, _>>()?;
    let report = ToolQaReport::new(&answers)?;
    let groups = |groups: &BTreeMap<String, ToolQaNumbers>| {
        let group_lines = groups
            .iter()
            .map(|(name, numbers)| (name.clone(), share_values(numbers)));
        Value::Object(group_lines.collect::<Map<_, _>>())
    };
    Ok(json!({
        "total": share_values(&report.overall),
        "by_type": groups(&report.by_type),
        "by_endpoint": groups(&report.by_endpoint),
    }))
}

fn scored_answer<'a>(row: &'a Fields<'_>) -> Result<ScoredAnswer<'a>, LineError> {
    let (metric, gold) = (metric(row)?, row.text("gold_answer")?);
    let (pred, output) = (row.value("pred")?, row.optional_text("model_output")?);
    let status = match row.optional_text("code_exec_status")? {
        _ if pred.is_null() && output.is_none() => AnswerStatus::NoOutput,
        Some(CODE_EXECUTION_ERROR) => AnswerStatus::CodeError,
        _ => AnswerStatus::Answered,
    };
    Ok(ScoredAnswer {
        task_type: row.text("task_type")?,
        endpoint: row.text("endpoint")?,
        metric,
        facts: AnswerFacts::default(),
        routed_as: None,
        score: ToolQaScore::from_answer(metric, gold, pred, status),
    })
}

fn share_values(numbers: &ToolQaNumbers) -> Value {
    json!({
        "n": numbers.n,
        "exact_match": numbers.exact_match.value,
        "contains": numbers.contains.value,
        "code_errors": numbers.n_code_errors as f64 / numbers.n as f64,
    })
}
