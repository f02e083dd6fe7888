//! Training rows to their flat form, and predictions back.

use super::*;
use crate::json::{Style, dumps};
use crate::text::{Conversation, Message, Role, SlotRow, ToolCall};

fn trip_schema() -> Value {
    of(json!({
        "who": of(json!({"name": {"type": "string"}, "born": of(json!({"year": {"type": "integer"}}))})),
        "stops": {"type": "array", "items": of(json!({"city": {"type": "string"}}))},
    }))
}

fn trip() -> Value {
    json!({"who": {"name": "Ida", "born": {"year": 1887}}, "stops": [{"city": "A"}, {"city": "B"}]})
}

fn row(json_schema: Value, gold: Value) -> SlotRow {
    SlotRow {
        id: "rows.jsonl:1".to_owned(),
        input_text: "Ida, born 1887, went to A and B.".to_owned(),
        json_schema,
        gold,
    }
}

#[test]
fn a_slot_row_takes_the_slots_of_its_longest_list() {
    let mut report = FlattenReport::default();
    let flat_row = flatten_slot_row(&row(trip_schema(), trip()), &slots(1), &mut report);
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
    let more = flatten_slot_row(&row(trip_schema(), trip()), &slots(5), &mut report);
    assert_eq!(
        more.row.json_schema["properties"].as_object().map(Map::len),
        Some(7)
    );
    assert_eq!((report.n_schemas, report.n_flattened), (2, 2));
}

#[test]
fn rows_that_stay_nested_are_counted_by_reason() {
    let mut report = FlattenReport::default();
    let simple = of(json!({"a": of(json!({"b": {}}))}));
    let rows = [
        row(simple, json!({"a": {"b": 1}})),
        row(of(json!({"a": {}})), json!({"a": 1})),
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
        let same = flatten_slot_row(row, &slots(1), &mut report);
        assert_eq!(&same.row, row);
        assert!(same.flat_schema.is_none());
    }
    let kept: Vec<(&str, usize)> = report.kept.iter().map(|(k, n)| (k.as_str(), *n)).collect();
    let once = [
        "already_flat",
        "lossy",
        "recursive",
        "simple",
        "unknown_path",
    ];
    assert_eq!(
        kept,
        [
            (once[0], 1),
            (once[1], 1),
            ("not_an_object", 2),
            (once[2], 1),
            (once[3], 1),
            (once[4], 1)
        ]
    );
    assert_eq!((report.n_schemas, report.n_flattened), (7, 0));
}

#[test]
fn completions_come_back_nested_and_malformed_ones_parse_nowhere() {
    let mut flattened = FlattenReport::default();
    let nested_row = row(trip_schema(), trip());
    let flat_row = flatten_slot_row(&nested_row, &slots(1), &mut flattened);
    let mut report = UnflattenReport::default();
    let right = dumps(&flat_row.row.gold, Style::Python);
    assert_eq!(
        flat_row.nested_completion(&right, &mut report),
        dumps(&trip(), Style::Python)
    );
    assert_eq!(flat_row.nested_completion("{oops", &mut report), "{oops");
    assert_eq!(flat_row.nested_completion("[]", &mut report), "");
    let nested = dumps(&trip(), Style::Python);
    assert_eq!(flat_row.nested_completion(&nested, &mut report), "");
    assert_eq!((report.n_predictions, report.n_malformed), (4, 3));
    assert_eq!(report.malformed_rate(), Some(0.75));
    assert_eq!(
        serde_json::to_value(&report.malformed).expect("counts"),
        json!({"not_an_object": 1, "not_json": 1, "unknown_key": 1})
    );
    let kept = flatten_slot_row(
        &row(of(json!({"a": {}})), json!({"a": 1})),
        &slots(1),
        &mut flattened,
    );
    let mut report = UnflattenReport::default();
    for raw in ["{\"a\":  2}", "[]", "x"] {
        assert_eq!(kept.nested_completion(raw, &mut report), raw);
    }
    assert_eq!((report.n_predictions, report.n_malformed), (3, 2));
}

fn call(name: &str, arguments: Value, derived: &[&str]) -> ToolCall {
    ToolCall {
        id: Some("call00001".to_owned()),
        name: name.to_owned(),
        arguments: object(arguments),
        derived: derived.iter().map(|name| (*name).to_owned()).collect(),
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
            json!({"name": "ping", "parameters": of(json!({"host": {"type": "string"}}))}),
            json!({"name": "bare"}),
        ]),
        ..Conversation::new(vec![Message::new(Role::User, "Book it."), answer])
    }
}

#[test]
fn tools_and_their_calls_are_flattened_together() {
    let nested = conversation(vec![
        call("book", trip(), &["who"]),
        call("ping", json!({"host": "h"}), &[]),
        call("unknown", json!({"x": {}}), &[]),
    ]);
    let mut report = FlattenReport::default();
    let flat_row = flatten_tool_row(&nested, &slots(1), &mut report);
    let tools = flat_row.conversation.tools.as_ref().expect("tools");
    let parameters = &tools[0]["function"]["parameters"];
    assert_eq!(parameters["properties"].as_object().map(Map::len), Some(4));
    assert_eq!(tools[1..], nested.tools.as_ref().expect("tools")[1..]);
    let calls = &flat_row.conversation.messages[1].tool_calls;
    assert_eq!(calls[0].arguments["stops_1_city"], "B");
    let derived: Vec<&str> = calls[0].derived.iter().map(String::as_str).collect();
    assert_eq!(derived, ["who_born_year", "who_name"]);
    assert_eq!(calls[1..], nested.messages[1].tool_calls[1..]);
    assert_eq!((report.n_schemas, report.n_flattened), (2, 1));
    let mut predictions = UnflattenReport::default();
    let back = flat_row.nested_arguments("book", &calls[0].arguments, &mut predictions);
    assert_eq!(back, Ok(object(trip())));
    let wrong = object(json!({"stops_2_city": "C"}));
    let error = flat_row.nested_arguments("book", &wrong, &mut predictions);
    assert_eq!(error.expect_err("no slot").kind(), "unknown_key");
    let same = flat_row.nested_arguments("ping", &wrong, &mut predictions);
    assert_eq!(same, Ok(wrong));
    assert_eq!((predictions.n_predictions, predictions.n_malformed), (3, 1));
}

#[test]
fn a_tool_stays_nested_with_all_its_calls_if_one_would_be_lost() {
    let nested = conversation(vec![
        call("book", trip(), &[]),
        call("book", json!({"who": {}}), &[]),
    ]);
    let mut report = FlattenReport::default();
    let flat_row = flatten_tool_row(&nested, &slots(1), &mut report);
    assert_eq!(flat_row.conversation, nested);
    assert_eq!(report.kept.get("lossy"), Some(&1));
}
