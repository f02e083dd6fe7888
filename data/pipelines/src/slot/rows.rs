//! The input of the pipeline, and data passed between stages.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tooltune_apis::{JsonLines, ToolsError, read_json};
use tooltune_json::faults::collect_rows;
use tooltune_json::{Style, dumps};
use tooltune_rows::text::{DataFormat, read_rows};
use tooltune_synth::slot::{SlotSynthOptions, Split, generate};

use super::dimensions::Target;
use crate::error::PipelineError;
use crate::report::Dropped;

/// A pair as a model wrote it, unchecked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WrittenPair {
    pub(super) id: String,
    pub(super) input_text: Value,
    pub(super) json_schema: Value,
    pub(super) gold: Value,
    /// Requested properties; `None` for user-provided texts.
    #[serde(flatten)]
    pub(super) target: Option<Target>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) temperature: Option<f64>,
}

/// A well-formed row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckedRow {
    /// Id of the row.
    pub id: String,
    /// The text with the facts.
    pub input_text: String,
    /// The schema of the gold.
    pub json_schema: Value,
    /// The gold value.
    pub gold: Value,
    /// Requested properties; `None` for user-provided texts.
    #[serde(flatten)]
    pub target: Option<Target>,
    /// Temperature at which it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

/// A row that shows a model the format of pairs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Demonstration {
    pub(super) input_text: String,
    /// The row as a JSON line, as shown in prompts.
    pub(super) shown: String,
}

impl Demonstration {
    fn new(input_text: String, json_schema: &Value, gold: &Value) -> Self {
        let row = json!({"input_text": input_text, "json_schema": json_schema, "gold": gold});
        Self {
            shown: dumps(&row, Style::Python),
            input_text,
        }
    }
}

/// Number of built-in rows, so that a pipeline needs no file.
const N_OWN_DEMONSTRATIONS: usize = 200;

/// The rows of a file, or the built-in rows.
pub(super) fn demonstrations(file: Option<&Path>) -> Result<Vec<Demonstration>, PipelineError> {
    let Some(file) = file else {
        let rows = generate(&SlotSynthOptions {
            rows: N_OWN_DEMONSTRATIONS,
            seed: 0,
            split: Split::Train,
        });
        return Ok(rows
            .map(|row| Demonstration::new(row.input_text, &row.json_schema, &row.gold))
            .collect());
    };
    let rows = collect_rows(read_rows(file, DataFormat::Slot)?)?;
    let demonstrations: Vec<Demonstration> = rows
        .into_iter()
        .filter_map(|row| row.slot)
        .map(|row| Demonstration::new(row.input_text, &row.json_schema, &row.gold))
        .collect();
    if demonstrations.is_empty() {
        let file = file.display();
        let reason = format!("--demonstrations {file}: the file has no rows; provide SLOT rows");
        return Err(PipelineError::Usage(reason));
    }
    Ok(demonstrations)
}

/// The entries that a text file may contain.
const TEXTS: &str = "a text, an object with input_text or text, a table of ToTTo with \
                     sentence_annotations, or a GitHub issue with title and body";

/// A user-provided text, or why it is skipped.
pub(super) type UserText = Result<String, Dropped>;

/// The texts of a JSON Lines file or JSON array with entries as in [`TEXTS`]. The text of a ToTTo
/// table is its first final sentence; the text of an issue is `## title` and its body.
///
/// # Errors
///
/// The file cannot be read, or contains another kind of entry.
pub(super) fn read_user_texts(file: &Path) -> Result<Vec<(String, UserText)>, PipelineError> {
    let entries = entries(file)?;
    if entries.is_empty() {
        let kind = "texts";
        return Err(ToolsError::Empty { what: kind }
            .at(file.display().to_string())
            .into());
    }
    let texts = entries
        .into_iter()
        .enumerate()
        .map(|(idx, (location, entry))| {
            let id = format!("text-{:06}", idx + 1);
            match entry_text(&entry) {
                Some(Ok(text)) => Ok((id, Ok(text))),
                Some(Err(reason)) => {
                    let dropped = Dropped::new(&id, reason, location);
                    Ok((id, Err(dropped)))
                }
                None => Err(PipelineError::Usage(format!(
                    "{location}: the entry has no text; provide {TEXTS}"
                ))),
            }
        });
    texts.collect()
}

fn entries(file: &Path) -> Result<Vec<(String, Value)>, ToolsError> {
    let name = file.display().to_string();
    if !name.ends_with(".json") {
        return JsonLines::open(file)?.collect();
    }
    let entries = match read_json(file)? {
        Value::Array(entries) => entries,
        single => vec![single],
    };
    let locate = |(idx, entry)| (format!("{name}[{idx}]"), entry);
    Ok(entries.into_iter().enumerate().map(locate).collect())
}

/// The text of an entry, or why it has none; `None` for an unknown kind of entry.
fn entry_text(entry: &Value) -> Option<Result<String, &'static str>> {
    let as_text = |text: &str| match text.trim() {
        "" => Err("the text is empty"),
        text => Ok(text.to_owned()),
    };
    let text_at = |name: &str| entry.get(name).and_then(Value::as_str);
    if let Some(text) = entry.as_str().or(text_at("input_text")).or(text_at("text")) {
        return Some(as_text(text));
    }
    if let Some(annotations) = entry.get("sentence_annotations") {
        let sentence = annotations.pointer("/0/final_sentence");
        let sentence = sentence.and_then(Value::as_str);
        return Some(sentence.map_or(Err("the table has no sentence"), as_text));
    }
    let title = text_at("title")?;
    if entry
        .get("pull_request")
        .is_some_and(|request| !request.is_null())
    {
        return Some(Err("a pull request, not an issue"));
    }
    let body = text_at("body").unwrap_or_default();
    Some(as_text(&format!("## {title}\n\n{body}")))
}
