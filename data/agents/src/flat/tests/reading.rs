//! Flattens the rows of files while they are read, and converts their targets back.

use proptest::prelude::*;
use tooltune_json::{Style, dumps, parse};
use tooltune_rows::text::{DataError, Row, SlotPrompt, SlotRow, slot_completion};
use tooltune_template::{Conversation, Message, Role};

use super::round_trips::schema_and_value;
use super::*;

fn read(rows: Vec<Row>, flattening: &RowFlattening) -> (Vec<Row>, FlattenReport) {
    let mut report = FlattenReport::default();
    let rows = rows.into_iter().map(Ok);
    let flat: Result<Vec<Row>, DataError> = flatten_rows(rows, flattening, &mut report).collect();
    (flat.expect("rows"), report)
}

fn slot_row(json_schema: Value, gold: Value) -> SlotRow {
    SlotRow {
        id: "rows.jsonl:1".to_owned(),
        input_text: "a text".to_owned(),
        json_schema,
        gold,
    }
}

fn nested_conversation(slot: &SlotRow, prompt: &SlotPrompt) -> Row {
    Row::from_slot(slot.clone(), prompt).expect("a row")
}

fn messages(row: &Row) -> [&str; 2] {
    let text = |index: usize| row.conversation.messages[index].content.as_deref();
    [text(0).unwrap_or_default(), text(1).unwrap_or_default()]
}

#[test]
fn a_slot_row_is_trained_on_the_flat_schema_and_scored_on_the_nested_one() {
    let schema = schema_of(
        json!({"a": schema_of(json!({"b": schema_of(json!({"c": {"type": "integer"}}))}))}),
    );
    let nested = slot_row(schema, json!({"a": {"b": {"c": 7}}}));
    let nested_slot = slot_row(schema_of(json!({"x": {}})), json!({"x": 1}));
    let flat_schema = json!({"type": "object", "properties": {"a_b_c": {"type": "integer"}}});
    for prompt in [SlotPrompt::Typed, SlotPrompt::Paper] {
        let rows = [&nested, &nested_slot].map(|slot| nested_conversation(slot, &prompt));
        let flattening = RowFlattening {
            slot_prompt: prompt.clone(),
            ..RowFlattening::default()
        };
        let (flat, report) = read(rows.to_vec(), &flattening);
        let question = prompt.render("a text", &flat_schema).expect("a prompt");
        assert_eq!(messages(&flat[0]), [&question, "{\"a_b_c\": 7}"]);
        assert_eq!(flat[0].slot.as_ref(), Some(&nested));
        assert_eq!(flat[1], rows[1]);
        assert_eq!((report.n_schemas, report.n_flattened), (2, 1));
    }
}

#[test]
fn rows_without_a_schema_and_errors_pass_through() {
    let plain = Row {
        id: "a".to_owned(),
        conversation: Conversation::new(vec![
            Message::new(Role::User, "Hello"),
            Message::new(Role::Assistant, "{\"a\": {\"b\": 1}}"),
        ]),
        weight: 0.5,
        slot: None,
    };
    let (unchanged, report) = read(vec![plain.clone()], &RowFlattening::default());
    assert_eq!((unchanged, report.n_schemas), (vec![plain], 0));
    let mut report = FlattenReport::default();
    let failing = std::iter::once(Err(DataError::NoStopIds));
    let flattening = RowFlattening::default();
    let mut flat = flatten_rows(failing, &flattening, &mut report);
    assert!(matches!(flat.next(), Some(Err(DataError::NoStopIds))));
}

proptest! {
    /// Training targets are flat and valid, and convert back to the gold value.
    #[test]
    fn a_flat_gold_is_valid_and_unflattens_to_the_gold(
        parts in prop::collection::btree_map("[ab_0]{1,3}", schema_and_value(), 1..5),
        n_slots in 0..3_usize,
        when in prop_oneof![Just(FlattenWhen::Advised), Just(FlattenWhen::Always)],
    ) {
        let schemas = parts.iter().map(|(key, part)| (key.clone(), part.0.clone()));
        let mut schema = schema_of(Value::Object(schemas.collect()));
        schema["required"] = parts.keys().cloned().collect();
        let gold = Value::Object(parts.into_iter().map(|(key, part)| (key, part.1)).collect());
        let flattening = RowFlattening {
            when,
            options: options_with_slots(n_slots),
            ..RowFlattening::default()
        };
        let nested = slot_row(schema.clone(), gold.clone());
        let (flat, report) = read(vec![nested_conversation(&nested, &flattening.slot_prompt)], &flattening);
        let completion = messages(&flat[0])[1];
        prop_assert_eq!(report.n_schemas, 1);
        if report.n_flattened == 0 {
            prop_assert_eq!(completion, slot_completion(&gold, &schema));
            return Ok(());
        }
        let flat_row = flatten_slot_row(&nested, &flattening, &mut FlattenReport::default());
        let value = parse(completion).expect("JSON");
        let validator = jsonschema::validator_for(&flat_row.enforced_schema()).expect("a schema");
        prop_assert!(validator.is_valid(&value), "{} under {}", value, flat_row.row.json_schema);
        let mut completions = UnflattenReport::default();
        let restored = flat_row.nested_completion(completion, &mut completions);
        prop_assert_eq!(parse(&restored.text).expect("JSON"), gold);
        prop_assert_eq!((restored.malformed, completions.n_malformed), (None, 0));
        prop_assert_eq!(&dumps(&value, Style::Python), completion);
    }
}
