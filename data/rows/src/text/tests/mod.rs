//! Weights of rows with a tiny real tokenizer, and rejected rows.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tooltune_template::{ChatTemplate, Conversation, Message, Role, SpecialTokens, ToolCall};

use serde_json::Value;

use super::*;

mod added_tokens;
mod argument_masks;
mod calls;
mod chat;
mod faults;
mod formats;
mod hostile_tokenizers;
mod long_rows;
mod mutations;
mod pre_tokenizers;
mod prompt;
mod reading;
mod reasoning;
mod round_trip;
mod shipped_templates;
mod supervision;
mod supervision_properties;
mod switches;
mod tool_results;

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.content %}{{ m.content }}{% endif %}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\
    <|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

fn tokenizer() -> Tokenizer {
    static LOADED: LazyLock<Tokenizer> = LazyLock::new(|| {
        Tokenizer::from_file(&fixtures().join("tiny_tokenizer/tokenizer.json")).unwrap()
    });
    LOADED.clone()
}

fn chatml() -> ChatTemplate {
    ChatTemplate::new(CHATML, SpecialTokens::default()).unwrap()
}

fn options(tokenizer: &Tokenizer) -> PrepareOptions {
    PrepareOptions {
        mask: MaskConfig::default(),
        max_length: 4096,
        on_overflow: OnOverflow::Error,
        stop_ids: vec![tokenizer.token_to_id("<|im_end|>").unwrap()],
    }
}

fn weights(span: &str, weight: f32) -> MaskConfig {
    MaskConfig {
        weights: vec![SpanWeight {
            span: span.to_owned(),
            weight,
        }],
        ..MaskConfig::default()
    }
}

fn row(messages: Vec<Message>) -> Row {
    Row {
        id: "row".to_owned(),
        conversation: Conversation::new(messages),
        weight: 1.0,
        slot: None,
    }
}

fn turn(question: &str, answer: &str) -> [Message; 2] {
    [
        Message::new(Role::User, question),
        Message::new(Role::Assistant, answer),
    ]
}

fn call(name: &str, arguments: Value) -> Message {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object")
    };
    Message {
        content: None,
        tool_calls: vec![ToolCall {
            id: None,
            name: name.to_owned(),
            arguments,
            derived: Default::default(),
        }],
        ..Message::new(Role::Assistant, "")
    }
}

fn example(row: &Row, options: &PrepareOptions) -> TokenizedExample {
    match tokenize_row(row, &chatml(), &tokenizer(), options).unwrap() {
        TokenizeOutcome::Example { example, .. } => example,
        dropped => panic!("{dropped:?}"),
    }
}

fn fault(row: &Row, options: &PrepareOptions) -> String {
    tokenize_row(row, &chatml(), &tokenizer(), options)
        .unwrap_err()
        .to_string()
}

/// The supervised text; runs of other tokens become `…`.
fn supervised_text(example: &TokenizedExample) -> String {
    let tokenizer = tokenizer();
    let mut text = String::new();
    let mut run = Vec::new();
    for (&id, &weight) in example.input_ids.iter().zip(&example.loss_weights) {
        if weight > 0.0 {
            run.push(id);
        } else if !run.is_empty() || text.is_empty() {
            text.push_str(&tokenizer.decode(&run, Specials::Keep).unwrap());
            text.push('…');
            run.clear();
        }
    }
    text + &tokenizer.decode(&run, Specials::Keep).unwrap()
}
