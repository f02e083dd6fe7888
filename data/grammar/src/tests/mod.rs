//! Grammars over a tiny real tokenizer.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use jsonschema::{Draft, Validator};
use serde_json::{Value, json};
use tooltune_rows::text::Tokenizer;

use super::*;

mod calls;
mod golds;
mod hostile;
mod keys;
mod properties;
mod refusals;
mod short;
mod steps;
mod texts;
mod vocabularies;
mod walks;

fn tokenizer() -> Tokenizer {
    static LOADED: LazyLock<Tokenizer> = LazyLock::new(|| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        Tokenizer::from_file(&fixtures.join("tiny_tokenizer/tokenizer.json")).unwrap()
    });
    LOADED.clone()
}

fn stop_id() -> u32 {
    tokenizer().token_to_id("<|im_end|>").unwrap()
}

/// Includes 40 logits without a token.
fn vocabulary() -> Vocabulary {
    static BUILT: LazyLock<Vocabulary> = LazyLock::new(|| {
        let tokenizer = tokenizer();
        let n_logits = tokenizer.vocab_size() + 40;
        Vocabulary::new(&tokenizer, n_logits, &[stop_id()]).unwrap()
    });
    BUILT.clone()
}

/// Enough time even on a busy machine.
fn patient_options() -> GrammarOptions {
    GrammarOptions {
        max_compile_time: Duration::from_secs(600),
        ..GrammarOptions::default()
    }
}

fn options_with_layout(layout: Layout) -> GrammarOptions {
    GrammarOptions {
        layout,
        ..patient_options()
    }
}

fn grammar_with(schema: &Value, options: &GrammarOptions) -> Grammar {
    Grammar::json_schema(&vocabulary(), schema, options)
        .unwrap_or_else(|error| panic!("{schema}: {error}"))
}

fn grammar(schema: &Value) -> Grammar {
    grammar_with(schema, &patient_options())
}

fn refusal(schema: &Value) -> String {
    match Grammar::json_schema(&vocabulary(), schema, &patient_options()) {
        Ok(_) => panic!("{schema} is accepted"),
        Err(error) => error.to_string(),
    }
}

/// Whether a string can be generated token by token, as the tokenizer encodes it, and end the turn.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    accepts_with(&tokenizer(), grammar, text)
}

/// As [`accepts`], for a grammar whose vocabulary belongs to another tokenizer.
fn accepts_with(tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> bool {
    let mut ids = tokenizer.encode(text).unwrap().ids;
    ids.push(grammar.vocabulary().stop_ids()[0]);
    let mut constraint = grammar.constraint();
    ids.into_iter().all(|id| {
        let is_allowed = constraint.mask().unwrap().is_allowed(id);
        match constraint.consume(id) {
            Err(GrammarError::NotAllowed { .. }) => assert!(!is_allowed, "{text}: {id}"),
            consumed => assert!(is_allowed && consumed.is_ok(), "{text}: {id}: {consumed:?}"),
        }
        is_allowed
    })
}

#[track_caller]
fn check(schema: &Value, options: &GrammarOptions, accepted: &[&str], refused: &[&str]) {
    let grammar = grammar_with(schema, options);
    for text in accepted {
        assert!(accepts(&grammar, text), "{schema} refuses {text}");
    }
    for text in refused {
        assert!(!accepts(&grammar, text), "{schema} accepts {text}");
    }
}

fn validator(schema: &Value, formats: Formats) -> Validator {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .should_validate_formats(formats == Formats::Asserted)
        .build(schema)
        .unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// Pseudorandom numbers.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        // The splitmix64 of Steele, Lea and Flood, 2014.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn is_in_string(text: &[u8]) -> bool {
    let (mut is_in, mut is_escaped) = (false, false);
    for &byte in text {
        (is_in, is_escaped) = match byte {
            _ if is_escaped => (is_in, false),
            b'\\' if is_in => (is_in, true),
            b'"' => (!is_in, false),
            _ => (is_in, false),
        };
    }
    is_in
}

/// Text generated from random allowed tokens. After `n_free` tokens it prefers tokens that close
/// strings, objects and arrays.
fn walk(grammar: &Grammar, seed: u64, n_free: usize) -> String {
    let vocabulary = grammar.vocabulary();
    let mut constraint = grammar.constraint();
    let mut choices = Choices(seed);
    let mut ids = Vec::new();
    for n_tokens in 0..4_000 {
        let mask = constraint
            .mask()
            .unwrap_or_else(|error| panic!("{error} after {}", String::from_utf8_lossy(&ids)));
        let allowed: Vec<u32> = mask.allowed().collect();
        let is_in_string = is_in_string(&ids);
        let closers: &[&str] = if is_in_string {
            &["\""]
        } else {
            &["}", "]", "\"", "null", "true"]
        };
        let may_stop = mask.is_allowed(stop_id());
        let find = |text: &&str| {
            let is_it = |id: &&u32| vocabulary.bytes(**id) == text.as_bytes();
            allowed.iter().find(is_it).copied()
        };
        // The end of an email address needs characters that are drawn once in a thousand tokens.
        let draws_sign = n_tokens >= n_free && choices.below(4) == 0;
        let sign = draws_sign.then(|| find(&["@", "."][choices.below(2)]));
        let closer = closers.iter().find_map(find).or(sign.flatten());
        let id = match closer {
            _ if n_tokens >= n_free && may_stop => stop_id(),
            Some(id) if n_tokens >= n_free => id,
            _ => allowed[choices.below(allowed.len())],
        };
        constraint.consume(id).unwrap();
        if constraint.is_ended() {
            return String::from_utf8(ids).expect("whole characters");
        }
        ids.extend_from_slice(vocabulary.bytes(id));
    }
    panic!("no end after {}", String::from_utf8_lossy(&ids))
}
