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

/// The kind of a result: the type in specifications.
fn kind(value: &PyValue) -> &'static str {
    match value {
        PyValue::Int(_) => "int",
        PyValue::Float(_) => "float",
        _ => "other",
    }
}

/// Runs every function with integers and with floats, and compares with its specification.
#[test]
fn specifications_state_the_types_that_functions_accept_and_return() {
    let specs = math_tool_specs();
    assert_eq!(specs.len(), 40);
    let written = PyValue::List(specs.iter().map(|tool| tool.spec.clone()).collect());
    let read = ToolSpec::list(&written, "tools").expect("the benchmark's layout");
    for (spec, (tool, read)) in specs.iter().zip(math_tools().iter().zip(&read)) {
        let name = tool.name;
        assert_eq!(spec.name, name);
        assert_eq!(
            (&spec.parameters, &spec.outputs),
            (&read.parameters, &read.outputs)
        );
        assert_eq!(spec.parameters.len(), tool.parameters.len(), "{name}");
        assert_eq!(spec.outputs, ["result"]);
        let field = |path: &[&str]| {
            let found = path
                .iter()
                .try_fold(&spec.spec, |value, key| value.get(key));
            found.and_then(PyValue::as_text).expect("a text")
        };
        assert!(field(&["description"]).ends_with('.'), "{name}");
        let parameters = spec.parameters.iter();
        let types: Vec<&str> = parameters
            .map(|parameter| field(&["parameters", parameter, "type"]))
            .collect();
        let arguments = |floats: bool| {
            let one = |(position, kind): (usize, &&str)| {
                let text = match (floats, position) {
                    (false, 0) => "4",
                    (false, _) => "2",
                    (true, 0) => "4.5",
                    (true, _) => "2.5",
                };
                match kind.starts_with("list of ") {
                    true => value(&format!("[{text}, 3]")),
                    false => value(text),
                }
            };
            types.iter().enumerate().map(one).collect::<Vec<_>>()
        };
        let returned = field(&["output_parameters", "result", "type"]);
        let of_integers = tool.run(&arguments(false)).expect(name);
        let of_floats = tool.run(&arguments(true));
        let accepts_floats = types.iter().all(|kind| kind.contains("float"));
        assert_eq!(of_floats.is_ok(), accepts_floats, "{name}");
        let mut kinds = vec![kind(&of_integers)];
        kinds.extend(of_floats.as_ref().ok().map(kind));
        kinds.dedup();
        match name {
            // The smaller number of the list is an integer.
            "min_number" => assert_eq!(kinds, ["int"]),
            _ => assert_eq!(kinds.join(" or "), returned, "{name}"),
        }
    }
}
