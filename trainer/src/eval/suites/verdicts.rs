//! Verdicts of people, in place of a judge.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tooltune_apis::{JsonLines, ToolsError};
use tooltune_suites::{JudgeVerdict, SUITES};

use crate::config::Suite;
use crate::error::Error;
use crate::eval::saved::excerpt;

/// Number of ids that a message lists.
const MAX_LISTED: usize = 3;

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    solved: bool,
    /// For people; not used.
    #[serde(default)]
    #[expect(dead_code, reason = "only checked to be a string")]
    comment: Option<String>,
}

/// Checks that the suite has answers that people can rate.
///
/// # Errors
///
/// The suite never uses a judge.
pub fn check_suite(suite: Suite) -> Result<(), Error> {
    if suite.info().is_judged {
        return Ok(());
    }
    let judged = SUITES.iter().filter(|suite| suite.is_judged);
    let names: Vec<&str> = judged.map(|suite| suite.name).collect();
    Err(Error::Usage(format!(
        "--verdicts does not apply to the suite {suite}, which needs no judge; it applies to {}",
        names.join(", ")
    )))
}

/// Reads one verdict per sample, in the order of `ids`.
///
/// # Errors
///
/// The file cannot be read, a line is not `{"id", "solved"}`, two lines have the same id, a line has
/// an unknown id, or a sample has no line.
pub(super) fn read_verdicts(path: &Path, ids: &[&str]) -> Result<Vec<JudgeVerdict>, Error> {
    let known: HashMap<&str, usize> = ids.iter().enumerate().map(|(n, id)| (*id, n)).collect();
    let mut verdicts: BTreeMap<usize, (bool, String)> = BTreeMap::new();
    let records = tooltune_files::open(path).map_err(ToolsError::from)?;
    for line in JsonLines::from_records(records) {
        let (location, line): (String, Value) = line?;
        let refused = |reason: String| Error::Usage(format!("{location}: {reason}"));
        let Line { id, solved, .. } = serde_json::from_value(line).map_err(|error| {
            refused(format!(
                "{error}; write each line as {{\"id\": \"...\", \"solved\": true}}, with an \
                 optional \"comment\""
            ))
        })?;
        let Some(sample) = known.get(id.as_str()) else {
            return Err(refused(format!(
                "{:?} is not the id of any of the {} predictions; correct the id or remove the line",
                excerpt(&id),
                ids.len()
            )));
        };
        if let Some((_, first)) = verdicts.get(sample) {
            return Err(refused(format!(
                "duplicate id {:?} (first at {first}); keep one verdict per prediction",
                excerpt(&id)
            )));
        }
        verdicts.insert(*sample, (solved, location));
    }
    let missing = (0..ids.len()).filter(|sample| !verdicts.contains_key(sample));
    let missing: Vec<String> = missing
        .map(|sample| format!("{:?}", excerpt(ids[sample])))
        .collect();
    if !missing.is_empty() {
        let more = if missing.len() > MAX_LISTED {
            ", ..."
        } else {
            ""
        };
        return Err(Error::Usage(format!(
            "{}: {} of {} predictions have no verdict: {}{more}; add a line for each",
            path.display(),
            missing.len(),
            ids.len(),
            missing[..missing.len().min(MAX_LISTED)].join(", ")
        )));
    }
    let verdicts = ids.iter().zip(verdicts.into_values());
    let verdict = |(id, (solved, _)): (&&str, (bool, String))| JudgeVerdict {
        id: (*id).to_owned(),
        verdict: Some(solved),
        replies: Vec::new(),
        error: None,
    };
    Ok(verdicts.map(verdict).collect())
}

/// Describes the verdicts, for the notes of a result.
pub(super) fn verdicts_line(path: &Path, n: usize) -> String {
    format!("{n} verdicts of people: {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(name: &str, lines: &str) -> Result<Vec<bool>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, lines).expect("written");
        let verdicts = read_verdicts(&path, &["a", "b"]);
        let verdicts = verdicts.map_err(|error| {
            let folder = format!("{}/", folder.path().display());
            error.to_string().replace(&folder, "")
        })?;
        Ok(verdicts.iter().map(JudgeVerdict::is_solved).collect())
    }

    #[test]
    fn verdicts_are_in_the_order_of_the_samples() {
        let lines = "{\"id\": \"b\", \"solved\": false}\n\
                     {\"id\": \"a\", \"solved\": true, \"comment\": \"well put\"}\n";
        assert_eq!(verdicts("v.jsonl", lines), Ok(vec![true, false]));
    }

    #[test]
    fn missing_duplicate_unknown_and_misspelled_verdicts_are_refused_with_their_lines() {
        let a = "{\"id\": \"a\", \"solved\": true}\n";
        for (lines, expected) in [
            (
                a.to_owned(),
                "v.jsonl: 1 of 2 predictions have no verdict: \"b\"; add a line for each",
            ),
            (
                a.repeat(2),
                "v.jsonl:2: duplicate id \"a\" (first at v.jsonl:1); keep one verdict per prediction",
            ),
            (
                format!("{a}{{\"id\": \"c\", \"solved\": true}}\n"),
                "v.jsonl:2: \"c\" is not the id of any of the 2 predictions; correct the id or \
                 remove the line",
            ),
        ] {
            assert_eq!(verdicts("v.jsonl", &lines), Err(expected.to_owned()));
        }
        for (line, reason) in [
            (
                "{\"id\": \"a\", \"solved\": \"yes\"}",
                "invalid type: string \"yes\"",
            ),
            ("{\"id\": \"a\"}", "missing field `solved`"),
            ("{\"id\": \"a\", \"solve\": true}", "unknown field `solve`"),
        ] {
            let error = verdicts("v.jsonl", line).expect_err("refused");
            assert!(
                error.starts_with(&format!("v.jsonl:1: {reason}")),
                "{error}"
            );
        }
    }
}
