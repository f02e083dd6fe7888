//! Compares random and hostile schemas and values with the plain jsonschema crate.

use serde_json::{Map, Value, json};

use super::counted::Allowance;
use super::*;

/// The plain crate without a budget, with the same options.
fn plain(schema: &Value) -> Validator {
    jsonschema::options()
        .with_draft(Draft::default().detect(schema))
        .should_validate_formats(false)
        .without_content_media_type_support("application/json")
        .without_content_encoding_support("base64")
        .build(schema)
        .expect("a usable schema")
}

fn bounded_validator(schema: &Value) -> BoundedValidator {
    BoundedValidator::new(schema).expect("a usable schema")
}

/// `{"a": {"a": ... leaf}}`, `n_levels` deep.
fn nested(n_levels: usize, leaf: Value) -> Value {
    (0..n_levels).fold(leaf, |inner, _| json!({"a": inner}))
}

/// `n` definitions that each refer to the previous one twice, one level down.
fn chain(n: usize, keyword: &str) -> Value {
    let mut definitions = json!({"d0": {"type": "object"}});
    for i in 1..=n {
        let previous = json!({"properties": {"a": {"$ref": format!("#/$defs/d{}", i - 1)}}});
        definitions[format!("d{i}")] = json!({keyword: [previous, previous]});
    }
    json!({"$defs": definitions, "$ref": format!("#/$defs/d{n}")})
}

fn recursive_schemas() -> Vec<Value> {
    let twice = |keyword: &str| {
        let child = json!({"properties": {"a": {"$ref": "#"}}});
        json!({"type": ["object", "array"], keyword: [child, child]})
    };
    let mut narrow = twice("anyOf");
    narrow["anyOf"][0]["required"] = json!(["z"]);
    let mut dynamic = json!({"$dynamicAnchor": "n", "type": ["object", "array"]});
    dynamic["anyOf"] = json!([
        {"properties": {"a": {"$dynamicRef": "#n"}}, "required": ["z"]},
        {"properties": {"a": {"$dynamicRef": "#n"}}},
    ]);
    vec![
        twice("allOf"),
        twice("anyOf"),
        narrow,
        dynamic,
        json!({"type": "object", "patternProperties": {"^a": {"$ref": "#"}, "a$": {"$ref": "#"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}},
               "dependentSchemas": {"a": {"properties": {"a": {"$ref": "#"}}}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}},
               "if": {"properties": {"a": {"$ref": "#"}}},
               "then": {"properties": {"a": {"$ref": "#"}}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}},
               "not": {"not": {"properties": {"a": {"$ref": "#"}}}}}),
    ]
}

#[test]
fn recursive_schemas_accept_deep_valid_golds_and_reject_broken_ones() {
    for schema in recursive_schemas() {
        let validator = bounded_validator(&schema);
        for n_levels in [24, 40, 120] {
            let good = nested(n_levels, json!({}));
            assert_eq!(validator.verdict(&good), Verdict::Valid, "{schema}");
            assert!(validator.first_fault(&good).is_none(), "{schema}");
            let bad = nested(n_levels, json!(5));
            assert_eq!(validator.verdict(&bad), Verdict::Invalid, "{schema}");
            let fault = validator.first_fault(&bad).expect("broken");
            assert!(!fault.reason.is_empty());
            assert!(!validator.faults(&bad).is_empty(), "{schema}");
        }
    }
}

#[test]
fn chains_of_definitions_are_walked_once_per_location() {
    for keyword in ["allOf", "anyOf"] {
        let validator = bounded_validator(&chain(40, keyword));
        for (leaf, expected) in [(json!({}), Verdict::Valid), (json!(1), Verdict::Invalid)] {
            let value = nested(40, leaf);
            assert_eq!(validator.verdict(&value), expected, "{keyword}");
            let n_faults = validator.faults(&value).len();
            assert_eq!(n_faults == 0, expected == Verdict::Valid);
        }
    }
    let twice = bounded_validator(&chain(40, "oneOf"));
    assert_eq!(twice.verdict(&nested(40, json!({}))), Verdict::Invalid);
}

/// Invariant: Schema validation terminates and agrees with the jsonschema crate.
#[test]
fn validation_that_memoization_cannot_shorten_ends_undecided_within_its_budget() {
    let mut schema = chain(40, "allOf");
    schema["$defs"]["d0"] = json!({"type": "object", "unevaluatedProperties": true});
    let validator = bounded_validator(&schema);
    let value = nested(40, json!({}));
    assert_eq!(validator.verdict(&value), Verdict::TooMuchWork);
    let faults = validator.faults(&value);
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].rule, BUDGET);
    let first = validator.first_fault(&value).expect("undecided");
    assert!(first.reason.contains("10000000 steps"), "{}", first.reason);
}

#[test]
fn branches_without_value_access_are_charged_on_descent() {
    let mut definitions = json!({"d0": {}});
    for i in 1..=14 {
        let previous = json!({"$ref": format!("#/$defs/d{}", i - 1)});
        definitions[format!("d{i}")] = json!({"allOf": [previous, previous]});
    }
    let schema = json!({"$defs": definitions, "items": {"$ref": "#/$defs/d14"}});
    let items: Vec<Value> = (0..200_000).map(Value::from).collect();
    let validator = bounded_validator(&schema);
    let verdict = validator.verdict(&Value::Array(items[..100].to_vec()));
    assert_eq!(verdict, Verdict::Valid);
    assert_ne!(validator.verdict(&Value::Array(items)), Verdict::Invalid);
}

#[test]
fn a_long_reference_chain_at_each_level_of_a_deep_value_gets_a_larger_stack() {
    let mut definitions =
        json!({"d0": {"type": "object", "properties": {"a": {"$ref": "#/$defs/d200"}}}});
    for i in 1..=200 {
        definitions[format!("d{i}")] = json!({"allOf": [{"$ref": format!("#/$defs/d{}", i - 1)}]});
    }
    let validator = bounded_validator(&json!({"$defs": definitions, "$ref": "#/$defs/d200"}));
    let good = nested(100, json!({}));
    assert_eq!(validator.verdict(&good), Verdict::Valid);
    let bad = nested(100, json!(1));
    let faults = validator.faults(&bad);
    assert_eq!(faults[0].place.to_string(), "/a".repeat(100));
}

#[test]
fn a_long_list_of_broken_rules_is_cut_and_keeps_the_first_of_each_rule() {
    let schema = json!({"items": {"type": "string"}, "maxItems": 3, "uniqueItems": true});
    let items: Vec<Value> = (0..50_000).map(|_| json!(1)).collect();
    let faults = bounded_validator(&schema).faults(&Value::Array(items));
    assert!(faults.len() <= LISTED_FAULTS + 2, "{}", faults.len());
    for rule in ["type", "maxItems", "uniqueItems"] {
        assert!(faults.iter().any(|fault| fault.rule == rule), "{rule}");
    }
    let last = &faults.last().expect("faults").masked;
    assert!(last.contains("more broken rules"), "{last}");
}

#[test]
fn errors_that_would_fill_the_memory_are_not_collected() {
    // The path takes 20,000 bytes for each of 50,000 broken items.
    let items: Vec<Value> = (0..50_000).map(|_| json!(1)).collect();
    let value = json!({"k".repeat(20_000): items});
    let schema = json!({"additionalProperties": {"items": {"type": "string"}}});
    let faults = bounded_validator(&schema).faults(&value);
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].rule, BUDGET);
    assert!(faults[0].masked.contains("MiB"), "{}", faults[0].masked);
}

#[test]
fn backtracking_patterns_are_bounded() {
    let schema = json!({"items": {"pattern": "^(?=(a+)+$)b"}});
    let items: Vec<Value> = (0..30_000)
        .map(|i| json!(format!("{}!{i}", "a".repeat(40))))
        .collect();
    let verdict = bounded_validator(&schema).verdict(&Value::Array(items));
    assert_ne!(verdict, Verdict::Valid);
}

fn refusal(schema: &Value) -> String {
    match BoundedValidator::new(schema) {
        Ok(_) => panic!("{schema} is accepted"),
        Err(fault) => fault.reason,
    }
}

/// Resources that each refer to the next one in two ways.
fn resources(n: usize) -> Value {
    let mut definitions = Map::new();
    for i in 0..n {
        let references = [
            json!({"$ref": format!("b{i}")}),
            json!({"$ref": format!("c{i}")}),
        ];
        definitions.insert(
            format!("a{i}"),
            json!({"$id": format!("a{i}"), "anyOf": references}),
        );
        for way in ["b", "c"] {
            let next = json!({"a": {"$ref": format!("a{}", i + 1)}});
            let name = format!("{way}{i}");
            definitions.insert(name.clone(), json!({"$id": name, "properties": next}));
        }
    }
    definitions.insert(
        format!("a{n}"),
        json!({"$id": format!("a{n}"), "type": "object"}),
    );
    json!({"$id": "https://example.org/root", "$ref": "a0", "$defs": definitions})
}

#[test]
fn resources_with_too_many_reference_paths_are_rejected_at_compile_time() {
    assert_eq!(
        bounded_validator(&resources(4)).verdict(&json!({"a": {}})),
        Verdict::Valid
    );
    let reason = refusal(&resources(28));
    assert!(reason.contains("in more than 2000 ways"), "{reason}");
    let fault = BoundedValidator::new(&resources(28)).expect_err("refused");
    assert!(!fault.pointer.contains("tooltune"), "{}", fault.pointer);
}

#[test]
fn many_and_large_patterns_are_refused_before_they_are_compiled() {
    let large = (0..300).map(|i| json!({"pattern": format!("(a{{1,500}}){{1,100}}{i}")}));
    let reason = refusal(&json!({"allOf": large.collect::<Vec<_>>()}));
    assert!(reason.contains("more than 32 of its patterns"), "{reason}");
    let many = (0..10_001).map(|i| (format!("^k{i}"), json!(true)));
    let reason = refusal(&json!({"patternProperties": Map::from_iter(many)}));
    assert!(reason.contains("10001 patterns"), "{reason}");
}

#[test]
fn matching_keys_against_many_patterns_is_charged() {
    let patterns = (0..3_000).map(|i| (format!("^k{i}x.*y$"), json!(true)));
    let schema = json!({"patternProperties": Map::from_iter(patterns)});
    let keys = |n: usize| Value::Object((0..n).map(|i| (format!("k{i}"), json!(i))).collect());
    let validator = bounded_validator(&schema);
    assert_eq!(validator.verdict(&keys(200)), Verdict::Valid);
    assert_eq!(validator.verdict(&keys(20_000)), Verdict::TooMuchWork);
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }
}

/// Random schemas that use only a few names, so that they often apply to the values.
struct Schemas {
    random: Random,
    draft_7: bool,
}

impl Schemas {
    fn chance(&mut self, of_ten: usize) -> bool {
        self.random.below(10) < of_ten
    }

    fn name(&mut self) -> String {
        ["a", "b", "c"][self.random.below(3)].to_owned()
    }

    fn scalar(&mut self) -> Value {
        let scalars = [
            json!(1),
            json!(2.0),
            json!("a"),
            json!("bb"),
            json!(true),
            json!(null),
        ];
        scalars[self.random.below(scalars.len())].clone()
    }

    fn value(&mut self, n_levels: usize) -> Value {
        match self.random.below(if n_levels == 0 { 1 } else { 4 }) {
            0 => self.scalar(),
            1 => {
                let n = self.random.below(3);
                (0..n).map(|_| self.value(n_levels - 1)).collect()
            }
            _ => {
                let n = 1 + self.random.below(3);
                let fields = (0..n).map(|_| (self.name(), self.value(n_levels - 1)));
                Value::Object(fields.collect())
            }
        }
    }

    fn list(&mut self, n_levels: usize) -> Value {
        let n = 1 + self.random.below(3);
        (0..n).map(|_| self.schema(n_levels)).collect()
    }

    fn named(&mut self, names: &[&str], n_levels: usize) -> Value {
        let n = 1 + self.random.below(2);
        let mut schemas = Map::new();
        for _ in 0..n {
            let name = names[self.random.below(names.len())];
            schemas.insert(name.to_owned(), self.schema(n_levels));
        }
        Value::Object(schemas)
    }

    fn reference(&mut self) -> Value {
        let targets = ["#", "#/$defs/d0", "#/$defs/d1", "#/$defs/d2", "#/$defs/d3"];
        json!(targets[self.random.below(targets.len())])
    }

    fn schema(&mut self, n_levels: usize) -> Value {
        if n_levels == 0 || self.chance(2) {
            return match self.random.below(6) {
                0 => json!(self.chance(7)),
                1 => {
                    json!({"type": (["object", "array", "string", "integer"][self.random.below(4)])})
                }
                2 => json!({"const": self.scalar()}),
                3 => json!({"enum": [self.scalar(), self.scalar()]}),
                _ => json!({"$ref": self.reference()}),
            };
        }
        let mut schema = Map::new();
        for _ in 0..1 + self.random.below(3) {
            let n_child_levels = n_levels - 1;
            let (keyword, value) = match self.random.below(17) {
                0 => ("properties", self.named(&["a", "b", "c"], n_child_levels)),
                1 => (
                    "patternProperties",
                    self.named(&["^a", "b|c"], n_child_levels),
                ),
                2 => ("additionalProperties", self.schema(n_child_levels)),
                3 => ("allOf", self.list(n_child_levels)),
                4 => ("anyOf", self.list(n_child_levels)),
                5 => ("oneOf", self.list(n_child_levels)),
                6 => ("not", self.schema(n_child_levels)),
                7 => ("if", self.schema(n_child_levels)),
                8 => ("then", self.schema(n_child_levels)),
                9 => ("else", self.schema(n_child_levels)),
                10 => ("items", self.schema(n_child_levels)),
                11 => ("contains", self.schema(n_child_levels)),
                12 => ("required", json!([self.name()])),
                13 => ("propertyNames", self.schema(n_child_levels)),
                14 if !self.draft_7 => {
                    ("dependentSchemas", self.named(&["a", "b"], n_child_levels))
                }
                14 => ("dependencies", self.named(&["a", "b"], n_child_levels)),
                15 => ("uniqueItems", json!(true)),
                _ => ("properties", self.named(&["a", "b", "c"], n_child_levels)),
            };
            schema.insert(keyword.to_owned(), value);
        }
        if self.chance(2) {
            schema.insert("$ref".to_owned(), self.reference());
        }
        if !self.draft_7 && self.chance(1) {
            let closed = self.schema(0);
            let keyword = ["unevaluatedProperties", "unevaluatedItems"][self.random.below(2)];
            schema.insert(keyword.to_owned(), closed);
        }
        Value::Object(schema)
    }

    fn root(&mut self) -> Value {
        self.draft_7 = self.chance(2);
        let mut root = self.schema(2);
        while !root.is_object() {
            root = self.schema(2);
        }
        let definitions = (0..4).map(|i| (format!("d{i}"), self.schema(2)));
        root["$defs"] = Value::Object(definitions.collect());
        if self.draft_7 {
            root["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        }
        root
    }
}

/// Counts of the compared pairs and their results.
#[derive(Default)]
struct Compared {
    n_pairs: usize,
    n_valid: usize,
    n_memoized: usize,
}

/// Invariant: Schema validation terminates and agrees with the jsonschema crate.
#[test]
fn random_schemas_agree_with_the_plain_crate() {
    let mut schemas = Schemas {
        random: Random(20),
        draft_7: false,
    };
    let mut compared = Compared::default();
    for _ in 0..2_500 {
        let schema = schemas.root();
        let Ok(validator) = BoundedValidator::new(&schema) else {
            continue;
        };
        let plain = plain(&schema);
        for _ in 0..4 {
            let value = schemas.value(3);
            // The plain crate has no work limit. Few of these pairs would need one.
            let small_allowance = Allowance {
                n_steps: 200_000,
                ..validator.allowance(&value)
            };
            let quick = run_with_budget(small_allowance, || {
                validator
                    .validator
                    .iter_errors(CountedValue(&value))
                    .count()
            });
            if quick.is_none() {
                continue;
            }
            let case = format!("{schema} {value}");
            let is_valid = plain.is_valid(&value);
            compared.n_pairs += 1;
            compared.n_valid += usize::from(is_valid);
            assert_eq!(
                validator.verdict(&value) == Verdict::Valid,
                is_valid,
                "{case}"
            );
            let remembered = validator.is_valid_memoized(&value, small_allowance);
            if let Some(remembered) = remembered {
                compared.n_memoized += 1;
                assert_eq!(remembered, is_valid, "memoized: {case}");
            }
            if is_valid {
                continue;
            }
            let expected: Vec<_> = plain
                .iter_errors(&value)
                .map(|error| (error.instance_path().to_string(), error.to_string()))
                .collect();
            let faults: Vec<_> = validator
                .faults(&value)
                .into_iter()
                .map(|fault| (fault.place.to_string(), fault.reason))
                .collect();
            assert_eq!(faults, expected, "{case}");
            let first = validator.first_fault(&value).expect("broken");
            assert_eq!(first.place.to_string(), expected[0].0, "{case}");
        }
    }
    assert!(compared.n_pairs > 4_000, "{}", compared.n_pairs);
    assert!(compared.n_valid > 500, "{}", compared.n_valid);
    assert!(compared.n_memoized > 2_000, "{}", compared.n_memoized);
}
