//! Reads a lowered schema as the set of values that it allows.

use serde_json::{Map, Value};

use super::formats::format_expression;
use super::{ArraySchema, ObjectSchema, Patterns, Schema, Schemas, StringSchema, schema_error};
use crate::error::GrammarError;
use crate::lower::WHOLE_TYPE;
use crate::ranges::{NumberSchema, Wholeness};

/// Maximum number of schemas that are read or intersected.
const MAX_WORK: usize = 50_000;
/// Maximum nesting of intersections.
const MAX_MEETING_LEVELS: usize = 128;

/// Reads a lowered schema with its definitions.
///
/// # Errors
///
/// The schema is too large, or two of its key patterns overlap.
pub(crate) fn read(lowered: &Map<String, Value>) -> Result<Schemas, GrammarError> {
    let definitions = lowered.get("$defs").and_then(Value::as_object);
    let definitions: Vec<&Value> = definitions.into_iter().flat_map(Map::values).collect();
    let mut reader = Reader {
        states: definitions.iter().map(|_| Definition::Unread).collect(),
        definitions,
        patterns: Patterns::default(),
        n_work: 0,
        n_pairs: 0,
    };
    let root = reader.object(lowered)?;
    for name in 0..reader.definitions.len() {
        reader.define(name)?;
    }
    let schema_of_state = |state| match state {
        Definition::Read(schema) => *schema,
        Definition::Unread | Definition::Reading => Schema::never("a definition was not read"),
    };
    Ok(Schemas {
        root,
        definitions: reader.states.into_iter().map(schema_of_state).collect(),
        patterns: reader.patterns,
    })
}

enum Definition {
    Unread,
    Reading,
    Read(Box<Schema>),
}

pub(super) struct Reader<'v> {
    definitions: Vec<&'v Value>,
    states: Vec<Definition>,
    pub(super) patterns: Patterns,
    n_work: usize,
    /// Number of compared pairs of alternatives.
    pub(super) n_pairs: usize,
}

impl<'v> Reader<'v> {
    /// Counts a schema that is read or intersected.
    pub(super) fn count_work(&mut self, n_levels: usize) -> Result<(), GrammarError> {
        self.n_work += 1;
        let reason = match (self.n_work > MAX_WORK, n_levels > MAX_MEETING_LEVELS) {
            (true, _) => "its alternatives combine to too many schemas",
            (_, true) => "the intersections of its references nest too deep",
            _ => return Ok(()),
        };
        Err(GrammarError::TooLarge {
            reason: reason.to_owned(),
        })
    }

    fn define(&mut self, name: usize) -> Result<(), GrammarError> {
        let Some(state @ Definition::Unread) = self.states.get_mut(name) else {
            return Ok(());
        };
        *state = Definition::Reading;
        let value = self.definitions[name];
        let schema = self.schema(value)?;
        self.states[name] = Definition::Read(Box::new(schema));
        Ok(())
    }

    /// The set that a definition allows.
    pub(super) fn resolve_definition(&mut self, name: usize) -> Result<Schema, GrammarError> {
        self.define(name)?;
        match self.states.get(name) {
            Some(Definition::Read(schema)) => Ok(schema.as_ref().clone()),
            _ => Err(schema_error(
                "circular references with sibling keys are not supported",
            )),
        }
    }

    fn schema(&mut self, value: &'v Value) -> Result<Schema, GrammarError> {
        match value {
            Value::Bool(true) => Ok(Schema::Any),
            Value::Object(fields) => self.object(fields),
            _ => Ok(Schema::never("schema is false")),
        }
    }

    fn schemas(&mut self, values: &'v Value) -> Result<Vec<Schema>, GrammarError> {
        let values = values.as_array().into_iter().flatten();
        values.map(|value| self.schema(value)).collect()
    }

    fn object(&mut self, fields: &'v Map<String, Value>) -> Result<Schema, GrammarError> {
        self.count_work(0)?;
        let mut schema = self.types(fields)?;
        for (keyword, value) in fields {
            let part = match keyword.as_str() {
                "$ref" => {
                    let name = value
                        .as_str()
                        .and_then(|name| name.strip_prefix("#/$defs/d"));
                    let name = name.and_then(|name| name.parse().ok());
                    let name =
                        name.ok_or_else(|| schema_error(format!("{value} is not a reference")))?;
                    self.define(name)?;
                    Schema::Reference(name)
                }
                "const" => constant(value),
                "enum" => {
                    let values = value.as_array().into_iter().flatten();
                    Schema::AnyOf(values.map(constant).collect())
                }
                "allOf" => {
                    for part in self.schemas(value)? {
                        schema = self.meet(schema, part, 0)?;
                    }
                    continue;
                }
                "anyOf" => Schema::AnyOf(self.schemas(value)?),
                "oneOf" => Schema::OneOf(self.schemas(value)?),
                _ => continue,
            };
            schema = self.meet(schema, part, 0)?;
        }
        self.simplify_choice(schema)
    }

    /// The set that `type` and type-specific keywords allow. Keywords that apply other schemas are
    /// ignored.
    fn types(&mut self, fields: &'v Map<String, Value>) -> Result<Schema, GrammarError> {
        const IN_PLACE: [&str; 7] = ["$ref", "const", "enum", "allOf", "anyOf", "oneOf", "$defs"];
        const ALL: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
        if fields.keys().all(|key| IN_PLACE.contains(&key.as_str())) {
            return Ok(Schema::Any);
        }
        let names: Vec<&str> = match fields.get("type") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(name) => name.as_str().into_iter().collect(),
            None => ALL.to_vec(),
        };
        let mut options = Vec::with_capacity(names.len());
        for name in names {
            options.push(match name {
                "null" => Schema::Null,
                "boolean" => Schema::Boolean(None),
                "number" => Schema::Number(numbers(fields, Wholeness::Any)),
                WHOLE_TYPE => Schema::Number(numbers(fields, Wholeness::Digits)),
                "integer" => Schema::Number(numbers(fields, Wholeness::Whole)),
                "string" => Schema::Text(read_string(fields)),
                "array" => Schema::Array(self.arrays(fields)?),
                _ => self.objects(fields)?,
            });
        }
        self.simplify_choice(Schema::AnyOf(options))
    }

    fn arrays(&mut self, fields: &'v Map<String, Value>) -> Result<ArraySchema, GrammarError> {
        Ok(ArraySchema {
            min_items: count(fields, "minItems").unwrap_or(0),
            max_items: count(fields, "maxItems"),
            prefix: match fields.get("prefixItems") {
                Some(items) => self.schemas(items)?,
                None => Vec::new(),
            },
            rest: Box::new(self.schema_or_any(fields, "items")?),
        })
    }

    fn schema_or_any(
        &mut self,
        fields: &'v Map<String, Value>,
        keyword: &str,
    ) -> Result<Schema, GrammarError> {
        match fields.get(keyword) {
            Some(value) => self.schema(value),
            None => Ok(Schema::Any),
        }
    }

    fn objects(&mut self, fields: &'v Map<String, Value>) -> Result<Schema, GrammarError> {
        let mut objects = ObjectSchema {
            min_properties: count(fields, "minProperties").unwrap_or(0),
            max_properties: count(fields, "maxProperties"),
            ..ObjectSchema::default()
        };
        for (keyword, parts) in [
            ("properties", &mut objects.properties),
            ("patternProperties", &mut objects.by_pattern),
        ] {
            let values = fields.get(keyword).and_then(Value::as_object);
            for (key, value) in values.into_iter().flatten() {
                parts.insert(key.clone(), self.schema(value)?);
            }
        }
        self.patterns.check_disjoint(objects.by_pattern.keys())?;
        // A declared key must also satisfy the schema of the pattern that it matches.
        for (key, property) in &mut objects.properties {
            for (pattern, schema) in &objects.by_pattern {
                if self.patterns.is_match(pattern, key)? {
                    let property_schema = std::mem::replace(property, Schema::Null);
                    *property = self.meet(property_schema, schema.clone(), 0)?;
                    break;
                }
            }
        }
        *objects.rest = self.schema_or_any(fields, "additionalProperties")?;
        let required = fields.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        objects.required = required.map(str::to_owned).collect();
        Ok(objects.or_never())
    }
}

fn count(fields: &Map<String, Value>, keyword: &str) -> Option<usize> {
    let count = fields.get(keyword)?.as_u64()?;
    Some(usize::try_from(count).unwrap_or(usize::MAX))
}

fn numbers(fields: &Map<String, Value>, wholeness: Wholeness) -> NumberSchema {
    let bound = |keyword: &str| fields.get(keyword).and_then(Value::as_f64);
    let mut numbers = NumberSchema::any(wholeness);
    for (keyword, is_exclusive) in [("minimum", false), ("exclusiveMinimum", true)] {
        if let Some(bound) = bound(keyword) {
            numbers.raise_minimum(bound, is_exclusive);
        }
    }
    for (keyword, is_exclusive) in [("maximum", false), ("exclusiveMaximum", true)] {
        if let Some(bound) = bound(keyword) {
            numbers.lower_maximum(bound, is_exclusive);
        }
    }
    if let Some(step) = bound("multipleOf") {
        numbers.restrict_to_multiples(step);
    }
    numbers
}

fn read_string(fields: &Map<String, Value>) -> StringSchema {
    let text = |keyword: &str| fields.get(keyword).and_then(Value::as_str);
    let pattern = text("pattern").map(Patterns::expression);
    let format = text("format").and_then(format_expression);
    StringSchema {
        min_length: count(fields, "minLength").unwrap_or(0),
        max_length: count(fields, "maxLength"),
        literal: None,
        expressions: pattern.into_iter().chain(format).collect(),
    }
}

fn constant(value: &Value) -> Schema {
    match value {
        Value::Null => Schema::Null,
        Value::Bool(value) => Schema::Boolean(Some(*value)),
        Value::Number(number) => {
            Schema::Number(NumberSchema::single(number.as_f64().unwrap_or(f64::NAN)))
        }
        Value::String(text) => Schema::Text(StringSchema {
            literal: Some(text.clone()),
            ..StringSchema::default()
        }),
        Value::Array(items) => Schema::Array(ArraySchema {
            min_items: items.len(),
            max_items: Some(items.len()),
            prefix: items.iter().map(constant).collect(),
            rest: Box::new(Schema::never("a constant has no additional items")),
        }),
        Value::Object(fields) => Schema::Object(ObjectSchema {
            properties: fields
                .iter()
                .map(|(key, field)| (key.clone(), constant(field)))
                .collect(),
            required: fields.keys().cloned().collect(),
            rest: Box::new(Schema::never("a constant has no additional keys")),
            ..ObjectSchema::default()
        }),
    }
}
