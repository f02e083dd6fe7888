//! Tests random schemas with numbers near bounds and with training targets.
//!
//! `TOOLTUNE_PROPERTY_CASES` sets the number of cases, and `TOOLTUNE_PROPERTY_SEED` sets the seed.

use serde_json::Number;
use tooltune_json::{Style, dumps, parse};
use tooltune_rows::text::slot_completion;

use super::golds::GoldGenerator;
use super::*;

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect(name))
}

fn cases(default: u64) -> impl Iterator<Item = Choices> {
    let seed = setting("TOOLTUNE_PROPERTY_SEED", 0);
    (0..setting("TOOLTUNE_PROPERTY_CASES", default))
        .map(move |case| Choices(seed.wrapping_add(1) << 40 | case))
}

/// A plausible bound: an integer, a decimal, or a number with an exponent.
fn bound(choices: &mut Choices) -> Number {
    let sign = if choices.below(2) == 0 { 1.0 } else { -1.0 };
    let float = match choices.below(8) {
        0 => 0.0,
        1 | 2 => {
            let integer = choices.below(23) as i64 - 11;
            return Number::from(integer);
        }
        3 | 4 => {
            let n_decimals = choices.below(7) as i32;
            let digits = choices.below(3_000) as f64;
            (digits / 10_f64.powi(n_decimals)) * sign
        }
        5 => (choices.below(999) + 1) as f64 * 10_f64.powi(choices.below(30) as i32 - 16) * sign,
        6 => [5e-324, 1e-300, 2.5e-7, 0.1 + 0.2, 1.0 / 3.0][choices.below(5)] * sign,
        _ => {
            [
                999_999.5,
                123_456_789.0,
                1e15,
                9e15,
                9_007_199_254_740_991.0,
            ][choices.below(5)]
                * sign
        }
    };
    Number::from_f64(float).expect("finite")
}

/// Texts to validate near a bound: its own spelling and adjacent numbers.
fn texts_near(bound: &Number, texts: &mut Vec<String>) {
    let spelling = |float: f64| dumps(&json!(float), Style::Python);
    let float = bound.as_f64().expect("a float");
    texts.push(dumps(&Value::Number(bound.clone()), Style::Python));
    for neighbour in [
        float,
        float.next_up(),
        float.next_down(),
        float.floor(),
        float.ceil(),
    ] {
        texts.push(spelling(neighbour));
        texts.push(spelling(-neighbour));
    }
    for n_decimals in 0..8 {
        let step = 10_f64.powi(-n_decimals);
        texts.extend([spelling(float + step), spelling(float - step)]);
    }
    if float.fract() == 0.0 && float.abs() < 1e15 {
        let integer = float as i64;
        texts.extend([integer - 1, integer, integer + 1].map(|integer| integer.to_string()));
        texts.push(format!("{integer}.00"));
    }
    texts.push(format!("{float:e}"));
    let plain = spelling(float);
    if plain.contains('.') && !plain.contains('e') {
        texts.push(format!("{plain}0"));
        // A number with more digits than a float may be parsed to the bound that it exceeds.
        if plain.len() < 13 {
            texts.push(format!("{plain}01"));
        }
        texts.extend(
            plain
                .trim_end_matches(|c| c != '.')
                .strip_suffix('.')
                .map(str::to_owned),
        );
    }
}

/// The spellings that are never generated according to docs/constrained.md.
fn is_never_written(text: &str, schema: &Value) -> bool {
    let is_whole = schema["type"] == "integer";
    let is_bounded = schema.as_object().is_some_and(|fields| fields.len() > 1);
    let has_steps = schema.get("multipleOf").is_some();
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let mantissa = mantissa.trim_start_matches('-');
    let (before, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if has_steps {
        let size = text.parse::<f64>().map_or(0.0, f64::abs);
        let is_long = size > 999_999_999_999.0;
        let has_other_spelling = is_whole && !["", "0"].contains(&decimals);
        return exponent.is_some() || is_long || has_other_spelling || decimals.len() > 4;
    }
    match exponent {
        None => is_whole && !["", "0"].contains(&decimals),
        Some(exponent) => {
            let exponent: i32 = exponent.parse().expect("an exponent");
            let is_one_digit = before.len() == 1 && before != "0";
            let is_float = exponent >= 16 && decimals.len() <= 16;
            (is_bounded && !is_one_digit) || (is_whole && !(is_one_digit && is_float))
        }
    }
}

fn number_schema(choices: &mut Choices) -> (Value, Vec<Number>) {
    let mut schema = json!({"type": (["number", "number", "integer"][choices.below(3)])});
    let (mut a, mut b) = (bound(choices), bound(choices));
    if choices.below(4) == 0 {
        // A narrow range, mostly within one integer part.
        let low = a.as_f64().unwrap_or_default();
        let step = 10_f64.powi(-(choices.below(6) as i32)) * (choices.below(9) + 1) as f64 / 2.0;
        b = Number::from_f64(low + step).expect("finite");
    }
    if a.as_f64() > b.as_f64() {
        (a, b) = (b, a);
    }
    let sides = choices.below(6);
    let mut bounds = Vec::new();
    for (bound, names, is_there) in [
        (a, ["minimum", "exclusiveMinimum"], sides != 0),
        (b, ["maximum", "exclusiveMaximum"], sides != 1),
    ] {
        if is_there {
            schema[names[choices.below(2)]] = Value::Number(bound.clone());
        }
        bounds.push(bound);
    }
    if choices.below(4) == 0 {
        let steps = [
            json!(1),
            json!(3),
            json!(0.5),
            json!(0.01),
            json!(2.5),
            json!(0.0001),
        ];
        schema["multipleOf"] = steps[choices.below(6)].clone();
    }
    (schema, bounds)
}

/// Invariant: A constraint accepts every training target of its schema, and next to bounds only
/// valid numbers.
#[test]
fn numbers_near_a_bound_are_allowed_exactly_if_they_are_valid() {
    let mut n_refused = 0;
    for mut choices in cases(300) {
        let (schema, bounds) = number_schema(&mut choices);
        let mut texts: Vec<String> = ["0", "-0", "0.0", "-0.0", "1", "1e-07", "1e+22", "5e-324"]
            .map(str::to_owned)
            .to_vec();
        for bound in &bounds {
            texts_near(bound, &mut texts);
        }
        texts.sort();
        texts.dedup();
        let validator = validator(&schema, Formats::Annotated);
        let is_valid = |text: &String| parse(text).is_ok_and(|value| validator.is_valid(&value));
        let grammar = match Grammar::json_schema(&vocabulary(), &schema, &patient_options()) {
            Ok(grammar) => grammar,
            Err(error) => {
                n_refused += 1;
                let valid = texts.iter().find(|text| is_valid(text));
                let valid = valid.filter(|text| !is_never_written(text, &schema));
                let is_inexact = error.to_string().contains("not below 2^53");
                assert!(
                    is_inexact || valid.is_none(),
                    "{schema}: {error}, but {valid:?}"
                );
                continue;
            }
        };
        for text in &texts {
            let (is_valid, is_written) = (is_valid(text), accepts(&grammar, text));
            let is_exception = is_never_written(text, &schema);
            assert!(
                is_valid || !is_written,
                "{schema} writes {text}, which is not valid"
            );
            assert!(
                is_written || !is_valid || is_exception,
                "{schema} does not write {text}, which is valid"
            );
        }
    }
    assert!(
        n_refused * 3 < setting("TOOLTUNE_PROPERTY_CASES", 300),
        "{n_refused}"
    );
}

/// Invariant: A constraint accepts every training target of its schema, and next to bounds only
/// valid numbers.
#[test]
fn every_training_target_is_accepted_or_its_schema_is_refused() {
    let (mut n_written, mut n_refused) = (0, 0);
    for choices in cases(400) {
        let generated = GoldGenerator::new(choices).build();
        let (schema, gold) = (&generated.schema, &generated.gold);
        let validator = validator(schema, Formats::Annotated);
        if let Some(error) = validator.iter_errors(gold).next() {
            panic!("no gold of {schema}: {gold}: {error}");
        }
        let target = slot_completion(gold, schema);
        match Grammar::json_schema(&vocabulary(), schema, &patient_options()) {
            Ok(grammar) => {
                n_written += 1;
                assert!(
                    accepts(&grammar, &target),
                    "{schema} does not write {target}"
                );
            }
            Err(error) => {
                n_refused += 1;
                let message = error.to_string();
                assert!(message.contains(": /"), "{schema}: {message}");
            }
        }
    }
    assert!(n_refused * 10 < n_written, "{n_refused} of {n_written}");
}

#[test]
fn constants_are_spelled_like_training_targets() {
    for (schema, gold) in [
        (json!({"const": 1.0}), json!(1.0)),
        (json!({"const": 1}), json!(1.0)),
        (json!({"const": 1.0}), json!(1)),
        (json!({"enum": [1.0, 2.5]}), json!(1.0)),
        (json!({"const": 1e-7}), json!(1e-7)),
        (json!({"const": -0.0}), json!(-0.0)),
        (json!({"const": 1e22}), json!(1e22)),
        (
            json!({"minimum": 1.0, "maximum": 1.0, "type": "number"}),
            json!(1.0),
        ),
        (
            json!({"minimum": -0.0, "maximum": 0, "type": "number"}),
            json!(-0.0),
        ),
        (
            json!({"const": {"b": [1.0, {"x": 1e-7}], "a": "é\u{1}\u{7f}"}}),
            json!({"a": "é\u{1}\u{7f}", "b": [1.0, {"x": 1e-7}]}),
        ),
        (json!({"type": "integer"}), json!(2.0)),
        (json!({"type": "integer", "minimum": 0}), json!(1e22)),
        (
            json!({"type": "number", "minimum": 0, "maximum": 1}),
            json!(1e-5),
        ),
        (json!({"type": "string"}), json!("a\u{1}\u{1f}\u{7f}")),
    ] {
        let target = slot_completion(&gold, &schema);
        assert!(
            accepts(&grammar(&schema), &target),
            "{schema} does not write {target}"
        );
    }
}

#[test]
fn trailing_zeros_are_limited() {
    let range = |low: f64, high: f64| json!({"type": "number", "minimum": low, "maximum": high});
    let rows: [(Value, &[&str], &[&str]); 8] = [
        (
            json!({"const": 1.0}),
            &["1", "1.0", "1.0000", "1e0", "1.0e0"],
            &["1.00000", "1.000000000000", "1.00000e0"],
        ),
        (
            json!({"enum": [2.5, "a"]}),
            &["2.5", "2.5000"],
            &["2.50000", "2.50000e0"],
        ),
        (
            json!({"const": -0.0}),
            &["0", "-0", "0.0", "-0.0", "-0.0000"],
            &["0.00000", "-0.00000"],
        ),
        (
            json!({"const": 1e-7}),
            &["1e-07", "1e-7", "0.0000001", "0.0000001000", "1.0e-07"],
            &["0.00000010000", "1.00000e-07", "1e-007"],
        ),
        (
            range(1.0, 1.0),
            &["1", "1.0", "1.0000"],
            &["1.00000", "1.0000000000"],
        ),
        (
            range(0.0, 0.05),
            &["0.05", "0.05000", "5.0e-02", "0.0000001"],
            &["0.050000", "0.0500000000", "5.00000e-02"],
        ),
        (
            range(0.0, 1.0),
            &["1", "1.0", "1.0000", "0.0", "1e0"],
            &["1.00000", "1.0000000000"],
        ),
        (
            range(-1.0, 0.5),
            &["-1", "-1.0000", "0.5000"],
            &["-1.00000", "0.50000"],
        ),
    ];
    for (schema, accepted, refused) in rows {
        check(&schema, &patient_options(), accepted, refused);
    }
}

#[test]
fn an_exclusive_bound_is_never_generated() {
    let number = |fields: Value| {
        let mut schema = fields;
        schema["type"] = json!("number");
        schema
    };
    let rows: [(Value, &[&str], &[&str]); 6] = [
        (
            number(json!({"exclusiveMinimum": 0, "maximum": 0.05})),
            &["0.01", "0.05", "0.050", "5e-02", "1e-07", "0.0000001"],
            &["0", "0.0", "-0", "0.051", "0.000", "6e-02", "1e-400"],
        ),
        (
            number(json!({"exclusiveMinimum": 1, "maximum": 1.05})),
            &["1.01", "1.05", "1.0000000000000002"],
            &["1", "1.0", "1.06", "1.00000000000000001"],
        ),
        (
            number(json!({"minimum": -0.5, "exclusiveMaximum": 0})),
            &["-0.5", "-0.1", "-1e-07"],
            &["-0", "0", "-0.0", "-0.51"],
        ),
        (
            number(json!({"minimum": -2.5, "exclusiveMaximum": -2})),
            &["-2.5", "-2.1"],
            &["-2", "-2.0", "-2.6"],
        ),
        (
            number(json!({"exclusiveMinimum": 99, "maximum": 99.5})),
            &["99.1", "99.50"],
            &["99", "99.0", "99.51"],
        ),
        (
            number(json!({"exclusiveMaximum": 1})),
            &["0.9999999999999999", "-5", "-1e+22", "0"],
            &["1", "0.99999999999999999", "1.0", "1e0"],
        ),
    ];
    for (schema, accepted, refused) in rows {
        check(&schema, &patient_options(), accepted, refused);
    }
}
