//! Runs each command once, in the order in which a user runs them: from a first config to an
//! exported adapter.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::model;
use crate::workplace::{CommandOutput, Workplace, parse_lines, tooltune};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The subcommands that the help of a command lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listed
        .take_while(|line| !line.is_empty())
        // A description may continue on the next line.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .map(str::to_string)
        .collect()
}

#[test]
fn completions_and_manual_pages_cover_every_command() {
    let workplace = Workplace::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = workplace.run(["completions", shell]).success();
        for word in ["inspect", "save_total_limit", "--checkpoint", "threads"] {
            let word = word.trim_start_matches("--");
            // Config settings are not options of the command line.
            assert_eq!(
                script.contains(word),
                word != "save_total_limit",
                "{shell}: {word}"
            );
        }
    }
    assert_eq!(workplace.run(["completions", "cmd"]).status, Some(2));
    // Manual pages of an earlier version are replaced.
    for _ in 0..2 {
        let output = workplace.run(["man", "share/man1"]).success();
        assert!(output.contains("pages in share/man1"), "{output}");
    }
    let page = |name: &str| workplace.read(&format!("share/man1/{name}"));
    assert!(page("tooltune.1").contains("tooltune\\-train(1)"));
    let train = page("tooltune-train.1");
    assert!(
        train.contains("\\-\\-resume") && train.contains("tooltune train my.toml"),
        "{train}"
    );
    assert!(page("tooltune-data-synth-slot.1").contains("\\-\\-rows"));
    let n_pages = std::fs::read_dir(workplace.path("share/man1"))
        .unwrap()
        .count();
    assert!(n_pages > 20, "{n_pages} pages");
}

#[test]
fn only_commands_that_run_a_model_have_device_options() {
    let workplace = Workplace::new();
    for verb in ["init", "compare", "export", "schema"] {
        let answer = workplace.run([verb, "--threads", "2"]);
        assert_eq!(answer.status, Some(2), "{verb}: {}", answer.stderr);
        assert!(
            answer.stderr.contains("--threads"),
            "{verb}: {}",
            answer.stderr
        );
    }
}

#[test]
fn every_command_and_option_has_help() {
    let workplace = Workplace::new();
    let mut open: Vec<Vec<String>> = vec![Vec::new()];
    let mut n_leaves = 0;
    while let Some(path) = open.pop() {
        let words = path.iter().map(String::as_str).chain(["--help"]);
        let help = workplace.run(words).success();
        assert!(help.contains("Usage: tooltune"), "{path:?}: {help}");
        let inner = subcommands(&help);
        n_leaves += usize::from(inner.is_empty());
        open.extend(inner.into_iter().map(|verb| {
            let mut longer = path.clone();
            longer.push(verb);
            longer
        }));
        // Long help puts a description below its option, short help next to it.
        let rows: Vec<&str> = help.lines().collect();
        for pair in rows
            .windows(2)
            .filter(|pair| pair[0].trim_start().starts_with("--"))
        {
            let option = pair[0].trim_start();
            let is_explained = option.contains("  ") || !pair[1].trim().is_empty();
            assert!(is_explained, "{path:?}: {option} has no help");
        }
    }
    assert!(n_leaves >= 12, "only {n_leaves} verbs found");
}

#[test]
fn a_config_from_init_only_lacks_its_files() {
    let workplace = Workplace::new();
    for preset in ["slot", "sft", "goat"] {
        let file = format!("{preset}.toml");
        workplace
            .run(["init", "--preset", preset, "--output", &file])
            .success();
        let printed = workplace.run(["init", "--preset", preset]).success();
        assert!(printed.contains("learning_rate"), "{printed}");
        for verb in ["plan", "inspect", "train"] {
            let answer = workplace.run([verb, &file]);
            assert_eq!(answer.status, Some(2), "{}", answer.stderr);
            let complaints: Vec<&str> = answer
                .stderr
                .lines()
                .filter(|line| line.contains('×'))
                .collect();
            assert!(complaints.len() >= 3, "{}", answer.stderr);
            for complaint in complaints {
                assert!(complaint.contains("which does not exist"), "{complaint}");
            }
        }
    }
}

#[test]
fn inspect_marks_only_the_gold_as_supervised() {
    let workplace = Workplace::new();
    let city = json!({"type": "object", "properties": {"zip": {}, "name": {}}});
    let schema = json!({
        "type": "object",
        "properties": {"guests": {}, "price": {}, "open": {}, "city": city, "tags": {}},
    });
    let gold = json!({
        "tags": ["a", "b"],
        "city": {"name": "York \"new\"", "zip": null},
        "open": true,
        "price": 12.0,
        "guests": 3,
    });
    let row = json!({"input_text": "A day.", "json_schema": schema, "gold": gold});
    workplace.write("train.jsonl", row.to_string());
    let supervised = "{\"guests\": 3, \"price\": 12.0, \"open\": true, \"city\": {\"zip\": null, \
                   \"name\": \"York \\\"new\\\"\"}, \"tags\": [\"a\", \"b\"]}<|im_end|>";
    let output = workplace.run(["inspect", "config.toml", "--format", "json", "-n", "1"]);
    let output = parse_lines(&output.success());
    assert_eq!(output.len(), 1);
    assert_eq!(output[0]["id"], "train.jsonl:1");
    let tokens = output[0]["tokens"].as_array().expect("tokens");
    let text_where = |is_supervised: bool| -> String {
        tokens
            .iter()
            .filter(|token| (token["weight"] != json!(0.0)) == is_supervised)
            .map(|token| token["text"].as_str().expect("a text"))
            .collect()
    };
    assert_eq!(text_where(true), supervised);
    let context = text_where(false);
    assert!(
        context.starts_with("<|im_start|>user\n") && context.contains("A day."),
        "{context}"
    );
    let text = workplace
        .run(["inspect", "config.toml", "-n", "1"])
        .success();
    assert!(text.contains("train.jsonl:1"), "{text}");
}

/// The tensors in the header of a safetensors file.
fn tensors(workplace: &Workplace, name: &str) -> Value {
    let bytes = std::fs::read(workplace.path(name)).unwrap();
    let (length, payload) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    serde_json::from_slice(&payload[..length]).unwrap()
}

#[test]
fn select_can_rank_checkpoints_by_a_new_metric() {
    let workplace = Workplace::new();
    let train = "train config.toml --set eval.suites=[] --set eval.metric_for_best_model=loss";
    workplace.run(train.split(' ')).success();
    let select = |more: &str| workplace.run(format!("select run {more}").split(' '));
    let unknown = select("--metric slot.mean-0.1*loss");
    assert_eq!(unknown.status, Some(2));
    assert!(unknown.stderr.contains("--evaluate"), "{}", unknown.stderr);

    let measured = select("--metric slot.mean-0.1*loss --evaluate --set eval.suites=[\"slot\"]");
    assert!(
        measured.stderr.contains("evaluating run/checkpoint-000004"),
        "{}",
        measured.stderr
    );
    // The line that reports the old BEST differs each time; the ranking is the same.
    let ranking = |answer: CommandOutput| -> Vec<String> {
        let output = answer.success();
        let lines = output
            .lines()
            .filter(|line| line.contains("  run/checkpoint-"));
        lines.map(str::to_owned).collect()
    };
    let ranked = ranking(measured);
    assert_eq!(ranked.len(), 3, "{ranked:?}");
    let best: Value = parse(&workplace.read("run/BEST"));
    assert_eq!(best["metric"], "slot.mean-0.1*loss");
    // The repeated measurement gives the same result.
    let lines = workplace.read("run/metrics.jsonl");
    let then = lines
        .lines()
        .map(parse)
        .find(|line| line["step"] == 4 && line["eval/loss"].is_number());
    let now = parse(&workplace.read("run/selection/checkpoint-000004/values.json"));
    let name = "eval/loss";
    assert_eq!(
        now["metrics"][&name[5..]],
        then.expect("an evaluation after the last step")[name]
    );
    assert!(now["metrics"]["loss"].as_f64().unwrap() > 0.0, "{now}");
    // The same settings are not evaluated twice.
    let again = select("--metric slot.mean-0.1*loss --evaluate --set eval.suites=[\"slot\"]");
    assert!(!again.stderr.contains("evaluating"), "{}", again.stderr);
    assert_eq!(ranking(again), ranked);
    // Other rows in the same file give other values.
    let rows = workplace.read("dev.jsonl");
    workplace.write("dev.jsonl", format!("{}\n", rows.lines().next().unwrap()));
    let shorter = select("--metric slot.mean-0.1*loss --evaluate --set eval.suites=[\"slot\"]");
    assert_eq!(
        shorter.stderr.matches("evaluating").count(),
        3,
        "{}",
        shorter.stderr
    );
    let foreign = select("--metric nestful.full --evaluate");
    assert_eq!(foreign.status, Some(2));
    assert!(
        foreign.stderr.contains("no suite of this config measures"),
        "{}",
        foreign.stderr
    );
}

#[test]
fn a_run_is_trained_evaluated_selected_and_exported() {
    let workplace = Workplace::new();
    let run = |line: &str| workplace.run(line.split(' '));
    let plan = parse(&run("plan config.toml --format json").success());
    assert!(plan.is_object(), "{plan}");
    let trained = run("train config.toml").success();
    assert!(trained.contains("4 steps done"), "{trained}");
    evaluate(&workplace);

    let before = workplace.read("run/BEST");
    let dry = run("select run --metric loss --lower-is-better --dry-run").success();
    assert!(
        dry.contains("BEST was run/checkpoint-")
            && dry.contains("BEST would become run/checkpoint-000004"),
        "{dry}"
    );
    assert_eq!(workplace.read("run/BEST"), before);
    let selected = run("select run --metric loss").success();
    assert!(
        selected.contains("BEST is now run/checkpoint-000004"),
        "{selected}"
    );
    let selected = run("select run --metric slot.exact_match").success();
    assert!(
        selected.contains("BEST was run/checkpoint-000004 (loss")
            && selected.contains("BEST remains run/checkpoint-000004"),
        "{selected}"
    );
    let answer = run("select run --metric slot.maen");
    assert_eq!(answer.status, Some(2));
    assert!(answer.stderr.contains("slot.mean"), "{}", answer.stderr);

    run("export run --to peft --checkpoint last --output plain").success();
    run("export run --to peft --checkpoint last --neutral --output neutral").success();
    let config = |adapter: &str| parse(&workplace.read(&format!("{adapter}/adapter_config.json")));
    let (plain, neutral) = (config("plain"), config("neutral"));
    assert_eq!(plain["peft_type"], "LORA");
    assert_eq!((&plain["r"], &plain["lora_alpha"]), (&json!(2), &json!(4)));
    assert_eq!(
        (&neutral["r"], &neutral["lora_alpha"]),
        (&json!(2), &json!(2))
    );
    let weights =
        |adapter: &str| tensors(&workplace, &format!("{adapter}/adapter_model.safetensors"));
    let names = weights("plain");
    // Two blocks of seven linear maps, A and B of each.
    let n_tensors = names
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| name.ends_with("weight"))
        .count();
    assert_eq!(n_tensors, 28, "{names}");

    run("verify run --checkpoint last -n 2 --logits logits.safetensors").success();
    let logits = tensors(&workplace, "logits.safetensors");
    for prompt in ["prompt0", "prompt1"] {
        let n_tokens = &logits[format!("{prompt}.input_ids")]["shape"][0];
        assert_eq!(
            logits[format!("{prompt}.logits")]["shape"],
            json!([n_tokens, 1024])
        );
    }
}

/// Evaluates the base model and the best checkpoint, and scores their saved predictions again.
fn evaluate(workplace: &Workplace) {
    let run = |line: &str| workplace.run(line.split(' '));
    for checkpoint in ["base", "best"] {
        let table = run(&format!(
            "eval run --checkpoint {checkpoint} --output {checkpoint}"
        ));
        let table = table.success();
        assert!(table.contains("slot.schema_accuracy"), "{table}");
        let metrics = parse(&workplace.read(&format!("{checkpoint}/metrics.json")));
        assert_eq!(metrics["n"], 3);
        let predictions = parse_lines(&workplace.read(&format!("{checkpoint}/predictions.jsonl")));
        let ids: Vec<&Value> = predictions
            .iter()
            .map(|prediction| &prediction["id"])
            .collect();
        assert_eq!(ids, ["dev.jsonl:1", "dev.jsonl:2", "dev.jsonl:3"]);
    }
    let perfect: Vec<String> = parse_lines(&workplace.read("dev.jsonl"))
        .iter()
        .enumerate()
        .map(|(i, row)| {
            let id = format!("dev.jsonl:{}", i + 1);
            json!({"id": id, "prediction": row["gold"].to_string()}).to_string()
        })
        .collect();
    workplace.write("perfect.jsonl", perfect.join("\n"));
    let compared = run("eval run --predictions perfect.jsonl --compare base/metrics.json");
    let compared = compared.success();
    let gain = compared
        .lines()
        .find(|line| line.starts_with("| slot.exact_match |"))
        .unwrap();
    assert!(gain.ends_with("| +100.0 |"), "{compared}");
}

#[test]
fn score_lists_its_operations_and_scores_lines_in_order() {
    let workplace = Workplace::new();
    let operations = workplace.run(["score", "--ops"]).success();
    for operation in ["slot.parse", "slot.schema", "slot.content", "slot.dataset"] {
        assert!(
            operations.lines().any(|line| line == operation),
            "{operations}"
        );
    }
    let input = json!({"raw": "{\"n\": 1}", "json_schema": {"required": ["n"]}});
    let first = json!({"id": "a", "op": "slot.schema", "input": input});
    let input = json!({"raw": "{\"n\": \"one\"}", "gold": {"n": "one"}});
    let third = json!({"id": "c", "op": "slot.content", "input": input});
    let mut command = tooltune();
    let encoder = model("all-minilm-l6-v2");
    command.arg("score").arg("--encoder").arg(encoder);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text = format!("{first}\n{{\"id\": \"b\", \"op\":\n{third}\n");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("1 of 3 lines"), "{errors}");
    let answers = parse_lines(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0], json!({"id": "a", "value": true}));
    assert!(
        answers[1]["error"].is_object() || answers[1]["error"].is_string(),
        "{}",
        answers[1]
    );
    assert_eq!(answers[2], json!({"id": "c", "value": [1.0, 1.0, 1.0]}));
}

#[test]
fn nothing_to_score_is_an_error() {
    let workplace = Workplace::new();
    workplace.write("empty.jsonl", "");
    let from_file = workplace.run(["score", "empty.jsonl"]);
    let mut command = tooltune();
    let output = command.arg("score").stdin(Stdio::null()).output().unwrap();
    let from_stdin = String::from_utf8_lossy(&output.stderr);
    assert_eq!((from_file.status, output.status.code()), (Some(3), Some(3)));
    for (message, input) in [
        (from_file.stderr.as_str(), "empty.jsonl"),
        (&from_stdin, "standard input"),
    ] {
        let expected = format!("{input}: no lines to score; write one JSON object per line");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn synthetic_rows_depend_only_on_the_seed_and_splits_share_no_family() {
    let workplace = Workplace::new();
    let rows = |split: &str, seed: &str| {
        let line = format!("data synth slot --rows 200 --split {split} --seed {seed}");
        workplace.run(line.split(' ')).success()
    };
    assert_eq!(rows("train", "3"), rows("train", "3"));
    assert_ne!(rows("train", "3"), rows("train", "4"));
    let families = ["train", "dev", "test"].map(|split| -> BTreeSet<String> {
        let rows = parse_lines(&rows(split, "3"));
        let family = |row: &Value| {
            row["metadata"]["family"]
                .as_str()
                .expect("a family")
                .to_string()
        };
        rows.iter().map(family).collect()
    });
    for (i, some) in families.iter().enumerate() {
        assert!(!some.is_empty());
        for others in &families[i + 1..] {
            assert!(some.is_disjoint(others), "{some:?} and {others:?}");
        }
    }
    workplace.write("rows.jsonl", rows("test", "3"));
    let measures = workplace.run(["data", "stats", "rows.jsonl"]).success();
    assert!(
        measures.contains("200 rows") && measures.contains("schema_complexity"),
        "{measures}"
    );
}

#[test]
fn schema_prints_json_that_describes_every_table_of_a_config() {
    let workplace = Workplace::new();
    let schema = parse(&workplace.run(["schema"]).success());
    let config = workplace.read("config.toml");
    let tables = config
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    for table in tables {
        assert!(
            schema["properties"][table].is_object(),
            "{table} has no description"
        );
    }
    assert_eq!(schema["additionalProperties"], json!(false));
}

#[test]
fn a_run_without_an_update_is_reported_at_its_end_and_in_evaluations() {
    let workplace = Workplace::new();
    // The change is too small to change a token.
    let train = "train config.toml --set train.learning_rate=1e-12";
    let output = workplace.run(train.split(' ')).success();
    for part in [
        "no checkpoint was better than the untrained model, whose slot.mean is",
        "BEST is run/checkpoint-000000",
        "--checkpoint last (run/checkpoint-000004)",
    ] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
    let untrained = "run/checkpoint-000000 (step 0, best by slot.mean, untrained model)";
    for (arguments, evaluated) in [
        ("eval run", untrained),
        (
            "eval run --checkpoint last",
            "run/checkpoint-000004 (step 4, last)",
        ),
    ] {
        let answer = workplace.run(arguments.split(' '));
        let stderr = &answer.stderr;
        assert!(
            stderr.contains(&format!("evaluating {evaluated}")),
            "{stderr}"
        );
        answer.success();
    }
}

#[test]
fn rows_with_tools_use_the_tool_template_of_the_model() {
    let workplace = Workplace::new();
    let model = workplace.copy_model("model");
    let additional = model.join("additional_chat_templates");
    std::fs::create_dir(&additional).unwrap();
    let default = std::fs::read_to_string(model.join("chat_template.jinja")).unwrap();
    let tool_use = format!("{{{{- tools | tojson }}}}\n{default}");
    std::fs::write(additional.join("tool_use.jinja"), tool_use).unwrap();
    let turns = json!([
        {"role": "user", "content": "Tide?"}, {"role": "assistant", "content": "Low."},
    ]);
    let with_tools = json!({"messages": turns, "tools": [{"name": "tide"}]});
    let rows = [with_tools, json!({"messages": turns})].map(|row| row.to_string());
    workplace.write("chats.jsonl", rows.join("\n"));
    let chats = "inspect config.toml --format json -n 2 --set data.format=messages \
                 --set data.train=[\"chats.jsonl\"] --set data.eval=[] --set eval.suites=[] \
                 --set eval.metric_for_best_model=loss --set eval.eval_strategy=no --set model.model_name_or_path=\"model\"";
    let output = parse_lines(&workplace.run(chats.split_whitespace()).success());
    let texts: Vec<String> = output
        .iter()
        .map(|row| {
            let tokens = row["tokens"].as_array().expect("tokens").iter();
            tokens
                .map(|token| token["text"].as_str().expect("a text"))
                .collect()
        })
        .collect();
    assert!(texts[0].starts_with("[{\"name\": \"tide\"}]"), "{texts:?}");
    assert!(texts[1].starts_with("<|im_start|>user"), "{texts:?}");
}
