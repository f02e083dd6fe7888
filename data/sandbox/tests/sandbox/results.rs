//! Tests code that returns a result, or fails by itself.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tooltune_sandbox::{Failure, Returned};

use crate::machines::{Machine, Test};
use crate::runs::{failure, long_limits, run, value};

pub(crate) const TESTS: &[Test] = &[
    (
        "values_come_back_as_json_and_as_python_writes_them",
        values_are_returned,
    ),
    ("numbers_keep_their_type", numbers_keep_their_type),
    (
        "prints_do_not_mix_with_the_result",
        prints_do_not_mix_with_the_result,
    ),
    ("exceptions_are_returned", exceptions_are_returned),
    (
        "exited_processes_have_no_result",
        exited_processes_have_no_result,
    ),
    ("invalid_utf8_is_replaced", invalid_utf8_is_replaced),
    ("closed_streams_are_tolerated", closed_streams_are_tolerated),
    (
        "each_run_has_its_own_directory",
        each_run_has_its_own_directory,
    ),
    ("runs_are_reproducible", runs_are_reproducible),
    ("ordinary_python_works", ordinary_python_works),
    (
        "scripts_load_code_from_given_folders",
        scripts_load_code_from_given_folders,
    ),
];

fn return_value(machine: &Machine, expression: &str) -> Returned {
    let code = format!("import math, datetime\ndef attack(given):\n  return {expression}");
    let outcome = run(machine, &code, &json!({"a": [1, "é"]}));
    outcome
        .result
        .unwrap_or_else(|failure| panic!("{failure:?}"))
}

fn values_are_returned(machine: &Machine) {
    let all_values = return_value(machine, "given");
    let expected = Returned {
        json: Ok(r#"{"a": [1, "\u00e9"]}"#.to_owned()),
        repr: "{'a': [1, 'é']}".to_owned(),
        str: "{'a': [1, 'é']}".to_owned(),
        type_name: "dict".to_owned(),
    };
    assert_eq!(all_values, expected);
    let none_value = return_value(machine, "None");
    assert_eq!(
        (none_value.json.as_deref(), none_value.repr.as_str()),
        (Ok("null"), "None")
    );
    let text = return_value(machine, "'it\\'s'");
    assert_eq!(
        (text.str.as_str(), text.repr.as_str()),
        ("it's", "\"it's\"")
    );
    let tuple = return_value(machine, "(1, 2.0, True)");
    assert_eq!(tuple.json.as_deref(), Ok("[1, 2.0, true]"));
    let float = return_value(machine, "0.1 + 0.2");
    assert_eq!(float.json.as_deref(), Ok("0.30000000000000004"));
    for expression in [
        "{1, 2}",
        "math.nan",
        "datetime.date(2026, 1, 2)",
        "b'x'",
        "1j",
    ] {
        let value = return_value(machine, expression);
        assert!(
            value.json.as_ref().is_err_and(|why| !why.is_empty()),
            "{value:?}"
        );
    }
    let date = return_value(machine, "datetime.date(2026, 1, 2)");
    assert_eq!(
        (date.str.as_str(), date.type_name.as_str()),
        ("2026-01-02", "date")
    );
}

fn numbers_keep_their_type(machine: &Machine) {
    let code = "def attack(given):\n  return [type(given).__name__, given + 1]";
    for (argument, expected) in [
        (
            "123456789012345678901234567890",
            r#"["int", 123456789012345678901234567891]"#,
        ),
        ("1.0", r#"["float", 2.0]"#),
        ("-0.0", r#"["float", 1.0]"#),
        ("1e400", r#"["float", Infinity]"#),
    ] {
        let outcome = machine
            .runner
            .run_function(code, "attack", argument, &long_limits());
        let returned = outcome.expect("a sandbox").result.expect("a value");
        if expected.contains("Infinity") {
            assert!(returned.json.is_err() && returned.repr.contains("inf"))
        } else {
            assert_eq!(returned.json.as_deref(), Ok(expected))
        }
    }
}

fn prints_do_not_mix_with_the_result(machine: &Machine) {
    let code = r#"
import os, sys
def attack(given):
    print('{"returned": {"json": "1", "repr": "1", "str": "1", "type": "int"}}')
    os.write(1, b"raw ")
    sys.stderr.write("warned")
    for number in range(3, 20):
        try:
            os.write(number, b'{"returned": {"repr": "forged", "str": "", "type": ""}}')
        except OSError:
            pass
    sys.stdout = open(os.devnull, "w")
    print("unseen")
    return "honest"
"#;
    let outcome = run(machine, code, &Value::Null);
    assert_eq!(outcome.result.expect("a value").str, "honest");
    assert!(outcome.stdout.contains("raw ") && outcome.stdout.contains("returned"));
    assert!(!outcome.stdout.contains("unseen"));
    assert_eq!(outcome.stderr, "warned");
}

fn raised_exception(machine: &Machine, code: &str) -> (String, String, String) {
    match failure(&run(machine, code, &Value::Null)).clone() {
        Failure::Raised {
            kind,
            message,
            traceback,
        } => (kind, message, traceback),
        other => panic!("{other:?}"),
    }
}

fn exceptions_are_returned(machine: &Machine) {
    let code = "def deep(n):\n  return 1 / n\n\ndef attack(_):\n  return deep(0)\n";
    let (kind, message, traceback) = raised_exception(machine, code);
    assert_eq!(
        (kind.as_str(), message.as_str()),
        ("ZeroDivisionError", "division by zero")
    );
    let start = "Traceback (most recent call last):\n  File \"<code>\", line 5, in attack\n    return deep(0)\n";
    assert!(traceback.starts_with(start), "{traceback}");
    for (code, kind) in [
        ("def attack(_:\n  pass", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def attack():\n  pass", "TypeError"),
        ("def attack(_):\n  return attack(_)", "RecursionError"),
        (
            "def attack(_):\n  raise KeyboardInterrupt",
            "KeyboardInterrupt",
        ),
        ("def attack(_):\n  input()", "EOFError"),
        (
            "class Odd(Exception):\n  def __str__(self): return 1 / 0\ndef attack(_):\n  raise Odd",
            "Odd",
        ),
        (
            "class Odd:\n  def __repr__(self): return 1\ndef attack(_):\n  return Odd()",
            "TypeError",
        ),
    ] {
        assert_eq!(raised_exception(machine, code).0, kind, "{code}");
    }
    let missing_function = run(machine, "def other(_):\n  pass", &Value::Null);
    let name = "attack".to_owned();
    assert_eq!(failure(&missing_function), &Failure::NoFunction { name });
}

fn exited_processes_have_no_result(machine: &Machine) {
    let failure_of = |code: &str| failure(&run(machine, code, &Value::Null)).clone();
    let exited_with = |code: &str| Failure::Left {
        code: code.to_owned(),
    };
    assert_eq!(
        failure_of("import sys\ndef attack(_):\n  sys.exit(3)"),
        exited_with("3")
    );
    assert_eq!(
        failure_of("def attack(_):\n  raise SystemExit('enough')"),
        exited_with("enough")
    );
    let code = "import os\ndef attack(_):\n  os._exit(3)";
    assert_eq!(failure_of(code), Failure::NoResult { code: 3 });
    for code in [
        "import os\ndef attack(_):\n  os.abort()",
        "import ctypes\ndef attack(_):\n  ctypes.string_at(0)",
    ] {
        let end = failure_of(code);
        assert!(matches!(end, Failure::Killed { signal: 6 | 11 }), "{end:?}");
    }
}

fn invalid_utf8_is_replaced(machine: &Machine) {
    let code = r#"
import sys
def attack(_):
    sys.stdout.buffer.write(b"\xff\xfe ok")
    sys.stderr.buffer.write(b"\x80")
    return ["\ud800", "\U0001f600"]
"#;
    let outcome = run(machine, code, &Value::Null);
    assert_eq!(outcome.stdout, "\u{fffd}\u{fffd} ok");
    assert_eq!(outcome.stderr, "\u{fffd}");
    let returned = outcome.result.expect("a value");
    assert_eq!(
        returned.json.as_deref(),
        Ok(r#"["\ud800", "\ud83d\ude00"]"#)
    );
    assert_eq!(returned.str, "['\\ud800', '😀']");
    let code = "def attack(_):\n  raise ValueError('\\udcff')";
    assert_eq!(raised_exception(machine, code).1, "\\udcff");
}

fn closed_streams_are_tolerated(machine: &Machine) {
    for code in [
        "import os\ndef attack(_):\n  os.close(0)\n  return 1",
        "import os\ndef attack(_):\n  os.close(0); os.close(1); os.close(2)\n  return 1",
        "import sys\ndef attack(_):\n  sys.stdin.close(); sys.stdout.close(); sys.stderr.close()\n  return 1",
        "import sys\ndef attack(_):\n  del sys.stdin, sys.stdout\n  sys.stderr = None\n  return 1",
    ] {
        assert_eq!(value(machine, code, &Value::Null), 1, "{code}");
    }
    let code = "import os\ndef attack(_):\n  os.closerange(0, 1000)\n  return 1";
    let end = failure(&run(machine, code, &Value::Null)).clone();
    assert!(matches!(end, Failure::NoResult { .. }), "{end:?}");
}

fn each_run_has_its_own_directory(machine: &Machine) {
    let code = r#"
import os, tempfile
def attack(_):
    before = os.listdir(".")
    with open("note.txt", "w") as note:
        note.write("kept")
    os.makedirs("a/b")
    os.rename("note.txt", "a/b/note.txt")
    with tempfile.NamedTemporaryFile("w+") as other:
        other.write("x")
    return [before, open("a/b/note.txt").read(), os.listdir("."), os.getcwd()]
"#;
    let results = value(machine, code, &Value::Null);
    assert_eq!(
        [&results[0], &results[1], &results[2]],
        [&json!([]), &json!("kept"), &json!(["a"])]
    );
    let work_folder = PathBuf::from(results[3].as_str().expect("a path"));
    assert!(!work_folder.exists(), "{} is left", work_folder.display());
    // The second run sees nothing of the first run.
    assert_eq!(value(machine, code, &Value::Null)[0], json!([]));
}

fn runs_are_reproducible(machine: &Machine) {
    let code = "import time\ndef attack(given):\n  return [list({str(n) for n in range(50)}), hash('x'), time.tzname]";
    let first_result = value(machine, code, &Value::Null);
    assert_eq!(first_result, value(machine, code, &Value::Null));
    assert_eq!(first_result[2], json!(["UTC", "UTC"]));
}

fn ordinary_python_works(machine: &Machine) {
    let code = r#"
import asyncio, collections, concurrent.futures, dataclasses, datetime, decimal, json, pickle
import random, re, sqlite3, statistics, zoneinfo

@dataclasses.dataclass
class Point:
    x: int
    y: "int" = 2

async def later(n):
    await asyncio.sleep(0)
    return n

def attack(given):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        squares = list(pool.map(lambda n: n * n, range(4)))
    table = sqlite3.connect("table.db")
    table.execute("create table t (n int)")
    table.execute("insert into t values (7)")
    table.commit()
    return [
        asyncio.run(later(3)), squares, dataclasses.asdict(pickle.loads(pickle.dumps(Point(1)))),
        str(decimal.Decimal("0.1") * 3), table.execute("select n from t").fetchone(),
        random.Random(1).randint(1, 6), statistics.mean([1, 2]), re.findall("a+", "aabaa"),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc).isoformat(),
    ]
"#;
    let expected = json!([
        3, [0, 1, 4, 9], {"x": 1, "y": 2}, "0.3", [7], 2, 1.5, ["aa", "aa"],
        "2026-01-01T00:00:00+00:00"
    ]);
    assert_eq!(value(machine, code, &Value::Null), expected);
}

fn scripts_load_code_from_given_folders(machine: &Machine) {
    let folder = tempfile::tempdir().expect("a folder");
    let functions = folder.path().join("functions");
    fs::create_dir(&functions).expect("a folder");
    fs::write(
        functions.join("arithmetic.py"),
        "def add(a, b):\n  return a + b\n",
    )
    .expect("a file");
    fs::write(
        functions.join("broken.py"),
        "def fail():\n  raise LookupError('none')\n",
    )
    .expect("a file");
    fs::write(folder.path().join("beside"), "secret").expect("a file");
    let script = r#"
import importlib, sys

def main(request):
    sys.path.insert(0, request["folder"])
    results = {}
    for call in request["calls"]:
        module, name = request["names"][call["name"]].split(".")
        function = getattr(importlib.import_module(module), name)
        arguments = {
            key: results[value[1:]] if isinstance(value, str) and value.startswith("$") else value
            for key, value in call["arguments"].items()
        }
        try:
            results[call["label"]] = function(**arguments)
        except Exception as error:
            results[call["label"]] = {"error": str(error)}
    for mode, path in (("r", "beside"), ("w", "functions/arithmetic.py"), ("w", "functions/new")):
        try:
            open(request["folder"] + "/../" + path, mode)
            results[path] = "opened"
        except OSError as error:
            pass
    return results
"#;
    let request = json!({
        "folder": functions,
        "names": {"sum": "arithmetic.add", "fail": "broken.fail"},
        "calls": [
            {"label": "a", "name": "sum", "arguments": {"a": 1, "b": 2}},
            {"label": "b", "name": "sum", "arguments": {"a": "$a", "b": 10}},
            {"label": "c", "name": "fail", "arguments": {}},
        ],
    });
    let request = request.to_string();
    let run = |folders: &[PathBuf]| {
        let outcome = machine
            .runner
            .run_script(script, &request, folders, &long_limits());
        outcome.expect("a sandbox")
    };
    let outcome = run(std::slice::from_ref(&functions))
        .result
        .expect("a value");
    let expected = r#"{"a": 3, "b": 13, "c": {"error": "none"}}"#;
    assert_eq!(outcome.json.as_deref(), Ok(expected));
    let without = run(&[]);
    match failure(&without) {
        Failure::Raised { kind, .. } => assert_eq!(kind, "ModuleNotFoundError"),
        other => panic!("{other:?}"),
    }
}
