//! `tooltune structure` converts a stream of text to JSON: rows of every kind, servers, and
//! interruptions.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{Workplace, parse_lines, tooltune};

/// `structure` with the tiny model and the smallest batch size, which decodes sixteen rows
/// together.
const STRUCTURE: &str = "structure config.toml --checkpoint base --set eval.max_new_tokens=120 \
                         --set eval.batch_size=1";

/// A schema without unbounded parts, so that even random weights complete it.
fn schema(number: usize) -> Value {
    json!({
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "kind": {"enum": [format!("a{number}"), "b"]},
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["ok", "kind", "n"],
        "additionalProperties": false,
    })
}

#[test]
fn string_formats_are_enforced_and_blank_texts_are_skipped() {
    let workplace = Workplace::new();
    let dated = json!({
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "time"},
            "phone": {"enum": ["1"], "format": "phone"},
        },
        "required": ["day", "at", "phone"],
        "additionalProperties": false,
    });
    let row = |id: &str, text: &str| json!({"id": id, "text": text, "json_schema": dated});
    let rows = [
        row("day", "On 20 July 2026 at noon."),
        row("blank", " \u{200b}\n"),
        row("empty", ""),
    ];
    workplace.write("texts.jsonl", jsonl(&rows));
    let words = format!("{STRUCTURE} --data texts.jsonl");
    let answer = workplace.run(words.split_whitespace());
    for expected in [
        "3 rows: 1 valid, 2 not valid",
        "2 texts are blank and skipped",
        "formats that are not validated",
        "\"phone\"",
    ] {
        assert!(
            answer.stderr.contains(expected),
            "{expected:?}: {}",
            answer.stderr
        );
    }
    let answers = parse_lines(&answer.success());
    let day = answers[0]["json"]["day"].as_str().unwrap();
    let is_date = |text: &str| {
        let schema = json!({"type": "string", "format": "date"});
        let options = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema);
        options.unwrap().is_valid(&json!(text))
    };
    assert!(is_date(day), "{day}");
    for blank in &answers[1..] {
        assert_eq!(
            (&blank["valid"], &blank["json"]),
            (&json!(false), &Value::Null)
        );
        assert_eq!(blank["violations"][0]["rule"], "text", "{blank}");
    }
}

/// A schema that no grammar can enforce.
fn unenforceable_schema() -> Value {
    json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})
}

fn row(number: usize) -> Value {
    json!({"id": format!("row {number}"), "text": format!("Kind a{number}, {number} times."),
        "json_schema": schema(number % 5)})
}

fn jsonl<'r>(rows: impl IntoIterator<Item = &'r Value>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

fn rows(n: usize) -> Vec<Value> {
    (0..n).map(row).collect()
}

fn is_valid(schema: &Value, json: &Value) -> bool {
    jsonschema::validator_for(schema).unwrap().is_valid(json)
}

/// Invariant: `structure` returns one answer per row in order, and an interruption changes none.
#[test]
fn every_answer_is_valid_and_in_row_order() {
    let workplace = Workplace::new();
    let rows = rows(40);
    workplace.write("texts.jsonl", jsonl(&rows));
    let run = |words: &str| {
        let words = format!("{STRUCTURE} --data texts.jsonl {words}");
        workplace.run(words.split_whitespace())
    };
    let answer = run("--output folder/answers.jsonl");
    for expected in ["40 rows: 40 valid, 0 not valid; ", " rows/s, "] {
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
    assert_eq!(answer.success(), "");
    let text = workplace.read("folder/answers.jsonl");
    let answers = parse_lines(&text);
    assert_eq!(answers.len(), rows.len());
    for (answer, row) in answers.iter().zip(&rows) {
        assert_eq!(answer["id"], row["id"]);
        assert!(is_valid(&row["json_schema"], &answer["json"]), "{answer}");
        assert_eq!(answer["valid"], true);
        assert_eq!(answer["violations"], json!([]));
        assert_eq!(answer.as_object().unwrap().len(), 4, "{answer}");
    }
    // An answer depends only on its row, not on the batch size or the output.
    assert_eq!(run("--set eval.batch_size=7").success(), text);
    let names: Vec<_> = std::fs::read_dir(workplace.path("folder"))
        .unwrap()
        .collect();
    assert_eq!(names.len(), 1);
    let again = run("--output folder/answers.jsonl");
    assert_eq!(again.status, Some(2));
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
}

#[test]
fn an_unenforceable_schema_gives_an_unconstrained_completion_and_one_retry() {
    let workplace = Workplace::new();
    let mut rows = rows(3);
    rows[1]["json_schema"] = unenforceable_schema();
    workplace.write("texts.jsonl", jsonl(&rows));
    let words = format!("{STRUCTURE} --data texts.jsonl --output answers.jsonl");
    let answer = workplace.run(words.split_whitespace());
    for expected in [
        "3 rows: 2 valid, 1 not valid",
        "1 completions were generated without constraints, because their schema cannot be \
         enforced, such as texts.jsonl:2: ",
        "1 text generated again, because a schema or format that is not enforced was violated",
    ] {
        assert!(
            answer.stderr.contains(expected),
            "{expected:?}: {}",
            answer.stderr
        );
    }
    answer.success();
    let answers = parse_lines(&workplace.read("answers.jsonl"));
    assert_eq!(answers[1]["id"], "row 1");
    assert_eq!(answers[1]["valid"], false);
    assert_eq!(answers[1]["json"], Value::Null);
    let why = answers[1]["unenforced"].as_str().unwrap();
    assert!(why.contains("uniqueItems"), "{why}");
    assert!(!answers[1]["written"].as_str().unwrap().is_empty());
    for other in [&answers[0], &answers[2]] {
        assert_eq!(other["valid"], true, "{other}");
        assert_eq!(other["unenforced"], Value::Null);
    }

    let words = format!("{STRUCTURE} --data texts.jsonl --free");
    let free = workplace.run(words.split_whitespace());
    assert!(
        free.stderr.contains("3 rows: 0 valid, 3 not valid"),
        "{}",
        free.stderr
    );
    assert!(
        free.stderr.contains("3 texts generated again"),
        "{}",
        free.stderr
    );
    for answer in parse_lines(&free.success()) {
        assert_eq!(answer["unenforced"], Value::Null);
        assert_eq!(answer["violations"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_truncated_completion_is_invalid_and_reported() {
    let workplace = Workplace::new();
    workplace.write("texts.jsonl", jsonl(&rows(2)));
    let words = format!("{STRUCTURE} --data texts.jsonl --set eval.max_new_tokens=3");
    let answer = workplace.run(words.split_whitespace());
    assert!(
        answer.stderr.contains("2 answers are CUT OFF"),
        "{}",
        answer.stderr
    );
    for answer in parse_lines(&answer.success()) {
        assert_eq!(answer["valid"], false);
        assert_eq!(answer["json"], Value::Null);
        let violation = &answer["violations"][0];
        assert_eq!(violation["rule"], "max_new_tokens");
        let message = violation["message"].as_str().unwrap();
        assert!(message.contains("cut off after 3 tokens"), "{message}");
        assert!(answer["written"].as_str().unwrap().starts_with('{'));
    }
}

#[test]
fn an_endless_completion_is_generated_again_with_short_limits() {
    let workplace = Workplace::new();
    // The tiny model ends most lists, but never a string.
    let schemas = [
        json!({"type": "array", "items": {"enum": [1, 2]}}),
        json!({"type": "string"}),
    ];
    let row = |number: usize| {
        let schema = &schemas[number % 2];
        json!({"id": number, "text": format!("Numbers {number}."), "json_schema": schema})
    };
    let rows: Vec<Value> = (0..8).map(row).collect();
    workplace.write("texts.jsonl", jsonl(&rows));
    let words = format!("{STRUCTURE} --data texts.jsonl --set eval.max_new_tokens=400");
    let answer = workplace.run(words.split_whitespace());
    let errors = answer.stderr.clone();
    let answers = parse_lines(&answer.success());
    let shortened = answers
        .iter()
        .filter(|answer| answer.get("shortened").is_some());
    let n_shortened = shortened.clone().count();
    assert!((4..8).contains(&n_shortened), "{n_shortened}");
    for expected in [
        "8 rows: 8 valid, 0 not valid".to_owned(),
        format!("{n_shortened} texts did not end"),
    ] {
        assert!(errors.contains(&expected), "{errors}");
    }
    for answer in shortened {
        let text = answer["json"].as_str().unwrap_or_default();
        assert!(text.chars().count() <= 256, "{answer}");
        let entries = answer["json"].as_array().map_or(0, Vec::len);
        assert!(entries <= 16, "{answer}");
    }
}

#[test]
fn an_unreadable_row_has_an_error_or_is_counted() {
    let workplace = Workplace::new();
    let unusable = json!({"id": "bad", "text": "x", "json_schema": {"type": "objekt"}});
    let other = json!({"text": "y"});
    let text = format!("{}not JSON\n{unusable}\n{other}\n{}", row(0), row(1))
        .replacen("}not", "}\nnot", 1);
    workplace.write("texts.jsonl", text);
    let words = format!("{STRUCTURE} --data texts.jsonl");
    let answer = workplace.run(words.split_whitespace());
    assert_eq!(answer.status, Some(3), "{}", answer.stderr);
    for expected in [
        "3 rows cannot be read, such as texts.jsonl:2: not valid JSON",
        "3 of 5 lines are malformed; see the errors in their output lines",
        "2 rows: 2 valid, 0 not valid",
    ] {
        assert!(
            answer.stderr.contains(expected),
            "{expected:?}: {}",
            answer.stderr
        );
    }
    let answers = parse_lines(&answer.stdout);
    let ids: Vec<&str> = answers
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    let expected = [
        "row 0",
        "texts.jsonl:2",
        "texts.jsonl:3",
        "texts.jsonl:4",
        "row 1",
    ];
    assert_eq!(ids, expected);
    for (index, expected) in [
        (1, "texts.jsonl:2: not valid JSON"),
        (
            2,
            "texts.jsonl:3: json_schema/type is not a usable JSON schema",
        ),
        (3, "texts.jsonl:4: field \"json_schema\" is missing"),
    ] {
        let error = answers[index]["error"].as_str().unwrap();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(answers[index]["valid"], false);
    }

    let words = format!("{STRUCTURE} --data texts.jsonl --skip-broken");
    let skipped = workplace.run(words.split_whitespace());
    assert!(
        skipped.stderr.contains("3 rows cannot be read"),
        "{}",
        skipped.stderr
    );
    let ids: Vec<Value> = parse_lines(&skipped.success())
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(ids, ["row 0", "row 1"]);
}

#[test]
fn a_single_text_is_read_from_the_command_line_or_standard_input() {
    let workplace = Workplace::new();
    workplace.write("schema.json", schema(0).to_string());
    let base = format!("{STRUCTURE} --schema schema.json");
    let base: Vec<&str> = base.split_whitespace().collect();
    let text = "A kind of b, twice.";
    let typed = workplace
        .run([&base[..], &["--text", text]].concat())
        .success();
    let answer = &parse_lines(&typed)[0];
    assert_eq!(answer["id"], "--text");
    assert!(is_valid(&schema(0), &answer["json"]), "{answer}");
    for more in [&["--text", "-"][..], &[]] {
        let piped = workplace.run_with_input([&base[..], more].concat(), text);
        assert_eq!(piped.success(), typed);
    }
    // Rows without their own schema use the schema from the command line.
    let rows = "{\"text\": \"A kind of b, twice.\"}\n";
    let answer = workplace.run_with_input([&base[..], &["--data", "-"]].concat(), rows);
    let answer = &parse_lines(&answer.success())[0];
    assert_eq!(answer["id"], "-:1");
    assert_eq!(answer["json"], parse_lines(&typed)[0]["json"]);

    let nothing = workplace.run(STRUCTURE.split_whitespace());
    assert_eq!(nothing.status, Some(2));
    assert!(
        nothing.stderr.contains("no text to structure"),
        "{}",
        nothing.stderr
    );
}

#[test]
fn an_answer_is_written_before_the_next_row_arrives() {
    let workplace = Workplace::new();
    let mut command = tooltune();
    let words = format!("{STRUCTURE} --data -");
    command
        .current_dir(workplace.folder())
        .args(words.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for number in 0..3 {
        writeln!(input, "{}", row(number)).unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], format!("row {number}"));
        assert_eq!(answer["valid"], true);
    }
    drop(input);
    assert!(output.next().is_none());
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_text_of_an_upstream_model_is_structured() {
    let workplace = Workplace::new();
    let server = TestServer::start(|received, _| {
        let body: Value = serde_json::from_str(&received.body).unwrap();
        let prompt = body["messages"][0]["content"].as_str().unwrap();
        match prompt {
            "refused" => Response::json(400, &json!({"error": {"message": "too rude"}})),
            "silent" => chat(" "),
            prompt => chat(&format!("An answer to {prompt}.")),
        }
    });
    let row =
        |id: usize, prompt: &str| json!({"id": id, "prompt": prompt, "json_schema": schema(0)});
    let rows = [
        row(1, "one"),
        row(2, "silent"),
        row(3, "refused"),
        row(4, "four"),
    ];
    workplace.write("prompts.jsonl", jsonl(&rows));
    workplace.write("schema.json", schema(0).to_string());
    let upstream = format!(
        "--upstream-endpoint {}/v1 --upstream-model first --upstream-max-tokens 77",
        server.url()
    );
    let words = format!("{STRUCTURE} --data prompts.jsonl --concurrency 1 {upstream}");
    let answer = workplace.run(words.split_whitespace());
    for expected in [
        "4 rows: 2 valid, 2 not valid",
        "2 prompts got no text from the first model",
    ] {
        assert!(
            answer.stderr.contains(expected),
            "{expected:?}: {}",
            answer.stderr
        );
    }
    let answers = parse_lines(&answer.success());
    assert_eq!(answers.len(), 4);
    for (index, text) in [(0, "An answer to one."), (3, "An answer to four.")] {
        assert_eq!(answers[index]["text"], text);
        assert!(is_valid(&schema(0), &answers[index]["json"]));
    }
    for (index, expected) in [(1, "empty text"), (2, "too rude")] {
        assert_eq!(answers[index]["id"], index + 1);
        let violation = &answers[index]["violations"][0];
        assert_eq!(violation["rule"], "upstream");
        assert!(
            violation["message"].as_str().unwrap().contains(expected),
            "{violation}"
        );
    }
    let first = &server.received()[0];
    let body: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!(body["model"], "first");
    assert_eq!(body["max_tokens"], 77);
    assert_eq!(
        body["messages"],
        json!([{"role": "user", "content": "one"}])
    );

    // `--text` gives the same JSON as the rendered prompt.
    let words = format!("{STRUCTURE} --schema schema.json --prompt one {upstream}");
    let prompt_answer = &parse_lines(&workplace.run(words.split_whitespace()).success())[0];
    let base: Vec<&str> = STRUCTURE.split_whitespace().collect();
    let more = ["--schema", "schema.json", "--text", "An answer to one."];
    let text_answer = &parse_lines(&workplace.run([&base[..], &more].concat()).success())[0];
    assert_eq!(prompt_answer["json"], text_answer["json"]);
    assert_eq!(prompt_answer["json"], answers[0]["json"]);
}

#[test]
fn json_under_a_flat_schema_is_nested_again() {
    let workplace = Workplace::new();
    let nested = json!({"type": "object", "required": ["a"], "properties": {"a": {
        "type": "object", "required": ["b", "c"],
        "properties": {"b": {"type": "boolean"}, "c": {"enum": [1, 2]}}}}});
    let row = json!({"text": "b and 1", "json_schema": nested});
    workplace.write("texts.jsonl", jsonl([&row]));
    let words = format!("{STRUCTURE} --data texts.jsonl --set data.flatten=always");
    let answer = workplace.run(words.split_whitespace());
    assert!(
        answer.stderr.contains("1 of 1 schemas were flattened"),
        "{}",
        answer.stderr
    );
    let answer = &parse_lines(&answer.success())[0];
    assert!(is_valid(&nested, &answer["json"]), "{answer}");
    assert_eq!(answer["valid"], true);
}

/// Invariant: `structure` returns one answer per row in order, and an interruption changes none.
#[test]
fn interrupted_answers_resume_to_the_same_file() {
    let workplace = Workplace::new();
    let rows = rows(120);
    workplace.write("texts.jsonl", jsonl(&rows));
    let words = |output: &str| {
        format!("{STRUCTURE} --set eval.temperature=1 --data texts.jsonl --output {output}")
    };
    let run = |output: &str| workplace.run(words(output).split_whitespace());
    run("whole.jsonl").success();

    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .args(words("answers.jsonl").split_whitespace())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let partial = workplace.path("answers.jsonl.partial");
    let n_lines = || std::fs::read_to_string(&partial).map_or(0, |text| text.lines().count());
    let started = Instant::now();
    while n_lines() < 5 {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no response arrives"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let kill = std::process::Command::new("kill")
        .arg(child.id().to_string())
        .status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert!(!workplace.path("answers.jsonl").exists());
    assert!((6..121).contains(&n_lines()), "{}", n_lines());

    // A command with other settings refuses these answers. A truncated line is written again.
    let other = workplace.run(format!("{} --free", words("answers.jsonl")).split_whitespace());
    assert_eq!(other.status, Some(2));
    assert!(
        other
            .stderr
            .contains("answers for other rows, settings or weights"),
        "{}",
        other.stderr
    );
    let mut cut = std::fs::read(&partial).unwrap();
    cut.truncate(cut.len() - 9);
    std::fs::write(&partial, cut).unwrap();
    let answer = run("answers.jsonl");
    assert!(
        answer.stderr.contains("of them from an interrupted run"),
        "{}",
        answer.stderr
    );
    assert!(
        answer.stderr.contains("120 rows: 120 valid"),
        "{}",
        answer.stderr
    );
    answer.success();
    assert_eq!(
        workplace.read("answers.jsonl"),
        workplace.read("whole.jsonl")
    );
    assert!(!partial.exists());
}
