//! The JSON Schema of a parameter or a response, with what it refers to put in its place.
//!
//! A document stands alone, so its schemas have no references: a part that contains itself is cut
//! where it comes again, and what would take more than [`SCHEMA_BYTES`] is cut below the deepest
//! level that fits; both are told. The words of OpenAPI 3.0 become those of JSON Schema, such as
//! `nullable`, and branches of `allOf` that only add to each other become one object.
//! The decision to question: a broken reference inside of a schema leaves that part free, with a
//! line that says so, because one bad component should not cost a whole specification.

use serde_json::{Map, Value, json};

use super::openapi::n_bytes;
use super::reference::{Part, STEP_BYTES, Spec};
use crate::budgets::SCHEMA_BYTES;
use crate::tools::error::ToolsError;

/// Levels of a schema that are tried, the deepest first.
const LEVELS: [usize; 7] = [24, 12, 8, 5, 3, 2, 1];

/// Keywords that hold one schema.
const ONE: [&str; 11] = [
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

/// Keywords that hold a list of schemas.
const MANY: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Keywords that hold schemas by name.
const NAMED: [&str; 3] = ["dependentSchemas", "patternProperties", "properties"];

/// Keywords that are kept word for word.
const KEPT: [&str; 24] = [
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

/// Keywords that say nothing of a value that stands alone, or that are read where they stand.
const READ_ELSEWHERE: [&str; 12] = [
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

/// The types that JSON Schema has.
const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// Which way a value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the server, which fills in what is `readOnly`.
    Request,
    /// From the server, which does not tell what is `writeOnly`.
    Response,
}

/// The schema of a part, called `label` in what is told; none where nothing of it fits.
///
/// # Errors
///
/// - all schemas together take more than the specification may
pub(super) fn held_schema<'a>(
    spec: Spec<'a>,
    part: &Part<'a>,
    label: &str,
    direction: Direction,
) -> Result<Option<Value>, ToolsError> {
    for (attempt, max_level) in LEVELS.into_iter().enumerate() {
        let mut builder = Builder {
            spec,
            direction,
            max_level,
            open: Vec::new(),
            n_bytes: 0,
            told: Vec::new(),
            is_cut: false,
        };
        let schema = match builder.schema(part.clone(), 0) {
            Ok(schema) => schema,
            Err(Stop::TooLarge) => continue,
            Err(Stop::Fault(error)) => return Err(error),
        };
        spec.take(builder.n_bytes, part)?;
        for (what, at) in builder.told {
            spec.tell(&what, &format!("{label}{at}"));
        }
        if attempt > 0 {
            let what = format!(
                "schemas of more than {SCHEMA_BYTES} bytes (SCHEMA_BYTES in docs/limits.md), cut \
                 below level {max_level}"
            );
            spec.tell(&what, label);
        } else if builder.is_cut {
            let what = format!("schemas of more than {max_level} levels, cut below");
            spec.tell(&what, label);
        }
        return Ok(Some(schema));
    }
    let what = format!(
        "schemas of more than {SCHEMA_BYTES} bytes (SCHEMA_BYTES in docs/limits.md), left out whole"
    );
    spec.tell(&what, label);
    Ok(None)
}

/// Why a schema is not made.
enum Stop {
    TooLarge,
    Fault(ToolsError),
}

struct Builder<'a> {
    spec: Spec<'a>,
    direction: Direction,
    max_level: usize,
    /// Pointers of the parts that the walk is in.
    open: Vec<String>,
    n_bytes: usize,
    /// What is not held, and where: the pointer below the whole.
    told: Vec<(String, String)>,
    is_cut: bool,
}

impl<'a> Builder<'a> {
    fn schema(&mut self, part: Part<'a>, level: usize) -> Result<Value, Stop> {
        self.spend(STEP_BYTES)?;
        if part.value.is_boolean() {
            return Ok(part.value.clone());
        }
        let beside = part.value.get("$ref").and(part.value.as_object());
        let at = part.clone();
        let resolved = match self.spec.resolve(part) {
            Ok(resolved) => resolved,
            Err(error @ ToolsError::UnresolvedReference { .. }) => {
                self.tell(
                    &format!("references that cannot be followed ({error})"),
                    &at,
                );
                return Ok(json!({}));
            }
            Err(error) => return Err(Stop::Fault(error)),
        };
        let Some(keywords) = resolved.value.as_object() else {
            if resolved.value.is_boolean() {
                return Ok(resolved.value.clone());
            }
            self.tell(
                "parts that are no schema, where any value is taken",
                &resolved,
            );
            return Ok(json!({}));
        };
        if self.open.contains(&resolved.pointer) {
            let what = "schemas that contain themselves, where any value of the type is taken";
            self.tell(what, &resolved);
            return Ok(nullable(type_alone(keywords), keywords));
        }
        if level > self.max_level {
            self.is_cut = true;
            return Ok(nullable(type_alone(keywords), keywords));
        }
        self.open.push(resolved.pointer.clone());
        let made = self.keywords(&resolved, keywords, level);
        self.open.pop();
        let made = made?;
        match beside {
            // What stands beside a reference says more of the same value.
            Some(beside) if beside.len() > 1 => {
                let own = self.keywords(&at, beside, level)?;
                Ok(match (own, made) {
                    (Value::Object(own), Value::Object(made)) => together(own, made),
                    (_, made) => made,
                })
            }
            _ => Ok(made),
        }
    }

    fn keywords(
        &mut self,
        part: &Part<'a>,
        keywords: &'a Map<String, Value>,
        level: usize,
    ) -> Result<Value, Stop> {
        let mut made = Map::new();
        for (keyword, value) in keywords {
            self.spend(keyword.len())?;
            match keyword.as_str() {
                "properties" => {
                    let properties = self.properties(part, level)?;
                    made.insert(keyword.clone(), Value::Object(properties));
                }
                "type" => self.kind(part, value, &mut made),
                "allOf" => {}
                name if ONE.contains(&name) && !value.is_array() => {
                    if let Some(child) = part.child(name) {
                        made.insert(keyword.clone(), self.schema(child, level + 1)?);
                    }
                }
                name if MANY.contains(&name) => {
                    let branches = part.elements(name).into_iter();
                    let branches = branches.map(|branch| self.schema(branch, level + 1));
                    let branches = branches.collect::<Result<Vec<_>, _>>()?;
                    made.insert(keyword.clone(), Value::Array(branches));
                }
                name if NAMED.contains(&name) => {
                    let mut schemas = Map::new();
                    for (name, schema) in part.members(name) {
                        self.spend(name.len())?;
                        schemas.insert(name.to_owned(), self.schema(schema, level + 1)?);
                    }
                    made.insert(keyword.clone(), Value::Object(schemas));
                }
                name if KEPT.contains(&name) => {
                    self.spend(n_bytes(value))?;
                    made.insert(keyword.clone(), value.clone());
                }
                name if READ_ELSEWHERE.contains(&name) => {}
                name if name.starts_with("x-") => self.tell("extensions (x-...)", part),
                name => self.tell(&format!("keywords {name:?} of schemas"), part),
            }
        }
        self.required(keywords, &mut made);
        excluded_bounds(&mut made);
        let title = keywords
            .get("title")
            .filter(|_| !made.contains_key("description"));
        if let Some(title @ Value::String(_)) = title {
            self.spend(n_bytes(title))?;
            made.insert("description".to_owned(), title.clone());
        }
        let mut whole = Value::Object(made);
        for branch in part.elements("allOf") {
            whole = match (whole, self.schema(branch, level + 1)?) {
                (Value::Object(own), Value::Object(branch)) => together(own, branch),
                (whole, _) => whole,
            };
        }
        Ok(nullable(whole, keywords))
    }

    /// The properties that go this way.
    fn properties(&mut self, part: &Part<'a>, level: usize) -> Result<Map<String, Value>, Stop> {
        let hidden = match self.direction {
            Direction::Request => "readOnly",
            Direction::Response => "writeOnly",
        };
        let mut made = Map::new();
        for (name, property) in part.members("properties") {
            self.spend(name.len())?;
            let resolved = self.spec.resolve(property.clone());
            let is_hidden = |part: &Part<'a>| matches!(part.flag(hidden), Ok(Some(true)));
            if is_hidden(&property) || resolved.is_ok_and(|part| is_hidden(&part)) {
                continue;
            }
            made.insert(name.to_owned(), self.schema(property, level + 1)?);
        }
        Ok(made)
    }

    /// The names that are required and go this way.
    fn required(&mut self, keywords: &Map<String, Value>, made: &mut Map<String, Value>) {
        let Some(required) = keywords.get("required").and_then(Value::as_array) else {
            return;
        };
        let all = keywords.get("properties").and_then(Value::as_object);
        let kept = made.get("properties").and_then(Value::as_object);
        let has = |map: Option<&Map<String, Value>>, name: &str| {
            map.is_some_and(|map| map.contains_key(name))
        };
        let names = required.iter().filter(|name| {
            let name = name.as_str();
            name.is_some_and(|name| has(kept, name) || !has(all, name))
        });
        let names: Vec<Value> = names.cloned().collect();
        if !names.is_empty() {
            made.insert("required".to_owned(), Value::Array(names));
        }
    }

    fn kind(&mut self, part: &Part<'a>, value: &Value, made: &mut Map<String, Value>) {
        let is_known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let is_good = match value {
            Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_known),
            kind => is_known(kind),
        };
        if is_good {
            made.insert("type".to_owned(), value.clone());
        } else {
            self.tell(
                &format!("types {value} that JSON Schema does not have"),
                part,
            );
        }
    }

    fn tell(&mut self, what: &str, part: &Part<'_>) {
        self.told
            .push((what.to_owned(), format!(" at {}", part.pointer)));
    }

    fn spend(&mut self, n_bytes: usize) -> Result<(), Stop> {
        self.n_bytes += n_bytes;
        if self.n_bytes > SCHEMA_BYTES {
            return Err(Stop::TooLarge);
        }
        Ok(())
    }
}

/// The type of a schema and nothing else.
fn type_alone(keywords: &Map<String, Value>) -> Value {
    let of_shape = if keywords.contains_key("properties") {
        Some("object")
    } else if keywords.contains_key("items") {
        Some("array")
    } else {
        None
    };
    match (keywords.get("type"), of_shape) {
        (Some(kind @ Value::String(word)), _) if TYPES.contains(&word.as_str()) => {
            json!({"type": kind})
        }
        (None, Some(kind)) => json!({"type": kind}),
        _ => json!({}),
    }
}

/// OpenAPI 3.0's `nullable` as JSON Schema says it.
fn nullable(schema: Value, keywords: &Map<String, Value>) -> Value {
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

/// OpenAPI 3.0's bounds that are said to be excluded, as JSON Schema says it.
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

fn is_annotation(keyword: &str) -> bool {
    ["default", "deprecated", "description"].contains(&keyword)
}

/// Two schemas that both hold, as one: what `first` says of the whole counts.
fn together(first: Map<String, Value>, second: Map<String, Value>) -> Value {
    if let Some(merged) = merged(&first, &second) {
        return Value::Object(merged);
    }
    let mut first = first;
    match first.get_mut("allOf") {
        Some(Value::Array(branches)) => branches.push(Value::Object(second)),
        _ => {
            first.insert("allOf".to_owned(), json!([second]));
        }
    }
    Value::Object(first)
}

/// Two schemas as one where no keyword of theirs says of the other's part.
fn merged(first: &Map<String, Value>, second: &Map<String, Value>) -> Option<Map<String, Value>> {
    let says_nothing = |map: &Map<String, Value>| map.keys().all(|key| is_annotation(key));
    let overruled = |by: &Map<String, Value>, map: &Map<String, Value>| {
        let mut map = map.clone();
        map.extend(by.clone());
        Some(map)
    };
    if says_nothing(first) {
        return overruled(first, second);
    }
    // These speak of all keys or items that the same schema does not name.
    let speaks_of_others = |map: &Map<String, Value>| {
        let words = [
            "additionalProperties",
            "allOf",
            "patternProperties",
            "prefixItems",
            "unevaluatedItems",
            "unevaluatedProperties",
        ];
        words.iter().any(|word| map.contains_key(*word))
    };
    if !says_nothing(second) && (speaks_of_others(first) || speaks_of_others(second)) {
        return None;
    }
    let mut both = first.clone();
    for (keyword, value) in second {
        match (keyword.as_str(), both.get_mut(keyword)) {
            (_, None) => {
                both.insert(keyword.clone(), value.clone());
            }
            (name, Some(_)) if is_annotation(name) => {}
            ("properties", Some(Value::Object(properties))) => {
                for (name, property) in value.as_object()? {
                    let both = match (properties.get(name), property) {
                        (Some(Value::Object(known)), Value::Object(property)) => {
                            together(known.clone(), property.clone())
                        }
                        (None, property) => property.clone(),
                        (Some(_), _) => return None,
                    };
                    properties.insert(name.clone(), both);
                }
            }
            ("required", Some(Value::Array(names))) => {
                for name in value.as_array()? {
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                }
            }
            (_, Some(known)) if known == value => {}
            _ => return None,
        }
    }
    Some(both)
}
