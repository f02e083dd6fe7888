//! Reasoning that a template keeps, drops, or reads under a different name.

use serde_json::json;
use tooltune_template::{ChatTemplate, SpecialTokens};

use super::*;

fn fixture_template(name: &str) -> ChatTemplate {
    let path = fixtures().join(format!("chat_templates/templates/{name}.jinja"));
    let special = SpecialTokens {
        bos_token: Some("<|endoftext|>".to_owned()),
        eos_token: Some("<|im_end|>".to_owned()),
        ..SpecialTokens::default()
    };
    // The tiny tokenizer's only stop token ends the turns of all templates.
    let source = std::fs::read_to_string(path).unwrap();
    ChatTemplate::new(&source.replace("<|eot_id|>", "<|im_end|>"), special).unwrap()
}

fn conversation(messages: Value) -> Row {
    let messages = tooltune_template::conversation::parse_messages(&messages, "messages").unwrap();
    row(messages)
}

/// Two turns with reasoning in a field of this name.
fn two_thoughts(name: &str) -> Row {
    conversation(json!([
        {"role": "user", "content": "How deep is Northcove?"},
        {"role": "assistant", name: "First thought.", "content": "7 metres."},
        {"role": "user", "content": "And Southcove?"},
        {"role": "assistant", name: "Second thought.", "content": "9 metres."},
    ]))
}

fn keeping(on_lost_reasoning: OnLostReasoning) -> PrepareOptions {
    let mut options = options(&tokenizer());
    options.mask.train_on = TrainOn::Assistant;
    options.mask.on_lost_reasoning = on_lost_reasoning;
    options
}

fn prepare_row(
    row: &Row,
    template: &ChatTemplate,
    options: &PrepareOptions,
) -> Result<Prepared, DataError> {
    prepare(
        [Ok(row.clone())].into_iter(),
        template,
        &tokenizer(),
        options,
    )
}

/// Invariant: If a template drops a turn's reasoning, the row is an error or the turn is not
/// supervised.
#[test]
fn dropped_reasoning_is_an_error_or_excludes_its_turn_from_supervision() {
    let row = two_thoughts("reasoning_content");
    for name in ["qwen2_5", "llama3_1", "smollm2"] {
        let template = fixture_template(name);
        let error = prepare_row(&row, &template, &keeping(OnLostReasoning::Error)).unwrap_err();
        let message = error.to_string();
        let expected = "row: the chat template leaves out the reasoning of message 1, so the turn would \
                      be trained without it; set data.chat_template";
        assert!(message.starts_with(expected), "{name}: {message}");
        // Without supervised tokens the row is a separate error.
        let error = prepare_row(&row, &template, &keeping(OnLostReasoning::Keep)).unwrap_err();
        let reason = "(the chat template leaves out the reasoning of its turns)";
        assert!(error.to_string().contains(reason), "{name}: {error}");
    }
    // Qwen3's template keeps the reasoning after the last question.
    let template = fixture_template("qwen3");
    assert!(prepare_row(&row, &template, &keeping(OnLostReasoning::Error)).is_err());
    let prepared = prepare_row(&row, &template, &keeping(OnLostReasoning::Keep)).unwrap();
    assert_eq!(prepared.report.unlearned.n_without_reasoning, 1);
    assert_eq!(
        supervised_text(&prepared.examples[0]),
        "…<think>\nSecond thought.\n</think>\n\n9 metres.<|im_end|>…"
    );
    let inspected = inspect_row(
        &row,
        &template,
        &tokenizer(),
        &keeping(OnLostReasoning::Keep),
    );
    assert_eq!(inspected.unwrap().without_reasoning, [1]);
}

#[test]
fn think_tags_in_the_content_are_reasoning() {
    let row = conversation(json!([
        {"role": "user", "content": "How deep is Northcove?"},
        {"role": "assistant", "content": "<think>\nFirst.\n</think>\n\n7 metres."},
        {"role": "user", "content": "And Southcove?"},
        {"role": "assistant", "content": "<think>\nSecond.\n</think>\n\n9 metres."},
    ]));
    let qwen3 = fixture_template("qwen3");
    let error = prepare_row(&row, &qwen3, &keeping(OnLostReasoning::Error)).unwrap_err();
    assert!(
        matches!(
            error.fault(),
            DataError::ReasoningNotRendered { message: 1 }
        ),
        "{error}"
    );
    let prepared = prepare_row(&row, &qwen3, &keeping(OnLostReasoning::Keep)).unwrap();
    assert_eq!(
        supervised_text(&prepared.examples[0]),
        "…<think>\nSecond.\n</think>\n\n9 metres.<|im_end|>…"
    );
    // Qwen2.5 prints contents unchanged, and an empty reasoning block loses nothing.
    assert!(
        prepare_row(
            &row,
            &fixture_template("qwen2_5"),
            &keeping(OnLostReasoning::Error)
        )
        .is_ok()
    );
    let mut empty = row.clone();
    empty.conversation.messages[1].content = Some("<think>\n\n</think>\n\n7 metres.".to_owned());
    assert!(prepare_row(&empty, &qwen3, &keeping(OnLostReasoning::Error)).is_ok());
}

#[test]
fn each_reasoning_field_is_passed_under_the_name_that_a_template_reads() {
    let spellings = ["reasoning_content", "reasoning", "thinking"];
    for read in spellings {
        let source = CHATML.replace(
            "{% if m.content %}",
            &format!("{{% if m.{read} %}}<think>{{{{ m.{read} }}}}</think>{{% endif %}}{{% if m.content %}}"),
        );
        let template = ChatTemplate::new(&source, SpecialTokens::default()).unwrap();
        for thoughts in spellings {
            let row = two_thoughts(thoughts);
            let prepared = prepare_row(&row, &template, &keeping(OnLostReasoning::Error)).unwrap();
            assert_eq!(
                supervised_text(&prepared.examples[0]),
                "…<think>First thought.</think>7 metres.<|im_end|>…<think>Second thought.</think>9 \
                 metres.<|im_end|>…",
                "{thoughts} read as {read}"
            );
        }
    }
}

#[test]
fn two_different_reasoning_fields_are_an_error_and_missing_reasoning_is_not() {
    for empty in [json!(null), json!(""), json!(" \n")] {
        let row = conversation(json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "reasoning_content": empty, "content": "Hello."},
        ]));
        let template = fixture_template("qwen2_5");
        assert!(prepare_row(&row, &template, &keeping(OnLostReasoning::Error)).is_ok());
    }
    let both = |reasoning: &str| {
        let messages = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "reasoning_content": "a", "reasoning": reasoning, "content": "b"},
        ]);
        tooltune_template::conversation::parse_messages(&messages, "messages")
    };
    assert!(both("a").is_ok());
    assert_eq!(
        both("c").unwrap_err().to_string(),
        "messages[1].reasoning_content and reasoning in the same message differ; delete one of \
         them"
    );
}

#[test]
fn reasoning_is_a_string_or_text_parts_in_every_field() {
    let template = fixture_template("qwen3");
    let options = keeping(OnLostReasoning::Error);
    let messages = |name: &str, reasoning: Value| {
        json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", name: reasoning, "content": "Hello."},
        ])
    };
    let refused = |name: &str, reasoning: Value| {
        let messages = messages(name, reasoning);
        let result = tooltune_template::conversation::parse_messages(&messages, "messages");
        result.unwrap_err().to_string()
    };
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let parts =
            json!([{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]);
        let row = conversation(messages(name, parts));
        let prepared = prepare_row(&row, &template, &options).unwrap();
        assert_eq!(
            supervised_text(&prepared.examples[0]),
            "…<think>\nFirst.\nSecond.\n</think>\n\nHello.<|im_end|>…",
            "{name}"
        );
        let none = conversation(messages(name, json!(null)));
        assert_eq!(none.conversation.messages[1].extra, serde_json::Map::new());
        for (reasoning, found) in [
            (json!({"text": "First."}), "an object"),
            (json!(7), "a number"),
            (json!(true), "a boolean"),
        ] {
            assert_eq!(
                refused(name, reasoning),
                format!(
                    "messages[1].{name} is {found}, but must be a string, or a list of parts of the type text"
                )
            );
        }
        let image = refused(name, json!([{"type": "image", "image": "a.png"}]));
        assert!(
            image.contains(&format!("messages[1].{name}[0]")) && image.contains("image"),
            "{image}"
        );
    }
}

#[test]
fn dropped_reasoning_is_an_error_only_in_supervised_turns() {
    let thoughts = two_thoughts("reasoning_content");
    let mut in_content = two_thoughts("reasoning_content");
    for message in &mut in_content.conversation.messages {
        if let Some(thought) = message.extra.remove("reasoning_content") {
            let content = message.content.take().unwrap();
            let thought = thought.as_str().unwrap();
            message.content = Some(format!("<think>\n{thought}\n</think>\n\n{content}"));
        }
    }
    let switched_off = |row: &Row| {
        let mut row = row.clone();
        row.conversation.messages[1].weight = Some(0.0);
        row
    };
    let second = "…<think>\nSecond thought.\n</think>\n\n9 metres.<|im_end|>…";
    let qwen3 = fixture_template("qwen3");
    for row in [thoughts, in_content] {
        let mut options = keeping(OnLostReasoning::Error);
        for (train_on, row, n_switched_off) in [
            (TrainOn::LastAssistant, row.clone(), 0),
            (TrainOn::Completion, row.clone(), 0),
            (TrainOn::Assistant, switched_off(&row), 1),
            (TrainOn::All, switched_off(&row), 1),
        ] {
            options.mask.train_on = train_on;
            options.mask.on_lost_reasoning = OnLostReasoning::Error;
            let refusing = prepare_row(&row, &qwen3, &options).unwrap();
            let unlearned = refusing.report.unlearned;
            let counts = (unlearned.n_switched_off, unlearned.n_without_reasoning);
            assert_eq!(counts, (n_switched_off, 1), "{train_on:?}");
            if train_on != TrainOn::All {
                assert_eq!(
                    supervised_text(&refusing.examples[0]),
                    second,
                    "{train_on:?}"
                );
            }
            let inspected = inspect_row(&row, &qwen3, &tokenizer(), &options).unwrap();
            assert_eq!(inspected.without_reasoning, [1], "{train_on:?}");
            options.mask.on_lost_reasoning = OnLostReasoning::Keep;
            let prepared = prepare_row(&row, &qwen3, &options).unwrap();
            assert_eq!(prepared, refusing, "{train_on:?}");
        }
        options.mask.on_lost_reasoning = OnLostReasoning::Error;
        // Training on the whole row, or on a completion with both turns, would omit the first
        // reasoning.
        for train_on in [TrainOn::Assistant, TrainOn::All] {
            options.mask.train_on = train_on;
            assert!(prepare_row(&row, &qwen3, &options).is_err(), "{train_on:?}");
        }
        let mut both = row.clone();
        both.conversation.completion_start = 1;
        options.mask.train_on = TrainOn::Completion;
        let error = prepare_row(&both, &qwen3, &options).unwrap_err();
        let is_first = matches!(
            error.fault(),
            DataError::ReasoningNotRendered { message: 1 }
        );
        assert!(is_first, "{error}");
        // An excluded turn is not the reason that the row has no supervised tokens.
        let mut nothing = switched_off(&row);
        nothing.conversation.messages.truncate(3);
        options.mask.train_on = TrainOn::Assistant;
        let error = prepare_row(&nothing, &qwen3, &options).unwrap_err();
        assert!(error.to_string().contains("excludes its turns"), "{error}");
    }
}
