//! Tests NESTFUL call sequences with the functions of a folder in the benchmark's layout.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tooltune_json::python::{PyValue, loads, python_repr};
use tooltune_suites::nestful::{
    Binding, Execution, FUNCTION_MAP_FILE, NestfulRow, PythonTools, Sequence, ToolRunner,
    official_win, strict_win,
};

use crate::machines::{Machine, Test};
use crate::runs::long_limits;

pub(crate) const TESTS: &[Test] = &[
    ("calls_share_their_objects", calls_share_their_objects),
    ("failures_name_the_call", failures_name_the_call),
    ("folders_without_a_map_are_refused", folders_without_a_map),
];

const FILES: [(&str, &str); 3] = [
    ("basic_functions.py", "def add(a, b):\n    return a + b\n"),
    (
        "lists.py",
        "import basic_functions\n\
         def sort_in_place(nums):\n    nums.sort()\n    return nums\n\
         def first_two(nums):\n    return (nums[0], nums[1])\n\
         def total(nums):\n    result = 0\n    for n in nums: result = basic_functions.add(result, n)\n    return result\n\
         def pair(left, right):\n    return [left, right]\n",
    ),
    (
        "odd.py",
        "def a_set(n):\n    return {n}\n\
         def forever(n):\n    while True: pass\n\
         def read(path):\n    return open(path).read()\n\
         def infinite(n):\n    return float('inf')\n",
    ),
];

const MAP: &str = r#"{"sort_in_place": "lists.py", "first_two": "lists.py", "total": "lists.py",
 "pair": "lists.py", "a_set": "odd.py", "forever": "odd.py", "read": "odd.py", "infinite": "odd.py"}"#;

fn folder() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, text) in FILES {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    fs::write(folder.path().join(FUNCTION_MAP_FILE), MAP).expect("a map");
    folder
}

fn tools(machine: &Machine, folder: &Path) -> PythonTools {
    let tools = PythonTools::open(folder, (*machine.runner).clone());
    let tools = tools.unwrap_or_else(|error| panic!("{error}"));
    tools.with_limits(long_limits())
}

/// Runs calls given as `name(json, json)`; `$0` is the result of call 0.
fn run(tools: &PythonTools, calls: &[(&str, &str)]) -> Execution {
    let spec = |name: &str| {
        format!(r#"{{"name": "{name}", "parameters": {{}}, "output_parameters": {{"o": {{}}}}}}"#)
    };
    let specs: Vec<String> = calls.iter().map(|(name, _)| spec(name)).collect();
    let steps = calls.iter().enumerate().map(|(i, (name, arguments))| {
        format!(r#"{{"name": "{name}", "label": "$var_{i}", "arguments": {{{arguments}}}}}"#)
    });
    let steps: Vec<String> = steps.collect();
    let row = format!(
        r#"{{"sample_id": "s", "input": "q", "output": [{}], "tools": [{}], "gold_answer": 0}}"#,
        steps.join(", "),
        specs.join(", ")
    );
    let row = NestfulRow::new(&loads(&row).expect("JSON")).expect("a row");
    assert!(row.is_runnable(tools));
    let sequence = Sequence::bind(&row.output, &row.tools, Binding::Name).expect("a sequence");
    tools.run(&sequence).expect("a runner")
}

fn value(execution: &Execution) -> &PyValue {
    match execution {
        Execution::Value(value) => value,
        Execution::Failed(failure) => panic!("{failure}"),
    }
}

fn calls_share_their_objects(machine: &Machine) {
    let folder = folder();
    let tools = tools(machine, folder.path());
    // Call 1 modifies the list of call 0, and call 2 sees the change.
    let shared = run(
        &tools,
        &[
            ("pair", r#""left": 3, "right": 1"#),
            ("sort_in_place", r#""nums": "$var_0.o$""#),
            ("pair", r#""left": "$var_0.o$", "right": "$var_1.o$""#),
        ],
    );
    assert_eq!(python_repr(value(&shared)), "[[1, 3], [1, 3]]");
    // The calls mix built-in arithmetic with Python functions, and one module imports another
    // module of the folder.
    let total = run(
        &tools,
        &[
            ("pair", r#""left": 40, "right": 1.5"#),
            ("total", r#""nums": "$var_0.o$""#),
            ("add", r#""arg_0": "$var_1.o$", "arg_1": 0.5"#),
        ],
    );
    assert_eq!(python_repr(value(&total)), "42.0");
    // Large integers are preserved. A tuple stays a tuple, but equals the gold list.
    let big = run(
        &tools,
        &[(
            "pair",
            r#""left": 123456789012345678901234567890, "right": null"#,
        )],
    );
    assert_eq!(
        python_repr(value(&big)),
        "[123456789012345678901234567890, None]"
    );
    let tuple = run(&tools, &[("first_two", r#""nums": [5, 6, 7]"#)]);
    assert!(matches!(value(&tuple), PyValue::Tuple(_)));
    let gold = loads("[5, 6]").expect("JSON");
    assert!(strict_win(&tuple, &gold));
    assert_eq!(official_win(&tuple, &gold), Some(true));
    // A value that JSON cannot represent equals nothing.
    let set = run(&tools, &[("a_set", r#""n": 1"#)]);
    assert!(matches!(value(&set), PyValue::Other(_)));
    let infinite = run(&tools, &[("infinite", r#""n": 1"#)]);
    assert_eq!(python_repr(value(&infinite)), "inf");
}

fn failures_name_the_call(machine: &Machine) {
    let folder = folder();
    let tools = tools(machine, folder.path());
    let failed = |calls: &[(&str, &str)]| match run(&tools, calls) {
        Execution::Failed(failure) => failure,
        Execution::Value(value) => panic!("{value:?}"),
    };
    let raised = failed(&[
        ("pair", r#""left": 1, "right": 2"#),
        ("first_two", r#""nums": []"#),
    ]);
    assert_eq!(raised.call_idx, 1);
    assert!(raised.reason.starts_with("IndexError"), "{raised}");
    let unknown = failed(&[("pair", r#""left": 1, "middle": 2"#)]);
    assert!(unknown.reason.starts_with("TypeError"), "{unknown}");
    let outside_file = failed(&[("read", r#""path": "/etc/passwd""#)]);
    assert!(outside_file.reason.contains("Error"), "{outside_file}");

    let limits = tooltune_sandbox::Limits {
        wall_secs: 1.5,
        ..long_limits()
    };
    let hasty = tools.clone().with_limits(limits);
    match run(&hasty, &[("forever", r#""n": 1"#)]) {
        Execution::Failed(failure) => assert!(failure.reason.contains("longer"), "{failure}"),
        Execution::Value(value) => panic!("{value:?}"),
    }
}

fn folders_without_a_map(machine: &Machine) {
    let empty = TempDir::new().expect("a folder");
    let open_tools = |folder: &Path| {
        let tools = PythonTools::open(folder, (*machine.runner).clone());
        tools.expect_err("no tools").to_string()
    };
    assert!(open_tools(empty.path()).contains(FUNCTION_MAP_FILE));
    let folder = folder();
    fs::write(folder.path().join(FUNCTION_MAP_FILE), r#"{"f": "gone.py"}"#).expect("a map");
    let error = open_tools(folder.path());
    assert!(
        error.contains("maps f to gone.py, which does not exist"),
        "{error}"
    );
}
