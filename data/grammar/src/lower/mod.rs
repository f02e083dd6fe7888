//! Lowers a JSON Schema of any draft to the part of draft 2020-12 that is enforced exactly.
//!
//! Annotations are removed, references become names of the schema's own definitions, and older
//! keywords become keywords of the newest draft. A keyword that would be ignored or only partly
//! enforced is refused with its JSON pointer. The keyword order is fixed, because object keys are
//! generated in the order in which they are found. As in training targets, an object's own
//! properties come first, then the properties of `$ref`, `allOf`, `anyOf` and `oneOf`.

mod containers;
mod finite;
mod keywords;
mod references;
mod scalars;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

pub(super) use keywords::{Draft, WHOLE_TYPE};
pub(super) use scalars::UNENFORCED_FORMATS;

use super::error::GrammarError;
use super::options::Formats;

/// Maximum subschemas of a schema. Each reference is followed once.
const MAX_SUBSCHEMAS: usize = 20_000;
/// Maximum nesting of subschemas. Compilation recurses, and its stack is finite.
const MAX_SUBSCHEMA_LEVELS: usize = 128;

/// Rewrites documents into one set of definitions.
#[derive(Debug)]
pub(super) struct Lowerer {
    formats: Formats,
    definitions: Vec<Value>,
    n_subschemas: usize,
}

/// A document whose references are being resolved.
struct Document<'s> {
    root: &'s Value,
    draft: Draft,
    /// The definition of each referenced subschema, by its address.
    names: HashMap<*const Value, usize>,
    /// Definitions that are not rewritten yet.
    queue: Vec<(usize, SchemaLocation<'s>)>,
}

/// A subschema and its location.
#[derive(Clone)]
struct SchemaLocation<'s> {
    schema: &'s Value,
    /// The nearest enclosing schema with an `$id`, to which references are relative.
    resource: &'s Value,
    /// JSON pointer from the document root.
    pointer: String,
    n_levels: usize,
}

impl<'s> SchemaLocation<'s> {
    fn unsupported(&self, keyword: &str, why: impl Into<String>) -> GrammarError {
        let pointer = match keyword {
            "" => self.pointer.clone(),
            keyword => format!("{}/{}", self.pointer, escaped(keyword)),
        };
        GrammarError::unsupported(pointer, why)
    }

    /// The location of a schema under a keyword of this schema.
    fn child(&self, schema: &'s Value, steps: &[&str]) -> Self {
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

    /// The locations of all schemas in a list under a keyword.
    fn list(&self, keyword: &str, schemas: &'s Value) -> Result<Vec<Self>, GrammarError> {
        let schemas = schemas.as_array().filter(|schemas| !schemas.is_empty());
        let schemas =
            schemas.ok_or_else(|| self.unsupported(keyword, "is not a list of schemas"))?;
        let indexed_schemas = schemas.iter().enumerate();
        Ok(indexed_schemas
            .map(|(idx, schema)| self.child(schema, &[keyword, &idx.to_string()]))
            .collect())
    }
}

/// Escapes a key for a JSON pointer.
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

    /// Rewrites a whole document. The result refers to definitions that [`Lowerer::finish`] adds.
    pub(super) fn document(&mut self, root: &Value) -> Result<Value, GrammarError> {
        let draft = Draft::from_schema(root)?;
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
        while let Some((name, location)) = document.queue.pop() {
            let definition = self.schema(&mut document, location)?;
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
    /// No finite value is valid because the schema requires itself.
    pub(super) fn finish(self, root: Value) -> Result<Map<String, Value>, GrammarError> {
        let Some((root, definitions)) = finite::remove_infinite_definitions(root, self.definitions)
        else {
            return Err(GrammarError::unsupported(
                "",
                "requires itself recursively, so no finite value is valid",
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
        mut location: SchemaLocation<'s>,
    ) -> Result<Value, GrammarError> {
        self.n_subschemas += 1;
        if self.n_subschemas > MAX_SUBSCHEMAS {
            return Err(GrammarError::TooLarge {
                reason: format!("it has more than {MAX_SUBSCHEMAS} subschemas"),
            });
        }
        if location.n_levels > MAX_SUBSCHEMA_LEVELS {
            return Err(GrammarError::TooLarge {
                reason: format!("it nests deeper than {MAX_SUBSCHEMA_LEVELS} subschemas"),
            });
        }
        let fields = match location.schema {
            Value::Bool(_) => return Ok(location.schema.clone()),
            Value::Object(fields) => fields,
            _ => {
                return Err(
                    location.unsupported("", "is not a schema: it must be an object or a boolean")
                );
            }
        };
        if document.draft.identifier(fields).is_some() {
            location.resource = location.schema;
        }
        let Some(reference) = fields.get("$ref") else {
            return self.assertions(document, &location, fields);
        };
        let target = self.reference(document, &location, reference)?;
        if document.draft.ignores_siblings_of_references() {
            return Ok(target);
        }
        let siblings = self.assertions(document, &location, fields)?;
        match siblings.as_object() {
            Some(fields) if fields.is_empty() => Ok(target),
            _ => Ok(json!({"allOf": [siblings, target]})),
        }
    }

    /// The assertions of a schema object, except `$ref`.
    fn assertions<'s>(
        &mut self,
        document: &mut Document<'s>,
        location: &SchemaLocation<'s>,
        fields: &'s Map<String, Value>,
    ) -> Result<Value, GrammarError> {
        let types = keywords::types(location, fields)?;
        keywords::refuse_unenforced(document.draft, location, fields, &types)?;
        let mut lowered = Map::new();
        if let Some(names) = types.names() {
            let names = names.iter().map(|name| match *name {
                "integer" if document.draft == Draft::Draft4 => WHOLE_TYPE,
                name => name,
            });
            lowered.insert("type".to_owned(), names.collect());
        }
        if types.allow("number") || types.allow("integer") {
            scalars::numbers(document.draft, location, fields, &mut lowered)?;
        }
        if types.allow("string") {
            scalars::lower_strings(self.formats, location, fields, &mut lowered)?;
        }
        if types.allow("array") {
            self.arrays(document, location, fields, &mut lowered)?;
        }
        if types.allow("object") {
            self.objects(document, location, fields, &mut lowered)?;
        }
        scalars::constants(document.draft, location, fields, &mut lowered)?;
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let Some(schemas) = fields.get(keyword) else {
                continue;
            };
            let mut parts = Vec::new();
            for part in location.list(keyword, schemas)? {
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

/// The lowered reference to a definition.
fn reference_to(name: usize) -> Value {
    json!({"$ref": format!("#/$defs/{}", definition_name(name))})
}
