//! Each answer of a program, and each reason for having none.

use super::*;
use crate::toolqa::program::{self, CompiledProgram, Outcome};

fn run(program: Value, response: &Value) -> Result<Outcome, Ambiguity> {
    let program: Program = serde_json::from_value(program).expect("a program");
    CompiledProgram::new(&program).expect("valid").run(response)
}

/// Arguments of a program over the flights, its answer, and the index of the only record with it.
fn answers() -> Vec<(Value, &'static str, Option<usize>)> {
    vec![
        (
            json!({"where": [["number", "==", "F4"]], "answer": "value", "field": "price.total"}),
            "300.0",
            Some(3),
        ),
        (
            json!({"where": [["number", "==", "F4"]], "answer": "value", "field": "meal"}),
            "true",
            Some(3),
        ),
        (
            json!({"where": [["to", "==", "Rome"]], "answer": "list", "field": "number"}),
            "F2, F5, F9",
            None,
        ),
        (
            json!({"where": [["price.total", "<", 90]], "answer": "list", "field": "to"}),
            "Rome, Oslo",
            None,
        ),
        (
            json!({"where": [["to", "==", "Oslo"], ["stops", ">=", 1]], "answer": "count"}),
            "3",
            None,
        ),
        (
            json!({"where": [["to", "!=", "Oslo"]], "answer": "count"}),
            "6",
            None,
        ),
        (
            json!({"where": [["price.total", "<=", 80.5]], "answer": "count"}),
            "4",
            None,
        ),
        (
            json!({"where": [["to", "in", ["Rome", "Paris"]]], "answer": "count"}),
            "6",
            None,
        ),
        (
            json!({"where": [["price.total", ">", 410]], "answer": "count"}),
            "0",
            None,
        ),
        (
            json!({"where": [["price.total", ">", 400]], "answer": "exists"}),
            "yes",
            None,
        ),
        (
            json!({"where": [["price.total", ">", 410]], "answer": "exists"}),
            "no",
            None,
        ),
        (
            json!({"answer": "min", "field": "price.total"}),
            "60.0",
            Some(5),
        ),
        (json!({"answer": "max", "field": "stops"}), "3", Some(9)),
        // Four flights have no stops: the minimum is clear, its record is not.
        (json!({"answer": "min", "field": "stops"}), "0", None),
        (
            json!({"answer": "sum", "field": "price.total"}),
            "1591",
            None,
        ),
        (
            json!({"answer": "mean", "field": "price.total"}),
            "159.1",
            None,
        ),
        // (120 + 80.5 + 60 + 150) / 4 = 102.625: half to even.
        (
            json!({"where": [["to", "==", "Oslo"]], "answer": "mean", "field": "price.total"}),
            "102.62",
            None,
        ),
        (
            json!({"answer": "argmin", "by": "price.total", "field": "number"}),
            "F6",
            Some(5),
        ),
        (
            json!({"where": [["to", "==", "Oslo"]], "answer": "argmax", "by": "price.total", "field": "number"}),
            "F8",
            Some(7),
        ),
        (
            json!({"answer": "nth_lowest", "by": "price.total", "field": "number", "n": 2}),
            "F9",
            Some(8),
        ),
        (
            json!({"answer": "nth_highest", "by": "price.total", "field": "number", "n": 3}),
            "F10",
            Some(9),
        ),
        (
            json!({"where": [["number", "in", ["F1", "F5"]]], "answer": "lower_of", "by": "price.total", "field": "number"}),
            "F5",
            Some(4),
        ),
        (
            json!({"where": [["number", "in", ["F1", "F5"]]], "answer": "higher_of", "by": "price.total", "field": "to"}),
            "Oslo",
            Some(0),
        ),
    ]
}

#[test]
fn every_answer_equals_the_value_worked_out_by_hand() {
    let response = flights();
    for (arguments, gold, record) in answers() {
        let mut program = json!({"records": "data.flights"});
        program
            .as_object_mut()
            .unwrap()
            .extend(arguments.as_object().unwrap().clone());
        let expected = Ok(Outcome {
            gold: gold.to_owned(),
            record,
        });
        assert_eq!(run(program.clone(), &response), expected, "{program}");
    }
    let page = json!({"answer": "value", "field": "data.page"});
    assert_eq!(
        run(page, &response).map(|outcome| outcome.gold),
        Ok("3".to_owned())
    );
    let expression = json!({"records": "data.flights[?meal]", "answer": "sum", "field": "stops"});
    assert_eq!(
        run(expression, &response).map(|outcome| outcome.gold),
        Ok("4".to_owned())
    );
}

#[test]
fn ambiguous_answers_have_a_reason() {
    let mut response = flights();
    let list = response["data"]["flights"].as_array_mut().unwrap();
    list.push(json!({"number": "F1", "to": "oslo", "price": {"total": null}, "note": "a, b"}));
    list.push(json!({"number": "", "to": "Bern", "price": {"total": "90"}, "note": [1]}));
    list.push(json!({"number": "F13", "to": "Kiel", "price": {"total": 1e300}}));
    for (arguments, reason) in [
        (
            json!({"where": [["number", "==", "F1"]], "answer": "value", "field": "stops"}),
            program::SEVERAL_RECORDS,
        ),
        (
            json!({"where": [["number", "==", "F99"]], "answer": "value", "field": "stops"}),
            program::NO_RECORD,
        ),
        (
            json!({"where": [["number", "==", "F99"]], "answer": "list", "field": "to"}),
            program::NO_RECORD,
        ),
        (
            json!({"where": [["to", "==", "Oslo"]], "answer": "count"}),
            program::CASE,
        ),
        (
            json!({"answer": "sum", "field": "price.total"}),
            program::NOT_A_NUMBER,
        ),
        (
            json!({"where": [["to", "==", "Kiel"]], "answer": "sum", "field": "price.total"}),
            program::INEXACT,
        ),
        (
            json!({"where": [["price.total", ">", 5]], "answer": "count"}),
            program::INEXACT,
        ),
        (
            json!({"where": [["note", "==", "a, b"]], "answer": "list", "field": "note"}),
            program::COMMA,
        ),
        (
            json!({"where": [["to", "==", "Bern"]], "answer": "value", "field": "number"}),
            program::NOT_SCALAR,
        ),
        (
            json!({"where": [["to", "==", "Bern"]], "answer": "value", "field": "note"}),
            program::NOT_SCALAR,
        ),
        (
            json!({"where": [["to", "==", "Bern"]], "answer": "value", "field": "absent"}),
            program::NOT_SCALAR,
        ),
        // F2 and F3 cost 80.5.
        (
            json!({"where": [["to", "in", ["Rome", "Paris"]]], "answer": "argmin", "by": "stops", "field": "number"}),
            program::TIE,
        ),
        (
            json!({"where": [["number", "in", ["F2", "F3"]]], "answer": "higher_of", "by": "price.total", "field": "number"}),
            program::TIE,
        ),
        (
            json!({"where": [["number", "in", ["F2", "F99"]]], "answer": "lower_of", "by": "stops", "field": "number"}),
            program::NO_RECORD,
        ),
        (
            json!({"where": [["number", "==", "F4"]], "answer": "nth_lowest", "by": "stops", "field": "number", "n": 2}),
            program::RANK,
        ),
    ] {
        let mut program = json!({"records": "data.flights"});
        program
            .as_object_mut()
            .unwrap()
            .extend(arguments.as_object().unwrap().clone());
        assert_eq!(run(program.clone(), &response), Err(reason), "{program}");
    }
    let count = |records: &str| json!({"records": records, "answer": "count"});
    assert_eq!(run(count("data"), &response), Err(program::NOT_A_LIST));
    assert_eq!(
        run(count("data.flights[].number"), &response),
        Err(program::NOT_A_LIST)
    );
    assert_eq!(run(count("absent"), &response), Err(program::NOT_A_LIST));
}

#[test]
fn invalid_programs_are_refused_with_the_remedy() {
    for (program, part) in [
        (json!({"answer": "count"}), "add `records`"),
        (
            json!({"records": "a[", "answer": "count"}),
            "records: JMESPath",
        ),
        (json!({"records": "a", "answer": "sum"}), "needs `field`"),
        (
            json!({"records": "a", "answer": "argmax", "field": "b"}),
            "needs `by`",
        ),
        (
            json!({"records": "a", "answer": "count", "field": "b"}),
            "does not use `field`",
        ),
        (json!({"records": "a", "answer": "count", "n": 2}), "`n`"),
        (
            json!({"records": "a", "answer": "nth_lowest", "field": "b", "by": "c", "n": 0}),
            "`n`",
        ),
        (
            json!({"records": "a", "answer": "count", "where": [["b", "in", 3]]}),
            "needs a list",
        ),
    ] {
        let program: Program = serde_json::from_value(program).expect("a program");
        let message = CompiledProgram::new(&program).expect_err(part);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_program_lists_the_keys_that_it_reads() {
    let keys = |program: Value| {
        let program: Program = serde_json::from_value(program).expect("a program");
        let keys = CompiledProgram::new(&program).expect("valid").read_keys();
        keys.iter().map(|keys| keys.join(".")).collect::<Vec<_>>()
    };
    let argmax = json!({"records": "data.flights", "where": [["to", "==", "Oslo"]], "answer": "argmax", "by": "price.total", "field": "number"});
    assert_eq!(
        keys(argmax),
        [
            "data.flights.number",
            "data.flights.price.total",
            "data.flights.to"
        ]
    );
    assert_eq!(
        keys(json!({"records": "data.flights", "answer": "count"})),
        ["data.flights"]
    );
    assert_eq!(
        keys(json!({"answer": "value", "field": "data.page"})),
        ["data.page"]
    );
    let expression = json!({"records": "data.flights[?meal]", "answer": "sum", "field": "stops"});
    assert_eq!(keys(expression), ["data.flights"]);
}
