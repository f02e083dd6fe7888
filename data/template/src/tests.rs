//! Compares templates with the output of `transformers`, and checks the located spans.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::conversation::parse_messages;

mod hostile;
mod kwargs;
mod python;
mod rendering_checks;
mod turns;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/chat_templates"
    ))
    .join(name)
}

fn read_json(name: &str) -> Value {
    tooltune_json::parse(&fs::read_to_string(fixture(name)).unwrap()).unwrap()
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
        .with_kwargs(variables)
        .unwrap()
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

fn conversation_of(messages: Value) -> Conversation {
    conversation(&json!({ "messages": messages }))
}

fn inline(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

/// Puts every span of the given kinds in brackets.
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
                let expected_render = &expected[*name][case_name][what];
                let actual = template.render(&conversation, generation_prompt);
                let agrees = match (
                    &actual,
                    expected_render["text"].as_str(),
                    expected_render["error"].as_str(),
                ) {
                    (Ok(text), Some(expected_render), _) => text == expected_render,
                    (
                        Err(
                            TemplateError::TemplateRaised { message }
                            | TemplateError::TemplateRaisedAtTools { message, .. },
                        ),
                        _,
                        Some(expected_render),
                    ) => message == expected_render,
                    (Err(TemplateError::TemplateFailed { .. }), _, Some(expected_render)) => {
                        expected_render.contains("None")
                    }
                    (Err(TemplateError::ToolCallsNotRendered { .. }), text, error) => text
                        .or(error)
                        .is_some_and(|expected_render| expected_render.contains("None")),
                    (
                        Err(TemplateError::NonStringOutput { kind, .. }),
                        Some(expected_render),
                        _,
                    ) => kind == "none" && expected_render.contains("None"),
                    _ => false,
                };
                if !agrees {
                    differing.push(format!(
                        "{name}/{case_name}/{what}:\n{actual:#?}\n{expected_render:#?}"
                    ));
                }
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
}

#[test]
fn templates_of_the_chatml_families_render_as_transformers_does() {
    check_against_transformers(&["hermes", "smollm2", "qwen2_5", "qwen2_5_training", "qwen3"]);
}

/// Invariant: Chat templates render as in transformers.
#[test]
fn templates_of_the_llama_families_render_as_transformers_does() {
    check_against_transformers(&["llama2", "llama3", "llama3_1", "llama3_2", "vicuna"]);
}

#[test]
fn mistrals_template_renders_as_transformers_does() {
    check_against_transformers(&["mistral_v3"]);
}

/// Invariant: Chat templates render as in transformers.
#[test]
fn every_construct_where_engines_differ_renders_as_transformers_does() {
    check_against_transformers(&["semantics"]);
}

const FAMILIES: [&str; 11] = [
    "hermes",
    "llama2",
    "llama3",
    "llama3_1",
    "llama3_2",
    "mistral_v3",
    "qwen2_5",
    "qwen2_5_training",
    "qwen3",
    "smollm2",
    "vicuna",
];

fn case(name: &str) -> Conversation {
    conversation(&read_json("cases.json")["conversations"][name])
}

#[test]
fn the_answer_begins_where_the_generation_prompt_ends_in_every_family() {
    let cases = read_json("cases.json");
    let (mut n_checked, mut n_without_reasoning) = (0, 0);
    for name in FAMILIES {
        let template = template(name);
        for (case_name, case) in cases["conversations"].as_object().unwrap() {
            let conversation = conversation(case);
            let Ok(text) = template.render(&conversation, GenerationPrompt::Omit) else {
                continue;
            };
            let rendered = match template.render_with_spans(&conversation, Turns::Completion) {
                Err(TemplateError::MessageNotRendered { .. }) => {
                    assert_renders_only_a_part(name, case_name);
                    continue;
                }
                Err(TemplateError::ToolsNotRendered { .. }) => {
                    assert!(WITHOUT_TOOLS.contains(&name), "{name}/{case_name}");
                    assert!(case["tools"].is_array(), "{name}/{case_name}");
                    continue;
                }
                rendered => rendered.unwrap_or_else(|error| panic!("{name}/{case_name}: {error}")),
            };
            assert_eq!(rendered.text, text, "{name}/{case_name}");
            // A turn whose reasoning the template drops is not trained on.
            n_without_reasoning += rendered
                .without_reasoning
                .iter()
                .filter(|message| **message >= conversation.completion_start)
                .count();
            for turn in rendered.turns {
                let mut prompt = template.render_prompt(&conversation).unwrap();
                if turn.begins == TurnBegin::EmptyThought {
                    assert_eq!(name, "qwen3");
                    prompt.push_str("<think>\n\n</think>\n\n");
                }
                assert_eq!(text[..turn.start], prompt, "{name}/{case_name}");
                n_checked += 1;
            }
        }
    }
    assert_eq!((n_checked, n_without_reasoning), (124, 10));
}

const WITHOUT_TOOLS: [&str; 4] = ["llama2", "llama3", "smollm2", "vicuna"];

/// Llama's and Vicuna's templates silently drop either the calls or the text next to a call.
fn assert_renders_only_a_part(template: &str, case: &str) {
    let drops_calls = WITHOUT_TOOLS.contains(&template);
    let drops_text = template.starts_with("llama3_") && case == "call_with_content";
    assert!(
        drops_text || drops_calls && case == "call_with_content",
        "{template}/{case}"
    );
}

#[test]
fn every_turn_is_located_if_every_turn_is_trained_on() {
    let rendered = template("smollm2")
        .render_with_spans(&case("multi_turn"), Turns::All)
        .unwrap();
    assert_eq!(
        bracketed(&rendered, &[SpanKind::AssistantTurn]),
        "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
         <|im_start|>assistant\n[Hello.<|im_end|>\n]<|im_start|>user\nSame again<|im_end|>\n\
         <|im_start|>assistant\n[Hello.<|im_end|>\n]<|im_start|>user\nSame again<|im_end|>\n\
         <|im_start|>assistant\n[Good bye.<|im_end|>\n]"
    );
}

#[test]
fn only_the_last_turn_is_located_if_only_it_is_trained_on() {
    let rendered = template("llama2")
        .render_with_spans(&case("multi_turn"), Turns::Last)
        .unwrap();
    assert_eq!(
        bracketed(&rendered, &[SpanKind::AssistantTurn]),
        "<s>[INST] <<SYS>>\nYou are terse.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Same again \
         [/INST] Hello. </s><s>[INST] Same again [/INST][ Good bye. </s>]"
    );
}

#[test]
fn content_that_a_template_trims_keeps_its_span() {
    let rendered = template("llama3")
        .render_with_spans(&case("white_space"), Turns::Completion)
        .unwrap();
    assert_eq!(
        bracketed(&rendered, &[SpanKind::AssistantContent]),
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\ntwo spaces<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n[indented\n\tx]<|eot_id|>"
    );
}

#[test]
fn argument_values_and_keys_are_located_inside_their_quotes() {
    let rendered = template("qwen2_5")
        .render_with_spans(&case("hard_arguments"), Turns::Completion)
        .unwrap();
    let (_, turn) = rendered.text.split_at(rendered.turns[0].start);
    let bracketed_turn = |kind| {
        let all = bracketed(&rendered, &[kind]);
        all[all.len() - turn.len() - 2 * count(&rendered, kind)..].to_owned()
    };
    assert_eq!(
        bracketed_turn(SpanKind::ToolCallArgumentValue),
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"[Zürich \\\"old\\\" <town> & \
         'new'\\n東京 🗼]\", \"days\": [3], \"ratio\": [0.5], \"exact\": [true], \"none\": [null], \
         \"empty\": \"\", \"options\": {\"units\": \"[metric]\", \"tags\": [\"[a]\", \"[b\\\\c]\", [7], []], \
         \"more\": {}}}}\n</tool_call><|im_end|>\n"
    );
    assert_eq!(
        bracketed_turn(SpanKind::ToolCallArgumentKey),
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"[city]\": \"Zürich \\\"old\\\" <town> & \
         'new'\\n東京 🗼\", \"[days]\": 3, \"[ratio]\": 0.5, \"[exact]\": true, \"[none]\": null, \
         \"[empty]\": \"\", \"[options]\": {\"[units]\": \"metric\", \"[tags]\": [\"a\", \"b\\\\c\", 7, []], \
         \"[more]\": {}}}}\n</tool_call><|im_end|>\n"
    );
    assert_eq!(count(&rendered, SpanKind::ToolCallName), 1);
}

fn count(rendered: &RenderedText, kind: SpanKind) -> usize {
    rendered
        .spans
        .iter()
        .filter(|span| span.kind == kind)
        .count()
}

#[test]
fn argument_values_are_located_in_mistral_and_llama_calls() {
    for (name, call) in [
        (
            "mistral_v3",
            "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"«Rome»\"}, \"id\": \"abcdef123\"}]</s>",
        ),
        (
            "llama3_1",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"«Rome»\"}}<|eot_id|>",
        ),
    ] {
        let rendered = template(name)
            .render_with_spans(&case("tool_call"), Turns::Completion)
            .unwrap();
        let values: Vec<&Span> = rendered
            .spans
            .iter()
            .filter(|span| span.kind == SpanKind::ToolCallArgumentValue)
            .collect();
        let [value] = values[..] else {
            panic!("{name}: {values:?}")
        };
        let with_brackets = format!(
            "{}«{}»{}",
            &rendered.text[rendered.turns[0].start..value.start],
            &rendered.text[value.start..value.end],
            &rendered.text[value.end..]
        );
        assert_eq!(with_brackets, call);
    }
}

#[test]
fn earlier_turns_are_located_although_mistral_moves_the_tools() {
    let rendered = template("mistral_v3")
        .render_with_spans(&case("tool_round"), Turns::All)
        .unwrap();
    let turns: Vec<&str> = rendered
        .turns
        .iter()
        .map(|turn| &rendered.text[turn.start..turn.end])
        .collect();
    assert_eq!(
        turns,
        [
            "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}, \"id\": \"abcdef123\"}]</s>",
            " Clear, 21.5 °C.</s>",
            "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}, \"id\": \"zyxwvu987\"}]</s>",
            " Noon.</s>",
        ]
    );
}

#[test]
fn generation_tags_change_nothing_but_white_space_control() {
    let conversation = conversation_of(json!([{"role": "user", "content": "x"}]));
    for (source, text) in [
        ("a\n  {% generation %}\n b{% endgeneration %}\nc", "a\n bc"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        (
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}",
            "1",
        ),
    ] {
        let rendered = inline(source).render(&conversation, GenerationPrompt::Omit);
        assert_eq!(rendered.unwrap(), text, "{source}");
    }
}

#[test]
fn generation_tags_locate_a_turn_without_a_matching_prompt() {
    let source = "{% set users = messages|selectattr('role', 'equalto', 'user')|list %}\
                  {% for m in messages %}{% if m.role == 'user' %}{{ m.content }} of {{ users|length }}\n\
                  {% else %}A {% generation %}{{ m.content }}</s>{% endgeneration %}\n\n{% endif %}{% endfor %}\
                  {% if add_generation_prompt %}A {% endif %}";
    let conversation = conversation_of(json!([
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"},
    ]));
    let rendered = inline(source)
        .render_with_spans(&conversation, Turns::All)
        .unwrap();
    assert_eq!(
        bracketed(&rendered, &[SpanKind::AssistantTurn]),
        "one of 2\nA [two</s>\n]three of 2\nA [four</s>\n]"
    );
}

#[test]
fn a_prompt_that_the_training_text_does_not_continue_is_an_error() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}<model>{% endif %}";
    let conversation = conversation_of(json!([
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
    ]));
    for turns in [Turns::All, Turns::Last, Turns::Completion] {
        let rendered = inline(source).render_with_spans(&conversation, turns);
        assert!(
            matches!(
                rendered,
                Err(TemplateError::Turn(TurnError::PromptNotAPrefix {
                    message: 1
                }))
            ),
            "{rendered:?}"
        );
    }
}

#[test]
fn a_template_that_measures_content_still_gives_turns_and_reports_lost_spans() {
    let source = "{% for m in messages %}{{ m.role }} {{ m.content|length }} {{ m.content }};{% endfor %}\
                  {% if add_generation_prompt %}assistant {% endif %}";
    let conversation = conversation_of(json!([
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "seven"},
    ]));
    let rendered = inline(source)
        .render_with_spans(&conversation, Turns::Completion)
        .unwrap();
    assert_eq!(
        bracketed(&rendered, &[SpanKind::Completion]),
        "user 3 one;assistant [5 seven;]"
    );
    assert!(rendered.lost.contains(&SpanKind::AssistantContent));
}

#[test]
fn content_that_a_template_leaves_out_is_an_error() {
    let call = json!([{"function": {"name": "f", "arguments": {"a": 1}}}]);
    let conversation = conversation_of(json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "I call.", "tool_calls": call},
    ]));
    let rendered = template("llama3_1").render_with_spans(&conversation, Turns::Completion);
    assert!(
        matches!(
            rendered,
            Err(TemplateError::MessageNotRendered { message: 1 })
        ),
        "{rendered:?}"
    );
}

#[test]
fn marks_in_the_data_are_an_error() {
    for character in ['\u{10FF00}', '\u{10FF7F}'] {
        let conversation =
            conversation_of(json!([{"role": "user", "content": format!("a{character}b")}]));
        let rendered = template("smollm2").render(&conversation, GenerationPrompt::Add);
        assert!(
            matches!(rendered, Err(TemplateError::ReservedCharacter { character: found }) if found == character),
            "{rendered:?}"
        );
    }
}

#[test]
fn a_template_that_raises_fails_or_prints_a_list_gives_its_own_error() {
    let conversation = conversation_of(json!([{"role": "user", "content": "x"}]));
    let error = |source: &str| {
        inline(source)
            .render(&conversation, GenerationPrompt::Omit)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("{{ raise_exception('no ' ~ messages[0].role) }}"),
        "the chat template refuses the conversation: no user"
    );
    assert!(error("\n{{ 1 + 'x' }}").starts_with("chat template, line 2: invalid operation"));
    assert!(error("{{ messages }}").contains("prints a sequence"));
    assert!(error("{{ tools }}").contains("prints none"));
    assert!(error("{{ strftime_now('%Q') }}").contains("%Q"));
}

#[test]
fn a_template_that_does_not_compile_is_an_error_with_its_line() {
    let error = ChatTemplate::new("a\n{% for %}", SpecialTokens::default()).unwrap_err();
    assert!(
        matches!(error, TemplateError::TemplateSyntax { line: 2, .. }),
        "{error:?}"
    );
}

#[test]
fn the_hash_covers_the_source_as_given() {
    let made_by = read_json("made_by.json");
    for name in FAMILIES {
        assert_eq!(
            template(name).sha256(),
            made_by["sha256"][format!("templates/{name}.jinja")]
        );
    }
}

#[test]
fn two_combined_templates_render_as_they_do_separately() {
    let tools = Some(vec![json!({"name": "f"})]);
    for (default, tool_use) in [
        ("D", "T"),
        (
            "\n D {% set x = 1 %}{{ x }} \n  ",
            "\nT{{ tools | length }}\n",
        ),
        ("{%- if true %} D\n{%- endif -%}\n", "{#- c -#}\n T\r\n"),
        (
            "D{% macro m() %}d{% endmacro %}{{ m() }}\n\n",
            "{%- set tools = [] %}{% macro m() %}t{% endmacro %}{{ m() }}{{ tools }}",
        ),
    ] {
        let both = ChatTemplate::with_tool_use(default, tool_use, SpecialTokens::default());
        let both = both.unwrap();
        for (alone, tools) in [(default, None), (tool_use, tools.clone())] {
            let conversation = Conversation {
                tools,
                ..Conversation::new(Vec::new())
            };
            let render = |template: &ChatTemplate| {
                let text = template.render(&conversation, GenerationPrompt::Omit);
                text.map_err(|error| error.to_string())
            };
            assert_eq!(render(&both), render(&inline(alone)), "{alone:?}");
        }
        for changed in [(default, "T2"), ("D2", tool_use)] {
            let other = ChatTemplate::with_tool_use(changed.0, changed.1, SpecialTokens::default());
            assert_ne!(both.sha256(), other.unwrap().sha256());
        }
    }
}

#[test]
fn a_model_directory_gives_template_and_special_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let none = ChatTemplate::from_model_dir(dir.path()).unwrap_err();
    assert!(matches!(none, TemplateError::NoTemplate { .. }), "{none:?}");
    let config = json!({
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ bos_token }}"}],
        "bos_token": {"content": "<s>", "lstrip": false},
        "eos_token": "</s>",
    });
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let from_config = ChatTemplate::from_model_dir(dir.path()).unwrap();
    let text = |tools: Option<Vec<Value>>| {
        let conversation = Conversation {
            tools,
            ..Conversation::new(Vec::new())
        };
        from_config
            .render(&conversation, GenerationPrompt::Omit)
            .unwrap()
    };
    assert_eq!(text(None), "D<s>");
    assert_eq!(text(Some(vec![json!({"name": "f"})])), "T");
    assert_eq!(
        from_config.special_tokens().bos_token.as_deref(),
        Some("<s>")
    );
    assert_eq!(
        from_config.special_tokens().eos_token.as_deref(),
        Some("</s>")
    );
    fs::write(dir.path().join("chat_template.jinja"), "J").unwrap();
    assert_eq!(
        ChatTemplate::from_model_dir(dir.path()).unwrap().source(),
        "J"
    );
    fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    let tool_use_path = dir.path().join("additional_chat_templates/tool_use.jinja");
    fs::write(tool_use_path, "U").unwrap();
    let both = ChatTemplate::from_model_dir(dir.path()).unwrap();
    assert!(both.source().contains("}U{") && both.source().contains("}J{"));
    fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    let error = ChatTemplate::from_model_dir(dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("tokenizer_config.json"),
        "{error}"
    );
}
