//! Lowers a JSON Schema of any draft to the part of draft 2020-12 that is enforced exactly.
//!
//! Annotations go, references become names of this schema's own definitions, older spellings
//! become the newest, and a keyword that would be ignored or only partly enforced is refused with
//! its place. The order of keywords is fixed, since the keys of an object are written in the
//! order in which they are met: an object's own properties first, then those of `$ref`, `allOf`,
//! `anyOf` and `oneOf`, as training targets have them.

mod containers;
mod finite;
mod keywords;
mod references;
mod scalars;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

pub(super) use keywords::{Draft, WHOLE_TYPE};

use super::error::GrammarError;
use super::options::Formats;

/// Sub-schemas of one schema, references followed once each.
const MAX_SUBSCHEMAS: usize = 20_000;
/// How deep sub-schemas may nest. Compilation recurses, and its stack is finite.
const MAX_SUBSCHEMA_LEVELS: usize = 128;

/// Rewrites documents into one set of definitions.
#[derive(Debug)]
pub(super) struct Lowerer {
    formats: Formats,
    definitions: Vec<Value>,
    n_subschemas: usize,
}

/// One document while its references are followed.
struct Document<'s> {
    root: &'s Value,
    draft: Draft,
    /// The definition of each sub-schema that a reference leads to, by the sub-schema's address.
    names: HashMap<*const Value, usize>,
    /// Definitions that are not rewritten yet.
    queue: Vec<(usize, SchemaLocation<'s>)>,
}

/// A sub-schema with where it stands.
#[derive(Clone)]
struct SchemaLocation<'s> {
    schema: &'s Value,
    /// The nearest schema around it with an `$id`, to which references are relative.
    resource: &'s Value,
    /// JSON pointer from the document's root.
    pointer: String,
    n_levels: usize,
}

impl<'s> SchemaLocation<'s> {
    fn refused(&self, keyword: &str, why: impl Into<String>) -> GrammarError {
        let pointer = match keyword {
            "" => self.pointer.clone(),
            keyword => format!("{}/{}", self.pointer, escaped(keyword)),
        };
        GrammarError::unsupported(pointer, why)
    }

    /// The schema under a keyword of this one.
    fn below(&self, schema: &'s Value, steps: &[&str]) -> Self {
        let mut pointer = self.pointer.clone();
        for step in steps {
            pointer.push('/');
            pointer.push_str(&escaped(step));
        }
        Self {
            schema,
            resource: self.resource,
            pointer,
            n_levels: self.n_levels + 1,
        }
    }

    /// All schemas of a list under a keyword.
    fn list(&self, keyword: &str, schemas: &'s Value) -> Result<Vec<Self>, GrammarError> {
        let schemas = schemas.as_array().filter(|schemas| !schemas.is_empty());
        let schemas = schemas.ok_or_else(|| self.refused(keyword, "is no list of schemas"))?;
        let places = schemas.iter().enumerate();
        Ok(places
            .map(|(idx, schema)| self.below(schema, &[keyword, &idx.to_string()]))
            .collect())
    }
}

/// A key as a step of a JSON pointer.
fn escaped(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}

impl Lowerer {
    pub(super) fn new(formats: Formats) -> Self {
        Self {
            formats,
            definitions: Vec::new(),
            n_subschemas: 0,
        }
    }

    /// Rewrites a whole document; the result refers to definitions that [`Lowerer::finish`] adds.
    pub(super) fn document(&mut self, root: &Value) -> Result<Value, GrammarError> {
        let draft = Draft::of(root)?;
        let mut document = Document {
            root,
            draft,
            names: HashMap::new(),
            queue: Vec::new(),
        };
        let lowered = self.schema(
            &mut document,
            SchemaLocation {
                schema: root,
                resource: root,
                pointer: String::new(),
                n_levels: 0,
            },
        )?;
        while let Some((name, place)) = document.queue.pop() {
            let definition = self.schema(&mut document, place)?;
            if let Some(slot) = self.definitions.get_mut(name) {
                *slot = definition;
            }
        }
        Ok(lowered)
    }

    /// A schema with all definitions, for llguidance.
    ///
    /// # Errors
    ///
    /// - no value of finite size is valid, because the schema requires itself
    pub(super) fn finish(self, root: Value) -> Result<Map<String, Value>, GrammarError> {
        let Some((root, definitions)) = finite::without_endless(root, self.definitions) else {
            return Err(GrammarError::unsupported(
                "",
                "requires itself without end, so no finite value is valid",
            ));
        };
        let definitions: Map<String, Value> = (0..)
            .zip(definitions)
            .map(|(name, definition)| (definition_name(name), definition))
            .collect();
        let mut schema = match root {
            Value::Object(fields) => fields,
            Value::Bool(true) => Map::new(),
            _ => return Err(GrammarError::unsupported("", "allows no value at all")),
        };
        if !definitions.is_empty() {
            schema.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Ok(schema)
    }

    fn schema<'s>(
        &mut self,
        document: &mut Document<'s>,
        mut place: SchemaLocation<'s>,
    ) -> Result<Value, GrammarError> {
        self.n_subschemas += 1;
        if self.n_subschemas > MAX_SUBSCHEMAS {
            return Err(GrammarError::TooLarge {
                reason: format!("it has more than {MAX_SUBSCHEMAS} sub-schemas"),
            });
        }
        if place.n_levels > MAX_SUBSCHEMA_LEVELS {
            return Err(GrammarError::TooLarge {
                reason: format!("it nests deeper than {MAX_SUBSCHEMA_LEVELS} sub-schemas"),
            });
        }
        let fields = match place.schema {
            Value::Bool(_) => return Ok(place.schema.clone()),
            Value::Object(fields) => fields,
            _ => return Err(place.refused("", "is no schema: neither an object nor a boolean")),
        };
        if document.draft.identifier(fields).is_some() {
            place.resource = place.schema;
        }
        let Some(reference) = fields.get("$ref") else {
            return self.assertions(document, &place, fields);
        };
        let target = self.reference(document, &place, reference)?;
        if document.draft.ignores_siblings_of_references() {
            return Ok(target);
        }
        let siblings = self.assertions(document, &place, fields)?;
        match siblings.as_object() {
            Some(fields) if fields.is_empty() => Ok(target),
            _ => Ok(json!({"allOf": [siblings, target]})),
        }
    }

    /// Everything that a schema object says beside `$ref`.
    fn assertions<'s>(
        &mut self,
        document: &mut Document<'s>,
        place: &SchemaLocation<'s>,
        fields: &'s Map<String, Value>,
    ) -> Result<Value, GrammarError> {
        let types = keywords::types(place, fields)?;
        keywords::refuse_unenforced(document.draft, place, fields, &types)?;
        let mut lowered = Map::new();
        if let Some(names) = types.names() {
            let names = names.iter().map(|name| match *name {
                "integer" if document.draft == Draft::Draft4 => WHOLE_TYPE,
                name => name,
            });
            lowered.insert("type".to_owned(), names.collect());
        }
        if types.allow("number") || types.allow("integer") {
            scalars::numbers(document.draft, place, fields, &mut lowered)?;
        }
        if types.allow("string") {
            scalars::strings(self.formats, place, fields, &mut lowered)?;
        }
        if types.allow("array") {
            self.arrays(document, place, fields, &mut lowered)?;
        }
        if types.allow("object") {
            self.objects(document, place, fields, &mut lowered)?;
        }
        scalars::constants(document.draft, place, fields, &mut lowered)?;
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let Some(schemas) = fields.get(keyword) else {
                continue;
            };
            let mut parts = Vec::new();
            for part in place.list(keyword, schemas)? {
                parts.push(self.schema(document, part)?);
            }
            match (keyword, lowered.get_mut("allOf")) {
                ("allOf", Some(Value::Array(before))) => before.extend(parts),
                _ => {
                    lowered.insert(keyword.to_owned(), Value::Array(parts));
                }
            }
        }
        Ok(Value::Object(lowered))
    }
}

fn definition_name(name: usize) -> String {
    format!("d{name}")
}

/// The lowered form of a reference to a definition.
fn reference_to(name: usize) -> Value {
    json!({"$ref": format!("#/$defs/{}", definition_name(name))})
}
