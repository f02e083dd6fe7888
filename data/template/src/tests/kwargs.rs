//! Additional template variables, and exported templates that contain them.

use super::*;
use crate::conversation::parse_messages;

fn cases() -> Vec<Value> {
    let path = fixture("../template_kwargs/cases.json");
    let cases = tooltune_json::parse(&fs::read_to_string(path).unwrap()).unwrap();
    let cases = cases.as_array().unwrap().clone();
    assert!(cases.len() > 25);
    cases
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn chat(case: &Value) -> Conversation {
    Conversation::new(parse_messages(&case["chat"], "chat").unwrap())
}

/// Invariant: An exported chat template renders in transformers as it did in training.
#[test]
fn a_served_template_renders_with_its_variables_as_defaults_in_transformers() {
    for case in cases() {
        let kwargs = object(&case["kwargs"]);
        let served_source = |source: &str, kwargs: Map<String, Value>| {
            inline(source)
                .with_kwargs(kwargs)
                .unwrap()
                .render(&chat(&case), GenerationPrompt::Add)
                .unwrap()
        };
        let source = case["template"].as_str().unwrap();
        let served = inline(source)
            .with_kwargs(kwargs.clone())
            .unwrap()
            .served_source();
        assert_eq!(served, case["served"], "{kwargs:?}");
        // Both expected strings come from transformers.
        assert_eq!(
            served_source(source, kwargs.clone()),
            case["as_served"],
            "{kwargs:?}"
        );
        assert_eq!(
            served_source(&served, Map::new()),
            case["as_served"],
            "{kwargs:?}"
        );
        assert_eq!(
            served_source(&served, object(&case["callers"])),
            case["as_called"],
            "{kwargs:?}"
        );
    }
    let plain = inline("{{ messages }}");
    assert_eq!(plain.served_source(), plain.source());
}

#[test]
fn reserved_and_unread_variable_names_are_rejected() {
    let refused = |name: &str| {
        let template = inline("{{ messages }}{{ enable_thinking }}{{ reasoning_effort }}");
        let kwargs = Map::from_iter([(name.to_owned(), json!(false))]);
        template
            .with_kwargs(kwargs)
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(refused("enable_thinking"), None);
    for name in [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "continue_final_message",
        "tokenize",
        "strftime_now",
        "raise_exception",
        "loop",
        "tooltune_generation_begins",
    ] {
        let message = refused(name).unwrap();
        assert!(
            message.contains(&format!("data.chat_template_kwargs.{name} cannot be set")),
            "{message}"
        );
    }
    for name in ["", "enable thinking", "enable-thinking", "1st", "é"] {
        let message = refused(name).unwrap();
        assert!(message.contains("is not a variable name"), "{message}");
    }
    assert_eq!(
        refused("enable_thinkin").unwrap(),
        "the chat template never reads data.chat_template_kwargs.enable_thinkin, so it would change \
         nothing; did you mean enable_thinking?"
    );
    assert!(
        refused("temperature")
            .unwrap()
            .ends_with("its variables are enable_thinking, reasoning_effort")
    );
    let bare = inline("{{ messages }}").with_kwargs(Map::from_iter([("x".to_owned(), json!(1))]));
    assert!(
        bare.unwrap_err()
            .to_string()
            .ends_with("it has no variables; delete the key")
    );
}

#[test]
fn variables_reach_every_rendering_of_a_row() {
    let thinking = |value: bool| {
        let kwargs = Map::from_iter([("enable_thinking".to_owned(), json!(value))]);
        template("qwen3").with_kwargs(kwargs).unwrap()
    };
    let conversation = conversation_of(json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]));
    let empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    // In both cases the template writes an empty thought before an answer that has none.
    let rendered = thinking(false)
        .render_with_spans(&conversation, Turns::Completion)
        .unwrap();
    assert!(
        rendered.text.contains(&format!("{empty}Hello.")),
        "{}",
        rendered.text
    );
    assert!(
        thinking(false)
            .render_prompt(&conversation)
            .unwrap()
            .ends_with(empty)
    );
    assert!(
        thinking(true)
            .render_prompt(&conversation)
            .unwrap()
            .ends_with("<|im_start|>assistant\n")
    );
    for value in [false, true] {
        let rendered = thinking(value)
            .render_with_spans(&conversation, Turns::Completion)
            .unwrap();
        let turn = rendered.turns[0];
        assert_eq!(&rendered.text[turn.start..turn.content_end], "Hello.");
    }
}

#[test]
fn a_served_template_writes_the_system_message_of_training_unless_there_is_one() {
    let source = fs::read_to_string(fixture("templates/smollm2.jinja")).unwrap();
    let text = "Say \"Aye\".\n{{ no variable }} Ü\\";
    let served = inline(&source).with_served_system(Some(text.to_owned()));
    let served = inline(&served.served_source());
    let question = Conversation::new(vec![Message::new(Role::User, "Hi")]);
    let render = |template: &ChatTemplate, conversation: &Conversation| {
        let text = template.render(conversation, GenerationPrompt::Add);
        text.unwrap()
    };
    let with_default = question.clone().with_system(text);
    let own = question.clone().with_system("Be brief.");
    let original = inline(&source);
    assert_eq!(render(&served, &question), render(&original, &with_default));
    assert_eq!(render(&served, &own), render(&original, &own));
}
