//! Compares the examples of a trajectory with their exact texts.

use tooltune_template::ValueOrigin;

use super::*;

const CALL_1: &str = "{\"name\": \"Stocks/Quote\", \"arguments\": {\"symbol\": \"BOLX\"}}";
const CALL_2: &str = "{\"name\": \"Stocks/Convert\", \"arguments\": {\"amount\": 385.62, \
                      \"from\": [\"BVK\", \"é\"], \"to\": \"DSD\"}}";
const RESULT_1: &str = "{\"price\": 385.62, \"currency\": \"BVK\"}";
const RESULT_2: &str = "{\"converted\": 12.91}";
const QUERY_PART: &str = "\n\nQuery: What is a share of BOLX in DSD?";

/// Id, prompt after its instruction, and completion of every example.
fn example_texts(method: Method) -> Vec<(String, String, String)> {
    expand(&trajectory(), &options(method))
        .iter()
        .map(|example| {
            let prompt_text = without_documents(prompt(&example.conversation));
            let (instruction, question_part) =
                prompt_text.split_at(prompt_text.find("\n\n").unwrap());
            assert!(instruction.ends_with('.'), "{instruction}");
            (
                example.id.clone(),
                question_part.to_owned(),
                completion(example).to_owned(),
            )
        })
        .collect()
}

fn check_examples(method: Method, expected: &[(&str, String, String)]) {
    let actual = example_texts(method);
    let expected: Vec<(String, String, String)> = expected
        .iter()
        .map(|(id, prompt, completion)| (format!("t1/{id}"), prompt.clone(), completion.clone()))
        .collect();
    assert_eq!(actual, expected);
}

fn first_call_text() -> String {
    format!("\nCall 1: {CALL_1}\nResult 1: {RESULT_1}")
}

fn both_calls_text() -> String {
    format!(
        "{}\nCall 2: {CALL_2}\nResult 2: {RESULT_2}",
        first_call_text()
    )
}

fn last() -> (&'static str, String, String) {
    (
        "final-1",
        format!("{QUERY_PART}{}\nAnswer:", both_calls_text()),
        "It is 12.91 DSD.".to_owned(),
    )
}

#[test]
fn global_yields_a_plan_one_example_per_call_and_the_answer() {
    let names = "[\"Stocks/Quote\", \"Stocks/Convert\"]".to_owned();
    let prompt_end = format!("\n\nAPIs: 1{QUERY_PART}\nPlan: {names}");
    check_examples(
        Method::Global,
        &[
            ("plan-1", format!("\n\nAPIs: 5{QUERY_PART}\nPlan:"), names),
            (
                "call-1",
                format!("{prompt_end}\nCall 1:"),
                CALL_1.to_owned(),
            ),
            (
                "call-2",
                format!("{prompt_end}{}\nCall 2:", first_call_text()),
                CALL_2.to_owned(),
            ),
            last(),
        ],
    );
}

#[test]
fn react_yields_steps_that_end_with_finish() {
    let prompt_end = format!("\n\nAPIs: 5{QUERY_PART}");
    check_examples(
        Method::React,
        &[
            (
                "step-1",
                format!("{prompt_end}\nStep 1:"),
                format!("Thought: Get the quote of BOLX.\nAction: {CALL_1}"),
            ),
            (
                "step-2",
                format!("{prompt_end}{}\nStep 2:", first_call_text()),
                format!("Thought: Convert the price to DSD.\nAction: {CALL_2}"),
            ),
            (
                "step-3",
                format!("{prompt_end}{}\nStep 3:", both_calls_text()),
                "Finish: It is 12.91 DSD.".to_owned(),
            ),
        ],
    );
}

const SUB_1: &str = "\nSub-query 1: Get the quote of BOLX.";
const SUB_2: &str = "\nSub-query 2: Convert the price to DSD.";

fn calls_of_sub_queries() -> [(&'static str, String, String); 2] {
    let prompt_end = format!("\n\nAPIs: 5{QUERY_PART}{SUB_1}");
    [
        (
            "call-1",
            format!("{prompt_end}\nCall 1:"),
            CALL_1.to_owned(),
        ),
        (
            "call-2",
            format!("{prompt_end}{}{SUB_2}\nCall 2:", first_call_text()),
            CALL_2.to_owned(),
        ),
    ]
}

#[test]
fn global_with_decomposition_yields_sub_queries_one_example_per_call_and_the_answer() {
    let [first, second] = calls_of_sub_queries();
    let sub_queries = "[\"Get the quote of BOLX.\", \"Convert the price to DSD.\"]".to_owned();
    check_examples(
        Method::GlobalId,
        &[
            (
                "decompose-1",
                format!("{QUERY_PART}\nSub-queries:"),
                sub_queries,
            ),
            first,
            second,
            last(),
        ],
    );
}

#[test]
fn react_with_decomposition_yields_one_sub_query_at_a_time_until_done() {
    let [first, second] = calls_of_sub_queries();
    let sub_query = |sub_query: &str| sub_query[sub_query.find(": ").unwrap() + 2..].to_owned();
    check_examples(
        Method::ReactId,
        &[
            (
                "decompose-1",
                format!("{QUERY_PART}\nSub-query 1:"),
                sub_query(SUB_1),
            ),
            first,
            (
                "decompose-2",
                format!("{QUERY_PART}{SUB_1}{}\nSub-query 2:", first_call_text()),
                sub_query(SUB_2),
            ),
            second,
            (
                "decompose-3",
                format!(
                    "{QUERY_PART}{SUB_1}{}{SUB_2}\nCall 2: {CALL_2}\nResult 2: {RESULT_2}\nSub-query 3:",
                    first_call_text()
                ),
                "DONE".to_owned(),
            ),
            last(),
        ],
    );
}

#[test]
fn prompts_with_documents_show_the_gold_documents_among_five() {
    for method in METHODS {
        for example in expand(&trajectory(), &options(method)) {
            let names = shown_apis(prompt(&example.conversation));
            let expected_names: Vec<&str> = match (method, example.kind, example.id.ends_with('1'))
            {
                (_, ExampleKind::Plan | ExampleKind::Step, _) => {
                    vec!["Stocks/Quote", "Stocks/Convert"]
                }
                (_, ExampleKind::Call, true) => vec!["Stocks/Quote"],
                (_, ExampleKind::Call, false) => vec!["Stocks/Convert"],
                _ => Vec::new(),
            };
            for name in &expected_names {
                assert!(
                    names.iter().any(|shown_name| shown_name == name),
                    "{}",
                    example.id
                );
            }
            let n_shown = match (method, example.kind) {
                (_, ExampleKind::Decompose | ExampleKind::Final) => 0,
                (Method::Global, ExampleKind::Call) => 1,
                _ => 5,
            };
            let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
            assert_eq!(
                (names.len(), distinct.len()),
                (n_shown, n_shown),
                "{}",
                example.id
            );
        }
    }
}

#[test]
fn examples_depend_only_on_seed_and_trajectory() {
    let catalogue = catalogue();
    let options = options(Method::React);
    let with_seed = |seed: u64, trajectory: &Trajectory| {
        let expansion = Expansion {
            catalogue: &catalogue,
            options: &options,
            seed,
        };
        expansion.expand(trajectory, &mut Ranking::Random).unwrap()
    };
    assert_eq!(with_seed(1, &trajectory()), with_seed(1, &trajectory()));
    let documents = |seed: u64, id: &str| {
        let trajectory = Trajectory {
            id: id.to_owned(),
            ..trajectory()
        };
        shown_apis(prompt(&with_seed(seed, &trajectory)[0].conversation))
    };
    let distinct_by_seed: std::collections::BTreeSet<_> =
        (0..20).map(|s| documents(s, "a")).collect();
    let distinct_by_id: std::collections::BTreeSet<_> =
        (0..20).map(|id| documents(1, &id.to_string())).collect();
    assert!(distinct_by_seed.len() > 15 && distinct_by_id.len() > 15);
}

#[test]
fn distractors_are_the_highest_ranked_documents() {
    let catalogue = catalogue();
    let options = options(Method::GlobalId);
    let expansion = Expansion {
        catalogue: &catalogue,
        options: &options,
        seed: 3,
    };
    let mut prompt_ends = Vec::new();
    let mut rank = |text: &str, k: usize| {
        prompt_ends.push((text.to_owned(), k));
        vec![6, 5, 4, 3, 2]
    };
    let examples = expansion
        .expand(&trajectory(), &mut Ranking::Retriever(&mut rank))
        .unwrap();
    let calls: Vec<&GoatExample> = examples
        .iter()
        .filter(|example| example.kind == ExampleKind::Call)
        .collect();
    for (example, gold) in calls.iter().zip(["Stocks/Quote", "Stocks/Convert"]) {
        let mut names = shown_apis(prompt(&example.conversation));
        names.sort();
        assert_eq!(
            names,
            [
                "Films/Cast",
                "Maps/Find City",
                "Maps/Route",
                "Sky/Forecast",
                gold
            ]
        );
    }
    let texts: Vec<String> = prompt_ends.iter().map(|(text, _)| text.clone()).collect();
    assert_eq!(texts, expansion.retrieval_texts(&trajectory()));
    assert_eq!(
        texts,
        ["Get the quote of BOLX.", "Convert the price to DSD."]
    );
    assert!(prompt_ends.iter().all(|&(_, k)| k == 5));
}

#[test]
fn results_are_truncated_and_the_query_is_not() {
    let mut long = trajectory();
    long.query = "word ".repeat(2_000);
    long.calls[0].output["text"] = json!("é".repeat(5_000));
    let mut options = options(Method::Global);
    options.output_limit = 100;
    let examples = expand(&long, &options);
    let prompt_text = prompt(&examples.last().unwrap().conversation);
    assert!(prompt_text.contains(&long.query));
    let result = prompt_text
        .lines()
        .find(|line| line.starts_with("Result 1: "))
        .unwrap();
    assert!(result.chars().count() <= 140, "{result}");
    assert!(prompt_text.contains(&format!("Result 2: {RESULT_2}")));
}

#[test]
fn weights_are_per_kind_and_zero_omits_a_kind() {
    let mut options = options(Method::Global);
    options.weights.plan = 0.0;
    options.weights.answer = 2.5;
    let kinds: Vec<(ExampleKind, f32)> = expand(&trajectory(), &options)
        .iter()
        .map(|example| (example.kind, example.weight))
        .collect();
    assert_eq!(
        kinds,
        [
            (ExampleKind::Call, 1.0),
            (ExampleKind::Call, 1.0),
            (ExampleKind::Final, 2.5)
        ]
    );
}

#[test]
fn argument_values_keep_their_spans_and_origins_in_every_completion() {
    use ValueOrigin::{Derived, Fixed};
    for method in METHODS {
        let mut n_calls = 0;
        for example in expand(&trajectory(), &options(method)) {
            let message = example.conversation.messages.last().unwrap();
            let values: Vec<(&str, ValueOrigin)> = message
                .content_values
                .iter()
                .map(|value| (&text(message)[value.range.clone()], value.origin))
                .collect();
            if completion(&example).ends_with(CALL_1) {
                assert_eq!(values, [("BOLX", Fixed)]);
                n_calls += 1;
            } else if completion(&example).ends_with(CALL_2) {
                let expected = [
                    ("385.62", Derived),
                    ("BVK", Derived),
                    ("é", Derived),
                    ("DSD", Fixed),
                ];
                assert_eq!(values, expected);
                n_calls += 1;
            } else {
                assert_eq!(values, []);
            }
        }
        assert_eq!(n_calls, 2, "{method:?}");
    }
}

#[test]
fn unusable_trajectories_are_errors_with_their_id() {
    let error_text = |method: Method, change: fn(&mut Trajectory)| {
        let mut trajectory = trajectory();
        change(&mut trajectory);
        let catalogue = catalogue();
        let options = options(method);
        let expansion = Expansion {
            catalogue: &catalogue,
            options: &options,
            seed: 1,
        };
        expansion
            .expand(&trajectory, &mut Ranking::Random)
            .unwrap_err()
            .to_string()
    };
    let assert_starts = |error_text: String, expected: &str| {
        assert!(error_text.starts_with(expected), "{error_text}")
    };
    assert_starts(
        error_text(Method::Global, |t| t.calls.clear()),
        "t1: calls is empty",
    );
    let cyclic = |t: &mut Trajectory| t.calls[1].derived.get_mut("from").unwrap().call = 1;
    assert_starts(
        error_text(Method::Global, cyclic),
        "t1: calls[1].derived.from takes its value from calls[1], the same call",
    );
    let unknown = error_text(Method::Global, |t| {
        t.calls[1].name = "Stocks/Qoute".to_owned()
    });
    assert_starts(
        unknown,
        "t1: calls[1].name: no API is called \"Stocks/Qoute\", did you mean \"Stocks/Quote\"?",
    );
    for sub_query in [
        |t: &mut Trajectory| t.calls[1].sub_query = " ".to_owned(),
        |t: &mut Trajectory| {
            t.calls[1].sub_query = "DONE".to_owned();
        },
    ] {
        assert_starts(
            error_text(Method::ReactId, sub_query),
            "t1: calls[1].sub_query is empty",
        );
    }
}

#[test]
fn a_ranking_beyond_the_catalogue_is_an_error() {
    let catalogue = catalogue();
    let options = options(Method::React);
    let expansion = Expansion {
        catalogue: &catalogue,
        options: &options,
        seed: 1,
    };
    let mut rank = |_: &str, _: usize| vec![0, 7];
    let error = expansion
        .expand(&trajectory(), &mut Ranking::Retriever(&mut rank))
        .unwrap_err();
    assert!(
        matches!(
            error.fault(),
            DataError::BadRanking {
                position: 7,
                n_documents: 7
            }
        ),
        "{error}"
    );
}
