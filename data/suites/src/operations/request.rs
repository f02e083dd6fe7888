//! A parsed request line, and the list of operations.
//!
//! Fields are read by name through [`Fields`], which tracks its path, so that every error names the
//! exact field and row.

use std::any::Any;
use std::cell::OnceCell;

use serde_json::{Map, Value};
use tooltune_json::python::{PyValue, loads};
use tooltune_json::{ExactJson, parse_exact};

use super::error::LineError;
use super::outside::Outside;
use crate::encoder::SentenceEncoder;

/// One operation of `tooltune score`.
#[derive(Debug)]
pub struct Operation {
    /// Name in `op`, such as `slot.content`.
    pub name: &'static str,
    /// The fields of `input`, and the options that affect the value.
    pub fields: &'static [InputField],
    /// One-line definition of the value.
    pub definition: &'static str,
    /// Computes the value.
    pub run: fn(&Request<'_>) -> Result<Value, LineError>,
}

/// One input field of an operation.
#[derive(Debug, Clone, Copy)]
pub struct InputField {
    /// Name of the field in `input`; or `options.` and the name of an option; or `input` for the
    /// whole input.
    pub name: &'static str,
    /// Short description of the content.
    pub holds: &'static str,
}

impl InputField {
    /// A field with its description.
    pub const fn new(name: &'static str, holds: &'static str) -> Self {
        Self { name, holds }
    }
}

/// Field name for operations whose `input` is the value itself instead of an object of fields.
pub const WHOLE_INPUT: &str = "input";

/// The input and options of one line.
#[derive(Debug)]
pub struct Request<'l> {
    /// The fields of `input`, or of the whole line if an operation reads `input` as one value.
    pub input: Fields<'l>,
    options: Option<Fields<'l>>,
    outside: &'l Outside,
    /// The raw line.
    text: &'l str,
    /// The line with all digits of its numbers, parsed on first use.
    exact: OnceCell<ExactJson>,
}

impl<'l> Request<'l> {
    /// Splits a parsed line, whose source is `text`, into its parts.
    ///
    /// # Errors
    ///
    /// - `op` or `input` is missing, or `op`, `input` or `options` has the wrong type
    /// - `operations` has no operation with this name
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

    /// A field of the input with all digits of its numbers; null if it is absent.
    pub fn exact_input(&self, name: &str) -> &ExactJson {
        // The line has been parsed before, so this cannot fail.
        let parsed = || parse_exact(self.text).unwrap_or(ExactJson::Null);
        let line = self.exact.get_or_init(parsed);
        let field = line.get("input").and_then(|input| input.get(name));
        field.unwrap_or(&ExactJson::Null)
    }

    /// The input as Python values: integers have any size and are distinct from floats.
    ///
    /// # Errors
    ///
    /// An integer has more digits than Python accepts.
    pub fn python_input(&self) -> Result<PyValue, LineError> {
        let line = loads(self.text).map_err(|error| LineError::MalformedLine {
            reason: format!("the line cannot be parsed as Python's json module does: {error}"),
        })?;
        Ok(line.get("input").cloned().unwrap_or_default())
    }

    /// A string option from `options`. It may also be in `input`, because some writers put it
    /// there.
    pub fn choice(&self, name: &str) -> Result<Option<&'l str>, LineError> {
        let field_groups = self.place_of(name);
        field_groups.map(|fields| fields.text(name)).transpose()
    }

    /// A non-negative integer from `options` or `input`, as for [`Request::choice`].
    pub fn option_count(&self, name: &str) -> Result<Option<usize>, LineError> {
        let count = self.place_of(name).map(|fields| fields.count(name));
        let count = count.transpose()?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// A boolean from `options` or `input`, as for [`Request::choice`].
    pub fn option_flag(&self, name: &str) -> Result<Option<bool>, LineError> {
        let place = self.place_of(name);
        place.map(|fields| fields.flag(name)).transpose()
    }

    /// The resource of this type, if [`Outside::with`] added one.
    pub fn outside<T: Any>(&self) -> Option<&'l T> {
        self.outside.resource()
    }

    fn place_of(&self, name: &str) -> Option<&Fields<'l>> {
        let objects = [Some(&self.input), self.options.as_ref()];
        let mut objects = objects.into_iter().flatten();
        objects.find(|fields| fields.fields.contains_key(name))
    }

    /// The encoder selected by `options.encoder`; MiniLM by default.
    pub fn encoder(&self) -> Result<&'l dyn SentenceEncoder, LineError> {
        let encoder_name = self
            .options
            .as_ref()
            .filter(|options| options.fields.contains_key("encoder"));
        let name = encoder_name
            .map(|options| options.text("encoder"))
            .transpose()?;
        self.outside.encoders().named(name.unwrap_or("minilm"))
    }
}

/// The fields of a JSON object in the line, with its path.
#[derive(Debug, Clone)]
pub struct Fields<'l> {
    path: String,
    fields: &'l Map<String, Value>,
}

impl<'l> Fields<'l> {
    /// The value of a field, of any type.
    pub fn value(&self, name: &str) -> Result<&'l Value, LineError> {
        let missing = || LineError::MissingField {
            field: self.path_of(name),
        };
        self.fields.get(name).ok_or_else(missing)
    }

    /// The value of a string field.
    pub fn text(&self, name: &str) -> Result<&'l str, LineError> {
        let text = self.value(name)?.as_str();
        text.ok_or_else(|| self.wrong_type(name, "a string"))
    }

    /// The value of a string field that may be absent or null.
    pub fn optional_text(&self, name: &str) -> Result<Option<&'l str>, LineError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.text(name).map(Some),
        }
    }

    /// The elements of a field that is an array of objects.
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

    /// The elements of a field that is an array of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<&'l str>, LineError> {
        self.items(name, "an array of strings", Value::as_str)
    }

    /// As [`Fields::texts`]; `None` if the field is absent or null.
    pub fn optional_texts(&self, name: &str) -> Result<Option<Vec<&'l str>>, LineError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.texts(name).map(Some),
        }
    }

    /// The elements of a field that is an array of arrays of strings.
    pub fn text_lists(&self, name: &str) -> Result<Vec<Vec<&'l str>>, LineError> {
        let texts = |item: &'l Value| item.as_array()?.iter().map(Value::as_str).collect();
        self.items(name, "an array of arrays of strings", texts)
    }

    /// The elements of a field that is an array of booleans.
    pub fn flags(&self, name: &str) -> Result<Vec<bool>, LineError> {
        self.items(name, "an array of booleans", Value::as_bool)
    }

    /// The elements of a field that is an array of numbers.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>, LineError> {
        self.items(name, "an array of numbers", Value::as_f64)
    }

    /// The elements of a field that is an array of non-negative integers.
    pub fn counts(&self, name: &str) -> Result<Vec<u64>, LineError> {
        self.items(name, "an array of non-negative integers", Value::as_u64)
    }

    /// The value of a field that is a non-negative integer.
    pub fn count(&self, name: &str) -> Result<u64, LineError> {
        let count = self.value(name)?.as_u64();
        count.ok_or_else(|| self.wrong_type(name, "a non-negative integer"))
    }

    /// The value of a boolean field.
    pub fn flag(&self, name: &str) -> Result<bool, LineError> {
        let flag = self.value(name)?.as_bool();
        flag.ok_or_else(|| self.wrong_type(name, "a boolean"))
    }

    /// The value of a boolean field; false if it is absent or null.
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
        parse_item: impl Fn(&'l Value) -> Option<T>,
    ) -> Result<Vec<T>, LineError> {
        let items = self.value(name)?.as_array();
        let items: Option<Vec<T>> = items.and_then(|items| items.iter().map(parse_item).collect());
        items.ok_or_else(|| self.wrong_type(name, expected))
    }

    /// The fields of an object field.
    pub fn object(&self, name: &str) -> Result<Fields<'l>, LineError> {
        Ok(Fields {
            path: format!("{}.", self.path_of(name)),
            fields: self.fields(name)?,
        })
    }

    /// An object field as a JSON map.
    pub fn fields(&self, name: &str) -> Result<&'l Map<String, Value>, LineError> {
        let fields = self.value(name)?.as_object();
        fields.ok_or_else(|| self.wrong_type(name, "an object"))
    }

    /// The error for a field that does not contain `expected`.
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
