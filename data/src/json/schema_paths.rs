//! A JSON Schema to the number of ways through it at one place of a value.
//!
//! Validators try the branches of `anyOf` and its like one after another, and references let few
//! lines stand for billions of tries: thirty definitions, each of which names the one before it
//! twice. Nothing can stop a validator that has begun, so such a schema is refused before.
//! What lies deeper in the value is not counted: the value itself bounds that.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Ways that are tried at one place. The widest schema of JSONSchemaBench has 91.
const MAX_PATHS: u64 = 100_000;
/// Schemas that lead to each other at one place. Validators recurse over them.
const MAX_LEVELS: usize = 500;

const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SINGLES: [&str; 4] = ["not", "if", "then", "else"];
const MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
const NAMES: [&str; 4] = ["$id", "id", "$anchor", "$dynamicAnchor"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Says what is wrong with a schema whose validation may not come to an end; `None` if it will.
pub(crate) fn endless_work(schema: &Value) -> Option<String> {
    let mut paths = Paths {
        root: schema,
        named: HashMap::new(),
        counted: HashMap::new(),
    };
    let mut schemas = Vec::new();
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                schemas.push(value);
                left.extend(fields.values());
                let names = NAMES.iter().filter_map(|name| fields.get(*name)?.as_str());
                paths.named.extend(names.map(|name| (name, value)));
            }
            _ => {}
        }
    }
    for schema in schemas {
        match paths.count(schema, 0) {
            None => {
                return Some(format!(
                    "more than {MAX_LEVELS} schemas lead to each other by $ref, allOf and their \
                     like; shorten the chain"
                ));
            }
            Some(n) if n > MAX_PATHS => {
                return Some(format!(
                    "there are more than {MAX_PATHS} ways through the branches of its anyOf, \
                     oneOf and allOf at one place; say each branch once"
                ));
            }
            Some(_) => {}
        }
    }
    None
}

struct Paths<'s> {
    root: &'s Value,
    /// Schemas by their own name.
    named: HashMap<&'s str, &'s Value>,
    /// Ways through the schema at an address; 0 while it is counted, since validators meet a
    /// circle once.
    counted: HashMap<*const Value, u64>,
}

impl<'s> Paths<'s> {
    /// Ways through `schema`, itself among them; `None` where it is too deep.
    fn count(&mut self, schema: &'s Value, n_levels: usize) -> Option<u64> {
        let address = std::ptr::from_ref(schema);
        if let Some(&n) = self.counted.get(&address) {
            return Some(n);
        }
        if n_levels > MAX_LEVELS {
            return None;
        }
        self.counted.insert(address, 0);
        let mut n = 1_u64;
        for branch in self.branches(schema) {
            n = n.saturating_add(self.count(branch, n_levels + 1)?);
        }
        self.counted.insert(address, n);
        Some(n)
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
            let found = endless_work(&doubled(30, keyword)).expect("2^30 ways");
            assert!(found.contains("100000 ways"), "{found}");
            assert_eq!(endless_work(&doubled(8, keyword)), None);
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
        assert!(endless_work(&schema).is_some());
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
        assert_eq!(endless_work(&chain(100)), None);
        let found = endless_work(&chain(100_000)).expect("a long chain");
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
            assert_eq!(endless_work(&schema), None, "{schema}");
        }
    }
}
