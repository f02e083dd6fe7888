//! Rules for the keys of other trainers that follow from the fields of our tables.
//!
//! A field has its names in other trainers in `x-elsewhere`. In tables marked `x-shared`, a trainer
//! without a name there uses our name, unless its own file has a rule for the setting.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Kind, Rule};
use crate::read::words;
use crate::schema;

/// Rules for the keys of `trainer`, whose file has the rules `written`.
pub(super) fn rules(trainer: &str, written: &BTreeMap<String, Rule>) -> BTreeMap<String, Rule> {
    let settings = schema::settings().into_iter();
    let rules = settings.flat_map(|(path, field)| {
        let keys = keys(trainer, &path, field, written);
        keys.into_iter()
            .map(move |key| (key.to_owned(), rule(&path, field)))
    });
    rules
        .filter(|(key, _)| !written.contains_key(key))
        .collect()
}

/// Names of a setting in `trainer`.
fn keys(
    trainer: &str,
    path: &str,
    field: &'static Value,
    written: &BTreeMap<String, Rule>,
) -> Vec<&'static str> {
    let names = &field["x-elsewhere"][trainer];
    if !names.is_null() {
        return schema::strings(names);
    }
    let (table, key) = path.split_once('.').unwrap_or(("", path));
    let is_shared = schema::table(table)["x-shared"] == true;
    let has_rule = || written.values().any(|rule| rule.to == path);
    let name = schema::keys_of(table).into_iter().find(|name| *name == key);
    name.filter(|_| is_shared && !has_rule())
        .into_iter()
        .collect()
}

/// The rule for a key with the values of this setting.
pub(super) fn rule(path: &str, field: &'static Value) -> Rule {
    let schema = schema::target(field);
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    match (schema::strings(&field["x-bool"]).as_slice(), words(schema)) {
        ([no, yes], _) => {
            known.insert("false".to_owned(), json!(no));
            known.insert("true".to_owned(), json!(yes));
        }
        (_, Some(words)) => known.extend(words.iter().map(|&word| (word.to_owned(), json!(word)))),
        _ => {}
    }
    let others = field["x-words"].as_object().into_iter().flatten();
    known.extend(others.map(|(word, ours)| (word.clone(), ours.clone())));
    Rule {
        to: path.to_owned(),
        words: (!known.is_empty()).then_some(known),
        list: schema["type"] == "array",
        kind: match schema["type"] == "object" {
            true => Kind::Table,
            false => Kind::Words,
        },
        ..Rule::default()
    }
}
