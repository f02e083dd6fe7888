//! GitHub's issue forms: a form in YAML, and the answers that an issue's text holds.
//!
//! GitHub writes a filled form as Markdown: `### label` for each field, and what was answered
//! below it. A heading that no field has belongs to the answer above it, since people write
//! headings, too.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tooltune_rows::tools::read_text;

use super::error::ImportError;

const FORMAT: &str = "a GitHub issue form: body, a list of fields with type and attributes.label";

/// What GitHub writes where nothing was answered.
const NO_RESPONSE: &str = "_No response_";

/// A form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueForm {
    /// The fields that people answer, in order.
    pub fields: Vec<FormField>,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormField {
    /// The heading.
    pub label: String,
    /// The label as a key: `Expected behavior` is `expected_behavior`.
    pub key: String,
    /// How it is answered.
    pub kind: FormFieldKind,
}

/// How a field is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormFieldKind {
    /// Text, or one choice.
    Text,
    /// Several choices.
    Choices,
    /// Boxes to tick: label and key of each.
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

impl IssueForm {
    /// Reads a form.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, is no YAML, or no issue form
    /// - a field has a type that GitHub does not have, or no label
    pub fn read(path: &Path) -> Result<Self, ImportError> {
        let text = read_text(path)?;
        Self::parse(&text).map_err(|reason| ImportError::Format {
            place: path.display().to_string(),
            reason,
            expected: FORMAT,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let form: RawForm = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let asked = form
            .body
            .into_iter()
            .filter(|field| field.kind != "markdown");
        let mut keys = Keys::default();
        let fields: Vec<FormField> = asked
            .map(|field| form_field(field, &mut keys))
            .collect::<Result<_, _>>()?;
        if fields.is_empty() {
            Err("the form asks for nothing".to_owned())
        } else {
            Ok(Self { fields })
        }
    }

    /// The answers in the text of an issue, by key, in the order of the form, and the number of
    /// fields without one; none if the text does not follow the form.
    pub(super) fn answers(&self, body: &str) -> Option<(Map<String, Value>, usize)> {
        let mut sections: Vec<Option<String>> = vec![None; self.fields.len()];
        let mut current: Option<usize> = None;
        for line in body.lines() {
            let heading = line.strip_prefix("### ").map(str::trim);
            let opened = self.fields.iter().enumerate().find(|(field_idx, field)| {
                heading == Some(&field.label) && sections.get(*field_idx) == Some(&None)
            });
            if let Some((field_idx, _)) = opened {
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
        let mut answers = Map::new();
        for (field, section) in self.fields.iter().zip(sections) {
            let text = section.as_deref().map_or("", str::trim);
            if let Some(answer) = field.kind.answer(text) {
                answers.insert(field.key.clone(), answer);
            }
        }
        let n_unanswered = self.fields.len() - answers.len();
        Some((answers, n_unanswered))
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
        other => return Err(format!("{other:?} is no type of field")),
    };
    Ok(FormField {
        key: keys.key(&label),
        label,
        kind,
    })
}

impl FormFieldKind {
    /// The answer that a section's text gives; none if nothing was answered.
    fn answer(&self, text: &str) -> Option<Value> {
        if text.is_empty() || text == NO_RESPONSE {
            return None;
        }
        match self {
            Self::Text => Some(text.into()),
            Self::Choices => Some(text.split(", ").collect()),
            Self::Boxes(boxes) => {
                let mut ticked = Map::new();
                for (label, key) in boxes {
                    let found = text.lines().find_map(|line| tick(line, label));
                    ticked.insert(key.clone(), found?.into());
                }
                Some(ticked.into())
            }
        }
    }
}

/// Whether a line is the box of this label, and whether it is ticked.
fn tick(line: &str, label: &str) -> Option<bool> {
    let line = line.trim().strip_prefix(['-', '*'])?.trim_start();
    let (is_ticked, rest) = match line.strip_prefix("[ ]") {
        Some(rest) => (false, rest),
        None => {
            let rest = line.strip_prefix("[x]");
            (true, rest.or_else(|| line.strip_prefix("[X]"))?)
        }
    };
    (rest.trim() == label).then_some(is_ticked)
}

/// Labels to keys, each key once.
#[derive(Default)]
struct Keys {
    known: Vec<String>,
}

impl Keys {
    /// Letters and digits in lower case with `_` between them; what stands in parentheses is left
    /// out.
    fn key(&mut self, label: &str) -> String {
        let outside = label.split_once('(').map_or(label, |(before, _)| before);
        let lower = outside.to_lowercase();
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
