//! Both types of tokenizers, and the bytes of their tokens.

use tooltune_rows::text::Specials;

use super::*;

fn tokenizer_from_json(file: &Value) -> Tokenizer {
    let inner = tokenizers::Tokenizer::from_bytes(file.to_string().as_bytes());
    Tokenizer::from_tokenizers(inner.unwrap())
}

/// A vocabulary like Llama 2's: spaces as U+2581, and byte tokens for other characters.
fn sentence_pieces() -> Value {
    let mut vocabulary = serde_json::Map::new();
    let mut add = |piece: &str| {
        let id = vocabulary.len();
        vocabulary.insert(piece.to_owned(), json!(id));
    };
    ["<unk>", "<s>", "</s>", "[TOOL_CALLS]"]
        .iter()
        .for_each(|piece| add(piece));
    (0..=255).for_each(|byte: u8| add(&format!("<0x{byte:02X}>")));
    for byte in b'!'..=b'~' {
        add(&char::from(byte).to_string());
    }
    ["▁", "é", "▁{", "\":", "▁\"", "[{", "▁["]
        .iter()
        .for_each(|piece| add(piece));
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "added_tokens": [special(1, "<s>"), special(2, "</s>"), special(3, "[TOOL_CALLS]")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary,
            "merges": ["▁ {", "\" :", "▁ \"", "[ {", "▁ ["]},
    })
}

#[test]
fn every_token_of_a_byte_level_vocabulary_writes_what_it_decodes_to() {
    let (tokenizer, vocabulary) = (tokenizer(), vocabulary());
    let mut n_exact = 0;
    let no_utf8 = tokenizer.token_to_id("ÿ").unwrap();
    for id in 0..tokenizer.vocab_size() as u32 {
        if id == no_utf8 {
            continue;
        }
        let decoded = tokenizer.decode(&[id], Specials::Skip).unwrap();
        let bytes = vocabulary.bytes(id);
        assert_eq!(String::from_utf8_lossy(bytes), decoded, "{id}");
        n_exact += usize::from(std::str::from_utf8(bytes).is_ok() && !bytes.is_empty());
    }
    assert!(n_exact > 700, "{n_exact}");
    for id in tokenizer.vocab_size() as u32..vocabulary.n_logits() as u32 + 3 {
        assert_eq!(vocabulary.bytes(id), b"");
    }
}

#[test]
fn sentence_pieces_write_blanks_and_bytes() {
    let tokenizer = tokenizer_from_json(&sentence_pieces());
    let vocabulary = Vocabulary::new(&tokenizer, 400, &[2]).unwrap();
    let bytes = |piece: &str| vocabulary.bytes(tokenizer.token_to_id(piece).unwrap());
    assert_eq!(bytes("▁{"), b" {");
    assert_eq!(bytes("<0xE6>"), [0xe6]);
    assert_eq!(bytes("é"), "é".as_bytes());
    assert_eq!(bytes("</s>"), b"");

    let schema = json!({"type": "object", "properties": {"k": {"type": "string"}},
        "required": ["k"], "additionalProperties": false});
    let grammar = Grammar::json_schema(&vocabulary, &schema, &patient_options()).unwrap();
    // The first token has the leading space that decoding drops.
    assert!(accepts_with(&tokenizer, &grammar, "{\"k\": \"é 東京\"}"));
    assert!(!accepts_with(&tokenizer, &grammar, "{\"k\": 1}"));
    let first: Vec<u32> = grammar.constraint().mask().unwrap().allowed().collect();
    for piece in ["▁{", "{", "▁", "<0x20>", "<0x7B>"] {
        assert!(
            first.contains(&tokenizer.token_to_id(piece).unwrap()),
            "{piece}"
        );
    }
}

#[test]
fn a_marker_with_a_special_token_is_one_token() {
    let tokenizer = tokenizer_from_json(&sentence_pieces());
    let vocabulary = Vocabulary::new(&tokenizer, 400, &[2]).unwrap();
    let tools = [json!({"name": "now"})];
    let options = patient_options();
    let grammar = Grammar::tool_call(&vocabulary, &tools, CallFormat::Mistral, &options).unwrap();
    let mut constraint = grammar.constraint();
    let blank = tokenizer.token_to_id("▁").unwrap();
    assert!(
        constraint
            .mask()
            .unwrap()
            .allowed()
            .all(|id| id == 3 || vocabulary.bytes(id) == b" ")
    );
    assert!(constraint.mask().unwrap().is_allowed(blank));
    constraint.consume(3).unwrap();
    let rest = "[{\"name\": \"now\", \"arguments\": {}}]";
    for id in tokenizer.encode(rest).unwrap().ids {
        constraint.consume(id).unwrap();
    }
    assert!(constraint.is_complete().unwrap());
}

#[test]
fn logits_may_be_fewer_than_tokens() {
    let vocabulary = Vocabulary::new(&tokenizer(), 300, &[stop_id()]).unwrap();
    let grammar = Grammar::json_schema(&vocabulary, &json!({}), &patient_options());
    let mut constraint = grammar.unwrap().constraint();
    assert!(constraint.mask().unwrap().allowed().all(|id| id < 300));
    assert!(constraint.consume(300).is_err());
}

#[test]
fn tokenizers_with_unknown_byte_spelling_are_refused() {
    let refusal = |tokenizer: &Tokenizer, stop_ids: &[u32]| {
        Vocabulary::new(tokenizer, 400, stop_ids)
            .unwrap_err()
            .to_string()
    };
    let mut file = sentence_pieces();
    file["decoder"] = json!({"type": "BPEDecoder", "suffix": "</w>"});
    let unknown = refusal(&tokenizer_from_json(&file), &[2]);
    assert!(unknown.contains("BPEDecoder is not supported"), "{unknown}");

    let mut file = sentence_pieces();
    file["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Lowercase"}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]});
    let changed = refusal(&tokenizer_from_json(&file), &[2]);
    assert!(changed.contains("decodes"), "{changed}");

    let plain = tokenizer_from_json(&sentence_pieces());
    assert!(refusal(&plain, &[]).contains("no stop token"));
    assert!(refusal(&plain, &[2, 400]).contains("stop token 400 has no logit"));
}
