//! Strings that a grammar allows and refuses.

use tooltune_json::json_schema::CHECKED_FORMATS;

use super::*;

const DEFAULT: fn() -> GrammarOptions = patient_options;

#[test]
fn objects_are_spelled_like_training_targets() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {
            "type": "array", "items": {"enum": ["a", "b c", 3, null, true]}}},
        "required": ["name"],
        "additionalProperties": false,
    });
    check(
        &schema,
        &DEFAULT(),
        &[
            r#"{"name": "Ida"}"#,
            r#"{"name": "Zoë 東京 😀 \"q\" \\ \n", "age": -12}"#,
            r#"{"name": "", "age": 0, "tags": ["b c", 3, null, true]}"#,
            r#"{"name": "x", "tags": []}"#,
        ],
        &[
            "",
            "{}",
            r#"{"name":"Ida"}"#,
            r#"{"age": 1, "name": "Ida"}"#,
            r#"{"name": "Ida", "age": 1.5}"#,
            r#"{"name": "Ida", "age": 01}"#,
            r#"{"name": "Ida", "x": 1}"#,
            r#"{"name": "Ida", "tags": ["c"]}"#,
            r#"{"name": "Ida"} "#,
            r#" {"name": "Ida"}"#,
            "{\"name\": \"a\nb\"}",
        ],
    );
}

#[test]
fn layouts_differ_only_in_white_space() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "array"}},
        "additionalProperties": {"type": "integer"}});
    let python = r#"{"a": [1, {}], "b": 2}"#;
    let compact = r#"{"a":[1,{}],"b":2}"#;
    let indented = "{\n  \"a\": [1, {}],\n  \"b\": 2\n}";
    for (layout, accepted, refused) in [
        (Layout::Python, vec![python], vec![compact, indented]),
        (Layout::Compact, vec![compact], vec![python, indented]),
        (Layout::Flexible, vec![python, compact, indented], vec![]),
    ] {
        check(&schema, &options_with_layout(layout), &accepted, &refused);
    }
    let far = format!("{{\"a\":{}[]}}", " ".repeat(101));
    check(
        &schema,
        &options_with_layout(Layout::Flexible),
        &[],
        &[&far],
    );
}

#[test]
fn numbers_respect_their_bounds() {
    let rows: [(Value, &[&str], &[&str]); 8] = [
        (
            json!({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}),
            &["-3", "0", "7", "11"],
            &["-4", "12", "1.5", "1e1"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}),
            &["0.1", "1", "1.5", "0.0001"],
            &["0", "-1", "1.51", "0.0"],
        ),
        (
            json!({"type": "number"}),
            &["-0.5e-3", "1e22", "0", "1.25"],
            &["01", "+1", ".5", "1."],
        ),
        (
            json!({"type": "integer", "multipleOf": 7}),
            &["0", "14", "-21", "777"],
            &["1", "15"],
        ),
        (
            json!({"type": "number", "multipleOf": 0.01}),
            &["0.25", "3", "-1.5"],
            &["0.255"],
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer",
                "minimum": 3, "exclusiveMinimum": true}),
            &["4"],
            &["3"],
        ),
        (
            json!({"type": "integer", "enum": [1, "a", 2.5, 3]}),
            &["1", "3"],
            &["2.5", "\"a\""],
        ),
        (
            json!({"const": {"a": [1, null]}}),
            &["{\"a\": [1, null]}"],
            &["{\"a\": [1]}"],
        ),
    ];
    for (schema, accepted, refused) in rows {
        check(&schema, &DEFAULT(), accepted, refused);
    }
}

#[test]
fn numbers_beyond_64_bit_floats_are_never_generated() {
    let grammar = grammar(&json!({"type": "array", "items": {"type": "number"}}));
    let long = |n: usize| format!("[{}]", "9".repeat(n));
    for text in ["[1e308, 1]", "[1E-999]", "[123456789e300]", &long(308)] {
        assert!(accepts(&grammar, text), "{text}");
        assert!(tooltune_json::parse(text).is_ok(), "{text}");
    }
    for text in [
        "[1e309]",
        "[1E+999]",
        "[123456789e301]",
        "[-2e308]",
        &long(310),
    ] {
        assert!(!accepts(&grammar, text), "{text}");
        assert!(tooltune_json::parse(text).is_err(), "{text}");
    }
    let words = super::grammar(&json!({"type": "string"}));
    assert!(accepts(&words, "\"1e999 \\\" 1e999\""));
}

#[test]
fn strings_respect_patterns_and_lengths() {
    let rows: [(Value, &[&str], &[&str]); 4] = [
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            &["\"é東\"", "\"😀😀😀\"", "\"a\\n\""],
            &["\"a\"", "\"abcd\""],
        ),
        (
            json!({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}),
            &["\"AB-1\"", "\"XY-99\""],
            &["\"AB-\"", "\"xAB-1\"", "\"AB-1x\""],
        ),
        (
            json!({"type": "string", "pattern": "b+"}),
            &["\"abba\""],
            &["\"aa\""],
        ),
        (
            json!({"enum": ["é\"", "東京\n"]}),
            &["\"é\\\"\"", "\"東京\\n\""],
            &["\"é\""],
        ),
    ];
    for (schema, accepted, refused) in rows {
        check(&schema, &DEFAULT(), accepted, refused);
    }
    // An escaped spelling is a different text of the same string, and training never uses it.
    check(
        &json!({"type": "string"}),
        &DEFAULT(),
        &["\"é\"", "\"\\u0001\"", "\"\u{7f}\""],
        &["\"\\u00e9\"", "\"\\u000a\"", "\"\\u001F\"", "\"\\/\""],
    );
}

#[test]
fn formats_restrict_values_only_if_they_are_asserted() {
    let asserted = GrammarOptions {
        formats: Formats::Asserted,
        ..patient_options()
    };
    let rows: [(&str, &[&str], &[&str]); 10] = [
        ("json-pointer", &["/a/~0b/~1", "/"], &["a", "/~", "/~2"]),
        (
            "relative-json-pointer",
            &["0", "1/a", "12#"],
            &["/a", "01/a", "-1"],
        ),
        (
            "date",
            &["2024-02-29", "2023-12-31", "2000-02-29"],
            &["2023-02-29", "1900-02-29", "2023-04-31", "5 May"],
        ),
        (
            "time",
            &["12:30:00Z", "23:59:59.5+01:00"],
            &["24:00:00Z", "12:30"],
        ),
        (
            "date-time",
            &["2024-02-29T12:30:00Z"],
            &["2023-02-29T12:30:00Z", "2024-01-01"],
        ),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123"]),
        ("ipv4", &["192.168.0.1"], &["256.1.1.1"]),
        (
            "email",
            &["ida.o'neil+x@mail.example.co.uk"],
            &["ida", "ida@", "a..b@c.de", "a b@c.de"],
        ),
        (
            "hostname",
            &["www.example-site.org", "a"],
            &["-a.org", "a..b", "a_b"],
        ),
        ("int32", &["anything"], &[]),
    ];
    for (format, good, bad) in rows {
        let schema = json!({"type": "string", "format": format, "pattern": "."});
        let quoted = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| format!("\"{text}\"")).collect()
        };
        let (good, bad) = (quoted(good), quoted(bad));
        let good: Vec<&str> = good.iter().map(String::as_str).collect();
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        check(&schema, &asserted, &good, &bad);
        check(&schema, &DEFAULT(), &[good.clone(), bad].concat(), &[]);
        let valid = validator(&schema, Formats::Asserted);
        for text in good {
            assert!(
                valid.is_valid(&serde_json::from_str(text).unwrap()),
                "{text}"
            );
        }
    }
}

#[test]
fn generated_strings_match_their_asserted_format() {
    let asserted = GrammarOptions {
        formats: Formats::Asserted,
        ..patient_options()
    };
    let unenforced = Formats::unenforced_formats();
    let enforced = CHECKED_FORMATS
        .iter()
        .filter(|format| !unenforced.contains(format));
    let mut n_enforced = 0;
    for format in enforced {
        n_enforced += 1;
        let schema = json!({"type": "string", "format": format});
        let (grammar, valid) = (
            grammar_with(&schema, &asserted),
            validator(&schema, Formats::Asserted),
        );
        for seed in 0..30 {
            let text = walk(&grammar, seed, seed as usize % 20);
            let value = tooltune_json::parse(&text).unwrap();
            assert!(valid.is_valid(&value), "{format}: {text}");
        }
    }
    assert_eq!(n_enforced, 12);
}

#[test]
fn formats_that_cannot_be_enforced_are_refused_or_left_to_the_validator() {
    let schema = json!({
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "place": {"type": "string", "format": "uri-reference"},
        },
        "required": ["day", "place"],
    });
    let with = |formats: Formats| GrammarOptions {
        formats,
        ..patient_options()
    };
    let refused = Grammar::json_schema(&vocabulary(), &schema, &with(Formats::Asserted));
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("/properties/place/format"), "{error}");
    check(
        &schema,
        &with(Formats::Enforceable),
        &["{\"day\": \"2026-08-02\", \"place\": \"any text\"}"],
        &["{\"day\": \"20 July 2026\", \"place\": \"/a\"}"],
    );
    assert!(Formats::unenforced_formats().contains(&"uri-reference"));
}

#[test]
fn integers_and_multiples_have_the_decimals_of_their_step() {
    let rows: [(Value, &[&str], &[&str]); 5] = [
        (
            json!({"type": "integer"}),
            &["2", "-2", "0", "123456789012345678901", "2.0", "1e+22"],
            &["2.00", "2.5", "2.", "2e1", "02", "1.5e15"],
        ),
        (
            json!({"type": ["integer", "null"], "minimum": 1}),
            &["1", "null", "1.0"],
            &["0", "0.0"],
        ),
        (
            json!({"type": "number", "multipleOf": 1}),
            &["3", "-3", "3.0"],
            &["3.5", "3."],
        ),
        (
            json!({"type": "number", "multipleOf": 0.5}),
            &["3", "3.0", "3.5", "3.00"],
            &["3.25"],
        ),
        (
            json!({"type": "number", "minimum": 2, "maximum": 12}),
            &["2", "2.0", "12.00"],
            &["1.0", "12.01"],
        ),
    ];
    for (schema, accepted, refused) in rows {
        check(&schema, &DEFAULT(), accepted, refused);
    }
}

#[test]
fn keys_have_the_order_of_the_schema() {
    let schema = json!({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["z"]});
    check(
        &schema,
        &DEFAULT(),
        &[
            r#"{"a": 1, "b": 2, "z": 3, "y": 4, "x": 5}"#,
            r#"{"b": 2, "z": 3, "x": 5, "y": 4}"#,
        ],
        &[
            r#"{"b": 2, "a": 1, "z": 3}"#,
            r#"{"y": 4, "z": 3}"#,
            r#"{"z": 3, "y": 4, "a": 1}"#,
        ],
    );
    let parts = json!({"properties": {"a": {}}, "required": ["a"],
        "allOf": [{"properties": {"b": {}}}]});
    check(
        &parts,
        &DEFAULT(),
        &[r#"{"a": 1, "b": 2}"#],
        &[r#"{"b": 2, "a": 1}"#],
    );
}

#[test]
fn undeclared_keys_follow_the_options() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}});
    let texts = [r#"{"a": 1, "b": 2}"#, r#"{"b": []}"#, r#"{"a": 1, "c": 3}"#];
    for (keys, n_accepted) in [(Keys::AsWritten, 3), (Keys::Declared, 2), (Keys::Strict, 1)] {
        let options = GrammarOptions {
            keys,
            ..patient_options()
        };
        let (accepted, refused) = texts.split_at(n_accepted);
        check(&schema, &options, accepted, refused);
    }
}

#[test]
fn a_declared_key_keeps_its_schema_in_every_spelling() {
    let schema = json!({"type": "object", "properties": {"ab": {"type": "integer"}},
        "patternProperties": {"^x": {"type": "boolean"}}});
    check(
        &schema,
        &DEFAULT(),
        &[r#"{"ab": 1, "abc": "x"}"#, r#"{"x1": true, "y": 3}"#],
        &[
            r#"{"ab": "x"}"#,
            r#"{"a\u0062": "x"}"#,
            r#"{"\u0078": 1}"#,
            r#"{"x": 1}"#,
            r#"{"y": 3, "ab": "x"}"#,
        ],
    );
}

#[test]
fn alternatives_are_any_or_exactly_one() {
    let tagged = |kind: &str, key: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind}, key: {"type": "number"}},
            "required": ["kind", key], "additionalProperties": false})
    };
    let schema = json!({"oneOf": [tagged("circle", "r"), tagged("square", "a"),
        {"type": ["null", "string"]}]});
    check(
        &schema,
        &DEFAULT(),
        &[
            r#"{"kind": "circle", "r": 1.5}"#,
            r#"{"kind": "square", "a": 2}"#,
            "null",
            "\"x\"",
        ],
        &[r#"{"kind": "circle", "a": 2}"#, "1", "{}"],
    );
    let all = json!({"allOf": [{"properties": {"a": {"minimum": 3}}}, {"properties": {"b": {}}}],
        "type": "object", "properties": {"a": {"type": "integer", "maximum": 5}},
        "required": ["b"]});
    check(
        &all,
        &DEFAULT(),
        &[r#"{"a": 3, "b": 1}"#, r#"{"b": "x"}"#],
        &[r#"{"a": 2, "b": 1}"#, r#"{"a": 6, "b": 1}"#, r#"{"a": 4}"#],
    );
}

#[test]
fn arrays_have_positions_and_counts() {
    let tuple = json!([{"type": "string"}, {"type": "integer"}]);
    let rows: [(Value, &[&str], &[&str]); 4] = [
        (
            json!({"type": "array", "prefixItems": tuple, "items": false}),
            &["[]", "[\"a\"]", "[\"a\", 1]"],
            &["[1]", "[\"a\", 1, 2]"],
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
                "items": tuple, "additionalItems": {"type": "null"}}),
            &["[\"a\", 1, null, null]"],
            &["[\"a\", 1, 2]"],
        ),
        (
            json!({"type": "array", "items": {"items": {"type": "boolean"}, "type": "array"},
                "minItems": 1, "maxItems": 2}),
            &["[[]]", "[[true, false], [true]]"],
            &["[]", "[[], [], []]", "[[1]]"],
        ),
        (
            json!({"type": "array", "uniqueItems": true, "maxItems": 1}),
            &["[]", "[1]"],
            &["[1, 1]"],
        ),
    ];
    for (schema, accepted, refused) in rows {
        check(&schema, &DEFAULT(), accepted, refused);
    }
}

#[test]
fn local_and_recursive_references_are_followed() {
    let tree = json!({
        "$ref": "#/$defs/no%20de~1s",
        "$defs": {"no de/s": {"type": "object", "properties": {
            "v": {"$ref": "#number"},
            "next": {"anyOf": [{"$ref": "#/$defs/no%20de~1s"}, {"type": "null"}]},
        }, "required": ["v", "next"], "additionalProperties": false},
        "n": {"$anchor": "number", "type": "number"}},
    });
    check(
        &tree,
        &DEFAULT(),
        &[r#"{"v": 1, "next": {"v": 2.5, "next": null}}"#],
        &[
            r#"{"v": 1}"#,
            r#"{"v": 1, "next": {"v": "x", "next": null}}"#,
        ],
    );
    let old = json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://x/y",
        "definitions": {"i": {"type": "integer"}},
        "items": {"$ref": "http://x/y#/definitions/i", "minimum": 100}, "type": "array"});
    check(&old, &DEFAULT(), &["[1]"], &["[1.5]"]);
    let new = json!({"$defs": {"i": {"type": "integer"}}, "type": "array",
        "items": {"$ref": "#/$defs/i", "minimum": 100}});
    check(&new, &DEFAULT(), &["[100]"], &["[1]"]);
}

#[test]
fn an_empty_schema_accepts_any_json() {
    for schema in [json!({}), json!(true), json!({"title": "x", "default": 3})] {
        let any = [
            r#"{"a": [1, {"b": null}], "c": "x"}"#,
            "[]",
            "-1.5e3",
            "\"x\"",
            "true",
            "null",
        ];
        check(
            &schema,
            &DEFAULT(),
            &any,
            &["{", "tru", "nul", "[1 2]", "{'a': 1}"],
        );
    }
}

#[test]
fn endless_branches_are_never_entered() {
    let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
        "required": ["next"]});
    let schema = json!({"$defs": {"n": node}, "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "null"}},
        "additionalProperties": false});
    check(
        &schema,
        &DEFAULT(),
        &["{}", r#"{"b": null}"#],
        &[r#"{"a": {"#],
    );
    let mut constraint = grammar(&schema).constraint();
    for id in tokenizer().encode("{\"").unwrap().ids {
        constraint.consume(id).unwrap();
    }
    let a = tokenizer().encode("a").unwrap().ids[0];
    assert!(!constraint.mask().unwrap().is_allowed(a));
}

#[test]
fn patterns_with_long_repetitions_can_be_completed() {
    let words = |n: usize| format!("\"{}\"", vec!["word"; n].join(" "));
    let string = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let rows: [(Value, Vec<String>, Vec<String>); 5] = [
        (
            string(r"^$|(^(?:\S+\s+){0,99}\S+$)"),
            vec!["\"\"".to_owned(), words(1), words(60), words(100)],
            vec![words(101), "\" a\"".to_owned()],
        ),
        (
            string("[A-Za-z0-9-_.:]{1,255}"),
            vec![words(30), "\"! !x\"".to_owned(), words(200)],
            vec!["\"\"".to_owned(), "\"! !\"".to_owned()],
        ),
        (
            string("^[A-Za-z0-9-_.:]{1,255}"),
            vec!["\"a b\"".to_owned(), words(100)],
            vec!["\"\"".to_owned(), "\" a\"".to_owned()],
        ),
        (
            string(r"a\{1,2}"),
            vec!["\"xa{1,2}y\"".to_owned()],
            vec!["\"a\"".to_owned(), "\"a{1,2\"".to_owned()],
        ),
        (
            string("^[a-z]{3,200}$"),
            vec![format!("\"{}\"", "a".repeat(200))],
            vec![format!("\"{}\"", "a".repeat(201)), "\"ab\"".to_owned()],
        ),
    ];
    for (schema, accepted, refused) in rows {
        let accepted: Vec<&str> = accepted.iter().map(String::as_str).collect();
        let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
        check(&schema, &DEFAULT(), &accepted, &refused);
    }
}

#[test]
fn whitespace_classes_in_patterns_match_validators() {
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let (next_line, no_break, mark) = ("\"é\u{85}\"", "\"é\u{a0}\"", "\"é\u{feff}\"");
    check(
        &pattern(r"^(é|東)+\s?$"),
        &DEFAULT(),
        &["\"é\"", no_break, mark],
        &[next_line],
    );
    check(
        &pattern(r"^[\sé]*$"),
        &DEFAULT(),
        &["\"\"", no_break, mark],
        &[next_line],
    );
    check(
        &pattern(r"^é\S$"),
        &DEFAULT(),
        &[next_line],
        &[no_break, mark],
    );
}
