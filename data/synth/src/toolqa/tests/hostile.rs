//! Responses that break naive generators.

use super::*;

fn read(text: &str) -> Result<Vec<InputResponse>, SynthError> {
    let file = tempfile::Builder::new()
        .suffix(".jsonl")
        .tempfile()
        .expect("a file");
    std::fs::write(file.path(), text).expect("written");
    read_responses(vec![tooltune_apis::JsonLines::open_rows(file.path())?])
}

#[test]
fn responses_are_read_with_defaults() {
    let text = "{\"response_id\": \"r\", \"endpoint\": \"e\", \"split\": \"s\", \"response\": [1]}\n\
                {\"api\": \"shop\", \"response\": null}\n\
                {\"other\": 1}\n\
                [1, 2]\n";
    let responses = read(text).expect("responses");
    let stem = &responses[2].endpoint;
    assert_eq!(
        (&*responses[0].response_id, &*responses[0].split),
        ("r", "s")
    );
    assert_eq!(responses[1].endpoint, "shop");
    assert_eq!(responses[1].response_id, format!("{stem}-2"));
    assert_eq!(responses[2].response, json!({"other": 1}));
    assert_eq!(responses[3].response, json!([1, 2]));
}

#[test]
fn bad_files_are_refused_with_their_place() {
    for (text, part) in [
        ("", "no "),
        ("{\"response\": 1, \"response\": 2}\n", ":1"),
        ("{\"response\": NaN}\n", ":1"),
        ("{\"response\": 1, \"endpoint\": 5}\n", "endpoint"),
        (
            "{\"response_id\": \"a\", \"response\": 1}\n{\"response_id\": \"a\", \"response\": 1}\n",
            "occurs twice",
        ),
    ] {
        let message = read(text).expect_err(part).to_string();
        assert!(message.contains(part), "{text:?}: {message}");
    }
}

#[test]
fn hostile_responses_are_dropped_or_asked_about_without_a_panic() {
    let mut deep = json!({"x": 1});
    for _ in 0..100 {
        deep = json!({ "a": [deep] });
    }
    let wide: Vec<Value> = (0..3000)
        .map(|i| json!({"id": format!("k{i}"), "v": i % 7, "w": i}))
        .collect();
    let keys: Value = (0..5000)
        .map(|i| (format!("key{i}"), json!(i)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let responses = [
        json!(null),
        json!([]),
        json!({}),
        json!("text"),
        json!([[], [[]], {}]),
        json!({"items": []}),
        json!({"items": [{}, {}, {}]}),
        json!({"items": [{"a": 1}, {"a": "1"}, {"a": null}, {"a": [1]}]}),
        json!({"items": [{"": 1}, {"": 2}, {"": 3}]}),
        json!({"items": [{"a b": 1, "a_b": 2}, {"a b": 3, "a_b": 1}, {"a b": 2, "a_b": 5}]}),
        json!({"items": [{"id": "{key}", "n": 1e308}, {"id": "\"q\"", "n": -1e308}, {"id": "a\nb", "n": 5e-324}]}),
        json!({"items": [{"id": "NaN", "n": "Infinity"}, {"id": "ﬁ", "n": "-0"}, {"id": "İ", "n": "İ"}]}),
        json!({"items": [{"name": "İstanbul", "größe": 1.5}, {"name": "東京", "größe": 2}, {"name": "Ελλάς", "größe": -3}]}),
        json!({"a.b": {"c\"d": [{"i d": "x", "é": 1}, {"i d": "y", "é": 2}, {"i d": "z", "é": 3}]}}),
        json!([{"id": "x", "n": 1}, {"id": "y", "n": 2}, {"id": "z", "n": 3}]),
        deep,
        json!({ "items": wide }),
        json!({"items": [keys.clone(), keys.clone(), keys]}),
    ];
    for (idx, response) in responses.into_iter().enumerate() {
        let subject = vec![input("h", response.clone())];
        let (rows, dropped) = generate(subject.clone(), options(20, 9));
        assert!(!rows.is_empty() || !dropped.is_empty(), "{idx}");
        for question in rows {
            let made = question.row.made.expect("generated");
            let compiled = program::CompiledProgram::new(&made.program).expect("valid");
            let gold = compiled.run(&response).expect("an answer").gold;
            assert_eq!(gold, question.row.gold_answer, "{idx}");
            assert!(question.row.question.chars().count() < 2_000, "{idx}");
        }
        let sized = ToolQaSynthOptions {
            target_tokens: vec![50],
            answer_positions: vec![1],
            ..options(4, 9)
        };
        generate(subject, sized);
    }
}

#[test]
fn a_list_at_the_top_is_a_list_of_records() {
    let list = flights()["data"]["flights"].clone();
    let (rows, _) = generate(vec![input("top", list)], options(20, 1));
    assert!(rows.len() >= 15, "{}", rows.len());
}
