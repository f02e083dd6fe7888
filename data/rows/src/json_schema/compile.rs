//! Compiles a JSON Schema into a validator, in bounded work.
//!
//! A resource (a schema with an `$id`) is compiled anew for each way that references lead to it,
//! because dynamic references depend on it: two ways at each of thirty make a billion. So each
//! resource gets a keyword of ours, by which the compiler tells how often it compiles one, and
//! which ends it. Patterns are compiled whole, and one of twenty characters may take megabytes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use jsonschema::{Keyword, ValidationError, ValidationOptions, Validator};
use serde_json::{Map, Value, json};

use super::counted::{Counted, CountedValue};
use super::{Retriever, SchemaFault, bounded};
use crate::budgets::{BACKTRACK_STEPS, COMPILED_RESOURCES, LARGE_PATTERNS, SCHEMA_PATTERNS};

/// The keyword by which compiled resources are counted.
const RESOURCE: &str = "x-tooltune-resource";
/// Bytes of a compiled pattern that is no large one.
const SMALL_PATTERN_BYTES: usize = 256 << 10;
/// Looks that comparing a key with a pattern is worth.
const PER_NAMED_PATTERN: usize = 3;
/// Bytes of any compiled pattern.
pub(super) const PATTERN_BYTES: usize = 2 << 20;

/// # Errors
///
/// - the schema is no JSON Schema of its draft, or a reference leads nowhere or outside
/// - its resources lead to each other in more than [`COMPILED_RESOURCES`] ways
pub(super) fn compiled(
    schema: &Value,
    options: ValidationOptions<'static, Retriever, Counted>,
) -> Result<Validator<Counted>, SchemaFault> {
    let n_compiled = AtomicUsize::new(0);
    let options = options.with_keyword(RESOURCE, move |_: &Map<String, Value>, _: &Value, _| {
        if n_compiled.fetch_add(1, Ordering::Relaxed) < COMPILED_RESOURCES {
            Ok(Box::new(Resource) as Box<dyn for<'i> Keyword<'i, Counted>>)
        } else {
            Err(ValidationError::custom(format!(
                "its parts with an $id lead to each other in more than {COMPILED_RESOURCES} ways; \
                 refer to definitions without an $id (COMPILED_RESOURCES in docs/limits.md)"
            )))
        }
    });
    let mut marked = schema.clone();
    mark(&mut marked);
    options.build(&marked).map_err(|error| {
        let pointer = error.instance_path().to_string();
        SchemaFault {
            // The keyword is ours; the author of the schema knows the part that holds it.
            pointer: match pointer.strip_suffix(RESOURCE) {
                Some(part) => part.trim_end_matches('/').to_owned(),
                None => pointer,
            },
            reason: bounded(format_args!("{error}")),
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

/// Puts [`RESOURCE`] into every schema with an `$id`, but into no value that is data.
fn mark(schema: &mut Value) {
    const DATA: [&str; 4] = ["const", "default", "enum", "examples"];
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(mark),
        Value::Object(fields) => {
            let is_data = |keyword: &str| DATA.contains(&keyword);
            for (keyword, value) in fields.iter_mut() {
                // A property may have the name of such a keyword; then its value is a schema.
                match value {
                    Value::Object(named) if keyword == "properties" => {
                        named.values_mut().for_each(mark);
                    }
                    _ if is_data(keyword) => {}
                    inner => mark(inner),
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

/// What the patterns of a schema ask for.
pub(super) struct PatternCost {
    /// Looks at the value that a text is worth beside its length.
    pub(super) per_text: u64,
}

/// Patterns that look around or back are tried in more and more ways, at most [`BACKTRACK_STEPS`];
/// and every key is read once for each pattern of `patternProperties`.
///
/// # Errors
///
/// - the schema has more than [`SCHEMA_PATTERNS`] patterns, or more than [`LARGE_PATTERNS`] of them
///   are large or look around or back
pub(super) fn pattern_cost(schema: &Value) -> Result<PatternCost, SchemaFault> {
    let refused = |reason: String| SchemaFault {
        pointer: String::new(),
        reason,
    };
    let (mut patterns, mut has_named) = (BTreeSet::new(), false);
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                patterns.extend(fields.get("pattern").and_then(Value::as_str));
                if let Some(named) = fields.get("patternProperties").and_then(Value::as_object) {
                    has_named = true;
                    patterns.extend(named.keys().map(String::as_str));
                }
                left.extend(fields.values());
            }
            _ => {}
        }
    }
    if patterns.len() > SCHEMA_PATTERNS {
        return Err(refused(format!(
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
            return Err(refused(format!(
                "more than {LARGE_PATTERNS} of its patterns are large or look around or back; \
                 shorten their repetitions (LARGE_PATTERNS in docs/limits.md)"
            )));
        }
    }
    let per_text = n_large * (BACKTRACK_STEPS / 20) + if has_named { PER_NAMED_PATTERN } else { 0 };
    Ok(PatternCost {
        per_text: per_text as u64,
    })
}
