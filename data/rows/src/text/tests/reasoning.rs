//! Reasoning that a template keeps, drops, or reads under another name.

use serde_json::json;

use super::*;

fn fixture_template(name: &str) -> ChatTemplate {
    let path = fixtures().join(format!("chat_templates/templates/{name}.jinja"));
    let special = SpecialTokens {
        bos_token: Some("<|endoftext|>".to_owned()),
        eos_token: Some("<|im_end|>".to_owned()),
        ..SpecialTokens::default()
    };
    // Turns of all templates end with the one stop token of the tiny tokenizer.
    let source = std::fs::read_to_string(path).unwrap();
    ChatTemplate::new(&source.replace("<|eot_id|>", "<|im_end|>"), special).unwrap()
}

fn conversation(messages: Value) -> Row {
    let messages = crate::text::conversation::parse_messages(&messages, "messages").unwrap();
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

fn prepared(
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

#[test]
fn reasoning_that_a_template_drops_is_an_error_and_its_turn_is_not_learned_where_it_is_kept() {
    let row = two_thoughts("reasoning_content");
    for name in ["qwen2_5", "llama3_1", "smollm2"] {
        let template = fixture_template(name);
        let error = prepared(&row, &template, &keeping(OnLostReasoning::Error)).unwrap_err();
        let said = error.to_string();
        let wanted = "row: the chat template leaves out the reasoning of message 1, so the turn would be \
                      learned without it; set data.chat_template";
        assert!(said.starts_with(wanted), "{name}: {said}");
        // Nothing is left to learn, which is an error of its own.
        let error = prepared(&row, &template, &keeping(OnLostReasoning::Keep)).unwrap_err();
        let reason = "(the chat template leaves out the reasoning of its turns)";
        assert!(error.to_string().contains(reason), "{name}: {error}");
    }
    // Qwen3's keeps that after the last question.
    let template = fixture_template("qwen3");
    assert!(prepared(&row, &template, &keeping(OnLostReasoning::Error)).is_err());
    let kept = prepared(&row, &template, &keeping(OnLostReasoning::Keep)).unwrap();
    assert_eq!(kept.report.unlearned.n_without_reasoning, 1);
    assert_eq!(
        learned(&kept.examples[0]),
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
fn a_thought_inside_the_content_counts_as_reasoning() {
    let row = conversation(json!([
        {"role": "user", "content": "How deep is Northcove?"},
        {"role": "assistant", "content": "<think>\nFirst.\n</think>\n\n7 metres."},
        {"role": "user", "content": "And Southcove?"},
        {"role": "assistant", "content": "<think>\nSecond.\n</think>\n\n9 metres."},
    ]));
    let qwen3 = fixture_template("qwen3");
    let error = prepared(&row, &qwen3, &keeping(OnLostReasoning::Error)).unwrap_err();
    assert!(
        matches!(
            error.fault(),
            DataError::ReasoningNotRendered { message: 1 }
        ),
        "{error}"
    );
    let kept = prepared(&row, &qwen3, &keeping(OnLostReasoning::Keep)).unwrap();
    assert_eq!(
        learned(&kept.examples[0]),
        "…<think>\nSecond.\n</think>\n\n9 metres.<|im_end|>…"
    );
    // Qwen2.5 prints contents as they are, and an empty thought loses nothing.
    assert!(
        prepared(
            &row,
            &fixture_template("qwen2_5"),
            &keeping(OnLostReasoning::Error)
        )
        .is_ok()
    );
    let mut empty = row.clone();
    empty.conversation.messages[1].content = Some("<think>\n\n</think>\n\n7 metres.".to_owned());
    assert!(prepared(&empty, &qwen3, &keeping(OnLostReasoning::Error)).is_ok());
}

#[test]
fn each_spelling_reaches_the_name_that_a_template_reads() {
    let spellings = ["reasoning_content", "reasoning", "thinking"];
    for read in spellings {
        let source = CHATML.replace(
            "{% if m.content %}",
            &format!("{{% if m.{read} %}}<think>{{{{ m.{read} }}}}</think>{{% endif %}}{{% if m.content %}}"),
        );
        let template = ChatTemplate::new(&source, SpecialTokens::default()).unwrap();
        for written in spellings {
            let row = two_thoughts(written);
            let kept = prepared(&row, &template, &keeping(OnLostReasoning::Error)).unwrap();
            assert_eq!(
                learned(&kept.examples[0]),
                "…<think>First thought.</think>7 metres.<|im_end|>…<think>Second thought.</think>9 \
                 metres.<|im_end|>…",
                "{written} read as {read}"
            );
        }
    }
}

#[test]
fn no_reasoning_is_no_fault_and_two_different_ones_are() {
    for empty in [json!(null), json!(""), json!(" \n")] {
        let row = conversation(json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "reasoning_content": empty, "content": "Hello."},
        ]));
        let template = fixture_template("qwen2_5");
        assert!(prepared(&row, &template, &keeping(OnLostReasoning::Error)).is_ok());
    }
    let both = |reasoning: &str| {
        let messages = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "reasoning_content": "a", "reasoning": reasoning, "content": "b"},
        ]);
        crate::text::conversation::parse_messages(&messages, "messages")
    };
    assert!(both("a").is_ok());
    assert_eq!(
        both("c").unwrap_err().to_string(),
        "messages[1].reasoning_content and reasoning in the same message are different texts; keep one \
         of them"
    );
}

#[test]
fn reasoning_is_a_text_or_text_parts_in_every_spelling() {
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
        let parsed = crate::text::conversation::parse_messages(&messages, "messages");
        parsed.unwrap_err().to_string()
    };
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let parts =
            json!([{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]);
        let row = conversation(messages(name, parts));
        let kept = prepared(&row, &template, &options).unwrap();
        assert_eq!(
            learned(&kept.examples[0]),
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
                    "messages[1].{name} is {found}, but must be a text, or a list of parts of the type text"
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
fn only_a_turn_that_would_be_learned_without_its_reasoning_is_an_error() {
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
            let refusing = prepared(&row, &qwen3, &options).unwrap();
            let unlearned = refusing.report.unlearned;
            let counted = (unlearned.n_switched_off, unlearned.n_without_reasoning);
            assert_eq!(counted, (n_switched_off, 1), "{train_on:?}");
            if train_on != TrainOn::All {
                assert_eq!(learned(&refusing.examples[0]), second, "{train_on:?}");
            }
            let inspected = inspect_row(&row, &qwen3, &tokenizer(), &options).unwrap();
            assert_eq!(inspected.without_reasoning, [1], "{train_on:?}");
            options.mask.on_lost_reasoning = OnLostReasoning::Keep;
            let kept = prepared(&row, &qwen3, &options).unwrap();
            assert_eq!(kept, refusing, "{train_on:?}");
        }
        options.mask.on_lost_reasoning = OnLostReasoning::Error;
        // The whole of it, or a completion with both turns, would be learned without the first.
        for train_on in [TrainOn::Assistant, TrainOn::All] {
            options.mask.train_on = train_on;
            assert!(prepared(&row, &qwen3, &options).is_err(), "{train_on:?}");
        }
        let mut both = row.clone();
        both.conversation.completion_start = 1;
        options.mask.train_on = TrainOn::Completion;
        let error = prepared(&both, &qwen3, &options).unwrap_err();
        let is_first = matches!(
            error.fault(),
            DataError::ReasoningNotRendered { message: 1 }
        );
        assert!(is_first, "{error}");
        // A turn that is switched off is not why the row has nothing to learn.
        let mut nothing = switched_off(&row);
        nothing.conversation.messages.truncate(3);
        options.mask.train_on = TrainOn::Assistant;
        let error = prepared(&nothing, &qwen3, &options).unwrap_err();
        assert!(
            error.to_string().contains("switches its turns off"),
            "{error}"
        );
    }
}
