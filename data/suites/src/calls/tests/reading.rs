//! Calls in the ways of the model families, and what is none.

use std::fs;
use std::path::{Path, PathBuf};

use tooltune_rows::text::{
    ChatTemplate, Conversation, GenerationPrompt, Message, Role, SpecialTokens, ToolCall,
};

use super::*;

fn read(text: &str) -> CallsAnswer {
    read_calls(text, &ToolSet::new(&tools()))
}

fn berth() -> WrittenCall {
    let arguments = json!({"ship": {"name": "Ada", "draught": 3.5}, "nights": 2, "powered": null});
    call("berth", arguments)
}

#[test]
fn every_family_is_read() {
    const BERTH: &str =
        r#"{"ship": {"name": "Ada", "draught": 3.5}, "nights": 2, "powered": null}"#;
    let one = format!(r#"{{"name": "berth", "arguments": {BERTH}}}"#);
    let llama = format!(r#"{{"name": "berth", "parameters": {BERTH}}}"#);
    for (dialect, text) in [
        (CallDialect::Json, one.clone()),
        (CallDialect::Json, llama.clone()),
        (CallDialect::Json, format!("<|python_tag|>{llama}")),
        (CallDialect::Json, format!("[{one}]")),
        (CallDialect::Json, format!("{{\"tool_calls\": [{one}]}}")),
        (
            CallDialect::Json,
            format!("I book it.\n```json\n{one}\n```"),
        ),
        (
            CallDialect::Json,
            format!("{{\"type\": \"function\", \"function\": {one}}}"),
        ),
        (
            CallDialect::Hermes,
            format!("<tool_call>\n{one}\n</tool_call>"),
        ),
        (CallDialect::Hermes, format!("I book it.\n<tool_call>{one}")),
        (
            CallDialect::Hermes,
            format!("<think>\nA {{\"name\"</think>\n<tool_call>[{one}]</tool_call>"),
        ),
        (CallDialect::Mistral, format!("[TOOL_CALLS] [{one}]")),
        (
            CallDialect::Mistral,
            format!("[TOOL_CALLS]berth[ARGS]{BERTH}"),
        ),
        (
            CallDialect::Mistral,
            format!("[TOOL_CALLS]berth[CALL_ID]a1b2c3d4e[ARGS]{BERTH}"),
        ),
        (CallDialect::Mistral, format!("[TOOL_CALLS]berth{BERTH}")),
        (CallDialect::Granite, format!("<|tool_call|>[{one}]")),
        (
            CallDialect::Granite,
            format!("<|tool_call|>[{one}]<|/tool_call|>"),
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
            ..CallsAnswer::of_calls(vec![berth()])
        };
        assert_eq!(read(&text), answer, "{text}");
    }
}

#[test]
fn several_calls_are_read_in_order() {
    let one = |port: &str| format!(r#"{{"name": "tide", "arguments": {{"port": "{port}"}}}}"#);
    let (rye, hull) = (one("Rye"), one("Hull"));
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
        assert_eq!(answer.calls, [tide("Rye"), tide("Hull")], "{text}");
        assert!(answer.malformed.is_empty(), "{text}");
    }
}

#[test]
fn what_is_written_as_text_has_the_type_of_its_argument() {
    let one = |port: &str, days: &str| {
        format!(
            "<function=tide><parameter=port>\n{port}\n</parameter><parameter=days>\n{days}\n\
             </parameter></function>"
        )
    };
    let days = |answer: &CallsAnswer| answer.calls[0].arguments["days"].clone();
    let port = |answer: &CallsAnswer| answer.calls[0].arguments["port"].clone();
    assert_eq!(port(&read(&one("7", "3"))), "7");
    assert_eq!(port(&read(&one("a\nb", "3"))), "a\nb");
    assert_eq!(days(&read(&one("7", "3"))), 3);
    assert_eq!(days(&read(&one("7", "three"))), "three");
}

#[test]
fn what_begins_as_a_call_and_is_none_is_malformed_with_its_reason() {
    for (text, reason) in [
        ("<tool_call>\n{\"name\": \"tide\"", "a call is no JSON: "),
        ("<tool_call></tool_call>", "a call is empty"),
        ("<tool_call>tide please</tool_call>", "a call is no JSON: "),
        (
            "<tool_call>{\"name\": \"tide\"}</tool_call>",
            "the call of tide has no arguments",
        ),
        (
            "<tool_call>{\"arguments\": {}}</tool_call>",
            "a call has no name",
        ),
        ("<tool_call>[3]</tool_call>", "a call is no JSON object"),
        (
            "{\"name\": \"tide\", \"arguments\": \"{}\"}",
            "the arguments of the call of tide are a text, not a JSON object",
        ),
        (
            "{\"name\": \"tide\", \"arguments\": [1]}",
            "the arguments of the call of tide are not a JSON object",
        ),
        (
            "{'name': 'tide', 'arguments': {}} \"name\" \"arguments\"",
            "a call is no JSON: ",
        ),
        (
            "{\"name\": \"tide\", \"arguments\": {\"port\": \"Ry",
            "a call is no JSON: ",
        ),
        (
            "[{\"name\": \"tide\", \"arguments\": {}}, ",
            "the list of calls is no JSON: it breaks off",
        ),
        (
            "{\"name\": \"tide\", \"arguments\": {}}\n{\"name\": ",
            "a call is no JSON: ",
        ),
        ("[TOOL_CALLS] tide", "a call has no arguments"),
        ("[TOOL_CALLS]tide[ARGS]{\"port\"", "a call is no JSON: "),
        (
            "[tide(\"Rye\")]",
            "this is no list of Python's calls with arguments by name",
        ),
        (
            "[tide(port=Rye)]",
            "this is no list of Python's calls with arguments by name",
        ),
        (
            "<function=tide>{\"port\": \"Rye\"",
            "the call of tide does not end",
        ),
        (
            "<function=tide><parameter=port>Rye</function>",
            "the argument port of the call of tide",
        ),
        (
            "<tool_call>tide<arg_key>port</arg_key></tool_call>",
            "an argument of the call of tide",
        ),
    ] {
        let answer = read(text);
        let first = answer.malformed.first().map_or("none", String::as_str);
        assert!(first.starts_with(reason), "{text}: {first}");
        assert_eq!(answer.malformed.len(), 1, "{text}");
    }
}

#[test]
fn a_text_is_no_call() {
    for text in [
        "",
        "Low water is at six.",
        "Use {braces} and [1, 2].",
        "{\"port\": \"Rye\"}",
        "[1, 2, 3]",
        "{\"name\": \"Ada\"}",
        "<think>I could call {\"name\": \"tide\", \"arguments\": {}}</think> At six.",
        "[see (1)]",
    ] {
        assert_eq!(read(text), CallsAnswer::default(), "{text}");
    }
}

#[test]
fn answers_without_end_are_read_within_their_budget() {
    let many = "{\"name\": \"tide\", \"arguments\": {}}".repeat(MAX_CALLS + 1);
    let answer = read(&many);
    assert_eq!(answer.calls.len(), MAX_CALLS);
    assert_eq!(
        answer.malformed,
        ["there are 257 calls; an answer may have 256"]
    );
    let long = " ".repeat(MAX_TEXT_BYTES + 1);
    assert_eq!(
        read(&long).malformed,
        ["the answer has 1048577 bytes; 1048576 are read"]
    );
    assert!(read(&"[".repeat(MAX_TEXT_BYTES)).malformed.is_empty());
    let _ = read(&"<tool_call>".repeat(50_000));
    let _ = read(&"{\"name\": \"tide\", \"arguments\": {\"a\":".repeat(20_000));
}

#[test]
fn calls_that_a_server_has_read_have_their_arguments_as_texts() {
    let answer = CallsAnswer::of_server(&[
        json!({"id": "1", "type": "function", "function":
            {"name": "tide", "arguments": "{\"port\": \"Rye\"}"}}),
        json!({"function": {"name": "tide", "arguments": ""}}),
        json!({"function": {"name": "tide", "arguments": "{"}}),
        json!({"function": {"name": "tide", "arguments": {"port": "Hull"}}}),
    ]);
    let expected = [tide("Rye"), call("tide", json!({})), tide("Hull")];
    assert_eq!(answer.calls, expected);
    assert_eq!(answer.malformed.len(), 1);
    assert!(answer.malformed[0].starts_with("the arguments of a call are no JSON: "));
}

#[test]
fn an_answer_in_another_way_than_the_template_writes_is_malformed_where_that_is_asked_for() {
    let text = "[tide(port='Rye')]";
    let held = read(text).held_to(CallDialect::Hermes);
    assert!(held.calls.is_empty());
    assert_eq!(
        held.malformed,
        ["calls are written as python, where the chat template writes hermes"]
    );
    assert_eq!(read(text).held_to(CallDialect::Python), read(text));
    assert_eq!(
        read("At six.").held_to(CallDialect::Python),
        CallsAnswer::default()
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn what_templates_write_is_read_as_the_calls_that_they_were_given() {
    let templates = root().join("tests/fixtures/chat_templates/templates");
    let calls = [berth(), tide("Rye\n\"x\"")];
    for (name, dialect, n_calls) in [
        ("hermes", CallDialect::Hermes, 2),
        ("qwen2_5", CallDialect::Hermes, 2),
        ("qwen3", CallDialect::Hermes, 2),
        ("mistral_v3", CallDialect::Mistral, 2),
        ("llama3_1", CallDialect::Json, 1),
        ("llama3_2", CallDialect::Json, 1),
        (
            "../../../../data/rows/src/text/chat_templates/chatml-tools",
            CallDialect::Hermes,
            2,
        ),
    ] {
        let path = templates.join(format!("{name}.jinja"));
        let source = fs::read_to_string(&path).expect("a template");
        let template = ChatTemplate::new(&source, SpecialTokens::default()).expect("a template");
        let tool_call = |call: &WrittenCall| ToolCall {
            id: Some("a1b2c3d4e".to_owned()),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            derived: std::collections::BTreeSet::default(),
        };
        let answer = Message {
            content: None,
            tool_calls: calls[..n_calls].iter().map(tool_call).collect(),
            ..Message::new(Role::Assistant, "")
        };
        let conversation = Conversation {
            tools: Some(tools()),
            ..Conversation::new(vec![Message::new(Role::User, "Book it."), answer])
        };
        let text = template.render(&conversation, GenerationPrompt::Omit);
        let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
        let answer = text.rsplit_once("Book it.").expect("the question").1;
        let found = read(answer);
        assert_eq!(found.calls, calls[..n_calls], "{name}: {answer}");
        assert_eq!(found.dialect, Some(dialect), "{name}: {answer}");
        assert!(found.malformed.is_empty(), "{name}: {found:?}");
    }
}
