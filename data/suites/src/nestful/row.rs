//! A NESTFUL row: a question, the gold calls, the available tools and the answer.
//!
//! Nearly everything exists in two formats. `output_parameters` was called `output_parameter` until
//! the spring of 2025, and one distribution stores output, tools and gold answer as JSON strings.
//! Values are Python values, because calls are executed and printed as in Python.

use tooltune_json::python::{PyDict, PyValue, dumps, loads};

use super::error::NestfulError;

/// One row, format v2.
#[derive(Debug, Clone)]
pub struct NestfulRow {
    /// Id of the sample, a UUID in the published data.
    pub sample_id: String,
    /// The question.
    pub input: String,
    /// The gold calls, at least one: `{"name", "label", "arguments"}` each.
    pub output: Vec<PyValue>,
    /// The available tools.
    pub tools: Vec<ToolSpec>,
    /// The result of the last gold call.
    pub gold_answer: PyValue,
}

/// The specification of a tool.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Name of the function.
    pub name: String,
    /// The parameters in the order of the specification, which may differ from the order of the
    /// function.
    pub parameters: Vec<String>,
    /// Names of the outputs; a function without exactly one output cannot be called.
    pub outputs: Vec<String>,
    /// The complete specification as written.
    pub spec: PyValue,
}

impl NestfulRow {
    /// Parses a row from a value.
    ///
    /// # Errors
    ///
    /// - a field is missing or has the wrong type; the error contains its path
    /// - a field with JSON text is not valid JSON
    /// - the gold sequence has no calls
    pub fn new(row: &PyValue) -> Result<Self, NestfulError> {
        let row = Fields::new(row, "the line")?;
        let (output, output_is_text) = row.json("output")?;
        let (tools, tools_is_text) = row.json("tools")?;
        // If calls and tools are values instead of JSON text, a string is the answer itself.
        let gold_answer = if output_is_text || tools_is_text {
            row.json("gold_answer")?.0
        } else {
            row.value("gold_answer")?.clone()
        };
        Ok(Self {
            sample_id: row.text("sample_id")?.to_owned(),
            input: row.text("input")?.to_owned(),
            output: gold_calls(&output, "output")?,
            tools: ToolSpec::list(&tools, "tools")?,
            gold_answer,
        })
    }

    /// The row as one line without line end, with values instead of JSON strings and keys in the
    /// published order.
    pub fn line(&self) -> String {
        let texts = |text: &String| PyValue::Text(text.clone());
        let tools = self.tools.iter().map(|tool| tool.spec.clone()).collect();
        let fields = [
            ("sample_id", texts(&self.sample_id)),
            ("input", texts(&self.input)),
            ("output", PyValue::List(self.output.clone())),
            ("tools", PyValue::List(tools)),
            ("gold_answer", self.gold_answer.clone()),
        ];
        let fields = fields.map(|(key, field)| (key.to_owned(), field));
        dumps(&PyValue::Dict(PyDict::from_iter(fields)))
    }

    /// The gold calls as a training completion: `json.dumps(output)`.
    pub fn completion(&self) -> String {
        dumps(&PyValue::List(self.output.clone()))
    }
}

/// Parses gold calls from a list; `field` is its path, for errors.
///
/// # Errors
///
/// The value is not a list of objects with `name`, `arguments` and optional `label`, or is empty.
pub fn gold_calls(calls: &PyValue, field: &str) -> Result<Vec<PyValue>, NestfulError> {
    let items = list(calls, field)?;
    for (call_idx, call) in items.iter().enumerate() {
        let call = Fields::new(call, &format!("{field}[{call_idx}]"))?;
        call.text("name")?;
        Fields::new(call.value("arguments")?, &call.path_of("arguments"))?;
        if call.fields.contains_key("label") {
            call.text("label")?;
        }
    }
    match items {
        [] => Err(NestfulError::EmptyGold),
        calls => Ok(calls.to_vec()),
    }
}

impl ToolSpec {
    /// Parses specifications from a list; `field` is its path, for errors.
    ///
    /// # Errors
    ///
    /// The value is not a list of objects with a `name` and `output_parameters` (or
    /// `output_parameter`).
    pub fn list(specs: &PyValue, field: &str) -> Result<Vec<Self>, NestfulError> {
        let specs = list(specs, field)?.iter().enumerate();
        specs
            .map(|(spec_idx, spec)| Self::new(spec, &format!("{field}[{spec_idx}]")))
            .collect()
    }

    fn new(spec: &PyValue, field: &str) -> Result<Self, NestfulError> {
        let fields = Fields::new(spec, field)?;
        let spelling = if fields.fields.contains_key("output_parameter") {
            "output_parameter"
        } else {
            "output_parameters"
        };
        let keys = |name: &str| -> Result<Vec<String>, NestfulError> {
            let named_fields = Fields::new(fields.value(name)?, &fields.path_of(name))?;
            Ok(named_fields.fields.keys().cloned().collect())
        };
        let parameters = if fields.fields.contains_key("parameters") {
            keys("parameters")?
        } else {
            Vec::new()
        };
        Ok(Self {
            name: fields.text("name")?.to_owned(),
            parameters,
            outputs: keys(spelling)?,
            spec: spec.clone(),
        })
    }
}

fn list<'v>(value: &'v PyValue, field: &str) -> Result<&'v [PyValue], NestfulError> {
    value
        .as_list()
        .ok_or_else(|| wrong_type(field.to_owned(), value, "a list"))
}

fn wrong_type(field: String, value: &PyValue, expected: &'static str) -> NestfulError {
    NestfulError::WrongType {
        field,
        found: value.type_name(),
        expected,
    }
}

/// The fields of an object, and its path.
struct Fields<'v> {
    path: String,
    fields: &'v PyDict,
}

impl<'v> Fields<'v> {
    fn new(value: &'v PyValue, path: &str) -> Result<Self, NestfulError> {
        let fields = value.as_dict();
        Ok(Self {
            path: path.to_owned(),
            fields: fields.ok_or_else(|| wrong_type(path.to_owned(), value, "an object"))?,
        })
    }

    fn path_of(&self, name: &str) -> String {
        match self.path.as_str() {
            "the line" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    fn value(&self, name: &str) -> Result<&'v PyValue, NestfulError> {
        let field = self.fields.get(name);
        field.ok_or_else(|| NestfulError::MissingField {
            field: self.path_of(name),
        })
    }

    fn text(&self, name: &str) -> Result<&'v str, NestfulError> {
        let value = self.value(name)?;
        let text = value.as_text();
        text.ok_or_else(|| wrong_type(self.path_of(name), value, "a string"))
    }

    /// A field that may be JSON text, and whether it is JSON text.
    fn json(&self, name: &'static str) -> Result<(PyValue, bool), NestfulError> {
        match self.value(name)? {
            PyValue::Text(text) => {
                let value = loads(text);
                let not_json = |error| NestfulError::NotJson { field: name, error };
                value.map(|value| (value, true)).map_err(not_json)
            }
            value => Ok((value.clone(), false)),
        }
    }
}
