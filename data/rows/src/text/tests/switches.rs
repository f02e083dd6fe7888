//! Per-message switches `train`, `weight` and `loss`, and misspelt ones.

use serde_json::json;
use tooltune_template::{ChatTemplate, GenerationPrompt, SpecialTokens};

use super::*;

/// Rows as written in a file.
fn read(format: DataFormat, rows: &[Value]) -> Vec<Result<Row, DataError>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    read_rows(file.path(), format).unwrap().collect()
}

/// Two turns, of which the first has additional fields.
fn two_turns(fields: Value) -> Value {
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

fn row_of_two_turns(fields: Value) -> Row {
    let mut rows = read(DataFormat::Messages, &[two_turns(fields)]);
    rows.remove(0).unwrap()
}

fn rejection(row: Value) -> String {
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

/// Invariant: The switches of a message set the weight of its turn and never reach the template.
#[test]
fn every_training_switch_excludes_its_turn_and_is_not_passed_to_the_template() {
    let plain = example(&row_of_two_turns(json!({})), &assistant());
    assert_eq!(supervised_text(&plain), BOTH);
    for off in [
        json!({"train": false}),
        json!({"training": false}),
        json!({"loss": false}),
        json!({"weight": 0}),
        json!({"weight": 0.0, "train": false, "loss": null}),
    ] {
        let example = example(&row_of_two_turns(off.clone()), &assistant());
        assert_eq!(supervised_text(&example), SECOND, "{off}");
        assert_eq!(example.input_ids, plain.input_ids, "{off}");
    }
    for on in [
        json!({"train": true}),
        json!({"weight": 1}),
        json!({"loss": true, "train": true}),
        json!({"train": null, "weight": null}),
    ] {
        let row = row_of_two_turns(on.clone());
        assert_eq!(supervised_text(&example(&row, &assistant())), BOTH, "{on}");
        assert!(row.conversation.messages[1].extra.is_empty(), "{on}");
    }
    let source = "{% for m in messages %}{{ m | tojson }}<|im_end|>{% endfor %}";
    let shows_all = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    let text = |fields| {
        let row = row_of_two_turns(fields);
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
        let row = row_of_two_turns(fields);
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
        // Each turn keeps its end, which has the turn's weight.
        let ends = |of: f32| halved.iter().filter(|&&weight| weight == of).count();
        assert_eq!((ends(turn), ends(turn * 0.5)), (1, n - 1), "{halved:?}");
        assert_eq!(halved.len(), weights.len());
    }
}

#[test]
fn a_switch_can_only_exclude_turns_that_train_on_selects() {
    let last_off = |row: &mut Row| row.conversation.messages[3].weight = Some(0.0);
    for (train_on, first_off, second_off) in [
        (TrainOn::Assistant, SECOND, Some("…A guess.<|im_end|>…")),
        (TrainOn::LastAssistant, SECOND, None),
        (TrainOn::Completion, SECOND, None),
    ] {
        let mut options = assistant();
        options.mask.train_on = train_on;
        let row = row_of_two_turns(json!({"train": false}));
        assert_eq!(
            supervised_text(&example(&row, &options)),
            first_off,
            "{train_on:?}"
        );
        // `true` does not add turns that mask.train_on excludes.
        let on = row_of_two_turns(json!({"train": true}));
        let plain = row_of_two_turns(json!({}));
        assert_eq!(
            example(&on, &options),
            TokenizedExample {
                id: on.id.clone(),
                ..example(&plain, &options)
            }
        );
        let mut row = row_of_two_turns(json!({}));
        last_off(&mut row);
        match second_off {
            Some(expected) => assert_eq!(supervised_text(&example(&row, &options)), expected),
            None => {
                let fault = fault(&row, &options);
                let reason = "is supervised (train, weight or loss excludes its turns)";
                assert!(fault.contains(reason), "{fault}");
            }
        }
    }
    let mut options = assistant();
    options.mask.train_on = TrainOn::All;
    assert_eq!(
        supervised_text(&example(
            &row_of_two_turns(json!({"loss": false})),
            &options
        )),
        "…user\nHow deep?<|im_end|>\n<|im_start|>assistant\n…\n<|im_start|>user\nLook it \
         up.<|im_end|>\n<|im_start|>assistant\n7 metres.<|im_end|>\n"
    );
}

#[test]
fn a_row_with_all_turns_switched_off_is_rejected_or_dropped_and_its_turns_are_counted() {
    let all_off = || {
        let mut row = row_of_two_turns(json!({"train": false}));
        row.conversation.messages[3].weight = Some(0.0);
        row
    };
    let mut options = assistant();
    let fault = fault(&all_off(), &options);
    assert!(fault.contains("excludes its turns"), "{fault}");
    options.mask.on_empty = OnEmpty::Drop;
    let rows = [Ok(all_off()), Ok(row_of_two_turns(json!({"weight": 0})))];
    let prepared = prepare(rows.into_iter(), &chatml(), &tokenizer(), &options).unwrap();
    assert_eq!(prepared.report.n_dropped(), 1);
    assert_eq!(prepared.report.unlearned.n_switched_off, 1);
    let row = row_of_two_turns(json!({"loss": false}));
    let inspected = inspect_row(&row, &chatml(), &tokenizer(), &options).unwrap();
    assert_eq!(inspected.switched_off, [1]);
    let error =
        TokenizedPrompt::from_row(&all_off(), &chatml(), &tokenizer(), &options).unwrap_err();
    assert!(matches!(error.fault(), DataError::NoAnswer), "{error}");
}

#[test]
fn an_excluded_turn_needs_no_stop_token_and_is_not_an_answer() {
    // A stop token in its text, at which generation would end.
    let mut row = row_of_two_turns(json!({"train": false}));
    row.conversation.messages[1].content = Some("a<|im_end|>b".to_owned());
    assert_eq!(supervised_text(&example(&row, &assistant())), SECOND);
    row.conversation.messages[1].weight = None;
    assert!(fault(&row, &assistant()).contains("contains the stop token"));
    // A template that ends only the last turn.
    let source = CHATML.replace(
        "<|im_end|>",
        "{% if loop.last or m.role == 'user' %}<|im_end|>{% endif %}",
    );
    let template = ChatTemplate::new(&source, SpecialTokens::default()).unwrap();
    let tokenized = |fields| {
        tokenize_row(
            &row_of_two_turns(fields),
            &template,
            &tokenizer(),
            &assistant(),
        )
    };
    assert!(tokenized(json!({"train": false})).is_ok());
    assert!(tokenized(json!({})).is_err());
    // If the first turn of a completion is excluded, the answer is the next one.
    let mut row = row_of_two_turns(json!({"train": false}));
    row.conversation.completion_start = 1;
    let prompt =
        TokenizedPrompt::from_row(&row, &chatml(), &tokenizer(), &options(&tokenizer())).unwrap();
    assert_eq!(prompt.reference.as_deref(), Some("7 metres."));
    assert_eq!(prompt.n_messages, 3);
}

#[test]
fn invalid_misplaced_and_contradictory_switches_are_errors() {
    for (fields, expected) in [
        (
            json!({"train": "false"}),
            "messages[1].train is a string, but must be true or false",
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
            "messages[1].train includes the turn in training, but weight in the same message excludes it",
        ),
        (
            json!({"train": false, "weight": 0.5}),
            "messages[1].weight includes the turn in training, but train in",
        ),
        (
            json!({"train_detail": []}),
            "messages[1].train_detail selects parts of the content by offsets",
        ),
    ] {
        let fault = rejection(two_turns(fields));
        assert!(fault.starts_with(expected), "{fault}");
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
            let fault =
                rejection(json!({"messages": [message, {"role": "assistant", "content": "Hi"}]}));
            let name = switch.as_object().unwrap().keys().next().unwrap();
            let expected =
                format!("messages[0].{name} is in a {role} message, which is never trained on");
            assert!(fault.starts_with(&expected), "{fault}");
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
    let fault = rejection(parts);
    assert!(
        fault.starts_with("messages[1].content[0].train switches training for a part"),
        "{fault}"
    );
    // ShareGPT items have the same switches as messages.
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
        let row = two_turns(json!({name: false}));
        match near {
            "" => assert!(
                read(DataFormat::Messages, &[row]).remove(0).is_ok(),
                "{name}"
            ),
            near => assert_eq!(
                rejection(row),
                format!("messages[1].{name} is not a known field; did you mean {near:?}?")
            ),
        }
    }
}
