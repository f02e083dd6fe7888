//! Checks the calls of rows against the tools of the same row.

use std::io::Write;

use serde_json::json;

use super::*;

/// The error of a row, without file and line.
fn read(row: &Value, is_checked: bool) -> Result<Row, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{row}").unwrap();
    let format = match row.get("messages") {
        Some(_) => DataFormat::Messages,
        None => DataFormat::PromptCompletion,
    };
    let rows = read_rows(file.path(), format).unwrap();
    let mut rows = if is_checked {
        rows
    } else {
        rows.with(RowParser::with_unchecked_calls)
    };
    let row = rows.next().unwrap();
    row.map_err(|error| error.fault().to_string())
}

fn with_call(name: &str, arguments: Value, tools: Value) -> Value {
    json!({"messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": arguments}}]},
    ], "tools": tools})
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn weather() -> Value {
    tool(
        "weather",
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "place": {"type": "object", "properties": {"floor": {"type": "integer"}}},
                "filters": {"type": "object"},
                "stops": {"type": "array", "items": {
                    "type": "object", "properties": {"name": {"type": "string"}}}},
            },
            "required": ["city"],
        }),
    )
}

const FIX: &str = "fix the call or the tool, or set data.check_calls = false to skip this check";

#[test]
fn a_call_that_matches_its_tool_passes() {
    for arguments in [
        json!({"city": "Oslo"}),
        json!({"city": "Oslo", "days": 2, "unit": "celsius", "place": {"floor": 1},
            "filters": {"any": "thing"}, "stops": [{"name": "a"}, {}]}),
        json!("{\"city\": \"Oslo\", \"days\": 2}"),
    ] {
        let row = with_call("weather", arguments, json!([weather()]));
        read(&row, true).unwrap();
    }
}

/// Invariant: A supervised call matches a tool of its row.
#[test]
fn a_call_that_violates_its_tool_is_refused_with_location_rule_and_remedy() {
    let path = "messages[1].tool_calls[0]";
    for (name, arguments, expected) in [
        (
            "wether",
            json!({"city": "Oslo"}),
            format!(
                "{path}.name: no tool is called \"wether\", did you mean \"weather\"? Add the \
                 tool to the row's tools or correct the name, or set data.check_calls = false to \
                 skip this check"
            ),
        ),
        (
            "weather",
            json!({"days": 2}),
            format!(
                "{path}.arguments: weather requires \"city\", which the call does not give; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "day": 2}),
            format!(
                "{path}.arguments.day: weather has no such parameter, did you mean \"days\"? \
                 Known parameters: city, days, unit, place, filters, stops; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "days": "two"}),
            format!(
                "{path}.arguments.days: weather does not accept this value: \"two\" is not of type \
                 \"integer\"; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "days": 0}),
            format!(
                "{path}.arguments.days: weather does not accept this value: 0 is less than the \
                 minimum of 1; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "unit": "kelvin"}),
            format!(
                "{path}.arguments.unit: weather does not accept this value: \"kelvin\" is not one \
                 of \"celsius\" or \"fahrenheit\"; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "stops": [{}, {"name": 1}]}),
            format!(
                "{path}.arguments.stops[1].name: weather does not accept this value: 1 is not of \
                 type \"string\"; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "place": {"flor": 1}}),
            format!(
                "{path}.arguments.place.flor: weather has no such parameter, did you mean \
                 \"floor\"? Known parameters: floor; {FIX}"
            ),
        ),
        (
            "weather",
            json!({"city": "Oslo", "stops": [{"nome": "a"}]}),
            format!(
                "{path}.arguments.stops[0].nome: weather has no such parameter, did you mean \
                 \"name\"? Known parameters: name; {FIX}"
            ),
        ),
    ] {
        let row = with_call(name, arguments, json!([tool("time", json!({})), weather()]));
        assert_eq!(read(&row, true).unwrap_err(), expected);
        read(&row, false).unwrap();
    }
}

#[test]
fn every_call_of_every_message_is_checked_and_named_by_its_field() {
    let good = json!({"name": "weather", "arguments": {"city": "Oslo"}});
    let bad = json!({"name": "weather", "arguments": {}});
    let calls = |calls: Value| json!({"role": "assistant", "tool_calls": calls});
    let question = json!({"role": "user", "content": "Weather?"});
    let result = json!({"role": "tool", "content": "rain"});
    for (row, place) in [
        (
            json!({"messages": [question, calls(json!([good, bad])), result, calls(json!([good]))],
                "tools": [weather()]}),
            "messages[1].tool_calls[1].arguments: ",
        ),
        (
            json!({"prompt": [question, calls(json!([bad]))], "completion": [calls(json!([good]))],
                "tools": [weather()]}),
            "prompt[1].tool_calls[0].arguments: ",
        ),
        (
            json!({"prompt": "x", "completion": [calls(json!([good])), result, calls(json!([bad]))],
                "tools": [weather()["function"]]}),
            "completion[2].tool_calls[0].arguments: ",
        ),
    ] {
        let fault = read(&row, true).unwrap_err();
        assert!(fault.starts_with(place), "{fault}");
    }
}

#[test]
fn calls_are_unchecked_without_a_declaration() {
    let any = json!({"x": [1, {"y": null}]});
    let listed = json!({"city": {"type": "str", "description": "The city."}});
    let open = |keyword: &str, value: Value| {
        json!([tool(
            "weather",
            json!({"type": "object", "properties": {}, keyword: value})
        )])
    };
    for tools in [
        Value::Null,
        json!([]),
        json!([{"type": "web_search"}]),
        json!([{"type": "function", "function": {"name": "weather"}}]),
        json!([tool("weather", json!({}))]),
        json!([tool("weather", json!({"type": "object"}))]),
        json!([tool("weather", listed)]),
        open("additionalProperties", json!(true)),
        open("additionalProperties", json!({"type": "array"})),
        open("patternProperties", json!({"^x$": {}})),
    ] {
        let row = with_call("weather", any.clone(), tools);
        read(&row, true).unwrap();
    }
    for tools in [
        open("additionalProperties", json!(false)),
        open("additionalProperties", json!({"type": "string"})),
        open("description", json!("none")),
    ] {
        let row = with_call("weather", any.clone(), tools);
        let fault = read(&row, true).unwrap_err();
        assert!(fault.contains("[0].arguments.x: weather "), "{fault}");
    }
}

#[test]
fn python_type_names_become_json_schema_types() {
    let python = tool(
        "weather",
        json!({"type": "dict", "properties": {
            "city": {"type": "str"},
            "share": {"type": ["float", "null"]},
            "type": {"type": "any", "default": {"type": "odd"}},
            "tags": {"type": "list", "items": {"type": "STRING"}},
        }}),
    );
    let tools = json!([python]);
    let check = |arguments: Value| read(&with_call("weather", arguments, tools.clone()), true);
    check(json!({"city": "Oslo", "share": 0.5, "type": 3, "tags": ["a"]})).unwrap();
    check(json!({"share": null})).unwrap();
    for (arguments, field) in [
        (json!({"city": 1}), ".city"),
        (json!({"share": "half"}), ".share"),
        (json!({"tags": [1]}), ".tags[0]"),
    ] {
        let fault = check(arguments).unwrap_err();
        assert!(fault.contains(&format!("arguments{field}: ")), "{fault}");
    }
}

#[test]
fn a_call_may_match_either_of_two_tools_with_the_same_name() {
    let other = tool(
        "weather",
        json!({"type": "object", "properties": {"zip": {}}}),
    );
    let tools = json!([weather(), other]);
    for arguments in [json!({"city": "Oslo"}), json!({"zip": "0150"})] {
        read(&with_call("weather", arguments, tools.clone()), true).unwrap();
    }
    let fault = read(&with_call("weather", json!({"town": 1}), tools), true).unwrap_err();
    assert!(fault.contains("known parameters: city, "), "{fault}");
}

#[test]
fn an_invalid_tool_schema_is_refused_with_the_remedy() {
    let invalid_schema =
        json!({"type": "object", "properties": {"city": {"type": "string", "required": true}}});
    let row = with_call(
        "weather",
        json!({"city": "x"}),
        json!([tool("weather", invalid_schema)]),
    );
    let fault = read(&row, true).unwrap_err();
    let expected_start =
        "tools[0].function.parameters/properties/city/required is not a usable JSON schema";
    assert!(
        fault.starts_with(expected_start) && fault.ends_with(FIX),
        "{fault}"
    );
    read(&row, false).unwrap();
}
