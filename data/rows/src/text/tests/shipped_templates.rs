//! The built-in chat templates, and a row that the guide shows.

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chatml_tools() -> ChatTemplate {
    let source = ChatTemplate::built_in("chatml-tools").unwrap();
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

/// The row of messages with a call in the guide.
fn guide_row() -> Row {
    let guide = std::fs::read_to_string(root().join("docs/data.md")).unwrap();
    let mut lines = guide
        .lines()
        .filter(|line| line.starts_with("{\"messages\"") && line.contains("tool_calls"));
    let (Some(line), None) = (lines.next(), lines.next()) else {
        panic!("one row of messages with a call in docs/data.md")
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), line).unwrap();
    let mut rows = read_rows(file.path(), DataFormat::Messages).unwrap();
    rows.next().unwrap().unwrap()
}

const TOOLS: &str = "You can call tools. They are described between <tools> and </tools>, one JSON \
    object a line:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"weather\", \
    \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}\n\
    </tools>\nTo call one, write a JSON object between <tool_call> and </tool_call>: its key \"name\" \
    has the name of the tool, and its key \"arguments\" an object that is valid under the parameters \
    of the tool.<|im_end|>\n";

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n\
    </tool_call>";

#[test]
fn the_row_of_the_guide_is_learned_up_to_its_end_of_turn_without_the_values() {
    let row = guide_row();
    let template = chatml_tools();
    let text = template.render(&row.conversation, GenerationPrompt::Omit);
    let wanted = format!(
        "<|im_start|>system\n{TOOLS}<|im_start|>user\nWeather in Oslo?<|im_end|>\n\
         <|im_start|>assistant\n{CALL}<|im_end|>\n"
    );
    assert_eq!(text.unwrap(), wanted);
    let mut options = options(&tokenizer());
    for (arguments, city) in [(ArgumentMask::None, "Oslo"), (ArgumentMask::All, "…")] {
        options.mask.arguments = arguments;
        let outcome = tokenize_row(&row, &template, &tokenizer(), &options).unwrap();
        let TokenizeOutcome::Example { example, .. } = outcome else {
            panic!("{outcome:?}")
        };
        let call = CALL.replace("Oslo", city);
        assert_eq!(learned(&example), format!("…{call}<|im_end|>…"));
    }
}

#[test]
fn texts_calls_and_results_stand_side_by_side_and_nothing_foreign_between() {
    let row = guide_row();
    let mut conversation = Conversation {
        messages: [
            vec![Message::new(Role::System, "Be brief.")],
            row.conversation.messages,
            vec![
                Message::new(Role::Tool, "rain"),
                Message::new(Role::Tool, "[3]"),
                Message::new(Role::Assistant, "Rain, 3 degrees."),
            ],
        ]
        .concat(),
        ..row.conversation
    };
    conversation.completion_start = 5;
    conversation.messages[2].content = Some("I look.".to_owned());
    let again = conversation.messages[2].tool_calls[0].clone();
    conversation.messages[2].tool_calls.push(again);
    let rendered = chatml_tools()
        .render_with_spans(&conversation, Turns::All)
        .unwrap();
    assert_eq!(
        rendered.text,
        format!(
            "<|im_start|>system\nBe brief.\n\n{TOOLS}<|im_start|>user\nWeather in Oslo?<|im_end|>\n\
             <|im_start|>assistant\nI look.\n{CALL}\n{CALL}<|im_end|>\n<|im_start|>tool\n\
             <tool_response>\nrain\n</tool_response>\n<tool_response>\n[3]\n</tool_response>\
             <|im_end|>\n<|im_start|>assistant\nRain, 3 degrees.<|im_end|>\n"
        )
    );
    assert_eq!((rendered.turns.len(), rendered.lost), (2, Vec::new()));
    let plain = Conversation::new(turn("Hi", "Hello.").to_vec());
    let text = chatml_tools().render(&plain, GenerationPrompt::Omit);
    assert_eq!(
        text.unwrap(),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
    );
}

#[test]
fn templates_go_by_their_names_and_write_no_section_for_no_tools() {
    for name in ChatTemplate::NAMES {
        let source = ChatTemplate::built_in(name).unwrap();
        let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
        let render = |conversation: &Conversation| {
            let text = template.render(conversation, GenerationPrompt::Add);
            text.unwrap()
        };
        let row = guide_row();
        let none = Conversation {
            tools: None,
            ..Conversation::new(vec![Message::new(Role::User, "Hi")])
        };
        let empty = Conversation {
            tools: Some(Vec::new()),
            ..none.clone()
        };
        let some = Conversation {
            tools: row.conversation.tools.clone(),
            ..none.clone()
        };
        assert_eq!(render(&empty), render(&none), "{name}");
        assert!(!render(&none).contains("tool"), "{name}");
        // Nothing that a model could write down as its answer.
        let said = render(&some);
        assert!(!said.contains("<tool_call>\n"), "{name}: {said}");
        assert!(!said.contains("..."), "{name}: {said}");
    }
    assert_eq!(ChatTemplate::built_in("chatml"), None);
}
