//! The published layout, with invented content.

use super::*;

fn question(uid: &str, change: impl Fn(&mut Value)) -> Value {
    let mut question = json!({
        "uid": uid, "question": "How many boats are there?", "gold_answer": "4",
        "api_response_path": "api_responses/harbour_boats.json", "api_response_schema": "schemas/x.txt",
        "app": "harbour", "endpoint": "boats", "api_query": "{\"pier\": 1}", "task": "CountBoats",
        "task_type": "AGGREGATION", "predicted_answer": null,
        "metrics": {"exact_match_metric": "approx_number_match", "exact_match": null}
    });
    change(&mut question);
    question
}

fn import(questions: &Value, responses: &Value) -> Result<PublishedSet, SynthError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("pairs.json"), questions.to_string()).expect("written");
    std::fs::write(path("harbour_boats.json"), responses.to_string()).expect("written");
    import_published(&path("pairs.json"), &path("harbour_boats.json"))
}

#[test]
fn questions_get_their_response_and_unusable_ones_are_counted() {
    let responses = json!({"harbour": {"boats": {
        "{\"pier\": 1}": {"boats": [1, 2, 3, 4]}, "{\"pier\": 2}": [], "{\"pier\": 3}": null
    }}});
    let questions = json!([
        question("a", |_| {}),
        question("b", |q| q["api_query"] = json!("{\"pier\": 2}")),
        question("c", |_| {}),
        question("d", |q| q["api_query"] = json!("{\"pier\": 9}")),
        question("e", |q| q["task_type"] = json!("OTHER")),
        question("f", |q| q["metrics"]["exact_match_metric"] = json!("bleu")),
        question("g", |q| q["gold_answer"] = json!(4)),
        question("h", |q| q["api_response_path"] =
            json!("api_responses/other.json")),
        // The published comparison never accepts a negative number; such rows are kept.
        question("i", |q| q["gold_answer"] = json!("-3")),
    ]);
    let set = import(&questions, &responses).expect("imported");
    let rows: Vec<(&str, &str)> = set
        .questions
        .iter()
        .map(|row| (&*row.uid, &*row.response_id))
        .collect();
    assert_eq!(
        rows,
        [
            ("a", "boats-1"),
            ("b", "boats-2"),
            ("c", "boats-1"),
            ("i", "boats-1")
        ]
    );
    assert_eq!(set.responses[0].response, json!({"boats": [1, 2, 3, 4]}));
    assert_eq!((set.responses.len(), set.n_unused), (2, 1));
    assert_eq!(set.dropped.values().sum::<usize>(), 5);
    assert_eq!(set.dropped.len(), 5);
    let line = serde_json::to_value(&set.questions[0]).expect("a line");
    let expected = json!({
        "uid": "a", "response_id": "boats-1", "endpoint": "boats", "task": "CountBoats",
        "task_type": "AGGREGATION", "metric": "approx_number_match",
        "question": "How many boats are there?", "gold_answer": "4"
    });
    assert_eq!(line, expected);
}

#[test]
fn other_layouts_are_refused() {
    let responses = json!({"harbour": {"boats": {"{\"pier\": 1}": 1}}});
    let error = |questions: Value, responses: Value| {
        import(&questions, &responses)
            .expect_err("refused")
            .to_string()
    };
    assert!(error(json!({}), responses.clone()).contains("not an array"));
    let without = json!([question("a", |q| {
        q.as_object_mut().unwrap().remove("app");
    })]);
    let message = error(without, responses.clone());
    assert!(
        message.contains("entry 1: missing field `app`"),
        "{message}"
    );
    let twice = json!([question("a", |_| {}), question("a", |_| {})]);
    assert!(error(twice, responses).contains("entry 2: the uid \"a\" occurs twice"));
    assert!(error(json!([]), json!({"harbour": [1]})).contains("not nested objects"));
}
