//! Prompts of rows: what is asked is what training read before the answer, token by token.

use serde_json::json;

use super::reading::{SLOT, file, only_row};
use super::*;

fn template(path: &str) -> ChatTemplate {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let source = std::fs::read_to_string(root.join(path)).unwrap();
    let special = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("<|im_end|>".to_owned()),
        ..SpecialTokens::default()
    };
    ChatTemplate::new(&source, special).unwrap()
}

/// The prompt of a row, held to the row's training example.
fn asked(row: &Row, template: &ChatTemplate, options: &PrepareOptions) -> AskedPrompt {
    let tokenizer = tokenizer();
    let asked = AskedPrompt::of_row(row, template, &tokenizer, options).unwrap();
    let outcome = tokenize_row(row, template, &tokenizer, options).unwrap();
    let TokenizeOutcome::Example { example, .. } = outcome else {
        panic!("{outcome:?}")
    };
    let (prompt, answer) = example.input_ids.split_at(asked.ids.len());
    assert!(asked.begins_example, "{asked:?}");
    assert_eq!(asked.ids, prompt);
    assert_eq!(
        tokenizer.decode(prompt, Specials::Keep).unwrap(),
        asked.text
    );
    // The answer is learned from its first token to the stop token behind it.
    let (before, learned) = example.loss_weights.split_at(asked.ids.len());
    assert_eq!(before.last(), Some(&0.0));
    let is_stop = |id: &u32| options.stop_ids.contains(id);
    let stop = answer.iter().position(is_stop).unwrap();
    assert!(learned[..=stop].iter().all(|&weight| weight > 0.0));
    assert_eq!(
        Some(tokenizer.decode(&answer[..stop], Specials::Skip).unwrap()),
        asked.reference
    );
    asked
}

const CALLS: &str = r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}, {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "And in Bergen?"}, {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": {"city": "Bergen"}}]}], "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]}"#;

#[test]
fn the_prompt_of_a_row_is_the_beginning_of_its_training_example() {
    let tokenizer = tokenizer();
    let options = options(&tokenizer);
    let texts = r#"{"prompt": "A?", "completion": "Yes."}"#;
    let chat = r#"{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A?"}], "completion": [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "B?"}, {"role": "assistant", "content": "No."}]}"#;
    let turns = r#"{"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "B?"}, {"role": "assistant", "content": "No."}]}"#;
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bergen\"}}\n\
                </tool_call>";
    let cases = [
        (texts, DataFormat::PromptCompletion, 1, "Yes."),
        (chat, DataFormat::PromptCompletion, 2, "Yes."),
        (turns, DataFormat::Messages, 3, "No."),
        (CALLS, DataFormat::Messages, 6, call),
        (SLOT, DataFormat::Slot, 1, "{\"name\": \"Änn\", \"age\": 7}"),
    ];
    for (line, format, n_messages, reference) in cases {
        let row = only_row(line, format);
        let asked = asked(
            &row,
            &template("data/rows/src/text/chat_templates/chatml-tools.jinja"),
            &options,
        );
        assert_eq!(asked.n_messages, n_messages, "{line}");
        assert_eq!(asked.reference.as_deref(), Some(reference));
        assert!(
            asked.text.ends_with("<|im_start|>assistant\n"),
            "{}",
            asked.text
        );
        assert_eq!(asked.text.contains("<tools>"), line == CALLS);
    }
    // Templates of models write the call as the model does.
    for (name, begins) in [("qwen2_5", "<tool_call>\n{"), ("hermes", "<tool_call>\n{")] {
        let path = format!("tests/fixtures/chat_templates/templates/{name}.jinja");
        let row = only_row(CALLS, DataFormat::Messages);
        let asked = asked(&row, &template(&path), &options);
        let reference = asked.reference.unwrap();
        assert!(reference.starts_with(begins), "{name}: {reference}");
        assert!(reference.contains("Bergen"), "{name}: {reference}");
    }
}

#[test]
fn the_last_turn_is_asked_where_turns_of_the_assistant_are_learned() {
    let mut options = options(&tokenizer());
    let mut row = row([turn("A?", "First."), turn("B?", "Second.")].concat());
    row.conversation.completion_start = 1;
    for (train_on, reference) in [
        (TrainOn::Completion, "First."),
        (TrainOn::Assistant, "Second."),
        (TrainOn::LastAssistant, "Second."),
    ] {
        options.mask.train_on = train_on;
        assert_eq!(
            AskedPrompt::of_row(&row, &chatml(), &tokenizer(), &options)
                .unwrap()
                .reference
                .as_deref(),
            Some(reference)
        );
    }
    // A question at the end, which nothing answers, is no part of the prompt before it.
    row.conversation
        .messages
        .push(Message::new(Role::User, "C?"));
    options.mask.train_on = TrainOn::LastAssistant;
    let asked = asked(&row, &chatml(), &options);
    assert_eq!((asked.n_messages, asked.text.contains("C?")), (3, false));
}

#[test]
fn a_token_across_the_border_of_the_answer_is_said() {
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}\
                  {% if add_generation_prompt %}assistant: {% endif %}";
    let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    let row = row(turn("Hi", "the end").to_vec());
    let asked = AskedPrompt::of_row(&row, &template, &tokenizer(), &options(&tokenizer())).unwrap();
    assert_eq!(asked.text, "user: Hi<|im_end|>assistant: ");
    assert!(!asked.begins_example, "{asked:?}");
    assert_eq!(asked.reference.as_deref(), Some("the end"));
}

#[test]
fn what_cannot_be_asked_is_refused_with_its_place() {
    let tokenizer = tokenizer();
    let options = options(&tokenizer);
    let open = row(vec![Message::new(Role::User, "Hi")]);
    let fault = |row: &Row, template: &ChatTemplate| {
        let asked = AskedPrompt::of_row(row, template, &tokenizer, &options);
        asked.unwrap_err().to_string()
    };
    let said = fault(&open, &chatml());
    assert!(
        said.starts_with("row: the row has no assistant message"),
        "{said}"
    );
    // An answer that changes what stands before it was not learned after this prompt.
    let changing = "{% if messages[-1].role == 'assistant' %}Answered.\n{% endif %}".to_owned();
    let changing = ChatTemplate::new(&(changing + CHATML), SpecialTokens::default()).unwrap();
    let said = fault(&row(turn("A?", "B.").to_vec()), &changing);
    assert!(
        said.contains("does not begin with the generation prompt"),
        "{said}"
    );

    let mut question = Conversation::new(vec![Message::new(Role::User, "Hi")]);
    let of_messages = |question: &Conversation| {
        AskedPrompt::of_messages("--message", question, &chatml(), &tokenizer)
    };
    let asked = of_messages(&question).unwrap();
    let row = row([
        question.messages.clone(),
        vec![Message::new(Role::Assistant, "B.")],
    ]
    .concat());
    assert_eq!(asked.ids, self::asked(&row, &chatml(), &options).ids);
    assert_eq!((asked.reference, asked.n_messages), (None, 1));
    question.tools = Some(vec![json!({"name": "weather"})]);
    let said = of_messages(&question).unwrap_err().to_string();
    assert!(
        said.starts_with("--message: the chat template renders no tools"),
        "{said}"
    );
}

#[test]
fn a_text_is_asked_as_it_is() {
    let tokenizer = tokenizer();
    let text = "<|im_start|>user\nHi";
    let asked = AskedPrompt::of_text("--prompt", text, &tokenizer).unwrap();
    assert_eq!(asked.ids, tokenizer.encode(text).unwrap().ids);
    assert_eq!(asked.ids[0], tokenizer.token_to_id("<|im_start|>").unwrap());
    assert_eq!((asked.text.as_str(), asked.n_messages), (text, 0));
}

#[test]
fn a_file_of_tools_is_one_list_of_objects() {
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let read = |text: &str| read_tools(file(text.as_bytes()).path());
    assert_eq!(read(&json!([tool]).to_string()).unwrap(), [tool]);
    for (text, said) in [
        (
            "{\"tools\": []}",
            "the file is an object, but must be a list of tools",
        ),
        ("[\"weather\"]", "[0] is a text, but must be an object"),
        ("[{\"n\": 123456789012345678901}]", "[0].n is the integer"),
        ("[", "not valid JSON"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let missing = read_tools(Path::new("no-tools.json")).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("no-tools.json: cannot read"),
        "{missing}"
    );
}
