//! What people say of rows: each is accepted, edited or rejected, in a file with a line for each.
//!
//! # Source
//!
//! GOAT, appendix D: the benchmark is verified by people.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::tools::{ApiCatalogue, JsonLines, Trajectory, TrajectoryCall};
use tooltune_synth::graph::NamedEdge;

use super::origins::{derived, facts, without_stated};
use crate::error::PipelineError;

/// A line of a review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReviewLine {
    /// The row.
    pub id: String,
    /// What becomes of it; nothing yet where it is empty.
    #[serde(default)]
    pub verdict: String,
    /// Why, in words of the reviewer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What the user asks, as it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The sub-queries of the calls, as they are to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_queries: Option<Vec<String>>,
    /// The answer, as it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The calls with what they gave, to be read; they cannot be edited, since nothing executes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Vec<String>>,
}

/// What a review came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reviewed {
    /// Rows that are accepted, or edited.
    pub rows: Vec<Trajectory>,
    /// How many were accepted as they are.
    pub n_accepted: usize,
    /// How many were edited.
    pub n_edited: usize,
    /// How many were rejected, by the reviewer's reasons.
    pub rejected: BTreeMap<String, usize>,
    /// How many have no verdict.
    pub n_without_verdict: usize,
}

/// The verdicts.
const ACCEPT: &str = "accept";
const EDIT: &str = "edit";
const REJECT: &str = "reject";

/// Characters of an output that a review shows.
const SHOWN_OUTPUT: usize = 600;

/// The lines of a review that nobody has made yet, which show what there is to judge.
pub fn review_lines(rows: &[Trajectory]) -> Vec<ReviewLine> {
    let line = |row: &Trajectory| ReviewLine {
        id: row.id.clone(),
        verdict: String::new(),
        reason: String::new(),
        query: Some(row.query.clone()),
        sub_queries: Some(sub_queries(row)),
        response: Some(row.response.clone()),
        calls: Some(row.calls.iter().map(shown).collect()),
    };
    rows.iter().map(line).collect()
}

fn sub_queries(row: &Trajectory) -> Vec<String> {
    let calls = row.calls.iter();
    calls.map(|call| call.sub_query.clone()).collect()
}

fn shown(call: &TrajectoryCall) -> String {
    let arguments = dumps(&Value::Object(call.arguments.clone()), Style::Python);
    let output = dumps(&call.output, Style::Python);
    let output = tooltune_rows::tools::cut_output(&output, SHOWN_OUTPUT);
    format!("{} {arguments} -> {output}", call.name)
}

/// Takes the rows that a review accepts or edits, in their order.
///
/// # Errors
///
/// - the file cannot be read, or a line is none of a review
/// - a line names no row, or one that an earlier line names
/// - a row is accepted or rejected and edited at once, edited without a change, edited to something
///   that training would refuse, or its calls are changed
pub fn apply_review(
    rows: Vec<Trajectory>,
    catalogue: &ApiCatalogue,
    review: &Path,
) -> Result<Reviewed, PipelineError> {
    each_has_an_id(&rows)?;
    let mut lines = lines_of(review, &rows)?;
    let mut reviewed = Reviewed::default();
    for row in rows {
        let Some((place, line)) = lines.remove(&row.id) else {
            reviewed.n_without_verdict += 1;
            continue;
        };
        let bad = |reason: String| PipelineError::Usage(format!("{place}: {reason}"));
        let edited = edited(&row, &line).map_err(bad)?;
        match (line.verdict.trim(), edited) {
            ("", None) => reviewed.n_without_verdict += 1,
            (ACCEPT, None) => {
                reviewed.n_accepted += 1;
                reviewed.rows.push(row);
            }
            (REJECT, _) => *reviewed.rejected.entry(line.reason).or_default() += 1,
            (EDIT, Some(row)) => {
                row.check(catalogue)
                    .map_err(|fault| bad(fault.to_string()))?;
                reviewed.n_edited += 1;
                reviewed.rows.push(row);
            }
            (EDIT, None) => {
                let id = &row.id;
                return Err(bad(format!("{id} is edited, but nothing of it is changed")));
            }
            (ACCEPT | "", Some(row)) => {
                let (id, verdict) = (&row.id, &line.verdict);
                return Err(bad(format!(
                    "{id} is changed and its verdict is {verdict:?}; say {EDIT:?}, or take the \
                     change back"
                )));
            }
            (other, _) => {
                return Err(bad(format!(
                    "the verdict is {other:?}; say {ACCEPT:?}, {EDIT:?} or {REJECT:?}"
                )));
            }
        }
    }
    Ok(reviewed)
}

/// Verdicts are of rows by their ids.
fn each_has_an_id(rows: &[Trajectory]) -> Result<(), PipelineError> {
    let mut ids = BTreeSet::new();
    for row in rows {
        if row.id.is_empty() || !ids.insert(row.id.as_str()) {
            return Err(PipelineError::Usage(format!(
                "the id {:?} is empty, or that of two rows; a review needs one of its own for each \
                 row",
                row.id
            )));
        }
    }
    Ok(())
}

fn lines_of(
    review: &Path,
    rows: &[Trajectory],
) -> Result<BTreeMap<String, (String, ReviewLine)>, PipelineError> {
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let mut lines = BTreeMap::new();
    for line in JsonLines::open(review)? {
        let (place, value) = line?;
        let bad = |reason: String| PipelineError::Usage(format!("{place}: {reason}"));
        let line: ReviewLine = serde_json::from_value(value).map_err(|error| {
            bad(format!(
                "{error}; each line is {{\"id\": row, \"verdict\": \"{ACCEPT}\", \"{EDIT}\" or \
                 \"{REJECT}\"}}, with query, sub_queries or response as they are to be, and may have \
                 a reason"
            ))
        })?;
        if !ids.contains(line.id.as_str()) {
            return Err(bad(format!("no row has the id {:?}", line.id)));
        }
        let id = line.id.clone();
        if let Some((first, _)) = lines.insert(id, (place.clone(), line)) {
            return Err(bad(format!("{first} reviews the same row")));
        }
    }
    Ok(lines)
}

/// The row as a line wants it; nothing if that is what it is.
fn edited(row: &Trajectory, line: &ReviewLine) -> Result<Option<Trajectory>, String> {
    let id = &row.id;
    let is_as_shown = |calls: &Vec<String>| {
        calls
            .iter()
            .eq(&row.calls.iter().map(shown).collect::<Vec<_>>())
    };
    if line.calls.as_ref().is_some_and(|calls| !is_as_shown(calls)) {
        return Err(format!(
            "the calls of {id} are changed, and nothing would execute them; reject the row, or leave \
             its calls as they are"
        ));
    }
    let mut edited = row.clone();
    for (text, wanted) in [
        (&mut edited.query, &line.query),
        (&mut edited.response, &line.response),
    ] {
        if let Some(wanted) = wanted {
            text.clone_from(wanted);
        }
    }
    if let Some(wanted) = &line.sub_queries {
        let (n, n_calls) = (wanted.len(), edited.calls.len());
        if n != n_calls {
            return Err(format!("{id} has {n_calls} calls and {n} sub_queries"));
        }
        for (call, wanted) in edited.calls.iter_mut().zip(wanted) {
            call.sub_query.clone_from(wanted);
        }
    }
    let texts = |row: &Trajectory| (row.query.clone(), sub_queries(row), row.response.clone());
    if texts(&edited) == texts(row) {
        return Ok(None);
    }
    let all = [&edited.query, &edited.response].into_iter();
    if all
        .chain(edited.calls.iter().map(|call| &call.sub_query))
        .any(|text| text.trim().is_empty())
    {
        return Err(format!("a text of {id} is empty"));
    }
    find_origins_again(&mut edited);
    Ok(Some(edited))
}

/// Which arguments are derived and what the answer states follow from query and answer.
fn find_origins_again(row: &mut Trajectory) {
    for at in 0..row.calls.len() {
        let (before, rest) = row.calls.split_at_mut(at);
        let Some(call) = rest.first_mut() else {
            continue;
        };
        let edges: Vec<NamedEdge> = call
            .derived
            .iter()
            .map(|(parameter, origin)| NamedEdge {
                source: before[origin.call].name.clone(),
                target: call.name.clone(),
                parameter: parameter.clone(),
                field: None,
                score: None,
                reason: None,
            })
            .collect();
        let mut found = derived(&call.name, &call.arguments, before, &edges);
        found.append(&mut call.derived);
        call.derived = found;
    }
    row.facts = facts(&row.calls, &row.query, &row.response);
    without_stated(&mut row.calls, &row.query);
}
