//! Counts the paths through a JSON Schema at one location of a value.
//!
//! Validators try the branches of `anyOf` and similar keywords one after another, and references
//! let a few lines expand to billions of attempts. An example is thirty definitions that each refer
//! to the previous one twice. A validator may try all paths at a location without accessing the
//! value, so a descent to a location is charged for all paths there. A schema with too many paths
//! is rejected. Only the paths at one location are counted. Two paths that lead to the same child
//! double at each level of the value; the step budget limits this growth.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::budgets::{SCHEMA_LEVELS, SCHEMA_WAYS};

const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SINGLES: [&str; 4] = ["not", "if", "then", "else"];
const MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const NAMES: [&str; 4] = ["$id", "id", "$anchor", "$dynamicAnchor"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// The work that a schema requires at one location of a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathCounts {
    /// Maximum number of paths through the branches at one location.
    pub(super) max_paths: u64,
    /// Longest chain of schemas that apply to one location.
    pub(super) n_levels: usize,
    /// Whether a schema reaches itself at one location, so that its result depends on where the
    /// validation starts.
    pub(super) has_cycle: bool,
}

/// Counts the paths through a schema.
///
/// # Errors
///
/// - the schema has more paths, or longer chains of schemas, than the limits allow
pub(super) fn count_paths(schema: &Value) -> Result<PathCounts, String> {
    let mut paths = Paths {
        root: schema,
        by_id: HashMap::new(),
        counted: HashMap::new(),
        has_cycle: false,
    };
    let mut schemas = Vec::new();
    let mut n_references = 0;
    let mut pending = vec![schema];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => {
                schemas.push(value);
                n_references += REFERENCES
                    .iter()
                    .filter(|r| fields.contains_key(**r))
                    .count();
                pending.extend(fields.values());
                let names = NAMES.iter().filter_map(|name| fields.get(*name)?.as_str());
                paths.by_id.extend(names.map(|name| (name, value)));
            }
            _ => {}
        }
    }
    let (mut max_paths, mut n_levels) = (1, 0);
    for schema in schemas {
        let Some(paths_of_schema) = paths.count(schema, 0) else {
            return Err(format!(
                "a chain of more than {SCHEMA_LEVELS} schemas is linked by $ref, allOf and similar \
                 keywords; shorten the chain (SCHEMA_LEVELS in docs/limits.md)"
            ));
        };
        if paths_of_schema.n_paths > SCHEMA_WAYS {
            return Err(format!(
                "there are more than {SCHEMA_WAYS} ways through the branches of its anyOf, oneOf \
                 and allOf at one location; remove duplicate branches (SCHEMA_WAYS in \
                 docs/limits.md)"
            ));
        }
        max_paths = max_paths.max(paths_of_schema.n_paths);
        n_levels = n_levels.max(paths_of_schema.height);
    }
    if paths.has_cycle {
        // In a cycle the longest path depends on the start.
        n_levels += n_references;
    }
    Ok(PathCounts {
        max_paths,
        n_levels,
        has_cycle: paths.has_cycle,
    })
}

#[derive(Clone, Copy)]
struct SchemaPaths {
    n_paths: u64,
    height: usize,
}

struct Paths<'s> {
    root: &'s Value,
    /// Schemas by `$id` or anchor.
    by_id: HashMap<&'s str, &'s Value>,
    /// Number of paths through the schema at an address; `None` while being counted, because
    /// validators enter a cycle only once.
    counted: HashMap<*const Value, Option<SchemaPaths>>,
    has_cycle: bool,
}

impl<'s> Paths<'s> {
    /// Counts the paths through `schema`, including itself; `None` if it is too deep.
    fn count(&mut self, schema: &'s Value, n_levels: usize) -> Option<SchemaPaths> {
        let address = std::ptr::from_ref(schema);
        match self.counted.get(&address) {
            Some(Some(total)) => return Some(*total),
            Some(None) => {
                self.has_cycle = true;
                return Some(SchemaPaths {
                    n_paths: 0,
                    height: 0,
                });
            }
            None => {}
        }
        if n_levels > SCHEMA_LEVELS {
            return None;
        }
        self.counted.insert(address, None);
        let mut total = SchemaPaths {
            n_paths: 1,
            height: 0,
        };
        for branch in self.branches(schema) {
            let branch_paths = self.count(branch, n_levels + 1)?;
            total.n_paths = total.n_paths.saturating_add(branch_paths.n_paths);
            total.height = total.height.max(branch_paths.height + 1);
        }
        self.counted.insert(address, Some(total));
        Some(total)
    }

    /// Returns the schemas that apply to the same location of the value.
    fn branches(&self, schema: &'s Value) -> Vec<&'s Value> {
        let Value::Object(fields) = schema else {
            return Vec::new();
        };
        let mut branches = Vec::new();
        for list in LISTS {
            branches.extend(
                fields
                    .get(list)
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten(),
            );
        }
        branches.extend(SINGLES.iter().filter_map(|single| fields.get(*single)));
        for map in MAPS {
            let dependents = fields.get(map).and_then(Value::as_object);
            branches.extend(
                dependents
                    .into_iter()
                    .flat_map(|dependents| dependents.values()),
            );
        }
        let references = REFERENCES
            .iter()
            .filter_map(|name| fields.get(*name)?.as_str());
        branches.extend(references.filter_map(|reference| self.target(reference)));
        branches
    }

    /// Resolves a reference within the document. External references are rejected elsewhere.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = match base {
            "" => self.root,
            base => self.by_id.get(base).copied()?,
        };
        let fragment = percent_decode_str(fragment).decode_utf8().ok()?;
        match fragment.as_ref() {
            "" => Some(resource),
            pointer if pointer.starts_with('/') => resource.pointer(pointer),
            anchor => self.by_id.get(anchor).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `n` definitions that each apply `keyword` to the previous one twice.
    fn doubling_definitions(n: usize, keyword: &str) -> Value {
        let mut definitions = json!({"d0": {"type": "string"}});
        for i in 1..=n {
            let previous = json!({"$ref": format!("#/$defs/d{}", i - 1)});
            definitions[format!("d{i}")] = json!({keyword: [previous, previous]});
        }
        json!({"$defs": definitions, "properties": {"a": {"$ref": format!("#/$defs/d{n}")}}})
    }

    #[test]
    fn branches_that_double_at_each_step_are_rejected_before_validation() {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let error = count_paths(&doubling_definitions(30, keyword)).expect_err("2^30 ways");
            assert!(error.contains("100000 ways"), "{error}");
            assert!(count_paths(&doubling_definitions(8, keyword)).is_ok());
        }
    }

    #[test]
    fn anchored_definitions_are_also_counted() {
        let mut definitions = vec![json!({"$anchor": "a0"})];
        for i in 1..=30 {
            let previous = json!({"$ref": format!("#a{}", i - 1)});
            definitions.push(json!({"$anchor": format!("a{i}"), "anyOf": [previous, previous]}));
        }
        let schema = json!({"$defs": {"all": definitions}, "$ref": "#a30"});
        assert!(count_paths(&schema).is_err());
    }

    #[test]
    fn a_chain_of_references_is_refused_where_validators_would_recurse_too_deep() {
        let chain = |n: usize| {
            let mut definitions = json!({"d0": {"type": "string"}});
            for i in 1..=n {
                definitions[format!("d{i}")] = json!({"$ref": format!("#/$defs/d{}", i - 1)});
            }
            json!({"$defs": definitions, "$ref": format!("#/$defs/d{n}")})
        };
        assert!(count_paths(&chain(100)).is_ok());
        let error = count_paths(&chain(100_000)).expect_err("a long chain");
        assert!(error.contains("shorten"), "{error}");
    }

    #[test]
    fn cycles_many_branches_and_nested_values_are_accepted() {
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        let branches: Vec<Value> = (0..2_000).map(|i| json!({"const": i})).collect();
        for schema in [
            tree,
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"anyOf": branches}),
            json!(true),
        ] {
            assert!(count_paths(&schema).is_ok(), "{schema}");
        }
    }
}
