//! Tests of the turns of rows, and of answers to flat tools.

use std::io::Write;

use tooltune_agents::flat::{
    FlattenReport, FlattenWhen, RowFlattening, UnflattenReport, flatten_tool_row,
};
use tooltune_rows::text::{DataFormat, Row, RowParser, read_rows};
use tooltune_template::Role;

use super::*;

fn row(messages: Value, tools: Value) -> Row {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "{}", json!({"messages": messages, "tools": tools})).expect("a line");
    let rows = read_rows(file.path(), DataFormat::Messages).expect("rows");
    let row = rows
        .with(RowParser::with_unchecked_calls)
        .next()
        .expect("a row");
    Row {
        id: "dev.jsonl:1".to_owned(),
        ..row.expect("a readable row")
    }
}

fn assistant_call(arguments: Value) -> Value {
    json!({"role": "assistant", "tool_calls": [
        {"type": "function", "function": {"name": "tide", "arguments": arguments}}]})
}

fn dialogue() -> Value {
    json!([
        {"role": "user", "content": "Tides in Rye?"},
        assistant_call(json!({"port": "Rye"})),
        {"role": "tool", "content": "06:10"},
        {"role": "assistant", "content": "At ten past six."},
        {"role": "user", "content": "And Hull?"},
        {"role": "assistant", "content":
            "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"Hull\"}}</tool_call>"},
    ])
}

fn items(row: &Row, which_turns: TurnSelection) -> (Vec<CallsItem>, SkippedTurns) {
    let mut skipped = SkippedTurns::default();
    let items = calls_items(row, which_turns, &mut skipped);
    (items, skipped)
}

#[test]
fn every_assistant_turn_is_an_item_with_the_preceding_messages() {
    let row = row(dialogue(), json!(tools()));
    let (items_of_row, skipped) = items(&row, TurnSelection::default());
    let golds: Vec<(&str, usize)> = items_of_row
        .iter()
        .map(|item| (item.id.as_str(), item.gold.len()))
        .collect();
    assert_eq!(
        golds,
        [
            ("dev.jsonl:1#1", 1),
            ("dev.jsonl:1#3", 0),
            ("dev.jsonl:1#5", 1)
        ]
    );
    // Calls written as text count as calls.
    assert_eq!(items_of_row[2].gold, [tide_call("Hull")]);
    assert_eq!(skipped.lines(), Vec::<String>::new());
    let prompt = items_of_row[1].prompt(&row.conversation);
    assert_eq!(prompt.messages.len(), 3);
    assert_eq!(prompt.messages[2].role, Role::Tool);
    assert_eq!(prompt.completion_start, 3);
    assert_eq!(prompt.tools, row.conversation.tools);
    let completion = TurnSelection {
        which: WhichTurns::Completion,
        ..TurnSelection::default()
    };
    assert_eq!(items(&row, completion).0.len(), 1);
}

#[test]
fn skipped_turns_are_counted_with_the_reason() {
    let without_tools = row(dialogue(), Value::Null);
    assert_eq!(
        items(&without_tools, TurnSelection::default())
            .1
            .n_without_tools,
        3
    );
    let mut messages = dialogue();
    messages[3]["weight"] = json!(0);
    messages[5]["content"] = json!("<tool_call>{\"name\": </tool_call>");
    let which_turns = TurnSelection {
        max_turns_per_row: 1,
        ..TurnSelection::default()
    };
    let (items_of_row, skipped) = items(&row(messages.clone(), json!(tools())), which_turns);
    assert_eq!(
        (
            items_of_row.len(),
            skipped.n_switched_off,
            skipped.n_over_budget
        ),
        (1, 1, 1)
    );
    let (_, skipped) = items(&row(messages, json!(tools())), TurnSelection::default());
    let lines = skipped.lines();
    assert_eq!(lines[0], "1 turn skipped: disabled by the data");
    assert!(
        lines[1].starts_with(
            "1 turn skipped: calls cannot be parsed, for example \
                              dev.jsonl:1#5 (a call is not JSON: "
        ),
        "{lines:?}"
    );
}

#[test]
fn the_gold_scores_one_unless_its_tool_refuses_it() {
    let value = |messages: Value| {
        let row = row(messages, json!(tools()));
        let mut scorer = CallsScorer::default();
        let (items_of_row, _) = items(&row, TurnSelection::default());
        let scores: Vec<TurnScore> = items_of_row
            .iter()
            .map(|item| scorer.score_turn(item, &item.gold_answer()))
            .collect();
        let summary = CallsSummary::new(&scores);
        crate::ceilings(
            &CallsSummary::NAMES,
            &CallsSummary::LOWER_IS_BETTER,
            |name| summary.value(name),
        )
    };
    assert_eq!(value(dialogue()), []);
    let mut messages = dialogue();
    messages[1] = assistant_call(json!({"port": 7}));
    let ceilings = value(messages);
    assert_eq!(ceilings.len(), 1);
    assert_eq!((ceilings[0].metric, ceilings[0].value), ("valid", 0.5));
}

#[test]
fn answers_to_flat_tools_are_nested_before_they_are_scored() {
    let arguments = json!({"ship": {"name": "Ada", "draught": 3.5}, "nights": 2});
    let messages = json!([
        {"role": "user", "content": "A berth."},
        {"role": "assistant", "tool_calls": [
            {"function": {"name": "berth", "arguments": arguments}}]},
    ]);
    let row = row(messages, json!(tools()));
    let flattening = RowFlattening {
        when: FlattenWhen::Always,
        ..RowFlattening::default()
    };
    let flat = flatten_tool_row(
        &row.id,
        &row.conversation,
        &flattening,
        &mut FlattenReport::default(),
    );
    let (items_of_row, _) = items(&row, TurnSelection::default());
    let prompt = items_of_row[0].prompt(&flat.conversation);
    let nested_tools = ToolSet::new(prompt.tools.as_deref().expect("tools"));
    let score = |text: &str| {
        let mut report = UnflattenReport::default();
        let answer = read_calls(text, &nested_tools).unflatten(&flat, &mut report);
        (score_turn(&items_of_row[0], &answer), report.n_malformed)
    };
    let flat_call = |rest: &str| {
        format!("{{\"name\": \"berth\", \"arguments\": {{\"ship_name\": \"Ada\", {rest}}}}}")
    };
    let (right, n_malformed) = score(&flat_call("\"ship_draught\": 3.5, \"nights\": 2"));
    assert!(right.right, "{:?}", right.faults);
    assert_eq!(n_malformed, 0);
    let (wrong_score, n_malformed) = score(&flat_call("\"ship_mast\": 3.5, \"nights\": 2"));
    assert_eq!(
        (wrong_score.malformed, wrong_score.right, n_malformed),
        (true, false, 1)
    );
    assert!(messages_of(&wrong_score).starts_with("the call to berth: "));
}

fn messages_of(score: &TurnScore) -> &str {
    messages(score)[0]
}
