//! Recognises the format of a row by its fields.
//!
//! File names are ignored and nothing is guessed: a row that matches no format, or several, is an
//! error that lists the expected fields.

use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::{TextLines, did_you_mean};
use tooltune_json as json;
use tooltune_json::lines::{Records, open_rows};
use tooltune_json::{JsonError, ReadError};
use tooltune_template::conversation::wrong_type;

use super::DataFormat;
use super::error::FormatError;
use crate::text::columns::Columns;
use crate::text::error::DataError;

/// Recognised format of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecognisedFormat {
    /// A row that is rendered directly.
    Rows(DataFormat),
    /// A trajectory, which is converted to several rows.
    Trajectories,
}

/// The format of a file and the row that determined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecognisedFile {
    /// The format of the first row.
    pub format: RecognisedFormat,
    /// The row as `file:line`.
    pub place: String,
}

/// A format with its fields.
struct FormatFields {
    format: RecognisedFormat,
    needed: &'static [&'static str],
}

const fn rows(format: DataFormat, needed: &'static [&'static str]) -> FormatFields {
    FormatFields {
        format: RecognisedFormat::Rows(format),
        needed,
    }
}

const FORMATS: [FormatFields; 7] = [
    rows(DataFormat::Messages, &["messages"]),
    rows(DataFormat::PromptCompletion, &["prompt", "completion"]),
    rows(DataFormat::Slot, &["input_text", "json_schema", "gold"]),
    rows(DataFormat::ShareGpt, &["conversations"]),
    rows(DataFormat::Alpaca, &["instruction", "output"]),
    rows(DataFormat::Xlam, &["query", "tools", "answers"]),
    FormatFields {
        format: RecognisedFormat::Trajectories,
        needed: &["query", "calls"],
    },
];

impl RecognisedFormat {
    /// The name of the format in configs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rows(format) => format.as_str(),
            Self::Trajectories => "goat",
        }
    }
}

/// Recognises a file, optionally gzip-compressed, by its first row.
///
/// # Errors
///
/// Every error names the file:
///
/// - it cannot be read, has no rows, or its first line is not one JSON object
/// - the first row matches no format, or several
pub fn recognise_file(path: &Path) -> Result<RecognisedFile, DataError> {
    recognise_records(open_rows(path)?, &Columns::default())
}

/// Recognises an open file by its first row; `columns` maps column names to fields.
///
/// # Errors
///
/// As [`recognise_file`].
pub fn recognise_records(
    records: Box<dyn Records>,
    columns: &Columns,
) -> Result<RecognisedFile, DataError> {
    let path = records.path().to_owned();
    let mut lines = TextLines::from_records(records);
    let empty = || DataError::EmptyFile { path };
    let (place, line) = lines.next().ok_or_else(empty)??;
    let recognise_record = || -> Result<RecognisedFormat, DataError> {
        match json::parse_unique(&line) {
            Ok(Value::Object(fields)) => Ok(recognise(&columns.rename(fields))?),
            Ok(other) => Err(wrong_type("the line", &other, "a JSON object").into()),
            Err(JsonError::DuplicateKey(twice)) => Err(ReadError::from(twice).into()),
            Err(error) => Err(DataError::NotJson { error }),
        }
    };
    match recognise_record() {
        Ok(format) => Ok(RecognisedFile { format, place }),
        Err(error) => Err(error.at(&place)),
    }
}

/// Rejects images, audio and video, which cannot be converted to text.
pub(in crate::text) fn refuse_media(fields: &Map<String, Value>) -> Result<(), FormatError> {
    const MEDIA: [&str; 6] = ["images", "image", "videos", "video", "audios", "audio"];
    let has_media = |name: &&str| match fields.get(*name) {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    match MEDIA.into_iter().find(has_media) {
        None => Ok(()),
        Some(field) => Err(FormatError::Media { field }),
    }
}

/// Recognises a row by its fields; null fields are treated as absent.
///
/// # Errors
///
/// - the row matches no format, or several
pub fn recognise(fields: &Map<String, Value>) -> Result<RecognisedFormat, FormatError> {
    let has = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
    let matching: Vec<&FormatFields> = FORMATS
        .iter()
        .filter(|shape| shape.needed.iter().all(|name| has(name)))
        .collect();
    match matching.as_slice() {
        [] => Err(unknown(fields, has)),
        [one] => Ok(match one.format {
            // TRL also reads ShareGPT items under this name.
            RecognisedFormat::Rows(DataFormat::Messages) if has_from_key(fields) => {
                RecognisedFormat::Rows(DataFormat::ShareGpt)
            }
            format => format,
        }),
        several => {
            let formats = several
                .iter()
                .map(|shape| format!("{} ({})", shape.format.as_str(), join_names(shape.needed)));
            Err(FormatError::Several {
                formats: formats.collect::<Vec<_>>().join(" and "),
            })
        }
    }
}

fn has_from_key(fields: &Map<String, Value>) -> bool {
    let first = fields.get("messages").and_then(|messages| messages.get(0));
    first.is_some_and(|first| first.get("from").is_some() && first.get("role").is_none())
}

fn unknown(fields: &Map<String, Value>, has: impl Fn(&str) -> bool) -> FormatError {
    const MAX_NAMES: usize = 20;
    let is_needed = |name: &str| FORMATS.iter().any(|shape| shape.needed.contains(&name));
    let others: Vec<&str> = fields
        .keys()
        .map(String::as_str)
        .filter(|name| !is_needed(name))
        .collect();
    let lines = FORMATS.iter().map(|shape| {
        let missing_fields: Vec<String> = shape
            .needed
            .iter()
            .filter(|name| !has(name))
            .map(|name| format!("{name}{}", did_you_mean(name, others.iter().copied())))
            .collect();
        format!(
            "  {}: needs {}; lacks {}",
            shape.format.as_str(),
            join_names(shape.needed),
            missing_fields.join(", ")
        )
    });
    let mut names: Vec<String> = fields
        .keys()
        .take(MAX_NAMES)
        .map(|name| format!("{name:?}"))
        .collect();
    if fields.len() > MAX_NAMES {
        names.push("...".to_owned());
    }
    FormatError::Unknown {
        has: if names.is_empty() {
            "no fields".to_owned()
        } else {
            names.join(", ")
        },
        looked_for: lines.collect::<Vec<_>>().join("\n"),
    }
}

/// Joins the names for use in a sentence.
fn join_names(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.join(""),
    }
}
