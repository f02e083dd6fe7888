//! Names, directions and marks of every suite, and the scores of their lines.

use serde_json::json;

use super::*;

/// The suite of a line, its sample, and its scores by name.
fn scored(line: &Value) -> (&'static str, Option<&str>, Vec<(&'static str, f64)>) {
    let form = SampleScores::of_line(line).expect("a line of a suite");
    let measures = form.measures.iter();
    let values = measures.filter_map(|one| Some((one.key, one.value(line)?)));
    (form.of, form.id(line), values.collect())
}

fn costs(suite: &str) -> Vec<&'static str> {
    let form = SampleScores::all().find(|form| form.of == suite);
    let measures = form.expect("a suite").measures.iter();
    let costs = measures.filter(|one| !one.greater_is_better);
    costs.map(|one| one.key).collect()
}

#[test]
fn completions_of_slot_have_their_scores_and_not_the_depth_of_their_gold() {
    let agreement = json!({"precision": 0.5, "recall": 1.0, "f": 0.75});
    let score = json!({"parses": true, "schema": true, "strict_keys": false,
        "content": agreement, "exact": agreement, "exact_match": false, "gold_depth": 3,
        "violations": [{"rule": "type"}]});
    let mut line = json!({"id": "dev:1", "prediction": "{}", "n_tokens": 9, "score": score});
    let (suite, id, values) = scored(&line);
    assert_eq!((suite, id), ("slot", Some("dev:1")));
    let expected = [
        ("parse_rate", 1.0),
        ("schema_accuracy", 1.0),
        ("strict_keys_accuracy", 0.0),
        ("content_similarity", 0.75),
        ("exact_match_f", 0.75),
        ("exact_match", 0.0),
        ("mean", 0.875),
    ];
    assert_eq!(values, expected);
    line["scored"] = json!({"text": "{}"});
    assert_eq!(scored(&line).2.last(), Some(&("malformed_rate", 0.0)));
    line["scored"]["malformed"] = json!("not_json");
    assert_eq!(scored(&line).2.last(), Some(&("malformed_rate", 1.0)));
    assert_eq!(costs("slot"), ["malformed_rate"]);
}

#[test]
fn outcomes_of_agents_have_a_length_where_they_are_solved() {
    let mut line = json!({"id": "q1", "query": "?", "outcome": {}, "score": {"sa": 0.5,
        "ia": 0.25, "ia_strict": 0.0, "success": true, "correct_path": true, "delta_len": -1,
        "parse_error": false}});
    let solved = [
        ("sa", 0.5),
        ("ia", 0.25),
        ("ia_strict", 0.0),
        ("sr", 1.0),
        ("correct_path", 1.0),
        ("delta_len", -1.0),
        ("parse_error_rate", 0.0),
    ];
    assert_eq!(scored(&line), ("goat", Some("q1"), solved.to_vec()));
    line["score"]["success"] = json!(false);
    let names = |line: &Value| scored(line).2.into_iter().map(|(name, _)| name).collect();
    let unsolved: Vec<&str> = names(&line);
    assert!(!unsolved.contains(&"delta_len") && unsolved.contains(&"sr"));
    line["score"]["success"] = Value::Null;
    let unjudged: Vec<&str> = names(&line);
    assert_eq!(
        unjudged,
        ["sa", "ia", "ia_strict", "correct_path", "parse_error_rate"]
    );
    assert_eq!(costs("goat"), ["delta_len", "parse_error_rate"]);

    let line = json!({"id": "p", "gold": ["GET /a"], "score": {"sa": 1.0, "correct_path": false,
        "success": null, "delta_len": 2, "parse_error": true}});
    let values = vec![
        ("correct_path", 0.0),
        ("sa", 1.0),
        ("parse_error_rate", 1.0),
    ];
    assert_eq!(scored(&line), ("restbench", Some("p"), values));
    assert_eq!(costs("restbench"), ["delta_len", "parse_error_rate"]);
}

#[test]
fn samples_of_apibank_are_right_where_all_calls_are() {
    let line = |n_pred: usize, n_gold: usize| {
        json!({"id": "s", "score": {"n_pred": n_pred, "n_gold": n_gold, "n_right": 1,
            "rouge_l": 0.5, "rouge_l_plain": null, "success": null, "parse_error": false}})
    };
    let right = vec![
        ("sample_accuracy", 1.0),
        ("rouge_l", 0.5),
        ("parse_error_rate", 0.0),
    ];
    assert_eq!(scored(&line(1, 1)), ("apibank", Some("s"), right));
    assert_eq!(scored(&line(2, 1)).2[0], ("sample_accuracy", 0.0));
    assert_eq!(scored(&line(0, 0)).2[0], ("rouge_l", 0.5));
    let mut solved = line(1, 1);
    solved["score"]["correct_path"] = json!(false);
    solved["score"]["delta_len"] = json!(2);
    solved["score"]["success"] = json!(true);
    let values = scored(&solved).2;
    assert!(values.contains(&("correct_path", 0.0)) && values.contains(&("delta_len", 2.0)));
    assert_eq!(costs("apibank"), ["delta_len", "parse_error_rate"]);
}

#[test]
fn sequences_and_loops_of_nestful_share_their_wins() {
    let line = json!({"id": "n", "gold": "[]", "score": {"parse_error": false, "n_pred": 3,
        "gold_names": ["add"], "pred_names": [], "slot_rows": [], "partial": 0.5,
        "full": false, "win": {"scored": {"official": null, "strict": true}},
        "gold_dag": {"n_calls": 4, "depth": 2}}});
    let sequence = vec![
        ("partial", 0.5),
        ("full", 0.0),
        ("win_official", 0.0),
        ("win_strict", 1.0),
        ("parse_error_rate", 0.0),
    ];
    assert_eq!(scored(&line), ("nestful", Some("n"), sequence));
    let line = json!({"id": "n", "score": {"win": "needs_tools", "n_steps": 4,
        "parse_error": true}});
    let lost = vec![("parse_error_rate", 1.0), ("steps", 4.0)];
    assert_eq!(scored(&line), ("nestful", Some("n"), lost));
    assert_eq!(costs("nestful"), ["parse_error_rate", "steps"]);
}

#[test]
fn rankings_are_scored_as_far_as_a_line_shows_them() {
    let line = json!({"query": "how?", "gold": [7, 3], "ranked": [1, 3, 2, 7, 9, 4]});
    let (suite, id, values) = scored(&line);
    assert_eq!((suite, id), ("retrieval", Some("how?")));
    let of = |wanted: &str| values.iter().find(|(name, _)| *name == wanted).map(|v| v.1);
    for (name, expected) in [
        ("recall_at_gt", Some(0.5)),
        ("recall_at_1", Some(0.0)),
        ("recall_at_3", Some(0.5)),
        ("recall_at_5", Some(1.0)),
        ("accuracy_at_1", Some(0.0)),
        ("accuracy_at_3", Some(1.0)),
        ("mrr_at_10", Some(0.5)),
        ("map_at_100", None),
    ] {
        assert_eq!(of(name), expected, "{name}");
    }
    let gold: Vec<usize> = (0..12).collect();
    let line = json!({"query": "how?", "gold": gold, "ranked": [1, 3]});
    assert_eq!(scored(&line).2[0].0, "recall_at_1");
    assert!(costs("retrieval").is_empty());
}

#[test]
fn answers_and_types_of_toolqa_stand_beside_their_other_fields() {
    let line = json!({"uid": "u", "response_id": "r", "task_type": "FILTERING", "answer": null,
        "model_output": "no code", "status": "no_code", "exact_match": false,
        "exact_match_strict": false, "contains": true, "judged": true});
    let values = vec![
        ("exact_match", 0.0),
        ("exact_match_strict", 0.0),
        ("contains", 1.0),
        ("judged", 1.0),
        ("parse_error_rate", 1.0),
    ];
    assert_eq!(scored(&line), ("toolqa", Some("u"), values));
    assert_eq!(costs("toolqa"), ["parse_error_rate"]);
    let line = json!({"uid": "u", "task_type": "FILTERING", "model_output": "Filtering"});
    let values = vec![("accuracy", 1.0), ("parse_error_rate", 0.0)];
    assert_eq!(scored(&line), ("toolqa --classify", Some("u"), values));
}

#[test]
fn a_score_of_samples_has_the_name_and_the_direction_of_its_metric() {
    // Halves of an F, which no metric sums up.
    const HALVES: [&str; 4] = [
        "content_precision",
        "content_recall",
        "exact_match_precision",
        "exact_match_recall",
    ];
    // Shares that rank samples and are no metric, and numbers of loops and classifiers.
    const OTHERS: [&str; 3] = ["right_calls", "steps", "accuracy"];
    for suite in SUITES {
        let known = || suite.metrics.iter().chain(suite.flat_metrics);
        let measures = suite.samples.iter().flat_map(|form| form.measures);
        for measure in measures.chain(suite.ranked_by) {
            let (suite, key) = (suite.name, measure.key);
            let is_other = HALVES.contains(&key) || OTHERS.contains(&key);
            let is_known = known().any(|known| *known == key);
            assert!(is_known || is_other, "{suite}.{key}");
            let falls = lower_is_better(&format!("{suite}.{key}"));
            assert_eq!(falls, !measure.greater_is_better, "{suite}.{key}");
        }
    }
}

#[test]
fn words_are_of_metrics_that_there_are_and_no_two_share_them() {
    for suite in SUITES {
        let mut seen = std::collections::BTreeSet::new();
        for (key, words) in suite.words {
            let mut known = suite.metrics.iter().chain(suite.flat_metrics);
            let is_known = known.any(|known| known == key);
            assert!(is_known, "{}.{key} is no metric", suite.name);
            assert!(seen.insert(words), "{}: {words} twice", suite.name);
            assert_eq!(metric_words(&suite.metric(key)), Some(*words));
        }
    }
    assert_eq!(metric_words("slot.mean_of_nothing"), None);
    assert_eq!(metric_words("loss"), None);
}

#[test]
fn lines_without_scores_are_of_no_suite() {
    for line in [
        json!({"id": "a", "prediction": "{}"}),
        json!({"id": "a", "score": {"gold_depth": 2}}),
        json!({"id": "a", "score": 0.5}),
        json!({"uid": "a", "model_output": "b"}),
        json!([1, 2]),
        Value::Null,
    ] {
        assert!(SampleScores::of_line(&line).is_none(), "{line}");
    }
}

#[test]
fn a_metrics_file_tells_its_suite() {
    let suite = |metrics: &Value| SuiteInfo::of_metrics(metrics).map(|suite| suite.name);
    for (name, metrics) in [
        (
            "slot",
            json!({"n": 2, "schema_accuracy": {"value": 0.5}, "mean": {"value": 0.5}}),
        ),
        (
            "nestful",
            json!({"n": 2, "partial": {"value": 0.5}, "win_strict": null}),
        ),
        (
            "toolqa",
            json!({"n": 2, "contains": {"value": 0.5}, "n_parse_errors": 0}),
        ),
        (
            "toolqa",
            json!({"n": 2, "accuracy": {"value": 0.5}, "n_parse_errors": 0}),
        ),
        (
            "goat",
            json!({"goat": {"sa": 1.0}, "retrieval": {"recall_at_gt": 1.0}}),
        ),
        ("restbench", json!({"restbench": {"sa": 1.0}, "judge": {}})),
        ("apibank", json!({"apibank": {"correctness": null}})),
        ("retrieval", json!({"n": 2, "recall_at_gt": {"value": 0.5}})),
    ] {
        assert_eq!(suite(&metrics), Some(name));
    }
    for foreign in [json!({"accuracy": 1.0}), json!([1]), json!(null)] {
        assert_eq!(suite(&foreign), None);
    }
}
