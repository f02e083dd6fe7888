//! Queries and documents that are truncated, equal after normalization, tied in rankings, or alone
//! in a batch.

use serde_json::{Value, json};

use crate::support::fixture;
use crate::support::test_device::TestDevice;
use crate::workplace::{CommandOutput, Workplace, parse_lines, tooltune};

fn config(extra: &str) -> String {
    format!(
        r#"device = "{device}"
[retriever]
model_name_or_path = "{encoder}"
train = ["pairs.jsonl"]
learning_rate = 1e-3
compute_dtype = "f32"
{extra}
[train]
output_dir = "run"
logging_steps = 1
[eval]
eval_strategy = "no"
eval_steps = 1
[checkpoint]
save_total_limit = 10
[log]
report_to = ["jsonl"]
"#,
        device = TestDevice::from_env(),
        encoder = fixture("retriever/model").display(),
    )
}

fn rows(rows: &[(&str, String)]) -> String {
    let rows = rows.iter();
    let rows = rows.map(|(query, text)| json!({"query": query, "positive": text}).to_string());
    rows.collect::<Vec<_>>().join("\n")
}

fn metrics(workplace: &Workplace, run: &str, key: &str) -> Vec<f64> {
    let lines = parse_lines(&workplace.read(&format!("{run}/metrics.jsonl")));
    lines.iter().filter_map(|line| line[key].as_f64()).collect()
}

/// A message without the line breaks and frame of the terminal.
fn words(text: &str) -> String {
    text.replace('│', " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Pairs with two documents that differ only after the truncation, and a different document.
fn cut_pairs() -> String {
    let long = "train hotel ".repeat(40);
    rows(&[
        ("get a train", format!("{long} oslo")),
        ("book the hotel", format!("{long} lund")),
        ("GET A TRAIN", "ferry in turin".to_owned()),
    ])
}

/// Writes the pairs in reverse order as an evaluation file, which is not a copy of the training
/// file.
fn write_held_out(workplace: &Workplace) {
    let pairs = workplace.read("pairs.jsonl");
    let reversed: Vec<&str> = pairs.lines().rev().collect();
    workplace.write("held.jsonl", reversed.join("\n"));
}

/// Invariant: Positive documents and duplicate texts are never negatives.
#[test]
fn truncated_texts_are_counted_and_duplicates_are_merged() {
    let workplace = Workplace::new();
    workplace.write("pairs.jsonl", cut_pairs());
    write_held_out(&workplace);
    let extra = "eval = [\"held.jsonl\"]\nmax_steps = 2\nper_device_train_batch_size = 3";
    workplace.write("retriever.toml", config(extra));
    let expected = [
        "2 of 3 documents are truncated at 48 tokens: pairs.jsonl:1 (83 tokens), pairs.jsonl:2 (",
        "raise retriever.max_seq_length, up to 64, or shorten them",
        "1 document has the same tokens as an earlier one: pairs.jsonl:2 and pairs.jsonl:1; they are \
         treated as one",
        "1 query has the same tokens as an earlier one: pairs.jsonl:3 and pairs.jsonl:1; they are treated as \
         one",
    ];
    let trained = words(&workplace.run(["train", "retriever.toml"]).success());
    let planned = words(&workplace.run(["plan", "retriever.toml"]).success());
    for message in [&trained, &planned] {
        assert!(
            message.contains("3 pairs of 2 queries and 2 documents"),
            "{message}"
        );
        for line in expected {
            assert!(message.contains(line), "{line}: {message}");
        }
    }
    let plan = workplace
        .run(["plan", "retriever.toml", "--format", "json"])
        .success();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let cut = &plan["retriever"]["cut"]["documents"];
    assert_eq!(cut["cut"].as_array().map(Vec::len), Some(2), "{plan}");
    assert_eq!(cut["same"], json!([["pairs.jsonl:2", "pairs.jsonl:1"]]));

    let arguments = "eval run --suite retrieval --checkpoint base".split(' ');
    let answer = CommandOutput::from_command(
        tooltune()
            .env("RUST_LOG", "warn")
            .current_dir(workplace.folder())
            .args(arguments),
    );
    let stderr = words(&answer.stderr);
    assert!(
        stderr.contains("2 of 3 documents are truncated at 48 tokens"),
        "{stderr}"
    );
    assert!(stderr.contains("they share their ranks"), "{stderr}");
    answer.success();

    // After truncation, both documents have the same tokens, so neither query has a wrong document.
    let long = "train hotel ".repeat(40);
    let two_pairs = rows(&[
        ("get a train", format!("{long} oslo")),
        ("book the hotel", format!("{long} lund")),
    ]);
    workplace.write("pairs.jsonl", two_pairs);
    let refused = workplace.run(["train", "retriever.toml", "--set", "train.output_dir=other"]);
    let stderr = words(&refused.stderr);
    assert!(
        stderr.contains("2 pairs and one document: no document is wrong for any query"),
        "{stderr}"
    );
}

#[test]
fn mining_skips_documents_with_the_tokens_of_a_positive() {
    let workplace = Workplace::new();
    let long = "train hotel ".repeat(40);
    let pairs = [
        json!({"query": "get a train", "positive": format!("{long} oslo"),
               "negatives": [format!("{long} lund"), "museum"]}),
        json!({"query": "a ferry", "positive": "ferry in turin"}),
    ];
    workplace.write("pairs.jsonl", format!("{}\n{}", pairs[0], pairs[1]));
    let extra = "hard_negatives = 2\nmax_steps = 1\nper_device_train_batch_size = 2";
    workplace.write("retriever.toml", config(extra));
    workplace.run(["train", "retriever.toml"]).success();
    let state = workplace.read("run/checkpoint-000001/retriever_state.json");
    let state: Value = serde_json::from_str(&state).unwrap();
    // The documents are the two long ones, merged into one, then the museum, and the ferry.
    let mut mined: Vec<Vec<u64>> = serde_json::from_value(state["mined"].clone()).unwrap();
    mined.iter_mut().for_each(|mined| mined.sort_unstable());
    assert_eq!(mined, [[1, 2], [0, 1]]);
}

#[test]
fn maximum_lengths_without_room_for_a_word_are_refused() {
    let workplace = Workplace::new();
    workplace.write("pairs.jsonl", cut_pairs());
    workplace.write("retriever.toml", config("max_steps = 1"));
    for (settings, expected) in [
        (
            vec!["retriever.max_seq_length=2"],
            "max_seq_length = 2 leaves no room for text after 2 special tokens",
        ),
        (
            vec![
                "retriever.max_seq_length=5",
                "retriever.query_prompt=\"find the train\"",
            ],
            "leaves no token for a text: the prompt \"find the train\" takes 5",
        ),
    ] {
        let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
        let arguments = ["train", "retriever.toml"].into_iter().chain(settings);
        let refused = workplace.run(arguments);
        assert_ne!(refused.status, Some(0), "{}", refused.stderr);
        let stderr = words(&refused.stderr);
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn indistinguishable_documents_score_as_chance() {
    let workplace = Workplace::new();
    let long = "train hotel ".repeat(40);
    workplace.write("pairs.jsonl", cut_pairs());
    workplace.write(
        "dev.jsonl",
        rows(&[("get a train", format!("{long} right"))]),
    );
    let documents: Vec<String> = (0..49)
        .map(|i| json!({"document": format!("{long} number {i}")}).to_string())
        .collect();
    workplace.write("documents.jsonl", documents.join("\n"));
    let extra = "eval = [\"dev.jsonl\"]\ndocuments = \"documents.jsonl\"\nmax_steps = 1";
    workplace.write("retriever.toml", config(extra));
    let arguments = [
        "train",
        "retriever.toml",
        "--set",
        "eval.eval_strategy=steps",
    ];
    workplace.run(arguments).success();
    let harmonic: f64 = (1..=10).map(|rank| 1.0 / f64::from(rank)).sum();
    for (name, expected) in [("recall_at_5", 5.0 / 50.0), ("mrr_at_10", harmonic / 50.0)] {
        let values = metrics(&workplace, "run", &format!("eval/retrieval.{name}"));
        assert_eq!(
            values.len(),
            2,
            "one evaluation before and one after the step"
        );
        for values in values {
            assert!(
                (values - expected).abs() < 1e-9,
                "{name}: {values} {expected}"
            );
        }
    }
}

/// Invariant: Every retriever step has at least one negative.
#[test]
fn no_step_has_a_single_pair_without_a_negative() {
    let workplace = Workplace::new();
    let things = [
        "train", "hotel", "ticket", "table", "report", "ferry", "museum",
    ];
    let pairs = things.map(|thing| (thing, format!("the {thing} of a city")));
    workplace.write("pairs.jsonl", rows(&pairs));
    let extra = "num_train_epochs = 2\nper_device_train_batch_size = 3";
    workplace.write("retriever.toml", config(extra));
    let output = workplace.run(["train", "retriever.toml"]).success();
    assert!(output.contains("7 documents; 4 steps"), "{output}");
    assert!(
        output.contains(
            "1 batch of the first epoch has no wrong document and is merged with another"
        ),
        "{output}"
    );
    let losses = metrics(&workplace, "run", "retriever/loss");
    assert_eq!(losses.len(), 4);
    assert!(losses.iter().all(|loss| *loss > 1e-3), "{losses:?}");
    let pairs = metrics(&workplace, "run", "retriever/pairs");
    assert_eq!(pairs, [3.0, 7.0, 10.0, 14.0]);
    let plan = workplace
        .run(["plan", "retriever.toml", "--format", "json"])
        .success();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(
        (&plan["steps"], &plan["retriever"]["joined_batches"]),
        (&json!(4), &json!(1))
    );

    let one = [
        "--set",
        "retriever.per_device_train_batch_size=1",
        "--set",
        "train.output_dir=one",
    ];
    let refused = workplace.run(["train", "retriever.toml"].into_iter().chain(one));
    let stderr = words(&refused.stderr);
    assert!(
        stderr.contains("7 of 7 pairs have no negatives"),
        "{stderr}"
    );
    let mined = ["--set", "retriever.hard_negatives=1"];
    let arguments = ["train", "retriever.toml"]
        .into_iter()
        .chain(one)
        .chain(mined);
    let output = workplace.run(arguments).success();
    assert!(output.contains("14 steps"), "{output}");
}

/// Copies the tiny encoder, and replaces some of its files.
fn encoder(workplace: &Workplace, name: &str, changes: &[(&str, Value)]) {
    let source = fixture("retriever/model");
    for folder in ["", "1_Pooling", "2_Normalize"] {
        let target = workplace.path(name).join(folder);
        std::fs::create_dir_all(&target).unwrap();
        for file in std::fs::read_dir(source.join(folder)).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                std::fs::copy(&path, target.join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    for (file, value) in changes {
        workplace.write(&format!("{name}/{file}"), value.to_string());
    }
}

#[test]
fn settings_of_an_encoder_folder_are_used_or_refused() {
    let workplace = Workplace::new();
    let things = ["train", "hotel", "ticket", "table"];
    let pairs = things.map(|thing| (thing, format!("the {thing} of a city")));
    workplace.write("pairs.jsonl", rows(&pairs));
    let config_name = "config_sentence_transformers.json";
    let prompts = json!({"query": "find the ", "document": "city: "});
    let cls = json!({"word_embedding_dimension": 32, "pooling_mode_cls_token": true});
    encoder(&workplace, "mean", &[]);
    encoder(&workplace, "cls", &[("1_Pooling/config.json", cls)]);
    encoder(
        &workplace,
        "prompted",
        &[(config_name, json!({"prompts": prompts}))],
    );
    write_held_out(&workplace);
    let extra = "eval = [\"held.jsonl\"]\nmax_steps = 1\nper_device_train_batch_size = 4";
    let text = config(extra).replace(&fixture("retriever/model").display().to_string(), "mean");
    workplace.write("retriever.toml", text);
    let train = |run: &str, settings: &[&str]| {
        let run = format!("train.output_dir={run}");
        let settings = settings.iter().copied().chain([run.as_str()]);
        let settings: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
        let answer = workplace.run(["train", "retriever.toml"].into_iter().chain(settings));
        (answer.status, words(&answer.stderr))
    };
    let mut losses = Vec::new();
    for (run, settings) in [
        ("run-mean", vec!["retriever.model_name_or_path=mean"]),
        ("run-cls", vec!["retriever.model_name_or_path=cls"]),
        (
            "run-prompted",
            vec!["retriever.model_name_or_path=prompted"],
        ),
        (
            "run-set",
            vec![
                "retriever.query_prompt=\"find the \"",
                "retriever.document_prompt=\"city: \"",
            ],
        ),
        (
            "run-unset",
            vec![
                "retriever.model_name_or_path=prompted",
                "retriever.query_prompt=\"\"",
                "retriever.document_prompt=\"\"",
            ],
        ),
    ] {
        let (status, stderr) = train(run, &settings);
        assert_eq!(status, Some(0), "{stderr}");
        losses.push(metrics(&workplace, run, "retriever/loss")[0]);
    }
    let [mean, cls, prompted, set, unset] = losses[..] else {
        panic!("{losses:?}");
    };
    assert!(
        (mean - cls).abs() > 1e-3 && (mean - prompted).abs() > 1e-3,
        "{losses:?}"
    );
    assert_eq!(
        (prompted, mean),
        (set, unset),
        "settings have precedence over the folder"
    );

    let export = "export run-set --to sentence-transformers --checkpoint last --output exported";
    workplace.run(export.split(' ')).success();
    let exported: Value =
        serde_json::from_str(&workplace.read(&format!("exported/{config_name}"))).unwrap();
    assert_eq!(exported["prompts"], prompts);
    let verify = "verify run-set --checkpoint last -n 2 --embeddings embeddings.jsonl";
    workplace.run(verify.split(' ')).success();
    let lines = parse_lines(&workplace.read("embeddings.jsonl"));
    let roles: Vec<&str> = lines
        .iter()
        .map(|line| line["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["query", "query", "document", "document"]);

    let dense = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]);
    for (name, file, value, expected) in [
        ("dense", "modules.json", dense, "modules.json: [2].type"),
        (
            "weighted",
            "1_Pooling/config.json",
            json!({"pooling_mode": "weightedmean"}),
            "1_Pooling/config.json: pooling_mode = \"weightedmean\" is not supported",
        ),
        (
            "passage",
            config_name,
            json!({"prompts": {"passage": "p: "}}),
            "set retriever.document_prompt = \"p: \", or \"\" for none",
        ),
    ] {
        encoder(&workplace, name, &[(file, value)]);
        let folder = format!("retriever.model_name_or_path={name}");
        let (status, stderr) = train("refused", &[&folder]);
        assert_ne!(status, Some(0), "{name}");
        assert!(stderr.contains(expected), "{name}: {stderr}");
    }
    let folder = "retriever.model_name_or_path=passage";
    let (status, stderr) = train("chosen", &[folder, "retriever.document_prompt=\"p: \""]);
    assert_eq!(status, Some(0), "{stderr}");
}

#[test]
fn lower_casing_of_an_encoder_folder_is_used_and_exported() {
    let workplace = Workplace::new();
    let source = fixture("retriever/model/tokenizer_config.json");
    let mut cased: Value = serde_json::from_slice(&std::fs::read(source).unwrap()).unwrap();
    cased["do_lower_case"] = false.into();
    cased["strip_accents"] = false.into();
    let lower = json!({"max_seq_length": 48, "do_lower_case": true});
    let files = [
        ("tokenizer_config.json", cased),
        ("sentence_bert_config.json", lower),
    ];
    encoder(&workplace, "lower", &files);
    let pairs = [
        ("Find a Train", "The Train of a City".to_owned()),
        ("find a train", "the train of a city".to_owned()),
        ("a hotel", "HOTEL in oslo".to_owned()),
    ];
    workplace.write("pairs.jsonl", rows(&pairs));
    write_held_out(&workplace);
    let extra = "eval = [\"held.jsonl\"]\nmax_steps = 1\nper_device_train_batch_size = 4";
    let text = config(extra).replace(&fixture("retriever/model").display().to_string(), "lower");
    workplace.write("retriever.toml", text);
    let output = workplace.run(["train", "retriever.toml"]).success();
    assert!(
        output.contains("2 pairs of 2 queries and 2 documents"),
        "{output}"
    );
    let verify = "verify run --checkpoint last -n 9 --embeddings embeddings.jsonl";
    workplace.run(verify.split(' ')).success();
    let lines = parse_lines(&workplace.read("embeddings.jsonl"));
    // The lines are in the order of the held-out pairs.
    assert_eq!(lines[1]["embedding"], lines[2]["embedding"]);
    assert_eq!(lines[4]["embedding"], lines[5]["embedding"]);
    let export = "export run --to sentence-transformers --checkpoint last --output exported";
    workplace.run(export.split(' ')).success();
    let exported = workplace.read("exported/sentence_bert_config.json");
    assert!(exported.contains("\"do_lower_case\": true"), "{exported}");
}
