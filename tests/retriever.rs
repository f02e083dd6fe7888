//! Retrievers in every command: trained alone and together with a language model, resumed,
//! evaluated and exported.

use serde_json::Value;
use tooltune::encoder::{EncoderFiles, EncoderOptions, MiniLmEncoder};
use tooltune_suites::SentenceEncoder;

use crate::support::test_device::TestDevice;
use crate::support::{fixture, test_device};
use crate::workplace::{GOAT_DATA, Workplace, json_lines, parse_lines, tiny_model_lora};

/// Tables that keep the checkpoint of every second step.
const KEEP_EVERY_SECOND_STEP: &str = r#"[checkpoint]
save_steps = 2
save_total_limit = 10
[log]
report_to = ["jsonl"]
"#;

fn retriever_config(run: &str, extra: &str) -> String {
    format!(
        r#"device = "{device}"
[retriever]
model_name_or_path = "{encoder}"
train = ["pairs.jsonl"]
eval = ["dev.jsonl"]
documents = "documents.jsonl"
max_steps = 6
per_device_train_batch_size = 8
learning_rate = 1e-2
compute_dtype = "f32"
{extra}
[train]
output_dir = "{run}"
logging_steps = 2
[eval]
eval_steps = 3
{KEEP_EVERY_SECOND_STEP}"#,
        device = TestDevice::from_env(),
        encoder = fixture("retriever/model").display(),
    )
}

fn joint_config(run: &str) -> String {
    format!(
        r#"{lora}{GOAT_DATA}[goat]
documents = "goat/documents.jsonl"
[retriever]
model_name_or_path = "{encoder}"
train = "trajectories"
max_steps = 6
per_device_train_batch_size = 8
learning_rate = 1e-2
hard_negatives = 1
mini_batch_size = 5
symmetric = true
weight_decay = 0.1
[train]
output_dir = "{run}"
max_steps = 4
per_device_train_batch_size = 2
logging_steps = 1
self_distillation_alpha = 0.5
[eval]
eval_steps = 2
suites = ["goat", "retrieval"]
max_samples = 2
max_new_tokens = 4
metric_for_best_model = "0.5*goat.sa + 0.5*retrieval.recall_at_5"
{KEEP_EVERY_SECOND_STEP}"#,
        lora = tiny_model_lora(),
        encoder = fixture("retriever/model").display(),
    )
}

/// A workplace with pairs and their documents.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    let pairs = workplace.write_pairs();
    let documents = pairs
        .iter()
        .map(|pair| serde_json::json!({"document": pair["positive"]}));
    workplace.write("documents.jsonl", json_lines(documents));
    workplace
}

/// Values of a key in the lines that have it.
fn values(lines: &[Value], key: &str) -> Vec<f64> {
    lines.iter().filter_map(|line| line[key].as_f64()).collect()
}

/// The contents of checkpoint files that must not depend on interruptions.
fn contents(workplace: &Workplace, checkpoint: &str, files: &[&str]) -> Vec<Vec<u8>> {
    let read =
        |file: &&str| std::fs::read(workplace.path(&format!("{checkpoint}/{file}"))).unwrap();
    files.iter().map(read).collect()
}

fn remove_checkpoints_after(workplace: &Workplace, run: &str, step: usize) {
    for entry in std::fs::read_dir(workplace.path(run)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let number = name
            .strip_prefix("checkpoint-")
            .and_then(|n| n.parse::<usize>().ok());
        if number.is_some_and(|number| number > step) {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}

const RETRIEVER: [&str; 3] = [
    "retriever.safetensors",
    "retriever_optimizer.safetensors",
    "retriever_state.json",
];

#[test]
fn a_retriever_is_trained_evaluated_selected_and_exported() {
    let workplace = workplace();
    workplace.write(
        "retriever.toml",
        retriever_config("run", "max_seq_length = 20"),
    );
    let output = workplace.run(["train", "retriever.toml"]).success();
    assert!(
        output.contains("18 pairs of 18 queries and 18 documents"),
        "{output}"
    );
    let metrics = parse_lines(&workplace.read("run/metrics.jsonl"));
    let losses = values(&metrics, "retriever/loss");
    assert_eq!(losses.len(), 3, "{metrics:?}");
    assert!(losses[2] < 0.7 * losses[0], "{losses:?}");
    let recalls = values(&metrics, "eval/retrieval.recall_at_5");
    assert_eq!(
        recalls.len(),
        3,
        "evaluations before, during and after training: {metrics:?}"
    );
    assert_eq!(values(&metrics, "step")[0], 0.0);
    assert!(workplace.read("run/BEST").contains("checkpoint-"));

    let arguments = ["eval", "run", "--suite", "retrieval", "--output", "results"];
    let answer = workplace.run(arguments);
    assert!(
        answer.stderr.contains("evaluating run/checkpoint-"),
        "{}",
        answer.stderr
    );
    let table = answer.success();
    assert!(table.contains("recall_at_5 %"), "{table}");
    let report: Value = serde_json::from_str(&workplace.read("results/metrics.json")).unwrap();
    assert_eq!(report["n"], 6, "{report}");
    assert_eq!(
        parse_lines(&workplace.read("results/predictions.jsonl")).len(),
        6
    );
    let base = [
        "eval",
        "run",
        "--suite",
        "retrieval",
        "--checkpoint",
        "base",
    ];
    workplace.run(base).success();

    let dev = workplace.read("dev.jsonl");
    let three: Vec<&str> = dev.lines().take(3).collect();
    workplace.write("three.jsonl", three.join("\n"));
    let other = "eval run --suite retrieval --output three --data three.jsonl";
    workplace.run(other.split(' ')).success();
    let report: Value = serde_json::from_str(&workplace.read("three/metrics.json")).unwrap();
    assert_eq!(report["n"], 3, "{report}");
    let missing = workplace.run(other.replace("three", "none").split(' '));
    assert!(missing.stderr.contains("none.jsonl"), "{}", missing.stderr);

    let arguments = "export run --to sentence-transformers --checkpoint last --output exported";
    workplace.run(arguments.split(' ')).success();
    for file in [
        "modules.json",
        "1_Pooling/config.json",
        "2_Normalize",
        "tokenizer.json",
    ] {
        assert!(workplace.path("exported").join(file).exists(), "{file}");
    }
    let exported = workplace.path("exported");
    let config = workplace.read("exported/sentence_bert_config.json");
    assert!(config.contains("\"max_seq_length\": 20"), "{config}");
    let text = "get a hotel in riga";
    let ours = MiniLmEncoder::open(&exported, &test_device()).unwrap();
    let options = EncoderOptions {
        max_seq_length: Some(20),
        ..EncoderOptions::default()
    };
    let files = EncoderFiles::open(&fixture("retriever/model"), &options).unwrap();
    let checkpoint = workplace.path("run/checkpoint-000006/retriever.safetensors");
    let trained = files.encoder(&files.parameters(&checkpoint, &test_device()).unwrap());
    assert_eq!(
        ours.encode(&[text]).unwrap(),
        trained.encode(&[text]).unwrap()
    );
    let base = MiniLmEncoder::open(&fixture("retriever/model"), &test_device()).unwrap();
    assert_ne!(ours.encode(&[text]).unwrap(), base.encode(&[text]).unwrap());
    let again = workplace.run(arguments.split(' '));
    assert!(again.stderr.contains("exists"), "{}", again.stderr);

    let first = "run/checkpoint-000000";
    let untrained = arguments
        .replace("last", first)
        .replace("exported", "untrained");
    let refused = workplace.run(untrained.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    for expected in [first, "equals the untrained", "--checkpoint last"] {
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    assert!(!workplace.path("untrained").exists());
}

#[test]
fn a_profile_of_a_retriever_has_its_steps_evaluations_and_saves() {
    let workplace = workplace();
    workplace.write("retriever.toml", retriever_config("run", ""));
    let output = workplace
        .run(["train", "retriever.toml", "--profile"])
        .success();
    assert!(output.contains("profile of steps 2 to 6"), "{output}");
    let page = workplace.read("run/profile/operations.md");
    let operations = page.lines().filter_map(|line| line.split(" | ").next());
    let operations: Vec<&str> = operations
        .map(|name| name.trim_start_matches("| "))
        .collect();
    for name in ["retriever step", "evaluation", "save"] {
        assert!(operations.contains(&name), "no {name} in {page}");
    }
}

/// Invariant: A resumed retriever run ends as an uninterrupted one.
#[test]
fn a_resumed_retriever_equals_the_uninterrupted_one() {
    let workplace = workplace();
    for (run, extra) in [
        ("plain", ""),
        (
            "mined",
            "hard_negatives = 2\nmini_batch_size = 5\nsymmetric = true",
        ),
        (
            "lora",
            "lora = { r = 4, lora_alpha = 8 }\nweight_decay = 0.01",
        ),
    ] {
        let file = format!("{run}.toml");
        workplace.write(&file, retriever_config(run, extra));
        workplace.run(["train", &file]).success();
        let last = format!("{run}/checkpoint-000006");
        let before = contents(&workplace, &last, &RETRIEVER);
        let metrics = workplace.read(&format!("{run}/metrics.jsonl"));
        remove_checkpoints_after(&workplace, run, 2);
        let answer = workplace.run(["train", &file]);
        let from = format!("resuming from {run}/checkpoint-000002 (step 2 of 6)");
        assert!(answer.stderr.contains(&from), "{}", answer.stderr);
        answer.success();
        assert!(before == contents(&workplace, &last, &RETRIEVER), "{run}");
        assert_eq!(
            metrics,
            workplace.read(&format!("{run}/metrics.jsonl")),
            "{run}"
        );
    }
}

/// Invariant: A resumed retriever run ends as an uninterrupted one.
#[test]
fn a_joint_run_has_one_checkpoint_one_resume_and_one_evaluation() {
    let workplace = workplace();
    workplace.generate_trajectories();
    workplace.write("joint.toml", joint_config("run"));
    let output = workplace.run(["train", "joint.toml"]).success();
    assert!(
        output.contains("retriever: ") && output.contains("6 steps"),
        "{output}"
    );
    let metrics = parse_lines(&workplace.read("run/metrics.jsonl"));
    assert_eq!(
        values(&metrics, "retriever/step").last(),
        Some(&6.0),
        "{metrics:?}"
    );
    for name in ["goat.sa", "goat.recall_at_5", "retrieval.recall_at_5"] {
        let measured = values(&metrics, &format!("eval/{name}"));
        assert_eq!(measured.len(), 3, "{name}: {metrics:?}");
    }
    // The agents' documents come from the trained retriever.
    let goat_recalls = values(&metrics, "eval/goat.recall_at_5");
    assert_eq!(goat_recalls, values(&metrics, "eval/retrieval.recall_at_5"));
    let best = workplace.read("run/BEST");
    assert!(best.contains("checkpoint-"), "{best}");
    let select = [
        "select",
        "run",
        "--metric",
        "retrieval.mrr_at_10 - goat.parse_error_rate",
    ];
    let ranked = workplace.run(select).success();
    assert!(ranked.contains("BEST remains run/checkpoint-"), "{ranked}");
    let select = workplace.run(["select", "run", "--metric", "2 + goat.sa"]);
    assert!(
        select.stderr.contains("no kept checkpoint"),
        "{}",
        select.stderr
    );

    let files: Vec<&str> = RETRIEVER
        .into_iter()
        .chain([
            "adapter_model.safetensors",
            "optimizer.safetensors",
            "trainer_state.json",
        ])
        .collect();
    let before = contents(&workplace, "run/checkpoint-000004", &files);
    let text = workplace.read("run/metrics.jsonl");
    remove_checkpoints_after(&workplace, "run", 2);
    workplace.run(["train", "joint.toml"]).success();
    assert!(before == contents(&workplace, "run/checkpoint-000004", &files));
    assert_eq!(text, workplace.read("run/metrics.jsonl"));

    let export = "export run --to sentence-transformers --checkpoint last --output exported";
    workplace.run(export.split(' ')).success();
    let eval = "eval run --suite goat --checkpoint last --output results";
    workplace.run(eval.split(' ')).success();
    let report: Value = serde_json::from_str(&workplace.read("results/metrics.json")).unwrap();
    let recall = report["retrieval"]["recall_at_5"]["value"].as_f64();
    assert_eq!(recall, goat_recalls.last().copied(), "{report}");
}

#[test]
fn invalid_retriever_data_is_refused_with_a_remedy() {
    let workplace = workplace();
    workplace.write("one.jsonl", r#"{"query": "q", "positive": "d"}"#);
    workplace.write("broken.jsonl", "{\"query\": \"q\"}\n");
    let good = retriever_config("run", "");
    let cases: [(&str, &str, &str); 10] = [
        (
            "train = [\"pairs.jsonl\"]",
            "",
            "`retriever.train` is missing",
        ),
        (
            "train = [\"pairs.jsonl\"]",
            "train = []",
            "is an empty list",
        ),
        (
            "train = [\"pairs.jsonl\"]",
            "train = \"trajectory\"",
            "did you mean \"trajectories\"?",
        ),
        (
            "train = [\"pairs.jsonl\"]",
            "train = \"trajectories\"",
            "are not trajectories",
        ),
        (
            "[\"pairs.jsonl\"]",
            "[\"one.jsonl\"]",
            "no document is wrong for any query",
        ),
        (
            "[\"pairs.jsonl\"]",
            "[\"broken.jsonl\"]",
            "broken.jsonl:1: field \"positive\" is missing",
        ),
        ("[\"pairs.jsonl\"]", "[\"none.jsonl\"]", "none.jsonl"),
        (
            "eval_steps = 3",
            "suites = [\"goat\"]",
            "needs a language model",
        ),
        (
            "max_steps = 6",
            "max_seq_length = 100",
            "has only 64 positions",
        ),
        (
            "max_steps = 6",
            "lora = { target_modules = [\"q_proj\"] }",
            "the encoder has no linear layer \"q_proj\"",
        ),
    ];
    for (from, to, expected) in cases {
        assert!(good.contains(from), "{from}");
        workplace.write("bad.toml", good.replace(from, to));
        let answer = workplace.run(["train", "bad.toml"]);
        assert_ne!(answer.status, Some(0), "{to}");
        // Lines of a message are wrapped to the terminal's width.
        let stderr = answer
            .stderr
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace("│ ", "");
        assert!(stderr.contains(expected), "{to}: {stderr}");
        assert!(
            !workplace.path("run").join("metrics.jsonl").exists(),
            "{to}"
        );
    }
    workplace.write("retriever.toml", good);
    workplace.run(["train", "retriever.toml"]).success();
    let patient = "train retriever.toml --set train.output_dir=early \
                   --set eval.early_stopping_patience=1 --set eval.early_stopping_threshold=2";
    let output = workplace.run(patient.split_whitespace()).success();
    assert!(output.contains("3 steps done"), "{output}");
    assert!(output.contains("stopped early: 1 evaluations"), "{output}");
    let export = workplace.run("export run --to peft --output adapter".split(' '));
    assert!(
        export.stderr.contains("language model"),
        "{}",
        export.stderr
    );
    let goat = workplace.run("eval run --suite goat".split(' '));
    assert_ne!(goat.status, Some(0));
}

#[test]
fn ten_thousand_documents_are_ranked_and_mined() {
    let workplace = workplace();
    let documents: Vec<String> = (0..10_000)
        .map(|i| serde_json::json!({"document": format!("train number {i} of a city")}).to_string())
        .collect();
    workplace.write("many.jsonl", documents.join("\n"));
    let config =
        retriever_config("run", "hard_negatives = 3").replace("documents.jsonl", "many.jsonl");
    workplace.write("many.toml", config);
    workplace
        .run(["train", "many.toml", "--set", "retriever.max_steps=2"])
        .success();
    let metrics = parse_lines(&workplace.read("run/metrics.jsonl"));
    let recalls = values(&metrics, "eval/retrieval.recall_at_10");
    assert_eq!(recalls.len(), 2, "{metrics:?}");
    let report = workplace.read("run/checkpoint-000002/eval.retrieval.predictions.jsonl");
    for prediction in parse_lines(&report) {
        assert_eq!(prediction["ranked"].as_array().unwrap().len(), 10);
    }
}

#[test]
fn a_retriever_is_evaluated_locally_among_a_printed_number_of_documents() {
    let workplace = workplace();
    workplace.write("retriever.toml", retriever_config("run", ""));
    let eval = "eval retriever.toml --suite retrieval";
    let remote = format!("{eval} --endpoint http://127.0.0.1:9/v1 --endpoint-model m");
    let refused = workplace.run(remote.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let reason = "--endpoint does not apply to the suite retrieval";
    for part in [reason, "omit --endpoint"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }

    let untrained = workplace.run(eval.split(' '));
    assert_eq!(untrained.status, Some(2), "{}", untrained.stderr);
    for part in [
        "train.output_dir = run",
        "does not exist",
        "`tooltune train retriever.toml`",
        "--checkpoint base",
    ] {
        assert!(untrained.stderr.contains(part), "{}", untrained.stderr);
    }

    let base = workplace.run(format!("{eval} --checkpoint base").split(' '));
    let printed = base.stderr.clone() + &base.stdout;
    base.success();
    assert!(printed.contains("6 queries rank 24 documents"), "{printed}");
}

#[test]
fn a_plan_refuses_pairs_for_both_training_and_evaluation() {
    let workplace = workplace();
    let config = retriever_config("run", "").replace("[\"dev.jsonl\"]", "[\"pairs.jsonl\"]");
    workplace.write("retriever.toml", config);
    let refused = workplace.run(["plan", "retriever.toml"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let part = "`retriever.eval` names pairs.jsonl, which is also in `retriever.train`";
    let printed: Vec<&str> = refused.stderr.split_whitespace().collect();
    let printed = printed.join(" ").replace("│ ", "");
    assert!(printed.contains(part), "{printed}");
    assert!(!workplace.path("run").exists());
}
