//! For any text and any reference answer, only the answer and its end-of-turn token are supervised.

use proptest::prelude::*;
use serde_json::{Map, json};
use tooltune_template::{ChatTemplate, Message, Role, Span, SpanKind, SpecialTokens, Turns};

use super::*;

/// Text with characters that break span arithmetic: spaces, quotes, braces, control characters,
/// combining and four-byte characters.
fn odd_text() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            "[a-zA-Z0-9 ]{0,6}".prop_map(|text| text),
            Just("\n".to_owned()),
            Just("  \t".to_owned()),
            Just("\"}{\\".to_owned()),
            Just("\u{a0}\u{200b}\u{2028}".to_owned()),
            Just("e\u{301}🗼東".to_owned()),
            Just("\u{1}\u{1f}\u{7f}".to_owned()),
            any::<char>().prop_map(String::from),
        ],
        0..6,
    )
    .prop_map(|parts| parts.concat())
    .prop_filter("reserved for marks", |text| {
        text.chars()
            .all(|character| !('\u{10ff00}'..='\u{10ff7f}').contains(&character))
    })
}

fn gold() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        odd_text().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        (-1e9..1e9).prop_map(|number: f64| json!(number)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::vec((odd_text(), inner), 0..3)
                .prop_map(|fields| Value::Object(Map::from_iter(fields))),
        ]
    })
}

fn smollm2() -> ChatTemplate {
    let path = fixtures().join("chat_templates/templates/smollm2.jinja");
    ChatTemplate::new(
        &std::fs::read_to_string(path).unwrap(),
        SpecialTokens::default(),
    )
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Invariant: Only the answer and its end of turn are supervised.
    #[test]
    fn only_the_gold_and_the_end_of_turn_of_a_slot_row_are_supervised(
        input_text in odd_text(),
        gold in gold(),
    ) {
        let tokenizer = tokenizer();
        let template = smollm2();
        let schema = json!({});
        let slot = SlotRow {
            id: "row".to_owned(),
            input_text,
            json_schema: schema.clone(),
            gold: gold.clone(),
        };
        let row = Row::from_slot(slot, &SlotPrompt::default()).unwrap();
        let outcome = tokenize_row(&row, &template, &tokenizer, &options(&tokenizer)).unwrap();
        let TokenizeOutcome::Example { example, straddling, .. } = outcome else {
            panic!("dropped")
        };
        prop_assert_eq!(example.input_ids.len(), example.loss_weights.len());
        let first = example.loss_weights.iter().position(|&weight| weight > 0.0).unwrap();
        let last = example.loss_weights.iter().rposition(|&weight| weight > 0.0).unwrap();
        prop_assert!(example.loss_weights[first..=last].iter().all(|&weight| weight == 1.0));
        let completion = slot_completion(&gold, &schema);
        prop_assert_eq!(
            tokenizer.decode(&example.input_ids[first..=last], Specials::Keep).unwrap(),
            format!("{completion}<|im_end|>")
        );
        prop_assert_eq!(&tooltune_json::parse(&completion).unwrap(), &gold);
        prop_assert!(straddling.is_empty());
        let prompt = prompt_ids(&row, &template, &tokenizer).unwrap();
        prop_assert_eq!(&example.input_ids[..first], &prompt[..]);
    }

    #[test]
    fn any_argument_values_are_masked_and_their_calls_are_not(
        arguments in proptest::collection::vec(("[a-z]{1,5}", gold()), 0..4),
    ) {
        let tokenizer = tokenizer();
        let arguments = Map::from_iter(arguments);
        let row = row(vec![
            Message::new(Role::User, "Go"),
            call("f", Value::Object(arguments.clone())),
        ]);
        let mut options = options(&tokenizer);
        options.mask = weights("tool_call.arguments.value", 0.0);
        let inspected = inspect_row(&row, &chatml(), &tokenizer, &options).unwrap();
        let rendered = chatml().render_with_spans(&row.conversation, Turns::Completion).unwrap();
        let values: Vec<Span> = rendered
            .spans
            .iter()
            .copied()
            .filter(|span| span.kind == SpanKind::ToolCallArgumentValue)
            .collect();
        let (mut scalars, mut texts) = (0, Vec::new());
        count_scalars(&Value::Object(arguments), &mut scalars, &mut texts);
        prop_assert_eq!(values.len(), scalars);
        for (span, text) in values.iter().filter(|span| {
            rendered.text[..span.start].ends_with('"')
        }).zip(texts) {
            let quoted = format!("\"{}\"", &rendered.text[span.start..span.end]);
            prop_assert_eq!(tooltune_json::parse(&quoted).unwrap(), Value::String(text));
        }
        let turn_start = rendered.turns[0].start;
        for token in inspected.tokens.iter().filter(|token| token.start >= turn_start) {
            let is_in_value = values
                .iter()
                .any(|span| token.start < span.end && token.end > span.start);
            let is_after_turn = token.start >= inspected.text.len() - 1;
            prop_assert_eq!(token.weight == 0.0, is_in_value || is_after_turn);
        }
    }
}

fn count_scalars(value: &Value, n: &mut usize, texts: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| count_scalars(item, n, texts)),
        Value::Object(fields) => fields
            .values()
            .for_each(|field| count_scalars(field, n, texts)),
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => {
            *n += 1;
            texts.push(text.clone());
        }
        _ => *n += 1,
    }
}
