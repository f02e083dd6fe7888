//! Row files in every format, held-out rows, weights, columns, and the cache of examples.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::workplace::{CommandOutput, Workplace, put_begin_token, tooltune};

/// Runs a command with a separate cache, for tests that inspect the cache.
fn run_with_cache(workplace: &Workplace, words: &str) -> CommandOutput {
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .env("TOOLTUNE_CACHE", workplace.path("cache"))
        // If rows are prepared again, a warning is printed.
        .env("RUST_LOG", "warn")
        .args(words.split_whitespace());
    CommandOutput::from_command(&mut command)
}

/// The cached example sets of a workplace.
fn sets(workplace: &Workplace) -> Vec<String> {
    let names = fs::read_dir(workplace.path("cache/examples"))
        .into_iter()
        .flatten();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The metrics of a run.
fn metrics(workplace: &Workplace, run: &str) -> String {
    workplace.read(&format!("{run}/metrics.jsonl"))
}

/// Invariant: The file format changes no row, and every error names the file and the row.
#[test]
fn every_file_format_trains_the_same_adapter() {
    let workplace = Workplace::new();
    let expected = {
        workplace.run("train config.toml".split(' ')).success();
        metrics(&workplace, "run")
    };
    for name in ["a.json", "b.parquet", "c.arrow", "d.jsonl.gz", "e.json.zst"] {
        let words = format!("data convert train.jsonl --output {name}");
        let output = workplace.run(words.split(' ')).success();
        assert!(
            output.starts_with(&format!("24 rows in {name}\n")),
            "{output}"
        );
        let words = format!(
            "train config.toml --set data.train=[\"{name}\"] --set data.format=auto --set \
             train.output_dir=run-{name}"
        );
        workplace.run(words.split_whitespace()).success();
        assert_eq!(
            metrics(&workplace, &format!("run-{name}")),
            expected,
            "{name}"
        );
    }
    let again = workplace.run("data convert train.jsonl --output a.json".split(' '));
    assert!(again.stderr.contains("exists"), "{}", again.stderr);
    let unknown = workplace.run("data convert train.jsonl --output a.csv".split(' '));
    assert_eq!(unknown.status, Some(2));
    assert!(
        unknown.stderr.contains("end it with .jsonl"),
        "{}",
        unknown.stderr
    );
}

/// Invariant: The file format changes no row, and every error names the file and the row.
#[test]
fn errors_in_any_file_format_name_file_and_row() {
    let workplace = Workplace::new();
    let mut rows: Vec<Value> = workplace
        .read("train.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    rows[6].as_object_mut().unwrap().remove("gold");
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    workplace.write("bad.jsonl", text);
    for name in [
        "bad.jsonl",
        "bad.json",
        "bad.parquet",
        "bad.arrow",
        "bad.jsonl.zst",
    ] {
        if name != "bad.jsonl" {
            let words = format!("data convert bad.jsonl --output {name}");
            workplace.run(words.split(' ')).success();
        }
        let words = format!("plan config.toml --set data.train=[\"{name}\"]");
        let answer = workplace.run(words.split_whitespace());
        assert_eq!(answer.status, Some(3), "{}", answer.stderr);
        let expected = format!("{name}:7: field \"gold\" is missing");
        assert!(answer.stderr.contains(&expected), "{}", answer.stderr);
    }
}

#[test]
fn columns_weights_and_a_limit_select_the_rows() {
    let workplace = Workplace::new();
    let row = |i: usize| json!({"question": format!("What is {i}?"), "answer": i.to_string()});
    let rows: String = (0..10).map(|i| format!("{}\n", row(i))).collect();
    workplace.write("a.jsonl", &rows);
    workplace.write("b.jsonl", &rows);
    let full_config = crate::workplace::config();
    let (model, _) = full_config.split_once("[data]").unwrap();
    workplace.write(
        "plain.toml",
        format!(
            "{model}[data]\ncolumns = {{ prompt = \"question\", completion = \"answer\" }}\n\
             train = [\"a.jsonl\", {{ path = \"b.jsonl\", weight = 0.5 }}]\n[train]\n\
             output_dir = \"weighted\"\nnum_train_epochs = 1\nper_device_train_batch_size = 2\n\
             [eval]\neval_strategy = \"no\"\n"
        ),
    );
    let plan = |words: &str| {
        let words = format!("plan plain.toml --format json {words}");
        workplace.run(words.split_whitespace())
    };
    let planned = |words: &str, key: &str| -> Value {
        let text = plan(words).success();
        serde_json::from_str::<Value>(&text).unwrap()[key].clone()
    };
    assert_eq!(planned("--set data.train=[\"a.jsonl\"]", "examples"), 10);
    assert_eq!(planned("--set data.max_samples=3", "examples"), 6);
    // An epoch with weights: 10 + 5 rows, two per step.
    assert_eq!(planned("", "steps"), 8);
    // A row with weight 0.1 occurs once in ten epochs, and not in this one.
    let few = "--set data.train=[\"a.jsonl\",{path=\"b.jsonl\",weight=0.01}]";
    let plan_output = planned(
        &format!("{few} --set train.num_train_epochs=10"),
        "weighted_rows",
    );
    assert_eq!(plan_output[0]["file"], "b.jsonl");
    assert_eq!(
        (&plan_output[0]["n_examples"], &plan_output[0]["n_seen"]),
        (&json!(10), &json!(1))
    );
    let refused = plan(few);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let expected = "b.jsonl: weight = 0.01 uses none of the file's 10 rows";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);

    let misspelt = plan("--set data.columns.promt=\"question\"");
    assert!(
        misspelt
            .stderr
            .contains("lacks prompt, did you mean \"promt\"?"),
        "{}",
        misspelt.stderr
    );
    workplace.run(["train", "plain.toml"]).success();
    let config = workplace.read("weighted/config.resolved.toml");
    assert!(config.contains("weight = 0.5"), "{config}");
    assert!(!config.contains("weight = 1"), "{config}");
}

/// Invariant: Held-out rows are never trained on.
#[test]
fn held_out_rows_are_evaluated_and_never_trained() {
    let workplace = Workplace::with_rows("60");
    workplace.write("config.toml", crate::workplace::config());
    let words = "--set data.eval=[] --set data.validation_split=0.2 --set eval.max_samples=100";
    let train = format!("train config.toml {words}");
    workplace.run(train.split_whitespace()).success();
    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    let split = &lock["validation"];
    let (learned, n_held_out) = (
        split["n_training"].as_u64().unwrap(),
        split["n_validation"].as_u64().unwrap(),
    );
    assert_eq!(learned + n_held_out, 60);
    assert!((4..25).contains(&n_held_out), "{n_held_out}");
    assert_eq!(split["validation_sha256"].as_str().unwrap().len(), 64);

    let eval = workplace
        .run("eval run --output scored".split(' '))
        .success();
    let predictions = workplace.read("scored/predictions.jsonl");
    assert_eq!(predictions.lines().count() as u64, n_held_out, "{eval}");
    let inspected = workplace
        .run(format!("inspect config.toml --rows 100 --format json {words}").split_whitespace());
    let train_ids: Vec<String> = inspected
        .success()
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(train_ids.len() as u64, learned);
    for line in predictions.lines() {
        let id = serde_json::from_str::<Value>(line).unwrap()["id"].clone();
        assert!(
            !train_ids.iter().any(|learned| id == learned.as_str()),
            "{id}"
        );
    }
    // Explicit files take precedence over the split.
    let other = workplace.run("eval run --data dev.jsonl --output other".split(' '));
    other.success();
    assert_eq!(workplace.read("other/predictions.jsonl").lines().count(), 3);

    let both = workplace.run("plan config.toml --set data.validation_split=0.2".split(' '));
    assert!(
        both.stderr.contains("`data.eval` lists files"),
        "{}",
        both.stderr
    );
    let none = format!(
        "plan config.toml {words} --set data.validation_split=0.000001 --set train.output_dir=third"
    );
    let none = workplace.run(none.split_whitespace());
    assert!(
        none.stderr.contains("holds out none of 60 rows"),
        "{}",
        none.stderr
    );
    let all = format!("plan config.toml {words} --set data.validation_split=0.999999");
    let all = format!("{all} --set train.output_dir=fourth");
    let all = workplace.run(all.split_whitespace());
    assert!(
        all.stderr.contains("holds out all 60 rows"),
        "{}",
        all.stderr
    );
}

/// Invariant: A cached example set is complete and serves only the rows, settings and program that
/// made it.
#[test]
fn prepared_examples_are_reused_and_never_stale() {
    let workplace = Workplace::new();
    let plan = |words: &str| {
        run_with_cache(
            &workplace,
            &format!("plan config.toml --format json {words}"),
        )
    };
    let first = plan("");
    assert!(!first.stderr.contains("from the cache"), "{}", first.stderr);
    let text = first.success();
    assert_eq!(sets(&workplace).len(), 1);
    let second = plan("");
    assert!(
        second
            .stderr
            .contains("24 prepared rows are loaded from the cache"),
        "{}",
        second.stderr
    );
    let data = |text: &str| {
        let plan: Value = serde_json::from_str(text).unwrap();
        ["rows", "examples", "tokens", "trained_tokens"].map(|key| plan[key].clone())
    };
    assert_eq!(data(&second.success()), data(&text));

    // Changes of rows, prompts, tokens or weights change the key, and nothing else does.
    for same in [
        "--set train.learning_rate=0.5",
        "--set data.packing=block-diagonal --set train.group_by_length=false",
    ] {
        assert!(plan(same).stderr.contains("from the cache"), "{same}");
    }
    for (n, other) in [
        "--set data.max_length=4095",
        "--set data.slot_prompt=paper",
        "--set mask.train_on=all",
        "--set data.system=Hello",
        "--set data.max_samples=23",
    ]
    .into_iter()
    .enumerate()
    {
        let answer = plan(other);
        assert!(
            !answer.stderr.contains("from the cache"),
            "{other}: {}",
            answer.stderr
        );
        assert_eq!(answer.status, Some(0), "{other}: {}", answer.stderr);
        assert_eq!(sets(&workplace).len(), n + 2, "{other}");
    }
    // The cached counts include the special tokens that are added to plain text.
    let model = workplace.copy_model("model");
    let own = "--set model.model_name_or_path=model";
    assert!(plan(own).stderr.contains("from the cache"));
    put_begin_token(&model);
    let answer = plan(own);
    assert!(
        !answer.stderr.contains("from the cache"),
        "{}",
        answer.stderr
    );
    let rows = workplace.read("train.jsonl");
    let times = fs::metadata(workplace.path("train.jsonl"))
        .unwrap()
        .modified()
        .unwrap();
    let changed = rows.replacen('a', "b", 1);
    assert_eq!(changed.len(), rows.len());
    workplace.write("train.jsonl", changed);
    let file = fs::File::options()
        .append(true)
        .open(workplace.path("train.jsonl"))
        .unwrap();
    file.set_modified(times).unwrap();
    assert!(!plan("").stderr.contains("from the cache"));

    // A damaged set is detected and prepared again: one flipped bit anywhere, or a missing byte.
    let good = data(&plan("").success());
    let cut = |bytes: &mut Vec<u8>| _ = bytes.remove(0);
    let middle = |bytes: &mut Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let last = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [Damage<'_>; 3] = [&cut, &middle, &last];
    for name in ["examples", "index", "account.json"] {
        for damage in damages {
            for set in sets(&workplace) {
                let file = workplace.path(&format!("cache/examples/{set}/{name}"));
                let mut bytes = fs::read(&file).unwrap();
                damage(&mut bytes);
                fs::write(&file, bytes).unwrap();
            }
            let answer = plan("");
            let stderr = &answer.stderr;
            assert!(!stderr.contains("from the cache"), "{name}: {stderr}");
            assert!(stderr.contains("prepared again"), "{name}: {stderr}");
            assert_eq!(data(&answer.success()), good, "{name}");
        }
    }

    let output = run_with_cache(&workplace, "data cache").success();
    assert!(
        output.contains(&format!("contains {} sets", sets(&workplace).len())),
        "{output}"
    );
    let output = run_with_cache(&workplace, "data cache --purge").success();
    assert!(output.contains("removed"), "{output}");
    assert_eq!(sets(&workplace), [""; 0]);
}

#[test]
fn an_unwritable_cache_folder_does_not_stop_the_run() {
    let workplace = Workplace::new();
    workplace.write("cache", "no folder");
    let answer = run_with_cache(&workplace, "train config.toml");
    answer.success();
    assert!(workplace.path("run/LATEST").exists());
}

/// Invariant: A cached example set is complete and serves only the rows, settings and program that
/// made it.
#[test]
fn concurrent_and_killed_processes_leave_only_complete_cache_entries() {
    let workplace = Workplace::with_rows("3000");
    workplace.write("config.toml", crate::workplace::config());
    let start = || {
        let mut command = tooltune();
        command
            .current_dir(workplace.folder())
            .env("TOOLTUNE_CACHE", workplace.path("cache"))
            .args(["plan", "config.toml", "--format", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let started = Instant::now();
    let mut process = start();
    assert!(process.wait().unwrap().success());
    let took = started.elapsed();
    run_with_cache(&workplace, "data cache --purge").success();
    for part in 1..8 {
        let mut child = start();
        std::thread::sleep(took * part / 8);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let children = [start(), start()];
    let answers = children.map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["examples"].clone()
    });
    assert_eq!(answers, [json!(3000), json!(3000)]);
    let sets = sets(&workplace);
    assert_eq!(sets.len(), 1, "{sets:?}");
    assert!(!sets[0].starts_with('.'));
    assert!(took > Duration::ZERO);
}

#[test]
fn a_conversion_stopped_by_a_limit_leaves_no_file() {
    let workplace = Workplace::new();
    let convert = |from: &str, to: &str| workplace.run(["data", "convert", from, "--output", to]);
    convert("train.jsonl", "rows.jsonl.gz").success();
    // The rows are followed by more empty gzip members than the limit GZIP_MEMBERS.
    let mut bytes = std::fs::read(workplace.path("rows.jsonl.gz")).unwrap();
    let empty = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    bytes.extend(empty.repeat(30_000));
    workplace.write("rows.jsonl.gz", bytes);
    std::fs::create_dir(workplace.path("out")).unwrap();
    for name in [
        "out/rows.jsonl",
        "out/rows.json",
        "out/rows.parquet",
        "out/rows.arrow",
    ] {
        let refused = convert("rows.jsonl.gz", name);
        assert_eq!(refused.status, Some(3), "{name}: {}", refused.stderr);
        assert!(
            refused.stderr.contains("GZIP_MEMBERS"),
            "{}",
            refused.stderr
        );
        let left: Vec<_> = std::fs::read_dir(workplace.path("out")).unwrap().collect();
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}
