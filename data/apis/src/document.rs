//! Documentation of one API in StableToolBench's layout.
//!
//! The reader ignores other fields that StableToolBench's files contain, such as
//! `template_response`, but rejects a field whose name is similar to a known one: a misspelt
//! `required_parameters` would silently give an API without parameters.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ToolsError;
use super::fields::{Fields, wrong_type};
use super::parameter_schema::ParameterSchema;

const LAYOUT: &str = "an API document needs api_name, and each of its parameters a name";

const FIELDS: [&str; 10] = [
    "category_name",
    "tool_name",
    "api_name",
    "api_description",
    "required_parameters",
    "optional_parameters",
    "method",
    "output_description",
    "operation_id",
    "output_schema",
];

/// The documentation of one API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct ApiDocument {
    /// Category, such as `Entertainment`.
    pub category_name: String,
    /// Tool that the API belongs to; empty if the API belongs to none.
    pub tool_name: String,
    /// Name of the API without its tool.
    pub api_name: String,
    /// Description of the API.
    pub api_description: String,
    /// Parameters that each call must have.
    pub required_parameters: Vec<ApiParameter>,
    /// Parameters that a call may omit.
    pub optional_parameters: Vec<ApiParameter>,
    /// HTTP method, if any.
    pub method: String,
    /// Description of the response, if the source gives one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output_description: String,
    /// Operation id in a specification, such as `createOrder`; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation_id: String,
    /// JSON Schema of the response, if the source has one; `{"type": "null"}` for an API that
    /// returns nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

/// One parameter of an API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct ApiParameter {
    /// The key of the parameter in `arguments`.
    pub name: String,
    /// Type as spelled in the source, such as `STRING` or `NUMBER`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Description of the parameter.
    pub description: String,
    /// Default value; an empty string if there is none.
    pub default: Value,
    /// Location in the request, as in OpenAPI: `path`, `query`, `header`, `cookie` or `body`; empty
    /// if the source does not specify it.
    #[serde(rename = "in", skip_serializing_if = "String::is_empty")]
    pub location: String,
    /// JSON Schema of the values, if the source specifies more than the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<ParameterSchema>,
}

impl ApiDocument {
    /// Creates a document with only a name.
    pub fn new(tool_name: impl Into<String>, api_name: impl Into<String>) -> Self {
        Self {
            category_name: String::new(),
            tool_name: tool_name.into(),
            api_name: api_name.into(),
            api_description: String::new(),
            required_parameters: Vec::new(),
            optional_parameters: Vec::new(),
            method: String::new(),
            output_description: String::new(),
            operation_id: String::new(),
            output_schema: None,
        }
    }

    /// Call name: `tool/api`, or the API name if it belongs to no tool.
    pub fn call_name(&self) -> String {
        if self.tool_name.is_empty() {
            return self.api_name.clone();
        }
        format!("{}/{}", self.tool_name, self.api_name)
    }

    /// All parameters, required ones first.
    pub fn parameters(&self) -> impl Iterator<Item = &ApiParameter> {
        self.required_parameters
            .iter()
            .chain(&self.optional_parameters)
    }

    /// The parameter named `name`.
    pub fn parameter(&self, name: &str) -> Option<&ApiParameter> {
        self.parameters().find(|parameter| parameter.name == name)
    }

    /// Reads the document at `location` of a larger value, such as `api_list[2]`.
    pub(super) fn from_value(value: &Value, location: &str) -> Result<Self, ToolsError> {
        let fields = Fields::new(value, location, LAYOUT)?;
        fields.refuse_misspelled(&FIELDS)?;
        let api_name = fields.text("api_name")?.trim();
        if api_name.is_empty() {
            return Err(ToolsError::EmptyField {
                field: fields.path("api_name"),
                needed: LAYOUT,
            });
        }
        let text = |name| Ok::<_, ToolsError>(fields.optional_text(name)?.unwrap_or("").to_owned());
        Ok(Self {
            category_name: text("category_name")?,
            tool_name: text("tool_name")?.trim().to_owned(),
            api_name: api_name.to_owned(),
            api_description: text("api_description")?,
            required_parameters: parameters(&fields, "required_parameters")?,
            optional_parameters: parameters(&fields, "optional_parameters")?,
            method: text("method")?,
            output_description: text("output_description")?,
            operation_id: text("operation_id")?,
            output_schema: schema(&fields, "output_schema")?.cloned(),
        })
    }
}

impl TryFrom<Value> for ApiDocument {
    type Error = ToolsError;

    fn try_from(value: Value) -> Result<Self, ToolsError> {
        Self::from_value(&value, "")
    }
}

impl ApiParameter {
    /// Creates a parameter with only a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: String::new(),
            description: String::new(),
            default: Value::from(""),
            location: String::new(),
            schema: None,
        }
    }

    fn from_value(value: &Value, location: &str) -> Result<Self, ToolsError> {
        let fields = Fields::new(value, location, LAYOUT)?;
        let name = fields.text("name")?;
        if name.trim().is_empty() {
            return Err(ToolsError::EmptyField {
                field: fields.path("name"),
                needed: LAYOUT,
            });
        }
        let text = |name| Ok::<_, ToolsError>(fields.optional_text(name)?.unwrap_or("").to_owned());
        Ok(Self {
            name: name.trim().to_owned(),
            kind: text("type")?,
            description: text("description")?,
            default: fields
                .get("default")
                .cloned()
                .unwrap_or_else(|| Value::from("")),
            location: text("in")?,
            schema: schema(&fields, "schema")?
                .cloned()
                .map(ParameterSchema::new),
        })
    }
}

impl TryFrom<Value> for ApiParameter {
    type Error = ToolsError;

    fn try_from(value: Value) -> Result<Self, ToolsError> {
        Self::from_value(&value, "")
    }
}

/// An optional field that contains a JSON Schema.
fn schema<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<&'a Value>, ToolsError> {
    match fields.get(name) {
        Some(other) if !other.is_object() && !other.is_boolean() => Err(wrong_type(
            &fields.path(name),
            other,
            "a JSON Schema: an object or a boolean",
        )),
        schema => Ok(schema),
    }
}

fn parameters(fields: &Fields<'_>, name: &str) -> Result<Vec<ApiParameter>, ToolsError> {
    let path = fields.path(name);
    let parameter = |(i, item)| ApiParameter::from_value(item, &format!("{path}[{i}]"));
    fields
        .list(name)?
        .iter()
        .enumerate()
        .map(parameter)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<ApiDocument, ToolsError> {
        ApiDocument::try_from(value)
    }

    #[test]
    fn a_document_may_have_no_parameters() {
        let document = read(json!({"tool_name": "Clock", "api_name": "Now"})).expect("read");
        assert_eq!(document, ApiDocument::new("Clock", "Now"));
        assert_eq!(document.call_name(), "Clock/Now");
        assert_eq!(document.parameters().count(), 0);
        assert_eq!(ApiDocument::new("", "GET /now").call_name(), "GET /now");
    }

    #[test]
    fn fields_of_other_layouts_are_ignored_and_the_rest_survives_a_round_trip() {
        let document = read(json!({
            "category_name": "Data", "tool_name": " T ", "api_name": "A", "api_description": "d",
            "required_parameters": [{"name": "q", "type": "STRING", "description": "x", "default": 4}],
            "optional_parameters": [{"name": "r"}], "method": "GET", "template_response": {"a": "str"},
        }))
        .expect("read");
        assert_eq!(document.call_name(), "T/A");
        assert_eq!(document.parameter("q").expect("q").default, json!(4));
        assert_eq!(document.parameter("r").expect("r").default, json!(""));
        let written = serde_json::to_value(&document).expect("written");
        assert_eq!(read(written.clone()).expect("read again"), document);
        assert_eq!(
            serde_json::from_value::<ApiDocument>(written).expect("by serde"),
            document
        );
    }

    #[test]
    fn an_error_has_its_field() {
        let cases = [
            (json!([]), "the row is a list, but must be an object"),
            (json!({"api_name": " "}), "api_name is empty"),
            (json!({"tool_name": "T"}), "field \"api_name\" is missing"),
            (
                json!({"api_name": "A", "requried_parameters": []}),
                "did you mean \"required_parameters\"?",
            ),
            (
                json!({"api_name": "A", "required_parameters": {}}),
                "required_parameters is an object, but must be a list",
            ),
            (
                json!({"api_name": "A", "required_parameters": [{"name": "q"}, {"type": "x"}]}),
                "required_parameters[1].name",
            ),
        ];
        for (value, expected) in cases {
            let message = read(value).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
