//! The fields of a request body, as parameters.
//!
//! A body that is an object gives one parameter for each property; any other body is one
//! parameter called `body`. A field is required where the schema requires it and the body is not
//! said to be optional: many specifications forget `requestBody.required`, and a playlist
//! without a name is an error all the same.

use std::collections::HashSet;

use serde_json::Value;

use super::openapi::{described, kind_of};
use super::reference::{Part, STEP_BYTES, Spec};
use crate::tools::document::ApiParameter;
use crate::tools::error::ToolsError;

/// A parameter and whether every call must give it.
pub(super) struct BodyField {
    pub(super) parameter: ApiParameter,
    pub(super) is_required: bool,
    /// Whether it is the body itself and no field of it.
    pub(super) is_whole: bool,
}

/// The fields of the request body of an operation; none where it has no body.
pub(super) fn body_fields<'a>(
    spec: Spec<'a>,
    operation: &Part<'a>,
) -> Result<Vec<BodyField>, ToolsError> {
    let Some(body) = operation.child("requestBody") else {
        return Ok(Vec::new());
    };
    let body = spec.resolve(body)?;
    let Some(schema) = preferred_body(&body).and_then(|(_, content)| content.child("schema"))
    else {
        return Ok(Vec::new());
    };
    let n_kinds = body.members("content").len();
    if n_kinds > 1 {
        spec.tell("media types of bodies beside the one that is read", "");
    }
    let is_optional = body.flag("required")? == Some(false);
    let mut fields = object_fields(spec, schema.clone(), is_optional)?;
    if fields.is_empty() {
        let is_required = body.flag("required")? == Some(true);
        let schema = spec.resolve(schema)?;
        fields.push(BodyField {
            parameter: described(spec, "body", body.text("description"), &schema)?,
            is_required,
            is_whole: true,
        });
    }
    for field in &mut fields {
        "body".clone_into(&mut field.parameter.location);
    }
    Ok(fields)
}

/// The properties of the schema of an object as parameters; none where it declares none.
pub(super) fn object_fields<'a>(
    spec: Spec<'a>,
    schema: Part<'a>,
    is_optional: bool,
) -> Result<Vec<BodyField>, ToolsError> {
    let mut properties = Properties::default();
    properties.gather(spec, schema, Requires::AsWritten)?;
    let field = |(name, part): &(&str, Part<'a>)| {
        let text = part.text("description");
        let part = spec.resolve(part.clone())?;
        Ok(BodyField {
            parameter: described(spec, name, text, &part)?,
            is_required: !is_optional && properties.required.contains(name),
            is_whole: false,
        })
    };
    properties.found.iter().map(field).collect()
}

/// Media type and content of a body: JSON before forms before whatever comes first.
pub(super) fn preferred_body<'a>(body: &Part<'a>) -> Option<(&'a str, Part<'a>)> {
    let contents = body.members("content");
    let rank = |name: &str| match name {
        _ if name.contains("json") => 0,
        _ if name.contains("form") => 1,
        _ => 2,
    };
    contents.into_iter().min_by_key(|(name, _)| rank(name))
}

/// Whether `required` of a schema binds: not where the schema is one of several to choose from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Requires {
    AsWritten,
    Nothing,
}

#[derive(Default)]
struct Properties<'a> {
    found: Vec<(&'a str, Part<'a>)>,
    names: HashSet<&'a str>,
    required: HashSet<&'a str>,
    /// Pointers of the schemas gathered, so that a schema that contains itself ends.
    seen: HashSet<String>,
}

impl<'a> Properties<'a> {
    fn gather(
        &mut self,
        spec: Spec<'a>,
        schema: Part<'a>,
        requires: Requires,
    ) -> Result<(), ToolsError> {
        let schema = spec.resolve(schema)?;
        if !self.seen.insert(schema.pointer.clone()) {
            return Ok(());
        }
        let lists = ["properties", "required", "allOf", "anyOf", "oneOf"].iter();
        let lists = lists.filter_map(|key| schema.value.get(key));
        let n_parts: usize = lists.map(n_members).sum();
        spec.take(STEP_BYTES.saturating_mul(1 + n_parts), &schema)?;
        for (name, part) in schema.members("properties") {
            // The server fills these in.
            let is_output = spec.resolve(part.clone())?.flag("readOnly")? == Some(true);
            if !is_output && self.names.insert(name) {
                self.found.push((name, part));
            }
        }
        if requires == Requires::AsWritten {
            let names = schema.elements("required").into_iter();
            let names = names.filter_map(|name| name.value.as_str());
            self.required.extend(names);
        }
        for (key, binds) in [
            ("allOf", requires),
            ("anyOf", Requires::Nothing),
            ("oneOf", Requires::Nothing),
        ] {
            let parts = schema.elements(key);
            if key != "allOf" && !parts.is_empty() {
                let what = "objects of several forms, whose fields are offered together";
                spec.tell(what, &schema.pointer);
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

/// The type of a schema in JSON schema's words; empty where nothing tells it.
pub(super) fn schema_kind(spec: Spec<'_>, schema: &Part<'_>) -> Result<String, ToolsError> {
    const MAX_PARTS: usize = 8;
    let mut here = schema.clone();
    for _ in 0..MAX_PARTS {
        if let Some(kind) = kind_of(here.value) {
            return Ok(kind);
        }
        let lists = ["allOf", "anyOf", "oneOf"].iter();
        let n_parts: usize = lists
            .filter_map(|key| here.value.get(key))
            .map(n_members)
            .sum();
        spec.take(STEP_BYTES.saturating_mul(n_parts), &here)?;
        let mut parts = here.elements("allOf");
        parts.extend(here.elements("anyOf"));
        parts.extend(here.elements("oneOf"));
        let is_real = |part: &Part<'_>| part.value.get("type") != Some(&Value::from("null"));
        match parts.into_iter().find(is_real) {
            Some(part) => here = spec.resolve(part)?,
            None => break,
        }
    }
    Ok(String::new())
}
