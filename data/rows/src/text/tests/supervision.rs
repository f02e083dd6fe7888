//! Supervised tokens and rejected rows.

use serde_json::json;
use tooltune_template::{ChatTemplate, Message, Role, SpecialTokens};

use super::*;

/// Invariant: Only the answer and its end of turn are supervised.
#[test]
fn only_the_answer_and_its_end_of_turn_are_supervised() {
    let example = example(
        &row(turn("Hi", "Good bye.").to_vec()),
        &options(&tokenizer()),
    );
    assert_eq!(supervised_text(&example), "…Good bye.<|im_end|>…");
    assert_eq!(example.input_ids.len(), example.loss_weights.len());
}

#[test]
fn train_on_selects_the_turns() {
    let row = row([turn("A?", "First."), turn("B?", "Second.")].concat());
    for (train_on, expected) in [
        (TrainOn::Completion, "…Second.<|im_end|>…"),
        (TrainOn::LastAssistant, "…Second.<|im_end|>…"),
        (TrainOn::Assistant, "…First.<|im_end|>…Second.<|im_end|>…"),
        (
            TrainOn::All,
            "…user\nA?<|im_end|>\n<|im_start|>assistant\nFirst.<|im_end|>\n\
             <|im_start|>user\nB?<|im_end|>\n<|im_start|>assistant\nSecond.<|im_end|>\n",
        ),
    ] {
        let mut options = options(&tokenizer());
        options.mask.train_on = train_on;
        assert_eq!(
            supervised_text(&example(&row, &options)),
            expected,
            "{train_on:?}"
        );
    }
}

#[test]
fn a_completion_of_several_messages_excludes_tool_results() {
    let mut messages = turn("Weather?", "").to_vec();
    messages[1] = call("get", json!({"city": "Oslo"}));
    messages.push(Message::new(Role::Tool, "rain"));
    messages.push(Message::new(Role::Assistant, "Rain."));
    let mut row = row(messages);
    row.conversation.completion_start = 1;
    assert_eq!(
        supervised_text(&example(&row, &options(&tokenizer()))),
        "…<tool_call>{\"name\": \"get\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call><|im_end|>…\
         Rain.<|im_end|>…"
    );
}

#[test]
fn masking_argument_values_leaves_the_call_with_its_values_blanked() {
    let row = row(vec![
        Message::new(Role::User, "Go"),
        call(
            "book",
            json!({"city": "Oslo", "days": 12, "open": true, "note": ""}),
        ),
    ]);
    let mut options = options(&tokenizer());
    options.mask = weights("tool_call.arguments.value", 0.0);
    assert_eq!(
        supervised_text(&example(&row, &options)),
        "…<tool_call>{\"name\": \"book\", \"arguments\": {\"city\": \"…\", \"days\":…, \"open\":…, \
         \"note\": \"\"}}</tool_call><|im_end|>…"
    );
}

#[test]
fn straddling_tokens_get_the_smaller_or_the_larger_weight_or_are_an_error() {
    let row = row(vec![
        Message::new(Role::User, "Go"),
        call("f", json!({"days": 12})),
    ]);
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask = weights("tool_call.arguments.value", 0.0);
    // The space before a number and its first digits are one token.
    let masked = supervised_text(&example(&row, &options));
    assert!(masked.contains("\"days\":…}}"), "{masked}");
    let inspected = inspect_row(&row, &chatml(), &tokenizer, &options).unwrap();
    let straddling: Vec<&str> = inspected
        .tokens
        .iter()
        .filter(|token| token.straddles)
        .map(|token| token.text.as_str())
        .collect();
    assert_eq!(straddling, [" 12"]);
    options.mask.straddle = Straddle::Train;
    let trained = supervised_text(&example(&row, &options));
    assert!(trained.contains("\"days\": 12}}"), "{trained}");
    options.mask.straddle = Straddle::Error;
    let fault = fault(&row, &options);
    assert!(
        fault.contains("token \" 12\" crosses the boundary of tool_call.arguments.value"),
        "{fault}"
    );
}

#[test]
fn weights_apply_in_order_and_only_to_supervised_tokens() {
    let row = row([turn("A?", "First."), turn("B?", "Second.")].concat());
    let mut options = options(&tokenizer());
    options.mask = weights("assistant", 0.5);
    options
        .mask
        .weights
        .extend(weights("assistant.content", 2.0).weights);
    let example = example(&row, &options);
    let tokenizer = tokenizer();
    let text_with_weight = |expected: f32| {
        let ids: Vec<u32> = example
            .input_ids
            .iter()
            .zip(&example.loss_weights)
            .filter(|&(_, &weight)| weight == expected)
            .map(|(&id, _)| id)
            .collect();
        tokenizer.decode(&ids, Specials::Keep).unwrap()
    };
    assert_eq!(text_with_weight(2.0), "Second.");
    assert_eq!(text_with_weight(0.5), "<|im_end|>");
}

#[test]
fn unknown_spans_and_invalid_weights_are_errors() {
    let unknown = weights("tool_call.value", 0.0).validate().unwrap_err();
    assert!(
        unknown.to_string().contains("use one of assistant, "),
        "{unknown}"
    );
    for weight in [-1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(
            weights("assistant", weight).validate(),
            Err(DataError::BadWeight { .. })
        ));
    }
}

#[test]
fn an_end_of_turn_without_weight_is_an_error() {
    let row = row(turn("Hi", "Good bye.").to_vec());
    let mut options = options(&tokenizer());
    options.mask = weights("completion", 0.0);
    let error = fault(&row, &options);
    assert!(
        error.contains("no supervised stop token at the end of message 1"),
        "{error}"
    );
    assert!(!error.contains("built-in"), "{error}");
}

#[test]
fn a_template_that_does_not_end_the_turn_with_a_stop_token_is_an_error() {
    let tokenizer = tokenizer();
    let row = row(turn("Hi", "Good bye.").to_vec());
    let source = CHATML.replace("<|im_end|>", "<|endoftext|>");
    let template = ChatTemplate::new(&source, SpecialTokens::default()).unwrap();
    let error = tokenize_row(&row, &template, &tokenizer, &options(&tokenizer)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row: no supervised stop token at the end of message 1, so the model would not learn to \
         stop; the text after the message is \"<|endoftext|>\\n\": use a template that ends the turn \
         with one of the stop tokens <|im_end|>, and give that token a weight; built-in templates for \
         this model's turns: data.chat_template = \"chatml-tools\""
    );
    // Without the tokens of its turns no built-in template fits.
    let stop_ids = vec![tokenizer.token_to_id("<|endoftext|>").unwrap()];
    let other = PrepareOptions {
        stop_ids,
        ..options(&tokenizer)
    };
    let error = tokenize_row(&row, &chatml(), &tokenizer, &other).unwrap_err();
    let error = error.to_string();
    assert!(error.ends_with("and give that token a weight"), "{error}");
    let none = PrepareOptions {
        stop_ids: Vec::new(),
        ..options(&tokenizer)
    };
    let error = tokenize_row(&row, &template, &tokenizer, &none).unwrap_err();
    assert!(matches!(error.fault(), DataError::NoStopIds), "{error}");
}

/// Invariant: A supervised answer contains no stop token before its end.
#[test]
fn a_stop_token_inside_an_answer_is_an_error_with_its_location() {
    let error_of = |messages: Vec<Message>, train_on: TrainOn| {
        let mut options = options(&tokenizer());
        options.mask.train_on = train_on;
        fault(&row(messages), &options)
    };
    assert_eq!(
        error_of(turn("Hi", "a<|im_end|>b").to_vec(), TrainOn::Completion),
        "row: message 1 contains the stop token \"<|im_end|>\" after \"a\": generation would end \
         there and never reach the rest; remove the token from the row, or, if the chat template writes \
         it, use a template that writes it only at the end of a turn"
    );
    let long = format!("{}<|im_end|>", "long ".repeat(100));
    let fault = error_of([turn("A?", &long), turn("B?", "b")].concat(), TrainOn::All);
    let part = format!(
        "message 1 contains the stop token \"<|im_end|>\" after \"…{}\"",
        "long ".repeat(8)
    );
    assert!(fault.contains(&part), "{fault}");
    let called = call("f", json!({"text": "x<|im_end|>"}));
    let fault = error_of(
        vec![Message::new(Role::User, "Go"), called],
        TrainOn::Completion,
    );
    assert!(
        fault.contains("message 1 contains the stop token"),
        "{fault}"
    );
}

#[test]
fn a_stop_token_in_the_prompt_is_accepted() {
    let row = row([turn("Hi<|im_end|>", "a<|im_end|>b"), turn("B?", "c")].concat());
    assert_eq!(
        supervised_text(&example(&row, &options(&tokenizer()))),
        "…c<|im_end|>…"
    );
}

/// Invariant: Completions are truncated and rows without a supervised token are dropped only if the
/// config allows it.
#[test]
fn a_row_without_supervised_tokens_is_rejected_or_dropped() {
    let row = row(vec![Message::new(Role::User, "Hi")]);
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    assert!(fault(&row, &options).starts_with("row: no token of the row is supervised"));
    options.mask.on_empty = OnEmpty::Drop;
    let outcome = tokenize_row(&row, &chatml(), &tokenizer, &options).unwrap();
    assert!(
        matches!(&outcome, TokenizeOutcome::Dropped(row) if row.reason == DropReason::NothingTrained),
        "{outcome:?}"
    );
}

#[test]
fn the_first_token_is_not_supervised_and_a_row_of_one_token_is_an_error() {
    let template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}";
    let template = ChatTemplate::new(template, SpecialTokens::default()).unwrap();
    let tokenizer = tokenizer();
    let options = options(&tokenizer);
    let tokenize = |text: &str| {
        let row = row(vec![Message::new(Role::Assistant, text)]);
        tokenize_row(&row, &template, &tokenizer, &options)
    };
    let TokenizeOutcome::Example { example, .. } = tokenize("ab cd ef").unwrap() else {
        panic!("nothing is dropped");
    };
    assert_eq!(example.loss_weights[0], 0.0);
    assert_eq!(example.n_trained_tokens(), example.input_ids.len() - 1);
    let error = tokenize("").unwrap_err().to_string();
    assert!(error.contains("which nothing predicts"), "{error}");
}

/// Invariant: Completions are truncated and rows without a supervised token are dropped only if the
/// config allows it.
#[test]
fn a_too_long_row_is_rejected_dropped_or_truncated() {
    let row = row(turn("Hi", "one two three four five six").to_vec());
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    let untruncated = example(&row, &options);
    options.max_length = untruncated.input_ids.len() - 3;
    assert!(fault(&row, &options).contains("truncation would train the model on incomplete"));
    options.on_overflow = OnOverflow::Drop;
    let outcome = tokenize_row(&row, &chatml(), &tokenizer, &options).unwrap();
    assert!(
        matches!(&outcome, TokenizeOutcome::Dropped(row) if row.reason == DropReason::TooLong),
        "{outcome:?}"
    );
    options.on_overflow = OnOverflow::Truncate;
    let cut = example(&row, &options);
    assert_eq!(cut.input_ids, untruncated.input_ids[..options.max_length]);
    assert_eq!(
        cut.loss_weights,
        untruncated.loss_weights[..options.max_length]
    );
    options.max_length = 4;
    assert!(fault(&row, &options).contains("the answer is beyond max_length"));
}

#[test]
fn two_begin_tokens_are_an_error_in_training_and_in_prompts() {
    let tokenizer = tokenizer();
    let special = SpecialTokens {
        bos_token: Some("<|endoftext|>".to_owned()),
        ..SpecialTokens::default()
    };
    let source = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
    let template = ChatTemplate::new(source, special).unwrap();
    let doubled = row(turn("<|endoftext|>Hi", "Bye").to_vec());
    let trained = tokenize_row(&doubled, &template, &tokenizer, &options(&tokenizer));
    let prompted = prompt_ids(&doubled, &template, &tokenizer);
    for error in [trained.unwrap_err(), prompted.unwrap_err()] {
        assert!(
            error
                .to_string()
                .starts_with("row: the row begins with two"),
            "{error}"
        );
    }
    let single = row(turn("Hi", "Bye").to_vec());
    assert!(tokenize_row(&single, &template, &tokenizer, &options(&tokenizer)).is_ok());
}

#[test]
fn weights_on_spans_that_a_template_hides_are_an_error() {
    let source = CHATML.replace("{{ m.content }}", "{{ m.content|length }} {{ m.content }}");
    let template = ChatTemplate::new(&source, SpecialTokens::default()).unwrap();
    let tokenizer = tokenizer();
    let row = row(turn("Hi", "Bye").to_vec());
    let mut options = options(&tokenizer);
    assert!(tokenize_row(&row, &template, &tokenizer, &options).is_ok());
    options.mask = weights("assistant.content", 0.5);
    let error = tokenize_row(&row, &template, &tokenizer, &options).unwrap_err();
    assert!(
        matches!(error.fault(), DataError::SpanLost { .. }),
        "{error}"
    );
}

#[test]
fn the_report_counts_rows_tokens_and_straddlers() {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask = weights("tool_call.arguments.value", 0.0);
    options.mask.on_empty = OnEmpty::Drop;
    let question = || Message::new(Role::User, "Go");
    let rows = [
        row(vec![question(), call("f", json!({"days": 12}))]),
        row(vec![question(), call("f", json!({"days": 12, "more": 7}))]),
        row(vec![question()]),
    ];
    let prepared = prepare(rows.into_iter().map(Ok), &chatml(), &tokenizer, &options).unwrap();
    let report = &prepared.report;
    assert_eq!((report.n_rows, report.n_dropped()), (3, 1));
    assert_eq!(report.dropped[0].reason, DropReason::NothingTrained);
    assert_eq!(prepared.examples.len(), 2);
    let n_tokens: usize = prepared.examples.iter().map(|e| e.input_ids.len()).sum();
    let all_weights = prepared.examples.iter().flat_map(|e| &e.loss_weights);
    assert_eq!(report.n_tokens, n_tokens);
    assert_eq!(
        report.n_trained_tokens,
        all_weights.filter(|&&w| w > 0.0).count()
    );
    assert_eq!(report.n_straddling, 3);
    let commonest: Vec<(&str, usize)> = report
        .straddling
        .iter()
        .map(|token| (token.text.as_str(), token.count))
        .collect();
    assert_eq!(commonest, [(" 12", 2), (" 7", 1)]);
}

#[test]
fn a_kind_of_span_that_no_row_has_is_an_error_that_names_the_setting() {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    let call_text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"days\": 12}}\n</tool_call>";
    let question = || Message::new(Role::User, "Go");
    let prepared = |options: &PrepareOptions, message: Message| {
        let rows = [row(vec![question(), message])];
        prepare(rows.into_iter().map(Ok), &chatml(), &tokenizer, options)
    };
    let in_text = || Message::new(Role::Assistant, call_text);
    for (mask, setting) in [
        (weights("tool_call.arguments.value", 0.5), "`mask.weights`"),
        (
            MaskConfig {
                arguments: ArgumentMask::All,
                ..options.mask.clone()
            },
            "`mask.arguments`",
        ),
    ] {
        options.mask = mask;
        let error = prepared(&options, in_text()).unwrap_err().to_string();
        assert!(
            error.contains(setting) && error.contains("1 rows"),
            "{error}"
        );
        let called = call("f", json!({"days": 12, "more": 7}));
        let report = prepared(&options, called).unwrap().report;
        let masked = match options.mask.arguments {
            ArgumentMask::All => 2,
            _ => 0,
        };
        assert_eq!(report.n_masked_values, masked);
    }
}

#[test]
fn a_data_set_whose_rows_are_all_dropped_is_an_error_with_reasons() {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.on_overflow = OnOverflow::Drop;
    options.max_length = 2;
    let rows = [row(turn("Hi", "Bye").to_vec())];
    let error = prepare(rows.into_iter().map(Ok), &chatml(), &tokenizer, &options).unwrap_err();
    assert!(
        error.to_string().contains("1 longer than max_length"),
        "{error}"
    );
}

#[test]
fn inspection_shows_every_byte_of_the_row_once() {
    let tokenizer = tokenizer();
    let options = PrepareOptions {
        max_length: 10,
        ..options(&tokenizer)
    };
    let row = row(turn("Où?", "Là 🗼, voilà.").to_vec());
    let inspected = inspect_row(&row, &chatml(), &tokenizer, &options).unwrap();
    assert_eq!(inspected.n_overflowing, inspected.tokens.len() - 10);
    let mut reached = 0;
    for token in &inspected.tokens {
        assert!(token.start <= reached && token.end >= reached, "{token:?}");
        reached = token.end;
    }
    assert_eq!(reached, inspected.text.len());
    assert!(
        inspected
            .tokens
            .windows(2)
            .any(|two| two[0].text == two[1].text)
    );
    assert_eq!(inspected.pieces().count(), inspected.tokens.len());
    assert_eq!(inspected.pieces().collect::<String>(), inspected.text);
    let supervised: String = inspected
        .tokens
        .iter()
        .filter(|token| token.weight > 0.0 && token.text.is_ascii())
        .map(|token| token.text.as_str())
        .collect();
    assert!(supervised.ends_with(".<|im_end|>"), "{supervised}");
    let as_json = serde_json::to_value(&inspected).unwrap();
    assert_eq!(as_json["tokens"][0]["text"], "<|im_start|>");
    assert_eq!(as_json["lost_spans"], json!([]));
}

#[test]
fn mask_names_match_the_configuration() {
    let mask: MaskConfig = serde_json::from_value(json!({
        "train_on": "last-assistant",
        "weights": [{"span": "tool_call.arguments.value", "weight": 0.0}],
        "straddle": "train",
        "on_empty": "drop",
    }))
    .unwrap();
    assert_eq!(mask.train_on, TrainOn::LastAssistant);
    assert_eq!(mask.straddle, Straddle::Train);
    assert_eq!(mask.on_empty, OnEmpty::Drop);
    let nothing: MaskConfig = serde_json::from_value(json!({})).unwrap();
    assert_eq!(nothing, MaskConfig::default());
    assert_eq!(nothing.train_on, TrainOn::Completion);
    let typo = serde_json::from_value::<MaskConfig>(json!({"train": "all"}));
    assert!(typo.is_err());
}

#[test]
fn a_tokenizer_with_truncation_padding_and_a_post_processor_still_reads_the_whole_text() {
    let path = fixtures().join("tiny_tokenizer/tokenizer.json");
    let mut noisy = tokenizers::Tokenizer::from_file(path).unwrap();
    noisy
        .with_truncation(Some(tokenizers::TruncationParams {
            max_length: 3,
            ..Default::default()
        }))
        .unwrap();
    noisy.with_padding(Some(tokenizers::PaddingParams::default()));
    let tokenizer = Tokenizer::from_tokenizers(noisy);
    let text = "  one  two three four five ";
    let encoded = tokenizer.encode(text).unwrap();
    assert_eq!(
        tokenizer.decode(&encoded.ids, Specials::Keep).unwrap(),
        text
    );
    assert_eq!(encoded.offsets.first().unwrap().0, 0);
    assert_eq!(encoded.offsets.last().unwrap().1, text.len());
}

/// Builds a tokenizer like Llama 2's and Mistral's: spaces become `▁`, one is added before each
/// piece, and unknown characters are encoded as bytes.
fn metaspace_tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(
        "▁INST[]/abcdefghijklmnopqrstuvwxyzGH.?"
            .chars()
            .map(String::from),
    );
    tokens.extend(["▁G", "▁Go"].map(str::to_owned));
    let vocab: serde_json::Map<_, _> = (0..)
        .map(Value::from)
        .zip(tokens)
        .map(|(id, token)| (token, id))
        .collect();
    let special = |id: u32, token: &str| json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let file = json!({
        "version": "1.0",
        "added_tokens": [special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": [["▁", "G"], ["▁G", "o"]],
        },
    });
    Tokenizer::from_tokenizers(tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap())
}

#[test]
fn a_tokenizer_that_adds_spaces_supervises_the_same_text() {
    let tokenizer = metaspace_tokenizer();
    let path = fixtures().join("chat_templates/templates/llama2.jinja");
    let special = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    };
    let template = ChatTemplate::new(&std::fs::read_to_string(path).unwrap(), special).unwrap();
    let row = row([turn("Hi?", "no"), turn("é?", "Good bye, 🗼.")].concat());
    let options = PrepareOptions {
        stop_ids: vec![2],
        ..options(&super::tokenizer())
    };
    let inspected = inspect_row(&row, &template, &tokenizer, &options).unwrap();
    let supervised: Vec<u32> = inspected
        .tokens
        .iter()
        .filter(|token| token.weight > 0.0)
        .map(|token| token.id)
        .collect();
    let decoded = tokenizer.decode(&supervised, Specials::Keep).unwrap();
    assert_eq!(decoded, " Good bye, 🗼. </s>");
    assert!(inspected.tokens.iter().all(|token| !token.straddles));
    let prompt = prompt_ids(&row, &template, &tokenizer).unwrap();
    let all: Vec<u32> = inspected.tokens.iter().map(|token| token.id).collect();
    assert_eq!(all[..prompt.len()], prompt);
    assert_eq!(all.len(), prompt.len() + supervised.len());
}

#[test]
fn a_broken_tokenizer_file_is_an_error_with_its_path() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}").unwrap();
    let error = Tokenizer::from_file(file.path()).unwrap_err();
    assert!(matches!(error, DataError::TokenizerFile { .. }), "{error}");
    assert!(Tokenizer::from_file(Path::new("no/tokenizer.json")).is_err());
}

#[test]
fn decoding_keeps_or_skips_special_tokens() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("a<|im_end|>").unwrap().ids;
    assert_eq!(
        tokenizer.decode(&ids, Specials::Keep).unwrap(),
        "a<|im_end|>"
    );
    assert_eq!(tokenizer.decode(&ids, Specials::Skip).unwrap(), "a");
    assert_eq!(tokenizer.vocab_size(), 1024);
}
