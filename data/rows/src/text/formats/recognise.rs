//! Which format a row has, by the fields that it has.
//!
//! Names of files say nothing, and nothing is guessed: a row with the fields of no format, or of
//! several, is an error that tells what was looked for.

use std::path::Path;

use serde_json::{Map, Value};

use super::DataFormat;
use super::error::FormatError;
use crate::json::{self, JsonError};
use crate::lines::{Records, open_rows};
use crate::read_error::ReadError;
use crate::text::columns::Columns;
use crate::text::conversation::wrong_type;
use crate::text::error::DataError;
use crate::tools::{TextLines, did_you_mean};

/// What a row was recognised as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecognisedFormat {
    /// A row that is rendered as it is.
    Rows(DataFormat),
    /// A trajectory, which becomes several rows.
    Trajectories,
}

/// The format of a file, and the row that tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognised {
    /// The format.
    pub format: RecognisedFormat,
    /// The row as `file:line`.
    pub place: String,
}

/// A format by its fields.
struct Shape {
    format: RecognisedFormat,
    needed: &'static [&'static str],
}

const fn rows(format: DataFormat, needed: &'static [&'static str]) -> Shape {
    Shape {
        format: RecognisedFormat::Rows(format),
        needed,
    }
}

const SHAPES: [Shape; 7] = [
    rows(DataFormat::Messages, &["messages"]),
    rows(DataFormat::PromptCompletion, &["prompt", "completion"]),
    rows(DataFormat::Slot, &["input_text", "json_schema", "gold"]),
    rows(DataFormat::ShareGpt, &["conversations"]),
    rows(DataFormat::Alpaca, &["instruction", "output"]),
    rows(DataFormat::Xlam, &["query", "tools", "answers"]),
    Shape {
        format: RecognisedFormat::Trajectories,
        needed: &["query", "calls"],
    },
];

impl RecognisedFormat {
    /// The name in configs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rows(format) => format.as_str(),
            Self::Trajectories => "goat",
        }
    }
}

/// Recognises a file by its first row, gzip-compressed or not.
///
/// # Errors
///
/// Each names the file:
///
/// - it cannot be read, holds no rows, or its first line is not one JSON object
/// - the first row has the fields of no format, or of several
pub fn recognise_file(path: &Path) -> Result<Recognised, DataError> {
    recognise_records(open_rows(path)?, &Columns::default())
}

/// Recognises a file that is open by its first row, whose fields stand under the names of `columns`.
///
/// # Errors
///
/// As [`recognise_file`].
pub fn recognise_records(
    records: Box<dyn Records>,
    columns: &Columns,
) -> Result<Recognised, DataError> {
    let path = records.path().to_owned();
    let mut lines = TextLines::of_records(records);
    let empty = || DataError::EmptyFile { path };
    let (place, line) = lines.next().ok_or_else(empty)??;
    let read = || -> Result<RecognisedFormat, DataError> {
        match json::parse_unique(&line) {
            Ok(Value::Object(fields)) => Ok(recognise(&columns.renamed(fields))?),
            Ok(other) => Err(wrong_type("the line", &other, "a JSON object")),
            Err(JsonError::DuplicateKey(twice)) => Err(ReadError::from(twice).into()),
            Err(error) => Err(DataError::NotJson { error }),
        }
    };
    match read() {
        Ok(format) => Ok(Recognised { format, place }),
        Err(error) => Err(error.at(&place)),
    }
}

/// Refuses pictures, sounds and films, which no text stands for.
pub(in crate::text) fn refuse_media(fields: &Map<String, Value>) -> Result<(), FormatError> {
    const MEDIA: [&str; 6] = ["images", "image", "videos", "video", "audios", "audio"];
    let is_there = |name: &&str| match fields.get(*name) {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    match MEDIA.into_iter().find(is_there) {
        None => Ok(()),
        Some(field) => Err(FormatError::Media { field }),
    }
}

/// Recognises a row by its fields; one that is null is not there.
///
/// # Errors
///
/// - the row has the fields of no format, or of several
pub fn recognise(fields: &Map<String, Value>) -> Result<RecognisedFormat, FormatError> {
    let has = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
    let found: Vec<&Shape> = SHAPES
        .iter()
        .filter(|shape| shape.needed.iter().all(|name| has(name)))
        .collect();
    match found.as_slice() {
        [] => Err(unknown(fields, has)),
        [one] => Ok(match one.format {
            // TRL reads the words of ShareGPT under this name, too.
            RecognisedFormat::Rows(DataFormat::Messages) if has_from(fields) => {
                RecognisedFormat::Rows(DataFormat::ShareGpt)
            }
            format => format,
        }),
        several => {
            let formats = several
                .iter()
                .map(|shape| format!("{} ({})", shape.format.as_str(), listed(shape.needed)));
            Err(FormatError::Several {
                formats: formats.collect::<Vec<_>>().join(" and of "),
            })
        }
    }
}

fn has_from(fields: &Map<String, Value>) -> bool {
    let first = fields.get("messages").and_then(|messages| messages.get(0));
    first.is_some_and(|first| first.get("from").is_some() && first.get("role").is_none())
}

fn unknown(fields: &Map<String, Value>, has: impl Fn(&str) -> bool) -> FormatError {
    const MAX_NAMES: usize = 20;
    let known = |name: &str| SHAPES.iter().any(|shape| shape.needed.contains(&name));
    let others: Vec<&str> = fields
        .keys()
        .map(String::as_str)
        .filter(|name| !known(name))
        .collect();
    let lines = SHAPES.iter().map(|shape| {
        let missing: Vec<String> = shape
            .needed
            .iter()
            .filter(|name| !has(name))
            .map(|name| format!("{name}{}", did_you_mean(name, others.iter().copied())))
            .collect();
        format!(
            "  {}: needs {}; lacks {}",
            shape.format.as_str(),
            listed(shape.needed),
            missing.join(", ")
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

/// The names as a part of a sentence.
fn listed(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.join(""),
    }
}
