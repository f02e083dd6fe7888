//! Compares values whose errors were classified manually, random values and hostile ones.

use serde_json::json;

use super::*;
use LeafErrorKind::*;

/// The wrong leaves, as (path, error, path of the equal value).
fn errors(prediction: &Value, reference: &Value) -> Vec<(String, LeafErrorKind, Option<String>)> {
    let compared = LeafErrors::compare(Some(prediction), reference, "stop");
    let leaves = compared.leaves().iter();
    leaves
        .filter_map(|leaf| Some((leaf.path.clone(), leaf.error?, leaf.found_at.clone())))
        .collect()
}

fn assert_errors(prediction: Value, reference: Value, expected: &[(&str, LeafErrorKind, &str)]) {
    let found = errors(&prediction, &reference);
    let found: Vec<(&str, LeafErrorKind, &str)> = found
        .iter()
        .map(|(path, kind, found_at)| (path.as_str(), *kind, found_at.as_deref().unwrap_or("")))
        .collect();
    assert_eq!(found, expected, "{prediction} against {reference}");
}

/// The order of the flat-schema post.
fn order() -> Value {
    json!({
        "customer": {
            "name": "Alice",
            "address": {"street": "123 Main St", "city": "Portland", "state": "OR", "zip": "97201"},
            "email": "a@example.org",
        },
        "items": [{"sku": "WIDGET-1", "quantity": 2}],
        "shipping": {"method": "express"},
    })
}

#[test]
fn every_kind_of_a_leaf_in_its_place() {
    let reference = json!({"a": 1, "b": "x", "c": [true, null], "d": {"e": "y"}});
    assert_errors(reference.clone(), reference.clone(), &[]);
    assert_errors(
        json!({"a": "1", "b": "z", "c": [true], "d": {"e": "y", "f": [1, 2]}}),
        reference,
        &[
            ("$.a", WrongType, ""),
            ("$.b", WrongValue, ""),
            ("$.c[]", Missing, ""),
            ("$.d.f[]", Invented, ""),
            ("$.d.f[]", Invented, ""),
        ],
    );
}

#[test]
fn numbers_are_equal_by_value_and_key_order_does_not_matter() {
    assert_errors(json!({"b": 2.0, "a": 1e3}), json!({"a": 1000, "b": 2}), &[]);
    assert_errors(
        json!({"a": 1}),
        json!({"a": true}),
        &[("$.a", WrongType, "")],
    );
    assert_errors(
        json!({"a": null}),
        json!({"a": 0}),
        &[("$.a", WrongType, "")],
    );
    assert_errors(json!(1.5), json!(1), &[("$", WrongValue, "")]);
}

#[test]
fn an_object_closed_too_early_is_a_premature_close() {
    let reference = order();
    let predicted = json!({
        "customer": {"name": "Alice", "address": {"street": "123 Main St"}},
        "city": "Portland", "state": "OR", "zip": "97201", "email": "a@example.org",
        "items": [{"sku": "WIDGET-1", "quantity": 2}],
        "shipping": {"method": "express"},
    });
    assert_errors(
        predicted,
        reference,
        &[
            ("$.customer.address.city", PrematureClose, "$.city"),
            ("$.customer.address.state", PrematureClose, "$.state"),
            ("$.customer.address.zip", PrematureClose, "$.zip"),
            ("$.customer.email", PrematureClose, "$.email"),
        ],
    );
}

#[test]
fn a_leaf_beside_its_object_is_at_the_wrong_level() {
    let reference = order();
    let predicted = json!({
        "customer": {
            "name": "Alice", "city": "Portland",
            "address": {"street": "123 Main St", "state": "OR", "zip": "97201"},
            "email": "a@example.org",
        },
        "items": [{"sku": "WIDGET-1", "quantity": 2}],
        "shipping": {"method": "express"},
    });
    assert_errors(
        predicted,
        reference,
        &[("$.customer.address.city", WrongLevel, "$.customer.city")],
    );
    // Also below an object that the reference does not have.
    assert_errors(
        json!({"x": {"city": "Portland"}}),
        json!({"city": "Portland"}),
        &[("$.city", WrongLevel, "$.x.city")],
    );
}

#[test]
fn leaves_of_an_absent_object_lack_their_wrapper() {
    let reference = order();
    let predicted = json!({
        "customer": {
            "name": "Alice", "street": "123 Main St", "city": "Portland", "state": "OR",
            "zip": "97201", "email": "a@example.org",
        },
        "items": [{"sku": "WIDGET-1", "quantity": 2}],
        "method": "express",
    });
    assert_errors(
        predicted,
        reference,
        &[
            (
                "$.customer.address.street",
                MissingWrapper,
                "$.customer.street",
            ),
            ("$.customer.address.city", MissingWrapper, "$.customer.city"),
            (
                "$.customer.address.state",
                MissingWrapper,
                "$.customer.state",
            ),
            ("$.customer.address.zip", MissingWrapper, "$.customer.zip"),
            ("$.shipping.method", MissingWrapper, "$.method"),
        ],
    );
    // A wrapper in the middle of the path.
    assert_errors(
        json!({"customer": {"geo": {"lat": 1}}}),
        json!({"customer": {"address": {"geo": {"lat": 1}}}}),
        &[(
            "$.customer.address.geo.lat",
            MissingWrapper,
            "$.customer.geo.lat",
        )],
    );
    // The object is a string, so the prediction has no such object.
    assert_errors(
        json!({"address": "Main St", "city": "Portland"}),
        json!({"address": {"city": "Portland"}}),
        &[("$.address.city", MissingWrapper, "$.city")],
    );
}

#[test]
fn an_object_in_place_of_a_list_is_array_confusion() {
    let item = json!({"sku": "WIDGET-1", "quantity": 2});
    assert_errors(
        json!({"items": item}),
        json!({"items": [item]}),
        &[
            ("$.items[].sku", ArrayConfusion, "$.items.sku"),
            ("$.items[].quantity", ArrayConfusion, "$.items.quantity"),
        ],
    );
    assert_errors(
        json!({"tags": "red"}),
        json!({"tags": ["red"]}),
        &[("$.tags[]", ArrayConfusion, "$.tags")],
    );
    assert_errors(
        json!([{"a": 1}, {"a": 2, "b": 3}]),
        json!([{"a": 1, "b": 3}, {"a": 2}]),
        &[("$[].b", ArrayConfusion, "$[].b")],
    );
}

#[test]
fn a_value_of_another_type_is_reported_once() {
    // The reference leaves count, and the leaves of the wrong value do not count again.
    assert_errors(
        json!({"address": "Main St 1, Portland"}),
        json!({"address": {"street": "Main St 1", "city": "Portland"}}),
        &[
            ("$.address.street", WrongType, ""),
            ("$.address.city", WrongType, ""),
        ],
    );
    assert_errors(
        json!({"n": {"value": 1, "unit": "m"}}),
        json!({"n": 2}),
        &[("$.n", WrongType, "")],
    );
    assert_errors(
        json!({"l": {}}),
        json!({"l": []}),
        &[("$.l", WrongType, "")],
    );
    assert_errors(
        json!({"l": {"a": 1}}),
        json!({"l": []}),
        &[("$.l", WrongType, "")],
    );
}

#[test]
fn empty_containers_are_leaves() {
    assert_errors(json!({}), json!({}), &[]);
    assert_errors(json!({}), json!({"a": {}}), &[("$.a", Missing, "")]);
    assert_errors(json!({"a": {}}), json!({}), &[("$.a", Invented, "")]);
    assert_errors(
        json!({"a": [1]}),
        json!({"a": []}),
        &[("$.a[]", Invented, "")],
    );
    assert_errors(
        json!({"a": []}),
        json!({"a": [1]}),
        &[("$.a[]", Missing, "")],
    );
}

#[test]
fn a_leaf_is_misplaced_only_under_its_own_key_and_only_once() {
    // A renamed key is a missing and an invented leaf.
    assert_errors(
        json!({"zip_code": "97201"}),
        json!({"zip": "97201"}),
        &[("$.zip", Missing, ""), ("$.zip_code", Invented, "")],
    );
    // A value is matched with one leaf at most.
    assert_errors(
        json!({"sku": "x"}),
        json!({"items": [{"sku": "x"}, {"sku": "x"}]}),
        &[
            ("$.items[].sku", MissingWrapper, "$.sku"),
            ("$.items[].sku", Missing, ""),
        ],
    );
    // Two values that are swapped are in their places.
    assert_errors(
        json!({"from": "Rye", "to": "Ulm"}),
        json!({"from": "Ulm", "to": "Rye"}),
        &[("$.from", WrongValue, ""), ("$.to", WrongValue, "")],
    );
}

#[test]
fn a_cut_or_unparsable_completion_counts_every_leaf_once() {
    let reference = order();
    for (prediction, reason, kind) in [
        (None, "stop", Malformed),
        (None, "length", Truncated),
        (Some(&reference), "time", Truncated),
        (None, "", Malformed),
    ] {
        let errors = LeafErrors::compare(prediction, &reference, reason);
        assert_eq!(errors.kinds(), BTreeMap::from([(kind, 9)]), "{reason}");
        assert_eq!(errors.n_leaves(), 9);
    }
}

#[test]
fn depth_counts_keys_and_indices() {
    let errors = LeafErrors::compare(None, &json!({"a": 1, "b": [{"c": 2}]}), "stop");
    let depths: Vec<usize> = errors.leaves().iter().map(|leaf| leaf.depth).collect();
    assert_eq!(depths, [1, 3]);
    let scalar = LeafErrors::compare(None, &json!("x"), "stop");
    assert_eq!(scalar.leaves()[0].depth, 0);
}

#[test]
fn calls_are_compared_by_tool() {
    let call = |name: &str, arguments: Value| ComparedCall {
        name: name.to_owned(),
        arguments: Some(arguments),
    };
    let reference = [
        call("tide", json!({"port": "Rye", "day": 1})),
        call("tide", json!({"port": "Ulm"})),
        call("now", json!({})),
    ];
    let predicted = [
        call("tide", json!({"port": "Ulm"})),
        call("tide", json!({"port": "Rye"})),
        call("berth", json!({"at": 3})),
    ];
    let kinds = |is_malformed: bool, reasons: &[&str]| {
        LeafErrors::compare_sequences(&reference, &predicted, is_malformed, reasons).kinds()
    };
    // tide.day is missing, the call of now is missing, and berth.at is invented.
    assert_eq!(
        kinds(false, &["stop"]),
        BTreeMap::from([(Missing, 2), (Invented, 1)])
    );
    let expected = BTreeMap::from([(Missing, 1), (Malformed, 1), (Invented, 1)]);
    assert_eq!(kinds(true, &["stop"]), expected);
    let expected = BTreeMap::from([(Missing, 1), (Truncated, 1), (Invented, 1)]);
    assert_eq!(kinds(true, &["stop", "length"]), expected);
    let unparsed = ComparedCall {
        name: "tide".to_owned(),
        arguments: None,
    };
    let errors = LeafErrors::compare_sequences(&reference[..1], &[unparsed], false, &[]);
    assert_eq!(errors.kinds(), BTreeMap::from([(Malformed, 2)]));
    assert_eq!(errors.leaves()[0].path, "tide.port");
    assert_eq!(errors.leaves()[0].tool.as_deref(), Some("tide"));
}

#[test]
fn a_line_lists_counts_and_different_errors() {
    let reference = json!({"l": [{"a": 1, "b": 1}, {"a": 1, "b": 1}], "c": {"d": 1}});
    let prediction = json!({"l": [{"a": 1}, {"a": 1}], "d": 1});
    let errors = LeafErrors::compare(Some(&prediction), &reference, "stop");
    let line = json!({"leaf_errors": errors});
    assert_eq!(
        line["leaf_errors"],
        json!({
            "n_leaves": 5,
            "kinds": {"missing": 2, "missing_wrapper": 1},
            "errors": [
                {"kind": "missing", "path": "$.l[].b", "n": 2},
                {"kind": "missing_wrapper", "path": "$.c.d", "found_at": "$.d", "n": 1},
            ],
        })
    );
    let counts = BTreeMap::from([(Missing, 2), (MissingWrapper, 1)]);
    assert_eq!(LeafErrors::counts_in(&line), Some((5, counts)));
    assert_eq!(LeafErrors::counts_in(&json!({"score": {}})), None);
    let many: Value = (0..25).map(|n| (format!("k{n}"), json!(n))).collect();
    let line = json!(LeafErrors::compare(None, &many, "stop"));
    assert_eq!(line["errors"].as_array().map(Vec::len), Some(MAX_LISTED));
    assert_eq!(line["n_more_errors"], 5);
}

#[test]
fn a_summary_has_denominators_columns_and_examples() {
    let reference = json!({"a": 1, "b": {"c": 2}});
    let samples = [
        LeafErrors::compare(Some(&reference), &reference, "stop"),
        LeafErrors::compare(Some(&json!({"a": 2, "b": {}, "x": 1})), &reference, "stop"),
        LeafErrors::compare(None, &reference, "stop"),
    ];
    let ids = ["r:1", "r:2", "r:3"];
    let summary = LeafErrorSummary::new(ids.into_iter().zip(&samples), LeafGroups::Path);
    let summary = json!(summary.expect("leaves"));
    assert_eq!(summary["n_leaves"], 6);
    let counts = [
        "missing",
        "invented",
        "wrong_value",
        "malformed",
        "wrong_type",
        "truncated",
    ];
    let counts = counts.map(|kind| summary[kind].as_u64().expect("a count"));
    assert_eq!(counts, [1, 1, 1, 2, 0, 0]);
    assert_eq!(
        summary["by_depth"],
        json!([
            {"depth": 1, "n": 3, "missing": 0, "invented": 1, "wrong_value": 1, "malformed": 1},
            {"depth": 2, "n": 3, "missing": 1, "invented": 0, "wrong_value": 0, "malformed": 1},
        ])
    );
    assert_eq!(summary["by_path"][2]["path"], "$.x");
    assert_eq!(summary["by_path"][2]["n"], 0);
    assert_eq!(summary["wrong_paths"][0]["path"], "$.a");
    assert_eq!(summary["wrong_paths"][0]["example"], "r:2");
    assert_eq!(summary["wrong_paths"][0]["n_errors"], 2);
    assert_eq!(summary["wrong_paths"][1]["path"], "$.b.c");
    assert_eq!(summary.get("by_tool"), None);
    assert!(LeafErrorSummary::new([], LeafGroups::Path).is_none());
}

/// Values of up to four levels, from a fixed pseudorandom sequence.
struct Values(u64);

impl Values {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }

    fn value(&mut self, level: u64) -> Value {
        match self.below(if level < 4 { 7 } else { 5 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(3)),
            3 => json!(self.below(2) as f64 / 2.0),
            4 => json!(["", "x", "1"][self.below(3) as usize]),
            5 => (0..self.below(4)).map(|_| self.value(level + 1)).collect(),
            _ => {
                let fields = 0..self.below(4);
                let fields = fields.map(|_| {
                    let key = ["a", "b", "c", ""][self.below(4) as usize];
                    (key.to_owned(), self.value(level + 1))
                });
                Value::Object(fields.collect())
            }
        }
    }
}

/// Invariant: Every leaf of a reference has at most one error, and equal values have none.
#[test]
fn random_values_are_counted_leaf_by_leaf() {
    let mut values = Values(17);
    let n_leaves = |value: &Value| crate::leaves::leaves(value).len();
    let mut n_misplaced = 0;
    for _ in 0..20_000 {
        let (reference, prediction) = (values.value(0), values.value(0));
        assert_eq!(errors(&reference, &reference), [], "{reference}");
        let compared = LeafErrors::compare(Some(&prediction), &reference, "stop");
        let kinds = compared.kinds();
        let sum: usize = kinds.values().sum();
        let n_right = compared
            .leaves()
            .iter()
            .filter(|leaf| leaf.error.is_none())
            .count();
        assert_eq!(compared.leaves().len(), n_right + sum);
        assert_eq!(compared.n_leaves(), n_leaves(&reference), "{reference}");
        let found = compared
            .leaves()
            .iter()
            .filter(|leaf| leaf.found_at.is_some())
            .count();
        n_misplaced += found;
        let n_invented = compared.n_of(Invented);
        assert!(found + n_invented <= n_leaves(&prediction), "{prediction}");
        // Without an error, the values have the same leaves.
        if kinds.is_empty() {
            let sorted = |value: &Value| {
                let mut leaves = crate::leaves::leaves(value);
                leaves.sort();
                leaves
            };
            assert_eq!(sorted(&reference), sorted(&prediction));
        }
        assert_eq!(
            compared,
            LeafErrors::compare(Some(&prediction), &reference, "stop")
        );
    }
    assert!(n_misplaced > 100, "{n_misplaced}");
}

/// Invariant: Comparing leaves is proportional to the size of the values.
#[test]
fn hostile_values_are_compared_in_bounded_time_and_memory() {
    let mut deep = json!(1);
    for _ in 0..126 {
        deep = json!({"a": [deep]});
    }
    assert_eq!(errors(&deep, &deep), []);
    let compared = LeafErrors::compare(Some(&json!(1)), &deep, "stop");
    assert_eq!(compared.n_leaves(), 1);
    assert!(
        compared.leaves()[0].path.chars().count() <= 201,
        "{:?}",
        compared.leaves()
    );
    // 100,000 equal leaves below a key of 1 MB, all in another place.
    let key = "k".repeat(1 << 20);
    let many: Value = (0..100_000).map(|_| json!({"v": 1})).collect();
    let reference = json!({key.as_str(): {"list": many}});
    let prediction = json!({"list": many});
    let compared = LeafErrors::compare(Some(&prediction), &reference, "stop");
    assert_eq!(
        compared.kinds(),
        BTreeMap::from([(MissingWrapper, 100_000)])
    );
    let many = json!(vec![1; 100_000]);
    let (reference, prediction) = (
        json!({key.as_str(): many}),
        json!({"x": {key.as_str(): many}}),
    );
    let compared = LeafErrors::compare(Some(&prediction), &reference, "stop");
    assert_eq!(compared.kinds(), BTreeMap::from([(WrongLevel, 100_000)]));
    let odd = json!({"a.b": 1, "": 2, "é": 3, "x\"y": 4});
    let compared = LeafErrors::compare(None, &odd, "stop");
    let paths: Vec<&str> = compared
        .leaves()
        .iter()
        .map(|leaf| leaf.path.as_str())
        .collect();
    assert_eq!(paths, ["$[\"a.b\"]", "$[\"\"]", "$.é", "$[\"x\\\"y\"]"]);
}
