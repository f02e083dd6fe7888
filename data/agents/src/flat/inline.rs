//! Replaces the local references in a schema by their targets.
//!
//! A flat schema has no `$defs`, so every part must be self-contained. Keywords without schemas
//! (`default`, `enum`, `examples`) are copied unchanged: a default value may contain a key `$ref`.
//! The expansion is limited in depth and size, because twenty references can describe a million
//! parts.

use crate::budgets::{FLAT_BYTES, FLAT_PARTS};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::error::FlatError;
use super::extent::{n_bytes, too_many_bytes};

/// Maximum depth after resolving references, equal to the limit of JSON texts.
const MAX_LEVELS: usize = tooltune_json::MAX_LEVELS;

/// Keywords with one schema, or in older drafts a list of schemas.
const ONE_SCHEMA_KEYWORDS: [&str; 12] = [
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
/// Keywords with a list of schemas.
const SCHEMA_LIST_KEYWORDS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords with schemas by name.
const NAMED_SCHEMA_KEYWORDS: [&str; 4] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];
/// Keywords that do not affect validity. Next to a reference, they override the target's keywords.
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

/// Replaces every local reference by its target.
///
/// Keywords next to a `$ref` are kept; a description there overrides the target's.
///
/// # Errors
///
/// - a reference is recursive, has no target, or points outside the schema
/// - keywords next to a reference contradict its target
/// - a part is neither an object nor a boolean
/// - the expanded schema is too deep or too large
pub(super) fn inline_references(root: &Value) -> Result<Value, FlatError> {
    let mut inliner = Inliner {
        root,
        open: vec![root],
        pointer: Vec::new(),
        n_parts: 0,
        n_bytes: 0,
    };
    inliner.inline_schema(root, 0)
}

struct Inliner<'s> {
    root: &'s Value,
    /// Targets of the references being resolved.
    open: Vec<&'s Value>,
    /// Current position in the expanded schema.
    pointer: Vec<String>,
    n_parts: usize,
    /// Size of the copies and of the paths to the parts, in bytes.
    n_bytes: usize,
}

impl<'s> Inliner<'s> {
    fn current_pointer(&self) -> String {
        let steps = self.pointer.iter();
        steps
            .map(|step| format!("/{}", step.replace('~', "~0").replace('/', "~1")))
            .collect()
    }

    fn inline_schema(&mut self, schema: &'s Value, level: usize) -> Result<Value, FlatError> {
        self.n_parts += 1;
        if level > MAX_LEVELS {
            return Err(FlatError::TooDeep {
                pointer: self.current_pointer(),
                max: MAX_LEVELS,
            });
        }
        if self.n_parts > FLAT_PARTS {
            return Err(FlatError::TooLarge {
                what: "parts (FLAT_PARTS in docs/limits.md)",
                max: FLAT_PARTS,
            });
        }
        self.spend_bytes(self.pointer.iter().map(|step| step.len() + 1).sum())?;
        let keywords = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(keywords) => keywords,
            _ => {
                return Err(FlatError::BadSchema {
                    pointer: self.current_pointer(),
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
            expanded.insert(keyword.clone(), self.inline_keyword(keyword, value, level)?);
            self.pointer.pop();
        }
        match keywords.get("$ref") {
            None => Ok(Value::Object(expanded)),
            Some(reference) => self.merge_target(reference, expanded, level),
        }
    }

    fn inline_keyword(
        &mut self,
        keyword: &str,
        value: &'s Value,
        level: usize,
    ) -> Result<Value, FlatError> {
        match value {
            Value::Object(properties) if NAMED_SCHEMA_KEYWORDS.contains(&keyword) => {
                let mut expanded = Map::new();
                for (name, schema) in properties {
                    self.pointer.push(name.clone());
                    // A dependency may also be a list of names.
                    let schema = match schema {
                        Value::Array(_) if keyword == "dependencies" => {
                            self.copy_literal(schema)?
                        }
                        schema => self.inline_schema(schema, level + 1)?,
                    };
                    expanded.insert(name.clone(), schema);
                    self.pointer.pop();
                }
                Ok(Value::Object(expanded))
            }
            Value::Array(schemas)
                if SCHEMA_LIST_KEYWORDS.contains(&keyword) || keyword == "items" =>
            {
                let mut expanded = Vec::with_capacity(schemas.len());
                for (schema_idx, schema) in schemas.iter().enumerate() {
                    self.pointer.push(schema_idx.to_string());
                    expanded.push(self.inline_schema(schema, level + 1)?);
                    self.pointer.pop();
                }
                Ok(Value::Array(expanded))
            }
            schema if ONE_SCHEMA_KEYWORDS.contains(&keyword) => {
                self.inline_schema(schema, level + 1)
            }
            _ if NAMED_SCHEMA_KEYWORDS.contains(&keyword) => Err(FlatError::BadSchema {
                pointer: self.current_pointer(),
                reason: "schemas by name must be an object",
            }),
            _ if SCHEMA_LIST_KEYWORDS.contains(&keyword) => Err(FlatError::BadSchema {
                pointer: self.current_pointer(),
                reason: "the branches must be an array of schemas",
            }),
            literal => self.copy_literal(literal),
        }
    }

    fn copy_literal(&mut self, literal: &Value) -> Result<Value, FlatError> {
        self.spend_bytes(n_bytes(literal))?;
        Ok(literal.clone())
    }

    fn spend_bytes(&mut self, n_bytes: usize) -> Result<(), FlatError> {
        self.n_bytes += n_bytes;
        if self.n_bytes > FLAT_BYTES {
            Err(too_many_bytes())
        } else {
            Ok(())
        }
    }

    fn merge_target(
        &mut self,
        reference: &'s Value,
        siblings: Map<String, Value>,
        level: usize,
    ) -> Result<Value, FlatError> {
        let Value::String(reference) = reference else {
            return Err(FlatError::BadSchema {
                pointer: self.current_pointer(),
                reason: "$ref must be a string such as \"#/$defs/address\"",
            });
        };
        let target = self.find_target(reference)?;
        self.open.push(target);
        let expanded = self.inline_schema(target, level + 1)?;
        self.open.pop();
        let Value::Object(mut expanded) = expanded else {
            // A boolean has no keywords, and `true` adds nothing to the keywords next to the
            // reference.
            let has_no_siblings = siblings.is_empty() || expanded == Value::Bool(false);
            return Ok(if has_no_siblings {
                expanded
            } else {
                Value::Object(siblings)
            });
        };
        for (keyword, value) in siblings {
            let is_annotation = ANNOTATIONS.contains(&keyword.as_str());
            match expanded.get(&keyword) {
                Some(existing) if !is_annotation && *existing != value => {
                    return Err(FlatError::Contradiction {
                        pointer: self.current_pointer(),
                        reason: format!(
                            "`{keyword}` differs from the target of $ref {reference:?}"
                        ),
                    });
                }
                _ => expanded.insert(keyword, value),
            };
        }
        Ok(Value::Object(expanded))
    }

    fn find_target(&self, reference: &str) -> Result<&'s Value, FlatError> {
        let (pointer, reference) = (self.current_pointer(), reference.to_owned());
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(FlatError::RemoteRef { pointer, reference });
        };
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        let Some(target) = self.root.pointer(&fragment) else {
            return Err(FlatError::MissingRef { pointer, reference });
        };
        if self
            .open
            .iter()
            .any(|open_schema| std::ptr::eq(*open_schema, target))
        {
            return Err(FlatError::Recursive { pointer, reference });
        }
        Ok(target)
    }
}
