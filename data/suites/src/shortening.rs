//! Shortens a response, its keys kept, for prompts that the whole response would fill.
//!
//! The published reduction marks the names of all keys of a list item before it descends into that
//! item, so lists inside of it, and lists of scalars anywhere, come out empty; the paper says that
//! one element is kept. [`Reduction::Paths`] keeps one.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_agents::truncation::TruncationOptions;

/// Which items of a list stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Those with a key name that no kept item of any list has had, as published.
    #[default]
    Official,
    /// The first, and those with a key path that no earlier item of the same list has.
    Paths,
}

/// How a prompt shortens a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortening {
    /// Items of its lists go that bring no new key.
    Reduce(Reduction),
    /// It is filtered, its lists are sliced, deep objects summarised, and the text is cut.
    Truncate(TruncationOptions),
}

impl Default for Shortening {
    fn default() -> Self {
        Self::Reduce(Reduction::default())
    }
}

/// Cuts the lists of a response; objects keep all their keys, in their order.
///
/// Reducing by paths what was reduced by paths changes nothing. The published reduction may cut
/// again, since an item may have been kept for keys of lists that it then emptied.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", appendix C.1, and the published code.
pub fn reduce(response: &Value, reduction: Reduction) -> Value {
    match reduction {
        Reduction::Official => by_names(response, &mut HashSet::new()),
        Reduction::Paths => by_paths(response),
    }
}

fn by_names<'v>(value: &'v Value, known: &mut HashSet<&'v str>) -> Value {
    match value {
        Value::Object(fields) => {
            let reduced = fields
                .iter()
                .map(|(key, field)| (key.clone(), by_names(field, known)));
            Value::Object(reduced.collect())
        }
        Value::Array(items) => {
            let mut kept = Vec::new();
            for item in items {
                if mark_names(item, known) {
                    kept.push(by_names(item, known));
                }
            }
            Value::Array(kept)
        }
        scalar => scalar.clone(),
    }
}

/// Marks the names of all keys within a value, not only up to the first new one; whether any was
/// new.
fn mark_names<'v>(value: &'v Value, known: &mut HashSet<&'v str>) -> bool {
    match value {
        Value::Object(fields) => fields.iter().fold(false, |is_new, (key, field)| {
            let is_own_new = known.insert(key);
            mark_names(field, known) || is_own_new || is_new
        }),
        Value::Array(items) => items.iter().filter(|item| mark_names(item, known)).count() > 0,
        _ => false,
    }
}

fn by_paths(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let reduced = fields
                .iter()
                .map(|(key, field)| (key.clone(), by_paths(field)));
            Value::Object(reduced.collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            let mut seen = KeyPaths::default();
            let mut kept = Vec::new();
            for item in items {
                if seen.add(item) || kept.is_empty() {
                    kept.push(by_paths(item));
                }
            }
            Value::Array(kept)
        }
        scalar => scalar.clone(),
    }
}

/// The key paths of some values; the items of a list are one step of a path, whatever their place.
#[derive(Debug, Default)]
struct KeyPaths<'v> {
    keys: HashMap<&'v str, KeyPaths<'v>>,
    items: Option<Box<KeyPaths<'v>>>,
}

impl<'v> KeyPaths<'v> {
    /// Adds all paths of a value; whether any was new.
    fn add(&mut self, value: &'v Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter().fold(false, |is_new, (key, field)| {
                let is_own_new = !self.keys.contains_key(key.as_str());
                let below = self.keys.entry(key).or_default();
                below.add(field) || is_own_new || is_new
            }),
            Value::Array(items) => {
                let below = self.items.get_or_insert_default();
                items.iter().filter(|item| below.add(item)).count() > 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::any_document;
    use proptest::prelude::*;
    use serde_json::json;

    fn both(response: &Value) -> [Value; 2] {
        [Reduction::Official, Reduction::Paths].map(|reduction| reduce(response, reduction))
    }

    #[test]
    fn an_item_stays_for_a_key_that_is_new() {
        let response = json!({"buoys": [{"id": 1}, {"id": 2}, {"id": 3, "lit": true}]});
        let kept = json!({"buoys": [{"id": 1}, {"id": 3, "lit": true}]});
        assert_eq!(both(&response), [kept.clone(), kept]);
    }

    #[test]
    fn lists_of_scalars_and_lists_inside_items_are_emptied_by_the_published_rule_only() {
        let response =
            json!({"depths": [3, 4], "buoys": [{"tops": [{"shape": "cone"}, {"shape": "can"}]}]});
        let [official, paths] = both(&response);
        assert_eq!(official, json!({"depths": [], "buoys": [{"tops": []}]}));
        let one = json!({"depths": [3], "buoys": [{"tops": [{"shape": "cone"}]}]});
        assert_eq!(paths, one);
    }

    #[test]
    fn names_count_in_all_lists_together_and_paths_in_each_alone() {
        let response = json!({"north": [{"id": 1}], "south": [{"id": 2}], "id": 3});
        let [official, paths] = both(&response);
        let emptied = json!({"north": [{"id": 1}], "south": [], "id": 3});
        assert_eq!(official, emptied);
        assert_eq!(paths, response);
    }

    #[test]
    fn keys_outside_of_lists_are_not_marked() {
        let response =
            json!({"id": 1, "port": {"name": "Emden"}, "quays": [{"id": 2, "name": "a"}]});
        assert_eq!(both(&response), [response.clone(), response]);
    }

    #[test]
    fn the_same_key_below_another_one_is_another_path() {
        let response =
            json!([{"a": {"k": 1}}, {"a": {"b": {"k": 2}}}, {"a": [{"k": 3}]}, {"a": 4}]);
        let kept = json!([{"a": {"k": 1}}, {"a": {"b": {"k": 2}}}, {"a": [{"k": 3}]}]);
        assert_eq!(reduce(&response, Reduction::Paths), kept);
    }

    #[test]
    fn the_published_rule_may_cut_again_what_it_cut() {
        let response = json!([{"a": 1}, {"a": [{"b": 2}]}]);
        let once = reduce(&response, Reduction::Official);
        assert_eq!(once, json!([{"a": 1}, {"a": []}]));
        assert_eq!(reduce(&once, Reduction::Official), json!([{"a": 1}]));
    }

    #[test]
    fn scalars_and_empty_values_stay() {
        for response in [
            json!(3),
            json!(null),
            json!({}),
            json!([]),
            json!({"a": {"b": []}}),
        ] {
            assert_eq!(both(&response), [response.clone(), response]);
        }
    }

    proptest! {
        #[test]
        fn what_is_reduced_by_paths_is_reduced(response in any_document()) {
            let once = reduce(&response, Reduction::Paths);
            prop_assert_eq!(&reduce(&once, Reduction::Paths), &once);
        }

        #[test]
        fn no_key_path_is_lost_by_paths(response in any_document()) {
            let reduced = reduce(&response, Reduction::Paths);
            let mut paths = KeyPaths::default();
            paths.add(&reduced);
            prop_assert!(!paths.add(&response));
        }

        #[test]
        fn no_key_name_is_lost_and_no_list_grows(response in any_document()) {
            for reduced in both(&response) {
                prop_assert!(reduced.to_string().len() <= response.to_string().len());
                let mut outside = HashSet::new();
                mark_names_outside_lists(&response, &mut outside);
                let mut kept = HashSet::new();
                mark_names_outside_lists(&reduced, &mut kept);
                prop_assert_eq!(outside, kept);
            }
        }
    }

    fn mark_names_outside_lists<'v>(value: &'v Value, known: &mut HashSet<&'v str>) {
        for (key, field) in value.as_object().into_iter().flatten() {
            known.insert(key);
            mark_names_outside_lists(field, known);
        }
    }
}
