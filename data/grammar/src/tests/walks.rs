//! Any choice of allowed tokens gives a valid text.

use proptest::prelude::*;

use super::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "string"})),
        Just(json!({"type": ["string", "integer", "null"]})),
        (0_u8..4, 0_u8..6).prop_map(|(min, more)| json!({"type": "string", "minLength": min,
            "maxLength": min + more})),
        prop_oneof![
            Just("^[a-z]{1,3}(-[0-9]{2})?$"),
            Just("x"),
            Just("^\\w+@\\w+\\.(com|org)$"),
            Just("^[^a-y]*$"),
            Just("^(é|東)+\\s?$"),
        ]
        .prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        prop_oneof![
            Just("date"),
            Just("time"),
            Just("date-time"),
            Just("uuid"),
            Just("ipv4"),
            Just("ipv6"),
            Just("email"),
            Just("hostname"),
            Just("duration"),
            Just("uri"),
        ]
        .prop_map(|format| json!({"type": "string", "format": format})),
        (-50_i32..50, 0_i32..90, any::<bool>()).prop_map(|(low, more, is_integer)| {
            let name = if is_integer { "integer" } else { "number" };
            json!({"type": name, "minimum": low, "maximum": low + more})
        }),
        (-30_i32..30)
            .prop_map(|low| json!({"type": "number", "exclusiveMinimum": f64::from(low) / 4.0})),
        (-40_i32..40, 1_i32..30, 0_i32..5, any::<[bool; 3]>()).prop_map(
            |(low, more, n_decimals, [is_open, is_closed, is_integer])| {
                let scale = 10_f64.powi(n_decimals);
                let (low, high) = (f64::from(low) / scale, f64::from(low + more) / scale);
                let min = if is_open {
                    "exclusiveMinimum"
                } else {
                    "minimum"
                };
                let max = if is_closed {
                    "maximum"
                } else {
                    "exclusiveMaximum"
                };
                let name = if is_integer { "integer" } else { "number" };
                json!({"type": name, min: low, max: high})
            }
        ),
        Just(json!({"const": 1e-7})),
        Just(json!({"enum": [1.0, -0.0, 1e22, {"b": 1.5, "a": []}]})),
        Just(json!({"type": "number"})),
        Just(json!({"type": "integer"})),
        (1_u8..40).prop_map(|step| json!({"type": "integer", "multipleOf": step})),
        Just(json!({"type": "number", "multipleOf": 0.25})),
        prop::collection::vec(
            prop_oneof![
                any::<i16>().prop_map(Value::from),
                "[a-é \"\\\\]{0,4}".prop_map(Value::from),
                Just(Value::Null),
                Just(json!([1, {"a": "b"}])),
            ],
            1..4
        )
        .prop_map(|values| json!({"enum": values})),
        Just(json!({})),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a".to_owned()),
        Just("ab".to_owned()),
        Just("é\"k".to_owned()),
        Just("x_1".to_owned()),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(3, 12, 4, |inner| {
        let properties = prop::collection::btree_map(key(), inner.clone(), 0..4);
        let object = (
            properties,
            any::<[bool; 4]>(),
            prop::option::of(inner.clone()),
            0..3_u8,
        )
            .prop_map(|(properties, flags, rest, shape)| {
                let keys = properties.keys().zip(flags);
                let required: Vec<&String> =
                    keys.filter(|(_, flag)| *flag).map(|(key, _)| key).collect();
                let mut schema = json!({"type": "object", "required": required});
                schema["properties"] = json!(properties);
                match (shape, rest) {
                    (0, _) => schema["additionalProperties"] = json!(false),
                    (1, Some(rest)) => schema["additionalProperties"] = rest,
                    (2, Some(rest)) => schema["patternProperties"] = json!({"^x": rest}),
                    _ => {}
                }
                schema
            });
        prop_oneof![
            2 => object,
            1 => (inner.clone(), 0_u8..3, 0_u8..3).prop_map(|(items, min, more)| json!({
                "type": "array", "items": items, "minItems": min, "maxItems": min + more})),
            1 => prop::collection::vec(inner.clone(), 1..3).prop_map(|items| json!({
                "type": "array", "prefixItems": items, "items": {"type": "null"}})),
            1 => prop::collection::vec(inner.clone(), 1..4).prop_map(|any| json!({"anyOf": any})),
            1 => prop::collection::vec(inner.clone(), 2..3).prop_map(|one| json!({"oneOf": one})),
            1 => prop::collection::vec(inner, 2..3).prop_map(|all| json!({"allOf": all})),
        ]
    })
}

fn options() -> impl Strategy<Value = GrammarOptions> {
    let layouts = prop_oneof![
        Just(Layout::Python),
        Just(Layout::Compact),
        Just(Layout::Flexible)
    ];
    let formats = prop_oneof![Just(Formats::Annotated), Just(Formats::Asserted)];
    (layouts, formats).prop_map(|(layout, formats)| GrammarOptions {
        layout,
        formats,
        ..patient_options()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Invariant: A completed constrained completion parses and is valid under its schema.
    #[test]
    fn a_random_text_parses_and_is_valid(schema in schema(), options in options(), seed: u64) {
        let validator = validator(&schema, options.formats);
        // Contradictions and overlapping alternatives are refused.
        if let Ok(grammar) = Grammar::json_schema(&vocabulary(), &schema, &options) {
            for n_free in [0, 30] {
                let text = walk(&grammar, seed, n_free);
                let value = tooltune_json::parse_unique(&text);
                prop_assert!(value.is_ok(), "{schema}: {text}: {value:?}");
                let value = value.unwrap();
                if let Some(error) = validator.iter_errors(&value).next() {
                    prop_assert!(false, "{schema}: {text}: {error}");
                }
            }
        }
    }

    #[test]
    fn no_schema_makes_the_compiler_panic(schema in any_json()) {
        let options = patient_options();
        if let Ok(grammar) = Grammar::json_schema(&vocabulary(), &schema, &options) {
            grammar.constraint().mask().unwrap();
        }
    }
}

/// Random JSON that sometimes resembles a schema.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("type"),
        Just("properties"),
        Just("items"),
        Just("$ref"),
        Just("allOf"),
        Just("anyOf"),
        Just("enum"),
        Just("required"),
        Just("minimum"),
        Just("multipleOf"),
        Just("pattern"),
        Just("object"),
        Just("string"),
        Just("number"),
        Just("#"),
        Just("array"),
        Just("oneOf"),
        Just("maxLength"),
        Just("minItems"),
        Just("x-guidance"),
        Just("$defs"),
        Just("additionalProperties"),
        Just("patternProperties"),
        Just("const"),
        Just("format"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(|float| json!(float)),
        word.clone().prop_map(Value::from),
        "[a-c(*+?\\[\\]\\\\^$]{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..4).prop_map(|fields| {
                let fields = fields.into_iter().map(|(key, part)| (key.to_owned(), part));
                Value::Object(fields.collect())
            }),
        ]
    })
}
