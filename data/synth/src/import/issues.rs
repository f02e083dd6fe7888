//! Imports issues that follow a form.

use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::{JsonLines, read_json};
use tooltune_rows::text::SlotRow;

use super::gold::slot_row;
use super::issue_form::IssueForm;
use super::{ImportError, Imported};

/// The key of the issue title in the gold value.
const TITLE: &str = "issue_title";

/// Imports issues in the format of GitHub's API, `{title, body, ...}`, whose text follows a form.
///
/// `issues` is a JSON array, or JSON Lines if its name ends in `.jsonl` or `.jsonl.gz`. The text of
/// a row is `## title`, an empty line, and the body. The gold value has the title and the answers
/// by form label: strings, arrays of choices, and an object of booleans for checkboxes.
///
/// Pull requests, issues that do not follow the form, and issues without any answer are dropped;
/// unanswered fields are counted.
///
/// # Errors
///
/// A file cannot be read, the form is invalid, or an issue is not a JSON object with a title.
///
/// # Source
///
/// SLOT, appendix D.1; there, a model writes the schema and gold value of such issues.
pub fn import_issues(form_path: &Path, issues: &Path) -> Result<Imported, ImportError> {
    let form_path = IssueForm::read(form_path)?;
    let mut imported = Imported::default();
    for (location, issue) in located_issues(issues)? {
        let format_error = |reason: &str| ImportError::Format {
            place: location.clone(),
            reason: reason.to_owned(),
            expected: "issues as GitHub's API returns them: objects with title and body",
        };
        let fields = issue
            .as_object()
            .ok_or_else(|| format_error("it is not an object"))?;
        let title = fields.get("title").and_then(Value::as_str);
        let title = title.ok_or_else(|| format_error("it has no title"))?;
        let outcome = issue_row(&form_path, location.clone(), title, fields, &mut imported);
        imported.record(outcome);
    }
    Ok(imported)
}

fn located_issues(path: &Path) -> Result<Vec<(String, Value)>, ImportError> {
    let file = path.display().to_string();
    if file.ends_with(".jsonl") || file.ends_with(".jsonl.gz") {
        let lines: Result<_, _> = JsonLines::open(path)?.collect();
        return Ok(lines?);
    }
    match read_json(path)? {
        Value::Array(issues) => {
            let with_location = |(issue_idx, issue)| (format!("{file}[{issue_idx}]"), issue);
            Ok(issues.into_iter().enumerate().map(with_location).collect())
        }
        single => Ok(vec![(file, single)]),
    }
}

fn issue_row(
    issue_form: &IssueForm,
    id: String,
    title: &str,
    fields: &Map<String, Value>,
    imported: &mut Imported,
) -> Result<SlotRow, &'static str> {
    if fields.get("pull_request").is_some_and(|it| !it.is_null()) {
        return Err("it is a pull request");
    }
    let body = fields.get("body").and_then(Value::as_str);
    let body = body.unwrap_or_default().replace("\r\n", "\n");
    let (field_answers, n_unanswered) = issue_form
        .answers(&body)
        .ok_or("the text does not follow the form")?;
    if field_answers.is_empty() {
        return Err("no field of the form is answered");
    }
    for _ in 0..n_unanswered {
        imported.skip("a field without an answer");
    }
    let mut gold = Map::new();
    gold.insert(TITLE.to_owned(), title.into());
    for (key, answer) in field_answers {
        // A field may have the same name as the title.
        let key = if gold.contains_key(&key) {
            format!("{key}_2")
        } else {
            key
        };
        gold.insert(key, answer);
    }
    Ok(slot_row(id, &format!("## {title}\n\n{body}"), gold))
}
