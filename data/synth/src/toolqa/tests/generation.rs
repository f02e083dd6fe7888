//! Generated rows: determinism, templates, sizes, positions and projections.

use tooltune_suites::toolqa::project_to_keys;

use super::*;
use crate::toolqa::program::CompiledProgram;
use crate::toolqa::resize::{TOO_LARGE, move_record, response_text};

const TEMPLATES: &str = r#"
[[template]]
task = "cheapest"
type = "AGGREGATION"
question = 'Which flight to "{city}" is the cheapest? {unknown braces}'
slots = { city = "to" }
program = { records = "data.flights", where = [["to", "==", "{city}"]], answer = "argmin", by = "price.total", field = "number" }
"#;

fn gold_again(question: &SynthQuestion, response: &Value) -> String {
    let program = &question.row.made.as_ref().expect("generated").program;
    CompiledProgram::new(program)
        .expect("valid")
        .run(response)
        .expect("an answer")
        .gold
}

#[test]
fn rows_depend_only_on_seed_and_number() {
    let responses = || vec![input("a", flights())];
    let (rows, _) = generate(responses(), options(60, 5));
    assert_eq!(rows, generate(responses(), options(60, 5)).0);
    let (first, _) = generate(responses(), options(20, 5));
    assert_eq!(first[..], rows[..first.len()]);
    assert_ne!(rows, generate(responses(), options(60, 6)).0);
    let n_responses = rows
        .iter()
        .filter(|question| question.response.is_some())
        .count();
    assert_eq!((n_responses, rows[0].response.is_some()), (1, true));
    let questions: HashSet<&str> = rows
        .iter()
        .map(|question| &*question.row.question)
        .collect();
    assert_eq!(questions.len(), rows.len());
    for task_type in TaskType::ALL {
        let n = rows
            .iter()
            .filter(|question| question.row.task_type == task_type)
            .count();
        assert!(n >= 10, "{task_type:?}: {n}");
    }
}

#[test]
fn every_gold_is_the_result_of_its_program_and_passes_its_metric() {
    let response = flights();
    let (rows, dropped) = generate(vec![input("a", response.clone())], options(400, 1));
    assert!(rows.len() >= 100, "{} rows, {dropped:?}", rows.len());
    let answers: HashSet<String> = rows
        .iter()
        .map(|question| format!("{:?}", question.row.made.as_ref().unwrap().program.answer))
        .collect();
    assert_eq!(answers.len(), 14, "{answers:?}");
    for question in &rows {
        let row = &question.row;
        let made = row.made.as_ref().expect("generated");
        assert_eq!(gold_again(question, &response), row.gold_answer, "{row:?}");
        let projected = project_to_keys(&response, &made.read_keys);
        assert_eq!(gold_again(question, &projected), row.gold_answer, "{row:?}");
        assert!(response_text(&projected).len() < response_text(&response).len());
        assert!(exact_match(row.metric, &row.gold_answer, &row.gold_answer));
        let depth = made.read_keys.iter().map(Vec::len).max();
        assert_eq!(Some(made.answer_depth), depth);
        assert!(!row.question.contains(['{', '}']), "{}", row.question);
    }
    assert!(dropped.contains_key(program::TIE), "{dropped:?}");
}

#[test]
fn given_templates_replace_the_automatic_ones() {
    let templates = parse_templates("t.toml", TEMPLATES).expect("templates");
    let options = ToolQaSynthOptions {
        templates,
        ..options(12, 3)
    };
    let (rows, dropped) = generate(vec![input("a", flights())], options);
    let mut answers: Vec<(&str, &str)> = rows
        .iter()
        .map(|question| (&*question.row.question, &*question.row.gold_answer))
        .collect();
    answers.sort_unstable();
    // Three cities, so three questions; the others repeat them.
    assert_eq!(
        answers,
        [
            (
                "Which flight to \"Oslo\" is the cheapest? {unknown braces}",
                "F6"
            ),
            (
                "Which flight to \"Paris\" is the cheapest? {unknown braces}",
                "F10"
            ),
            (
                "Which flight to \"Rome\" is the cheapest? {unknown braces}",
                "F9"
            ),
        ]
    );
    assert!(dropped[REPEATED] > 0);
    assert_eq!(rows[0].row.made.as_ref().unwrap().answer_depth, 4);
}

#[test]
fn invalid_templates_name_the_remedy() {
    let with = |old: &str, new: &str| TEMPLATES.replace(old, new);
    for (text, part) in [
        (String::new(), "missing field `template`"),
        ("template = []".to_owned(), "no [[template]]"),
        (with("AGGREGATION", "sum"), "unknown variant"),
        (
            with("{city}\" is", "{town}\" is"),
            "{town} is not in `slots`",
        ),
        (
            with("\"{city}\"]]", "\"{town}\"]]"),
            "{town} is not in `slots`",
        ),
        (
            with("city = \"to\"", "city = \"to\", x = \"to\""),
            "slot x is not used",
        ),
        (with("city = \"to\"", "city = \"to[\""), "slot city"),
        (with("city = \"to\"", "city = []"), "has no values"),
        (with("city = \"to\"", "city = [[1]]"), "not a string"),
        (with("by = \"price.total\", ", ""), "needs `by`"),
        (with("argmin", "median"), "unknown variant"),
    ] {
        let error = parse_templates("t.toml", &text)
            .expect_err(part)
            .to_string();
        assert!(
            error.starts_with("t.toml: ") && error.contains(part),
            "{error}"
        );
    }
}

#[test]
fn a_record_moves_to_each_eighth() {
    for n in [8, 10, 17, 100] {
        for position in 1..=8 {
            let mut random = SeededRandom::new(3, position as u64);
            let mut list: Vec<Value> = (0..n).map(Value::from).collect();
            let idx = move_record(&mut list, n / 2, position, &mut random).expect("moved");
            assert_eq!(list[idx], json!(n / 2));
            assert!((position - 1) * n / 8 <= idx && idx < position * n / 8);
            assert_eq!(position_of(idx, n), Some(position));
            let mut rest = list;
            rest.remove(idx);
            assert!(rest.is_sorted_by_key(|value| value.as_u64()));
        }
    }
    let mut short: Vec<Value> = (0..7).map(Value::from).collect();
    assert!(move_record(&mut short, 0, 1, &mut SeededRandom::new(1, 1)).is_err());
    assert_eq!(position_of(3, 7), None);
}

#[test]
fn answers_are_placed_where_asked_and_checked_again() {
    let options = ToolQaSynthOptions {
        answer_positions: vec![1, 8, 4],
        ..options(30, 2)
    };
    let (rows, _) = generate(vec![input("a", flights())], options);
    assert_eq!(rows.len(), 30);
    let mut ids = HashSet::new();
    for (row, question) in rows.iter().enumerate() {
        let made = question.row.made.as_ref().expect("generated");
        assert_eq!(made.answer_position, Some([1, 8, 4][row % 3]));
        let response = &question
            .response
            .as_ref()
            .expect("its own response")
            .response;
        assert_eq!(gold_again(question, response), question.row.gold_answer);
        assert!(ids.insert(question.row.response_id.clone()));
        let mut numbers: Vec<&str> = response["data"]["flights"]
            .as_array()
            .unwrap()
            .iter()
            .map(|flight| flight["number"].as_str().unwrap())
            .collect();
        numbers.sort_unstable();
        assert_eq!(
            numbers,
            ["F1", "F10", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9"]
        );
    }
}

/// Responses with 20 flights each, all different.
fn many(n: usize) -> Vec<InputResponse> {
    let response = |idx: usize| {
        let flights: Vec<Value> = (0..20)
            .map(|row| {
                let id = idx * 20 + row;
                json!({"number": format!("F{id}"), "to": (["Oslo", "Rome"][id % 2]), "price": {"total": (id * 37) % 1009}, "note": "x".repeat(id % 50)})
            })
            .collect();
        input(
            &format!("r{idx}"),
            json!({"status": "ok", "data": {"flights": flights}}),
        )
    };
    (0..n).map(response).collect()
}

#[test]
fn responses_grow_and_shrink_to_the_target() {
    // One response has about 550 estimated tokens.
    let targets = vec![300, 550, 4000];
    let options = ToolQaSynthOptions {
        target_tokens: targets.clone(),
        answer_positions: vec![2, 7],
        ..options(36, 4)
    };
    let (rows, _) = generate(many(12), options);
    assert_eq!(rows.len(), 36);
    for question in &rows {
        let made = question.row.made.as_ref().expect("generated");
        let target = made.target_tokens.expect("a target");
        let response = &question.response.as_ref().expect("a response").response;
        let n = estimated_tokens(&response_text(response));
        assert!(
            n <= target && n as f64 >= 0.9 * target as f64,
            "{n} of {target}"
        );
        assert_eq!(gold_again(question, response), question.row.gold_answer);
        let flights = response["data"]["flights"].as_array().unwrap();
        let different: HashSet<&str> = flights
            .iter()
            .map(|flight| flight["number"].as_str().unwrap())
            .collect();
        assert_eq!(different.len(), flights.len());
    }
    // Every size occurs with every position.
    let pairs: HashSet<_> = rows
        .iter()
        .map(|question| {
            let made = question.row.made.as_ref().unwrap();
            (made.target_tokens, made.answer_position)
        })
        .collect();
    assert_eq!(pairs.len(), 6);
}

#[test]
fn sizes_that_cannot_be_reached_are_dropped_with_the_reason() {
    for (target, reason) in [(100_000, resize::NOT_ENOUGH), (3, TOO_LARGE)] {
        let options = ToolQaSynthOptions {
            target_tokens: vec![target],
            ..options(3, 4)
        };
        let (rows, dropped) = generate(many(3), options);
        assert!(rows.is_empty());
        assert_eq!(dropped.keys().collect::<Vec<_>>(), [&reason]);
    }
}

#[test]
fn invalid_options_are_refused() {
    let refused = |change: &dyn Fn(&mut ToolQaSynthOptions<'_>)| {
        let mut options = options(1, 1);
        change(&mut options);
        QuestionGenerator::new(many(1), options)
            .expect_err("refused")
            .to_string()
    };
    assert!(refused(&|o| o.answer_positions = vec![9]).contains("9 is not from 1 to 8"));
    assert!(refused(&|o| o.target_tokens = vec![0]).contains("--target-tokens 0"));
    let expression =
        TEMPLATES.replace("records = \"data.flights\"", "records = \"data.flights[]\"");
    let message = refused(&|o| {
        o.templates = parse_templates("t", &expression).unwrap();
        o.target_tokens = vec![500];
    });
    assert!(message.contains("path of keys"), "{message}");
    assert!(QuestionGenerator::new(Vec::new(), options(1, 1)).is_err());
}
