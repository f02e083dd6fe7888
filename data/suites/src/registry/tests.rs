//! Tests of names, directions and scores of all suites.

use serde_json::json;

use super::*;

/// A line of this suite and type.
fn add_kind(suite: &str, kind: &str, mut line: Value) -> Value {
    line[SUITE_FIELD] = json!(suite);
    line[TYPE_FIELD] = json!(kind);
    line
}

/// The suite of a line, its sample id, and its scores by name.
fn score_fields(line: &Value) -> (&'static str, Option<&str>, Vec<(&'static str, f64)>) {
    let form = SampleScores::for_line(line).expect("a line of a suite");
    let measures = form.measures.iter();
    let values = measures.filter_map(|measure| Some((measure.key, measure.value(line)?)));
    (form.of, form.id(line), values.collect())
}

fn costs(suite: &str) -> Vec<&'static str> {
    let form = SampleScores::all().find(|form| form.of == suite);
    let measures = form.expect("a suite").measures.iter();
    let costs = measures.filter(|measure| !measure.greater_is_better);
    costs.map(|measure| measure.key).collect()
}

#[test]
fn only_metrics_have_a_better_direction() {
    for (metric, expected) in [
        ("slot.mean", Some(true)),
        ("slot.malformed_rate", Some(false)),
        ("goat.delta_len", Some(false)),
        ("goat.recall_at_5", Some(true)),
        ("loss", Some(false)),
        ("goat.n_judged", None),
        ("slot.gold_depth", None),
        ("unknown.sa", None),
        ("n", None),
    ] {
        assert_eq!(greater_is_better(metric), expected, "{metric}");
    }
}

#[test]
fn retrieval_of_agents_counts_each_text_once() {
    let line = |n: u64, recall: Value| {
        let line = json!({"id": "q", "score": {"ia": 1.0,
            "retrieval": {"recall_at_gt": recall, "recall_at_5": recall, "n_texts": n}}});
        add_kind("goat", "loop", line)
    };
    let form = SampleScores::for_line(&line(2, json!(0.5))).expect("a line of a suite");
    let measure = form
        .measures
        .iter()
        .find(|one| one.key == "recall_at_gt")
        .expect("a score");
    let score = measure.score("q", &line(2, json!(0.5))).expect("a score");
    assert_eq!((score.score, score.weight), (0.5, 2.0));
    let shared = measure.score("q", &line(0, Value::Null)).expect("a score");
    assert_eq!(
        shared.weight, 0.0,
        "all of its texts are those of earlier queries"
    );
    let sample_score = measure.score("q", &json!({"id": "q", "score": {"ia": 1.0}}));
    assert_eq!(sample_score.map(|score| score.weight), Some(0.0));
}

#[test]
fn completions_of_slot_have_their_scores_and_not_the_depth_of_their_gold() {
    let agreement = json!({"precision": 0.5, "recall": 1.0, "f": 0.75});
    let score = json!({"parses": true, "schema": true, "strict_keys": false,
        "content": agreement, "exact": agreement, "exact_match": false, "gold_depth": 3,
        "violations": [{"rule": "type"}]});
    let mut line = add_kind(
        "slot",
        "completion",
        json!({"id": "dev:1", "prediction": "{}", "n_tokens": 9, "score": score}),
    );
    let (suite, id, values) = score_fields(&line);
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
    assert_eq!(score_fields(&line).2.last(), Some(&("malformed_rate", 0.0)));
    line["scored"]["malformed"] = json!("not_json");
    assert_eq!(score_fields(&line).2.last(), Some(&("malformed_rate", 1.0)));
    assert_eq!(costs("slot"), ["malformed_rate"]);
}

#[test]
fn agent_outcomes_have_a_length_only_if_solved() {
    let mut line = add_kind(
        "goat",
        "loop",
        json!({"id": "q1", "query": "?", "outcome": {}, "score": {"sa": 0.5,
        "ia": 0.25, "ia_strict": 0.0, "success": true, "correct_path": true, "delta_len": -1,
        "parse_error": false}}),
    );
    let solved = [
        ("sa", 0.5),
        ("ia", 0.25),
        ("ia_strict", 0.0),
        ("sr", 1.0),
        ("correct_path", 1.0),
        ("delta_len", -1.0),
        ("parse_error_rate", 0.0),
    ];
    assert_eq!(score_fields(&line), ("goat", Some("q1"), solved.to_vec()));
    line["score"]["success"] = json!(false);
    let names = |line: &Value| {
        score_fields(line)
            .2
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    };
    let unsolved: Vec<&str> = names(&line);
    assert!(!unsolved.contains(&"delta_len") && unsolved.contains(&"sr"));
    line["score"]["success"] = Value::Null;
    let unjudged: Vec<&str> = names(&line);
    assert_eq!(
        unjudged,
        ["sa", "ia", "ia_strict", "correct_path", "parse_error_rate"]
    );
    assert_eq!(costs("goat"), ["delta_len", "parse_error_rate"]);

    let line = add_kind(
        "restbench",
        "loop",
        json!({"id": "p", "gold": ["GET /a"], "score": {"sa": 1.0, "correct_path": false,
        "success": null, "delta_len": 2, "parse_error": true}}),
    );
    let values = vec![
        ("correct_path", 0.0),
        ("sa", 1.0),
        ("parse_error_rate", 1.0),
    ];
    assert_eq!(score_fields(&line), ("restbench", Some("p"), values));
    assert_eq!(costs("restbench"), ["delta_len", "parse_error_rate"]);
}

#[test]
fn an_apibank_sample_is_right_if_all_its_calls_are() {
    let line = |n_pred: usize, n_gold: usize| {
        add_kind(
            "apibank",
            "loop",
            json!({"id": "s", "score": {"n_pred": n_pred, "n_gold": n_gold, "n_right": 1,
            "rouge_l": 0.5, "rouge_l_plain": null, "success": null, "parse_error": false}}),
        )
    };
    let right = vec![
        ("sample_accuracy", 1.0),
        ("rouge_l", 0.5),
        ("parse_error_rate", 0.0),
    ];
    assert_eq!(score_fields(&line(1, 1)), ("apibank", Some("s"), right));
    assert_eq!(score_fields(&line(2, 1)).2[0], ("sample_accuracy", 0.0));
    assert_eq!(score_fields(&line(0, 0)).2[0], ("rouge_l", 0.5));
    let mut solved = line(1, 1);
    solved["score"]["correct_path"] = json!(false);
    solved["score"]["delta_len"] = json!(2);
    solved["score"]["success"] = json!(true);
    let values = score_fields(&solved).2;
    assert!(values.contains(&("correct_path", 0.0)) && values.contains(&("delta_len", 2.0)));
    assert_eq!(costs("apibank"), ["delta_len", "parse_error_rate"]);
}

#[test]
fn nestful_sequences_and_loops_have_the_same_win_metrics() {
    let line = add_kind(
        "nestful",
        "sequence",
        json!({"id": "n", "gold": "[]", "score": {"parse_error": false, "n_pred": 3,
        "gold_names": ["add"], "pred_names": [], "slot_rows": [], "partial": 0.5,
        "full": false, "win": {"scored": {"official": null, "strict": true}},
        "gold_dag": {"n_calls": 4, "depth": 2}}}),
    );
    let sequence = vec![
        ("partial", 0.5),
        ("full", 0.0),
        ("win_official", 0.0),
        ("win_strict", 1.0),
        ("parse_error_rate", 0.0),
    ];
    assert_eq!(score_fields(&line), ("nestful", Some("n"), sequence));
    let line = add_kind(
        "nestful",
        "loop",
        json!({"id": "n", "score": {"win": "needs_tools", "n_steps": 4,
        "parse_error": true}}),
    );
    let expected = vec![("parse_error_rate", 1.0), ("steps", 4.0)];
    assert_eq!(score_fields(&line), ("nestful", Some("n"), expected));
    assert_eq!(costs("nestful"), ["parse_error_rate", "steps"]);
}

#[test]
fn rankings_are_scored_from_the_ids_in_a_line() {
    let line = add_kind(
        "retrieval",
        "ranking",
        json!({"query": "how?", "gold": [7, 3], "ranked": [1, 3, 2, 7, 9, 4]}),
    );
    let (suite, id, values) = score_fields(&line);
    assert_eq!((suite, id), ("retrieval", Some("how?")));
    let value_of = |wanted_name: &str| {
        values
            .iter()
            .find(|(name, _)| *name == wanted_name)
            .map(|v| v.1)
    };
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
        assert_eq!(value_of(name), expected, "{name}");
    }
    let gold: Vec<usize> = (0..12).collect();
    let line = add_kind(
        "retrieval",
        "ranking",
        json!({"query": "how?", "gold": gold, "ranked": [1, 3]}),
    );
    assert_eq!(score_fields(&line).2[0].0, "recall_at_1");
    assert!(costs("retrieval").is_empty());
}

#[test]
fn toolqa_answers_and_types_are_read_next_to_other_fields() {
    let line = add_kind(
        "toolqa",
        "answer",
        json!({"id": "u", "response_id": "r", "task_type": "FILTERING", "answer": null,
        "prediction": "no code", "status": "no_code", "exact_match": false,
        "exact_match_strict": false, "contains": true, "judged": true}),
    );
    let values = vec![
        ("exact_match", 0.0),
        ("exact_match_strict", 0.0),
        ("contains", 1.0),
        ("judged", 1.0),
        ("parse_error_rate", 1.0),
    ];
    assert_eq!(score_fields(&line), ("toolqa", Some("u"), values));
    assert_eq!(costs("toolqa"), ["parse_error_rate"]);
    let line = add_kind(
        "toolqa",
        "classification",
        json!({"id": "u", "task_type": "FILTERING", "prediction": "Filtering"}),
    );
    let values = vec![("accuracy", 1.0), ("parse_error_rate", 0.0)];
    assert_eq!(
        score_fields(&line),
        ("toolqa --classify", Some("u"), values)
    );
}

#[test]
fn a_score_of_samples_has_the_name_and_the_direction_of_its_metric() {
    // Precision and recall of an F1; no metric aggregates them.
    const HALVES: [&str; 4] = [
        "content_precision",
        "content_recall",
        "exact_match_precision",
        "exact_match_recall",
    ];
    // Fractions that rank samples but are not metrics, and numbers of loops and classifiers.
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
fn plain_metric_names_belong_to_existing_metrics_and_are_unique() {
    for suite in SUITES {
        let mut seen_names = std::collections::BTreeSet::new();
        for (key, words) in suite.plain_names {
            let mut known = suite.metrics.iter().chain(suite.flat_metrics);
            let is_known = known.any(|known| known == key);
            assert!(is_known, "{}.{key} is not a metric", suite.name);
            assert!(seen_names.insert(words), "{}: {words} twice", suite.name);
            assert_eq!(plain_metric_name(&suite.metric(key)), Some(*words));
        }
    }
    assert_eq!(plain_metric_name("slot.mean_of_nothing"), None);
    assert_eq!(plain_metric_name("loss"), None);
}

#[test]
fn lines_without_scores_belong_to_no_suite() {
    for line in [
        json!({"id": "a", "prediction": "{}"}),
        json!({"id": "a", "score": {"gold_depth": 2}}),
        json!({"id": "a", "score": 0.5}),
        json!({"uid": "a", "model_output": "b"}),
        // A line does not belong to another suite because it has keys of that suite.
        json!({"id": "a", "score": {"exact_match": true, "ia": 1.0}}),
        json!({"id": "a", "suite": "goat", "score": {"ia": 1.0}}),
        json!({"id": "a", "suite": "goat", "type": "sequence", "score": {"ia": 1.0}}),
        json!({"id": "a", "suite": "boats", "type": "loop", "score": {"ia": 1.0}}),
        json!([1, 2]),
        Value::Null,
    ] {
        assert!(SampleScores::for_line(&line).is_none(), "{line}");
    }
}

#[test]
fn a_metrics_file_names_its_suite() {
    let suite = |metrics: &Value| SuiteInfo::for_metrics(metrics).map(|suite| suite.name);
    let metrics_file = json!({"suite": "calls", "goat": {}});
    assert_eq!(suite(&metrics_file), Some("calls"));
    for foreign in [
        json!({"n": 2, "schema_accuracy": {"value": 0.5}}),
        json!({"suite": "boats", "goat": {}}),
        json!([1]),
        json!(null),
    ] {
        assert_eq!(suite(&foreign), None);
    }
}

#[test]
fn line_parts_are_found_by_the_fields_of_their_kind() {
    let part = |suite: &str, line: &Value| {
        let form = SuiteInfo::from_name(suite).expect("a suite").form_of(line);
        let fields = form.expect("a kind of lines").fields;
        let text = |names: &[&str]| {
            LineFields::first_value(names, line)
                .cloned()
                .unwrap_or_default()
        };
        let reasons: Vec<String> = fields
            .finish_reasons(line)
            .into_iter()
            .map(str::to_owned)
            .collect();
        (text(fields.prompt), text(fields.output), reasons)
    };
    let line = json!({"type": "loop", "id": "a", "question": "?", "finish_reason_of": "x",
        "steps": [{"text": "1", "finish_reason": "stop"}, {"finish_reason": "length"}],
        "score": {"finish_reason": "not a text of the model"}});
    assert_eq!(
        part("nestful", &line),
        (
            json!("?"),
            line["steps"].clone(),
            vec!["stop".to_owned(), "length".to_owned()]
        )
    );
    let line = json!({"id": "a", "query": "?", "prompt": "another field",
        "outcome": {"texts": [{"finish_reason": "stop", "n_tokens": 3}], "end": "answered"}});
    assert_eq!(
        part("goat", &line),
        (json!("?"), line["outcome"].clone(), vec!["stop".to_owned()])
    );
    let line = json!({"id": "a", "input_text": "x", "prediction": null});
    assert_eq!(part("slot", &line), (json!("x"), Value::Null, vec![]));
}
