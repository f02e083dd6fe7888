//! Counts the ways through a JSON Schema at one place of a value.
//!
//! Validators try the branches of `anyOf` and its like one after another, and references let few
//! lines stand for billions of tries: thirty definitions, each of which names the one before it
//! twice. A step down into the value is charged for the ways at the place below it, because a
//! validator may go them without looking at the value; a schema with too many is refused.
//! What lies deeper in the value is not counted: two ways that lead to the same child double at
//! each level, which the budget of the walk bounds.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::budgets::{SCHEMA_LEVELS, SCHEMA_WAYS};

const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SINGLES: [&str; 4] = ["not", "if", "then", "else"];
const MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const NAMES: [&str; 4] = ["$id", "id", "$anchor", "$dynamicAnchor"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// What a schema asks of a validator at one place of a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// The most ways through the branches at one place.
    pub(super) most: u64,
    /// The most schemas that lead to each other at one place.
    pub(super) n_levels: usize,
    /// Whether a schema leads to itself at one place, so that what it says depends on where one
    /// begins.
    pub(super) has_circle: bool,
}

/// # Errors
///
/// - the schema has more ways, or more schemas that lead to each other, than a validator can go
pub(super) fn ways(schema: &Value) -> Result<Ways, String> {
    let mut paths = Paths {
        root: schema,
        named: HashMap::new(),
        counted: HashMap::new(),
        has_circle: false,
    };
    let mut schemas = Vec::new();
    let mut n_references = 0;
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                schemas.push(value);
                n_references += REFERENCES
                    .iter()
                    .filter(|r| fields.contains_key(**r))
                    .count();
                left.extend(fields.values());
                let names = NAMES.iter().filter_map(|name| fields.get(*name)?.as_str());
                paths.named.extend(names.map(|name| (name, value)));
            }
            _ => {}
        }
    }
    let (mut most, mut n_levels) = (1, 0);
    for schema in schemas {
        let Some(found) = paths.count(schema, 0) else {
            return Err(format!(
                "more than {SCHEMA_LEVELS} schemas lead to each other by $ref, allOf and their \
                 like; shorten the chain (SCHEMA_LEVELS in docs/limits.md)"
            ));
        };
        if found.n_ways > SCHEMA_WAYS {
            return Err(format!(
                "there are more than {SCHEMA_WAYS} ways through the branches of its anyOf, \
                 oneOf and allOf at one place; say each branch once (SCHEMA_WAYS in docs/limits.md)"
            ));
        }
        most = most.max(found.n_ways);
        n_levels = n_levels.max(found.height);
    }
    if paths.has_circle {
        // On a circle the longest way depends on where it begins.
        n_levels += n_references;
    }
    Ok(Ways {
        most,
        n_levels,
        has_circle: paths.has_circle,
    })
}

#[derive(Clone, Copy)]
struct Counted {
    n_ways: u64,
    height: usize,
}

struct Paths<'s> {
    root: &'s Value,
    /// Schemas by their own name.
    named: HashMap<&'s str, &'s Value>,
    /// Ways through the schema at an address; none while it is counted, since validators meet a
    /// circle once.
    counted: HashMap<*const Value, Option<Counted>>,
    has_circle: bool,
}

impl<'s> Paths<'s> {
    /// Ways through `schema`, itself among them; `None` where it is too deep.
    fn count(&mut self, schema: &'s Value, n_levels: usize) -> Option<Counted> {
        let address = std::ptr::from_ref(schema);
        match self.counted.get(&address) {
            Some(Some(counted)) => return Some(*counted),
            Some(None) => {
                self.has_circle = true;
                return Some(Counted {
                    n_ways: 0,
                    height: 0,
                });
            }
            None => {}
        }
        if n_levels > SCHEMA_LEVELS {
            return None;
        }
        self.counted.insert(address, None);
        let mut counted = Counted {
            n_ways: 1,
            height: 0,
        };
        for branch in self.branches(schema) {
            let below = self.count(branch, n_levels + 1)?;
            counted.n_ways = counted.n_ways.saturating_add(below.n_ways);
            counted.height = counted.height.max(below.height + 1);
        }
        self.counted.insert(address, Some(counted));
        Some(counted)
    }

    /// The schemas that hold for the same place of the value.
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
            let named = fields.get(map).and_then(Value::as_object);
            branches.extend(named.into_iter().flat_map(|named| named.values()));
        }
        let references = REFERENCES
            .iter()
            .filter_map(|name| fields.get(*name)?.as_str());
        branches.extend(references.filter_map(|reference| self.target(reference)));
        branches
    }

    /// What a reference within the document means. Others mean nothing here: they are refused.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = match base {
            "" => self.root,
            base => self.named.get(base).copied()?,
        };
        let fragment = percent_decode_str(fragment).decode_utf8().ok()?;
        match fragment.as_ref() {
            "" => Some(resource),
            pointer if pointer.starts_with('/') => resource.pointer(pointer),
            anchor => self.named.get(anchor).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `n` definitions of which each is `keyword` of the one before it, twice.
    fn doubled(n: usize, keyword: &str) -> Value {
        let mut definitions = json!({"d0": {"type": "string"}});
        for i in 1..=n {
            let before = json!({"$ref": format!("#/$defs/d{}", i - 1)});
            definitions[format!("d{i}")] = json!({keyword: [before, before]});
        }
        json!({"$defs": definitions, "properties": {"a": {"$ref": format!("#/$defs/d{n}")}}})
    }

    #[test]
    fn branches_that_double_at_each_step_are_refused_before_anything_is_validated() {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let found = ways(&doubled(30, keyword)).expect_err("2^30 ways");
            assert!(found.contains("100000 ways"), "{found}");
            assert!(ways(&doubled(8, keyword)).is_ok());
        }
    }

    #[test]
    fn an_anchor_hides_no_doubling() {
        let mut definitions = vec![json!({"$anchor": "a0"})];
        for i in 1..=30 {
            let before = json!({"$ref": format!("#a{}", i - 1)});
            definitions.push(json!({"$anchor": format!("a{i}"), "anyOf": [before, before]}));
        }
        let schema = json!({"$defs": {"all": definitions}, "$ref": "#a30"});
        assert!(ways(&schema).is_err());
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
        assert!(ways(&chain(100)).is_ok());
        let found = ways(&chain(100_000)).expect_err("a long chain");
        assert!(found.contains("shorten"), "{found}");
    }

    #[test]
    fn circles_many_branches_and_values_that_nest_are_fine() {
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        let branches: Vec<Value> = (0..2_000).map(|i| json!({"const": i})).collect();
        for schema in [
            tree,
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"anyOf": branches}),
            json!(true),
        ] {
            assert!(ways(&schema).is_ok(), "{schema}");
        }
    }
}
