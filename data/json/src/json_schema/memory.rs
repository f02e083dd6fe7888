//! Decides whether a value is valid, with results memoized by (definition, location).
//!
//! The jsonschema crate memoizes only definitions that refer to themselves. If forty definitions
//! each refer to the previous one twice, it takes 2^40 steps. This module compiles each reference
//! target into a separate validator and replaces references by a custom keyword that calls it. Each
//! result is stored for the rest of the walk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use jsonschema::{Draft, Keyword, ValidationError, Validator};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::counted::{Counted, CountedValue, run_with_budget};
use super::{Allowance, Dialect, options};
use crate::budgets::MEMORY_SCHEMA_NODES;

/// The keyword that replaces a reference.
const REFERENCE: &str = "x-tooltune-definition";

/// Returns whether the value is valid. Returns `None` if the check exceeds the budget, or if the
/// schema uses an unsupported feature: `$id` or anchors, dynamic references, unevaluated properties
/// or items.
pub(super) fn is_valid(
    schema: &Value,
    dialect: Dialect,
    value: &Value,
    allowance: Allowance,
) -> Option<bool> {
    let memory = MemoizedValidators::new(schema, dialect)?;
    let root = memory.validators.get()?.first()?;
    run_with_budget(allowance, || root.is_valid(CountedValue(value)))
}

/// The definitions of a schema, and the results for the locations of one value.
#[derive(Default)]
struct MemoizedValidators {
    validators: OnceLock<Vec<Validator<Counted>>>,
    /// Results by definition and address; `None` while the result is being computed.
    results: Mutex<Results>,
}

#[derive(Default)]
struct Results {
    verdicts: HashMap<(usize, usize), Option<bool>>,
    /// How often a definition was evaluated at a location where its result was still being
    /// computed.
    n_cycles: u64,
}

impl MemoizedValidators {
    fn new(schema: &Value, dialect: Dialect) -> Option<Arc<Self>> {
        let memory = Arc::new(Self::default());
        let mut definitions = Definitions {
            root: schema,
            ignores_ref_siblings: matches!(
                dialect.draft,
                Draft::Draft4 | Draft::Draft6 | Draft::Draft7
            ),
            ids: HashMap::new(),
            queue: vec![schema],
            n_nodes: 0,
        };
        definitions.ids.insert(String::new(), 0);
        let owner = Arc::downgrade(&memory);
        let options = options(dialect).with_keyword(
            REFERENCE,
            move |_: &Map<String, Value>, id: &Value, _| {
                let id = id.as_u64().unwrap_or_default() as usize;
                let reference = Reference {
                    id,
                    memory: Weak::clone(&owner),
                };
                Ok(Box::new(reference) as Box<dyn for<'i> Keyword<'i, Counted>>)
            },
        );
        let (mut validators, mut at) = (Vec::new(), 0);
        while let Some(definition) = definitions.queue.get(at).copied() {
            let rewritten = definitions.rewrite(definition)?;
            validators.push(options.build(&rewritten).ok()?);
            at += 1;
        }
        memory.validators.set(validators).ok()?;
        Some(memory)
    }

    fn lock_results(&self) -> std::sync::MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_definition_valid(&self, id: usize, value: CountedValue<'_>) -> bool {
        let Some(validator) = self.validators.get().and_then(|all| all.get(id)) else {
            return true;
        };
        let key = (id, std::ptr::from_ref(value.0) as usize);
        let n_cycles = {
            let mut results = self.lock_results();
            match results.verdicts.get(&key) {
                Some(Some(verdict)) => return *verdict,
                Some(None) => {
                    results.n_cycles += 1;
                    return true;
                }
                None => {}
            }
            results.verdicts.insert(key, None);
            results.n_cycles
        };
        let verdict = validator.is_valid(value);
        let mut results = self.lock_results();
        // A result inside a cycle may depend on where the cycle was entered. Strings are not
        // stored: a property name is a temporary string whose address the next name may reuse.
        if results.n_cycles == n_cycles && !value.0.is_string() {
            results.verdicts.insert(key, Some(verdict));
        } else {
            results.verdicts.remove(&key);
        }
        verdict
    }
}

struct Reference {
    id: usize,
    memory: Weak<MemoizedValidators>,
}

impl<'i> Keyword<'i, Counted> for Reference {
    fn validate(&self, instance: CountedValue<'i>) -> Result<(), ValidationError<'i>> {
        if Keyword::<Counted>::is_valid(self, instance) {
            Ok(())
        } else {
            Err(ValidationError::custom("broken"))
        }
    }

    fn is_valid(&self, instance: CountedValue<'i>) -> bool {
        let memory = self.memory.upgrade();
        memory.is_none_or(|memory| memory.is_definition_valid(self.id, instance))
    }
}

/// The targets of the references of a schema.
struct Definitions<'s> {
    root: &'s Value,
    /// Whether keywords next to `$ref` are ignored, as up to draft 7.
    ignores_ref_siblings: bool,
    ids: HashMap<String, usize>,
    queue: Vec<&'s Value>,
    n_nodes: usize,
}

/// Keywords whose value maps names to schemas.
const SCHEMA_MAPS: [&str; 4] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];
/// Keywords whose value is data.
const DATA_KEYWORDS: [&str; 6] = [
    "const",
    "enum",
    "default",
    "examples",
    "required",
    "dependentRequired",
];
/// Keywords whose effect depends on more than the text of their schema, such as the references that
/// lead to it or the results of other keywords.
const UNSUPPORTED: [&str; 11] = [
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$recursiveRef",
    "$schema",
    "$vocabulary",
    "id",
    "unevaluatedItems",
    "unevaluatedProperties",
];

impl<'s> Definitions<'s> {
    /// Replaces references in the schema by [`REFERENCE`] and removes nested definitions.
    fn rewrite(&mut self, schema: &'s Value) -> Option<Value> {
        self.n_nodes += 1;
        if self.n_nodes > MEMORY_SCHEMA_NODES {
            return None;
        }
        let keywords = match schema {
            Value::Object(keywords) => keywords,
            Value::Array(schemas) => {
                let schemas = schemas.iter().map(|schema| self.rewrite(schema));
                return schemas.collect::<Option<Vec<_>>>().map(Value::Array);
            }
            scalar => return Some(scalar.clone()),
        };
        let reference = match keywords.get("$ref") {
            None => None,
            Some(reference) => Some(json!(self.id(reference.as_str()?)?)),
        };
        if let (Some(id), true) = (&reference, self.ignores_ref_siblings) {
            return Some(json!({REFERENCE: id}));
        }
        let mut rewritten = Map::new();
        for (keyword, value) in keywords {
            let is_root = std::ptr::eq(schema, self.root);
            match (keyword.as_str(), value) {
                ("$ref" | "$defs" | "definitions" | "$comment", _) => continue,
                ("$schema", _) if is_root => continue,
                (name, Value::Object(_) | Value::Bool(_) | Value::String(_))
                    if UNSUPPORTED.contains(&name) =>
                {
                    return None;
                }
                (name, Value::Object(schemas)) if SCHEMA_MAPS.contains(&name) => {
                    let mut named_schemas = Map::new();
                    for (name, schema) in schemas {
                        named_schemas.insert(name.clone(), self.rewrite(schema)?);
                    }
                    rewritten.insert(keyword.clone(), Value::Object(named_schemas));
                }
                (name, _) if DATA_KEYWORDS.contains(&name) => {
                    rewritten.insert(keyword.clone(), value.clone());
                }
                _ => {
                    rewritten.insert(keyword.clone(), self.rewrite(value)?);
                }
            }
        }
        if let Some(id) = reference {
            rewritten.insert(REFERENCE.to_owned(), id);
        }
        Some(Value::Object(rewritten))
    }

    /// Returns the index of a reference target within the document.
    fn id(&mut self, reference: &str) -> Option<usize> {
        let fragment = reference.strip_prefix('#')?;
        let pointer = percent_decode_str(fragment).decode_utf8().ok()?;
        if let Some(id) = self.ids.get(pointer.as_ref()) {
            return Some(*id);
        }
        let target = self.root.pointer(&pointer)?;
        let id = self.queue.len();
        self.queue.push(target);
        self.ids.insert(pointer.into_owned(), id);
        Some(id)
    }
}
