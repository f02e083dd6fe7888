//! JSON Schema of a parameter, and validation of values.
//!
//! Top-level values are checked as loosely as type names ([`ApiParameter`]): a scalar is equivalent
//! to its string form, and a list or object is equivalent to its JSON string. Values inside lists
//! and objects must match the schema exactly, because nothing converts them before the request is
//! sent.
//!
//! Formats such as `date` are asserted in trajectories for training. In evaluation they are
//! annotations, because the server decides which values are valid and benchmarks contain other
//! values.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::faults::excerpt;
use tooltune_json::json_schema::{BoundedValidator, FormatRule, SchemaFault};
use tooltune_json::kind_of;

use super::declared::{DeclaredBy, json_type};
use super::declared_schema::{Declared, field_path, with_json_types};
use super::document::{ApiDocument, ApiParameter};
use super::error::ToolsError;

/// The schema of a parameter's values, compiled on first use.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct ParameterSchema {
    value: Value,
    #[serde(skip)]
    annotated: Compiled,
    #[serde(skip)]
    asserted: Compiled,
}

type Compiled = Arc<OnceLock<Result<BoundedValidator, SchemaFault>>>;

impl ParameterSchema {
    /// Wraps a schema without checking it.
    pub fn new(value: Value) -> Self {
        Self {
            value,
            annotated: Arc::default(),
            asserted: Arc::default(),
        }
    }

    /// The schema as written in the document.
    pub fn value(&self) -> &Value {
        &self.value
    }

    fn validator(&self, formats: FormatRule) -> Result<&BoundedValidator, &SchemaFault> {
        let compiled = match formats {
            FormatRule::Annotated => &self.annotated,
            FormatRule::Asserted => &self.asserted,
        };
        let compile = || BoundedValidator::with_formats(&with_json_types(&self.value), formats);
        compiled.get_or_init(compile).as_ref()
    }
}

impl ApiParameter {
    /// Whether null differs from an absent value for this parameter. It does if the parameter is
    /// sent as JSON and its schema names null. Paths, query strings, headers and cookies cannot
    /// contain null.
    pub fn accepts_null(&self) -> bool {
        let is_in_json = !["path", "query", "header", "cookie"].contains(&self.location.as_str());
        let Some(schema) = &self.schema else {
            return is_in_json && self.kind.trim() == "null";
        };
        let takes = |validator: &BoundedValidator| validator.first_fault(&Value::Null).is_none();
        is_in_json
            && names_null(schema.value())
            && schema.validator(FormatRule::Annotated).is_ok_and(takes)
    }
}

/// Whether a schema names null explicitly; merely allowing it is not enough.
fn names_null(schema: &Value) -> bool {
    let is_null = |value: &Value| value.is_null() || value == "null";
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is_null),
        Some(kind) => is_null(kind),
        None => false,
    };
    let values = schema.get("enum").and_then(Value::as_array);
    let has_value = values.is_some_and(|values| values.iter().any(Value::is_null))
        || schema.get("const").is_some_and(Value::is_null);
    let branches = ["allOf", "anyOf", "oneOf"].iter();
    let branches = branches.filter_map(|key| schema.get(key)?.as_array());
    kind || has_value || branches.flatten().any(names_null)
}

impl PartialEq for ParameterSchema {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl fmt::Debug for ParameterSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParameterSchema({})", self.value)
    }
}

impl ApiDocument {
    /// Checks the arguments at `field` against the types and schemas of the parameters. `formats`
    /// selects whether the formats of the schemas are asserted.
    ///
    /// # Errors
    ///
    /// - a value cannot have the type that its parameter declares
    /// - a value violates the parameter's schema, or has a nested key that the schema does not
    ///   declare
    /// - the schema of a parameter is not usable
    pub fn check_values(
        &self,
        arguments: &Map<String, Value>,
        field: &str,
        formats: FormatRule,
    ) -> Result<(), ToolsError> {
        for (name, value) in arguments {
            let Some(parameter) = self.parameter(name) else {
                continue;
            };
            let field = format!("{field}.{name}");
            let checked = match &parameter.schema {
                None => Ok(()),
                Some(schema) => self.check_schema(parameter, schema, formats, value, &field),
            };
            let is_of_type = parameter.accepts(value);
            match checked {
                // A schema is more precise than the type name; for example, it may allow null.
                Ok(()) if is_of_type || parameter.schema.is_some() => {}
                Err(error) if is_of_type => return Err(error),
                _ => {
                    return Err(ToolsError::WrongArgumentType {
                        field,
                        found: match value {
                            Value::String(text) => format!("the string {text:?}"),
                            Value::Number(number) => format!("the number {number}"),
                            other => kind_of(other).to_owned(),
                        },
                        api: self.call_name(),
                        declared: parameter.kind.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    fn validator_of<'s>(
        &self,
        parameter: &ApiParameter,
        schema: &'s ParameterSchema,
        formats: FormatRule,
    ) -> Result<&'s BoundedValidator, ToolsError> {
        schema.validator(formats).map_err(|fault| {
            let SchemaFault { pointer, reason } = fault.clone();
            ToolsError::BadParameterSchema {
                api: self.call_name(),
                parameter: parameter.name.clone(),
                pointer: if pointer.is_empty() {
                    "/".to_owned()
                } else {
                    pointer
                },
                reason: excerpt(&reason),
            }
        })
    }

    fn check_schema(
        &self,
        parameter: &ApiParameter,
        schema: &ParameterSchema,
        formats: FormatRule,
        value: &Value,
        field: &str,
    ) -> Result<(), ToolsError> {
        let validator = self.validator_of(parameter, schema, formats)?;
        let called = self.call_name();
        let candidates = interpretations(parameter, value);
        let mut faults = candidates
            .iter()
            .map(|candidate| validator.first_fault(candidate));
        let valid = faults.position(|fault| fault.is_none());
        if let Some(valid) = valid {
            let declared = Declared {
                called: &called,
                by: DeclaredBy::Documents,
            };
            return declared.check_nested_keys(schema.value(), &candidates[valid], field);
        }
        // The last interpretation usually has the declared type.
        let fault = candidates
            .last()
            .and_then(|candidate| validator.first_fault(candidate));
        match fault {
            None => Ok(()),
            Some(fault) => Err(ToolsError::ArgumentBreaksSchema {
                field: format!("{field}{}", field_path(&fault.place)),
                tool: called,
                reason: excerpt(&fault.reason) + fault.remedy(),
                by: DeclaredBy::Documents,
            }),
        }
    }
}

/// Possible interpretations of a value. A number or boolean is first read as its string form and
/// then as itself. A string is first read as itself and then, unless a string is declared, as JSON.
fn interpretations(parameter: &ApiParameter, value: &Value) -> Vec<Value> {
    let mut candidates = vec![value.clone()];
    match value {
        Value::String(text) if json_type(&parameter.kind) != Some("string") => {
            let lower = text.trim().to_ascii_lowercase();
            let boolean = matches!(lower.as_str(), "true" | "false").then_some(lower.as_str());
            candidates.extend(json::parse(boolean.unwrap_or(text)).ok());
        }
        Value::Number(_) | Value::Bool(_) => candidates.insert(0, Value::from(value.to_string())),
        _ => {}
    }
    candidates
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn booking() -> ApiDocument {
        let stay = json!({"type": "object", "required": ["room_id"], "properties": {
            "room_id": {"type": "integer", "minimum": 1},
            "guests": {"type": "array", "items": {"type": "object",
                "properties": {"name": {"type": "string"}}}}}});
        let document = json!({"api_name": "POST /bookings", "required_parameters": [
            {"name": "stay", "type": "object", "in": "body", "schema": stay},
            {"name": "kind", "type": "string", "schema": {"type": "string", "enum": ["a", "7"]}},
            {"name": "nights", "type": "integer", "schema": {"type": ["integer", "null"], "maximum": 9}},
            {"name": "from", "type": "string", "schema": {"type": "string", "format": "date"}},
        ]});
        ApiDocument::try_from(document).expect("a document")
    }

    fn check(arguments: Value) -> Result<(), String> {
        let arguments = arguments.as_object().expect("arguments").clone();
        let asserted = FormatRule::Asserted;
        let checked = booking().check_values(&arguments, "calls[0].arguments", asserted);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn valid_values_pass_and_top_level_values_also_as_strings() {
        for arguments in [
            json!({"stay": {"room_id": 3}, "kind": "a", "nights": 2}),
            json!({"stay": {"room_id": 3, "guests": [{"name": "Ada"}, {}]}}),
            json!({"stay": "{\"room_id\": 3}", "kind": 7, "nights": "2"}),
            json!({"nights": null}),
            json!({"from": "2026-07-20"}),
        ] {
            assert_eq!(check(arguments.clone()), Ok(()), "{arguments}");
        }
    }

    #[test]
    fn a_value_that_violates_its_schema_is_rejected_with_its_path() {
        for (arguments, expected) in [
            (
                json!({"stay": {"rom_id": 3}}),
                "calls[0].arguments.stay: POST /bookings does not accept",
            ),
            (
                json!({"stay": {"room_id": 3, "guest": 1}}),
                "calls[0].arguments.stay.guest: POST /bookings has no such parameter, did you mean \
                 \"guests\"?",
            ),
            (
                json!({"stay": {"room_id": 3, "guests": [{}, {"nam": "Ada"}]}}),
                "calls[0].arguments.stay.guests[1].nam",
            ),
            (
                json!({"stay": {"room_id": "3"}}),
                "calls[0].arguments.stay.room_id",
            ),
            (
                json!({"stay": {"room_id": 0}}),
                "less than the minimum of 1",
            ),
            (json!({"stay": "room 3"}), "calls[0].arguments.stay"),
            (
                json!({"stay": 3}),
                "is the number 3, but POST /bookings declares it as object",
            ),
            (json!({"kind": "b"}), "calls[0].arguments.kind"),
            (json!({"nights": "10"}), "greater than the maximum of 9"),
            (
                json!({"from": "20 July 2026"}),
                "is not a \"date\" (formats are checked: write the value in this format",
            ),
        ] {
            let message = check(arguments).expect_err(expected);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn null_is_accepted_if_the_schema_names_it_and_the_location_is_json() {
        let parameter = |location: &str, schema: Value| ApiParameter {
            location: location.to_owned(),
            schema: Some(ParameterSchema::new(schema)),
            ..ApiParameter::new("q")
        };
        for (schema, expected) in [
            (json!({"type": ["string", "null"]}), true),
            (
                json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
                true,
            ),
            (json!({"enum": ["a", null]}), true),
            (json!({"type": ["string", "null"], "enum": ["a"]}), false),
            (json!({"type": "string"}), false),
            (json!({"maxLength": 3}), false),
            (json!({}), false),
            (json!({"type": "string", "default": null}), false),
        ] {
            for (location, is_in_json) in [("body", true), ("", true), ("query", false)] {
                let takes = parameter(location, schema.clone()).accepts_null();
                assert_eq!(takes, expected && is_in_json, "{location} {schema}");
            }
        }
        assert!(!ApiParameter::new("q").accepts_null());
    }

    #[test]
    fn an_invalid_schema_error_names_its_parameter() {
        let document = json!({"api_name": "a", "required_parameters": [
            {"name": "q", "schema": {"type": "object", "properties": 3}}]});
        let document = ApiDocument::try_from(document).expect("a document");
        let arguments = Map::from_iter([("q".to_owned(), json!({}))]);
        let error = document
            .check_values(&arguments, "x", FormatRule::Asserted)
            .expect_err("no schema");
        let message = error.to_string();
        assert!(
            message.contains("the schema of parameter \"q\" of a is not usable"),
            "{message}"
        );
        let text = json!({"api_name": "a", "optional_parameters": [{"name": "q", "schema": "x"}]});
        let error = ApiDocument::try_from(text).expect_err("a text");
        assert!(
            error
                .to_string()
                .contains("optional_parameters[0].schema is a string"),
            "{error}"
        );
    }
}
