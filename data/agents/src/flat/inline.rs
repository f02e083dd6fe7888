//! Replaces the local references of a schema by what they refer to.
//!
//! A flat schema has no `$defs`, so every part must stand on its own. What is not a schema
//! (`default`, `enum`, `examples`) is copied as it is: a default may well hold a key `$ref`.
//! The expansion is bounded in depth and size, since twenty references can describe a million parts.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use tooltune_rows::budgets::{FLAT_BYTES, FLAT_PARTS};

use super::error::FlatError;
use super::extent::{n_bytes, too_many_bytes};

/// The deepest nesting that is read, references followed: that of a JSON text.
const MAX_LEVELS: usize = tooltune_rows::json::MAX_LEVELS;

/// Keywords that hold one schema, or in older drafts a list of them.
const ONE: [&str; 12] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "contentSchema",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
];
/// Keywords that hold a list of schemas.
const MANY: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords that hold schemas by name.
const NAMED: [&str; 4] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];
/// Keywords that say nothing about what is valid, so that those beside a reference win.
const ANNOTATIONS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
];

/// Replaces every local reference by what it leads to.
///
/// Keywords beside a `$ref` are kept; a description there wins over that of the target.
///
/// # Errors
///
/// - a reference leads back to itself, nowhere, or out of the schema
/// - keywords beside a reference contradict its target
/// - a part is neither an object nor a boolean
/// - the expanded schema is too deep or too large
pub(super) fn inlined(root: &Value) -> Result<Value, FlatError> {
    let mut inliner = Inliner {
        root,
        open: vec![root],
        pointer: Vec::new(),
        n_parts: 0,
        n_bytes: 0,
    };
    inliner.schema(root, 0)
}

struct Inliner<'s> {
    root: &'s Value,
    /// Targets of the references that are being followed.
    open: Vec<&'s Value>,
    /// Where the walk stands in the expanded schema.
    pointer: Vec<String>,
    n_parts: usize,
    /// Bytes of what was copied, and of the ways to the parts.
    n_bytes: usize,
}

impl<'s> Inliner<'s> {
    fn here(&self) -> String {
        let steps = self.pointer.iter();
        steps
            .map(|step| format!("/{}", step.replace('~', "~0").replace('/', "~1")))
            .collect()
    }

    fn schema(&mut self, schema: &'s Value, level: usize) -> Result<Value, FlatError> {
        self.n_parts += 1;
        if level > MAX_LEVELS {
            return Err(FlatError::TooDeep {
                pointer: self.here(),
                max: MAX_LEVELS,
            });
        }
        if self.n_parts > FLAT_PARTS {
            return Err(FlatError::TooLarge {
                what: "parts (FLAT_PARTS in docs/limits.md)",
                max: FLAT_PARTS,
            });
        }
        self.spend(self.pointer.iter().map(|step| step.len() + 1).sum())?;
        let keywords = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(keywords) => keywords,
            _ => {
                return Err(FlatError::BadSchema {
                    pointer: self.here(),
                    reason: "a schema must be an object or a boolean",
                });
            }
        };
        let mut expanded = Map::new();
        for (keyword, value) in keywords {
            let is_definition = matches!(keyword.as_str(), "$defs" | "definitions");
            if is_definition || keyword == "$ref" {
                continue;
            }
            self.pointer.push(keyword.clone());
            expanded.insert(keyword.clone(), self.keyword(keyword, value, level)?);
            self.pointer.pop();
        }
        match keywords.get("$ref") {
            None => Ok(Value::Object(expanded)),
            Some(reference) => self.with_target(reference, expanded, level),
        }
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &'s Value,
        level: usize,
    ) -> Result<Value, FlatError> {
        match value {
            Value::Object(named) if NAMED.contains(&keyword) => {
                let mut expanded = Map::new();
                for (name, schema) in named {
                    self.pointer.push(name.clone());
                    // A dependency may also be a list of names.
                    let schema = match schema {
                        Value::Array(_) if keyword == "dependencies" => self.copied(schema)?,
                        schema => self.schema(schema, level + 1)?,
                    };
                    expanded.insert(name.clone(), schema);
                    self.pointer.pop();
                }
                Ok(Value::Object(expanded))
            }
            Value::Array(schemas) if MANY.contains(&keyword) || keyword == "items" => {
                let mut expanded = Vec::with_capacity(schemas.len());
                for (schema_idx, schema) in schemas.iter().enumerate() {
                    self.pointer.push(schema_idx.to_string());
                    expanded.push(self.schema(schema, level + 1)?);
                    self.pointer.pop();
                }
                Ok(Value::Array(expanded))
            }
            schema if ONE.contains(&keyword) => self.schema(schema, level + 1),
            _ if NAMED.contains(&keyword) => Err(FlatError::BadSchema {
                pointer: self.here(),
                reason: "schemas by name must be an object",
            }),
            _ if MANY.contains(&keyword) => Err(FlatError::BadSchema {
                pointer: self.here(),
                reason: "the branches must be an array of schemas",
            }),
            literal => self.copied(literal),
        }
    }

    fn copied(&mut self, literal: &Value) -> Result<Value, FlatError> {
        self.spend(n_bytes(literal))?;
        Ok(literal.clone())
    }

    fn spend(&mut self, n_bytes: usize) -> Result<(), FlatError> {
        self.n_bytes += n_bytes;
        if self.n_bytes > FLAT_BYTES {
            Err(too_many_bytes())
        } else {
            Ok(())
        }
    }

    fn with_target(
        &mut self,
        reference: &'s Value,
        beside: Map<String, Value>,
        level: usize,
    ) -> Result<Value, FlatError> {
        let Value::String(reference) = reference else {
            return Err(FlatError::BadSchema {
                pointer: self.here(),
                reason: "$ref must be a text such as \"#/$defs/address\"",
            });
        };
        let target = self.target(reference)?;
        self.open.push(target);
        let expanded = self.schema(target, level + 1)?;
        self.open.pop();
        let Value::Object(mut expanded) = expanded else {
            // A boolean has no keywords; `true` adds nothing to those beside the reference.
            let is_alone = beside.is_empty() || expanded == Value::Bool(false);
            return Ok(if is_alone {
                expanded
            } else {
                Value::Object(beside)
            });
        };
        for (keyword, value) in beside {
            let is_free = ANNOTATIONS.contains(&keyword.as_str());
            match expanded.get(&keyword) {
                Some(known) if !is_free && *known != value => {
                    return Err(FlatError::Contradiction {
                        pointer: self.here(),
                        reason: format!("`{keyword}` differs from that of $ref {reference:?}"),
                    });
                }
                _ => expanded.insert(keyword, value),
            };
        }
        Ok(Value::Object(expanded))
    }

    fn target(&self, reference: &str) -> Result<&'s Value, FlatError> {
        let (pointer, reference) = (self.here(), reference.to_owned());
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(FlatError::RemoteRef { pointer, reference });
        };
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        let Some(target) = self.root.pointer(&fragment) else {
            return Err(FlatError::MissingRef { pointer, reference });
        };
        if self.open.iter().any(|open| std::ptr::eq(*open, target)) {
            return Err(FlatError::Recursive { pointer, reference });
        }
        Ok(target)
    }
}
