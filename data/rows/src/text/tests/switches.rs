//! What messages say of their own turn: `train`, `weight`, `loss`, and slips of the pen beside them.

use serde_json::json;

use super::*;

/// Rows as a file holds them.
fn read(format: DataFormat, rows: &[Value]) -> Vec<Result<Row, DataError>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    read_rows(file.path(), format).unwrap().collect()
}

/// Two turns, of which the first one has further fields.
fn guess(fields: Value) -> Value {
    let mut first = json!({"role": "assistant", "content": "A guess."});
    first
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    json!({"messages": [
        {"role": "user", "content": "How deep?"},
        first,
        {"role": "user", "content": "Look it up."},
        {"role": "assistant", "content": "7 metres."},
    ]})
}

fn guessed(fields: Value) -> Row {
    let mut rows = read(DataFormat::Messages, &[guess(fields)]);
    rows.remove(0).unwrap()
}

fn refused(row: Value) -> String {
    let error = read(DataFormat::Messages, &[row]).remove(0).unwrap_err();
    error.to_string().split_once(":1: ").unwrap().1.to_owned()
}

fn assistant() -> PrepareOptions {
    let mut options = options(&tokenizer());
    options.mask.train_on = TrainOn::Assistant;
    options
}

const BOTH: &str = "…A guess.<|im_end|>…7 metres.<|im_end|>…";
const SECOND: &str = "…7 metres.<|im_end|>…";

#[test]
fn each_spelling_of_a_switch_turns_one_turn_off_and_none_reaches_the_template() {
    let plain = example(&guessed(json!({})), &assistant());
    assert_eq!(learned(&plain), BOTH);
    for off in [
        json!({"train": false}),
        json!({"training": false}),
        json!({"loss": false}),
        json!({"weight": 0}),
        json!({"weight": 0.0, "train": false, "loss": null}),
    ] {
        let example = example(&guessed(off.clone()), &assistant());
        assert_eq!(learned(&example), SECOND, "{off}");
        assert_eq!(example.input_ids, plain.input_ids, "{off}");
    }
    for on in [
        json!({"train": true}),
        json!({"weight": 1}),
        json!({"loss": true, "train": true}),
        json!({"train": null, "weight": null}),
    ] {
        let row = guessed(on.clone());
        assert_eq!(learned(&example(&row, &assistant())), BOTH, "{on}");
        assert!(row.conversation.messages[1].extra.is_empty(), "{on}");
    }
    let source = "{% for m in messages %}{{ m | tojson }}<|im_end|>{% endfor %}";
    let shows_all = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    let text = |fields| {
        let row = guessed(fields);
        shows_all.render(&row.conversation, GenerationPrompt::Omit)
    };
    assert_eq!(
        text(json!({"train": false, "weight": 0, "loss": false})).unwrap(),
        text(json!({})).unwrap()
    );
}

#[test]
fn a_weight_scales_its_turn_and_the_spans_in_it() {
    for (fields, turn) in [
        (json!({"weight": 0.25}), 0.25),
        (json!({"weight": 0.25, "train": true}), 0.25),
        (json!({"loss": true, "weight": 4}), 4.0),
    ] {
        let mut options = assistant();
        let row = guessed(fields);
        let sum = |options: &PrepareOptions| -> Vec<f32> {
            let example = example(&row, options);
            let mut weights = example.loss_weights;
            weights.retain(|&weight| weight > 0.0);
            weights
        };
        let weights = sum(&options);
        let n = weights.iter().filter(|&&weight| weight == turn).count();
        let rest = weights.iter().filter(|&&weight| weight == 1.0).count();
        assert!(
            n > 1 && rest > 1 && n + rest == weights.len(),
            "{weights:?}"
        );
        options.mask.weights = super::weights("assistant.content", 0.5).weights;
        let halved = sum(&options);
        // Each turn keeps its end, whose weight is the turn's own.
        let ends = |of: f32| halved.iter().filter(|&&weight| weight == of).count();
        assert_eq!((ends(turn), ends(turn * 0.5)), (1, n - 1), "{halved:?}");
        assert_eq!(halved.len(), weights.len());
    }
}

#[test]
fn train_on_chooses_first_and_a_switch_only_takes_away() {
    let last_off = |row: &mut Row| row.conversation.messages[3].weight = Some(0.0);
    for (train_on, first_off, second_off) in [
        (TrainOn::Assistant, SECOND, Some("…A guess.<|im_end|>…")),
        (TrainOn::LastAssistant, SECOND, None),
        (TrainOn::Completion, SECOND, None),
    ] {
        let mut options = assistant();
        options.mask.train_on = train_on;
        let row = guessed(json!({"train": false}));
        assert_eq!(learned(&example(&row, &options)), first_off, "{train_on:?}");
        // `true` adds no turn that mask.train_on leaves out.
        let on = guessed(json!({"train": true}));
        let plain = guessed(json!({}));
        assert_eq!(
            example(&on, &options),
            TokenizedExample {
                id: on.id.clone(),
                ..example(&plain, &options)
            }
        );
        let mut row = guessed(json!({}));
        last_off(&mut row);
        match second_off {
            Some(wanted) => assert_eq!(learned(&example(&row, &options)), wanted),
            None => {
                let fault = fault(&row, &options);
                let reason = "would be learned (train, weight or loss switches its turns off)";
                assert!(fault.contains(reason), "{fault}");
            }
        }
    }
    let mut options = assistant();
    options.mask.train_on = TrainOn::All;
    assert_eq!(
        learned(&example(&guessed(json!({"loss": false})), &options)),
        "…user\nHow deep?<|im_end|>\n<|im_start|>assistant\n…\n<|im_start|>user\nLook it \
         up.<|im_end|>\n<|im_start|>assistant\n7 metres.<|im_end|>\n"
    );
}

#[test]
fn a_row_whose_turns_are_all_switched_off_is_an_error_or_dropped_and_turns_are_counted() {
    let all_off = || {
        let mut row = guessed(json!({"train": false}));
        row.conversation.messages[3].weight = Some(0.0);
        row
    };
    let mut options = assistant();
    let fault = fault(&all_off(), &options);
    assert!(fault.contains("switches its turns off"), "{fault}");
    options.mask.on_empty = OnEmpty::Drop;
    let rows = [Ok(all_off()), Ok(guessed(json!({"weight": 0})))];
    let prepared = prepare(rows.into_iter(), &chatml(), &tokenizer(), &options).unwrap();
    assert_eq!(prepared.report.n_dropped(), 1);
    assert_eq!(prepared.report.unlearned.n_switched_off, 1);
    let row = guessed(json!({"loss": false}));
    let inspected = inspect_row(&row, &chatml(), &tokenizer(), &options).unwrap();
    assert_eq!(inspected.switched_off, [1]);
    let asked = AskedPrompt::of_row(&all_off(), &chatml(), &tokenizer(), &options).unwrap_err();
    assert!(matches!(asked.fault(), DataError::NoAnswer), "{asked}");
}

#[test]
fn a_turn_that_is_switched_off_may_end_as_it_likes_and_is_no_answer() {
    // A stop token in its text, which generation could not go past.
    let mut row = guessed(json!({"train": false}));
    row.conversation.messages[1].content = Some("a<|im_end|>b".to_owned());
    assert_eq!(learned(&example(&row, &assistant())), SECOND);
    row.conversation.messages[1].weight = None;
    assert!(fault(&row, &assistant()).contains("holds the stop token"));
    // A template that ends only the last turn.
    let source = CHATML.replace(
        "<|im_end|>",
        "{% if loop.last or m.role == 'user' %}<|im_end|>{% endif %}",
    );
    let template = ChatTemplate::new(&source, SpecialTokens::default()).unwrap();
    let tokenized = |fields| tokenize_row(&guessed(fields), &template, &tokenizer(), &assistant());
    assert!(tokenized(json!({"train": false})).is_ok());
    assert!(tokenized(json!({})).is_err());
    // Of a completion whose first turn is off, the answer is the next one.
    let mut row = guessed(json!({"train": false}));
    row.conversation.completion_start = 1;
    let asked = AskedPrompt::of_row(&row, &chatml(), &tokenizer(), &options(&tokenizer())).unwrap();
    assert_eq!(asked.reference.as_deref(), Some("7 metres."));
    assert_eq!(asked.n_messages, 3);
}

#[test]
fn switches_of_other_types_places_and_senses_are_errors() {
    for (fields, wanted) in [
        (
            json!({"train": "false"}),
            "messages[1].train is a text, but must be true or false",
        ),
        (
            json!({"train": 0}),
            "messages[1].train is a number, but must be true or false",
        ),
        (
            json!({"loss": 0.5}),
            "messages[1].loss is a number, but must be true or false",
        ),
        (
            json!({"weight": true}),
            "messages[1].weight is a boolean, but must be a number of at least 0",
        ),
        (
            json!({"weight": -1}),
            "messages[1].weight is -1; give a number of at least 0",
        ),
        (json!({"weight": 1e40}), "messages[1].weight is 1e"),
        (
            json!({"train": true, "weight": 0}),
            "messages[1].train says that the turn is learned, and weight in the same message that it is not",
        ),
        (
            json!({"train": false, "weight": 0.5}),
            "messages[1].weight says that the turn is learned, and train in",
        ),
        (
            json!({"train_detail": []}),
            "messages[1].train_detail chooses parts of the content by offsets",
        ),
    ] {
        let said = refused(guess(fields));
        assert!(said.starts_with(wanted), "{said}");
    }
    for role in ["system", "user", "tool"] {
        for switch in [
            json!({"train": false}),
            json!({"weight": 1}),
            json!({"loss": true}),
        ] {
            let mut message = json!({"role": role, "content": "Hi"});
            message
                .as_object_mut()
                .unwrap()
                .extend(switch.as_object().unwrap().clone());
            let said =
                refused(json!({"messages": [message, {"role": "assistant", "content": "Hi"}]}));
            let name = switch.as_object().unwrap().keys().next().unwrap();
            let wanted =
                format!("messages[0].{name} stands in a {role} message, which is never learned");
            assert!(said.starts_with(&wanted), "{said}");
        }
    }
    let null = json!({"messages": [
        {"role": "user", "content": "Hi", "train": null},
        {"role": "assistant", "content": "Hi"},
    ]});
    assert!(read(DataFormat::Messages, &[null]).remove(0).is_ok());
    let parts = json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi", "train": false}]},
    ]});
    let said = refused(parts);
    assert!(
        said.starts_with("messages[1].content[0].train switches a part"),
        "{said}"
    );
    // ShareGPT's items say the same as messages.
    let items = json!({"conversations": [
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hi", "weight": 0},
    ]});
    let row = read(DataFormat::ShareGpt, &[items]).remove(0).unwrap();
    assert!(row.conversation.messages[1].is_switched_off());
    let completion = json!({"prompt": "Hi", "completion": [
        {"role": "assistant", "content": "Hi", "train": "no"},
    ]});
    let error = read(DataFormat::PromptCompletion, &[completion])
        .remove(0)
        .unwrap_err();
    assert!(
        error.to_string().contains("completion[0].train is"),
        "{error}"
    );
}

#[test]
fn a_field_one_letter_away_from_a_known_one_is_an_error_that_names_it() {
    for (name, near) in [
        ("trian", "train"),
        ("Train", "train"),
        ("trained", ""),
        ("wieght", "weight"),
        ("weights", "weight"),
        ("los", "loss"),
        ("tool_call", "tool_calls"),
        ("tool-calls", "tool_calls"),
        ("contents", "content"),
        ("reasoning_contents", "reasoning_content"),
        ("thinkin", "thinking"),
        ("toolcall_id", "tool_call_id"),
        ("names", "name"),
        ("rolle", "role"),
        ("id", ""),
        ("channel", ""),
        ("citations", ""),
    ] {
        let row = guess(json!({name: false}));
        match near {
            "" => assert!(
                read(DataFormat::Messages, &[row]).remove(0).is_ok(),
                "{name}"
            ),
            near => assert_eq!(
                refused(row),
                format!("messages[1].{name} is no known field; did you mean {near:?}?")
            ),
        }
    }
}
