//! Calls in the notations of all model families, and texts that are not calls.

use super::*;

fn read(text: &str) -> CallsAnswer {
    read_calls(text, &ToolSet::new(&tools()))
}

fn berth_call() -> WrittenCall {
    let arguments = json!({"ship": {"name": "Ada", "draught": 3.5}, "nights": 2, "powered": null});
    call("berth", arguments)
}

#[test]
fn the_calls_of_every_model_family_are_parsed() {
    const BERTH: &str =
        r#"{"ship": {"name": "Ada", "draught": 3.5}, "nights": 2, "powered": null}"#;
    let one_call = format!(r#"{{"name": "berth", "arguments": {BERTH}}}"#);
    let llama = format!(r#"{{"name": "berth", "parameters": {BERTH}}}"#);
    for (dialect, text) in [
        (CallDialect::Json, one_call.clone()),
        (CallDialect::Json, llama.clone()),
        (CallDialect::Json, format!("<|python_tag|>{llama}")),
        (CallDialect::Json, format!("[{one_call}]")),
        (
            CallDialect::Json,
            format!("{{\"tool_calls\": [{one_call}]}}"),
        ),
        (
            CallDialect::Json,
            format!("I book it.\n```json\n{one_call}\n```"),
        ),
        (
            CallDialect::Json,
            format!("{{\"type\": \"function\", \"function\": {one_call}}}"),
        ),
        (
            CallDialect::Hermes,
            format!("<tool_call>\n{one_call}\n</tool_call>"),
        ),
        (
            CallDialect::Hermes,
            format!("I book it.\n<tool_call>{one_call}"),
        ),
        (
            CallDialect::Hermes,
            format!("<think>\nA {{\"name\"</think>\n<tool_call>[{one_call}]</tool_call>"),
        ),
        (CallDialect::Mistral, format!("[TOOL_CALLS] [{one_call}]")),
        (
            CallDialect::Mistral,
            format!("[TOOL_CALLS]berth[ARGS]{BERTH}"),
        ),
        (
            CallDialect::Mistral,
            format!("[TOOL_CALLS]berth[CALL_ID]a1b2c3d4e[ARGS]{BERTH}"),
        ),
        (CallDialect::Mistral, format!("[TOOL_CALLS]berth{BERTH}")),
        (CallDialect::Granite, format!("<|tool_call|>[{one_call}]")),
        (
            CallDialect::Granite,
            format!("<|tool_call|>[{one_call}]<|/tool_call|>"),
        ),
        (
            CallDialect::Function,
            format!("<function=berth>{BERTH}</function>"),
        ),
        (
            CallDialect::Function,
            "<tool_call>\n<function=berth>\n<parameter=ship>\n{\"name\": \"Ada\", \"draught\": \
             3.5}\n</parameter>\n<parameter=nights>\n2\n</parameter>\n<parameter=powered>\nNone\n\
             </parameter>\n</function>\n</tool_call>"
                .to_owned(),
        ),
        (
            CallDialect::Glm,
            "<tool_call>berth\n<arg_key>ship</arg_key>\n<arg_value>{\"name\": \"Ada\", \
             \"draught\": 3.5}</arg_value>\n<arg_key>nights</arg_key>\n<arg_value>2</arg_value>\n\
             <arg_key>powered</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"
                .to_owned(),
        ),
        (
            CallDialect::Python,
            "[berth(ship={'name': 'Ada', 'draught': 3.5}, nights=2, powered=None)]".to_owned(),
        ),
        (
            CallDialect::Python,
            "<|tool_call_start|>[berth(ship={\"name\": \"Ada\", \"draught\": 3.5}, nights=2, \
             powered=None)]<|tool_call_end|>Done."
                .to_owned(),
        ),
    ] {
        let answer = CallsAnswer {
            dialect: Some(dialect),
            ..CallsAnswer::from_calls(vec![berth_call()])
        };
        assert_eq!(read(&text), answer, "{text}");
    }
}

#[test]
fn several_calls_are_parsed_in_order() {
    let one_call = |port: &str| format!(r#"{{"name": "tide", "arguments": {{"port": "{port}"}}}}"#);
    let (rye, hull) = (one_call("Rye"), one_call("Hull"));
    for text in [
        format!("{rye}\n{hull}"),
        format!("{rye}; {hull}"),
        format!("[{rye}, {hull}]"),
        format!("<tool_call>{rye}</tool_call>\n<tool_call>{hull}</tool_call>"),
        format!("[TOOL_CALLS][{rye}, {hull}]"),
        "[TOOL_CALLS]tide[ARGS]{\"port\": \"Rye\"}[TOOL_CALLS]tide[ARGS]{\"port\": \"Hull\"}"
            .to_owned(),
        "[tide(port='Rye'), tide(port=\"Hull\")]".to_owned(),
        "<tool_call><function=tide><parameter=port>\nRye\n</parameter></function></tool_call>\
         <tool_call><function=tide><parameter=port>\nHull\n</parameter></function></tool_call>"
            .to_owned(),
    ] {
        let answer = read(&text);
        assert_eq!(
            answer.calls,
            [tide_call("Rye"), tide_call("Hull")],
            "{text}"
        );
        assert!(answer.malformed.is_empty(), "{text}");
    }
}

#[test]
fn an_argument_written_as_text_gets_the_type_of_its_schema() {
    let one_call = |port: &str, days: &str| {
        format!(
            "<function=tide><parameter=port>\n{port}\n</parameter><parameter=days>\n{days}\n\
             </parameter></function>"
        )
    };
    let days = |answer: &CallsAnswer| answer.calls[0].arguments["days"].clone();
    let port = |answer: &CallsAnswer| answer.calls[0].arguments["port"].clone();
    assert_eq!(port(&read(&one_call("7", "3"))), "7");
    assert_eq!(port(&read(&one_call("a\nb", "3"))), "a\nb");
    assert_eq!(days(&read(&one_call("7", "3"))), 3);
    assert_eq!(days(&read(&one_call("7", "three"))), "three");
}

#[test]
fn an_incomplete_call_is_malformed_with_a_reason() {
    for (text, reason) in [
        ("<tool_call>\n{\"name\": \"tide\"", "a call is not JSON: "),
        ("<tool_call></tool_call>", "a call is empty"),
        ("<tool_call>tide please</tool_call>", "a call is not JSON: "),
        (
            "<tool_call>{\"name\": \"tide\"}</tool_call>",
            "the call to tide has no arguments",
        ),
        (
            "<tool_call>{\"arguments\": {}}</tool_call>",
            "a call has no name",
        ),
        ("<tool_call>[3]</tool_call>", "a call is not a JSON object"),
        (
            "{\"name\": \"tide\", \"arguments\": \"{}\"}",
            "the arguments of the call to tide are a string, not a JSON object",
        ),
        (
            "{\"name\": \"tide\", \"arguments\": [1]}",
            "the arguments of the call to tide are not a JSON object",
        ),
        (
            "{'name': 'tide', 'arguments': {}} \"name\" \"arguments\"",
            "a call is not JSON: ",
        ),
        (
            "{\"name\": \"tide\", \"arguments\": {\"port\": \"Ry",
            "a call is not JSON: ",
        ),
        (
            "[{\"name\": \"tide\", \"arguments\": {}}, ",
            "the list of calls is not JSON: unexpected end",
        ),
        (
            "{\"name\": \"tide\", \"arguments\": {}}\n{\"name\": ",
            "a call is not JSON: ",
        ),
        ("[TOOL_CALLS] tide", "a call has no arguments"),
        ("[TOOL_CALLS]tide[ARGS]{\"port\"", "a call is not JSON: "),
        (
            "[tide(\"Rye\")]",
            "expected Python calls with keyword arguments",
        ),
        (
            "[tide(port=Rye)]",
            "expected Python calls with keyword arguments",
        ),
        (
            "<function=tide>{\"port\": \"Rye\"",
            "the call to tide is not terminated",
        ),
        (
            "<function=tide><parameter=port>Rye</function>",
            "the argument port of the call to tide",
        ),
        (
            "<tool_call>tide<arg_key>port</arg_key></tool_call>",
            "an argument of the call to tide",
        ),
    ] {
        let answer = read(text);
        let first_reason = answer.malformed.first().map_or("none", String::as_str);
        assert!(first_reason.starts_with(reason), "{text}: {first_reason}");
        assert_eq!(answer.malformed.len(), 1, "{text}");
    }
}

#[test]
fn plain_text_is_not_a_call() {
    for text in [
        "Low water is at six.",
        "Use {braces} and [1, 2].",
        "{\"port\": \"Rye\"}",
        "[1, 2, 3]",
        "{\"name\": \"Ada\"}",
        "<think>I could call {\"name\": \"tide\", \"arguments\": {}}</think> At six.",
        "[see (1)]",
        "<p>Use <code>f(x)</code>, <code>tide</code> or <code>tide(1)</code>.</p>",
        "Messages with to=functions.tide in their header are calls.",
        "{\"note\": \"write <tool_call>{} or <function=tide></function>\"}",
    ] {
        assert_eq!(read(text), CallsAnswer::default(), "{text}");
    }
}

#[test]
fn an_answer_without_visible_text_is_empty() {
    for text in [
        "",
        " \n",
        "<think>I could",
        "<think>At six.</think>\n",
        "At six.</think>",
        "[THINK]At six.[/THINK]",
    ] {
        let answer = read(text);
        assert_eq!(answer.end, AnswerEnd::Empty, "{text}");
        assert!(
            answer.calls.is_empty() && answer.malformed.is_empty(),
            "{text}"
        );
    }
    assert_eq!(read("<tool_call>{").end, AnswerEnd::Whole);
    assert_eq!(read("<think>So.</think>At six.").end, AnswerEnd::Whole);
}

#[test]
fn reasoning_is_removed_only_where_it_is_reasoning() {
    let tagged = |text: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"tide\", \"arguments\": {{\"port\": \"{text}\"}}}}\n</tool_call>"
        )
    };
    let rye = tagged("Rye");
    for (text, port) in [
        (format!("<think>{}</think>\n{rye}", tagged("Hull")), "Rye"),
        (format!("{}\n</think>\n{rye}", tagged("Hull")), "Rye"),
        (
            format!("I may write <tool_call> or [TOOL_CALLS].</think>{rye}"),
            "Rye",
        ),
        (format!("[THINK]{}[/THINK]{rye}", tagged("Hull")), "Rye"),
        (
            format!(
                "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>commentary \
                 to=functions.tide <|constrain|>json<|message|>{{\"port\": \"Rye\"}}<|call|>",
                tagged("Hull")
            ),
            "Rye",
        ),
        // The closing marker is part of an argument or of the text.
        (tagged("a </think> b"), "a </think> b"),
        (tagged("<think> b"), "<think> b"),
        (
            format!("<think>So.</think>The end </think> is text.\n{rye}"),
            "Rye",
        ),
        (format!("Write <think> first.\n{rye}"), "Rye"),
        ("[tide(port='a </think> b')]".to_owned(), "a </think> b"),
        (
            "{\"name\": \"tide\", \"parameters\": {\"port\": \"a </think> <tool_call>\"}}"
                .to_owned(),
            "a </think> <tool_call>",
        ),
    ] {
        let answer = read(&text);
        assert_eq!(answer.calls, [tide_call(port)], "{text}");
        assert!(answer.malformed.is_empty(), "{text}: {answer:?}");
    }
    // With unterminated reasoning, nothing is visible. A call cut off inside a string is not
    // reasoning.
    assert!(read(&format!("<think>\n{rye}")).calls.is_empty());
    let cut = read("<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"a </think> b");
    assert_eq!((cut.calls.len(), cut.malformed.len()), (0, 1));
}

#[test]
fn literals_are_parsed_as_in_python() {
    for (literal, value) in [
        (
            r#""a\u00e9\ud83d\udea2\U0001F6A2\x41""#,
            "aé\u{1f6a2}\u{1f6a2}A",
        ),
        (r#"'it\'s \"\/\d'"#, "it's \"\\/\\d"),
        (r#""\b\f\n\t""#, "\u{8}\u{c}\n\t"),
    ] {
        let answer = read(&format!("[tide(port={literal})]"));
        assert_eq!(answer.calls, [tide_call(value)], "{literal}");
    }
    for invalid in [r#""\u12""#, r#""\ud83d""#, r#""\xg0""#, "'a"] {
        let answer = read(&format!("[tide(port={invalid})]"));
        assert_eq!(answer.malformed.len(), 1, "{invalid}");
    }
}

#[test]
fn very_long_answers_are_parsed_within_a_budget() {
    let many_calls = "{\"name\": \"tide\", \"arguments\": {}}".repeat(MAX_CALLS + 1);
    let answer = read(&many_calls);
    assert_eq!(answer.calls.len(), MAX_CALLS);
    assert_eq!(answer.malformed, ["an answer may have at most 256 calls"]);
    let long = " ".repeat(MAX_TEXT_BYTES + 1);
    assert_eq!(
        read(&long).malformed,
        ["the answer has 1048577 bytes; at most 1048576 are parsed"]
    );
    assert!(read(&"[".repeat(MAX_TEXT_BYTES)).malformed.is_empty());
    let _ = read(&"<tool_call>".repeat(50_000));
    let _ = read(&"{\"name\": \"tide\", \"arguments\": {\"a\":".repeat(20_000));
}

#[test]
fn calls_parsed_by_a_server_have_their_arguments_as_json_strings() {
    let answer = CallsAnswer::from_server(&[
        json!({"id": "1", "type": "function", "function":
            {"name": "tide", "arguments": "{\"port\": \"Rye\"}"}}),
        json!({"function": {"name": "tide", "arguments": ""}}),
        json!({"function": {"name": "tide", "arguments": "{"}}),
        json!({"function": {"name": "tide", "arguments": {"port": "Hull"}}}),
    ]);
    let expected = [tide_call("Rye"), call("tide", json!({})), tide_call("Hull")];
    assert_eq!(answer.calls, expected);
    assert_eq!(answer.malformed.len(), 1);
    assert!(answer.malformed[0].starts_with("the arguments of a call are not JSON: "));
}
