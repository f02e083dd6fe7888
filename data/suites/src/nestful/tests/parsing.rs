//! Valid and invalid completions of every family.

use proptest::prelude::*;
use tooltune_json::python::{dumps, python_repr};

use super::*;

const ONE: &str = r#"{"name": "add", "label": "$var_1", "arguments": {"arg_0": 1, "arg_1": 2}}"#;

/// Names of the calls, or `None` for an error.
fn read(parser: Parser, completion: &str) -> Option<Vec<String>> {
    let parsed = parser.parse(completion);
    assert!(!parsed.is_error || parsed.calls.is_empty());
    let name = |call: &PyValue| python_repr(call.get("name").unwrap_or(call));
    (!parsed.is_error).then(|| parsed.calls.iter().map(name).collect())
}

fn adds(n: usize) -> Option<Vec<String>> {
    Some(vec!["'add'".to_owned(); n])
}

#[test]
fn list_parsers_read_a_list_and_no_parser_reads_prose() {
    let list = format!(" [{ONE}, {ONE}]\n");
    for parser in [
        Parser::JsonList,
        Parser::Granite31,
        Parser::Llama,
        Parser::Hammer,
    ] {
        assert_eq!(read(parser, &list), adds(2), "{parser:?}");
        for not_parsed in [
            format!("Here: {list}"),
            format!("{list} Done."),
            list.replace('"', "'"),
            format!("[{ONE},]"),
        ] {
            assert_eq!(read(parser, &not_parsed), None, "{parser:?} {not_parsed}");
        }
    }
    assert_eq!(read(Parser::JsonList, ""), None);
    assert_eq!(read(Parser::Llama, ""), adds(0), "both brackets are added");
    assert_eq!(read(Parser::JsonList, ONE), None);
    assert_eq!(read(Parser::JsonList, "[]"), adds(0));
    assert_eq!(
        read(Parser::JsonList, "[1, NaN]"),
        Some(vec!["1".into(), "nan".into()])
    );
}

#[test]
fn each_family_removes_its_own_markers() {
    let rows = [
        (Parser::Granite31, format!("<|tool_call|>[{ONE}]"), adds(1)),
        (Parser::Granite31, format!("<tool_call>[{ONE}]"), adds(1)),
        (Parser::JsonList, format!("<|tool_call|>[{ONE}]"), None),
        (Parser::Llama, ONE.to_owned(), adds(1)),
        (Parser::Llama, format!("{ONE}, {ONE}"), adds(2)),
        (Parser::Llama, format!("[{ONE}"), adds(1)),
        (Parser::Llama, format!("[{ONE}]'"), adds(1)),
        (Parser::Llama, format!("[{ONE}]<|eom_id|>"), adds(1)),
        (Parser::Llama, "[{\"name\": \"add\"".to_owned(), None),
        (Parser::Hammer, format!("```\n[{ONE}]\n```"), adds(1)),
        (Parser::Hammer, format!("```json\n[{ONE}]\n```"), None),
        (Parser::Hammer, "[]".to_owned(), None),
        (
            Parser::Xlam,
            format!("{{\"tool_calls\": [{ONE}]}}"),
            adds(1),
        ),
        (
            Parser::Xlam,
            format!("[BEGIN OF ANSWER]{{\"tool_calls\": [{ONE}]}}"),
            adds(1),
        ),
        (Parser::Xlam, "{\"tool_calls\": []}".to_owned(), adds(0)),
        (Parser::Xlam, format!("[{ONE}]"), None),
        (Parser::Xlam, format!("{{\"calls\": [{ONE}]}}"), None),
    ];
    for (parser, completion, expected) in rows {
        assert_eq!(
            read(parser, &completion),
            expected,
            "{parser:?} {completion}"
        );
    }
}

#[test]
fn the_hermes_parser_skips_invalid_blocks_and_needs_one_call() {
    let tagged = |inside: &str| format!("<tool_call>\n{inside}\n</tool_call>");
    let (valid, invalid) = (tagged(ONE), tagged("{\"name\": \"add\", }"));
    assert_eq!(
        read(
            Parser::Hermes,
            &format!("Well: {valid}{invalid}{valid} end")
        ),
        adds(2)
    );
    assert_eq!(
        read(Parser::Hermes, &format!("tool_call\n{ONE}\n</tool_call>")),
        adds(1)
    );
    assert_eq!(read(Parser::Hermes, &invalid), None);
    assert_eq!(read(Parser::Hermes, ONE), None);
    assert_eq!(read(Parser::Hermes, "<tool_call>"), None);
}

#[test]
fn the_toolace_parser_reads_python_calls() {
    let text =
        r#"[add(arg_0=-1.5e-3, arg_1="it's"), geo.at(place=['a', (1,), {'k': None}], on=True)]"#;
    let parsed = Parser::ToolAce.parse(text);
    assert_eq!(
        parsed.calls.iter().map(python_repr).collect::<Vec<_>>(),
        [
            "{'name': 'add', 'arguments': {'arg_0': -0.0015, 'arg_1': \"it's\"}}",
            "{'name': 'geo.at', 'arguments': {'place': ['a', (1,), {'k': None}], 'on': True}}",
        ]
    );
    assert_eq!(read(Parser::ToolAce, "add(1, arg_1=2), add()"), adds(2));
    for not_parsed in [
        "",
        "[]",
        "[add(arg_0=1]",
        "add",
        "[add(arg_0=x)]",
        "Sure: add(arg_0=1)",
        "add(a='x",
    ] {
        assert_eq!(read(Parser::ToolAce, not_parsed), None, "{not_parsed}");
    }
}

#[test]
fn the_lenient_parser_finds_calls_anywhere_in_the_text() {
    let list = format!("[{ONE}, {ONE}]");
    let rows = [
        (format!("Sure! The calls [1]:\n{list}\nDone."), adds(2)),
        (format!("```json\n{list}\n```"), adds(2)),
        (format!("<think>maybe [{ONE}]</think>\n{list}"), adds(2)),
        (format!("[{ONE}]<think>or {list}"), adds(1)),
        (
            format!("{{\"thought\": \"x\", \"tool_calls\": {list}}}"),
            adds(2),
        ),
        (
            format!("<tool_call>{ONE}</tool_call> <tool_call>{list}</tool_call>"),
            adds(3),
        ),
        (format!("<tool_call>{list}"), adds(2)),
        (format!("{ONE}\n{ONE},{ONE} and {ONE}"), adds(3)),
        (
            format!("[{ONE}, {ONE}, {{\"name\": \"add\", \"argu"),
            adds(2),
        ),
        (format!("{{\"call\": {ONE}}}"), adds(1)),
        ("No call is needed: []".to_owned(), adds(0)),
        ("I cannot answer this.".to_owned(), None),
        ("[1, 2]".to_owned(), None),
        (list.replace('"', "'"), None),
        (String::new(), None),
    ];
    for (completion, expected) in rows {
        assert_eq!(read(Parser::Lenient, &completion), expected, "{completion}");
    }
}

#[test]
fn every_parser_is_found_by_its_name() {
    for (name, parser) in Parser::ALL {
        assert_eq!(Parser::from_name(name), Some(parser));
        assert_eq!(parser.name(), name);
    }
    assert_eq!(Parser::from_name("gpt"), None);
    for (family, parser) in [
        ("Hermes-2-Pro-Mistral-7B", Parser::Hermes),
        ("xLAM-8x7b-r", Parser::Xlam),
        ("Hammer2.0-7b", Parser::Hammer),
        ("ToolAce-8b", Parser::ToolAce),
        ("granite-3.1-8b-instruct", Parser::Granite31),
        ("LLaMa-3.1", Parser::Llama),
        ("Mistral-7B-Instruct-v0.3", Parser::JsonList),
        ("hermes", Parser::Hermes),
    ] {
        assert_eq!(parser_of_family(family), parser, "{family}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in r#"([\[\]{}()"',:=<>/ a-z0-9\\.$-]|tool_call|</think>|True|"name"){0,60}"#) {
        for (_, parser) in Parser::ALL {
            let parsed = parser.parse(&text);
            ground_calls(&parsed.calls);
            dag_statistics(&parsed.calls);
        }
    }

    #[test]
    fn calls_rendered_by_a_family_are_parsed_by_its_parser(first in -9999_i64..9999, second in -1e3..1e3) {
        let output = calls(&format!(
            r#"[{{"name": "add", "arguments": {{"arg_0": {first}, "arg_1": {second:?}}}}}]"#
        ));
        for (form, parser) in [
            (ExampleForm::List, Parser::JsonList),
            (ExampleForm::ToolCalls, Parser::Xlam),
            (ExampleForm::Tagged, Parser::Hermes),
            (ExampleForm::PythonCalls, Parser::ToolAce),
        ] {
            let parsed = parser.parse(&form.render(&output));
            prop_assert_eq!(dumps(&PyValue::List(parsed.calls)), dumps(&PyValue::List(output.clone())));
        }
    }
}
