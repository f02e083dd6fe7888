//! Makes rows of issues that follow a form.

use std::path::Path;

use serde_json::{Map, Value};
use tooltune_rows::text::SlotRow;
use tooltune_rows::tools::{JsonLines, read_json};

use super::gold::row_of;
use super::issue_form::IssueForm;
use super::{ImportError, Imported};

/// The key of the issue's title in the gold.
const TITLE: &str = "issue_title";

/// Imports issues as GitHub's interface gives them, `{title, body, ...}`, whose text follows a form.
///
/// `issues` is a JSON array, or JSON Lines if its name ends in `.jsonl` or `.jsonl.gz`. The text of
/// a row is `## title`, an empty line, and the body; the gold holds the title and the answers by
/// the labels of the form: texts, arrays of choices, and an object of booleans for checkboxes.
///
/// Pull requests, issues that do not follow the form, and those without any answer are dropped;
/// fields without an answer are counted.
///
/// # Errors
///
/// - a file cannot be read, the form is none, or the issues are no JSON objects with a title
///
/// # Source
///
/// SLOT, appendix D.1, where a model writes schema and gold of such issues.
pub fn import_issues(form: &Path, issues: &Path) -> Result<Imported, ImportError> {
    let form = IssueForm::read(form)?;
    let mut imported = Imported::default();
    for (place, issue) in placed_issues(issues)? {
        let bad = |reason: &str| ImportError::Format {
            place: place.clone(),
            reason: reason.to_owned(),
            expected: "issues as GitHub's interface gives them: objects with title and body",
        };
        let fields = issue.as_object().ok_or_else(|| bad("it is no object"))?;
        let title = fields.get("title").and_then(Value::as_str);
        let title = title.ok_or_else(|| bad("it has no title"))?;
        let outcome = issue_row(&form, place.clone(), title, fields, &mut imported);
        imported.record(outcome);
    }
    Ok(imported)
}

fn placed_issues(path: &Path) -> Result<Vec<(String, Value)>, ImportError> {
    let file = path.display().to_string();
    if file.ends_with(".jsonl") || file.ends_with(".jsonl.gz") {
        let lines: Result<_, _> = JsonLines::open(path)?.collect();
        return Ok(lines?);
    }
    match read_json(path)? {
        Value::Array(issues) => {
            let place = |(issue_idx, issue)| (format!("{file}[{issue_idx}]"), issue);
            Ok(issues.into_iter().enumerate().map(place).collect())
        }
        single => Ok(vec![(file, single)]),
    }
}

fn issue_row(
    form: &IssueForm,
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
    let (answers, n_unanswered) = form
        .answers(&body)
        .ok_or("the text does not follow the form")?;
    if answers.is_empty() {
        return Err("no field of the form is answered");
    }
    for _ in 0..n_unanswered {
        imported.leave_out("a field without an answer");
    }
    let mut gold = Map::new();
    gold.insert(TITLE.to_owned(), title.into());
    for (key, answer) in answers {
        // A field may be called as the title is.
        let key = if gold.contains_key(&key) {
            format!("{key}_2")
        } else {
            key
        };
        gold.insert(key, answer);
    }
    Ok(row_of(id, &format!("## {title}\n\n{body}"), gold))
}
