//! Builds the JSON Schema of a parameter or a response with its references expanded.
//!
//! Schemas in documents contain no references. A recursive part is cut where it repeats, and a
//! schema larger than [`SCHEMA_BYTES`] is cut below the deepest level that fits; both are reported.
//! OpenAPI 3.0 keywords such as `nullable` are converted to JSON Schema, and `allOf` branches that
//! do not interact are merged into one object. A broken reference inside a schema allows any value
//! in that part and is reported, so one bad component does not reject the whole specification.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::body::schema_kind;
use super::merge::{is_annotation, merge};
use super::openapi::n_bytes;
use super::reference::{Part, STEP_BYTES, Spec};
use crate::budgets::SCHEMA_BYTES;
use crate::error::ToolsError;

/// Numbers of levels that are tried for a schema that is too large, deepest first.
const LEVELS: [usize; 7] = [24, 12, 8, 5, 3, 2, 1];

/// Memory of a schema part in bytes, without its strings.
const PART_BYTES: usize = 240;

/// Keywords with one schema.
const SCHEMA_KEYWORDS: [&str; 11] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Keywords with a list of schemas.
const SCHEMA_LIST_KEYWORDS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Keywords with schemas by name.
const SCHEMA_MAP_KEYWORDS: [&str; 3] = ["dependentSchemas", "patternProperties", "properties"];

/// Keywords that are copied unchanged.
const COPIED_KEYWORDS: [&str; 24] = [
    "const",
    "contentEncoding",
    "contentMediaType",
    "default",
    "dependentRequired",
    "deprecated",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "uniqueItems",
];

/// Keywords that do not restrict a single value, or that are handled elsewhere.
const IGNORED_KEYWORDS: [&str; 12] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "definitions",
    "nullable",
    "readOnly",
    "required",
    "title",
    "writeOnly",
];

/// The types of JSON Schema.
const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// Direction of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// To the server, which itself sets `readOnly` fields.
    Request,
    /// From the server, which omits `writeOnly` fields.
    Response,
}

/// A converted schema and a record of the information that it discards.
#[derive(Debug)]
pub(super) struct ConvertedSchema {
    schema: Option<Value>,
    /// Memory of one copy in bytes.
    n_bytes: usize,
    /// Kind and location of each discarded part; the location is relative to the label.
    discarded: Vec<(String, String)>,
}

/// Converts the schema of a part, which reports call `label`. Returns `None` if even its top level
/// does not fit.
///
/// # Errors
///
/// - all schemas together exceed the limit of the specification
pub(super) fn convert_schema<'a>(
    spec: Spec<'a>,
    part: &Part<'a>,
    label: &str,
    direction: Direction,
) -> Result<Option<Value>, ToolsError> {
    // Cache a part that is only a reference, because all such parts are equal.
    let is_reference = |fields: &Map<String, Value>| fields.len() == 1;
    let reference = part.value.as_object().filter(|fields| is_reference(fields));
    let reference = reference
        .and_then(|fields| fields.get("$ref"))
        .and_then(Value::as_str);
    let cached = reference.and_then(|pointer| spec.cached_schema(pointer, direction));
    let converted = match cached {
        Some(converted) => converted,
        None => {
            let converted = Rc::new(read_schema(spec, part, direction)?);
            if let Some(pointer) = reference {
                spec.cache_schema(pointer, direction, &converted);
            }
            converted
        }
    };
    spec.charge(converted.n_bytes, part)?;
    for (what, at) in &converted.discarded {
        spec.report(what, &format!("{label}{at}"));
    }
    Ok(converted.schema.clone())
}

fn read_schema<'a>(
    spec: Spec<'a>,
    part: &Part<'a>,
    direction: Direction,
) -> Result<ConvertedSchema, ToolsError> {
    for (attempt, max_level) in LEVELS.into_iter().enumerate() {
        let mut builder = Builder {
            spec,
            direction,
            max_level,
            open: Vec::new(),
            n_bytes: 0,
            n_parts: 0,
            discarded: Vec::new(),
            is_cut: false,
        };
        let schema = match builder.schema(part.clone(), 0) {
            Ok(schema) => schema,
            Err(BuildFailure::TooLarge) => continue,
            Err(BuildFailure::Fault(error)) => return Err(error),
        };
        let mut discarded = builder.discarded;
        if attempt > 0 {
            let what = format!(
                "schemas of more than {SCHEMA_BYTES} bytes (SCHEMA_BYTES in docs/limits.md), cut \
                 below level {max_level}"
            );
            discarded.push((what, String::new()));
        } else if builder.is_cut {
            let what = format!("schemas of more than {max_level} levels, cut below");
            discarded.push((what, String::new()));
        }
        return Ok(ConvertedSchema {
            schema: Some(schema),
            n_bytes: builder.n_bytes + builder.n_parts * PART_BYTES,
            discarded,
        });
    }
    let what = format!(
        "schemas of more than {SCHEMA_BYTES} bytes (SCHEMA_BYTES in docs/limits.md), left out whole"
    );
    Ok(ConvertedSchema {
        schema: None,
        n_bytes: 0,
        discarded: vec![(what, String::new())],
    })
}

/// Why a schema was not built.
enum BuildFailure {
    TooLarge,
    Fault(ToolsError),
}

struct Builder<'a> {
    spec: Spec<'a>,
    direction: Direction,
    max_level: usize,
    /// Pointers of the enclosing parts.
    open: Vec<String>,
    n_bytes: usize,
    n_parts: usize,
    /// Kind of each discarded part, and its pointer relative to the root.
    discarded: Vec<(String, String)>,
    is_cut: bool,
}

impl<'a> Builder<'a> {
    fn schema(&mut self, part: Part<'a>, level: usize) -> Result<Value, BuildFailure> {
        self.charge(STEP_BYTES)?;
        self.n_parts += 1;
        self.spec.step(&part).map_err(BuildFailure::Fault)?;
        if part.value.is_boolean() {
            return Ok(part.value.clone());
        }
        let siblings = part.value.get("$ref").and(part.value.as_object());
        let at = part.clone();
        let resolved = match self.spec.resolve(part) {
            Ok(resolved) => resolved,
            Err(error @ ToolsError::UnresolvedReference { .. }) => {
                self.report(&format!("references that do not resolve ({error})"), &at);
                return Ok(json!({}));
            }
            Err(error) => return Err(BuildFailure::Fault(error)),
        };
        let Some(keywords) = resolved.value.as_object() else {
            if resolved.value.is_boolean() {
                return Ok(resolved.value.clone());
            }
            self.report(
                "parts that are not schemas, which allow any value",
                &resolved,
            );
            return Ok(json!({}));
        };
        let is_within_itself = self.open.contains(&resolved.pointer);
        let schema = if is_within_itself || level > self.max_level {
            if is_within_itself {
                let what = "recursive schemas, which allow any value of the type where they repeat";
                self.report(what, &resolved);
            } else {
                self.is_cut = true;
            }
            convert_nullable(only_type(keywords), keywords)
        } else {
            self.open.push(resolved.pointer.clone());
            let schema = self.keywords(&resolved, keywords, level);
            self.open.pop();
            schema?
        };
        match siblings {
            // Keywords next to a reference apply together with the keywords of its target.
            Some(siblings) if siblings.len() > 1 => {
                self.with_siblings(&at, siblings, schema, level)
            }
            _ => Ok(schema),
        }
    }

    /// The target of a reference merged with the keywords next to the reference.
    fn with_siblings(
        &mut self,
        at: &Part<'a>,
        siblings: &'a Map<String, Value>,
        target_schema: Value,
        level: usize,
    ) -> Result<Value, BuildFailure> {
        let converted = self.plain_keywords(at, siblings, level)?;
        let both = match (converted, target_schema) {
            (Value::Object(converted), Value::Object(target_schema)) => {
                merge(converted, target_schema)
            }
            (_, target_schema) => target_schema,
        };
        // `nullable` also allows null; every other keyword next to the reference restricts values.
        Ok(convert_nullable(both, siblings))
    }

    fn keywords(
        &mut self,
        part: &Part<'a>,
        keywords: &'a Map<String, Value>,
        level: usize,
    ) -> Result<Value, BuildFailure> {
        let schema = self.plain_keywords(part, keywords, level)?;
        Ok(convert_nullable(schema, keywords))
    }

    /// All keywords except `nullable`.
    fn plain_keywords(
        &mut self,
        part: &Part<'a>,
        keywords: &'a Map<String, Value>,
        level: usize,
    ) -> Result<Value, BuildFailure> {
        let mut result = Map::new();
        for (keyword, value) in keywords {
            self.charge(keyword.len())?;
            match keyword.as_str() {
                "properties" => {
                    let properties = self.properties(part, level)?;
                    result.insert(keyword.clone(), Value::Object(properties));
                }
                "type" => self.kind(part, value, &mut result),
                "allOf" => {}
                name if SCHEMA_KEYWORDS.contains(&name) && !value.is_array() => {
                    if let Some(child) = part.child(name) {
                        result.insert(keyword.clone(), self.schema(child, level + 1)?);
                    }
                }
                name if SCHEMA_LIST_KEYWORDS.contains(&name) => {
                    let branches = part.elements(name).into_iter();
                    let branches = branches.map(|branch| self.schema(branch, level + 1));
                    let branches = branches.collect::<Result<Vec<_>, _>>()?;
                    result.insert(keyword.clone(), Value::Array(branches));
                }
                name if SCHEMA_MAP_KEYWORDS.contains(&name) => {
                    let mut schemas = Map::new();
                    for (name, schema) in part.members(name) {
                        self.charge(name.len())?;
                        schemas.insert(name.to_owned(), self.schema(schema, level + 1)?);
                    }
                    result.insert(keyword.clone(), Value::Object(schemas));
                }
                name if COPIED_KEYWORDS.contains(&name) => {
                    self.charge(n_bytes(value))?;
                    result.insert(keyword.clone(), self.keep_value(part, name, value)?);
                }
                name if IGNORED_KEYWORDS.contains(&name) => {}
                name if name.starts_with("x-") => self.report("extensions (x-...)", part),
                name => self.report(&format!("keywords {name:?} of schemas"), part),
            }
        }
        self.required(keywords, &mut result);
        excluded_bounds(&mut result);
        let title = keywords
            .get("title")
            .filter(|_| !result.contains_key("description"));
        if let Some(title @ Value::String(_)) = title {
            self.charge(n_bytes(title))?;
            result.insert("description".to_owned(), title.clone());
        }
        let mut result_schema = Value::Object(result);
        for branch in part.elements("allOf") {
            result_schema = match (result_schema, self.schema(branch, level + 1)?) {
                (Value::Object(converted), Value::Object(branch)) => merge(converted, branch),
                (result_schema, _) => result_schema,
            };
        }
        Ok(result_schema)
    }

    /// The unchanged value of a keyword; YAML scalars become strings if the schema requires it.
    fn keep_value(
        &self,
        part: &Part<'a>,
        keyword: &str,
        value: &Value,
    ) -> Result<Value, BuildFailure> {
        if !["const", "default", "enum"].contains(&keyword) {
            return Ok(value.clone());
        }
        let pointer = format!("{}/{keyword}", part.pointer);
        let as_text = |value: &Value, pointer: &str| {
            let text = self.spec.as_text(value, pointer);
            text.map_or_else(|| value.clone(), Value::from)
        };
        let has_scalars = match value {
            Value::Array(items) => items
                .iter()
                .any(|item| self.spec.as_text(item, &pointer).is_some()),
            value => self.spec.as_text(value, &pointer).is_some(),
        };
        let is_text = || schema_kind(self.spec, part).map(|kind| kind == "string");
        if !has_scalars || !is_text().map_err(BuildFailure::Fault)? {
            return Ok(value.clone());
        }
        Ok(match value {
            Value::Array(items) => {
                let items = items.iter().enumerate();
                items
                    .map(|(idx, item)| as_text(item, &format!("{pointer}/{idx}")))
                    .collect()
            }
            value => as_text(value, &pointer),
        })
    }

    /// Properties that are used in this direction.
    fn properties(
        &mut self,
        part: &Part<'a>,
        level: usize,
    ) -> Result<Map<String, Value>, BuildFailure> {
        let hidden = match self.direction {
            Direction::Request => "readOnly",
            Direction::Response => "writeOnly",
        };
        let mut properties = Map::new();
        for (name, property) in part.members("properties") {
            self.charge(name.len())?;
            let resolved = self.spec.resolve(property.clone());
            let is_hidden = |part: &Part<'a>| matches!(part.flag(hidden), Ok(Some(true)));
            if is_hidden(&property) || resolved.is_ok_and(|part| is_hidden(&part)) {
                continue;
            }
            properties.insert(name.to_owned(), self.schema(property, level + 1)?);
        }
        Ok(properties)
    }

    /// Required names that are used in this direction.
    fn required(&mut self, keywords: &Map<String, Value>, schema: &mut Map<String, Value>) {
        let Some(required) = keywords.get("required").and_then(Value::as_array) else {
            return;
        };
        let all = keywords.get("properties").and_then(Value::as_object);
        let properties = schema.get("properties").and_then(Value::as_object);
        let has = |map: Option<&Map<String, Value>>, name: &str| {
            map.is_some_and(|map| map.contains_key(name))
        };
        let names = required.iter().filter(|name| {
            let name = name.as_str();
            name.is_some_and(|name| has(properties, name) || !has(all, name))
        });
        let names: Vec<Value> = names.cloned().collect();
        if !names.is_empty() {
            schema.insert("required".to_owned(), Value::Array(names));
        }
    }

    fn kind(&mut self, part: &Part<'a>, value: &Value, schema: &mut Map<String, Value>) {
        let is_known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let is_good = match value {
            Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_known),
            kind => is_known(kind),
        };
        if is_good {
            schema.insert("type".to_owned(), value.clone());
        } else {
            self.report(
                &format!("types {value} that JSON Schema does not have"),
                part,
            );
        }
    }

    fn report(&mut self, what: &str, part: &Part<'_>) {
        self.discarded
            .push((what.to_owned(), format!(" at {}", part.pointer)));
    }

    fn charge(&mut self, n_bytes: usize) -> Result<(), BuildFailure> {
        self.n_bytes += n_bytes;
        if self.n_bytes > SCHEMA_BYTES {
            return Err(BuildFailure::TooLarge);
        }
        Ok(())
    }
}

/// A schema with only the type.
fn only_type(keywords: &Map<String, Value>) -> Value {
    let implied_type = if keywords.contains_key("properties") {
        Some("object")
    } else if keywords.contains_key("items") {
        Some("array")
    } else {
        None
    };
    match (keywords.get("type"), implied_type) {
        (Some(kind @ Value::String(word)), _) if TYPES.contains(&word.as_str()) => {
            json!({"type": kind})
        }
        (None, Some(kind)) => json!({"type": kind}),
        _ => json!({}),
    }
}

/// Converts OpenAPI 3.0's `nullable` to JSON Schema.
fn convert_nullable(schema: Value, keywords: &Map<String, Value>) -> Value {
    let is_nullable = keywords.get("nullable") == Some(&Value::Bool(true));
    let Value::Object(mut schema) = schema else {
        return schema;
    };
    if !is_nullable {
        return Value::Object(schema);
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    match schema.get("type").cloned() {
        Some(kind @ Value::String(_)) if kind != "null" => {
            schema.insert("type".to_owned(), json!([kind, "null"]));
            Value::Object(schema)
        }
        Some(_) => Value::Object(schema),
        None if schema.keys().all(|key| is_annotation(key)) => Value::Object(schema),
        None => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}

/// Converts OpenAPI 3.0's boolean exclusive bounds to JSON Schema.
fn excluded_bounds(schema: &mut Map<String, Value>) {
    for (excluded, bound) in [
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ] {
        match schema.get(excluded) {
            Some(Value::Bool(true)) => {
                match schema.shift_remove(bound) {
                    Some(value) => schema.insert(excluded.to_owned(), value),
                    None => schema.shift_remove(excluded),
                };
            }
            Some(Value::Bool(false)) => {
                schema.shift_remove(excluded);
            }
            _ => {}
        }
    }
}
