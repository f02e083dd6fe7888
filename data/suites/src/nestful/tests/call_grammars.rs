//! Checks that the parser of a family accepts everything that its constraint allows.

use std::path::Path;
use std::sync::LazyLock;

use tooltune_grammar::{Grammar, GrammarOptions, Vocabulary};
use tooltune_rows::text::Tokenizer;

use super::*;

/// Tools with a bare map of arithmetic parameters, a schema with two parameters, and one with four.
const ROW: &str = r#"{"sample_id": "s", "input": "q", "gold_answer": 1, "tools": [
    {"name": "add", "parameters": {"arg_0": {"type": "int or float"}, "arg_1": {"type": "list of float"}},
     "output_parameters": {"result": {"type": "float"}}},
    {"name": "nth", "parameters": {"type": "object", "properties": {
        "k": {"type": "integer", "description": "which"}, "nums": {"type": "array", "items": {"type": "number"}}},
        "required": ["k", "nums"]}, "output_parameters": {"output_0": {"type": "number"}}},
    {"name": "four", "parameters": {"type": "object", "properties": {
        "a": {"type": "boolean"}, "b": {"type": "string"}, "c": {"enum": ["x", "y"]}, "d": {"type": "thing"}}},
     "output_parameters": {"output_0": {}}}],
    "output": [{"name": "add", "label": "$var_1", "arguments": {}}]}"#;

fn row() -> NestfulRow {
    NestfulRow::new(&loads(ROW).unwrap()).unwrap()
}

fn vocabulary() -> Vocabulary {
    static BUILT: LazyLock<Vocabulary> = LazyLock::new(|| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let tokenizer = Tokenizer::from_file(&fixtures.join("tiny_tokenizer/tokenizer.json"));
        let tokenizer = tokenizer.unwrap();
        let stop = tokenizer.token_to_id("<|im_end|>").unwrap();
        Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &[stop]).unwrap()
    });
    BUILT.clone()
}

fn constrained() -> impl Iterator<Item = (Parser, Grammar)> {
    let grammar_of = |(_, parser): (&str, Parser)| {
        let options = GrammarOptions {
            forbidden_substrings: parser
                .stop_strings()
                .iter()
                .map(|text| (*text).to_owned())
                .collect(),
            ..GrammarOptions::default()
        };
        let format = parser.call_format()?;
        let grammar = Grammar::tool_call(&vocabulary(), &row().call_tools(), format, &options);
        Some((parser, grammar.unwrap()))
    };
    Parser::ALL.into_iter().filter_map(grammar_of)
}

/// Consumes a text byte by byte; `false` if the grammar rejects a byte.
fn writes(grammar: &Grammar, text: &str) -> bool {
    let vocabulary = grammar.vocabulary();
    let byte_id = |byte: u8| {
        let ids = 0..u32::try_from(vocabulary.n_logits()).unwrap();
        ids.into_iter()
            .find(|&id| vocabulary.bytes(id) == [byte])
            .unwrap()
    };
    let mut constraint = grammar.constraint();
    text.bytes()
        .all(|byte| constraint.consume(byte_id(byte)).is_ok())
        && constraint.is_complete().unwrap()
}

/// A list of calls in a family's notation.
fn completion_of(parser: Parser, calls: &[&str]) -> String {
    let list = format!("[{}]", calls.join(", "));
    match parser {
        Parser::Xlam => format!("{{\"tool_calls\": {list}}}"),
        Parser::Granite31 => format!("<|tool_call|>{list}"),
        Parser::Hermes => {
            let tagged = calls
                .iter()
                .map(|call| format!("<tool_call> {call} </tool_call>"));
            tagged.collect::<Vec<_>>().join("\n")
        }
        _ => list,
    }
}

#[test]
fn grammars_accept_only_typed_calls_of_the_offered_tools() {
    let rows = [
        (
            r#"{"name": "add", "label": "$var_1", "arguments": {"arg_0": 1, "arg_1": [2.5, "$var_1.result$"]}}"#,
            true,
        ),
        (
            r#"{"name": "add", "label": "$var_1", "arguments": {"arg_0": "$var_0.result$", "arg_1": "$var3.output_0$"}}"#,
            true,
        ),
        (
            r#"{"name": "nth", "arguments": {"nums": [1], "k": 0}, "label": "$var2"}"#,
            true,
        ),
        (
            r#"{"name": "nth", "label": "$var2", "arguments": {"k": "$var1.output_0$", "nums": []}}"#,
            true,
        ),
        (
            r#"{"name": "four", "label": "$var2", "arguments": {"d": {"e": null}, "a": true, "c": "x"}}"#,
            true,
        ),
        (
            r#"{"name": "add", "label": "$var_1", "arguments": {"arg_0": "one"}}"#,
            false,
        ),
        (
            r#"{"name": "add", "label": "$var_1", "arguments": {"arg_0": "$var_1.sum$"}}"#,
            false,
        ),
        (
            r#"{"name": "add", "label": "$var_1", "arguments": {"left": 1}}"#,
            false,
        ),
        (
            r#"{"name": "nth", "label": "$var_1", "arguments": {"k": 1}}"#,
            false,
        ),
        (
            r#"{"name": "nth", "label": "$var_1", "arguments": {"k": 1.5, "nums": []}}"#,
            false,
        ),
        (
            r#"{"name": "four", "label": "$var_1", "arguments": {"c": "z"}}"#,
            false,
        ),
        (
            r#"{"name": "sub", "label": "$var_1", "arguments": {}}"#,
            false,
        ),
        (
            r#"{"name": "add", "label": "first", "arguments": {}}"#,
            false,
        ),
        (r#"{"name": "add", "arguments": {}}"#, false),
    ];
    for (parser, grammar) in constrained() {
        for (call, is_allowed) in rows {
            for calls in [&[call][..], &[call, call]] {
                let text = completion_of(parser, calls);
                assert_eq!(writes(&grammar, &text), is_allowed, "{parser:?}: {text}");
                let n_read = parser.parse(&text).calls.len();
                assert_eq!(n_read, calls.len(), "{parser:?}: {text}");
            }
        }
        assert!(!writes(&grammar, &completion_of(parser, &[])), "{parser:?}");
    }
}

#[test]
fn no_grammar_allows_a_stop_string_inside_a_string() {
    let can_write = |text: &str| {
        format!(r#"{{"name": "four", "label": "$var1", "arguments": {{"b": "{text}"}}}}"#)
    };
    for (parser, grammar) in constrained() {
        let harmless = can_write("a < b </tool> </tool_calls> <thinking> </<tool_call>");
        assert!(
            writes(&grammar, &completion_of(parser, &[&harmless])),
            "{parser:?}"
        );
        for mark in ["</tool_call>", "</</tool_call>", "<think>", "</think>"] {
            let text = completion_of(parser, &[&can_write(mark)]);
            let is_cut = match parser {
                Parser::Hermes => mark.ends_with("</tool_call>"),
                Parser::Lenient => mark.ends_with("think>"),
                _ => false,
            };
            assert_eq!(writes(&grammar, &text), !is_cut, "{parser:?}: {text}");
        }
    }
}

/// Random tokens. After `n_free` tokens, closing tokens are preferred.
fn random_text(grammar: &Grammar, seed: u64, n_free: usize) -> String {
    let vocabulary = grammar.vocabulary();
    let mut constraint = grammar.constraint();
    let (mut text, mut random) = (Vec::new(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for n_tokens in 0..4_000 {
        let allowed: Vec<u32> = constraint.mask().unwrap().allowed().collect();
        if n_tokens >= n_free && constraint.is_complete().unwrap() {
            break;
        }
        let closes = |id: &&u32| {
            let bytes = vocabulary.bytes(**id);
            [b"\"", b"]", b"}"].iter().any(|closer| bytes == *closer)
        };
        // Marsaglia's xorshift of 2003.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let allowed_token = match allowed.iter().find(closes) {
            Some(closer) if n_tokens >= n_free => *closer,
            _ => allowed[usize::try_from(random % allowed.len() as u64).unwrap()],
        };
        constraint.consume(allowed_token).unwrap();
        if constraint.is_ended() {
            break;
        }
        text.extend_from_slice(vocabulary.bytes(allowed_token));
    }
    assert!(constraint.is_complete().unwrap(), "no end");
    String::from_utf8(text).unwrap()
}

#[test]
fn constrained_random_tokens_parse_without_an_error() {
    let mut n_several = 0;
    for (parser, grammar) in constrained() {
        for seed in 1..=40 {
            let text = random_text(&grammar, seed, [0, 15, 60, 150][seed as usize % 4]);
            let parsed = parser.parse(&text);
            assert!(
                !parsed.is_error && !parsed.calls.is_empty(),
                "{parser:?}: {text}"
            );
            n_several += usize::from(parsed.calls.len() > 1);
            if parser == Parser::Hermes {
                assert_eq!(
                    parsed.calls.len(),
                    text.matches("</tool_call>").count(),
                    "{text}"
                );
            }
            for call in &parsed.calls {
                let name = call
                    .get("name")
                    .and_then(PyValue::as_text)
                    .unwrap_or_default();
                assert!(["add", "nth", "four"].contains(&name), "{parser:?}: {text}");
                assert!(call.get("label").is_some(), "{parser:?}: {text}");
                assert!(call.get("arguments").is_some(), "{parser:?}: {text}");
            }
        }
    }
    assert!(n_several > 10, "{n_several}");
}
