//! Templates against what `transformers` renders, and the spans found in their texts.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::text::conversation::{Role, parse_messages};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/chat_templates"
    ))
    .join(name)
}

fn read_json(name: &str) -> Value {
    crate::json::parse(&fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    let source = fs::read_to_string(fixture(&format!("templates/{name}.jinja"))).unwrap();
    let special = &read_json("cases.json")["special_tokens"][name];
    let token = |key: &str| special[key].as_str().map(str::to_owned);
    let special = SpecialTokens {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        ..SpecialTokens::default()
    };
    let variables = match name {
        "semantics" => Map::from_iter([("custom".to_owned(), json!("given"))]),
        _ => Map::new(),
    };
    ChatTemplate::new(&source, special)
        .unwrap()
        .with_variables(variables)
        .with_clock(OffsetDateTime::from_unix_timestamp(1_721_984_707).unwrap())
}

fn conversation(case: &Value) -> Conversation {
    Conversation {
        tools: case
            .get("tools")
            .map(|tools| tools.as_array().unwrap().clone()),
        ..Conversation::new(parse_messages(&case["messages"], "messages").unwrap())
    }
}

fn of_messages(messages: Value) -> Conversation {
    conversation(&json!({ "messages": messages }))
}

fn inline(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

/// The text with every span of the given kinds in brackets.
fn bracketed(rendered: &RenderedText, kinds: &[SpanKind]) -> String {
    let mut borders: Vec<(usize, char)> = rendered
        .spans
        .iter()
        .filter(|span| kinds.contains(&span.kind))
        .flat_map(|span| [(span.start, '['), (span.end, ']')])
        .collect();
    borders.sort_by_key(|&(at, border)| (at, border == '['));
    let mut text = rendered.text.clone();
    for (at, border) in borders.into_iter().rev() {
        text.insert(at, border);
    }
    text
}

fn check_against_transformers(names: &[&str]) {
    let cases = read_json("cases.json");
    let expected = read_json("expected.json");
    let mut differing = Vec::new();
    for name in names {
        let template = template(name);
        for (case_name, case) in cases["conversations"].as_object().unwrap() {
            let conversation = conversation(case);
            for (what, generation_prompt) in [
                ("training", GenerationPrompt::Omit),
                ("prompt", GenerationPrompt::Add),
            ] {
                let wanted = &expected[*name][case_name][what];
                let got = template.render(&conversation, generation_prompt);
                let agrees = match (&got, wanted["text"].as_str(), wanted["error"].as_str()) {
                    (Ok(text), Some(wanted), _) => text == wanted,
                    (Err(DataError::TemplateRaised { message }), _, Some(wanted)) => {
                        message == wanted
                    }
                    (Err(DataError::TemplateFailed { .. }), _, Some(wanted)) => {
                        wanted.contains("None")
                    }
                    (Err(DataError::NonStringOutput { kind, .. }), Some(wanted), _) => {
                        kind == "none" && wanted.contains("None")
                    }
                    _ => false,
                };
                if !agrees {
                    differing.push(format!("{name}/{case_name}/{what}:\n{got:#?}\n{wanted:#?}"));
                }
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
}

#[test]
fn templates_of_the_chatml_families_render_as_transformers_does() {
    check_against_transformers(&["smollm2", "qwen2_5", "qwen2_5_training", "qwen3"]);
}

#[test]
fn templates_of_the_llama_families_render_as_transformers_does() {
    check_against_transformers(&["llama2", "llama3", "llama3_1", "llama3_2", "vicuna"]);
}

#[test]
fn mistrals_template_renders_as_transformers_does() {
    check_against_transformers(&["mistral_v3"]);
}

#[test]
fn every_construct_where_engines_differ_renders_as_transformers_does() {
    check_against_transformers(&["semantics"]);
}
