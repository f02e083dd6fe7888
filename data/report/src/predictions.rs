//! Ranks the lines of a suite's `predictions.jsonl` as samples, the least-scored first.
//!
//! Each suite is ranked by one number that grows with how right a sample is: the mean of the scores
//! that [`RankedEvaluation`] brings. Other fields of a line only describe the sample, such as the
//! depth of its gold, or say that something went wrong, such as `parse_error`; their sum ranks
//! nothing.

use std::collections::HashMap;

use serde_json::Value;
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::text::{Message, Row};

use super::run::{SampleScoreView, SampleView, SuiteResult};

/// Broken rules that are named beside a sample.
const MAX_RULES: usize = 5;

/// An evaluation whose lines are ranked.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a function has none")]
pub struct RankedEvaluation<'e> {
    /// The suite.
    pub suite: &'e str,
    /// What was evaluated.
    pub result: &'e str,
    /// Whether that is the untrained model.
    pub is_base: bool,
    /// The scores whose mean ranks a line, by the names of their metrics, those that it has; none for
    /// a suite without a text.
    pub ranking_scores: &'e dyn Fn(&Value) -> Vec<SampleScoreView>,
    /// All scores of a line, by the names of their metrics.
    pub scores: &'e dyn Fn(&Value) -> Vec<SampleScoreView>,
}

/// Ranks the lines of an evaluation, the least-scored first.
///
/// `rows` are the rows of the data by id, which have prompt and gold where a line has none. Lines
/// that nothing ranks, such as those of retrieval, are left out; lines of one rank are in the order
/// of the file, except that exact matches come last.
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
    ranked.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let ranked = ranked.into_iter();
    ranked
        .map(|(.., line)| sample(evaluation, line, rows))
        .collect()
}

/// The rows of an evaluation that measured the loss alone, from `losses.jsonl`, the one with the
/// greatest loss first. Rows that are not known are left out: nothing could be shown of them.
pub fn samples_by_loss(
    result: &str,
    lines: &[Value],
    rows: &HashMap<&str, &Row>,
) -> Vec<SampleView> {
    let row = |line: &Value| {
        let row = rows.get(line["id"].as_str()?).copied()?;
        Some((line["loss"].as_f64()?, row))
    };
    let mut found: Vec<(f64, &Row)> = lines.iter().filter_map(row).collect();
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    let sample = |(loss, row): (f64, &Row)| SampleView {
        suite: SuiteResult::LOSS.to_owned(),
        result: result.to_owned(),
        id: row.id.clone(),
        prompt: read(row),
        gold: gold(row),
        rank: Some(score(SuiteResult::LOSS, loss)),
        ..SampleView::default()
    };
    found.into_iter().map(sample).collect()
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

/// What ranked a sample: `mean of slot.schema_accuracy and slot.content_similarity`, or a score that
/// is alone.
fn rank(scores: &[SampleScoreView]) -> Option<SampleScoreView> {
    let names: Vec<&str> = scores.iter().map(|one| one.name.as_str()).collect();
    let name = match names.as_slice() {
        [] => return None,
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("mean of {} and {last}", most.join(", ")),
    };
    Some(score(&name, mean(scores)?))
}

fn sample(
    evaluation: RankedEvaluation<'_>,
    line: &Value,
    rows: &HashMap<&str, &Row>,
) -> SampleView {
    let id = line["id"].as_str().or(line["uid"].as_str());
    let id = id.unwrap_or_default();
    let row = rows.get(id).copied();
    // Lines whose row is no sample as it stands say themselves what was asked for.
    let first = |keys: &[&str]| keys.iter().find_map(|key| text(&line[*key]));
    let ranking = (evaluation.ranking_scores)(line);
    SampleView {
        suite: evaluation.suite.to_owned(),
        result: evaluation.result.to_owned(),
        is_base: evaluation.is_base,
        id: id.to_owned(),
        prompt: row
            .filter(|_| first(&["query", "question"]).is_none())
            .map(read)
            .or_else(|| first(&["query", "question", "prompt", "input_text"]))
            .unwrap_or_default(),
        prediction: first(&["prediction", "model_output", "outcome", "steps"]).unwrap_or_default(),
        gold: first(&["gold", "gold_answer"]).unwrap_or_else(|| row.map_or_else(String::new, gold)),
        rank: rank(&ranking),
        scores: (evaluation.scores)(line),
        notes: notes(line),
    }
}

/// A text as it is, anything else as indented JSON.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => serde_json::to_string_pretty(other).ok(),
    }
}

/// What the model reads of a row: all messages before its turn, named where there are several.
fn read(row: &Row) -> String {
    let content = |message: &Message| message.content.clone().unwrap_or_default();
    match row.conversation.prompt() {
        [only] => content(only),
        messages => {
            let named = messages
                .iter()
                .map(|message| format!("{}:\n{}", message.role.as_str(), content(message)));
            named.collect::<Vec<_>>().join("\n\n")
        }
    }
}

/// The turn that a row asks for.
fn gold(row: &Row) -> String {
    let conversation = &row.conversation;
    let turn = conversation.messages.get(conversation.completion_start);
    turn.and_then(|message| message.content.clone())
        .unwrap_or_default()
}

/// Why a text ended early, what of it was no form, what failed, and the rules that it breaks; of a
/// text that keeps all of them and is not right, that it does.
fn notes(line: &Value) -> Vec<String> {
    let reason = line["finish_reason"].as_str().unwrap_or_default();
    let cut = (!matches!(reason, "" | "stop")).then(|| format!("cut by its limit of {reason}"));
    let malformed = line["scored"]["malformed"].as_str();
    let malformed = malformed.map(|kind| format!("malformed: {kind}"));
    let failure = line["failure"].as_str().map(str::to_owned);
    let failures = line["outcome"]["failures"].as_array().into_iter().flatten();
    let failures = failures.map(|failure| dumps(failure, Style::Compact));
    let notes = cut.into_iter().chain(malformed).chain(failure);
    let mut notes: Vec<String> = notes.chain(failures).chain(broken_rules(line)).collect();
    let is_other = line.pointer("/score/exact_match") == Some(&Value::Bool(false));
    if notes.is_empty() && is_other {
        notes.push("breaks no rule of its schema; its values are not the gold's".to_owned());
    }
    notes
}

/// The rules of a schema, of a call or of an answer that a line says are broken.
fn broken_rules(line: &Value) -> Vec<String> {
    let of = |name: &str| line["score"][name].as_array().into_iter().flatten();
    let broken: Vec<&Value> = of("violations").chain(of("faults")).collect();
    let field = |one: &'_ Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let note = |one: &&Value| {
        let (rule, path, message) = (
            field(one, "rule"),
            field(one, "path"),
            field(one, "message"),
        );
        match path.as_str() {
            "" => format!("breaks {rule}: {message}"),
            path => format!("breaks {rule} at {path}: {message}"),
        }
    };
    let mut notes: Vec<String> = broken.iter().take(MAX_RULES).map(note).collect();
    if broken.len() > MAX_RULES {
        let n_more = broken.len() - MAX_RULES;
        notes.push(format!("breaks rules in {n_more} more places"));
    }
    notes.extend(unreadable(line));
    notes
}

/// What an answer without a rule of its own says of itself.
fn unreadable(line: &Value) -> Option<String> {
    let score = line.get("score").unwrap_or(line);
    if score["parse_error"] == Value::Bool(true) {
        return Some("breaks the form of answers: it cannot be read".to_owned());
    }
    match (&score["win"], line["status"].as_str()) {
        (Value::String(win), _) => Some(format!("not run: {}", win.replace('_', " "))),
        (_, Some(status)) if status != "answered" => {
            Some(format!("ended as {}", status.replace('_', " ")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
