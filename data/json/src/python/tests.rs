//! Compares values with the output of Python 3.11; the expected strings are Python's.

use num_bigint::BigInt;
use proptest::prelude::*;

use super::*;

fn read(text: &str) -> PyValue {
    loads(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn number(text: &str) -> Number {
    read(text).number().expect("a number")
}

fn repr_or_error(computed: Result<Number, NumberError>) -> String {
    match computed {
        Ok(number) => python_repr(&number.into()),
        Err(error) => format!("{error:?}"),
    }
}

fn big(exponent: u32) -> Number {
    Number::Int(BigInt::from(10).pow(exponent))
}

#[test]
fn division_returns_the_nearest_float_even_for_large_integers() {
    let third = big(400).true_divide(&number("3"));
    assert_eq!(repr_or_error(third), "Overflow");
    let rows = [
        (number("7"), number("2"), "3.5"),
        (number("6"), number("3"), "2.0"),
        (big(400), big(395), "100000.0"),
        (number("1"), big(400), "0.0"),
        (number("-1"), big(400), "-0.0"),
        (number("0"), number("-3"), "-0.0"),
        (
            number("9007199254740993"),
            number("1"),
            "9007199254740992.0",
        ),
        (
            number("9007199254740995"),
            number("1"),
            "9007199254740996.0",
        ),
        (number("1"), number("0"), "ZeroDivision"),
        (number("1"), number("-0.0"), "ZeroDivision"),
        (big(400), number("3.0"), "Overflow"),
    ];
    for (left, right, expected) in rows {
        assert_eq!(
            repr_or_error(left.true_divide(&right)),
            expected,
            "{left:?} / {right:?}"
        );
    }
    // Half of the smallest float is a tie and rounds to zero; anything larger does not.
    let two_to = |exponent: u32| Number::Int(BigInt::from(2).pow(exponent));
    assert_eq!(
        repr_or_error(number("1").true_divide(&two_to(1074))),
        "5e-324"
    );
    assert_eq!(repr_or_error(number("1").true_divide(&two_to(1075))), "0.0");
    assert_eq!(
        repr_or_error(number("3").true_divide(&two_to(1076))),
        "5e-324"
    );
}

#[test]
fn floor_division_and_remainder_follow_the_divisor() {
    let rows = [
        ("7", "3", "2", "1"),
        ("-7", "3", "-3", "2"),
        ("7", "-3", "-3", "-2"),
        ("-7", "-3", "2", "-1"),
        ("7.5", "2", "3.0", "1.5"),
        ("-7.5", "2", "-4.0", "0.5"),
        ("-1", "Infinity", "-1.0", "inf"),
        ("-0.0", "5", "-0.0", "0.0"),
        ("6", "-2.0", "-3.0", "-0.0"),
    ];
    for (left, right, quotient, remainder) in rows {
        let (left, right) = (number(left), number(right));
        assert_eq!(
            repr_or_error(left.floor_over(&right)),
            quotient,
            "{left:?} // {right:?}"
        );
        assert_eq!(
            repr_or_error(left.modulo(&right)),
            remainder,
            "{left:?} % {right:?}"
        );
    }
    assert_eq!(
        repr_or_error(number("1").modulo(&number("0"))),
        "ZeroDivision"
    );
}

#[test]
fn powers_are_integers_only_for_nonnegative_exponents() {
    let rows = [
        ("2", "10", "1024"),
        ("2", "-1", "0.5"),
        ("2.0", "3", "8.0"),
        ("0", "0", "1"),
        ("0", "-1", "ZeroDivision"),
        ("0.0", "-1", "ZeroDivision"),
        ("-8", "0.5", "Domain"),
        ("-8", "-1", "-0.125"),
        ("10.0", "400", "Overflow"),
        ("-1", "1000000000000000000000001", "-1"),
        ("1", "1000000000000000000000000", "1"),
        ("7", "10000000", "TooLarge"),
        ("true", "2", "1"),
    ];
    for (base, exponent, expected) in rows {
        let power = number(base).to_the(&number(exponent));
        assert_eq!(repr_or_error(power), expected, "{base} ** {exponent}");
    }
}

#[test]
fn true_equals_one_but_result_types_differ() {
    assert_eq!(repr_or_error(number("true").plus(&number("1"))), "2");
    assert_eq!(repr_or_error(number("true").plus(&number("1.0"))), "2.0");
    assert_eq!(repr_or_error(number("2").times(&number("3.5"))), "7.0");
    assert_eq!(repr_or_error(Ok(number("false").negated())), "0");
    assert_eq!(repr_or_error(Ok(number("0.0").negated())), "-0.0");
    assert!(read("\"1\"").number().is_none() && read("null").number().is_none());
}

#[test]
fn equality_follows_python_with_either_rule_for_booleans() {
    let rows = [
        ("1", "1.0", true, true),
        ("true", "1", true, false),
        ("0.0", "false", true, false),
        ("[1, [true]]", "[1.0, [1]]", true, false),
        ("{\"a\": 1, \"b\": 2}", "{\"b\": 2, \"a\": 1}", true, true),
        ("\"1\"", "1", false, false),
        ("NaN", "NaN", false, false),
        ("null", "0", false, false),
        ("9007199254740993", "9007199254740992.0", false, false),
        ("1e400", "Infinity", true, true),
        ("[1]", "[1, 1]", false, false),
    ];
    for (left, right, loose, strict) in rows {
        let (left_value, right_value) = (read(left), read(right));
        for (booleans, expected) in [(Booleans::AreNumbers, loose), (Booleans::AreApart, strict)] {
            assert_eq!(
                left_value.equals(&right_value, booleans),
                expected,
                "{left} {right}"
            );
            assert_eq!(
                right_value.equals(&left_value, booleans),
                expected,
                "{right} {left}"
            );
        }
    }
    let tuple = PyValue::Tuple(vec![read("1")]);
    assert!(!tuple.equals(&read("[1]"), Booleans::AreNumbers));
}

#[test]
fn values_are_printed_like_repr() {
    let rows = [
        (r#"[1, 2.0, null, true, "x"]"#, "[1, 2.0, None, True, 'x']"),
        (r#"{"a": {"b": []}, "c": {}}"#, "{'a': {'b': []}, 'c': {}}"),
        (r#""it's""#, "\"it's\""),
        (r#""it's \"so\"""#, r#"'it\'s "so"'"#),
        (r#""a\\b\n\t\u0001\u007f""#, r"'a\\b\n\t\x01\x7f'"),
        (r#""é 日 😀""#, "'é 日 😀'"),
        (r#""\u00a0\u2028\u200b\ue000""#, r"'\xa0\u2028\u200b\ue000'"),
        ("[NaN, Infinity, -Infinity]", "[nan, inf, -inf]"),
        ("[1e22, 1e-7, 0.1, -0.0]", "[1e+22, 1e-07, 0.1, -0.0]"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(python_repr(&read(text)), expected, "{text}");
    }
    assert_eq!(python_str(&read("\"it's\"")), "it's");
    let pair = |items: &[&str]| PyValue::Tuple(items.iter().map(|item| read(item)).collect());
    assert_eq!(python_repr(&pair(&["1"])), "(1,)");
    assert_eq!(python_repr(&pair(&["1", "\"a\""])), "(1, 'a')");
    assert_eq!(python_repr(&pair(&[])), "()");
}

#[test]
fn json_is_read_like_python() {
    for (text, expected) in [
        (" \n[1 , 2]\t", "[1, 2]"),
        ("{\"a\": 1, \"b\": 2, \"a\": 3}", "{'a': 3, 'b': 2}"),
        ("[1e999, -1e999, 1E2, -0]", "[inf, -inf, 100.0, 0]"),
        ("\"\\ud83d\\ude00\\/\"", "'😀/'"),
        ("\"\\ud800x\\ud800\\u0041\"", "'\u{fffd}x\u{fffd}A'"),
    ] {
        assert_eq!(python_repr(&read(text)), expected, "{text}");
    }
    let refused = [
        "",
        " ",
        "[1,]",
        "{'a': 1}",
        "{\"a\": 1,}",
        "01",
        "1.",
        ".5",
        "+1",
        "-",
        "nan",
        "[1 2]",
        "1 2",
        "\"a\nb\"",
        "\"\\x41\"",
        "\"\\u12g4\"",
        "\"\\u+123\"",
        "\"abc",
        "[",
        "{\"a\"",
        "\u{feff}1",
        "\u{a0}1",
        "{1: 2}",
    ];
    for text in refused {
        assert!(loads(text).is_err(), "{text:?} was read");
    }
    assert!(loads(&"9".repeat(4300)).is_ok() && loads(&"9".repeat(4301)).is_err());
    assert!(loads(&"[".repeat(100_000)).is_err());
}

#[test]
fn loads_prefix_returns_the_value_and_its_end() {
    let text = "so: {\"a\": [1]} and on";
    let (value, end) = loads_prefix(text, 4).expect("a value");
    assert_eq!(
        (python_repr(&value).as_str(), &text[end..]),
        ("{'a': [1]}", " and on")
    );
}

#[test]
fn floats_are_rounded_by_their_exact_value() {
    for (float, n_digits, expected) in [
        (2.675, 2, 2.67),
        (0.125, 2, 0.12),
        (0.375, 2, 0.38),
        (2.5, 0, 2.0),
        (1.5e-7, 5, 0.0),
        (18.04, 1, 18.0),
        (-1.25, 1, -1.2),
        (1e300, 3, 1e300),
        (5e-324, 2000, 5e-324),
    ] {
        assert_eq!(round_to(float, n_digits), expected, "{float} to {n_digits}");
    }
    assert!(round_to(f64::NAN, 2).is_nan());
}

fn any_value() -> impl Strategy<Value = PyValue> {
    let leaf = prop_oneof![
        Just(PyValue::None),
        any::<bool>().prop_map(PyValue::Bool),
        any::<i128>().prop_map(|integer| PyValue::Int(integer.into())),
        prop::num::f64::NORMAL.prop_map(PyValue::Float),
        any::<String>().prop_map(PyValue::Text),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(PyValue::List),
            prop::collection::vec((any::<String>(), inner), 0..5)
                .prop_map(|fields| PyValue::Dict(fields.into_iter().collect())),
        ]
    })
}

/// Integers of up to 128 bits, and halves of them as floats.
fn any_number() -> impl Strategy<Value = Number> {
    prop_oneof![
        any::<i128>().prop_map(|integer| Number::Int(integer.into())),
        (-1000_i64..1000).prop_map(Number::from),
        (-1e6..1e6).prop_map(Number::Float),
    ]
}

proptest! {
    #[test]
    fn written_values_are_read_back(value in any_value()) {
        let read = loads(&dumps(&value)).expect("JSON");
        prop_assert!(read.equals(&value, Booleans::AreApart));
        prop_assert_eq!(python_repr(&read), python_repr(&value));
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = loads(&text);
        let _ = loads_prefix(&text, text.len() / 2);
    }

    #[test]
    fn quotient_and_remainder_make_up_the_dividend(
        dividend in any::<i128>(), divisor in any::<i64>(),
    ) {
        prop_assume!(divisor != 0);
        let (left, right) = (Number::Int(dividend.into()), Number::from(divisor));
        let quotient = left.floor_over(&right).expect("a divisor");
        let remainder = left.modulo(&right).expect("a divisor");
        let recomputed = quotient.times(&right).and_then(|product| product.plus(&remainder));
        prop_assert!(recomputed.expect("small").equals(&left));
        let has_divisor_sign = remainder.is_zero()
            || (divisor > 0) == (remainder.compare(&Number::from(0)) == Some(std::cmp::Ordering::Greater));
        prop_assert!(has_divisor_sign);
    }

    #[test]
    fn small_integers_divide_as_floats_do(left in -(1_i64 << 53)..1 << 53, right in 1_i64..1 << 53) {
        let quotient = Number::from(left).true_divide(&Number::from(right)).expect("a divisor");
        prop_assert_eq!(quotient.to_float(), Ok(left as f64 / right as f64));
    }

    #[test]
    fn integers_become_the_nearest_float(integer in any::<i128>()) {
        prop_assert_eq!(Number::Int(integer.into()).to_float(), Ok(integer as f64));
    }

    #[test]
    fn sums_and_products_do_not_depend_on_the_order(left in any_number(), right in any_number()) {
        prop_assert_eq!(repr_or_error(left.plus(&right)), repr_or_error(right.plus(&left)));
        prop_assert_eq!(repr_or_error(left.times(&right)), repr_or_error(right.times(&left)));
    }
}
