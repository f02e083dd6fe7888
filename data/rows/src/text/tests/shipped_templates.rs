//! The built-in chat templates, and a row from the guide.

use super::*;
use tooltune_template::{
    ChatTemplate, Conversation, GenerationPrompt, Message, Role, SpecialTokens, Turns,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chatml_tools() -> ChatTemplate {
    let source = ChatTemplate::built_in("chatml-tools").unwrap();
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

/// The guide's messages row with a call.
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
fn the_row_in_the_guide_is_supervised_up_to_its_end_of_turn_without_the_values() {
    let row = guide_row();
    let template = chatml_tools();
    let text = template.render(&row.conversation, GenerationPrompt::Omit);
    let expected = format!(
        "<|im_start|>system\n{TOOLS}<|im_start|>user\nWeather in Oslo?<|im_end|>\n\
         <|im_start|>assistant\n{CALL}<|im_end|>\n"
    );
    assert_eq!(text.unwrap(), expected);
    let mut options = options(&tokenizer());
    for (arguments, city) in [(ArgumentMask::None, "Oslo"), (ArgumentMask::All, "…")] {
        options.mask.arguments = arguments;
        let outcome = tokenize_row(&row, &template, &tokenizer(), &options).unwrap();
        let TokenizeOutcome::Example { example, .. } = outcome else {
            panic!("{outcome:?}")
        };
        let call = CALL.replace("Oslo", city);
        assert_eq!(supervised_text(&example), format!("…{call}<|im_end|>…"));
    }
}

#[test]
fn built_in_templates_add_nothing_between_texts_calls_and_results() {
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
    let second_call = conversation.messages[2].tool_calls[0].clone();
    conversation.messages[2].tool_calls.push(second_call);
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
fn built_in_templates_write_no_tool_section_without_tools() {
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
        // The template contains nothing that a model could copy as its answer.
        let rendered = render(&some);
        assert!(!rendered.contains("<tool_call>\n"), "{name}: {rendered}");
        assert!(!rendered.contains("..."), "{name}: {rendered}");
    }
    assert_eq!(ChatTemplate::built_in("chatml"), None);
}

/// Gemma 3's own template: alternating turns, with the system message before the first question.
const GEMMA: &str = "{{ bos_token }}{% if messages[0].role == 'system' %}\
    {% set before = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}{% else %}\
    {% set before = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}\
    {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
    {% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n\
    {{ before if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}\
    {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";

fn with_bos(source: &str, bos: &str) -> ChatTemplate {
    let special = SpecialTokens {
        bos_token: Some(bos.to_owned()),
        ..SpecialTokens::default()
    };
    ChatTemplate::new(source, special).unwrap()
}

/// A conversation with every kind of message and parallel calls.
fn conversation_of_all_kinds() -> Conversation {
    let row = guide_row();
    let call = row.conversation.messages[1].clone();
    let mut messages = vec![
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, "Weather in Oslo?"),
        call,
        Message::new(Role::Tool, "rain"),
        Message::new(Role::Tool, "[3]"),
        Message::new(Role::Assistant, "Rain."),
        Message::new(Role::User, "Thanks"),
        Message::new(Role::Assistant, "Aye."),
    ];
    let second_call = messages[2].tool_calls[0].clone();
    messages[2].tool_calls.push(second_call);
    Conversation {
        tools: row.conversation.tools,
        ..Conversation::new(messages)
    }
}

#[test]
fn rows_without_tools_render_as_with_gemmas_own_template() {
    let ours = with_bos(ChatTemplate::built_in("gemma-tools").unwrap(), "<bos>");
    let gemma = with_bos(GEMMA, "<bos>");
    let plain = |messages: &[(Role, &str)]| {
        let messages = messages
            .iter()
            .map(|(role, text)| Message::new(*role, *text));
        Conversation::new(messages.collect())
    };
    let (user, model, system) = (Role::User, Role::Assistant, Role::System);
    for conversation in [
        plain(&[(user, "Hi")]),
        plain(&[(user, "Hi"), (model, "Ho"), (user, "And?"), (model, "No.")]),
        plain(&[(system, "Be brief."), (user, "Hi"), (model, "Ho")]),
    ] {
        for prompt in [GenerationPrompt::Add, GenerationPrompt::Omit] {
            let rendered = ours.render(&conversation, prompt).unwrap();
            assert_eq!(rendered, gemma.render(&conversation, prompt).unwrap());
        }
    }
    // The model's own template rejects tools; the error names one that renders them.
    let mut tools = conversation_of_all_kinds();
    for message in &mut tools.messages {
        message.content.get_or_insert_default();
    }
    let error = gemma
        .render(&tools, GenerationPrompt::Omit)
        .unwrap_err()
        .to_string();
    let fix = "such as \"gemma-tools\" for models with <start_of_turn> and <end_of_turn>";
    assert!(
        error.contains(fix) && error.contains("roles must alternate"),
        "{error}"
    );
    let with_tools = Conversation {
        tools: tools.tools.clone(),
        ..plain(&[(user, "Hi"), (model, "Ho")])
    };
    let error = gemma
        .render_with_spans(&with_tools, Turns::All)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(fix) && error.contains("renders no tools"),
        "{error}"
    );
}

/// Renders the same turns in each family's format: nothing is lost, and each answer is a separate
/// turn that ends with the family's end-of-turn token.
#[test]
fn every_built_in_template_renders_all_kinds_of_messages_in_its_familys_turns() {
    let tools = TOOLS.trim_end_matches("<|im_end|>\n");
    let calls = format!("{CALL}\n{CALL}");
    let results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\n[3]\n</tool_response>";
    for (name, expected, end) in [
        (
            "chatml-tools",
            format!(
                "<|im_start|>system\nBe brief.\n\n{tools}<|im_end|>\n<|im_start|>user\nWeather in \
                 Oslo?<|im_end|>\n<|im_start|>assistant\n{calls}<|im_end|>\n<|im_start|>tool\n{results}\
                 <|im_end|>\n<|im_start|>assistant\nRain.<|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n\
                 <|im_start|>assistant\nAye.<|im_end|>\n"
            ),
            "<|im_end|>",
        ),
        (
            "gemma-tools",
            format!(
                "<s><start_of_turn>user\nBe brief.\n\n{tools}\n\nWeather in Oslo?<end_of_turn>\n\
                 <start_of_turn>model\n{calls}<end_of_turn>\n<start_of_turn>user\n{results}<end_of_turn>\n\
                 <start_of_turn>model\nRain.<end_of_turn>\n<start_of_turn>user\nThanks<end_of_turn>\n\
                 <start_of_turn>model\nAye.<end_of_turn>\n"
            ),
            "<end_of_turn>",
        ),
        (
            "llama3-tools",
            format!(
                "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.\n\n{tools}<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nWeather in Oslo?<|eot_id|><|start_header_id|>\
                 assistant<|end_header_id|>\n\n{calls}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\
                 \n\n{results}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nRain.<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nThanks<|eot_id|><|start_header_id|>assistant\
                 <|end_header_id|>\n\nAye.<|eot_id|>"
            ),
            "<|eot_id|>",
        ),
        (
            "phi3-tools",
            format!(
                "<|system|>\nBe brief.\n\n{tools}<|end|>\n<|user|>\nWeather in Oslo?<|end|>\n<|assistant|>\n\
                 {calls}<|end|>\n<|user|>\n{results}<|end|>\n<|assistant|>\nRain.<|end|>\n<|user|>\n\
                 Thanks<|end|>\n<|assistant|>\nAye.<|end|>\n"
            ),
            "<|end|>",
        ),
    ] {
        let template = with_bos(ChatTemplate::built_in(name).unwrap(), "<s>");
        let conversation = conversation_of_all_kinds();
        let rendered = template
            .render_with_spans(&conversation, Turns::All)
            .unwrap();
        assert_eq!(rendered.text, expected, "{name}");
        assert_eq!(
            (rendered.turns.len(), rendered.lost),
            (3, Vec::new()),
            "{name}"
        );
        assert!(rendered.text.trim_end().ends_with(end));
        // Starts with results and no question, and has tools without a system message.
        for messages in [&conversation.messages[3..6], &conversation.messages[1..3]] {
            let part = Conversation {
                tools: conversation.tools.clone(),
                ..Conversation::new(messages.to_vec())
            };
            let rendered = template.render_with_spans(&part, Turns::All);
            let text = rendered
                .unwrap_or_else(|error| panic!("{name}: {error}"))
                .text;
            assert!(
                text.contains("</tools>") && text.trim_end().ends_with(end),
                "{name}: {text}"
            );
        }
    }
    assert_eq!(ChatTemplate::NAMES.len(), 4);
}
