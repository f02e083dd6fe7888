//! The fields of one JSON object, read strictly, with the place of each in every fault.

use serde_json::{Map, Value};

use super::error::{ToolsError, did_you_mean};
use crate::read_error::ReadError;

/// An object and where it stands, such as `calls[2]`; empty for the whole row.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    place: &'a str,
    needed: &'static str,
}

impl<'a> Fields<'a> {
    /// Takes `value` as an object; `needed` says what the layout is, for the faults.
    pub fn new(value: &'a Value, place: &'a str, needed: &'static str) -> Result<Self, ToolsError> {
        match value {
            Value::Object(map) => Ok(Self { map, place, needed }),
            other => {
                let place = if place.is_empty() { "the row" } else { place };
                Err(wrong_type(place, other, "an object"))
            }
        }
    }

    /// Where the field `name` stands.
    pub(crate) fn place(&self, name: &str) -> String {
        if self.place.is_empty() {
            return name.to_owned();
        }
        format!("{}.{name}", self.place)
    }

    /// Where the object itself stands.
    pub(crate) fn whole_place(&self) -> &'a str {
        self.place
    }

    /// The value of a field, null counting as absent.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The value of a field as it stands, null included.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }

    /// A field that must be a text.
    pub fn text(&self, name: &str) -> Result<&'a str, ToolsError> {
        self.optional_text(name)?.ok_or_else(|| self.missing(name))
    }

    /// A field that is a text, if it is there.
    pub fn optional_text(&self, name: &str) -> Result<Option<&'a str>, ToolsError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.place(name), other, "a text")),
        }
    }

    /// A field that is a boolean, if it is there; else false.
    pub fn flag(&self, name: &str) -> Result<bool, ToolsError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(wrong_type(&self.place(name), other, "a boolean")),
        }
    }

    /// A field that is a list, if it is there; else an empty one.
    pub(crate) fn list(&self, name: &str) -> Result<&'a [Value], ToolsError> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong_type(&self.place(name), other, "a list")),
        }
    }

    /// A field that is a list of texts, if it is there; else an empty one.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, ToolsError> {
        let place = self.place(name);
        let text = |(i, item): (usize, &Value)| match item {
            Value::String(text) => Ok(text.clone()),
            other => Err(wrong_type(&format!("{place}[{i}]"), other, "a text")),
        };
        self.list(name)?.iter().enumerate().map(text).collect()
    }

    /// A field that is an object, if it is there.
    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ToolsError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong_type(&self.place(name), other, "an object")),
        }
    }

    /// The fault that `name` is not there.
    pub fn missing(&self, name: &str) -> ToolsError {
        ReadError::missing(self.place(name), self.needed).into()
    }

    /// Refuses a field that is not among `known`.
    pub fn only(&self, known: &[&str]) -> Result<(), ToolsError> {
        match self.map.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(self.unknown(key, known)),
        }
    }

    /// Refuses a field whose name is nearly one of `known`, and lets others pass.
    pub fn no_misspelling_of(&self, known: &[&str]) -> Result<(), ToolsError> {
        const NEAR: usize = 2;
        let is_near = |key: &str| {
            known
                .iter()
                .any(|name| strsim::levenshtein(name, key) <= NEAR)
        };
        let mut others = self.map.keys().filter(|key| !known.contains(&key.as_str()));
        match others.find(|key| is_near(key)) {
            None => Ok(()),
            Some(key) => Err(self.unknown(key, known)),
        }
    }

    fn unknown(&self, key: &str, known: &[&str]) -> ToolsError {
        ToolsError::UnknownField {
            field: self.place(key),
            hint: did_you_mean(key, known.iter().copied()),
            known: known.join(", "),
        }
    }
}

/// The fault that `field` holds another type.
pub(crate) fn wrong_type(field: &str, value: &Value, expected: &'static str) -> ToolsError {
    ReadError::wrong_type(field, value, expected).into()
}

/// What a value is, in words, for messages.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
