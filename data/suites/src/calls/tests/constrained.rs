//! Parses random text that the constraint on calls allows.

use std::path::Path;

use tooltune_grammar::{CallFormat, Grammar, GrammarOptions, Vocabulary};
use tooltune_rows::text::{Specials, Tokenizer};

use super::*;

/// After this number of tokens, a random walk ends as soon as the grammar allows it.
const MIN_TOKENS: usize = 40;

/// Maximum number of tokens of a random walk.
const MAX_TOKENS: usize = 4_000;

/// Draws random tokens among those that the grammar allows; returns their text.
fn random_text(grammar: &Grammar, tokenizer: &Tokenizer, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut constraint = grammar.constraint();
    let mut ids = Vec::new();
    while ids.len() < MAX_TOKENS {
        if ids.len() >= MIN_TOKENS && constraint.is_complete().expect("a state") {
            break;
        }
        let allowed: Vec<u32> = constraint.mask().expect("a mask").allowed().collect();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let id = allowed[(state >> 33) as usize % allowed.len()];
        constraint.consume(id).expect("an allowed token");
        if constraint.is_ended() {
            break;
        }
        ids.push(id);
    }
    assert!(
        constraint.is_complete().expect("a state"),
        "the walk with seed {seed} does not end"
    );
    tokenizer.decode(&ids, Specials::Keep).expect("a text")
}

#[test]
fn constrained_output_of_each_format_parses_as_calls_of_its_tools() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny_tokenizer");
    let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json")).expect("a tokenizer");
    let stop = tokenizer.token_to_id("<|im_end|>").expect("a token");
    let vocabulary =
        Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &[stop]).expect("a vocabulary");
    let tools = [
        json!({"name": "tide", "parameters": {"type": "object", "properties": {
            "port": {"type": "string", "maxLength": 8}, "days": {"type": "integer"},
            "near": {"type": "boolean"}},
            "required": ["port"], "additionalProperties": false}}),
        json!({"name": "now"}),
    ];
    let set = ToolSet::new(&tools);
    let options = GrammarOptions {
        parallel_tool_calls: true,
        ..GrammarOptions::default()
    };
    for (format, dialect) in [
        (CallFormat::Plain, CallDialect::Json),
        (CallFormat::Llama, CallDialect::Json),
        (CallFormat::Hermes, CallDialect::Hermes),
        (CallFormat::Mistral, CallDialect::Mistral),
        (CallFormat::Granite, CallDialect::Granite),
    ] {
        let grammar = Grammar::tool_call(&vocabulary, &tools, format, &options);
        let grammar = grammar.expect("a grammar");
        for seed in 0..20 {
            let text = random_text(&grammar, &tokenizer, seed);
            let answer = read_calls(&text, &set);
            assert!(!answer.calls.is_empty(), "{format:?}: {text}");
            assert!(answer.malformed.is_empty(), "{format:?}: {answer:?} {text}");
            assert_eq!(answer.dialect, Some(dialect), "{format:?}: {text}");
            for call in &answer.calls {
                assert!(!set.is_unknown(&call.name), "{format:?}: {text}");
            }
        }
    }
}
