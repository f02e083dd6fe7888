//! Whether a value is valid, with a memory of (definition, place).
//!
//! The crate jsonschema remembers what it found of a definition that refers to itself, and of no
//! other: where each of forty definitions names the one before it twice, it walks them 2^40 times.
//! Here each target of a reference is a validator of its own, references are a keyword that asks
//! it, and what it said of a place is kept for the walk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use jsonschema::{Draft, Keyword, ValidationError, Validator};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::counted::{Counted, CountedValue, within};
use super::{Allowance, options};
use crate::budgets::MEMORY_SCHEMA_NODES;

/// The keyword that stands for a reference.
const REFERENCE: &str = "x-tooltune-definition";

/// Whether the value is valid; `None` if that takes more than it may, or if the schema uses what is
/// not understood here: names of its own, dynamic references, unevaluated properties and items.
pub(super) fn is_valid(
    schema: &Value,
    draft: Draft,
    value: &Value,
    allowance: Allowance,
) -> Option<bool> {
    let memory = Memory::of(schema, draft)?;
    let root = memory.validators.get()?.first()?;
    within(allowance, || root.is_valid(CountedValue(value)))
}

/// The definitions of a schema, and what is known of the places of one value.
#[derive(Default)]
struct Memory {
    validators: OnceLock<Vec<Validator<Counted>>>,
    /// By definition and address; none while it is asked.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    verdicts: HashMap<(usize, usize), Option<bool>>,
    /// How often a definition was asked of a place at which it was being asked.
    n_circles: u64,
}

impl Memory {
    fn of(schema: &Value, draft: Draft) -> Option<Arc<Self>> {
        let memory = Arc::new(Self::default());
        let mut definitions = Definitions {
            root: schema,
            speak_alone: matches!(draft, Draft::Draft4 | Draft::Draft6 | Draft::Draft7),
            ids: HashMap::new(),
            queue: vec![schema],
            n_nodes: 0,
        };
        definitions.ids.insert(String::new(), 0);
        let owner = Arc::downgrade(&memory);
        let options =
            options(draft).with_keyword(REFERENCE, move |_: &Map<String, Value>, id: &Value, _| {
                let id = id.as_u64().unwrap_or_default() as usize;
                let reference = Reference {
                    id,
                    memory: Weak::clone(&owner),
                };
                Ok(Box::new(reference) as Box<dyn for<'i> Keyword<'i, Counted>>)
            });
        let (mut validators, mut at) = (Vec::new(), 0);
        while let Some(definition) = definitions.queue.get(at).copied() {
            let rewritten = definitions.rewritten(definition)?;
            validators.push(options.build(&rewritten).ok()?);
            at += 1;
        }
        memory.validators.set(validators).ok()?;
        Some(memory)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, id: usize, value: CountedValue<'_>) -> bool {
        let Some(validator) = self.validators.get().and_then(|all| all.get(id)) else {
            return true;
        };
        let key = (id, std::ptr::from_ref(value.0) as usize);
        let n_circles = {
            let mut known = self.known();
            match known.verdicts.get(&key) {
                Some(Some(verdict)) => return *verdict,
                Some(None) => {
                    known.n_circles += 1;
                    return true;
                }
                None => {}
            }
            known.verdicts.insert(key, None);
            known.n_circles
        };
        let verdict = validator.is_valid(value);
        let mut known = self.known();
        // What was found within a circle may depend on where the circle was entered, and the name of
        // a property is a text whose address the next name has, too.
        if known.n_circles == n_circles && !value.0.is_string() {
            known.verdicts.insert(key, Some(verdict));
        } else {
            known.verdicts.remove(&key);
        }
        verdict
    }
}

struct Reference {
    id: usize,
    memory: Weak<Memory>,
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
        memory.is_none_or(|memory| memory.ask(self.id, instance))
    }
}

/// The targets of the references of a schema.
struct Definitions<'s> {
    root: &'s Value,
    /// Whether nothing beside `$ref` counts, as until draft 7.
    speak_alone: bool,
    ids: HashMap<String, usize>,
    queue: Vec<&'s Value>,
    n_nodes: usize,
}

/// Keywords whose value maps names to schemas.
const NAMED: [&str; 4] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];
/// Keywords whose value is data.
const DATA: [&str; 6] = [
    "const",
    "enum",
    "default",
    "examples",
    "required",
    "dependentRequired",
];
/// Keywords by which the target of a reference depends on more than its text, or a schema on what
/// another has seen.
const NOT_UNDERSTOOD: [&str; 11] = [
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
    /// The schema with its references as [`REFERENCE`], and without the definitions inside.
    fn rewritten(&mut self, schema: &'s Value) -> Option<Value> {
        self.n_nodes += 1;
        if self.n_nodes > MEMORY_SCHEMA_NODES {
            return None;
        }
        let keywords = match schema {
            Value::Object(keywords) => keywords,
            Value::Array(schemas) => {
                let schemas = schemas.iter().map(|schema| self.rewritten(schema));
                return schemas.collect::<Option<Vec<_>>>().map(Value::Array);
            }
            scalar => return Some(scalar.clone()),
        };
        let reference = match keywords.get("$ref") {
            None => None,
            Some(reference) => Some(json!(self.id(reference.as_str()?)?)),
        };
        if let (Some(id), true) = (&reference, self.speak_alone) {
            return Some(json!({REFERENCE: id}));
        }
        let mut rewritten = Map::new();
        for (keyword, value) in keywords {
            let is_root = std::ptr::eq(schema, self.root);
            match (keyword.as_str(), value) {
                ("$ref" | "$defs" | "definitions" | "$comment", _) => continue,
                ("$schema", _) if is_root => continue,
                (name, Value::Object(_) | Value::Bool(_) | Value::String(_))
                    if NOT_UNDERSTOOD.contains(&name) =>
                {
                    return None;
                }
                (name, Value::Object(schemas)) if NAMED.contains(&name) => {
                    let mut named = Map::new();
                    for (name, schema) in schemas {
                        named.insert(name.clone(), self.rewritten(schema)?);
                    }
                    rewritten.insert(keyword.clone(), Value::Object(named));
                }
                (name, _) if DATA.contains(&name) => {
                    rewritten.insert(keyword.clone(), value.clone());
                }
                _ => {
                    rewritten.insert(keyword.clone(), self.rewritten(value)?);
                }
            }
        }
        if let Some(id) = reference {
            rewritten.insert(REFERENCE.to_owned(), id);
        }
        Some(Value::Object(rewritten))
    }

    /// The number of the target of a reference within the document.
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
