//! Reviews of rows by people: each row is accepted, edited or rejected in a file with one line per
//! row.
//!
//! # Source
//!
//! GOAT, appendix D: the benchmark is verified by people.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_apis::{ApiCatalogue, JsonLines, Trajectory, TrajectoryCall};
use tooltune_json::{Style, dumps};
use tooltune_synth::graph::NamedEdge;

use super::origins::{find_origins, new_facts, remove_stated};
use crate::error::PipelineError;

/// A line of a review file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReviewLine {
    /// Id of the row.
    pub id: String,
    /// The verdict; empty if there is none yet.
    #[serde(default)]
    pub verdict: String,
    /// The reviewer's reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The edited user query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The edited sub-queries of the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_queries: Option<Vec<String>>,
    /// The edited answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The calls with their results, for reading only. They cannot be edited, because nothing would
    /// execute them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Vec<String>>,
}

/// The result of a review.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reviewed {
    /// Accepted and edited rows.
    pub rows: Vec<Trajectory>,
    /// Number of rows accepted unchanged.
    pub n_accepted: usize,
    /// Number of edited rows.
    pub n_edited: usize,
    /// Number of rejected rows by reason.
    pub rejected: BTreeMap<String, usize>,
    /// Number of rows without a verdict.
    pub n_without_verdict: usize,
}

/// The verdicts.
const ACCEPT: &str = "accept";
const EDIT: &str = "edit";
const REJECT: &str = "reject";

/// Maximum number of characters of an output shown in a review.
const SHOWN_OUTPUT: usize = 600;

/// The lines of an empty review, with the content of the rows to judge.
pub fn review_lines(rows: &[Trajectory]) -> Vec<ReviewLine> {
    let line = |row: &Trajectory| ReviewLine {
        id: row.id.clone(),
        verdict: String::new(),
        reason: String::new(),
        query: Some(row.query.clone()),
        sub_queries: Some(sub_queries(row)),
        response: Some(row.response.clone()),
        calls: Some(row.calls.iter().map(call_text).collect()),
    };
    rows.iter().map(line).collect()
}

fn sub_queries(row: &Trajectory) -> Vec<String> {
    let calls = row.calls.iter();
    calls.map(|call| call.sub_query.clone()).collect()
}

fn call_text(call: &TrajectoryCall) -> String {
    let arguments = dumps(&Value::Object(call.arguments.clone()), Style::Python);
    let output = dumps(&call.output, Style::Python);
    let output = tooltune_apis::cut_output(&output, SHOWN_OUTPUT);
    format!("{} {arguments} -> {output}", call.name)
}

/// Returns the rows that a review accepts or edits, in order.
///
/// # Errors
///
/// - the file cannot be read, or contains an invalid line
/// - a line names an unknown row, or the same row as an earlier line
/// - a row is edited without the verdict `edit`, has that verdict without a change, would be
///   rejected in training, or its calls are changed
pub fn apply_review(
    rows: Vec<Trajectory>,
    catalogue: &ApiCatalogue,
    review: &Path,
) -> Result<Reviewed, PipelineError> {
    check_ids(&rows)?;
    let mut lines = review_lines_by_id(review, &rows)?;
    let mut reviewed = Reviewed::default();
    for row in rows {
        let Some((location, line)) = lines.remove(&row.id) else {
            reviewed.n_without_verdict += 1;
            continue;
        };
        let usage_error = |reason: String| PipelineError::Usage(format!("{location}: {reason}"));
        let edited = apply_edits(&row, &line).map_err(usage_error)?;
        match (line.verdict.trim(), edited) {
            ("", None) => reviewed.n_without_verdict += 1,
            (ACCEPT, None) => {
                reviewed.n_accepted += 1;
                reviewed.rows.push(row);
            }
            (REJECT, _) => *reviewed.rejected.entry(line.reason).or_default() += 1,
            (EDIT, Some(row)) => {
                row.check(catalogue)
                    .map_err(|fault| usage_error(fault.to_string()))?;
                reviewed.n_edited += 1;
                reviewed.rows.push(row);
            }
            (EDIT, None) => {
                let id = &row.id;
                return Err(usage_error(format!(
                    "the verdict of {id} is {EDIT:?}, but nothing is changed; edit a field, or use {ACCEPT:?}"
                )));
            }
            (ACCEPT | "", Some(row)) => {
                let (id, verdict) = (&row.id, &line.verdict);
                return Err(usage_error(format!(
                    "{id} is changed, but its verdict is {verdict:?}; use {EDIT:?}, or revert the \
                     change"
                )));
            }
            (other, _) => {
                return Err(usage_error(format!(
                    "the verdict is {other:?}; use {ACCEPT:?}, {EDIT:?} or {REJECT:?}"
                )));
            }
        }
    }
    Ok(reviewed)
}

/// Reviews refer to rows by id, so ids must be unique.
fn check_ids(rows: &[Trajectory]) -> Result<(), PipelineError> {
    let mut ids = BTreeSet::new();
    for row in rows {
        if row.id.is_empty() || !ids.insert(row.id.as_str()) {
            return Err(PipelineError::Usage(format!(
                "the id {:?} is empty or not unique; a review needs a unique id for each row",
                row.id
            )));
        }
    }
    Ok(())
}

fn review_lines_by_id(
    review: &Path,
    rows: &[Trajectory],
) -> Result<BTreeMap<String, (String, ReviewLine)>, PipelineError> {
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let mut lines = BTreeMap::new();
    for line in JsonLines::open(review)? {
        let (location, value) = line?;
        let usage_error = |reason: String| PipelineError::Usage(format!("{location}: {reason}"));
        let line: ReviewLine = serde_json::from_value(value).map_err(|error| {
            usage_error(format!(
                "{error}; each line is {{\"id\": row, \"verdict\": \"{ACCEPT}\", \"{EDIT}\" or \
                 \"{REJECT}\"}}, with the edited query, sub_queries or response, and may have \
                 a reason"
            ))
        })?;
        if !ids.contains(line.id.as_str()) {
            return Err(usage_error(format!("no row has the id {:?}", line.id)));
        }
        let id = line.id.clone();
        if let Some((first_location, _)) = lines.insert(id, (location.clone(), line)) {
            return Err(usage_error(format!(
                "{first_location} reviews the same row"
            )));
        }
    }
    Ok(lines)
}

/// The row with the edits of a line; `None` if nothing changes.
fn apply_edits(row: &Trajectory, line: &ReviewLine) -> Result<Option<Trajectory>, String> {
    let id = &row.id;
    let is_as_shown = |calls: &Vec<String>| {
        calls
            .iter()
            .eq(&row.calls.iter().map(call_text).collect::<Vec<_>>())
    };
    if line.calls.as_ref().is_some_and(|calls| !is_as_shown(calls)) {
        return Err(format!(
            "the calls of {id} are changed, but would not be executed; reject the row, or keep \
             its calls"
        ));
    }
    let mut edited = row.clone();
    for (text, new_text) in [
        (&mut edited.query, &line.query),
        (&mut edited.response, &line.response),
    ] {
        if let Some(new_text) = new_text {
            text.clone_from(new_text);
        }
    }
    if let Some(sub_queries) = &line.sub_queries {
        let (n, n_calls) = (sub_queries.len(), edited.calls.len());
        if n != n_calls {
            return Err(format!("{id} has {n_calls} calls and {n} sub_queries"));
        }
        for (call, sub_query) in edited.calls.iter_mut().zip(sub_queries) {
            call.sub_query.clone_from(sub_query);
        }
    }
    let texts = |row: &Trajectory| (row.query.clone(), sub_queries(row), row.response.clone());
    if texts(&edited) == texts(row) {
        return Ok(None);
    }
    let row_texts = [&edited.query, &edited.response].into_iter();
    if row_texts
        .chain(edited.calls.iter().map(|call| &call.sub_query))
        .any(|text| text.trim().is_empty())
    {
        return Err(format!("a field of {id} is empty; fill it in"));
    }
    find_origins_again(&mut edited);
    Ok(Some(edited))
}

/// Recomputes derived arguments and facts, which depend on query and answer.
fn find_origins_again(row: &mut Trajectory) {
    for call_idx in 0..row.calls.len() {
        let (earlier_calls, later_calls) = row.calls.split_at_mut(call_idx);
        let Some(call) = later_calls.first_mut() else {
            continue;
        };
        let edges: Vec<NamedEdge> = call
            .derived
            .iter()
            .map(|(parameter, origin)| NamedEdge {
                source: earlier_calls[origin.call].name.clone(),
                target: call.name.clone(),
                parameter: parameter.clone(),
                field: None,
                score: None,
                reason: None,
            })
            .collect();
        let mut origins = find_origins(&call.name, &call.arguments, earlier_calls, &edges);
        origins.append(&mut call.derived);
        call.derived = origins;
    }
    row.facts = new_facts(&row.calls, &row.query, &row.response);
    remove_stated(&mut row.calls, &row.query);
}
