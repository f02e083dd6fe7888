//! The JSON Schema of a parameter, and whether a value keeps to it.
//!
//! A value as a whole is read as loosely as the words for types are ([`ApiParameter`]): a scalar and
//! its text count as the same, and so do a list or an object and its JSON. Inside of a list or an
//! object every value is what the schema says, because nothing brings it into shape on the way to
//! the server.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde_json::{Map, Value};

use super::declared::{DeclaredBy, json_type};
use super::declared_schema::{Declared, dotted, typed};
use super::document::{ApiDocument, ApiParameter};
use super::error::ToolsError;
use super::fields::kind_of;
use crate::faults::excerpt;
use crate::json;
use crate::json_schema::{BoundedValidator, SchemaFault};

/// The schema of a parameter's values, compiled when it is first asked.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct ParameterSchema {
    value: Value,
    #[serde(skip)]
    compiled: Arc<OnceLock<Result<BoundedValidator, SchemaFault>>>,
}

impl ParameterSchema {
    /// A schema that is not looked at yet.
    pub fn new(value: Value) -> Self {
        Self {
            value,
            compiled: Arc::default(),
        }
    }

    /// The schema as it stands in the document.
    pub fn value(&self) -> &Value {
        &self.value
    }

    fn validator(&self) -> Result<&BoundedValidator, &SchemaFault> {
        let compile = || BoundedValidator::new(&typed(&self.value));
        self.compiled.get_or_init(compile).as_ref()
    }
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
    /// Checks the values of arguments, which stand at `field`, against types and schemas of the
    /// parameters.
    ///
    /// # Errors
    ///
    /// - a value cannot be of the type that its parameter declares
    /// - a value breaks the parameter's schema, or has a key inside that the schema does not declare
    /// - the schema of a parameter is not usable
    pub fn check_values(
        &self,
        arguments: &Map<String, Value>,
        field: &str,
    ) -> Result<(), ToolsError> {
        for (name, value) in arguments {
            let Some(parameter) = self.parameter(name) else {
                continue;
            };
            let field = format!("{field}.{name}");
            let kept = match &parameter.schema {
                None => Ok(()),
                Some(schema) => self.check_schema(parameter, schema, value, &field),
            };
            let is_of_type = parameter.may_be(value);
            match kept {
                // A schema says more than the word, such as that there may be null.
                Ok(()) if is_of_type || parameter.schema.is_some() => {}
                Err(error) if is_of_type => return Err(error),
                _ => {
                    return Err(ToolsError::ArgumentOfOtherType {
                        field,
                        found: match value {
                            Value::String(text) => format!("the text {text:?}"),
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

    fn check_schema(
        &self,
        parameter: &ApiParameter,
        schema: &ParameterSchema,
        value: &Value,
        field: &str,
    ) -> Result<(), ToolsError> {
        let called = self.call_name();
        let validator = schema.validator().map_err(|fault| {
            let SchemaFault { pointer, reason } = fault.clone();
            ToolsError::BadParameterSchema {
                api: called.clone(),
                parameter: parameter.name.clone(),
                pointer: if pointer.is_empty() {
                    "/".to_owned()
                } else {
                    pointer
                },
                reason: excerpt(&reason),
            }
        })?;
        let meant = as_meant(parameter, value);
        let mut faults = meant.iter().map(|meant| validator.first_fault(meant));
        let valid = faults.position(|fault| fault.is_none());
        if let Some(valid) = valid {
            let declared = Declared {
                called: &called,
                by: DeclaredBy::Documents,
            };
            return declared.undeclared_inside(schema.value(), &meant[valid], field);
        }
        // The last reading is the one of the declared type.
        let fault = meant.last().and_then(|meant| validator.first_fault(meant));
        match fault {
            None => Ok(()),
            Some(fault) => Err(ToolsError::ArgumentBreaksSchema {
                field: format!("{field}{}", dotted(&fault.place)),
                tool: called,
                reason: excerpt(&fault.reason),
                by: DeclaredBy::Documents,
            }),
        }
    }
}

/// What a value may stand for: itself, and what its text says where no text is declared.
fn as_meant(parameter: &ApiParameter, value: &Value) -> Vec<Value> {
    let mut meant = vec![value.clone()];
    match value {
        Value::String(text) if json_type(&parameter.kind) != Some("string") => {
            let lower = text.trim().to_ascii_lowercase();
            let word = matches!(lower.as_str(), "true" | "false").then_some(lower.as_str());
            meant.extend(json::parse(word.unwrap_or(text)).ok());
        }
        Value::Number(_) | Value::Bool(_) => meant.insert(0, Value::from(value.to_string())),
        _ => {}
    }
    meant
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
        ]});
        ApiDocument::try_from(document).expect("a document")
    }

    fn check(arguments: Value) -> Result<(), String> {
        let arguments = arguments.as_object().expect("arguments").clone();
        let checked = booking().check_values(&arguments, "calls[0].arguments");
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_schema_takes_passes_whole_values_also_as_their_texts() {
        for arguments in [
            json!({"stay": {"room_id": 3}, "kind": "a", "nights": 2}),
            json!({"stay": {"room_id": 3, "guests": [{"name": "Ada"}, {}]}}),
            json!({"stay": "{\"room_id\": 3}", "kind": 7, "nights": "2"}),
            json!({"nights": null}),
        ] {
            assert_eq!(check(arguments.clone()), Ok(()), "{arguments}");
        }
    }

    #[test]
    fn what_a_schema_does_not_take_is_refused_with_its_place() {
        for (arguments, expected) in [
            (
                json!({"stay": {"rom_id": 3}}),
                "calls[0].arguments.stay: POST /bookings does not take",
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
        ] {
            let message = check(arguments).expect_err(expected);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_schema_that_is_none_is_named() {
        let document = json!({"api_name": "a", "required_parameters": [
            {"name": "q", "schema": {"type": "object", "properties": 3}}]});
        let document = ApiDocument::try_from(document).expect("a document");
        let arguments = Map::from_iter([("q".to_owned(), json!({}))]);
        let error = document
            .check_values(&arguments, "x")
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
                .contains("optional_parameters[0].schema is a text"),
            "{error}"
        );
    }
}
