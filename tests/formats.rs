//! Rows of other programs from the file to a run, and what becomes of rows said at every place.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, ROWS, assert_refused};
use crate::support::fixture;
use crate::workplace::Workplace;

/// Without a format, without suites, and with a template that renders tools.
fn workplace(train: &str) -> Workplace {
    let workplace = Workplace::new();
    let config = format!(
        "[model]\nmodel_name_or_path = {:?}\n[lora]\nr = 2\n[data]\ntrain = [\"rows.jsonl\"]\n\
         chat_template = \"chatml-tools\"\n[train]\noutput_dir = \"run\"\nmax_steps = 1\n",
        fixture("tiny_chat_model")
    );
    workplace.write("auto.toml", config);
    workplace.write("rows.jsonl", train);
    workplace
}

fn rows(name: &str) -> String {
    std::fs::read_to_string(fixture(&format!("rows/{name}.jsonl"))).unwrap()
}

const XLAM: &str = r#"{"id": 1, "query": "How deep is Northcove at low tide?", "tools": "[{\"name\": \"harbour_depth\", \"description\": \"Depth of a harbour.\", \"parameters\": {\"harbour\": {\"type\": \"str\", \"description\": \"Name\"}, \"tide\": {\"type\": \"str, optional\", \"description\": \"low or high\", \"default\": \"high\"}}}]", "answers": "[{\"name\": \"harbour_depth\", \"arguments\": {\"harbour\": \"Northcove\", \"tide\": \"low\"}}]"}"#;

#[test]
fn a_run_recognises_its_rows_says_so_and_keeps_the_format() {
    for (text, format, train_on) in [
        (rows("sharegpt"), "sharegpt", "assistant"),
        (rows("alpaca"), "alpaca", "assistant"),
        (rows("tools-text"), "messages", "assistant"),
        (format!("{XLAM}\n"), "xlam", "completion"),
    ] {
        let workplace = workplace(&text);
        let answer = workplace.run(["train", "auto.toml"]);
        let said =
            format!("data.format = \"auto\": the rows are \"{format}\", as rows.jsonl:1 shows\n");
        assert!(answer.stderr.contains(&said), "{}", answer.stderr);
        let out = answer.success();
        let resolved = workplace.read("run/config.resolved.toml");
        assert!(
            resolved.contains(&format!("\nformat = \"{format}\"\n")),
            "{resolved}"
        );
        assert!(
            resolved.contains(&format!("\ntrain_on = \"{train_on}\"\n")),
            "{resolved}"
        );
        assert_eq!(
            out.contains("the field \"id\" of rows.jsonl:1 is not read"),
            format == "xlam"
        );
        // The same config goes on with its run, and so does the resolved one.
        for config in ["auto.toml", "run/config.resolved.toml"] {
            workplace
                .run(["train", config, "--set", "train.max_steps=1"])
                .success();
        }
    }
}

#[test]
fn rows_are_shown_and_asked_as_their_format_says() {
    let workplace = workplace(&format!("{XLAM}\n"));
    let shown = workplace
        .run(["inspect", "auto.toml", "--format", "json"])
        .success();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let tokens = shown["tokens"].as_array().unwrap().iter();
    let text: String = tokens
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    let tool = r#"{"type": "function", "function": {"name": "harbour_depth", "description": "Depth of a harbour.", "parameters": {"type": "object", "properties": {"harbour": {"type": "string", "description": "Name"}, "tide": {"type": "string", "description": "low or high", "default": "high"}}, "required": ["harbour"]}}}"#;
    assert!(text.contains(tool), "{text}");
    let words = "generate auto.toml --data rows.jsonl --checkpoint base --output texts.jsonl \
                 --set eval.max_new_tokens=2 --set eval.eval_strategy=no";
    workplace.run(words.split_whitespace()).success();
    let line: Value = serde_json::from_str(workplace.read("texts.jsonl").trim()).unwrap();
    assert_eq!(
        line["reference"],
        "<tool_call>\n{\"name\": \"harbour_depth\", \"arguments\": {\"harbour\": \"Northcove\", \
         \"tide\": \"low\"}}\n</tool_call>"
    );
    let plan = workplace
        .run(["plan", "auto.toml", "--format", "json"])
        .success();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["not_read"]["fields"]["id"]["n_rows"], 1);
}

#[test]
fn what_is_not_recognised_or_of_two_formats_is_refused() {
    let workplace = workplace("{\"text\": \"x\", \"prompts\": \"y\"}\n");
    let train = ["train", "auto.toml"];
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &[
            "rows.jsonl:1: the rows are of no known format",
            "did you mean \"prompts\"?",
        ],
    );
    let messages = json!({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes."}]});
    let pair = json!({"prompt": "x", "completion": "y"});
    workplace.write("rows.jsonl", format!("{messages}\n{pair}\n"));
    assert_refused(
        &workplace,
        &train,
        ROWS,
        &["rows.jsonl:2: the row is of the format prompt-completion"],
    );
    workplace.write("rows.jsonl", format!("{messages}\n"));
    workplace.write("other.jsonl", format!("\n{pair}\n"));
    let two = "train auto.toml --set data.eval=[\"other.jsonl\"]";
    let two: Vec<&str> = two.split_whitespace().collect();
    assert_refused(
        &workplace,
        &two,
        CONFIG,
        &[
            "rows.jsonl:1 is messages",
            "other.jsonl:2 is prompt-completion",
        ],
    );
    workplace.write("rows.jsonl", "");
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &["rows.jsonl: the file holds no rows"],
    );
    std::fs::remove_file(workplace.path("rows.jsonl")).unwrap();
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &["`data.train` names rows.jsonl, which does not"],
    );
    let generate = "generate auto.toml --data other.jsonl --checkpoint base";
    let generate: Vec<&str> = generate.split_whitespace().collect();
    assert_refused(
        &workplace,
        &generate,
        CONFIG,
        &["name it, as with --set data.format="],
    );
}

#[test]
fn rows_dropped_or_cut_are_named_in_training_and_evaluation() {
    let row = |answer: &str| json!({"prompt": "Name a boat.", "completion": answer}).to_string();
    let (short, long) = (row("boat"), row(&"boat ".repeat(90)));
    let workplace = workplace(&format!("{short}\n{long}\n{short}\n"));
    workplace.write("eval.jsonl", format!("{long}\n{short}\n{short}\n"));
    let settings = "--set data.eval=[\"eval.jsonl\"] --set data.max_length=100 \
                    --set eval.eval_steps=1 --set eval.max_samples=2";
    let run = |verb: &str, on_overflow: &str| {
        let words = format!("{verb} auto.toml {settings} --set data.on_overflow={on_overflow}");
        workplace.run(words.split_whitespace()).success()
    };
    for verb in ["plan", "train"] {
        let said = run(verb, "drop");
        for line in [
            "dropped rows.jsonl:2: it has more tokens than data.max_length, 100\n",
            "dropped eval.jsonl:1: it has more tokens than data.max_length, 100\n",
            "data.eval: the first 2 rows are read, and there are more (eval.max_samples)\n",
        ] {
            assert!(said.contains(line), "{line:?} is not in {said}");
        }
    }
    let said = run("plan", "truncate --set train.output_dir=other");
    for line in [
        "data.train: 1 of 3 rows, such as rows.jsonl:2, are cut to data.max_length = 100 tokens",
        "data.eval: 1 of 2 rows, such as eval.jsonl:1, are cut to data.max_length = 100 tokens",
    ] {
        assert!(said.contains(line), "{line:?} is not in {said}");
    }
}

#[test]
fn a_run_that_can_learn_nothing_says_so_before_it_begins() {
    let workplace = workplace(&rows("alpaca"));
    let nothing = "NOTHING WILL BE LEARNED: no step has a learning rate above 0";
    for verb in ["plan", "train"] {
        let said = workplace
            .run([verb, "auto.toml", "--set", "train.warmup_ratio=0.1"])
            .success();
        assert!(said.contains(nothing), "{said}");
    }
    let other = "plan auto.toml --set train.output_dir=other";
    let said = workplace.run(other.split_whitespace()).success();
    assert!(!said.contains("LEARNED"), "{said}");
}

/// Each of `train`, `plan` and `inspect` says what of calls and results does not belong together.
#[test]
fn results_and_calls_that_do_not_belong_together_are_said() {
    let call = |id: &str| {
        json!({"role": "assistant", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "tide", "arguments": {}}}]})
    };
    let user = json!({"role": "user", "content": "Tide?"});
    let answer = json!({"role": "assistant", "content": "Low."});
    let tagged = json!({"role": "tool", "tool_call_id": "b",
        "content": "<tool_response>\nlow\n</tool_response>"});
    let tools = json!([{"type": "function", "function": {"name": "tide",
        "parameters": {"type": "object", "properties": {}}}}]);
    let whole = json!({"messages": [user, answer], "tools": tools});
    let row = json!({"messages": [user, call("a"), tagged, answer], "tools": tools});
    let workplace = workplace(&format!("{whole}\n{row}\n{row}\n"));
    let said = [
        "data.train: results of tools that bring their own <tool_response>: 2, the first \
         rows.jsonl:2, messages[2];",
        "data.train: results of tools whose tool_call_id no call before them has: 2, the first \
         rows.jsonl:2, messages[2];",
        "data.train: calls without a result where the conversation goes on: 2, the first \
         rows.jsonl:2, messages[1].tool_calls[0];",
    ];
    for verb in ["inspect", "plan", "train"] {
        let answer = workplace.run([verb, "auto.toml"]);
        assert_eq!(answer.status, Some(0), "{verb}: {}", answer.stderr);
        let all = answer.stdout + &answer.stderr;
        let words: Vec<&str> = all.split_whitespace().collect();
        let all = words.join(" ");
        for line in said {
            assert!(all.contains(line), "{verb}: {line:?} is not in {all}");
        }
    }
    let plan = workplace.run(["plan", "auto.toml", "--format", "json"]);
    let plan: Value = serde_json::from_str(&plan.success()).unwrap();
    assert_eq!(plan["tools"]["tagged_results"]["n"], 2);
}

/// Files that hold rows in other forms are answered in one line that says what to do.
#[test]
fn tables_and_folders_in_the_place_of_rows_are_told_so() {
    let workplace = workplace(&rows("alpaca"));
    workplace.write("table.csv", "instruction,output\nx,y\n");
    std::fs::create_dir(workplace.path("folder")).unwrap();
    workplace.write("folder/b.jsonl", rows("alpaca"));
    for (file, said) in [
        (
            "table.csv",
            "table.csv: the file is CSV, and rows stand in JSON Lines, one object a line; \
                       convert it, `python3 -c",
        ),
        (
            "folder",
            "folder: it is a folder, and rows stand in files; name the files in it that are \
                    meant: folder/b.jsonl",
        ),
    ] {
        let set = format!("data.train=[{file:?}]");
        for format in ["auto", "alpaca"] {
            let format = format!("data.format={format}");
            let words = ["plan", "auto.toml", "--set", &set, "--set", &format];
            let refused = workplace.run(words);
            assert_ne!(refused.status, Some(0), "{file}");
            let words: Vec<&str> = refused
                .stderr
                .split_whitespace()
                .filter(|word| *word != "│")
                .collect();
            assert!(words.join(" ").contains(said), "{file}: {}", refused.stderr);
        }
        let refused = workplace.run(["data", "stats", file]);
        assert_eq!(refused.status, Some(ROWS), "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{file}: {}", refused.stderr);
    }
    // What the message says to do makes rows of it.
    let refused = workplace.run(["data", "stats", "table.csv"]).stderr;
    let command = refused.split('`').nth(1).unwrap();
    let made = std::process::Command::new("sh")
        .args(["-c", command])
        .current_dir(workplace.folder())
        .status()
        .unwrap();
    assert!(made.success(), "{command}");
    assert_eq!(
        workplace.read("rows.jsonl"),
        "{\"instruction\": \"x\", \"output\": \"y\"}\n"
    );
}

/// `inspect` shows a row of which nothing is learned, and ends as training does.
#[test]
fn a_row_of_which_nothing_is_learned_is_shown_and_refused() {
    let turns = json!([
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": "Low.", "train": false},
    ]);
    let rows = format!("{}\n", json!({"messages": turns}));
    let workplace = workplace(&rows);
    let words = ["inspect", "auto.toml", "--row", "rows.jsonl:1"];
    let shown = workplace.run(words);
    assert_eq!(shown.status, Some(ROWS), "{}", shown.stderr);
    assert!(shown.stdout.contains("0 learned"), "{}", shown.stdout);
    assert!(
        shown
            .stderr
            .contains("rows.jsonl:1: no token of the row would be learned"),
        "{}",
        shown.stderr
    );
}
