//! Prompts of rows must equal the training tokens before the answer.

use serde_json::json;
use tooltune_template::{ChatTemplate, Conversation, Message, Role, SpecialTokens};

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

/// The prompt of a row, compared with the row's training example.
fn build_prompt(row: &Row, template: &ChatTemplate, options: &PrepareOptions) -> TokenizedPrompt {
    let tokenizer = tokenizer();
    let built = TokenizedPrompt::from_row(row, template, &tokenizer, options).unwrap();
    let outcome = tokenize_row(row, template, &tokenizer, options).unwrap();
    let TokenizeOutcome::Example { example, .. } = outcome else {
        panic!("{outcome:?}")
    };
    let (prompt, answer) = example.input_ids.split_at(built.ids.len());
    assert!(built.begins_example, "{built:?}");
    assert_eq!(built.ids, prompt);
    assert_eq!(
        tokenizer.decode(prompt, Specials::Keep).unwrap(),
        built.text
    );
    // The answer is supervised from its first token to the following stop token.
    let (before, answer_weights) = example.loss_weights.split_at(built.ids.len());
    assert_eq!(before.last(), Some(&0.0));
    let is_stop = |id: &u32| options.stop_ids.contains(id);
    let stop = answer.iter().position(is_stop).unwrap();
    assert!(answer_weights[..=stop].iter().all(|&weight| weight > 0.0));
    assert_eq!(
        Some(tokenizer.decode(&answer[..stop], Specials::Skip).unwrap()),
        built.reference
    );
    built
}

const CALLS: &str = r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo?"}, {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "And in Bergen?"}, {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": {"city": "Bergen"}}]}], "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]}"#;

/// Invariant: The prompt of `generate` is the start of the row's training example.
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
        let prompt = build_prompt(
            &row,
            &template("data/template/src/chat_templates/chatml-tools.jinja"),
            &options,
        );
        assert_eq!(prompt.n_messages, n_messages, "{line}");
        assert_eq!(prompt.reference.as_deref(), Some(reference));
        assert!(
            prompt.text.ends_with("<|im_start|>assistant\n"),
            "{}",
            prompt.text
        );
        assert_eq!(prompt.text.contains("<tools>"), line == CALLS);
    }
    // Model templates write the call in the model's own format.
    for (name, begins) in [("qwen2_5", "<tool_call>\n{"), ("hermes", "<tool_call>\n{")] {
        let path = format!("tests/fixtures/chat_templates/templates/{name}.jinja");
        let row = only_row(CALLS, DataFormat::Messages);
        let prompt = build_prompt(&row, &template(&path), &options);
        let reference = prompt.reference.unwrap();
        assert!(reference.starts_with(begins), "{name}: {reference}");
        assert!(reference.contains("Bergen"), "{name}: {reference}");
    }
}

#[test]
fn the_prompt_ends_before_the_last_turn_if_assistant_turns_are_supervised() {
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
            TokenizedPrompt::from_row(&row, &chatml(), &tokenizer(), &options)
                .unwrap()
                .reference
                .as_deref(),
            Some(reference)
        );
    }
    // A final question without an answer is not part of the earlier prompt.
    row.conversation
        .messages
        .push(Message::new(Role::User, "C?"));
    options.mask.train_on = TrainOn::LastAssistant;
    let prompt = build_prompt(&row, &chatml(), &options);
    assert_eq!((prompt.n_messages, prompt.text.contains("C?")), (3, false));
}

#[test]
fn a_token_across_the_start_of_the_answer_is_reported() {
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}\
                  {% if add_generation_prompt %}assistant: {% endif %}";
    let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    let row = row(turn("Hi", "the end").to_vec());
    let prompt =
        TokenizedPrompt::from_row(&row, &template, &tokenizer(), &options(&tokenizer())).unwrap();
    assert_eq!(prompt.text, "user: Hi<|im_end|>assistant: ");
    assert!(!prompt.begins_example, "{prompt:?}");
    assert_eq!(prompt.reference.as_deref(), Some("the end"));
}

#[test]
fn an_invalid_prompt_is_rejected_with_its_location() {
    let tokenizer = tokenizer();
    let options = options(&tokenizer);
    let open = row(vec![Message::new(Role::User, "Hi")]);
    let fault = |row: &Row, template: &ChatTemplate| {
        let prompt = TokenizedPrompt::from_row(row, template, &tokenizer, &options);
        prompt.unwrap_err().to_string()
    };
    let message = fault(&open, &chatml());
    assert!(
        message.starts_with("row: the row has no assistant message"),
        "{message}"
    );
    // If an answer changes the text before it, training did not use this prompt.
    let changing = "{% if messages[-1].role == 'assistant' %}Answered.\n{% endif %}".to_owned();
    let changing = ChatTemplate::new(&(changing + CHATML), SpecialTokens::default()).unwrap();
    let message = fault(&row(turn("A?", "B.").to_vec()), &changing);
    assert!(
        message.contains("does not begin with the generation prompt"),
        "{message}"
    );

    let mut question = Conversation::new(vec![Message::new(Role::User, "Hi")]);
    let prompt_of = |question: &Conversation| {
        TokenizedPrompt::from_messages("--message", question, &chatml(), &tokenizer)
    };
    let prompt = prompt_of(&question).unwrap();
    let row = row([
        question.messages.clone(),
        vec![Message::new(Role::Assistant, "B.")],
    ]
    .concat());
    assert_eq!(
        prompt.ids,
        self::build_prompt(&row, &chatml(), &options).ids
    );
    assert_eq!((prompt.reference, prompt.n_messages), (None, 1));
    question.tools = Some(vec![json!({"name": "weather"})]);
    let message = prompt_of(&question).unwrap_err().to_string();
    assert!(
        message.starts_with("--message: the chat template renders no tools"),
        "{message}"
    );
}

#[test]
fn a_plain_text_prompt_is_unchanged() {
    let tokenizer = tokenizer();
    let text = "<|im_start|>user\nHi";
    let prompt = TokenizedPrompt::from_text("--prompt", text, &tokenizer).unwrap();
    assert_eq!(prompt.ids, tokenizer.encode(text).unwrap().ids);
    assert_eq!(
        prompt.ids[0],
        tokenizer.token_to_id("<|im_start|>").unwrap()
    );
    assert_eq!((prompt.text.as_str(), prompt.n_messages), (text, 0));
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
        ("[\"weather\"]", "[0] is a string, but must be an object"),
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
