//! Tool calls in the formats of models.

use tooltune_agents::render_call;

use super::*;

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
            "required": ["city"],
            "$defs": {"city": {"type": "string", "maxLength": 9}},
        }}}),
        json!({"name": "book", "parameters": {"properties": {"to": {"$ref": "#/$defs/city"}},
            "$defs": {"city": {"enum": ["Rome", "Oslo"]}}}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]
}

fn call_grammar(format: CallFormat, keys: Keys) -> Grammar {
    let options = GrammarOptions {
        keys,
        ..patient_options()
    };
    Grammar::tool_call(&vocabulary(), &tools(), format, &options).unwrap()
}

#[test]
fn a_call_is_written_in_the_format_of_its_model() {
    let weather = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}";
    let llama = weather.replace("arguments", "parameters");
    let with_id = weather.replace("2}}", "2}, \"id\": \"abcdef123\"}");
    let rows = [
        (CallFormat::Plain, weather.to_owned()),
        (
            CallFormat::Hermes,
            format!("<tool_call>\n{weather}\n</tool_call>"),
        ),
        (CallFormat::Llama, llama),
        (CallFormat::Mistral, format!("[TOOL_CALLS] [{weather}]")),
        (CallFormat::Mistral, format!("[TOOL_CALLS] [{with_id}]")),
        (CallFormat::Granite, format!("<|tool_call|>[{weather}]")),
    ];
    for (format, text) in &rows {
        let grammar = call_grammar(*format, Keys::AsWritten);
        assert!(accepts(&grammar, text), "{format:?} refuses {text}");
        for (other, text) in rows.iter().filter(|(other, _)| other != format) {
            assert!(
                !accepts(&grammar, text),
                "{format:?} accepts {other:?}: {text}"
            );
        }
    }
}

#[test]
fn several_calls_are_written_if_the_format_supports_and_the_options_allow_them() {
    let one = "{\"name\": \"now\", \"arguments\": {}}";
    let options = GrammarOptions {
        parallel_tool_calls: true,
        ..patient_options()
    };
    let hermes = format!("<tool_call>\n{one}\n</tool_call>");
    let rows = [
        (CallFormat::Hermes, format!("{hermes}\n{hermes}"), true),
        (
            CallFormat::Hermes,
            format!("{hermes}\n{hermes}\n{hermes}"),
            true,
        ),
        (CallFormat::Hermes, format!("{hermes}{hermes}"), false),
        (
            CallFormat::Mistral,
            format!("[TOOL_CALLS] [{one}, {one}]"),
            true,
        ),
        (
            CallFormat::Mistral,
            format!("[TOOL_CALLS] [{one}, ]"),
            false,
        ),
        (
            CallFormat::Granite,
            format!("<|tool_call|>[{one}, {one}]"),
            true,
        ),
        (CallFormat::Plain, format!("{one}\n{one}"), false),
    ];
    for (format, text, is_taken) in rows {
        let several = Grammar::tool_call(&vocabulary(), &tools(), format, &options).unwrap();
        assert_eq!(accepts(&several, &text), is_taken, "{format:?}: {text}");
        assert!(
            !accepts(&call_grammar(format, Keys::AsWritten), &text),
            "{format:?}: {text}"
        );
    }
}

#[test]
fn each_tool_accepts_only_its_own_arguments() {
    let grammar = call_grammar(CallFormat::Plain, Keys::Declared);
    let text =
        |name: &str, arguments: Value| render_call(name, arguments.as_object().unwrap()).text;
    for text in [
        text("get_weather", json!({"city": "Rome"})),
        text("book", json!({"to": "Oslo"})),
        text("book", json!({})),
        text("now", json!({})),
    ] {
        assert!(accepts(&grammar, &text), "{text}");
    }
    for text in [
        text("get_weather", json!({})),
        text("get_weather", json!({"city": "Rome", "to": "Oslo"})),
        text("book", json!({"to": "Paris"})),
        text("now", json!({"x": 1})),
        text("later", json!({})),
        "{\"name\": \"now\"}".to_owned(),
        "{\"name\": \"now\", \"arguments\": []}".to_owned(),
    ] {
        assert!(!accepts(&grammar, &text), "{text}");
    }
    let open = call_grammar(CallFormat::Plain, Keys::AsWritten);
    for twice in [
        "{\"name\": \"book\", \"arguments\": {\"more\": 1, \"more\": 2}}",
        "{\"name\": \"book\", \"arguments\": {\"to\": \"Oslo\", \"to\": \"Rome\"}}",
        "{\"name\": \"book\", \"name\": \"book\", \"arguments\": {}}",
    ] {
        assert!(!accepts(&open, twice), "{twice}");
    }
    assert!(accepts(
        &open,
        &text("book", json!({"to": "Oslo", "more": 1}))
    ));
}

/// Invariant: A completed constrained completion parses and is valid under its schema.
#[test]
fn random_calls_are_valid() {
    for (format, before, after) in [
        (CallFormat::Hermes, "<tool_call>\n", "\n</tool_call>"),
        (CallFormat::Mistral, "[TOOL_CALLS] [", "]"),
        (CallFormat::Granite, "<|tool_call|>[", "]"),
    ] {
        let grammar = call_grammar(format, Keys::Declared);
        for seed in 0..20 {
            let text = walk(&grammar, seed, 30);
            let call = text
                .strip_prefix(before)
                .and_then(|call| call.strip_suffix(after));
            let call = tooltune_json::parse_unique(call.expect("a frame")).unwrap();
            let tool_names = ["get_weather", "book", "now"].map(Value::from);
            assert!(tool_names.contains(&call["name"]), "{text}");
            assert!(call["arguments"].is_object(), "{text}");
        }
    }
}

#[test]
fn invalid_tools_are_refused() {
    let refusal = |tools: Value| {
        let tools = tools.as_array().unwrap();
        let options = patient_options();
        Grammar::tool_call(&vocabulary(), tools, CallFormat::Plain, &options)
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(json!([])).starts_with("no tool is given"));
    assert!(refusal(json!([{"parameters": {}}])).starts_with("tools[0] has no name"));
    assert!(
        refusal(json!([{"name": "a"}, {"name": "a"}])).starts_with("tools[1] has the same name")
    );
    let refused = refusal(json!([{"name": "a"}, {"name": "b", "parameters": {"not": {}}}]));
    assert!(
        refused.starts_with("tools[1] (b): ") && refused.contains("/not "),
        "{refused}"
    );
}
