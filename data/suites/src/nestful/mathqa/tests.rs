//! Tests of the import of MathQA. The entries are written for these tests, and their values are
//! hard-coded.

use std::fs;

use serde_json::{Value, json};
use tooltune_json::lines::open_rows;
use tooltune_json::python::python_repr;

use super::super::{GoldReplay, Parser, replay_gold};
use super::formula::{MAX_CALLS, MAX_LEVELS};
use super::numbers::constant;
use super::options::{check_answer, option_value};
use super::*;

fn shortlist(min: usize, max: usize) -> ToolShortlist {
    ToolShortlist {
        min,
        max,
        max_prompt_chars: 16_000,
        seed: 17,
        prompt: RowPrompt::new(None, None),
    }
}

fn import_with(entries: &[Value], shortlist: &ToolShortlist) -> Result<MathQaRows, NestfulError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("train.jsonl");
    let lines: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
    fs::write(&path, lines).expect("written");
    import_mathqa(open_rows(&path).expect("a file"), shortlist)
}

fn import(entries: &[Value]) -> MathQaRows {
    import_with(entries, &shortlist(7, 21)).expect("imports")
}

fn entry(problem: &str, annotated: &str, linear: &str, options: &str, correct: &str) -> Value {
    json!({"Problem": problem, "Rationale": "", "options": options, "correct": correct,
        "annotated_formula": annotated, "linear_formula": linear, "category": "general"})
}

/// An entry with the options 30, 31, 32, 33 and 34 and the correct option 32.
fn ferry(annotated: &str, linear: &str) -> Value {
    let problem = "a ferry carries 4 lorries of 6,5 tons and 1,200 passengers . 25 % of 8 cars ?";
    let options = "a ) 30 , b ) 31 , c ) 32 , d ) 33 , e ) 34";
    entry(problem, annotated, linear, options, "c")
}

/// The reason why the only entry is dropped, and the example.
fn reason(entry: Value) -> (Reason, String) {
    let imported = import(&[entry]);
    assert!(imported.rows.is_empty(), "{:?}", imported.rows);
    let dropped = imported.dropped.into_iter().next().expect("a reason");
    (dropped.0, dropped.1.example)
}

#[test]
fn a_formula_becomes_labelled_calls_with_an_executed_answer() {
    let imported = import(&[
        ferry(
            "multiply(4, divide(multiply(n0, const_100), 50))",
            "multiply(n0,const_100)|divide(#0,50)|multiply(n0,#1)|",
        ),
        entry(
            "what is the area of a circle of radius 2 ?",
            "circle_area(2)",
            "circle_area(n0)|",
            "a ) 4 , b ) 4 π , c ) 8 π , d ) 2 , e ) none of these",
            "b",
        ),
    ]);
    assert!(imported.dropped.is_empty(), "{:?}", imported.dropped);
    assert_eq!((imported.n_entries, imported.n_single_calls), (2, 1));
    let row = &imported.rows[0];
    assert_eq!(row.sample_id, "train-1");
    assert_eq!(
        row.completion(),
        "[{\"name\": \"multiply\", \"label\": \"$var_1\", \"arguments\": {\"arg_0\": 4, \"arg_1\": 100}}, \
         {\"name\": \"divide\", \"label\": \"$var_2\", \"arguments\": {\"arg_0\": \"$var_1.result$\", \"arg_1\": 50}}, \
         {\"name\": \"multiply\", \"label\": \"$var_3\", \"arguments\": {\"arg_0\": 4, \"arg_1\": \"$var_2.result$\"}}]"
    );
    assert_eq!(python_repr(&row.gold_answer), "32.0");
    assert_eq!(
        python_repr(&imported.rows[1].gold_answer),
        "12.566370614359172"
    );
    for row in &imported.rows {
        // The suite reads the row as it is written, and the gold calls win.
        let line = tooltune_json::python::loads(&row.line()).expect("JSON");
        let read = NestfulRow::new(&line).expect("a row");
        let replayed = replay_gold(&read, &MathRunner).expect("runs");
        assert_eq!(replayed, GoldReplay::Wins, "{}", row.line());
    }
}

#[test]
fn equal_subterms_are_separate_calls_and_lists_have_only_numbers() {
    let row = |annotated: &str| import(&[ferry(annotated, "")]).rows.swap_remove(0);
    let calls = row("add(multiply(2, 8), multiply(2, 8))").output;
    assert_eq!(calls.len(), 3);
    let call = &row("multiply(max(4, 8, const_3), 4)").output[0];
    assert_eq!(
        tooltune_json::python::dumps(call),
        "{\"name\": \"max_number\", \"label\": \"$var_1\", \"arguments\": {\"arg_0\": [4, 8, 3]}}"
    );
    let (dropped, _) = reason(ferry("multiply(max(add(4, 4), const_3), 4)", ""));
    assert_eq!(dropped, Reason::ReferenceInList);
}

#[test]
fn numbers_are_those_of_the_problem_without_commas() {
    let numbers = |problem: &str| {
        let numbers = problem_numbers(problem);
        let numbers: Vec<String> = numbers.iter().map(python_repr).collect();
        numbers.join(" ")
    };
    for (problem, expected) in [
        (
            "4 lorries of 6.50 tons , 1,200 and 1 , 000",
            "4 6.5 1200 1 0",
        ),
        ("- 3 % of 2 / 5 and 33.3%", "3 2 5 33.3"),
        ("x2 + 3 . how ? 5.", "2 3 5"),
        ("rs . 10 at . 5 and .25", "10 5 25"),
        ("two thirds", ""),
        ("007 and ¾ and 4²", "7 4"),
        ("1.2.3", "1.2 3"),
    ] {
        assert_eq!(numbers(problem), expected, "{problem}");
    }
    let digits = "9".repeat(101);
    assert_eq!(numbers(&format!("{digits} 8")), "None 8");
}

#[test]
fn constants_have_their_values() {
    for (name, expected) in [
        ("const_100", Some("100")),
        ("const_100.0", Some("100")),
        ("const_3_6", Some("3.6")),
        ("const_0_2778", Some("0.2778")),
        ("CONST_0.33", Some("0.33")),
        ("const_pi", Some("3.141592653589793")),
        ("const_deg_to_rad", Some("0.017453292519943295")),
        ("const_", None),
        ("const_1_2_3", None),
        ("const_1e9", None),
        ("π", None),
    ] {
        let value = constant(name).as_ref().map(python_repr);
        assert_eq!(value.as_deref(), expected, "{name}");
    }
}

#[test]
fn options_are_numbers_in_many_notations() {
    let value = |text: &str| option_value(text).map(|value| format!("{value:?}"));
    let values = |text: &str, values: &str, last_digit: &str| {
        let expected = format!("OptionValue {{ values: {values}, last_digit: {last_digit} }}");
        assert_eq!(value(text), Some(expected), "{text}");
    };
    values("625", "[625.0]", "Some(1.0)");
    values("rs . 1,200", "[1200.0]", "Some(1.0)");
    values("1,00,000", "[100000.0]", "Some(1.0)");
    values("$ 14.10", "[14.1]", "Some(0.01)");
    values("$ - 5.5", "[-5.5]", "Some(0.1)");
    values("− 7", "[-7.0]", "Some(1.0)");
    values("x = 9 .", "[9.0]", "Some(1.0)");
    values("$ . 90", "[0.9]", "Some(0.01)");
    values("25 %", "[25.0, 0.25]", "Some(1.0)");
    values("12 percent profit", "[12.0, 0.12]", "Some(1.0)");
    values("3 / 2", "[1.5]", "None");
    values("5 ⁄ 8 km", "[0.625]", "None");
    values("2 1 / 2 days", "[2.5]", "None");
    values("1 [ 1 / 5 ]", "[1.2]", "None");
    values("22 ½ days", "[22.5]", "None");
    values("12 1 / 2 %", "[12.5, 0.125]", "None");
    values("4 : 5", "[0.8]", "None");
    values("2 ^ 10", "[1024.0]", "None");
    values("3 √ 16", "[12.0]", "None");
    values("5 / √ 25", "[1.0]", "None");
    values("0 π", "[0.0]", "None");
    values("750 cm 2", "[750.0]", "Some(1.0)");
    values("750 cm ^ 2", "[750.0]", "Some(1.0)");
    values("462 cm ²", "[462.0]", "Some(1.0)");
    values("18 km / hr", "[18.0]", "Some(1.0)");
    values("2 million", "[2.0, 2000000.0]", "Some(1.0)");
    for text in [
        "",
        "none of these",
        "30 , 5",
        "0 and 16",
        "1 hour and 41 minutes",
        "2 x + 4",
        "a + 50",
        "w - 112",
        "21 % 18 %",
        "19,7",
        "1 / 0",
        "3 ab / 11",
        "2 ^ 11 - 1",
        "1 / 3 !",
        "5 cm 7",
        "5 ²",
        "10 ^ 999999",
        "√ ",
        "1.2.3",
        "1 - 0.9 ^ 30",
    ] {
        assert_eq!(value(text), None, "{text}");
    }
}

#[test]
fn a_result_is_the_correct_option_within_the_tolerance() {
    let check = |options: &str, correct: &str, result: f64| {
        check_answer(options, correct, result).map_err(|dropped| dropped.reason)
    };
    const PLAIN: &str = "a ) 133 , b ) 134 , c ) 33.33 % , d ) 1 / 3 , e ) none of these";
    let wrong = Err(Reason::WrongResult);
    let no_option = Err(Reason::NoOption);
    for (correct, result, expected) in [
        ("a", 133.0, Ok(())),
        // Less than one unit of the last digit and within 1 %, but not closer to another option.
        ("a", 133.33, Ok(())),
        ("a", 132.1, Ok(())),
        ("a", 133.6, wrong),
        ("a", 132.0, wrong),
        ("c", 100.0 / 3.0, Ok(())),
        ("c", 33.35, wrong),
        ("c", 33.325, Ok(())),
        // A share, but the fraction is closer.
        ("c", 0.33333, wrong),
        ("d", 0.33333, Ok(())),
        ("d", 0.334, wrong),
        ("e", 5.0, no_option),
        ("f", 5.0, no_option),
    ] {
        assert_eq!(
            check(PLAIN, correct, result),
            expected,
            "{correct} {result}"
        );
    }
    const LIST: &str = "['a ) 4', 'b ) 4 π', 'c ) 0', \"d ) $ 1,000\", 'e ) e ) 16 cm']";
    assert_eq!(check(LIST, "a", 4.0), Ok(()));
    assert_eq!(check(LIST, "b", 12.566_370_614), Ok(()));
    assert_eq!(check(LIST, "c", 0.0), Ok(()));
    assert_eq!(check(LIST, "c", 0.4), wrong);
    assert_eq!(check(LIST, "d", 1000.4), Ok(()));
    assert_eq!(check(LIST, "e", 16.0), Ok(()));
    // At most 1 %: 5.4 rounds to 5, but is another number.
    assert_eq!(check("a ) 5 , b ) 9", "a", 5.4), wrong);
    assert_eq!(check("a ) 5 , b ) 9", "a", f64::NAN), wrong);
}

#[test]
fn dropped_entries_have_a_reason_and_an_example() {
    let deep = |n: usize| format!("{}4{}", "negate(".repeat(n), ")".repeat(n));
    let wide = |n: usize| {
        let calls = vec!["negate(n0)"; n];
        calls.join("|")
    };
    use Reason as R;
    for (annotated, linear, expected, detail) in [
        ("", "", R::NoOperation, ""),
        ("32", "", R::NoOperation, "32"),
        ("", "32|", R::NoOperation, "32|"),
        ("add(4, 28", "", R::Malformed, "found the end"),
        ("add(4 28)", "", R::Malformed, "expected a comma"),
        ("add(4, 28))", "", R::Malformed, "found \")\""),
        (
            "add(4, )",
            "",
            R::Malformed,
            "expected an operation or a number",
        ),
        ("(4)", "", R::Malformed, "expected an operation or a number"),
        ("add(4, ×)", "", R::Malformed, "×"),
        (&deep(MAX_LEVELS + 1), "", R::TooLarge, "64 levels"),
        (&deep(100_000), "", R::TooLarge, "64 levels"),
        ("", &wide(MAX_CALLS + 1), R::TooLarge, "256 operations"),
        (
            "add(n0, n9)",
            "",
            R::UnknownNumber,
            "the problem has no number \"n9\"",
        ),
        ("add(n0, const_x)", "", R::UnknownNumber, "const_x"),
        (
            "add(n0, #0)",
            "",
            R::UnknownNumber,
            "no earlier term \"#0\"",
        ),
        ("", "add(n0,#0)", R::UnknownNumber, "no earlier term \"#0\""),
        (
            "add(n0, n99999999999999999999)",
            "",
            R::UnknownNumber,
            "n99999999999999999999",
        ),
        ("add(n0, 1e9)", "", R::UnknownNumber, "1e9"),
        (
            "volume_rectangular_prism(2, 4, 4)",
            "",
            R::UnknownOperation,
            "volume_rectangular_prism",
        ),
        ("add(4)", "", R::Arity, "add with 1"),
        ("add()", "", R::Arity, "add with 0"),
        (
            "divide(4, subtract(4, 4))",
            "",
            R::NoResult,
            "division by zero",
        ),
        ("sqrt(divide(4, 8))", "", R::NoResult, "sqrt"),
        (
            "factorial(factorial(factorial(6)))",
            "",
            R::NoResult,
            "factorial",
        ),
        (
            "power(power(8, 1,200), power(8, 1,200))",
            "",
            R::NoResult,
            "power",
        ),
        ("power(1.5, 1,000,000)", "", R::NoResult, "power"),
        (
            "multiply(4, 8)",
            "multiply(n0,n1)",
            R::LinearDiffers,
            "32 and 260",
        ),
        ("multiply(4, 8)", "cos(n0)", R::LinearDiffers, "cos"),
        (
            "multiply(4, 9)",
            "",
            R::WrongResult,
            "the formula computes 36",
        ),
    ] {
        let (reason, example) = reason(ferry(annotated, linear));
        assert_eq!(reason, expected, "{annotated} {linear}: {example}");
        assert!(example.contains("train.jsonl:1: "), "{example}");
        assert!(example.contains(detail), "{example}");
        assert!(example.len() < 400, "{example}");
    }
    let no_number = entry("4 and 8 ?", "add(4, 8)", "", "a ) 12 , b ) none", "b");
    assert_eq!(reason(no_number).0, R::NoOption);
    // The largest accepted formulas.
    let (dropped, _) = reason(ferry(&deep(MAX_LEVELS), ""));
    assert_eq!(dropped, R::WrongResult);
    let (dropped, _) = reason(ferry("", &wide(MAX_CALLS)));
    assert_eq!(dropped, R::WrongResult);
}

#[test]
fn ids_begin_with_the_name_of_the_split() {
    for (file, expected) in [
        ("data/train.json", "train"),
        ("dev.json.gz", "dev"),
        ("mathqa.test.jsonl.zst", "mathqa.test"),
        ("train", "train"),
    ] {
        assert_eq!(split_name(Path::new(file)), expected);
    }
}

#[test]
fn entries_without_fields_are_errors() {
    let valid = ferry("multiply(4, 8)", "");
    let without = |name: &str, other: Value| {
        let mut entry = valid.clone();
        entry[name] = other;
        import_with(&[valid.clone(), entry], &shortlist(7, 21)).map(|_| ())
    };
    for (name, value, expected) in [
        ("Problem", Value::Null, "train.jsonl:2: no field Problem"),
        (
            "options",
            json!(["a ) 4"]),
            "the field options is not a string",
        ),
        ("correct", json!(3), "the field correct is not a string"),
        (
            "annotated_formula",
            json!({}),
            "annotated_formula is not a string",
        ),
    ] {
        let error = without(name, value).expect_err("an error").to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("MathQA's fields"), "{error}");
    }
    for entries in [
        &[][..],
        &[json!([1])],
        &[json!({"Problem": "", "options": "", "correct": ""})],
    ] {
        let error = import_with(entries, &shortlist(7, 21)).expect_err("an error");
        assert!(error.to_string().contains("train.jsonl"), "{error}");
    }
}

fn names(row: &NestfulRow) -> Vec<&str> {
    row.tools.iter().map(|tool| tool.name.as_str()).collect()
}

#[test]
fn a_shortlist_has_the_called_tools_those_of_the_examples_and_random_ones() {
    let examples = ["multiply", "add", "square_edge_by_area", "square_perimeter"];
    let problem = |idx: usize| format!("{idx} times 2 and 3 less ?");
    let entries: Vec<Value> = (10..60)
        .map(|idx| {
            let options = format!("a ) {} , b ) 1", 2 * idx - 3);
            let formula = format!("subtract(multiply({idx}, 2), 3)");
            entry(&problem(idx), &formula, "", &options, "a")
        })
        .collect();
    let imported = import(&entries);
    assert_eq!(imported.rows.len(), 50);
    let mut sizes = std::collections::BTreeSet::new();
    let mut first = std::collections::BTreeSet::new();
    for row in &imported.rows {
        let names = names(row);
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!((7..=21).contains(&names.len()), "{names:?}");
        for needed in examples.iter().chain(&["subtract"]) {
            assert!(names.contains(needed), "{needed}: {names:?}");
        }
        sizes.insert(names.len());
        first.insert(names[0].to_owned());
    }
    assert!(sizes.len() > 8 && first.len() > 8, "{sizes:?} {first:?}");
    // A row has the same tools wherever it is in the file.
    let reversed: Vec<Value> = entries.iter().rev().cloned().collect();
    let reversed = import(&reversed);
    for (row, same) in imported.rows.iter().zip(reversed.rows.iter().rev()) {
        assert_eq!(names(row), names(same));
    }
    let other_seed = ToolShortlist {
        seed: 18,
        ..shortlist(7, 21)
    };
    let other = import_with(&entries, &other_seed).expect("imports");
    let differ = |(row, other): (&NestfulRow, &NestfulRow)| names(row) != names(other);
    assert!(
        imported
            .rows
            .iter()
            .zip(&other.rows)
            .filter(|&pair| differ(pair))
            .count()
            > 45
    );
    // Called tools are never left out; all 40 tools are the most.
    let few = import_with(&entries[..1], &shortlist(1, 1)).expect("imports");
    let mut called = names(&few.rows[0]);
    called.sort_unstable();
    assert_eq!(called, ["multiply", "subtract"]);
    let all = import_with(&entries[..1], &shortlist(50, 90)).expect("imports");
    assert_eq!(all.rows[0].tools.len(), 40);
}

#[test]
fn the_prompt_limit_removes_random_tools_and_counts_rows() {
    let entries = [ferry("multiply(4, 8)", "")];
    let limited = |max_prompt_chars: usize| {
        let limited = ToolShortlist {
            max_prompt_chars,
            ..shortlist(21, 21)
        };
        let imported = import_with(&entries, &limited).expect("imports");
        let length = |row: &NestfulRow| {
            let pair = limited.prompt.training_row(row).expect("a prompt");
            pair.prompt.chars().count()
        };
        let row = &imported.rows[0];
        (row.tools.len(), length(row), imported.shortlists)
    };
    let (n_all, length, counts) = limited(16_000);
    assert_eq!((n_all, counts), (21, ShortlistCounts::default()));
    let (n_tools, shorter, counts) = limited(length - 1);
    assert!((19..21).contains(&n_tools), "{n_tools}");
    assert!(shorter < length);
    assert_eq!((counts.n_limited, counts.n_too_long), (1, 0));
    let (n_tools, shortest, counts) = limited(1);
    // `multiply` is called, and the examples call three more.
    assert_eq!(n_tools, 4);
    assert_eq!((counts.n_limited, counts.n_too_long), (0, 1));
    // The limit itself is allowed.
    let (n_tools, _, counts) = limited(shortest);
    assert_eq!((n_tools, counts.n_limited, counts.n_too_long), (4, 1, 0));
}

#[test]
fn completions_are_parsed_by_the_parser_of_their_family() {
    let row = import(&[ferry("multiply(4, add(n0, const_4))", "")])
        .rows
        .remove(0);
    for family in [
        "json_list",
        "granite31",
        "llama",
        "hammer",
        "hermes",
        "xlam",
    ] {
        let pair = RowPrompt::new(Some(family), Some(1))
            .training_row(&row)
            .expect("a pair");
        assert!(pair.prompt.ends_with(&format!("Question: {}", row.input)));
        assert_eq!(pair.prompt.matches("#Example-").count(), 1, "{family}");
        let parser = Parser::from_name(family).expect("a parser");
        let parsed = parser.parse(&pair.completion);
        let calls = PyValue::List(parsed.calls);
        assert_eq!(
            tooltune_json::python::dumps(&calls),
            row.completion(),
            "{family}"
        );
    }
    let refused = |family: &str, n_examples: usize| {
        let refused = ToolShortlist {
            prompt: RowPrompt::new(Some(family), Some(n_examples)),
            ..shortlist(7, 21)
        };
        let error = import_with(&[ferry("multiply(4, 8)", "")], &refused);
        error.expect_err("an error").to_string()
    };
    assert!(
        refused("herms", 1).contains("did you mean \"hermes\""),
        "{}",
        refused("herms", 1)
    );
    assert!(refused("hermes", 4).contains("there are only 3"));
}
