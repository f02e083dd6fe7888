//! One parsed line as an operation sees it, and the list of operations.
//!
//! Fields are taken by name through [`Fields`], which knows its own path, so that every
//! complaint says exactly which field of which row to fix.

use std::any::Any;
use std::cell::OnceCell;

use serde_json::{Map, Value};
use tooltune_rows::json::{ExactJson, parse_exact};
use tooltune_rows::python::{PyValue, loads};

use super::error::LineError;
use super::outside::Outside;
use crate::encoder::SentenceEncoder;

/// One operation of the interface.
#[derive(Debug)]
pub struct Operation {
    /// Name on the line, such as `slot.content`.
    pub name: &'static str,
    /// The fields of `input`, and options that change the value.
    pub fields: &'static [InputField],
    /// What the value is, in one line.
    pub definition: &'static str,
    /// Computes the value.
    pub run: fn(&Request<'_>) -> Result<Value, LineError>,
}

/// One field that an operation reads.
#[derive(Debug, Clone, Copy)]
pub struct InputField {
    /// Its name in `input`, or `options.` and its name there; `input` for the whole of it.
    pub name: &'static str,
    /// What it holds, in a few words.
    pub holds: &'static str,
}

/// Name of the one field of an operation whose `input` is no object of fields but the value itself.
pub const WHOLE_INPUT: &str = "input";

/// The input and options of one line.
#[derive(Debug)]
pub struct Request<'l> {
    /// The fields of `input`, or those of the line where an operation reads `input` as one value.
    pub input: Fields<'l>,
    options: Option<Fields<'l>>,
    outside: &'l Outside,
    /// The whole line as it was written.
    text: &'l str,
    /// The same with every digit of its numbers, once an operation asked for it.
    exact: OnceCell<ExactJson>,
}

impl<'l> Request<'l> {
    /// Takes the parts of a parsed line, which is `text` and asks for one of `operations`.
    ///
    /// # Errors
    ///
    /// - `op` or `input` is missing, or `op`, `input` or `options` has the wrong type
    /// - no operation has the name
    pub fn parse(
        line: &'l Map<String, Value>,
        text: &'l str,
        outside: &'l Outside,
        mut operations: impl Iterator<Item = &'static Operation>,
    ) -> Result<(&'static Operation, Self), LineError> {
        let line = Fields {
            path: String::new(),
            fields: line,
        };
        let op = line.text("op")?;
        let operation = operations
            .find(|operation| operation.name == op)
            .ok_or_else(|| LineError::UnknownOp { op: op.to_owned() })?;
        let options = match line.fields.get("options") {
            None | Some(Value::Null) => None,
            Some(_) => Some(line.object("options")?),
        };
        let is_whole = operation
            .fields
            .iter()
            .any(|field| field.name == WHOLE_INPUT);
        let input = if is_whole {
            line
        } else {
            line.object("input")?
        };
        Ok((
            operation,
            Self {
                input,
                options,
                outside,
                text,
                exact: OnceCell::new(),
            },
        ))
    }

    /// A field of the input with every digit of its numbers; null if it is absent.
    pub fn exact_input(&self, name: &str) -> &ExactJson {
        // The line has been parsed, so that reading it again cannot fail.
        let read = || parse_exact(self.text).unwrap_or(ExactJson::Null);
        let line = self.exact.get_or_init(read);
        let field = line.get("input").and_then(|input| input.get(name));
        field.unwrap_or(&ExactJson::Null)
    }

    /// The input as Python's values: integers of any size, and told apart from floats.
    ///
    /// # Errors
    ///
    /// - an integer has more digits than Python reads
    pub fn python_input(&self) -> Result<PyValue, LineError> {
        let line = loads(self.text).map_err(|error| LineError::MalformedLine {
            reason: format!("the line cannot be read as Python reads it: {error}"),
        })?;
        Ok(line.get("input").cloned().unwrap_or_default())
    }

    /// A choice that may stand in `options` or, as some writers put it, in `input`.
    pub fn choice(&self, name: &str) -> Result<Option<&'l str>, LineError> {
        let place = self.place_of(name);
        place.map(|fields| fields.text(name)).transpose()
    }

    /// A whole number from 0 that may stand where [`Request::choice`] may.
    pub fn option_count(&self, name: &str) -> Result<Option<usize>, LineError> {
        let count = self.place_of(name).map(|fields| fields.count(name));
        let count = count.transpose()?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// A boolean that may stand where [`Request::choice`] may.
    pub fn option_flag(&self, name: &str) -> Result<Option<bool>, LineError> {
        let place = self.place_of(name);
        place.map(|fields| fields.flag(name)).transpose()
    }

    /// What [`Outside::with`] has been given of this type.
    pub fn outside<T: Any>(&self) -> Option<&'l T> {
        self.outside.other()
    }

    fn place_of(&self, name: &str) -> Option<&Fields<'l>> {
        let places = [Some(&self.input), self.options.as_ref()];
        let mut places = places.into_iter().flatten();
        places.find(|place| place.fields.contains_key(name))
    }

    /// The encoder that `options.encoder` names; MiniLM if it names none.
    pub fn encoder(&self) -> Result<&'l dyn SentenceEncoder, LineError> {
        let named = self
            .options
            .as_ref()
            .filter(|options| options.fields.contains_key("encoder"));
        let name = named.map(|options| options.text("encoder")).transpose()?;
        self.outside.encoders().named(name.unwrap_or("minilm"))
    }
}

/// The fields of one JSON object on the line, with the path to it.
#[derive(Debug, Clone)]
pub struct Fields<'l> {
    path: String,
    fields: &'l Map<String, Value>,
}

impl<'l> Fields<'l> {
    /// The value of a field, whatever it is.
    pub fn value(&self, name: &str) -> Result<&'l Value, LineError> {
        let missing = || LineError::MissingField {
            field: self.path_of(name),
        };
        self.fields.get(name).ok_or_else(missing)
    }

    /// The value of a field that must be a string.
    pub fn text(&self, name: &str) -> Result<&'l str, LineError> {
        let text = self.value(name)?.as_str();
        text.ok_or_else(|| self.wrong_type(name, "a string"))
    }

    /// The value of a field that must be a string if it is there and not null.
    pub fn optional_text(&self, name: &str) -> Result<Option<&'l str>, LineError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.text(name).map(Some),
        }
    }

    /// The objects of a field that must be an array of objects.
    pub fn objects(&self, name: &str) -> Result<Vec<Fields<'l>>, LineError> {
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

    /// The strings of a field that must be an array of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<&'l str>, LineError> {
        self.items(name, "an array of strings", Value::as_str)
    }

    /// As [`Fields::texts`], or nothing if the field is absent or null.
    pub fn optional_texts(&self, name: &str) -> Result<Option<Vec<&'l str>>, LineError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.texts(name).map(Some),
        }
    }

    /// The lists of a field that must be an array of arrays of strings.
    pub fn text_lists(&self, name: &str) -> Result<Vec<Vec<&'l str>>, LineError> {
        let texts = |item: &'l Value| item.as_array()?.iter().map(Value::as_str).collect();
        self.items(name, "an array of arrays of strings", texts)
    }

    /// The booleans of a field that must be an array of them.
    pub fn flags(&self, name: &str) -> Result<Vec<bool>, LineError> {
        self.items(name, "an array of booleans", Value::as_bool)
    }

    /// The numbers of a field that must be an array of them.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>, LineError> {
        self.items(name, "an array of numbers", Value::as_f64)
    }

    /// The numbers of a field that must be an array of whole numbers from 0.
    pub fn counts(&self, name: &str) -> Result<Vec<u64>, LineError> {
        self.items(name, "an array of whole numbers from 0", Value::as_u64)
    }

    /// The value of a field that must be a whole number from 0.
    pub fn count(&self, name: &str) -> Result<u64, LineError> {
        let count = self.value(name)?.as_u64();
        count.ok_or_else(|| self.wrong_type(name, "a whole number from 0"))
    }

    /// The value of a field that must be a boolean.
    pub fn flag(&self, name: &str) -> Result<bool, LineError> {
        let flag = self.value(name)?.as_bool();
        flag.ok_or_else(|| self.wrong_type(name, "a boolean"))
    }

    /// The value of a field that must be a boolean; false if the field is absent or null.
    pub fn optional_flag(&self, name: &str) -> Result<bool, LineError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(_) => self.flag(name),
        }
    }

    fn items<T>(
        &self,
        name: &str,
        expected: &'static str,
        read: impl Fn(&'l Value) -> Option<T>,
    ) -> Result<Vec<T>, LineError> {
        let items = self.value(name)?.as_array();
        let items: Option<Vec<T>> = items.and_then(|items| items.iter().map(read).collect());
        items.ok_or_else(|| self.wrong_type(name, expected))
    }

    /// The fields of a field that must be an object.
    pub fn object(&self, name: &str) -> Result<Fields<'l>, LineError> {
        Ok(Fields {
            path: format!("{}.", self.path_of(name)),
            fields: self.fields(name)?,
        })
    }

    /// A field that must be an object, as it is.
    pub fn fields(&self, name: &str) -> Result<&'l Map<String, Value>, LineError> {
        let fields = self.value(name)?.as_object();
        fields.ok_or_else(|| self.wrong_type(name, "an object"))
    }

    /// The error of a field that holds something else than `expected`.
    pub fn wrong_type(&self, name: &str, expected: &'static str) -> LineError {
        LineError::WrongType {
            field: self.path_of(name),
            expected,
        }
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }
}
