//! GitHub issue forms: the YAML file of a form, and the answers in the text of an issue.
//!
//! GitHub writes a filled-in form as Markdown: `### label` for each field, followed by the answer.
//! A heading that is not a field belongs to the answer above it, because people also write
//! headings.

use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tooltune_apis::read_text;
use tooltune_json::yaml;

use super::error::ImportError;

const FORMAT: &str = "a GitHub issue form: body, a list of fields with type and attributes.label";

/// GitHub's placeholder for an empty answer.
const NO_RESPONSE: &str = "_No response_";

/// A form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueForm {
    /// The fields to answer, in order.
    pub fields: Vec<FormField>,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormField {
    /// The heading.
    pub label: String,
    /// The label as a key: `Expected behavior` becomes `expected_behavior`.
    pub key: String,
    /// The kind of answer.
    pub kind: FormFieldKind,
}

/// The kind of answer of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormFieldKind {
    /// Text, or a single choice.
    Text,
    /// Several choices.
    Choices,
    /// Checkboxes, each with its label and key.
    Boxes(Vec<(String, String)>),
}

#[derive(Deserialize)]
struct RawForm {
    body: Vec<RawField>,
}

#[derive(Deserialize)]
struct RawField {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    attributes: RawAttributes,
}

#[derive(Default, Deserialize)]
struct RawAttributes {
    #[serde(default, deserialize_with = "scalar_text")]
    label: Option<String>,
    #[serde(default)]
    multiple: bool,
    #[serde(default)]
    options: Vec<RawOption>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawOption {
    Box { label: String },
    Choice(serde::de::IgnoredAny),
}

/// Deserializes a label, which may be unquoted even if YAML parses it as a number.
fn scalar_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    })
}

impl IssueForm {
    /// Reads a form.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not YAML or not an issue form
    /// - a field has an unknown type, or no label
    pub fn read(path: &Path) -> Result<Self, ImportError> {
        let text = read_text(path)?;
        Self::parse(&text).map_err(|reason| ImportError::Format {
            place: path.display().to_string(),
            reason,
            expected: FORMAT,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let raw_form = yaml::parse(text).map_err(|error| error.to_string())?;
        let raw_form: RawForm =
            serde_json::from_value(raw_form).map_err(|error| error.to_string())?;
        let raw_fields = raw_form
            .body
            .into_iter()
            .filter(|field| field.kind != "markdown");
        let mut keys = Keys::default();
        let fields: Vec<FormField> = raw_fields
            .map(|field| form_field(field, &mut keys))
            .collect::<Result<_, _>>()?;
        if fields.is_empty() {
            Err("the form has no fields to answer".to_owned())
        } else {
            Ok(Self { fields })
        }
    }

    /// The answers in the text of an issue by key, in form order, and the number of unanswered
    /// fields. `None` if the text does not follow the form.
    pub(super) fn answers(&self, body: &str) -> Option<(Map<String, Value>, usize)> {
        let mut sections: Vec<Option<String>> = vec![None; self.fields.len()];
        let mut current: Option<usize> = None;
        for line in body.lines() {
            let heading = line.strip_prefix("### ").map(str::trim);
            let started_field = self.fields.iter().enumerate().find(|(field_idx, field)| {
                heading == Some(&field.label) && sections.get(*field_idx) == Some(&None)
            });
            if let Some((field_idx, _)) = started_field {
                current = Some(field_idx);
                *sections.get_mut(field_idx)? = Some(String::new());
            } else if let Some(field_idx) = current {
                let section = sections.get_mut(field_idx)?.as_mut()?;
                section.push_str(line);
                section.push('\n');
            } else if !line.trim().is_empty() {
                return None;
            }
        }
        current?;
        let mut field_answers = Map::new();
        for (field, section) in self.fields.iter().zip(sections) {
            let text = section.as_deref().map_or("", str::trim);
            if let Some(answer) = field.kind.field_answer(text) {
                field_answers.insert(field.key.clone(), answer);
            }
        }
        let n_unanswered = self.fields.len() - field_answers.len();
        Some((field_answers, n_unanswered))
    }
}

fn form_field(field: RawField, keys: &mut Keys) -> Result<FormField, String> {
    let RawAttributes {
        label,
        multiple,
        options,
    } = field.attributes;
    let label = label.unwrap_or_default().trim().to_owned();
    if label.is_empty() {
        return Err(format!("a field of type {} has no label", field.kind));
    }
    let kind = match field.kind.as_str() {
        "input" | "textarea" => FormFieldKind::Text,
        "dropdown" if multiple => FormFieldKind::Choices,
        "dropdown" => FormFieldKind::Text,
        "checkboxes" => {
            let mut keys = Keys::default();
            let labels = options.into_iter().filter_map(|option| match option {
                RawOption::Box { label } => Some(label.trim().to_owned()),
                RawOption::Choice(_) => None,
            });
            let boxes: Vec<_> = labels
                .map(|label| {
                    let key = keys.key(&label);
                    (label, key)
                })
                .collect();
            if boxes.is_empty() {
                return Err(format!("the checkboxes {label:?} have no options"));
            }
            FormFieldKind::Boxes(boxes)
        }
        other => return Err(format!("unknown field type {other:?}")),
    };
    Ok(FormField {
        key: keys.key(&label),
        label,
        kind,
    })
}

impl FormFieldKind {
    /// The answer in the text of a section; `None` if it is empty.
    fn field_answer(&self, text: &str) -> Option<Value> {
        if text.is_empty() || text == NO_RESPONSE {
            return None;
        }
        match self {
            Self::Text => Some(text.into()),
            Self::Choices => Some(text.split(", ").collect()),
            Self::Boxes(boxes) => {
                let mut ticked = Map::new();
                for (label, key) in boxes {
                    let tick_state = text.lines().find_map(|line| tick_state(line, label));
                    ticked.insert(key.clone(), tick_state?.into());
                }
                Some(ticked.into())
            }
        }
    }
}

/// Whether the checkbox is ticked; `None` if the line is not the checkbox with this label.
fn tick_state(line: &str, label: &str) -> Option<bool> {
    let line = line.trim().strip_prefix(['-', '*'])?.trim_start();
    let (is_ticked, after_box) = match line.strip_prefix("[ ]") {
        Some(after_box) => (false, after_box),
        None => {
            let after_box = line.strip_prefix("[x]");
            (true, after_box.or_else(|| line.strip_prefix("[X]"))?)
        }
    };
    (after_box.trim() == label).then_some(is_ticked)
}

/// Converts labels to unique keys.
#[derive(Default)]
struct Keys {
    known: Vec<String>,
}

impl Keys {
    /// Letters and digits in lower case, joined by `_`; text in parentheses is omitted.
    fn key(&mut self, label: &str) -> String {
        let before_bracket = label.split_once('(').map_or(label, |(before, _)| before);
        let lower = before_bracket.to_lowercase();
        let words: Vec<&str> = lower
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        let natural = if words.is_empty() {
            "field".to_owned()
        } else {
            words.join("_")
        };
        let mut key = natural.clone();
        let mut number = 2;
        while self.known.contains(&key) {
            key = format!("{natural}_{number}");
            number += 1;
        }
        self.known.push(key.clone());
        key
    }
}
