//! `compare` through the program: evaluations of every suite, paired by their samples.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, assert_refused};
use crate::workplace::{Workplace, json_lines};

/// A sample of the suite nestful that computes its answer, or cannot be parsed.
fn sequence(id: &str, is_right: bool) -> Value {
    let win = json!({"scored": {"official": is_right, "strict": is_right}});
    json!({"suite": "nestful", "type": "sequence", "id": id, "gold": "[]", "prediction": "", "score": {"parse_error": !is_right,
        "n_pred": 2 * usize::from(is_right), "partial": 0.5, "full": is_right, "win": win,
        "gold_dag": {"n_calls": 2, "depth": 1}}})
}

fn answer(uid: &str, is_right: bool) -> Value {
    json!({"suite": "toolqa", "type": "answer", "id": uid, "task_type": "FILTERING",
        "prediction": "", "answer": null,
        "status": "answered", "exact_match": is_right, "exact_match_strict": is_right,
        "contains": true, "judged": null})
}

fn outcome(id: &str, is_solved: bool) -> Value {
    json!({"suite": "goat", "type": "loop", "id": id, "query": "?", "outcome": {}, "score": {"sa": 0.5, "ia": 0.5,
        "ia_strict": 0.5, "success": is_solved, "correct_path": true, "delta_len": -2,
        "parse_error": !is_solved}})
}

fn sample(id: &str, is_right: bool) -> Value {
    json!({"suite": "apibank", "type": "loop", "id": id, "score": {"rouge_l": 0.25, "n_gold": 1, "n_pred": 1,
        "n_right": usize::from(is_right), "rouge_l_plain": null, "success": null,
        "parse_error": false}})
}

fn path(id: &str, is_right: bool) -> Value {
    json!({"suite": "restbench", "type": "loop", "id": id, "gold": [], "outcome": {}, "score": {"sa": 0.5, "correct_path": is_right,
        "success": null, "delta_len": 3, "parse_error": false}})
}

/// A retrieval sample whose gold document is ranked first or second.
fn ranking(query: &str, is_first: bool) -> Value {
    let ranked = if is_first { [4, 1, 2] } else { [1, 4, 2] };
    json!({"suite": "retrieval", "type": "ranking", "query": query, "gold": [4], "ranked": ranked})
}

fn completion(id: &str, parses: bool) -> Value {
    let agreement = json!({"precision": 0.5, "recall": 0.5, "f": 0.5});
    json!({"suite": "slot", "type": "completion", "id": id, "prediction": "", "score": {"parses": parses, "schema": false,
        "strict_keys": false, "content": agreement, "exact": agreement, "exact_match": false,
        "gold_depth": 1 + usize::from(parses), "violations": []}})
}

/// Returns the line of a metric. Metrics with the same scores share a line.
fn line_of<'s>(table: &'s str, suite: &str, measure: &str) -> Option<&'s str> {
    let names = |line: &str| -> Option<bool> {
        let cell = line.strip_prefix("| ")?.split(" | ").next()?;
        let keys = cell.strip_prefix(suite)?.strip_prefix('.')?;
        Some(keys.split(" = ").any(|key| key == measure))
    };
    table.lines().find(|line| names(line) == Some(true))
}

#[test]
fn evaluations_of_every_suite_are_compared_and_fewer_errors_are_better() {
    // Results of two systems for the samples `one` and `two`: the second system is better on `one`.
    type Row = fn(&str, bool) -> Value;
    let gain = "| 2 | 0.000 | 0.500 | +0.500 [";
    let cases: [(&str, Row, &str, &[&str]); 7] = [
        (
            "slot",
            completion,
            "parse_rate",
            &["schema_accuracy", "exact_match"],
        ),
        ("goat", outcome, "sr", &["sa", "correct_path"]),
        ("restbench", path, "correct_path", &["sa"]),
        ("apibank", sample, "sample_accuracy", &["rouge_l"]),
        ("nestful", sequence, "win_strict", &["full", "partial"]),
        ("toolqa", answer, "exact_match", &["contains"]),
        ("retrieval", ranking, "recall_at_1", &["mrr_at_10"]),
    ];
    let workplace = Workplace::with_rows("1");
    for (suite, row, measure, others) in cases {
        let names = match suite {
            "retrieval" => ["what is one?", "what is two?"],
            _ => ["one", "two"],
        };
        workplace.write(
            "before.jsonl",
            json_lines(names.map(|name| row(name, false))),
        );
        let after = [row(names[1], false), row(names[0], true)];
        workplace.write("after.jsonl", json_lines(&after));
        let output = workplace
            .run(["compare", "before.jsonl", "after.jsonl"])
            .success();
        let line = line_of(&output, suite, measure);
        let line = line.unwrap_or_else(|| panic!("{suite}: no {measure}: {output}"));
        assert!(line.contains(gain) && line.ends_with("| 1 | 0 |"), "{line}");
        for other in others {
            assert!(
                line_of(&output, suite, other).is_some(),
                "{suite}: {output}"
            );
        }
        let better = match suite {
            "retrieval" => "better: \"what is one?\"",
            _ => "better: one",
        };
        let flips = output
            .lines()
            .find(|line| line.ends_with(better) && line.contains(measure));
        assert!(flips.is_some(), "{output}");
        assert!(output.contains("n is 2: with fewer than 30"), "{output}");
        for no_score in ["gold_depth", "gold_dag", "n_pred", "n_right", "n_tokens"] {
            assert!(!output.contains(no_score), "{suite}: {output}");
        }
        if let "goat" | "nestful" = suite {
            let errors = format!("{suite}.parse_error_rate");
            let start = format!("| {errors} (lower is better) | 2 | 1.000 | 0.500 | -0.500 [");
            let line = output.lines().find(|line| line.starts_with(&start));
            assert!(
                line.is_some_and(|line| line.ends_with("| 1 | 0 |")),
                "{output}"
            );
            assert!(
                output.contains(&format!("{errors}, better: one")),
                "{output}"
            );
            assert!(!output.contains("worse: one"), "{output}");
        }
    }
    // No query is solved in both evaluations, so there are no lengths to compare.
    workplace.write(
        "before.jsonl",
        json_lines(&[outcome("one", true), outcome("two", false)]),
    );
    workplace.write(
        "after.jsonl",
        json_lines(&[outcome("one", false), outcome("two", true)]),
    );
    let answer = workplace.run(["compare", "before.jsonl", "after.jsonl"]);
    assert!(
        answer.stderr.contains("goat.delta_len: no sample"),
        "{}",
        answer.stderr
    );
    assert!(!answer.success().contains("delta_len"));
}

#[test]
fn comparing_checkpoints_of_several_suites_needs_a_suite() {
    let workplace = Workplace::with_rows("1");
    for (folder, is_right) in [("a", false), ("b", true)] {
        std::fs::create_dir(workplace.path(folder)).unwrap();
        for (suite, row) in [
            ("toolqa", answer("one", is_right)),
            ("slot", completion("one", is_right)),
        ] {
            let file = format!("{folder}/eval.{suite}.predictions.jsonl");
            workplace.write(&file, json_lines(&[row]));
        }
    }
    let expected = ["a has evaluations by slot, toolqa", "--suite"];
    assert_refused(&workplace, &["compare", "a", "b"], CONFIG, &expected);
    let expected = ["a contains no predictions.jsonl of nestful"];
    let nestful = ["compare", "a", "b", "--suite", "nestful"];
    assert_refused(&workplace, &nestful, CONFIG, &expected);
    let unknown = ["compare", "a", "b", "--suite", "tools"];
    assert_refused(&workplace, &unknown, CONFIG, &["tools", "toolqa"]);
    let table = workplace
        .run(["compare", "a", "b", "--suite", "toolqa"])
        .success();
    assert!(
        table.contains("| toolqa.exact_match = exact_match_strict | 1 | 0.000 | 1.000 |"),
        "{table}"
    );

    // A folder of an evaluation can be given with or without the suite.
    for folder in ["a", "b"] {
        let own = format!("{folder}/predictions.jsonl");
        workplace.write(&own, json_lines(&[completion("one", folder == "b")]));
    }
    let alone = workplace.run(["compare", "a", "b"]).success();
    let selected = workplace.run(["compare", "a", "b", "--suite", "slot"]);
    assert_eq!(selected.success(), alone);
    let expected = ["a/predictions.jsonl is an evaluation of the suite slot, not of toolqa"];
    let toolqa = ["compare", "a", "b", "--suite", "toolqa"];
    assert_refused(&workplace, &toolqa, CONFIG, &expected);

    let (slot, toolqa) = (
        "a/eval.slot.predictions.jsonl",
        "b/eval.toolqa.predictions.jsonl",
    );
    let expected = [
        "an evaluation of slot",
        "an evaluation of toolqa",
        "of the same suite",
    ];
    assert_refused(&workplace, &["compare", slot, toolqa], CONFIG, &expected);
    let mixed = json_lines(&[completion("one", true), answer("two", true)]);
    workplace.write("mixed.jsonl", mixed);
    let expected = ["mixed.jsonl:2: a line of toolqa follows lines of slot"];
    assert_refused(
        &workplace,
        &["compare", "mixed.jsonl", slot],
        CONFIG,
        &expected,
    );
    workplace.write(
        "bare.jsonl",
        json_lines(&[json!({"id": "one", "prediction": "{}"})]),
    );
    let expected = [
        "bare.jsonl:1: ",
        "has no scores of a known suite",
        "--predictions FILE",
    ];
    assert_refused(
        &workplace,
        &["compare", slot, "bare.jsonl"],
        CONFIG,
        &expected,
    );
    workplace.write("empty.jsonl", "");
    let expected = ["empty.jsonl: no samples"];
    assert_refused(
        &workplace,
        &["compare", slot, "empty.jsonl"],
        CONFIG,
        &expected,
    );
}

#[test]
fn evaluations_are_compared_on_their_common_rows() {
    let workplace = Workplace::with_rows("1");
    let sequences_of = |ids: &[&str]| json_lines(ids.iter().map(|id| completion(id, true)));
    workplace.write("a.jsonl", sequences_of(&["dev:1", "dev:2"]));
    workplace.write("b.jsonl", sequences_of(&["test:1", "test:2"]));
    workplace.write("c.jsonl", sequences_of(&["dev:2", "dev:3", "dev:4"]));
    let expected = [
        "a.jsonl and b.jsonl",
        "no samples in common",
        "\"dev:1\" and \"test:1\"",
    ];
    assert_refused(
        &workplace,
        &["compare", "a.jsonl", "b.jsonl"],
        CONFIG,
        &expected,
    );
    let answer = workplace.run(["compare", "a.jsonl", "c.jsonl"]);
    let expected = "only one evaluation has: 1 of a.jsonl and 2 of c.jsonl";
    assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    assert!(answer.success().contains("| slot.parse_rate | 1 |"));
}

#[test]
fn each_of_several_evaluations_is_compared_with_the_first() {
    let workplace = Workplace::with_rows("1");
    let outcomes_of = |right: [bool; 2]| {
        let rows = [("one", right[0]), ("two", right[1])];
        json_lines(rows.map(|(id, parses)| completion(id, parses)))
    };
    workplace.write("base.jsonl", outcomes_of([false, false]));
    for folder in ["low", "high"] {
        std::fs::create_dir(workplace.path(folder)).unwrap();
    }
    workplace.write("low/predictions.jsonl", outcomes_of([true, false]));
    workplace.write("high/predictions.jsonl", outcomes_of([true, true]));
    let output = workplace
        .run(["compare", "base.jsonl", "low", "high"])
        .success();
    for part in [
        "| metric | evaluation | n | before | after | difference, 95 % | p | better | worse |",
        "| slot.parse_rate | low | 2 | 0.000 | 0.500 | +0.500 [",
        "| slot.parse_rate | high | 2 | 0.000 | 1.000 | +1.000 [",
        "slot.parse_rate, low, better: one",
        "slot.parse_rate, high, better: one, two",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    workplace.write("other.jsonl", json_lines(&[answer("one", true)]));
    let expected = ["an evaluation of slot", "an evaluation of toolqa"];
    let several = ["compare", "base.jsonl", "low", "other.jsonl"];
    assert_refused(&workplace, &several, CONFIG, &expected);
    let alone = ["compare", "base.jsonl"];
    assert_refused(&workplace, &alone, CONFIG, &["2 values required"]);
}

/// A workplace with three runs: `slow`, `fast`, and `run`, whose config is `config.toml`.
fn three_runs() -> Workplace {
    let workplace = Workplace::new();
    for (folder, rate) in [("slow", "1e-4"), ("fast", "3e-3"), ("run", "1e-2")] {
        let sets = [
            format!("train.output_dir={folder}"),
            format!("train.learning_rate={rate}"),
            "checkpoint.save_total_limit=1".to_owned(),
            "eval.metric_for_best_model=loss".to_owned(),
        ];
        let mut arguments = vec!["train", "config.toml"];
        arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
        workplace.run(arguments).success();
    }
    workplace
}

#[test]
fn any_number_of_runs_is_compared_by_folder_or_config() {
    let workplace = three_runs();
    let output = workplace
        .run(["compare", "slow", "fast", "config.toml"])
        .success();
    for part in [
        "| setting | slow | fast | run |",
        "| train.learning_rate | 0.0001 | 0.003 | 0.01 |",
        "| metric | at | slow | fast | run |",
        "| slot: samples |",
        "| slot.mean | step 0 | ",
        "| slot.mean | best | ",
        "| loss | step 0 | ",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    // Different output paths are not listed as differing settings.
    assert!(!output.contains("output_dir"), "{output}");
    let best = |line: &&str| line.starts_with("| slot.schema_accuracy | best |");
    let best = output.lines().find(best).expect("a line");
    assert_eq!(best.matches(" [").count(), 3, "intervals of three: {best}");
    // The evaluation of step 0 exists, although its checkpoint was deleted.
    assert!(!workplace.path("slow/checkpoint-000000").exists());
    let first = output
        .lines()
        .find(|line| line.starts_with("| slot.mean | step 0 |"));
    assert!(!first.expect("a line").contains("–"), "{first:?}");

    workplace
        .run([
            "report",
            "slow",
            "fast",
            "config.toml",
            "--output",
            "page.html",
        ])
        .success();
    let page = workplace.read("page.html");
    for part in [
        "<caption>settings that differ</caption>",
        "<code>train.learning_rate</code>",
        "<span class=\"metric-name\">slot.mean</span>",
        "<dt>LoRA rank</dt>",
        "<dt>Training rows</dt>",
        "class=\"line run2",
        "step 0",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    assert!(!page.contains("n loss rows</th>"));

    let one = ["report", "slow", "fast", "--eval", "slow"];
    assert_refused(
        &workplace,
        &one,
        CONFIG,
        &["--eval only applies to a page of one run"],
    );
    let mixed = ["compare", "slow", "dev.jsonl"];
    assert_refused(
        &workplace,
        &mixed,
        CONFIG,
        &["cannot compare the run slow with dev.jsonl, which is not a run"],
    );
    let command = ["compare", "slow", "fast", "--show", "3"];
    assert_refused(
        &workplace,
        &command,
        CONFIG,
        &["--show only applies to evaluations"],
    );
    let output = workplace
        .run(["compare", "slow", "fast", "--suite", "toolqa"])
        .success();
    assert!(!output.contains("slot.mean"), "{output}");

    // `select` and `report` also accept a config in place of its run.
    let select = [
        "select",
        "config.toml",
        "--metric",
        "slot.mean",
        "--dry-run",
    ];
    let output = workplace.run(select).success();
    assert!(output.contains("run/checkpoint-"), "{output}");
    workplace.run(["report", "config.toml"]).success();
    assert!(workplace.path("run/report.html").exists());
    let config = workplace.read("config.toml");
    workplace.write("untrained.toml", config.replace("\"run\"", "\"nowhere\""));
    let expected = [
        "untrained.toml: its run",
        "nowhere",
        "tooltune train untrained.toml",
    ];
    for verb in [
        &["report", "untrained.toml"][..],
        &["select", "untrained.toml", "--metric", "loss"],
        &["compare", "slow", "untrained.toml"],
    ] {
        assert_refused(&workplace, verb, CONFIG, &expected);
    }
}

#[test]
fn a_report_of_a_chat_run_has_losses_training_rows_and_completions() {
    let workplace = Workplace::new();
    let chat = |n: usize| {
        json!({"messages": [{"role": "user", "content": format!("Is {n} even?")},
            {"role": "assistant", "content": format!("{} is.", 2 * n)}]})
    };
    let chats = [5, 6, 7, 8, 1, 2, 3, 4].map(chat);
    workplace.write("learned.jsonl", json_lines(&chats[..4]));
    workplace.write("chats.jsonl", json_lines(&chats[4..]));
    let sets = [
        "data.format=messages",
        "data.train=[\"learned.jsonl\"]",
        "data.eval=[\"chats.jsonl\"]",
        "eval.suites=[]",
        "eval.metric_for_best_model=loss",
    ];
    let mut arguments = vec!["train", "config.toml"];
    arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
    workplace.run(arguments).success();
    for checkpoint in ["base", "best"] {
        let output = format!("run/eval/{checkpoint}");
        workplace
            .run([
                "eval",
                "run",
                "--checkpoint",
                checkpoint,
                "--output",
                &output,
            ])
            .success();
    }
    let generate = "generate run --max-samples 2 --set eval.max_new_tokens=4 --output";
    workplace
        .run(generate.split(' ').chain(["run/eval/best.jsonl"]))
        .success();
    workplace.run(["report", "run"]).success();
    let page = workplace.read("run/report.html");
    let (_, outcome) = page.split_once("id=\"outcome\"").expect("a section");
    let outcome = outcome.split("</section>").next().expect("its end");
    for part in [
        "<caption>loss, 4 samples</caption>",
        "<dt>Base → best</dt>",
        "loss on 4 samples, eval&#x2f;best",
        ">base</th>",
        ">best</th>",
        "n loss rows: 4",
    ] {
        assert!(outcome.contains(part), "{part} is not in {outcome}");
    }
    for part in [
        "<h4>Training loss</h4>",
        "<h4>Evaluation loss</h4>",
        // The saved losses name the supervised tokens and the text before them.
        "class=\"t supervised\"",
        "Is",
        "<h2 id=\"samples-heading\">",
        "ranked by <span>loss</span>",
        "<h2 id=\"texts-heading\">Generated texts</h2>",
        "chats.jsonl:1",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    workplace.write("run/eval/notes.jsonl", "{\"a\": 1}\n");
    let expected = ["notes.jsonl:1: ", "no \"prompt\" and \"text\""];
    assert_refused(&workplace, &["report", "run"], CONFIG, &expected);
}
