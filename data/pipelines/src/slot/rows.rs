//! What the stages hand on, and what they are given.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::text::{DataFormat, all_rows, read_rows};
use tooltune_rows::tools::{JsonLines, ToolsError, read_json};
use tooltune_synth::slot::{SlotSynthOptions, Split, generate};

use super::dimensions::Target;
use crate::error::PipelineError;
use crate::report::Dropped;

/// A pair as a model wrote it: nothing of it is checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WrittenPair {
    pub(super) id: String,
    pub(super) input_text: Value,
    pub(super) json_schema: Value,
    pub(super) gold: Value,
    /// What it was to be like; absent for given texts.
    #[serde(flatten)]
    pub(super) target: Option<Target>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) temperature: Option<f64>,
}

/// A row whose form is right.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckedRow {
    /// Its name.
    pub id: String,
    /// The text that holds the facts.
    pub input_text: String,
    /// The schema of the gold.
    pub json_schema: Value,
    /// The right answer.
    pub gold: Value,
    /// What it was to be like; absent for given texts.
    #[serde(flatten)]
    pub target: Option<Target>,
    /// What it was written at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

/// A row that shows a model what pairs look like.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Demonstration {
    pub(super) input_text: String,
    /// The row as a line of JSON.
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

/// Rows of our own making, so that a pipeline runs without any file.
const N_OWN_DEMONSTRATIONS: usize = 200;

/// The rows of a file, or else of our own making.
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
    let rows = all_rows(read_rows(file, DataFormat::Slot)?)?;
    let shown: Vec<Demonstration> = rows
        .into_iter()
        .filter_map(|row| row.slot)
        .map(|row| Demonstration::new(row.input_text, &row.json_schema, &row.gold))
        .collect();
    if shown.is_empty() {
        let file = file.display();
        let reason = format!("--demonstrations {file}: there is no row in it; give SLOT rows");
        return Err(PipelineError::Usage(reason));
    }
    Ok(shown)
}

/// What a file of texts may hold.
const TEXTS: &str = "a text, an object with input_text or text, a table of ToTTo with \
                     sentence_annotations, or a GitHub issue with title and body";

/// A text that is given, or why it is passed over.
pub(super) type GivenText = Result<String, Dropped>;

/// The texts of a file: JSON Lines, or a JSON array, of what [`TEXTS`] says. Of a table of ToTTo the
/// first final sentence is the text, of an issue `## title` and its body.
///
/// # Errors
///
/// The file cannot be read, or an entry is none of these.
pub(super) fn given_texts(file: &Path) -> Result<Vec<(String, GivenText)>, PipelineError> {
    let entries = entries(file)?;
    if entries.is_empty() {
        let what = "texts";
        return Err(ToolsError::Empty { what }
            .at(file.display().to_string())
            .into());
    }
    let texts = entries
        .into_iter()
        .enumerate()
        .map(|(idx, (place, entry))| {
            let id = format!("text-{:06}", idx + 1);
            match text_of(&entry) {
                Some(Ok(text)) => Ok((id, Ok(text))),
                Some(Err(reason)) => {
                    let dropped = Dropped::new(&id, reason, place);
                    Ok((id, Err(dropped)))
                }
                None => Err(PipelineError::Usage(format!(
                    "{place}: the entry holds no text; give {TEXTS}"
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
    let place = |(idx, entry)| (format!("{name}[{idx}]"), entry);
    Ok(entries.into_iter().enumerate().map(place).collect())
}

/// The text of an entry, or why it has none; nothing where the entry is of no known kind.
fn text_of(entry: &Value) -> Option<Result<String, &'static str>> {
    let given = |text: &str| match text.trim() {
        "" => Err("the text is empty"),
        text => Ok(text.to_owned()),
    };
    let text_at = |name: &str| entry.get(name).and_then(Value::as_str);
    if let Some(text) = entry.as_str().or(text_at("input_text")).or(text_at("text")) {
        return Some(given(text));
    }
    if let Some(annotations) = entry.get("sentence_annotations") {
        let sentence = annotations.pointer("/0/final_sentence");
        let sentence = sentence.and_then(Value::as_str);
        return Some(sentence.map_or(Err("the table has no sentence"), given));
    }
    let title = text_at("title")?;
    if entry
        .get("pull_request")
        .is_some_and(|request| !request.is_null())
    {
        return Some(Err("a pull request and no issue"));
    }
    let body = text_at("body").unwrap_or_default();
    Some(given(&format!("## {title}\n\n{body}")))
}
