//! Tests of ranks and notes, with lines as suites write them.

use serde_json::json;
use tooltune_rows::text::{SlotPrompt, SlotRow};
use tooltune_suites::slot::score_row;
use tooltune_suites::{HashEncoder, LineFields, SuiteInfo};
use tooltune_template::{Conversation, Role};

use super::*;
use crate::{MetricFacts, ReportRun, render};

const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false,
    "properties": {"guest": {"type": "string"}, "nights": {"type": "integer"},
                   "stay": {"type": "object"}},
    "required": ["guest", "nights"]}"#;

/// A line of the slot suite, scored as in an evaluation.
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

fn ranked_views(suite: &str, lines: &[Value]) -> Vec<SampleView> {
    ranked_with(suite, lines, &HashMap::new())
}

fn ranked_with(suite: &str, lines: &[Value], rows: &HashMap<&str, &Row>) -> Vec<SampleView> {
    let info = SuiteInfo::from_name(suite).expect("a suite");
    let evaluation = RankedEvaluation {
        suite,
        result: "step 4",
        is_base: false,
        ranking_scores: &|line| views(info.ranking_scores(line)),
        scores: &|line| views(info.sample_scores(line)),
        parts: &|line| {
            let sample_form = info.form_of(line).expect("a kind of lines");
            let part = |names: &[&str]| LineFields::first_value(names, line);
            LineParts {
                id: sample_form.id(line),
                prompt: part(sample_form.fields.prompt).filter(|_| rows.is_empty()),
                gold: part(sample_form.fields.gold),
                output: part(sample_form.fields.output),
            }
        },
    };
    ranked_samples(evaluation, lines, rows)
}

#[test]
fn slot_ranks_ignore_the_depth_of_the_gold() {
    let flat = json!({"guest": "Ida Brandt", "nights": 3});
    let nested_value =
        json!({"guest": "Ida Brandt", "nights": 3, "stay": {"from": {"day": {"n": 1}}}});
    let lines = [
        slot_line("exact", &flat.to_string(), &flat),
        // One of three leaves: recall 1/3, precision 1, F1 1/2. The depth of 4 does not affect the
        // rank.
        slot_line("deep", r#"{"guest": "Ida Brandt"}"#, &nested_value),
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
        slot_line("no json", "Sorry.", &nested_value),
        slot_line("exact and deep", &nested_value.to_string(), &nested_value),
    ];
    let samples = ranked_views("slot", &lines);
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
    for expected_score in [
        score("slot.schema_accuracy", 0.0),
        score("slot.content_similarity", 1.0),
        score("slot.strict_keys_accuracy", 0.0),
    ] {
        assert!(
            samples[2].scores.contains(&expected_score),
            "{expected_score:?}"
        );
    }
    let has_depth = |view: &SampleScoreView| view.name.contains("depth");
    assert!(!samples[2].scores.iter().any(has_depth));
    assert!(samples.iter().all(|sample| sample.result == "step 4"));
}

#[test]
fn an_exact_match_ranks_after_invalid_lines_even_if_its_gold_is_invalid() {
    let line = |id: &str, is_exact: bool, f: f64| {
        json!({"id": id, "prediction": "{}", "score": {"schema": false, "exact_match": is_exact,
               "content": {"f": f}}})
    };
    // Content similarity may be 1 although a value has the wrong type.
    let lines = [
        line("exact", true, 1.0),
        line("invalid", false, 1.0),
        line("far", false, 0.2),
    ];
    assert_eq!(
        ids(&ranked_views("slot", &lines)),
        ["far", "invalid", "exact"]
    );
}

#[test]
fn broken_rules_are_on_the_card_with_their_paths() {
    let gold = json!({"guest": "Ida Brandt", "nights": 3});
    let raw = r#"{"guest": "Ida Brandt", "nights": "3", "pets": 0}"#;
    let samples = ranked_views("slot", &[slot_line("dev.jsonl:1", raw, &gold)]);
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
    // Two of the three predicted leaves are correct and none is missing: F1 = 0.8.
    let run = ReportRun {
        samples,
        ..ReportRun::default()
    };
    let facts = MetricFacts {
        plain_name: |_| None,
        greater_is_better: |_| None,
    };
    let page = render(&[run], facts).expect("a page");
    for part in [
        "breaks type at &#x2f;nights",
        "breaks additionalProperties",
        "ranked by <span>mean of slot.schema_accuracy and slot.content_similarity</span> <b>0.400</b>",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }

    let violations: Vec<Value> = (0..9)
        .map(|n| json!({"rule": "type", "path": n.to_string()}))
        .collect();
    let notes = super::line_notes(&json!({"score": {"violations": violations}}));
    assert_eq!(notes.len(), MAX_RULES + 1);
    assert_eq!(notes[MAX_RULES], "breaks 4 more rules");
}

#[test]
fn every_suite_is_ranked_by_its_own_scores() {
    let nestful = |id: &str, n_pred: usize, partial: f64, win: Value| {
        json!({"id": id, "question": "q", "gold": "g", "prediction": "p",
               "score": {"parse_error": n_pred == 0, "n_pred": n_pred, "partial": partial,
                         "full": false, "win": win, "gold_dag": {"calls": 9}}})
    };
    let lost_line = json!({"scored": {"official": false, "strict": false}});
    let won = json!({"scored": {"official": true, "strict": true}});
    let lines = [
        nestful("won otherwise", 1, 0.0, won.clone()),
        nestful("many calls", 12, 0.1, lost_line.clone()),
        nestful("unread", 0, 0.0, lost_line),
        nestful("not run", 3, 0.25, json!("needs_tools")),
        nestful("right", 1, 1.0, won),
    ];
    let samples = ranked_views("nestful", &lines);
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
        json!({"type": "answer", "id": uid, "question": "q", "gold_answer": "g", "prediction": "m",
               "failure": (!scores[0]).then_some("no output"), "exact_match": scores[0],
               "exact_match_strict": scores[1], "contains": scores[2], "judged": null})
    };
    let lines = [
        toolqa("right", [true, true, true]),
        toolqa("near", [true, false, true]),
        toolqa("wrong", [false, false, false]),
    ];
    let samples = ranked_views("toolqa", &lines);
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
    assert_eq!(ids(&ranked_views("goat", &lines)), ["longer", "short"]);

    let apibank = |id: &str, n_right: usize, rouge_l: Option<f64>| {
        json!({"id": id, "query": "q", "outcome": {}, "score": {"n_pred": 4, "n_gold": 2,
               "n_right": n_right, "rouge_l": rouge_l}})
    };
    let lines = [
        apibank("two of four", 2, None),
        apibank("one of four", 1, Some(0.5)),
    ];
    let samples = ranked_views("apibank", &lines);
    assert_eq!(ids(&samples), ["one of four", "two of four"]);
    let rank = score("mean of apibank.right_calls and apibank.rouge_l", 0.375);
    assert_eq!(samples[0].rank, Some(rank));
}

#[test]
fn every_kind_of_answer_reports_broken_rules() {
    let joined_notes = |line: &Value| line_notes(line).join("; ");
    let faults = json!([{"rule": "missed_call", "message": "no call of tide"}]);
    assert_eq!(
        joined_notes(&json!({"score": {"faults": faults}})),
        "breaks missed_call: no call of tide"
    );
    let other = json!({"score": {"violations": [], "exact_match": false}});
    assert_eq!(
        joined_notes(&other),
        "valid under its schema, but the values differ from the gold answer"
    );
    assert_eq!(joined_notes(&json!({"score": {"exact_match": true}})), "");
    let unread = json!({"score": {"parse_error": true}});
    assert!(joined_notes(&unread).contains("cannot be parsed"));
    assert_eq!(
        joined_notes(&json!({"score": {"win": "gold_fails"}})),
        "not run: gold fails"
    );
    assert_eq!(
        joined_notes(&json!({"status": "code_error"})),
        "ended with status code error"
    );
    assert_eq!(joined_notes(&json!({"status": "answered"})), "");
}

#[test]
fn lines_without_ranking_scores_are_omitted() {
    let line = json!({"query": "q", "gold": [0], "ranked": [3, 0]});
    assert_eq!(ranked_views("retrieval", &[line]), []);
    assert_eq!(
        ranked_views("slot", &[json!({"id": "a", "prediction": "x"})]),
        []
    );
}

#[test]
fn missing_fields_of_a_line_come_from_its_row() {
    let schema = serde_json::from_str(SCHEMA).expect("a schema");
    let slot = SlotRow {
        id: "dev.jsonl:1".to_owned(),
        input_text: "Ida Brandt stays three nights.".to_owned(),
        json_schema: schema,
        gold: json!({"guest": "Ida Brandt", "nights": 3}),
    };
    let row = Row::from_slot(slot, &SlotPrompt::default()).expect("a row");
    let line = slot_line("dev.jsonl:1", "none", &json!({}));
    let rows = HashMap::from([(row.id.as_str(), &row)]);
    let samples = ranked_with("slot", std::slice::from_ref(&line), &rows);
    assert!(samples[0].prompt.contains("Ida Brandt stays three nights."));
    assert_eq!(samples[0].gold, r#"{"guest": "Ida Brandt", "nights": 3}"#);

    let expected_notes = [
        (Role::System, "Be brief."),
        (Role::User, "When?"),
        (Role::Assistant, "Now."),
    ];
    let messages = expected_notes.map(|(role, text)| Message::new(role, text));
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
fn agent_predictions_are_shown_next_to_their_gold() {
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
        let sample = &ranked_views(suite, &[line])[0];
        let gold: Value = serde_json::from_str(&sample.gold).expect("a gold that is JSON");
        assert_eq!(gold["response"], "It is -3.", "{suite}");
        assert_eq!(gold["calls"], calls, "{suite}");
        assert!(sample.prediction.contains("Cold."), "{suite}");
        assert_eq!(sample.prompt, "How cold is Oslo?");
    }
}
