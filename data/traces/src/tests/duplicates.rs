//! Equal conversations, and beginnings of longer ones.

use serde_json::{Value, json};

use super::{count, import, import_with, lines};
use crate::TraceOptions;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn answer(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A request that ends in a call, and the next one with its result.
fn requests(id: &str, order: &str) -> [Value; 2] {
    let (first, second) = order.split_at(1);
    let arguments = format!("{{\"{first}\": 1, \"{second}\": 1}}");
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "function": {"name": "f", "arguments": arguments}}]});
    let result = json!({"role": "tool", "tool_call_id": id, "content": "r"});
    [
        json!({"messages": [user("Q"), call]}),
        json!({"messages": [user("Q"), call, result, answer("A")]}),
    ]
}

#[test]
fn a_beginning_is_replaced_in_either_order() {
    let [short, long] = requests("a", "xy");
    for entries in [[&short, &long], [&long, &short]] {
        let (rows, report) = import(&lines(&entries.map(Clone::clone)));
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["messages"].as_array().map(Vec::len), Some(4));
        assert_eq!(
            (report.n_rows, report.n_beginnings, report.n_equal),
            (1, 1, 0)
        );
    }
}

#[test]
fn ids_reasoning_and_the_order_of_arguments_make_no_difference() {
    let [_, one] = requests("a", "xy");
    let [_, mut other] = requests("b", "yx");
    other["messages"][3]["reasoning_content"] = "Hm.".into();
    let (rows, report) = import(&lines(&[one.clone(), other]));
    assert_eq!((rows.len(), report.n_equal), (1, 1));
    // Tools, contents, roles and the place of a break do.
    let mut tools = one.clone();
    tools["tools"] = json!([{"name": "f"}]);
    let mut content = one.clone();
    content["messages"][3]["content"] = "B".into();
    let mut role = one.clone();
    role["messages"][0]["role"] = "developer".into();
    role["messages"]
        .as_array_mut()
        .expect("a list")
        .insert(1, user(""));
    let (rows, report) = import(&lines(&[one, tools, content, role]));
    assert_eq!((rows.len(), report.n_equal), (4, 0), "{report:?}");
}

#[test]
fn secrets_do_not_hide_duplicates() {
    let entry = |address: &str| json!({"messages": [user(&format!("Write to {address}.")), answer("Sent.")]});
    let (rows, report) = import(&lines(&[
        entry("ida@example.org"),
        entry("ole@example.org"),
    ]));
    assert_eq!((rows.len(), report.n_equal), (1, 1));
    assert_eq!(rows[0]["messages"][0]["content"], "Write to [EMAIL_1].");
    assert_eq!(count(&report.redacted, "email"), Some((2, "t.jsonl:1")));
}

#[test]
fn the_beginnings_of_a_failed_conversation_are_dropped_with_it() {
    let [short, mut long] = requests("a", "xy");
    long["success"] = false.into();
    let (rows, report) = import(&lines(&[short, long]));
    assert!(rows.is_empty(), "{rows:?}");
    assert_eq!((report.n_beginnings, report.dropped.total()), (1, 1));
}

#[test]
fn a_copy_with_an_outcome_is_kept_if_the_first_has_none() {
    let one = json!({"messages": [user("Q"), answer("A")]});
    let mut scored = one.clone();
    scored["score"] = 0.5.into();
    let options = TraceOptions {
        min_outcome: Some(0.5),
        ..TraceOptions::default()
    };
    let file = lines(&[one, scored.clone(), scored]);
    let (rows, report) = import_with(&[("t", file.as_bytes())], &options).expect("imported");
    assert_eq!((rows.len(), report.n_equal), (1, 1));
    assert_eq!(rows[0]["messages"][1]["weight"], 0.5);
}
