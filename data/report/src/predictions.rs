//! Ranks the lines of a suite's `predictions.jsonl`, worst first.
//!
//! The rank of a line is the mean of the scores that [`RankedEvaluation`] selects; higher is
//! better. Other fields of a line are not used, because they describe the sample (such as the depth
//! of its gold answer) or report a failure (such as `parse_error`).

use std::collections::HashMap;

use serde_json::Value;
use tooltune_json::{Style, dumps};
use tooltune_rows::text::Row;
use tooltune_template::Message;

use super::run::{SampleScoreView, SampleView, SuiteResult};

/// Maximum number of broken rules listed per sample.
const MAX_RULES: usize = 5;

/// An evaluation whose lines are ranked.
#[derive(Clone, Copy)]
#[expect(
    missing_debug_implementations,
    reason = "functions do not implement Debug"
)]
pub struct RankedEvaluation<'e> {
    /// Name of the suite.
    pub suite: &'e str,
    /// Label of the result, such as `base` or `step 300`.
    pub result: &'e str,
    /// Whether the result is of the untrained model.
    pub is_base: bool,
    /// Returns the scores whose mean ranks a line, with their metric names; empty for suites whose
    /// output is not text.
    pub ranking_scores: &'e dyn Fn(&Value) -> Vec<SampleScoreView>,
    /// Returns all scores of a line, with their metric names.
    pub scores: &'e dyn Fn(&Value) -> Vec<SampleScoreView>,
    /// Returns the parts of a line, from the field names of its suite.
    pub parts: &'e dyn for<'l> Fn(&'l Value) -> LineParts<'l>,
}

/// The parts of a line of predictions; `None` if the line does not have the part.
#[derive(Debug, Clone, Copy, Default)]
pub struct LineParts<'l> {
    /// Sample id.
    pub id: Option<&'l str>,
    /// The prompt; also `None` if the data row contains it.
    pub prompt: Option<&'l Value>,
    /// The gold answer.
    pub gold: Option<&'l Value>,
    /// The completion, or the steps of an agent.
    pub output: Option<&'l Value>,
}

/// Ranks the lines of an evaluation, worst first.
///
/// `rows` are the data rows by id; if a line has no prompt or gold answer, its row provides them.
/// Lines without ranking scores, such as lines of retrieval, are omitted. Lines of equal rank keep
/// the order of the file, except that exact matches come last.
pub fn ranked_samples(
    evaluation: RankedEvaluation<'_>,
    lines: &[Value],
    rows: &HashMap<&str, &Row>,
) -> Vec<SampleView> {
    let mut ranked: Vec<(f64, bool, &Value)> = lines
        .iter()
        .filter_map(|line| {
            let is_exact = line.pointer("/score/exact_match") == Some(&Value::Bool(true));
            Some((mean(&(evaluation.ranking_scores)(line))?, is_exact, line))
        })
        .collect();
    ranked.sort_by(|left, other| left.0.total_cmp(&other.0).then(left.1.cmp(&other.1)));
    let ranked = ranked.into_iter();
    ranked
        .map(|(.., line)| sample(evaluation, line, rows))
        .collect()
}

/// Ranks the rows of a loss-only evaluation (`losses.jsonl`), highest loss first. Rows that are not
/// in `rows` are omitted, because their text is unknown.
pub fn samples_by_loss(
    result: &str,
    lines: &[Value],
    rows: &HashMap<&str, &Row>,
) -> Vec<SampleView> {
    let row = |line: &Value| {
        let row = rows.get(line["id"].as_str()?).copied()?;
        Some((line["loss"].as_f64()?, row))
    };
    let mut losses: Vec<(f64, &Row)> = lines.iter().filter_map(row).collect();
    losses.sort_by(|left, other| other.0.total_cmp(&left.0));
    let sample = |(loss, row): (f64, &Row)| SampleView {
        suite: SuiteResult::LOSS.to_owned(),
        result: result.to_owned(),
        id: row.id.clone(),
        prompt: row_text(row),
        gold: gold(row),
        rank: Some(score(SuiteResult::LOSS, loss)),
        ..SampleView::default()
    };
    losses.into_iter().map(sample).collect()
}

fn score(name: &str, value: f64) -> SampleScoreView {
    SampleScoreView {
        name: name.to_owned(),
        value,
    }
}

fn mean(scores: &[SampleScoreView]) -> Option<f64> {
    let sum: f64 = scores.iter().map(|score| score.value).sum();
    (!scores.is_empty()).then(|| sum / scores.len() as f64)
}

/// The name and value of the rank: a single score, or `mean of slot.schema_accuracy and
/// slot.content_similarity`.
fn rank_score(scores: &[SampleScoreView]) -> Option<SampleScoreView> {
    let names: Vec<&str> = scores.iter().map(|score| score.name.as_str()).collect();
    let name = match names.as_slice() {
        [] => return None,
        [score] => (*score).to_owned(),
        [most @ .., last] => format!("mean of {} and {last}", most.join(", ")),
    };
    Some(score(&name, mean(scores)?))
}

fn sample(
    evaluation: RankedEvaluation<'_>,
    line: &Value,
    rows: &HashMap<&str, &Row>,
) -> SampleView {
    let parts = (evaluation.parts)(line);
    let id = parts.id.unwrap_or_default();
    let row = rows.get(id).copied();
    let part_text = |part: Option<&Value>| part.and_then(text);
    let ranking = (evaluation.ranking_scores)(line);
    SampleView {
        suite: evaluation.suite.to_owned(),
        result: evaluation.result.to_owned(),
        is_base: evaluation.is_base,
        id: id.to_owned(),
        prompt: part_text(parts.prompt)
            .or_else(|| row.map(row_text))
            .unwrap_or_default(),
        prediction: part_text(parts.output).unwrap_or_default(),
        gold: part_text(parts.gold).unwrap_or_else(|| row.map_or_else(String::new, gold)),
        rank: rank_score(&ranking),
        scores: (evaluation.scores)(line),
        notes: line_notes(line),
    }
}

/// Returns strings unchanged and formats other values as indented JSON.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => serde_json::to_string_pretty(other).ok(),
    }
}

/// The model input of a row: all messages before the reply, with their roles if there are several
/// messages.
fn row_text(row: &Row) -> String {
    let content = |message: &Message| message.content.clone().unwrap_or_default();
    match row.conversation.prompt() {
        [single_message] => content(single_message),
        messages => {
            let named_messages = messages
                .iter()
                .map(|message| format!("{}:\n{}", message.role.as_str(), content(message)));
            named_messages.collect::<Vec<_>>().join("\n\n")
        }
    }
}

/// The expected reply of a row.
fn gold(row: &Row) -> String {
    let conversation = &row.conversation;
    let turn = conversation.messages.get(conversation.completion_start);
    turn.and_then(|message| message.content.clone())
        .unwrap_or_default()
}

/// Notes about a line: the limit that cut it off, malformed output, failures, broken rules. If none
/// applies and the prediction is still wrong, a note reports that it is valid but differs from the
/// gold answer.
fn line_notes(line: &Value) -> Vec<String> {
    let reason = line["finish_reason"].as_str().unwrap_or_default();
    let cut = (!matches!(reason, "" | "stop")).then(|| format!("cut off by the {reason} limit"));
    let malformed = line["scored"]["malformed"].as_str();
    let malformed = malformed.map(|kind| format!("malformed: {kind}"));
    let failure = line["failure"].as_str().map(str::to_owned);
    let failures = line["outcome"]["failures"].as_array().into_iter().flatten();
    let failures = failures.map(|failure| dumps(failure, Style::Compact));
    let notes = cut.into_iter().chain(malformed).chain(failure);
    let mut notes: Vec<String> = notes.chain(failures).chain(broken_rules(line)).collect();
    let is_other = line.pointer("/score/exact_match") == Some(&Value::Bool(false));
    if notes.is_empty() && is_other {
        notes.push("valid under its schema, but the values differ from the gold answer".to_owned());
    }
    notes
}

/// The rules of a schema, call or answer that a line breaks.
fn broken_rules(line: &Value) -> Vec<String> {
    let of = |name: &str| line["score"][name].as_array().into_iter().flatten();
    let rules: Vec<&Value> = of("violations").chain(of("faults")).collect();
    let field =
        |violation: &'_ Value, name: &str| violation[name].as_str().unwrap_or_default().to_owned();
    let note = |violation: &&Value| {
        let (rule_name, path, message) = (
            field(violation, "rule"),
            field(violation, "path"),
            field(violation, "message"),
        );
        match path.as_str() {
            "" => format!("breaks {rule_name}: {message}"),
            path => format!("breaks {rule_name} at {path}: {message}"),
        }
    };
    let mut notes: Vec<String> = rules.iter().take(MAX_RULES).map(note).collect();
    if rules.len() > MAX_RULES {
        let n_more = rules.len() - MAX_RULES;
        notes.push(format!("breaks {n_more} more rules"));
    }
    notes.extend(unreadable_reason(line));
    notes
}

/// The reason for a failed answer that lists no broken rules.
fn unreadable_reason(line: &Value) -> Option<String> {
    let score = line.get("score").unwrap_or(line);
    if score["parse_error"] == Value::Bool(true) {
        return Some("not in the answer format: cannot be parsed".to_owned());
    }
    match (&score["win"], line["status"].as_str()) {
        (Value::String(win), _) => Some(format!("not run: {}", win.replace('_', " "))),
        (_, Some(status)) if status != "answered" => {
            Some(format!("ended with status {}", status.replace('_', " ")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
