//! Compiles a JSON Schema into a validator with a limit on the work.
//!
//! The jsonschema crate compiles a resource (a schema with an `$id`) again for each chain of
//! references that leads to it, because dynamic references depend on the chain. Thirty resources
//! with two references each therefore cause a billion compilations. This module adds a keyword to
//! each resource that counts compilations and stops them at a limit. Patterns also need a limit:
//! they are compiled as a whole, and a pattern of twenty characters may take megabytes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use jsonschema::{Keyword, ValidationError, ValidationOptions, Validator};
use serde_json::{Map, Value, json};

use super::counted::{Counted, CountedValue};
use super::{Retriever, SchemaFault, truncate_message};
use crate::budgets::{BACKTRACK_STEPS, COMPILED_RESOURCES, LARGE_PATTERNS, SCHEMA_PATTERNS};

/// The keyword that counts compilations of a resource.
const RESOURCE: &str = "x-tooltune-resource";
/// A compiled pattern with more bytes than this is large.
const SMALL_PATTERN_BYTES: usize = 256 << 10;
/// Steps charged for matching a key against a pattern.
const PER_NAMED_PATTERN: usize = 3;
/// Maximum bytes of a compiled pattern.
pub(super) const PATTERN_BYTES: usize = 2 << 20;

/// Compiles a schema with a limit on the compilations of its resources.
///
/// # Errors
///
/// - the schema is not valid under its draft, or a reference is unresolvable or external
/// - references reach its resources in more than [`COMPILED_RESOURCES`] ways
pub(super) fn compile(
    schema: &Value,
    options: ValidationOptions<'static, Retriever, Counted>,
) -> Result<Validator<Counted>, SchemaFault> {
    let n_compiled = AtomicUsize::new(0);
    let options = options.with_keyword(RESOURCE, move |_: &Map<String, Value>, _: &Value, _| {
        if n_compiled.fetch_add(1, Ordering::Relaxed) < COMPILED_RESOURCES {
            Ok(Box::new(Resource) as Box<dyn for<'i> Keyword<'i, Counted>>)
        } else {
            Err(ValidationError::custom(format!(
                "its references reach subschemas with an $id in more than {COMPILED_RESOURCES} \
                 ways; refer to definitions without an $id (COMPILED_RESOURCES in docs/limits.md)"
            )))
        }
    });
    let mut with_resource_keyword = schema.clone();
    mark_resources(&mut with_resource_keyword);
    options.build(&with_resource_keyword).map_err(|error| {
        let pointer = error.instance_path().to_string();
        SchemaFault {
            // The schema's author did not write this keyword, so report the schema that contains
            // the keyword.
            pointer: match pointer.strip_suffix(RESOURCE) {
                Some(part) => part.trim_end_matches('/').to_owned(),
                None => pointer,
            },
            reason: truncate_message(format_args!("{error}")),
        }
    })
}

struct Resource;

impl<'i> Keyword<'i, Counted> for Resource {
    fn validate(&self, _instance: CountedValue<'i>) -> Result<(), ValidationError<'i>> {
        Ok(())
    }

    fn is_valid(&self, _instance: CountedValue<'i>) -> bool {
        true
    }
}

/// Adds [`RESOURCE`] to every schema with an `$id`, but not to values that are data.
fn mark_resources(schema: &mut Value) {
    const DATA: [&str; 4] = ["const", "default", "enum", "examples"];
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(mark_resources),
        Value::Object(fields) => {
            let is_data = |keyword: &str| DATA.contains(&keyword);
            for (keyword, value) in fields.iter_mut() {
                // A property may have the name of a data keyword; the value of that property is a
                // schema.
                match value {
                    Value::Object(properties) if keyword == "properties" => {
                        properties.values_mut().for_each(mark_resources);
                    }
                    _ if is_data(keyword) => {}
                    inner => mark_resources(inner),
                }
            }
            let is_resource = ["$id", "id"]
                .iter()
                .any(|name| fields.get(*name).is_some_and(Value::is_string));
            if is_resource {
                fields.insert(RESOURCE.to_owned(), json!(true));
            }
        }
        _ => {}
    }
}

/// Costs of the patterns in a schema.
pub(super) struct PatternCost {
    /// Steps charged per string, in addition to its length.
    pub(super) per_text: u64,
}

/// Checks the patterns of a schema and computes their costs.
///
/// Patterns with lookaround or backreferences backtrack, at most [`BACKTRACK_STEPS`] times. Every
/// key is matched against each pattern of `patternProperties`.
///
/// # Errors
///
/// - the schema has more than [`SCHEMA_PATTERNS`] patterns, or more than [`LARGE_PATTERNS`] that
///   are large or use lookaround or backreferences
pub(super) fn pattern_cost(schema: &Value) -> Result<PatternCost, SchemaFault> {
    let schema_fault = |reason: String| SchemaFault {
        pointer: String::new(),
        reason,
    };
    let (mut patterns, mut has_named) = (BTreeSet::new(), false);
    let mut pending = vec![schema];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => {
                patterns.extend(fields.get("pattern").and_then(Value::as_str));
                if let Some(pattern_schemas) =
                    fields.get("patternProperties").and_then(Value::as_object)
                {
                    has_named = true;
                    patterns.extend(pattern_schemas.keys().map(String::as_str));
                }
                pending.extend(fields.values());
            }
            _ => {}
        }
    }
    if patterns.len() > SCHEMA_PATTERNS {
        return Err(schema_fault(format!(
            "it has {} patterns; at most {SCHEMA_PATTERNS} are compiled (SCHEMA_PATTERNS in \
             docs/limits.md)",
            patterns.len()
        )));
    }
    let mut n_large = 0;
    for pattern in patterns {
        let translated = jsonschema_regex::to_rust_regex(pattern);
        let is_small = translated.is_ok_and(|pattern| {
            let mut builder = regex::RegexBuilder::new(&pattern);
            builder.size_limit(SMALL_PATTERN_BYTES).build().is_ok()
        });
        n_large += usize::from(!is_small);
        if n_large > LARGE_PATTERNS {
            return Err(schema_fault(format!(
                "more than {LARGE_PATTERNS} of its patterns are large or use lookaround or \
                 backreferences; shorten their repetitions (LARGE_PATTERNS in docs/limits.md)"
            )));
        }
    }
    let per_text = n_large * (BACKTRACK_STEPS / 20) + if has_named { PER_NAMED_PATTERN } else { 0 };
    Ok(PatternCost {
        per_text: per_text as u64,
    })
}
