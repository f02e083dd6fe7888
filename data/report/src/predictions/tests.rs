//! Lines as suites write them, and the order and the notes that they get.

use serde_json::json;
use tooltune_rows::text::{Conversation, Role, SlotPrompt, SlotRow};
use tooltune_suites::slot::score_row;
use tooltune_suites::{HashEncoder, SuiteInfo};

use super::*;
use crate::{ReportRun, render};

const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false,
    "properties": {"guest": {"type": "string"}, "nights": {"type": "integer"},
                   "stay": {"type": "object"}},
    "required": ["guest", "nights"]}"#;

/// A line of the suite slot, scored as an evaluation scores it.
fn slot_line(id: &str, raw: &str, gold: &Value) -> Value {
    let schema = serde_json::from_str(SCHEMA).expect("a schema");
    let score = score_row(raw, &schema, gold, &HashEncoder).expect("a usable schema");
    json!({"id": id, "prediction": raw, "finish_reason": "stop", "n_tokens": 9, "score": score})
}

fn ids(samples: &[SampleView]) -> Vec<&str> {
    samples.iter().map(|sample| sample.id.as_str()).collect()
}

fn views(scores: Vec<(String, f64)>) -> Vec<SampleScoreView> {
    let scores = scores.into_iter();
    scores.map(|(name, value)| score(&name, value)).collect()
}

fn ranked(suite: &str, lines: &[Value]) -> Vec<SampleView> {
    ranked_with(suite, lines, &HashMap::new())
}

fn ranked_with(suite: &str, lines: &[Value], rows: &HashMap<&str, &Row>) -> Vec<SampleView> {
    let info = SuiteInfo::named(suite).expect("a suite");
    let evaluation = RankedEvaluation {
        suite,
        result: "step 4",
        is_base: false,
        ranking_scores: &|line| views(info.ranking_scores(line)),
        scores: &|line| views(info.sample_scores(line)),
    };
    ranked_samples(evaluation, lines, rows)
}

#[test]
fn slot_is_ranked_by_schema_and_content_and_not_by_the_depth_of_its_gold() {
    let flat = json!({"guest": "Ida Brandt", "nights": 3});
    let deep = json!({"guest": "Ida Brandt", "nights": 3, "stay": {"from": {"day": {"n": 1}}}});
    let lines = [
        slot_line("exact", &flat.to_string(), &flat),
        // One of three leaves: recall 1/3, precision 1, F 1/2. The depth of 4 adds nothing.
        slot_line("deep", r#"{"guest": "Ida Brandt"}"#, &deep),
        slot_line(
            "typed wrong",
            r#"{"guest": "Ida Brandt", "nights": "3"}"#,
            &flat,
        ),
        slot_line(
            "valid, other values",
            r#"{"guest": "zzz", "nights": 8}"#,
            &flat,
        ),
        slot_line("no json", "Sorry.", &deep),
        slot_line("exact and deep", &deep.to_string(), &deep),
    ];
    let samples = ranked("slot", &lines);
    assert_eq!(
        ids(&samples),
        [
            "no json",
            "deep",
            "typed wrong",
            "valid, other values",
            "exact",
            "exact and deep"
        ]
    );
    let ranks: Vec<&SampleScoreView> = samples.iter().flat_map(|sample| &sample.rank).collect();
    assert!(
        ranks
            .iter()
            .all(|rank| rank.name == "mean of slot.schema_accuracy and slot.content_similarity")
    );
    assert_eq!(
        (ranks[0].value, ranks[2].value, ranks[5].value),
        (0.0, 0.5, 1.0)
    );
    for of_line in [
        score("slot.schema_accuracy", 0.0),
        score("slot.content_similarity", 1.0),
        score("slot.strict_keys_accuracy", 0.0),
    ] {
        assert!(samples[2].scores.contains(&of_line), "{of_line:?}");
    }
    let has_depth = |one: &SampleScoreView| one.name.contains("depth");
    assert!(!samples[2].scores.iter().any(has_depth));
    assert!(samples.iter().all(|sample| sample.result == "step 4"));
}

#[test]
fn an_exact_match_is_below_every_invalid_one_even_where_its_own_gold_is_invalid() {
    let line = |id: &str, exact: bool, f: f64| {
        json!({"id": id, "prediction": "{}", "score": {"schema": false, "exact_match": exact,
               "content": {"f": f}}})
    };
    // Likeness in content may be whole where a value has another type.
    let lines = [
        line("exact", true, 1.0),
        line("invalid", false, 1.0),
        line("far", false, 0.2),
    ];
    assert_eq!(ids(&ranked("slot", &lines)), ["far", "invalid", "exact"]);
}

#[test]
fn broken_rules_are_in_the_card_with_their_places() {
    let gold = json!({"guest": "Ida Brandt", "nights": 3});
    let raw = r#"{"guest": "Ida Brandt", "nights": "3", "pets": 0}"#;
    let samples = ranked("slot", &[slot_line("dev.jsonl:1", raw, &gold)]);
    let notes = &samples[0].notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("breaks type at /nights: ")),
        "{notes:?}"
    );
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("breaks additionalProperties"))
    );
    // Two of three leaves written are right, and none is missing: F 0.8.
    let run = ReportRun {
        samples,
        ..ReportRun::default()
    };
    let page = render(&[run], |_| None).expect("a page");
    for part in [
        "breaks type at &#x2f;nights",
        "breaks additionalProperties",
        "ranked by <span>mean of slot.schema_accuracy and slot.content_similarity</span> <b>0.400</b>",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }

    let many: Vec<Value> = (0..9)
        .map(|n| json!({"rule": "type", "path": n.to_string()}))
        .collect();
    let notes = super::notes(&json!({"score": {"violations": many}}));
    assert_eq!(notes.len(), MAX_RULES + 1);
    assert_eq!(notes[MAX_RULES], "breaks rules in 4 more places");
}

#[test]
fn every_suite_is_ranked_by_its_own_scores() {
    let nestful = |id: &str, n_pred: usize, partial: f64, win: Value| {
        json!({"id": id, "question": "q", "gold": "g", "prediction": "p",
               "score": {"parse_error": n_pred == 0, "n_pred": n_pred, "partial": partial,
                         "full": false, "win": win, "gold_dag": {"calls": 9}}})
    };
    let lost = json!({"scored": {"official": false, "strict": false}});
    let won = json!({"scored": {"official": true, "strict": true}});
    let lines = [
        nestful("won otherwise", 1, 0.0, won.clone()),
        nestful("many calls", 12, 0.1, lost.clone()),
        nestful("unread", 0, 0.0, lost),
        nestful("not run", 3, 0.25, json!("needs_tools")),
        nestful("right", 1, 1.0, won),
    ];
    let samples = ranked("nestful", &lines);
    assert_eq!(
        ids(&samples),
        ["unread", "many calls", "not run", "won otherwise", "right"]
    );
    assert_eq!(samples[2].rank, Some(score("nestful.partial", 0.25)));
    assert_eq!(
        samples[3].rank,
        Some(score("mean of nestful.win_strict and nestful.partial", 0.5))
    );
    assert_eq!((&*samples[0].prompt, &*samples[0].gold), ("q", "g"));

    let toolqa = |uid: &str, scores: [bool; 3]| {
        json!({"uid": uid, "question": "q", "gold_answer": "g", "model_output": "m",
               "failure": (!scores[0]).then_some("no output"), "exact_match": scores[0],
               "exact_match_strict": scores[1], "contains": scores[2], "judged": null})
    };
    let lines = [
        toolqa("right", [true, true, true]),
        toolqa("near", [true, false, true]),
        toolqa("wrong", [false, false, false]),
    ];
    let samples = ranked("toolqa", &lines);
    assert_eq!(ids(&samples), ["wrong", "near", "right"]);
    assert_eq!(samples[0].notes, ["no output"]);
    assert_eq!(
        samples[1].rank,
        Some(score(
            "mean of toolqa.exact_match_strict and toolqa.contains",
            0.5
        ))
    );

    let goat = |id: &str, ia: f64, delta_len: i64| {
        json!({"id": id, "query": "q", "outcome": {"calls": []},
               "score": {"sa": 1.0, "ia": ia, "success": null, "delta_len": delta_len}})
    };
    let lines = [goat("longer", 0.5, 40), goat("short", 0.75, -3)];
    assert_eq!(ids(&ranked("goat", &lines)), ["longer", "short"]);

    let apibank = |id: &str, n_right: usize, rouge_l: Option<f64>| {
        json!({"id": id, "query": "q", "outcome": {}, "score": {"n_pred": 4, "n_gold": 2,
               "n_right": n_right, "rouge_l": rouge_l}})
    };
    let lines = [
        apibank("two of four", 2, None),
        apibank("one of four", 1, Some(0.5)),
    ];
    let samples = ranked("apibank", &lines);
    assert_eq!(ids(&samples), ["one of four", "two of four"]);
    let rank = score("mean of apibank.right_calls and apibank.rouge_l", 0.375);
    assert_eq!(samples[0].rank, Some(rank));
}

#[test]
fn every_kind_of_answer_says_which_rule_it_breaks() {
    let said = |line: &Value| notes(line).join("; ");
    let faults = json!([{"rule": "missed_call", "message": "no call of tide"}]);
    assert_eq!(
        said(&json!({"score": {"faults": faults}})),
        "breaks missed_call: no call of tide"
    );
    let other = json!({"score": {"violations": [], "exact_match": false}});
    assert_eq!(
        said(&other),
        "breaks no rule of its schema; its values are not the gold's"
    );
    assert_eq!(said(&json!({"score": {"exact_match": true}})), "");
    let unread = json!({"score": {"parse_error": true}});
    assert!(said(&unread).contains("cannot be read"));
    assert_eq!(
        said(&json!({"score": {"win": "gold_fails"}})),
        "not run: gold fails"
    );
    assert_eq!(
        said(&json!({"status": "code_error"})),
        "ended as code error"
    );
    assert_eq!(said(&json!({"status": "answered"})), "");
}

#[test]
fn lines_that_nothing_ranks_are_left_out() {
    let line = json!({"query": "q", "gold": [0], "ranked": [3, 0]});
    assert_eq!(ranked("retrieval", &[line]), []);
    assert_eq!(ranked("slot", &[json!({"id": "a", "prediction": "x"})]), []);
}

#[test]
fn what_a_line_lacks_comes_from_its_row() {
    let schema = serde_json::from_str(SCHEMA).expect("a schema");
    let slot = SlotRow {
        id: "dev.jsonl:1".to_owned(),
        input_text: "Ida Brandt stays three nights.".to_owned(),
        json_schema: schema,
        gold: json!({"guest": "Ida Brandt", "nights": 3}),
    };
    let row = Row::of_slot(slot, &SlotPrompt::default()).expect("a row");
    let line = slot_line("dev.jsonl:1", "none", &json!({}));
    let rows = HashMap::from([(row.id.as_str(), &row)]);
    let samples = ranked_with("slot", std::slice::from_ref(&line), &rows);
    assert!(samples[0].prompt.contains("Ida Brandt stays three nights."));
    assert_eq!(samples[0].gold, r#"{"guest": "Ida Brandt", "nights": 3}"#);

    let said = [
        (Role::System, "Be brief."),
        (Role::User, "When?"),
        (Role::Assistant, "Now."),
    ];
    let messages = said.map(|(role, text)| Message::new(role, text));
    let row = Row {
        conversation: Conversation::new(messages.to_vec()),
        ..row.clone()
    };
    let rows = HashMap::from([(row.id.as_str(), &row)]);
    let samples = ranked_with("slot", &[line], &rows);
    assert_eq!(samples[0].prompt, "system:\nBe brief.\n\nuser:\nWhen?");
    assert_eq!(samples[0].gold, "Now.");
}

#[test]
fn what_is_right_stands_beside_what_agents_did() {
    let calls = json!([{"name": "GET /weather", "arguments": {"city": "Oslo"}}]);
    let line = json!({
        "id": "a", "query": "How cold is Oslo?",
        "gold": {"calls": calls, "response": "It is -3."},
        "outcome": {"calls": [], "response": "Cold."},
        "score": {"sa": 0.0, "ia": 0.0},
    });
    for suite in ["goat", "apibank"] {
        let mut line = line.clone();
        line["score"]["rouge_l"] = json!(0.5);
        let sample = &ranked(suite, &[line])[0];
        let gold: Value = serde_json::from_str(&sample.gold).expect("a gold that is JSON");
        assert_eq!(gold["response"], "It is -3.", "{suite}");
        assert_eq!(gold["calls"], calls, "{suite}");
        assert!(sample.prediction.contains("Cold."), "{suite}");
        assert_eq!(sample.prompt, "How cold is Oslo?");
    }
}
