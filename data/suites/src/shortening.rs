//! Shortens a tool response for prompts that would be too long with the whole response. Object keys
//! are kept.
//!
//! The published reduction marks all key names of a list item as known before it descends into that
//! item. Lists inside the item, and lists of scalars anywhere, therefore become empty, although the
//! paper describes keeping one element. [`Reduction::Paths`] keeps one element.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_agents::truncation::TruncationOptions;

/// Which items of a list are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// As published: items with a key name that no previously kept item of any list has.
    #[default]
    Official,
    /// The first item, and items with a key path that no earlier item of the same list has.
    Paths,
}

/// How a prompt shortens a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortening {
    /// List items without new keys are dropped.
    Reduce(Reduction),
    /// The response is filtered, its lists are sliced, deep objects are summarised, and the text is
    /// cut.
    Truncate(TruncationOptions),
}

impl Default for Shortening {
    fn default() -> Self {
        Self::Reduce(Reduction::default())
    }
}

/// Cuts the lists of a response; objects keep all their keys, in order.
///
/// Reducing by paths is idempotent. The published reduction is not: an item may be kept because of
/// keys inside lists that are emptied afterwards.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", appendix C.1, and the published code.
pub fn reduce(response: &Value, reduction: Reduction) -> Value {
    match reduction {
        Reduction::Official => reduce_by_names(response, &mut HashSet::new()),
        Reduction::Paths => reduce_by_paths(response),
    }
}

fn reduce_by_names<'v>(value: &'v Value, known: &mut HashSet<&'v str>) -> Value {
    match value {
        Value::Object(fields) => {
            let reduced_fields = fields
                .iter()
                .map(|(key, field)| (key.clone(), reduce_by_names(field, known)));
            Value::Object(reduced_fields.collect())
        }
        Value::Array(items) => {
            let mut kept_items = Vec::new();
            for item in items {
                if mark_names(item, known) {
                    kept_items.push(reduce_by_names(item, known));
                }
            }
            Value::Array(kept_items)
        }
        scalar => scalar.clone(),
    }
}

/// Marks the names of all keys in a value as known, not only up to the first new name. Returns
/// whether any name was new.
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

fn reduce_by_paths(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let reduced_fields = fields
                .iter()
                .map(|(key, field)| (key.clone(), reduce_by_paths(field)));
            Value::Object(reduced_fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            let mut seen_paths = SeenKeyPaths::default();
            let mut kept_items = Vec::new();
            for item in items {
                if seen_paths.add(item) || kept_items.is_empty() {
                    kept_items.push(reduce_by_paths(item));
                }
            }
            Value::Array(kept_items)
        }
        scalar => scalar.clone(),
    }
}

/// The key paths seen so far. All items of a list share one path step.
#[derive(Debug, Default)]
struct SeenKeyPaths<'v> {
    keys: HashMap<&'v str, SeenKeyPaths<'v>>,
    items: Option<Box<SeenKeyPaths<'v>>>,
}

impl<'v> SeenKeyPaths<'v> {
    /// Adds all paths of a value, and returns whether any path was new.
    fn add(&mut self, value: &'v Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter().fold(false, |is_new, (key, field)| {
                let is_own_new = !self.keys.contains_key(key.as_str());
                let child = self.keys.entry(key).or_default();
                child.add(field) || is_own_new || is_new
            }),
            Value::Array(items) => {
                let child = self.items.get_or_insert_default();
                items.iter().filter(|item| child.add(item)).count() > 0
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

    fn reduce_both_ways(response: &Value) -> [Value; 2] {
        [Reduction::Official, Reduction::Paths].map(|reduction| reduce(response, reduction))
    }

    #[test]
    fn a_list_item_with_a_new_key_is_kept() {
        let response = json!({"buoys": [{"id": 1}, {"id": 2}, {"id": 3, "lit": true}]});
        let expected = json!({"buoys": [{"id": 1}, {"id": 3, "lit": true}]});
        assert_eq!(reduce_both_ways(&response), [expected.clone(), expected]);
    }

    #[test]
    fn lists_of_scalars_and_lists_inside_items_are_emptied_by_the_published_rule_only() {
        let response =
            json!({"depths": [3, 4], "buoys": [{"tops": [{"shape": "cone"}, {"shape": "can"}]}]});
        let [official, paths] = reduce_both_ways(&response);
        assert_eq!(official, json!({"depths": [], "buoys": [{"tops": []}]}));
        let nested_response = json!({"depths": [3], "buoys": [{"tops": [{"shape": "cone"}]}]});
        assert_eq!(paths, nested_response);
    }

    #[test]
    fn key_names_are_shared_by_all_lists_and_key_paths_are_per_list() {
        let response = json!({"north": [{"id": 1}], "south": [{"id": 2}], "id": 3});
        let [official, paths] = reduce_both_ways(&response);
        let emptied = json!({"north": [{"id": 1}], "south": [], "id": 3});
        assert_eq!(official, emptied);
        assert_eq!(paths, response);
    }

    #[test]
    fn keys_outside_lists_do_not_count_as_seen() {
        let response =
            json!({"id": 1, "port": {"name": "Emden"}, "quays": [{"id": 2, "name": "a"}]});
        assert_eq!(reduce_both_ways(&response), [response.clone(), response]);
    }

    #[test]
    fn the_same_key_below_another_one_is_another_path() {
        let response =
            json!([{"a": {"k": 1}}, {"a": {"b": {"k": 2}}}, {"a": [{"k": 3}]}, {"a": 4}]);
        let expected = json!([{"a": {"k": 1}}, {"a": {"b": {"k": 2}}}, {"a": [{"k": 3}]}]);
        assert_eq!(reduce(&response, Reduction::Paths), expected);
    }

    #[test]
    fn the_published_reduction_is_not_idempotent() {
        let response = json!([{"a": 1}, {"a": [{"b": 2}]}]);
        let reduced_once = reduce(&response, Reduction::Official);
        assert_eq!(reduced_once, json!([{"a": 1}, {"a": []}]));
        assert_eq!(
            reduce(&reduced_once, Reduction::Official),
            json!([{"a": 1}])
        );
    }

    #[test]
    fn scalars_and_empty_values_are_unchanged() {
        for response in [
            json!(3),
            json!(null),
            json!({}),
            json!([]),
            json!({"a": {"b": []}}),
        ] {
            assert_eq!(reduce_both_ways(&response), [response.clone(), response]);
        }
    }

    proptest! {
        #[test]
        fn reduction_by_paths_is_idempotent(response in any_document()) {
            let reduced_once = reduce(&response, Reduction::Paths);
            prop_assert_eq!(&reduce(&reduced_once, Reduction::Paths), &reduced_once);
        }

        #[test]
        fn reduction_by_paths_keeps_every_key_path(response in any_document()) {
            let reduced_response = reduce(&response, Reduction::Paths);
            let mut paths = SeenKeyPaths::default();
            paths.add(&reduced_response);
            prop_assert!(!paths.add(&response));
        }

        #[test]
        fn reduction_keeps_every_key_name_and_no_list_grows(response in any_document()) {
            for reduced in reduce_both_ways(&response) {
                prop_assert!(reduced.to_string().len() <= response.to_string().len());
                let mut names_outside = HashSet::new();
                mark_names_outside_lists(&response, &mut names_outside);
                let mut names_kept = HashSet::new();
                mark_names_outside_lists(&reduced, &mut names_kept);
                prop_assert_eq!(names_outside, names_kept);
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
