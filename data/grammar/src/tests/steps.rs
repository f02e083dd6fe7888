//! A completion step by step: masks, forced tokens, ends, clones.

use super::*;

fn ticket() -> Value {
    json!({"type": "object", "properties": {"seat": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["seat", "name"], "additionalProperties": false})
}

fn consume_text(constraint: &mut Constraint, text: &str) {
    for id in tokenizer().encode(text).unwrap().ids {
        constraint.consume(id).unwrap();
    }
}

#[test]
fn a_mask_has_a_bit_for_each_logit_and_none_beyond() {
    let mut constraint = grammar(&json!({})).constraint();
    let n_logits = vocabulary().n_logits();
    let mask = constraint.mask().unwrap();
    assert_eq!(mask.words().len(), n_logits.div_ceil(32));
    assert_eq!(mask.allowed().count(), mask.n_allowed());
    assert!(mask.allowed().all(|id| mask.is_allowed(id)));
    let n_tokens = tokenizer().vocab_size() as u32;
    assert!(mask.n_allowed() > 10 && mask.allowed().all(|id| id < n_tokens));
    assert!(!mask.is_allowed(u32::MAX));

    let mut logits: Vec<f32> = (0..n_logits + 3).map(|id| id as f32).collect();
    mask.apply(&mut logits);
    for (id, &logit) in (0..).zip(&logits) {
        let expected = if mask.is_allowed(id) {
            id as f32
        } else {
            f32::NEG_INFINITY
        };
        assert_eq!(logit, expected, "{id}");
    }
}

#[test]
fn argmax_equals_the_argmax_of_the_masked_logits() {
    let mut constraint = grammar(&ticket()).constraint();
    let n_logits = vocabulary().n_logits();
    for step in 0..12 {
        let mask = constraint.mask().unwrap();
        // Ties, numbers below zero, and a maximum that is mostly forbidden.
        let logit = |id: usize| ((id * 31 + step * 17) % 23) as f32 - 11.0;
        let logits: Vec<f32> = (0..n_logits).map(logit).collect();
        let mut masked = logits.clone();
        mask.apply(&mut masked);
        let largest = masked.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = masked.iter().position(|&logit| logit == largest).unwrap();
        let chosen = mask.argmax(&logits);
        assert_eq!(chosen as usize, first, "step {step}");
        assert_eq!(mask.argmax(&vec![f32::NEG_INFINITY; n_logits]), 0);
        constraint.consume(chosen).unwrap();
    }
}

#[test]
fn special_tokens_never_occur_in_text_and_a_complete_text_ends_the_turn() {
    let mut constraint = grammar(&json!({"type": "string"})).constraint();
    let specials = ["<|endoftext|>", "<|im_start|>"].map(|t| tokenizer().token_to_id(t).unwrap());
    for (text, is_complete) in [("\"", false), ("a", false), ("\"", true)] {
        assert!(!constraint.mask().unwrap().is_allowed(stop_id()));
        assert!(matches!(
            constraint.consume(stop_id()),
            Err(GrammarError::NotAllowed { .. })
        ));
        consume_text(&mut constraint, text);
        for id in specials {
            assert!(!constraint.mask().unwrap().is_allowed(id));
            assert!(constraint.consume(id).is_err());
        }
        assert_eq!(constraint.is_complete().unwrap(), is_complete);
    }
    let mask = constraint.mask().unwrap();
    assert_eq!(mask.allowed().collect::<Vec<_>>(), [stop_id()]);
    constraint.consume(stop_id()).unwrap();
    assert!(constraint.is_ended() && constraint.is_complete().unwrap());
    let after = constraint.consume(stop_id()).unwrap_err();
    assert!(matches!(after, GrammarError::AfterTheEnd { .. }));
    assert_eq!(constraint.mask().unwrap().n_allowed(), 1);
}

#[test]
fn a_trailing_number_can_continue_or_end() {
    let mut constraint = grammar(&json!({"type": "integer"})).constraint();
    consume_text(&mut constraint, "12");
    let mask = constraint.mask().unwrap();
    let three = tokenizer().encode("3").unwrap().ids[0];
    assert!(mask.is_allowed(stop_id()) && mask.is_allowed(three));
}

#[test]
fn a_refused_token_changes_nothing() {
    let mut constraint = grammar(&ticket()).constraint();
    consume_text(&mut constraint, "{\"seat\": ");
    let allowed: Vec<u32> = constraint.mask().unwrap().allowed().collect();
    for id in (0..vocabulary().n_logits() as u32 + 5).filter(|id| !allowed.contains(id)) {
        assert!(constraint.consume(id).is_err(), "{id}");
    }
    let after: Vec<u32> = constraint.mask().unwrap().allowed().collect();
    assert_eq!(allowed, after);
    consume_text(&mut constraint, "3, \"name\": \"x\"}");
    assert!(constraint.is_complete().unwrap());
}

#[test]
fn clones_advance_independently_and_reset_restarts() {
    let grammar = grammar(&ticket());
    let mut first = grammar.constraint();
    let start: Vec<u32> = first.mask().unwrap().allowed().collect();
    consume_text(&mut first, "{\"seat\": 1");
    let mut second = first.clone();
    consume_text(&mut first, ", \"name\": \"a\"}");
    consume_text(&mut second, "2, \"na");
    assert!(first.is_complete().unwrap() && !second.is_complete().unwrap());
    first.consume(stop_id()).unwrap();
    for constraint in [&mut first, &mut second] {
        constraint.reset().unwrap();
        assert!(!constraint.is_ended());
        assert_eq!(
            constraint.mask().unwrap().allowed().collect::<Vec<_>>(),
            start
        );
        consume_text(constraint, "{\"seat\": 7, \"name\": \"b\"}");
        assert!(constraint.is_complete().unwrap());
    }
}

#[test]
fn a_text_nested_too_deeply_for_readers_is_an_error() {
    let mut constraint = grammar(&json!({})).constraint();
    let bracket = tokenizer().encode("[").unwrap().ids[0];
    for _ in 0..tooltune_json::MAX_LEVELS {
        constraint.consume(bracket).unwrap();
    }
    let error = constraint.consume(bracket).unwrap_err().to_string();
    assert!(error.contains("127 levels"), "{error}");
}

#[test]
fn constraints_can_be_moved_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let grammar = grammar(&ticket());
    is_send(&grammar);
    is_send(&grammar.constraint());
    is_send(&vocabulary());
}
