//! Compares the arithmetic functions with Python.

use tooltune_json::python::python_repr;

use super::*;

/// Rows {name, args, result}. `result` is the result printed by Python 3.11, or null if Python
/// raises an error.
const CALLS: &str = include_str!("../../../tests/fixtures/nestful_math/calls.jsonl");

#[test]
fn every_function_returns_what_python_returns() {
    let mut tested = std::collections::BTreeSet::new();
    for line in CALLS.lines() {
        let call = value(line);
        let name = call.get("name").and_then(PyValue::as_text).expect("a name");
        let arguments = call
            .get("args")
            .and_then(PyValue::as_list)
            .expect("arguments");
        let expected = call.get("result").and_then(PyValue::as_text);
        let tool = math_tool(name).unwrap_or_else(|| panic!("no {name}"));
        let actual = tool.run(arguments).ok().map(|result| python_repr(&result));
        assert_eq!(actual.as_deref(), expected, "{line}");
        tested.insert(tool.name);
    }
    assert_eq!(tested.len(), math_tools().len(), "every function is called");
    assert_eq!(math_tools().len(), 40);
}

fn run(name: &str, arguments: &str) -> String {
    let result = math_tool(name).expect(name).run(&calls(arguments));
    result.map_or_else(|error| error.to_string(), |result| python_repr(&result))
}

#[test]
fn an_error_names_the_function_and_the_problem() {
    for (name, arguments, expected) in [
        ("add", "[1]", "add takes 2 arguments, not 1"),
        ("log", "[]", "log takes 1 to 2 arguments, not 0"),
        ("add", "[1, \"2\"]", "add: a str is no number"),
        ("add", "[null, 2]", "add: a NoneType is no number"),
        (
            "max_number",
            "[3]",
            "max_number: a int is no list of numbers",
        ),
        ("max_number", "[[]]", "max_number: the list is empty"),
        (
            "max_number",
            "[[1, \"2\"]]",
            "max_number: a str is no number",
        ),
        ("divide", "[1, 0]", "divide: division by zero"),
        ("sqrt", "[49.0]", "sqrt: an integer was expected"),
        ("sqrt", "[-1]", "sqrt: the function has no real value there"),
        (
            "power",
            "[10.0, 400]",
            "power: the result is beyond the range of a float",
        ),
        (
            "factorial",
            "[100000000]",
            "factorial: the result has more than 1048576 bits",
        ),
    ] {
        assert_eq!(run(name, arguments), expected);
    }
    assert!(math_tool("cos").is_none());
}

#[test]
fn large_results_are_computed_in_time() {
    let quotient = math_tool("divide").expect("divide");
    let factorial = math_tool("factorial").expect("factorial");
    let [large, less] =
        ["[60000]", "[59999]"].map(|n| factorial.run(&calls(n)).expect("an integer"));
    assert_eq!(
        python_repr(&quotient.run(&[large, less]).expect("a float")),
        "60000.0"
    );
    assert_eq!(run("choose", "[100000, 99998]"), "4999950000");
}
