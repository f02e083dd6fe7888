//! Schemas that would need excessive work are refused before the work begins.

use super::*;

#[test]
fn steps_with_too_many_remainders_are_refused() {
    for step in [
        json!(9973),
        json!(99.9999),
        json!(999.9999),
        json!(9999.9999),
    ] {
        let message = refusal(&json!({"type": "number", "multipleOf": step}));
        assert!(message.contains("the limit is 5000"), "{message}");
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
    let message = refusal(&primes);
    assert!(message.contains("is too large"), "{message}");
}

#[test]
fn patterns_with_different_prefixes_are_not_compared() {
    let pattern_properties = |pattern: &dyn Fn(usize) -> String| {
        let patterns = (0..300).map(|i| (pattern(i), json!({"type": "integer"})));
        json!({"type": "object", "patternProperties": serde_json::Map::from_iter(patterns)})
    };
    grammar(&pattern_properties(&|i| format!("^p{i}_.*$")));
    let message = refusal(&pattern_properties(&|i| format!("^.*x{i}y$")));
    assert!(message.contains("2000 comparisons"), "{message}");
    // One literal prefix is a prefix of the other, or its last character may be absent.
    for [first, second] in [
        ["^ab", "^a"],
        ["^a?b", "^b"],
        ["^a*c", "^c"],
        ["^a|c", "^c"],
    ] {
        let schema = json!({"type": "object", "patternProperties": {first: true, second: true}});
        let message = refusal(&schema);
        assert!(message.contains("not disjoint"), "{message}");
    }
}

#[test]
fn comparisons_of_one_of_alternatives_are_limited() {
    let constants: Vec<Value> = (0..1_500).map(|i| json!({"const": i})).collect();
    grammar(&json!({"oneOf": constants[..500]}));
    let message = refusal(&json!({"oneOf": constants}));
    assert!(message.contains("500000 comparisons"), "{message}");
}
