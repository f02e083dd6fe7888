//! Converts the fields of a request body to parameters.
//!
//! An object body becomes one parameter per property; any other body becomes one parameter named
//! `body`. A field is required if the schema requires it, unless the body is explicitly optional.
//! An omitted `requestBody.required` does not make the body optional: many specifications omit it,
//! although creating a playlist without a name is still an error.

use std::collections::HashSet;

use serde_json::Value;

use super::openapi::{declared_type, describe_parameter};
use super::reference::{Part, STEP_BYTES, Spec};
use crate::document::ApiParameter;
use crate::error::ToolsError;

/// A parameter with its required flag.
pub(super) struct BodyField {
    pub(super) parameter: ApiParameter,
    pub(super) is_required: bool,
    /// Whether the parameter is the whole body instead of a field.
    pub(super) is_whole_body: bool,
}

/// The request body fields of an operation; empty if it has no body.
pub(super) fn body_fields<'a>(
    spec: Spec<'a>,
    operation: &Part<'a>,
) -> Result<Vec<BodyField>, ToolsError> {
    let Some(body) = operation.child("requestBody") else {
        return Ok(Vec::new());
    };
    let reference = body;
    let body = spec.resolve(reference.clone())?;
    let text = reference.text_with_override(&body, "description");
    let Some((media_type, content)) = preferred_body(&body) else {
        return Ok(Vec::new());
    };
    if !is_sendable(media_type) {
        let what = format!(
            "bodies of type {media_type}, which the executor \"http\" cannot send; calls \
             with them fail"
        );
        spec.report(&what, "");
    }
    let Some(schema) = content.child("schema") else {
        return Ok(Vec::new());
    };
    let n_kinds = body.members("content").len();
    if n_kinds > 1 {
        spec.report(
            "bodies with several media types, of which one is imported",
            "",
        );
    }
    let is_optional = body.flag("required")? == Some(false);
    let mut fields = object_fields(spec, schema.clone(), is_optional)?;
    if fields.is_empty() {
        let is_required = body.flag("required")? == Some(true);
        fields.push(BodyField {
            parameter: describe_parameter(spec, "body", text, &schema)?,
            is_required,
            is_whole_body: true,
        });
    }
    for field in &mut fields {
        "body".clone_into(&mut field.parameter.location);
    }
    Ok(fields)
}

/// The properties of an object schema as parameters; empty if it declares none.
pub(super) fn object_fields<'a>(
    spec: Spec<'a>,
    schema: Part<'a>,
    is_optional: bool,
) -> Result<Vec<BodyField>, ToolsError> {
    let mut properties = Properties::default();
    properties.gather(spec, schema, RequiredKeys::AsWritten)?;
    let field = |(name, part): &(&str, Part<'a>)| {
        Ok(BodyField {
            parameter: describe_parameter(spec, name, "", part)?,
            is_required: !is_optional && properties.required.contains(name),
            is_whole_body: false,
        })
    };
    properties.found.iter().map(field).collect()
}

/// Media type and content of a body. JSON is preferred, then forms, then text, then the first
/// listed.
pub(super) fn preferred_body<'a>(body: &Part<'a>) -> Option<(&'a str, Part<'a>)> {
    let contents = body.members("content");
    contents.into_iter().min_by_key(|(name, _)| rank(name))
}

/// Media types with a preference rank below this number can be sent.
const SENDABLE_RANKS: usize = 3;

fn rank(media_type: &str) -> usize {
    let kind = media_type.split(';').next().unwrap_or_default();
    let kind = kind.trim().to_lowercase();
    match kind.as_str() {
        kind if kind.contains("json") => 0,
        "application/x-www-form-urlencoded" => 1,
        "*/*" => 2,
        kind if kind.starts_with("text/") => 2,
        _ => SENDABLE_RANKS,
    }
}

/// Whether the HTTP executor can send a body of this type.
pub(super) fn is_sendable(media_type: &str) -> bool {
    rank(media_type) < SENDABLE_RANKS
}

/// Whether a schema's `required` applies. It does not if the schema is one of several alternatives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RequiredKeys {
    AsWritten,
    Nothing,
}

#[derive(Default)]
struct Properties<'a> {
    found: Vec<(&'a str, Part<'a>)>,
    names: HashSet<&'a str>,
    required: HashSet<&'a str>,
    /// Pointers of the visited schemas; prevents endless recursion.
    seen: HashSet<String>,
}

impl<'a> Properties<'a> {
    fn gather(
        &mut self,
        spec: Spec<'a>,
        schema: Part<'a>,
        requires: RequiredKeys,
    ) -> Result<(), ToolsError> {
        let schema = spec.resolve(schema)?;
        if !self.seen.insert(schema.pointer.clone()) {
            return Ok(());
        }
        let lists = ["properties", "required", "allOf", "anyOf", "oneOf"].iter();
        let lists = lists.filter_map(|key| schema.value.get(key));
        let n_parts: usize = lists.map(n_members).sum();
        spec.charge(STEP_BYTES.saturating_mul(1 + n_parts), &schema)?;
        for (name, part) in schema.members("properties") {
            // The server sets these fields.
            let is_output = spec.resolve(part.clone())?.flag("readOnly")? == Some(true);
            if !is_output && self.names.insert(name) {
                self.found.push((name, part));
            }
        }
        if requires == RequiredKeys::AsWritten {
            let names = schema.elements("required").into_iter();
            let names = names.filter_map(|name| name.value.as_str());
            self.required.extend(names);
        }
        for (key, binds) in [
            ("allOf", requires),
            ("anyOf", RequiredKeys::Nothing),
            ("oneOf", RequiredKeys::Nothing),
        ] {
            let parts = schema.elements(key);
            if key != "allOf" && !parts.is_empty() {
                let what = "objects with alternative schemas, whose fields are merged";
                spec.report(what, &schema.pointer);
            }
            for part in parts {
                self.gather(spec, part, binds)?;
            }
        }
        Ok(())
    }
}

fn n_members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    }
}

/// The JSON Schema type of a schema; empty if it cannot be determined.
pub(super) fn schema_kind(spec: Spec<'_>, schema: &Part<'_>) -> Result<String, ToolsError> {
    const MAX_PARTS: usize = 8;
    let mut current = schema.clone();
    for _ in 0..MAX_PARTS {
        if let Some(kind) = declared_type(current.value) {
            return Ok(kind);
        }
        if current.value.get("$ref").is_some() {
            current = spec.resolve(current)?;
            continue;
        }
        let lists = ["allOf", "anyOf", "oneOf"].iter();
        let n_parts: usize = lists
            .filter_map(|key| current.value.get(key))
            .map(n_members)
            .sum();
        spec.charge(STEP_BYTES.saturating_mul(n_parts), &current)?;
        let mut parts = current.elements("allOf");
        parts.extend(current.elements("anyOf"));
        parts.extend(current.elements("oneOf"));
        let is_real = |part: &Part<'_>| part.value.get("type") != Some(&Value::from("null"));
        match parts.into_iter().find(is_real) {
            Some(part) => current = spec.resolve(part)?,
            None => break,
        }
    }
    Ok(String::new())
}
