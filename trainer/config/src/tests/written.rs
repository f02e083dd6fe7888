//! Output of a config: the resolved file, the digest, the differences, the schema.

use super::*;

const JUDGE: &str = "goat.judge={ base_url = \"http://127.0.0.1:1/v1\", model = \"m\" }";
const ODD: &str = "lora.rank_pattern={ v_proj = 2, q_proj = 4 }";

/// Configs with overrides, in which tables depend on each other. Single settings are in
/// `every_setting`.
pub(super) fn configs() -> Vec<(&'static str, &'static [&'static str])> {
    vec![
        (MINIMAL, &["model.model_name_or_path=owner/model"]),
        (
            MINIMAL,
            &[
                "data.format=goat",
                "goat.documents=d",
                "goat.executor={ kind = \"mcp\", command = [\"server\"] }",
                "retriever.model_name_or_path=owner/model",
                "retriever.train=trajectories",
            ],
        ),
        (SLOT, &["train.adam_epsilon=1e-300", ODD]),
        (
            Preset::Sft.text(),
            &["train.max_steps=3", "train.warmup_steps=1"],
        ),
        (
            MINIMAL,
            &[
                "data.chat_template_kwargs={ b = [1, \"x\", { c = 1.5 }], a = { d = true }, e = -1e-7 }",
                "data.chat_template_kwargs.enable_thinking=false",
            ],
        ),
        (QUICKSTART, &[]),
        (
            Preset::Joint.text(),
            &[
                "retriever.lora={ r = 4 }",
                "retriever.mini_batch_size=4",
                "retriever.steps_per_lm_step=0.5",
            ],
        ),
        (Preset::Retriever.text(), &["retriever.max_seq_length=64"]),
        (
            Preset::Goat.text(),
            &["goat.weights.plan=0.5", "mask.arguments=derived"],
        ),
        (
            Preset::Goat.text(),
            &[
                "goat.executor={ kind = \"replay\", recorded = \"r\", set = \"lv3\" }",
                JUDGE,
            ],
        ),
        (
            Preset::Goat.text(),
            &[
                "goat.executor={ kind = \"canned\", responses = \"c\" }",
                "eval.suites=[\"goat\", \"restbench\"]",
                "eval.restbench={ data = [\"q\"], documents = \"d\" }",
                "eval.restbench.executor={ kind = \"canned\", responses = \"r\" }",
                "eval.apibank={ data = [\"l\"] }",
                "eval.metric_for_best_model=goat.ia + restbench.correct_path",
                "goat.limits={ max_steps = 4, answer_tokens = 99 }",
                "goat.truncate={ max_items = 3, jmespath = \"data[].id\" }",
                "eval.toolqa={ reduce = \"truncate\", max_depth = 2, jmespath = \"data\" }",
            ],
        ),
        (
            SLOT,
            &[
                "eval.nestful={ data = [\"n\"], family = \"hermes\", react = true, exec_dir = \"f\" }",
                "eval.toolqa={ data = [\"q\"], responses = \"r\", setting = \"code\", run_code = true }",
                "eval.toolqa.judge={ base_url = \"http://127.0.0.1:1/v1\", model = \"m\" }",
                "eval.toolqa.reduce=paths",
                "eval.sandbox={ python = \"python3.12\", allow_unisolated = true }",
                "eval.suites=[\"nestful\", \"toolqa\"]",
                "eval.metric_for_best_model=nestful.steps - toolqa.judged",
                "eval.early_stopping_patience=3",
                "eval.early_stopping_threshold=0.01",
            ],
        ),
        (
            Preset::Goat.text(),
            &[
                "goat.executor={ kind = \"http\", specification = \"s\", base_url = \"https://a.b/v1\" }",
                "goat.executor.headers={ X-Key = \"KEY\", Accept = \"KIND\" }",
                "goat.executor.timeout_secs=1.5",
            ],
        ),
        (
            Preset::Goat.text(),
            &[
                "goat.executor={ kind = \"stabletoolbench\", cache = \"c\", record = \"r\" }",
                "goat.executor.service_url=\"http://localhost:8080/virtual\"",
                "goat.executor.toolbench_key_env=KEY",
            ],
        ),
    ]
}

/// Invariant: The resolved config is complete and equivalent.
#[test]
fn the_resolved_config_is_complete_and_means_the_same() {
    for (text, overrides) in configs() {
        let config = parse_valid(text, overrides);
        let resolved = config.to_toml().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parse_valid(&resolved, &[]), config, "{resolved}");
        assert_eq!(parse_valid(&resolved, &[]).to_toml(), Ok(resolved));
        assert_eq!(
            parse_valid(text, overrides).resume_digest(),
            config.resume_digest()
        );
    }
    let tables = [
        "data.format=goat",
        "goat.documents=d",
        JUDGE,
        "goat.truncate={}",
        "retriever.model_name_or_path=r",
        "retriever.train=trajectories",
    ];
    let config = parse_valid(MINIMAL, &tables);
    let resolved = config.to_toml().unwrap_or_else(|error| panic!("{error}"));
    let values = serde_json::to_value(&config).expect("JSON");
    for (table, keys) in main_tables() {
        assert!(
            resolved.contains(&format!("\n[{table}]\n")),
            "{table} is not in\n{resolved}"
        );
        let keys = keys.into_iter();
        // An optional setting without a default is absent until it is set.
        for key in keys.filter(|key| !values[table][key].is_null()) {
            let is_there = resolved.contains(&format!("\n{key} = "))
                || resolved.contains(&format!("\n[{table}.{key}]"));
            assert!(is_there, "{table}.{key} is not in\n{resolved}");
        }
    }
}

#[test]
fn a_diff_marks_settings_that_may_change_on_resume() {
    let old = parse_valid(SLOT, &[]);
    let safe = [
        "train.logging_steps=1",
        "checkpoint.save_steps=50",
        "eval.max_samples=5",
        "train.output_dir=runs/moved",
        "device=cuda",
    ];
    let new = parse_valid(SLOT, &safe);
    let changes = diff(&old, &new);
    assert_eq!(changes.len(), safe.len());
    assert!(
        changes
            .iter()
            .all(|change| change.on_resume == OnResume::Safe),
        "{changes:#?}"
    );
    assert_eq!(old.resume_digest(), new.resume_digest());

    let goat = |overrides: &[&str]| parse_valid(Preset::Goat.text(), overrides);
    let judged = goat(&[
        JUDGE,
        "goat.executor={ kind = \"canned\", responses = \"c\" }",
    ]);
    assert_eq!(goat(&[]).resume_digest(), judged.resume_digest());
    let method = goat(&["goat.method=react"]);
    assert_ne!(method.resume_digest(), judged.resume_digest());

    for refused in [
        "lora.r=4",
        "train.seed=1",
        "train.learning_rate=1e-5",
        "data.max_length=8",
        "data.flatten=advised",
        "mask.weights=[{ span = \"assistant\", weight = 0.3 }]",
    ] {
        let new = parse_valid(SLOT, &[refused]);
        let changes = diff(&old, &new);
        assert!(
            changes
                .iter()
                .any(|change| change.on_resume == OnResume::Refused),
            "{refused}"
        );
        assert_ne!(old.resume_digest(), new.resume_digest(), "{refused}");
    }
    let steps = |n: &str| parse_valid(SLOT, &[&format!("train.max_steps={n}")]);
    let on_resume = |old: &str, new: &str| diff(&steps(old), &steps(new))[0].on_resume;
    assert_eq!(on_resume("4", "9"), OnResume::Extends);
    assert_eq!(on_resume("9", "4"), OnResume::Shortens);
    assert_ne!(steps("4").resume_digest(), steps("9").resume_digest());
    let ordered = parse_valid(SLOT, &["lora.rank_pattern={ a = 1, b = 2 }"]);
    let reordered = parse_valid(SLOT, &["lora.rank_pattern={ b = 2, a = 1 }"]);
    assert_eq!(diff(&ordered, &reordered).len(), 1);
    assert!(diff(&old, &old).is_empty());
    let change = &diff(&old, &parse_valid(SLOT, &["train.seed=7"]))[0];
    assert_eq!(change.path, "train.seed");
    assert_eq!(
        (change.old.as_deref(), change.new.as_deref()),
        (Some("42"), Some("7"))
    );
}

#[test]
fn serde_and_the_tree_reader_agree() {
    for text in [SLOT, Preset::Sft.text(), QUICKSTART, SLOT_E2E, MINIMAL] {
        let (document, problems) = document::parse_toml(text, 0);
        assert!(problems.is_empty());
        let (walked, findings) = read::read_document(&document);
        assert_eq!(findings.problems, []);
        assert_eq!(toml::from_str::<Config>(text), Ok(walked));
    }
}

/// Main tables with their keys.
fn main_tables() -> Vec<(&'static str, Vec<&'static str>)> {
    let tables = schema::keys(schema::root()).into_iter();
    let tables = tables.filter(|table| *table != "device");
    tables
        .map(|table| (table, schema::keys_of(table)))
        .collect()
}

#[test]
fn the_schema_knows_every_key_and_default_and_has_no_null() {
    let schema = json_schema();
    let text = schema.to_string();
    assert!(!text.contains("null"), "{text}");
    for (table, keys) in main_tables() {
        let reference = schema["properties"][table]["$ref"].as_str();
        let name = reference.and_then(|path| path.rsplit('/').next());
        let Some(name) = name else {
            panic!("{table} has no schema: {schema:#}")
        };
        let table_schema = &schema["$defs"][name];
        assert_eq!(table_schema["additionalProperties"], false, "{table}");
        for key in keys {
            let description = &table_schema["properties"][key]["description"];
            assert!(description.is_string(), "{table}.{key} is not described");
        }
    }
    assert_eq!(
        schema["$defs"]["TrainConfig"]["properties"]["learning_rate"]["default"],
        2e-4
    );
    assert_eq!(schema["properties"]["device"]["default"], "cpu");
}
