//! Schemas that ask for more work than a constraint may take are refused before they take it.

use super::*;

#[test]
fn steps_of_many_remainders_are_refused() {
    for step in [
        json!(9973),
        json!(99.9999),
        json!(999.9999),
        json!(9999.9999),
    ] {
        let found = refusal(&json!({"type": "number", "multipleOf": step}));
        assert!(found.contains("at most 5000 are followed"), "{found}");
    }
    for step in [
        json!(7),
        json!(0.25),
        json!(100),
        json!(1234.5),
        json!(10_000),
    ] {
        grammar(&json!({"type": "number", "multipleOf": step}));
    }
    let primes = json!({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]});
    let found = refusal(&primes);
    assert!(found.contains("too large a common multiple"), "{found}");
}

#[test]
fn patterns_that_begin_with_different_texts_are_not_compared() {
    let named = |pattern: &dyn Fn(usize) -> String| {
        let patterns = (0..300).map(|i| (pattern(i), json!({"type": "integer"})));
        json!({"type": "object", "patternProperties": serde_json::Map::from_iter(patterns)})
    };
    grammar(&named(&|i| format!("^p{i}_.*$")));
    let found = refusal(&named(&|i| format!("^.*x{i}y$")));
    assert!(found.contains("2000 pairs"), "{found}");
    // The beginning of one is that of the other, or may be missing.
    for [first, second] in [
        ["^ab", "^a"],
        ["^a?b", "^b"],
        ["^a*c", "^c"],
        ["^a|c", "^c"],
    ] {
        let schema = json!({"type": "object", "patternProperties": {first: true, second: true}});
        let found = refusal(&schema);
        assert!(found.contains("not disjoint"), "{found}");
    }
}

#[test]
fn alternatives_of_one_of_are_compared_within_bounds() {
    let constants: Vec<Value> = (0..1_500).map(|i| json!({"const": i})).collect();
    grammar(&json!({"oneOf": constants[..500]}));
    let found = refusal(&json!({"oneOf": constants}));
    assert!(found.contains("500000 pairs"), "{found}");
}
