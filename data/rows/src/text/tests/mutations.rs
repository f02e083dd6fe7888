//! Random corruption of model files: a corrupt file is either read or gives an error.
//!
//! Each corruption is determined by a seed, which failures print. `TOOLTUNE_MUTATIONS` is the
//! number of corrupt files per kind (default 300); `TOOLTUNE_MUTATIONS_SEED` is the first seed.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};
use tooltune_template::{
    ChatTemplate, Conversation, GenerationPrompt, Message, Role, SpecialTokens, Turns,
};

use serde_json::json;

use super::*;
use crate::batches::SeededRandom;

/// A generous time limit for slow machines.
const PATIENCE: Duration = Duration::from_secs(60);

fn number(name: &str, unset: u64) -> u64 {
    std::env::var(name).map_or(unset, |text| text.parse().unwrap())
}

/// Runs `attempt` for each seed. It may return an error, but must not panic or hang.
fn for_each_seed(kind: &str, attempt: impl Fn(&mut SeededRandom)) {
    let first = number("TOOLTUNE_MUTATIONS_SEED", 1);
    for seed in first..first + number("TOOLTUNE_MUTATIONS", 300) {
        let start = Instant::now();
        let mut random = SeededRandom::new(seed, 7);
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| attempt(&mut random)));
        let rerun = format!("{kind}: TOOLTUNE_MUTATIONS=1 TOOLTUNE_MUTATIONS_SEED={seed}");
        assert!(outcome.is_ok(), "{rerun} panics");
        assert!(
            start.elapsed() < PATIENCE,
            "{rerun} takes {:?}",
            start.elapsed()
        );
    }
}

fn pick<'t, T>(random: &mut SeededRandom, all: &'t [T]) -> &'t T {
    &all[random.below(all.len())]
}

/// Removes, changes, duplicates or moves some bytes of a file.
fn damage(mut bytes: Vec<u8>, random: &mut SeededRandom) -> Vec<u8> {
    for _ in 0..1 + random.below(3) {
        if bytes.len() < 2 {
            return bytes;
        }
        let start = random.below(bytes.len());
        let end = (start + 1 + random.below(24)).min(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(start),
            1 => drop(bytes.drain(start..end)),
            2 => bytes[start] ^= 1 << random.below(8),
            3 => {
                let part = bytes[start..end].to_vec();
                bytes.splice(end..end, part);
            }
            4 => {
                let part: Vec<u8> = bytes.drain(start..end).collect();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            _ => bytes[start] = *pick(random, b"{}[]\",:0-e.\\ %|~*'\n"),
        }
    }
    bytes
}

/// A random path in a JSON value, by member index; most paths end early.
fn random_part<'v>(value: &'v mut Value, random: &mut SeededRandom) -> &'v mut Value {
    let n_inside = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if n_inside == 0 || random.below(5) == 0 {
        return value;
    }
    let at = random.below(n_inside);
    match value {
        Value::Array(items) => random_part(&mut items[at], random),
        Value::Object(fields) => match fields.values_mut().nth(at) {
            Some(inside) => random_part(inside, random),
            None => unreachable!("a member of an object"),
        },
        _ => unreachable!("a list or an object"),
    }
}

/// Replaces some values of a JSON file by unusual ones or by values from other paths.
fn mutate(mut file: Value, random: &mut SeededRandom) -> Value {
    for _ in 0..1 + random.below(3) {
        let other = random_part(&mut file, random).clone();
        let odd = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(1),
            json!(4_294_967_296_u64),
            json!(1e300),
            json!(""),
            json!("a"),
            json!("Sequence"),
            json!("日本"),
            json!("x".repeat(10_000)),
            json!("(a+)+$"),
            json!("["),
            json!([]),
            json!({}),
            json!([[[[1]]]]),
            json!({"type": "Sequence"}),
            other,
        ];
        *random_part(&mut file, random) = pick(random, &odd).clone();
    }
    file
}

fn read(name: &str) -> String {
    std::fs::read_to_string(fixtures().join(name)).unwrap()
}

fn use_tokenizer(path: &Path, random: &mut SeededRandom) {
    let texts = [
        "Seven.",
        "",
        " \n<|im_start|>x<|im_end|>",
        "日本語 é ﷺ 🙂",
        "[CLS] the [SEP]",
    ];
    if let Ok(tokenizer) = Tokenizer::from_file(path) {
        for text in texts {
            if let Ok(encoded) = tokenizer.encode(text) {
                let _ = tokenizer.decode(&encoded.ids, Specials::Keep);
            }
        }
        let ids: Vec<u32> = (0..20).map(|_| random.below(1100) as u32).collect();
        let _ = tokenizer.decode(&ids, Specials::Skip);
        let _ = tokenizer.decode(&[u32::MAX], Specials::Keep);
        let _ = tokenizer.to_json();
        let _ = tokenizer.plain_text("a");
    }
    if let Ok(words) = WordPiece::from_file(path, WordPieceOptions::with_max_length(16)) {
        for text in texts {
            let _ = words.encode(text);
        }
    }
}

/// Invariant: A tokenizer file causes neither a panic nor unbounded growth of a text.
#[test]
fn damaged_tokenizers_are_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let files = [
        "tiny_tokenizer/tokenizer.json",
        "retriever/model/tokenizer.json",
    ]
    .map(read);
    for_each_seed("tokenizer.json", |random| {
        let file = pick(random, &files);
        let bytes = match random.below(2) {
            0 => damage(file.clone().into_bytes(), random),
            _ => {
                let mut file: Value = serde_json::from_str(file).unwrap();
                // Mutate few of the thousand tokens, but all other parts.
                let mut parts = file.clone();
                parts["model"]["vocab"] = json!({});
                parts["model"]["merges"] = json!([]);
                let mut parts = mutate(parts, random);
                if let Some(model) = parts.get_mut("model").and_then(Value::as_object_mut) {
                    for key in ["vocab", "merges"] {
                        if model
                            .get(key)
                            .is_some_and(|part| part == &json!({}) || part == &json!([]))
                        {
                            model.insert(key.to_owned(), file["model"][key].take());
                        }
                    }
                }
                parts.to_string().into_bytes()
            }
        };
        std::fs::write(&path, bytes).unwrap();
        use_tokenizer(&path, random);
    });
}

#[test]
fn damaged_templates_render_or_are_refused() {
    let names = ["qwen3", "llama3_1", "mistral_v3", "semantics"];
    let sources = names.map(|name| read(&format!("chat_templates/templates/{name}.jinja")));
    let conversation = Conversation {
        tools: Some(vec![json!({"type": "function", "function": {
            "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}})]),
        ..Conversation::new(vec![
            Message::new(Role::System, "Be brief."),
            Message::new(Role::User, "Depth?"),
            Message::new(Role::Assistant, "<think>\nHm.\n</think>\n\nSeven."),
        ])
    };
    let parts = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "|",
        "~",
        "-",
        "*",
        "(",
        ")",
        "[",
        "]",
        ".",
        ",",
        "not ",
        " if ",
        " for ",
        " in ",
        "loop",
        "messages",
        "namespace()",
        "99999999",
        "range(99999)",
        "|tojson(indent=999999999)",
        "|join",
        "|list",
        "|map('upper')",
        "|batch(99999999, 1)",
        "|sort",
        "* 99999",
        "{% endfor %}",
        "{% set x = [x, x] %}",
        "|indent(99999)",
        "'%9999999d'",
        "recursive",
        "{% macro m() %}{{ m() }}",
        "{% endmacro %}",
        "\u{e000}",
        "é",
    ];
    for_each_seed("a chat template", |random| {
        let mut source = pick(random, &sources).clone();
        for _ in 0..1 + random.below(4) {
            let bounds: Vec<usize> = source.char_indices().map(|(at, _)| at).collect();
            let at = *pick(random, &bounds);
            match random.below(4) {
                0 => {
                    let part: &str = parts[random.below(parts.len())];
                    source.insert_str(at, part);
                }
                1 => source.truncate(at),
                2 => {
                    let to = *pick(random, &bounds);
                    let part = source[at.min(to)..at.max(to)].to_owned();
                    source.insert_str(at.min(to), &part);
                }
                _ => {
                    let bytes = damage(source.into_bytes(), random);
                    source = String::from_utf8_lossy(&bytes).into_owned();
                }
            }
            if source.is_empty() {
                return;
            }
        }
        if let Ok(template) = ChatTemplate::new(&source, SpecialTokens::default()) {
            let _ = template.render(&conversation, GenerationPrompt::Add);
            let _ = template.render_with_spans(&conversation, Turns::All);
        }
    });
}

#[test]
fn damaged_tokenizer_configs_give_a_template_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer_config.json");
    let mut file: Value =
        serde_json::from_str(&read("retriever/model/tokenizer_config.json")).unwrap();
    file["chat_template"] = json!([
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": CHATML},
    ]);
    let conversation = Conversation::new(turn("Depth?", "Seven.").to_vec());
    for_each_seed("tokenizer_config.json", |random| {
        let bytes = match random.below(2) {
            0 => damage(file.to_string().into_bytes(), random),
            _ => mutate(file.clone(), random).to_string().into_bytes(),
        };
        std::fs::write(&path, bytes).unwrap();
        if let Ok(template) = ChatTemplate::from_model_dir(dir.path()) {
            let _ = template.render(&conversation, GenerationPrompt::Add);
        }
    });
}
