//! Tests the flattening of training rows and the unflattening of predictions.

use tooltune_json::{Style, dumps};
use tooltune_rows::text::SlotRow;
use tooltune_template::{Conversation, Message, Role, ToolCall};

use super::*;

const ID: &str = "rows.jsonl:1";

fn flattening(n_slots: usize) -> RowFlattening {
    RowFlattening {
        options: options_with_slots(n_slots),
        ..RowFlattening::default()
    }
}

fn trip_schema() -> Value {
    schema_of(json!({
        "who": schema_of(json!({"name": {"type": "string"}, "born": schema_of(json!({"year": {"type": "integer"}}))})),
        "stops": {"type": "array", "items": schema_of(json!({"city": {"type": "string"}}))},
    }))
}

fn trip_gold() -> Value {
    json!({"who": {"name": "Ida", "born": {"year": 1887}}, "stops": [{"city": "A"}, {"city": "B"}]})
}

fn row(json_schema: Value, gold: Value) -> SlotRow {
    SlotRow {
        id: ID.to_owned(),
        input_text: "Ida, born 1887, went to A and B.".to_owned(),
        json_schema,
        gold,
    }
}

#[test]
fn a_slot_row_has_as_many_slots_as_its_longest_list() {
    let mut report = FlattenReport::default();
    let flat_row = flatten_slot_row(
        &row(trip_schema(), trip_gold()),
        &flattening(1),
        &mut report,
    );
    let expected = json!({
        "who_name": "Ida", "who_born_year": 1887, "stops_0_city": "A", "stops_1_city": "B",
    });
    assert_eq!(flat_row.row.gold, expected);
    assert_eq!(
        flat_row.row.json_schema["properties"]
            .as_object()
            .map(Map::len),
        Some(4)
    );
    assert_eq!(flat_row.row.input_text, "Ida, born 1887, went to A and B.");
    let five_slots = flatten_slot_row(
        &row(trip_schema(), trip_gold()),
        &flattening(5),
        &mut report,
    );
    assert_eq!(
        five_slots.row.json_schema["properties"]
            .as_object()
            .map(Map::len),
        Some(7)
    );
    assert_eq!((report.n_schemas, report.n_flattened), (2, 2));
    assert_eq!(report.n_widened, 1);
}

#[test]
fn rows_that_stay_nested_are_counted_by_reason() {
    let mut report = FlattenReport::default();
    let simple = schema_of(json!({"a": schema_of(json!({"b": {}}))}));
    let rows = [
        row(simple, json!({"a": {"b": 1}})),
        row(schema_of(json!({"a": {}})), json!({"a": 1})),
        row(
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
            json!({}),
        ),
        row(trip_schema(), json!({"stops": []})),
        row(trip_schema(), json!({"other": 1})),
        row(trip_schema(), json!([1])),
        row(json!({"type": "array"}), json!([1])),
    ];
    for row in &rows {
        let unchanged = flatten_slot_row(row, &flattening(1), &mut report);
        assert_eq!(&unchanged.row, row);
        assert!(unchanged.flat_schema.is_none());
    }
    let counts: Vec<(&str, usize)> = report.kept.iter().map(|(k, n)| (&**k, *n)).collect();
    let duplicated = [
        "already_flat",
        "lossy",
        "recursive",
        "simple",
        "unknown_path",
    ];
    assert_eq!(
        counts,
        [
            (duplicated[0], 1),
            (duplicated[1], 1),
            ("not_an_object", 2),
            (duplicated[2], 1),
            (duplicated[3], 1),
            (duplicated[4], 1)
        ]
    );
    assert_eq!((report.n_schemas, report.n_flattened), (7, 0));
    assert_eq!(report.kept_schemas.len(), 7);
    let lines = report.lines();
    assert_eq!(lines[0], "0 of 7 schemas were flattened");
    let message = "1 stay nested, unknown_path: rows.jsonl:1 (other: ";
    assert!(
        lines.iter().any(|line| line.starts_with(message)),
        "{lines:#?}"
    );
}

#[test]
fn always_flattens_simple_schemas_and_keeps_unflattenable_ones() {
    let always = RowFlattening {
        when: FlattenWhen::Always,
        ..flattening(1)
    };
    let list = schema_of(json!({"a": {"type": "array", "items": schema_of(json!({"b": {}}))}}));
    let cases = [
        (
            schema_of(json!({"a": schema_of(json!({"b": {}}))})),
            json!({"a": {"b": 1}}),
            None,
        ),
        (
            schema_of(json!({"a": {}})),
            json!({"a": 1}),
            Some("already_flat"),
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
            json!({}),
            Some("recursive"),
        ),
        (list.clone(), json!({"a": [{"b": 1}, {"b": 2}]}), None),
        (list.clone(), json!({"a": []}), Some("lossy")),
    ];
    for (schema, gold, reason) in cases {
        let mut report = FlattenReport::default();
        let flat = flatten_slot_row(&row(schema.clone(), gold), &always, &mut report);
        assert_eq!(flat.flat_schema.is_none(), reason.is_some(), "{schema}");
        let kept = report.kept_schemas.first().map(|kept| &*kept.reason);
        assert_eq!(kept, reason, "{schema}");
    }
    let mut report = FlattenReport::default();
    let whole_lists = RowFlattening {
        options: options_with_slots(0),
        ..always
    };
    let row = row(list, json!({"a": [{"b": 1}]}));
    let unchanged = flatten_slot_row(&row, &whole_lists, &mut report);
    assert!(unchanged.flat_schema.is_none());
    assert_eq!(report.kept.get("already_flat"), Some(&1));
}

#[test]
fn colliding_names_keep_a_row_nested_and_are_reported_with_their_paths() {
    let strict = RowFlattening {
        options: FlattenOptions {
            on_collision: OnCollision::Error,
            ..options_with_slots(1)
        },
        ..flattening(1)
    };
    let schema = schema_of(json!({
        "a": schema_of(json!({"b": {}, "c": schema_of(json!({"d": {}}))})),
        "a_b": {},
    }));
    let gold = json!({"a": {"b": 1, "c": {"d": 2}}, "a_b": 3});
    let mut report = FlattenReport::default();
    let nested = flatten_slot_row(&row(schema.clone(), gold.clone()), &strict, &mut report);
    assert!(nested.flat_schema.is_none());
    let message = report.kept_schemas[0].message.as_deref().expect("a fault");
    assert!(
        message.contains("a.b and a_b both have the flat name"),
        "{message}"
    );
    let suffixed = flatten_slot_row(&row(schema, gold), &flattening(1), &mut report);
    assert_eq!(suffixed.row.gold, json!({"a_b": 1, "a_c_d": 2, "a_b_2": 3}));
}

#[test]
fn the_enforced_schema_has_only_keys_that_unflatten() {
    let mut report = FlattenReport::default();
    let flat = flatten_slot_row(
        &row(trip_schema(), trip_gold()),
        &flattening(1),
        &mut report,
    );
    let flat_schema = flat.row.json_schema.as_object().expect("a schema");
    assert!(!flat_schema.contains_key("additionalProperties"));
    assert_eq!(flat.enforced_schema()["additionalProperties"], false);
    assert_eq!(
        flat.enforced_schema()["properties"],
        flat_schema["properties"]
    );
    let nested = row(schema_of(json!({"a": {}})), json!({"a": 1}));
    let nested_row = flatten_slot_row(&nested, &flattening(1), &mut report);
    assert_eq!(nested_row.enforced_schema(), nested.json_schema);
}

#[test]
fn completions_are_unflattened_and_malformed_ones_stay_unparsable() {
    let mut flattened = FlattenReport::default();
    let nested_row = row(trip_schema(), trip_gold());
    let flat_row = flatten_slot_row(&nested_row, &flattening(1), &mut flattened);
    let mut report = UnflattenReport::default();
    let right = dumps(&flat_row.row.gold, Style::Python);
    let nested = dumps(&trip_gold(), Style::Python);
    for (raw, text, malformed) in [
        (right.as_str(), nested.as_str(), None),
        ("{oops", "{oops", Some("not_json")),
        ("[]", "", Some("not_an_object")),
        (nested.as_str(), "", Some("unknown_key")),
    ] {
        let completion = flat_row.nested_completion(raw, &mut report);
        assert_eq!(
            (completion.text.as_str(), completion.malformed),
            (text, malformed)
        );
    }
    assert_eq!((report.n_predictions, report.n_malformed), (4, 3));
    assert_eq!(report.malformed_rate(), Some(0.75));
    assert_eq!(
        serde_json::to_value(&report.malformed).expect("counts"),
        json!({"not_an_object": 1, "not_json": 1, "unknown_key": 1})
    );
    let kept_nested = flatten_slot_row(
        &row(schema_of(json!({"a": {}})), json!({"a": 1})),
        &flattening(1),
        &mut flattened,
    );
    let mut report = UnflattenReport::default();
    for raw in ["{\"a\":  2}", "[]", "x"] {
        assert_eq!(kept_nested.nested_completion(raw, &mut report).text, raw);
    }
    assert_eq!((report.n_predictions, report.n_malformed), (3, 2));
}

fn call(name: &str, arguments: Value, derived_names: &[&str]) -> ToolCall {
    ToolCall {
        id: Some("call00001".to_owned()),
        name: name.to_owned(),
        arguments: object(arguments),
        derived: derived_names
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
    }
}

fn conversation(calls: Vec<ToolCall>) -> Conversation {
    let answer = Message {
        content: None,
        tool_calls: calls,
        ..Message::new(Role::Assistant, "")
    };
    Conversation {
        tools: Some(vec![
            json!({"type": "function", "function": {"name": "book", "parameters": trip_schema()}}),
            json!({"name": "ping", "parameters": schema_of(json!({"host": {"type": "string"}}))}),
            json!({"name": "bare"}),
        ]),
        ..Conversation::new(vec![Message::new(Role::User, "Book it."), answer])
    }
}

#[test]
fn tools_and_their_calls_are_flattened_together() {
    let nested = conversation(vec![
        call("book", trip_gold(), &["who"]),
        call("ping", json!({"host": "h"}), &[]),
        call("unknown", json!({"x": {}}), &[]),
    ]);
    let mut report = FlattenReport::default();
    let flat_row = flatten_tool_row(ID, &nested, &flattening(1), &mut report);
    let tools = flat_row.conversation.tools.as_ref().expect("tools");
    let parameters = &tools[0]["function"]["parameters"];
    assert_eq!(parameters["properties"].as_object().map(Map::len), Some(4));
    assert_eq!(tools[1..], nested.tools.as_ref().expect("tools")[1..]);
    let calls = &flat_row.conversation.messages[1].tool_calls;
    assert_eq!(calls[0].arguments["stops_1_city"], "B");
    let derived_names: Vec<&str> = calls[0].derived.iter().map(String::as_str).collect();
    assert_eq!(derived_names, ["who_born_year", "who_name"]);
    assert_eq!(calls[1..], nested.messages[1].tool_calls[1..]);
    assert_eq!((report.n_schemas, report.n_flattened), (2, 1));
    let mut predictions = UnflattenReport::default();
    let restored = flat_row.nested_arguments("book", &calls[0].arguments, &mut predictions);
    assert_eq!(restored, Ok(object(trip_gold())));
    let unknown_key = object(json!({"stops_2_city": "C"}));
    let error = flat_row.nested_arguments("book", &unknown_key, &mut predictions);
    assert_eq!(error.expect_err("no slot").kind(), "unknown_key");
    let unchanged = flat_row.nested_arguments("ping", &unknown_key, &mut predictions);
    assert_eq!(unchanged, Ok(unknown_key));
    assert_eq!((predictions.n_predictions, predictions.n_malformed), (3, 1));
}

#[test]
fn a_tool_stays_nested_if_one_of_its_calls_cannot_be_flattened() {
    let nested = conversation(vec![
        call("book", trip_gold(), &[]),
        call("book", json!({"who": {}}), &[]),
    ]);
    let mut report = FlattenReport::default();
    let flat_row = flatten_tool_row(ID, &nested, &flattening(1), &mut report);
    assert_eq!(flat_row.conversation, nested);
    assert_eq!(report.kept.get("lossy"), Some(&1));
}

#[test]
fn tools_that_share_a_name_stay_nested() {
    let mut nested = conversation(vec![call("book", trip_gold(), &[])]);
    let tools = nested.tools.as_mut().expect("tools");
    tools.push(json!({"name": "book"}));
    let mut report = FlattenReport::default();
    let flat_row = flatten_tool_row(ID, &nested, &flattening(1), &mut report);
    assert_eq!(flat_row.conversation, nested);
    let nested_schema = &report.kept_schemas[0];
    assert_eq!(
        (&*nested_schema.reason, nested_schema.tool.as_deref()),
        ("shared_name", Some("book"))
    );
}
