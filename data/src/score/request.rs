//! One parsed line as an operation sees it, and the list of operations.
//!
//! Fields are taken by name through [`Fields`], which knows its own path, so that every
//! complaint says exactly which field of which row to mend.

use serde_json::{Map, Value};

use super::encoders::Encoders;
use super::error::LineError;
use super::slot_operations;
use crate::benchmarks::slot::SentenceEncoder;

/// One operation of the interface.
#[derive(Debug)]
pub struct Operation {
    /// Name on the line, such as `slot.content`.
    pub name: &'static str,
    /// The fields of `input`, and options that change the value.
    pub fields: &'static [InputField],
    /// What the value is, in one line.
    pub definition: &'static str,
    pub(super) run: fn(&Request<'_>) -> Result<Value, LineError>,
}

/// One field that an operation reads.
#[derive(Debug, Clone, Copy)]
pub struct InputField {
    /// Its name in `input`, or `options.` and its name there.
    pub name: &'static str,
    /// What it holds, in a few words.
    pub holds: &'static str,
}

/// Every table of operations; a further suite adds a line.
static TABLES: [&[Operation]; 1] = [slot_operations::TABLE];

/// Lists every operation, suite by suite.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    TABLES.iter().copied().flatten()
}

/// The input and options of one line.
#[derive(Debug)]
pub(super) struct Request<'l> {
    pub(super) input: Fields<'l>,
    options: Option<Fields<'l>>,
    encoders: &'l Encoders,
}

impl<'l> Request<'l> {
    /// Takes the parts of a parsed line.
    ///
    /// # Errors
    ///
    /// - `op` or `input` is missing, or `op`, `input` or `options` has the wrong type
    /// - no operation has the name
    pub(super) fn parse(
        line: &'l Map<String, Value>,
        encoders: &'l Encoders,
    ) -> Result<(&'static Operation, Self), LineError> {
        let line = Fields {
            path: String::new(),
            fields: line,
        };
        let op = line.text("op")?;
        let operation = operations()
            .find(|operation| operation.name == op)
            .ok_or_else(|| LineError::UnknownOp { op: op.to_owned() })?;
        let options = match line.fields.get("options") {
            None | Some(Value::Null) => None,
            Some(_) => Some(line.object("options")?),
        };
        Ok((
            operation,
            Self {
                input: line.object("input")?,
                options,
                encoders,
            },
        ))
    }

    /// A choice that may stand in `options` or, as some writers put it, in `input`.
    pub(super) fn choice(&self, name: &str) -> Result<Option<&'l str>, LineError> {
        let places = [Some(&self.input), self.options.as_ref()];
        let place = places
            .into_iter()
            .flatten()
            .find(|place| place.fields.contains_key(name));
        place.map(|fields| fields.text(name)).transpose()
    }

    /// The encoder that `options.encoder` names; MiniLM if it names none.
    pub(super) fn encoder(&self) -> Result<&'l dyn SentenceEncoder, LineError> {
        let named = self
            .options
            .as_ref()
            .filter(|options| options.fields.contains_key("encoder"));
        let name = named.map(|options| options.text("encoder")).transpose()?;
        self.encoders.named(name.unwrap_or("minilm"))
    }
}

/// The fields of one JSON object on the line, with the path to it.
#[derive(Debug, Clone)]
pub(super) struct Fields<'l> {
    path: String,
    fields: &'l Map<String, Value>,
}

impl<'l> Fields<'l> {
    /// The value of a field, whatever it is.
    pub(super) fn value(&self, name: &str) -> Result<&'l Value, LineError> {
        let missing = || LineError::MissingField {
            field: self.path_of(name),
        };
        self.fields.get(name).ok_or_else(missing)
    }

    /// The value of a field that must be a string.
    pub(super) fn text(&self, name: &str) -> Result<&'l str, LineError> {
        let text = self.value(name)?.as_str();
        text.ok_or_else(|| self.wrong_type(name, "a string"))
    }

    /// The objects of a field that must be an array of objects.
    pub(super) fn objects(&self, name: &str) -> Result<Vec<Fields<'l>>, LineError> {
        let expected = "an array of objects";
        let items = self.value(name)?.as_array();
        let items = items.ok_or_else(|| self.wrong_type(name, expected))?;
        let field_of = |(item_idx, item): (usize, &'l Value)| {
            let fields = item
                .as_object()
                .ok_or_else(|| self.wrong_type(name, expected))?;
            Ok(Fields {
                path: format!("{}[{item_idx}].", self.path_of(name)),
                fields,
            })
        };
        items.iter().enumerate().map(field_of).collect()
    }

    fn object(&self, name: &str) -> Result<Fields<'l>, LineError> {
        let fields = self.value(name)?.as_object();
        let fields = fields.ok_or_else(|| self.wrong_type(name, "an object"))?;
        Ok(Fields {
            path: format!("{}.", self.path_of(name)),
            fields,
        })
    }

    pub(super) fn wrong_type(&self, name: &str, expected: &'static str) -> LineError {
        LineError::WrongType {
            field: self.path_of(name),
            expected,
        }
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }
}
