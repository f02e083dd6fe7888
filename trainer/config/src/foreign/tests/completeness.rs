//! Every key of a file is a setting in the result, or is listed by its path.

use proptest::prelude::*;

use super::*;
use crate::foreign::results::leaves;

/// Files with keys of all kinds, including nested and unknown ones.
fn files() -> [(&'static str, Value); 4] {
    let axolotl = json!({
        "base_model": "Qwen/Qwen3-0.6B", "revision_of_model": "main", "adapter": "lora", "lora_r": 16,
        "lora_alpha": 32, "lora_target_modules": ["q_proj", "v_proj"], "lora_target_linear": true,
        "datasets": [
            {"path": "json", "data_files": "rows.jsonl", "ds_type": "json", "type": "chat_template",
             "field_messages": "chat", "message_property_mappings": {"role": "from", "content": "value"},
             "roles_to_train": ["assistant", "tool"], "train_on_eos": "all", "split": "train[:10%]",
             "weight": 2, "roles": {"user": ["human"], "assistant": ["bot"]}, "made_up": {"a": [1, {"b": 2}]}},
            {"path": "org/set", "data_files": ["a.jsonl", "b.jsonl"], "revision": "v1", "name": "x",
             "type": {"field_instruction": "q", "field_output": "a", "format": "{instruction}",
                      "system_prompt": "Be brief."}, "field": "text", "drop_system_message": true,
             "message_property_mappings": {"role": "who", "content": "what"}, "preprocess_shards": 4},
            "plain.jsonl", 7, {"type": "alpaca"}],
        "test_datasets": [{"path": "e.jsonl", "split": "test", "type": "sharegpt"}],
        "val_set_size": 0.05, "evals_per_epoch": 4, "eval_steps": 10, "saves_per_epoch": 1,
        "chat_template_kwargs": {"enable_thinking": false}, "fsdp_config": {"a": {"b": 1}},
        "special_tokens": {"pad_token": "<|end|>"}, "plugins": ["a.b", "c.d"], "made_up": {"x": {"y": 1}},
        "list": [{"k": 1}, {"k": 2}], "wandb_project": "", "deepspeed": null, "strict": [], "lora_on_cpu": {},
        "warmup_ratio": 0.1, "warmup_steps": 10, "eot_tokens": ["<|im_end|>"], "max_steps": -1,
    });
    let llama_factory = json!({
        "model_name_or_path": "m", "model_revision": "abc", "stage": "sft", "finetuning_type": "lora",
        "lora_target": ".*(q|v)_proj", "dataset": "a,b", "adapter_name_or_path": "x,y", "val_size": 0.1,
        "eval_strategy": "epoch", "enable_thinking": false, "interleave_probs": "0.5,0.5", "new": [[1], 2],
    });
    let swift = json!({
        "model": "m", "dataset": ["a.jsonl#5", "b.jsonl"], "train_type": "lora", "lora_rank": 8,
        "target_modules": "all-linear", "target_regex": "^model.*q_proj$", "columns": "{\"text\": \"query\"}",
        "model_kwargs": {"fps": 1}, "adapters": ["one", "two"], "-v": true, "eval_steps": 0.5,
    });
    let trl = json!({
        "model_name_or_path": "m", "use_peft": true, "lora_r": 8, "dataset_name": "ignored",
        "datasets": [{"path": "json", "data_files": {"train": "t.jsonl", "test": "e.jsonl"}, "split": "train",
                      "columns": ["prompt"], "fraction": 0.5, "data_dir": "d"}],
        "test_split_size": 0.1, "eval_strategy": "steps", "streaming": true, "model_init_kwargs": {"a": {"b": 1}},
    });
    [
        ("Axolotl", axolotl),
        ("LLaMA-Factory", llama_factory),
        ("ms-swift", swift),
        ("TRL", trl),
    ]
}

fn translation_of<'o>(theirs: &Value) -> Translation<'o> {
    let theirs = theirs.as_object().unwrap();
    let origin = Origin::detect(theirs.keys().map(String::as_str)).unwrap();
    translate(origin, theirs, "run", RowFacts::default())
}

/// Paths in a file that no line mentions and whose value no setting has.
fn lost_paths(theirs: &Value) -> Vec<String> {
    let translation = translation_of(theirs);
    let report = lines(&translation);
    let settings = Value::Object(translation.settings).to_string();
    let mut lost = Vec::new();
    for (key, value) in theirs.as_object().unwrap() {
        for (path, value) in leaves(key, value) {
            let ends = [" ->", " =", ",", ":", "]", ")"];
            let is_named = ends
                .iter()
                .any(|end| report.contains(&format!("{path}{end}")));
            // Parts of a file entry in the result: weight, and files by split.
            let is_of_file = path.ends_with(".weight") || path.contains(".data_files.");
            let is_carried = is_of_file && settings.contains(value.to_string().trim_matches('"'));
            // A list of strings is one value, and each of its files has a line.
            let is_list = value.is_array() && report.contains(&format!("{path}[0] ->"));
            // JSON in an argument has its own paths.
            let is_json = value.as_str().is_some_and(|text| text.starts_with('{'))
                && report.contains(&format!("{path}."));
            if !is_named && !is_carried && !is_list && !is_json {
                lost.push(path);
            }
        }
    }
    lost
}

#[test]
fn each_key_is_carried_over_or_listed_by_its_path() {
    for (name, theirs) in files() {
        let origin =
            Origin::detect(theirs.as_object().unwrap().keys().map(String::as_str)).unwrap();
        assert_eq!(origin.name, name);
        let report = lines(&translation_of(&theirs));
        assert_eq!(
            lost_paths(&theirs),
            Vec::<String>::new(),
            "{name}:\n{report}"
        );
        // Check that the test finds keys without lines.
        let keys = theirs.as_object().unwrap().len();
        assert!(report.lines().count() >= keys, "{report}");
    }
}

#[test]
fn keys_of_entries_are_translated() {
    let [(_, axolotl), (_, llama_factory), (_, swift), (_, trl)] = files();
    let translation = translation_of(&axolotl);
    let report = lines(&translation);
    let train = json!([{"path": "rows.jsonl", "weight": 2}, "hf://datasets/org/set@v1/a.jsonl",
        "hf://datasets/org/set@v1/b.jsonl", "plain.jsonl"]);
    assert_eq!(translation.settings["data"]["train"], train);
    assert_eq!(translation.settings["data"]["eval"], json!(["e.jsonl"]));
    let columns = json!({"conversations": "chat", "instruction": "q", "output": "a"});
    assert_eq!(translation.settings["data"]["columns"], columns);
    assert_eq!(translation.settings["lora"]["target_modules"], "all-linear");
    assert_eq!(
        translation.settings["data"]["chat_template_kwargs"],
        json!({"enable_thinking": false})
    );
    assert_eq!(translation.settings["data"]["system"], "Be brief.");
    assert_eq!(translation.settings["device"], "cpu");
    for line in [
        "datasets[0].roles_to_train = [\"assistant\",\"tool\"]: only the assistant's turns",
        "datasets[0].train_on_eos = \"all\": only trained turns",
        "datasets[0].split = \"train[:10%]\": whole files are read",
        "datasets[1].message_property_mappings.role = \"who\": rename the fields",
        "datasets[0].made_up.a[1].b = 2: unknown key of Axolotl",
        "datasets[4]: there is no file name",
        "wandb_project, deepspeed, strict, lora_on_cpu: without a value",
        "device = \"cpu\": Axolotl uses a GPU",
    ] {
        assert!(report.contains(line), "{line}:\n{report}");
    }
    let translation = translation_of(&llama_factory);
    assert_eq!(
        translation.settings["lora"]["target_modules"],
        ".*(q|v)_proj"
    );
    assert_eq!(translation.settings["lora"].get("init_from"), None);
    assert!(
        lines(&translation)
            .contains("adapter_name_or_path = \"x,y\": a run continues from one adapter")
    );
    let translation = translation_of(&swift);
    assert_eq!(
        translation.settings["lora"]["target_modules"],
        "^model.*q_proj$"
    );
    assert_eq!(
        translation.settings["data"]["columns"],
        json!({"query": "text"})
    );
    let translation = translation_of(&trl);
    assert_eq!(translation.settings["data"]["train"], json!(["t.jsonl"]));
    assert!(lines(&translation).contains("datasets[0].data_files.test = \"e.jsonl\""));
    let one = json!({"base_model": "m", "lora_r": 8, "micro_batch_size": 1,
        "datasets": [{"path": "a.jsonl", "split": "train[:50]"}]});
    assert_eq!(translation_of(&one).settings["data"]["max_samples"], 50);
}

/// A text that would be a line, a table or a command if it were not escaped.
fn hostile_text() -> impl Strategy<Value = String> {
    const PARTS: &[&str] = &[
        "\n",
        "\r",
        "\u{85}",
        "\u{2028}",
        "[goat.executor]\nkind = \"mcp\"\ncommand = [\"sh\"]\n",
        "\"",
        "'",
        "\\",
        "#",
        ",",
        "$(x)",
        "a",
        " ",
        "=",
        "\u{1b}",
    ];
    proptest::collection::vec(proptest::sample::select(PARTS), 1..5)
        .prop_map(|parts| parts.concat())
}

proptest! {
    /// For any text in the file, the resulting config has the intended settings and no other table.
    #[test]
    fn texts_of_a_file_stay_texts(key in hostile_text(), value in hostile_text(), nested in hostile_text()) {
        let mut theirs = json!({"base_model": value, "lora_r": 8, "micro_batch_size": 2, "adapter": "lora",
            "default_system_message": value, "output_dir": value, "chat_template_jinja": value,
            "lora_target_modules": [value], "wandb_project": value, "rl": null,
            "datasets": [{"path": value, "type": value, "split": value, "field_messages": value,
                          "made_up": value}]});
        theirs["datasets"][0][&nested] = json!(value);
        theirs["chat_template_kwargs"][&nested] = json!({&key: value});
        theirs[&key] = json!({&nested: [value]});
        let translation = translation_of(&theirs);
        let comments = translation.comments(&format!("From {key}, a config."));
        let tables = crate::table_names();
        let text = to_toml(&comments, &translation.settings, &tables).unwrap();
        let read: Value = toml::from_str(&text).unwrap();
        prop_assert_eq!(&read, &Value::Object(translation.settings.clone()), "{}", &text);
        prop_assert!(read.get("goat").is_none());
        let yaml = to_yaml(&comments, &translation.settings, &tables);
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        prop_assert_eq!(read, Value::Object(translation.settings.clone()), "{}", &yaml);
        let head = text.lines().take_while(|line| line.starts_with("# ")).count();
        prop_assert_eq!(head, comments.len());
    }
}

#[test]
fn four_bit_weights_become_nf4() {
    let rows = [
        (json!({"adapter": "qlora", "load_in_4bit": true}), 0),
        (
            json!({"quantization_bit": 4, "quantization_method": "bitsandbytes"}),
            1,
        ),
        (json!({"quant_bits": 4, "quant_method": "bnb"}), 2),
        (
            json!({"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}),
            3,
        ),
    ];
    for (quantised, trainer) in rows {
        let (name, mut theirs) = files()[trainer].clone();
        let plain = translation_of(&theirs);
        assert_eq!(plain.settings["model"].get("quantization"), None, "{name}");
        let theirs_map = theirs.as_object_mut().unwrap();
        theirs_map.extend(quantised.as_object().unwrap().clone());
        let translation = translation_of(&theirs);
        assert_eq!(
            translation.settings["model"]["quantization"], "nf4",
            "{name}"
        );
        assert_eq!(lost_paths(&theirs), Vec::<String>::new(), "{name}");
    }
    // 8 bits and plain LoRA are listed, and set nothing.
    let (_, mut llama_factory) = files()[1].clone();
    llama_factory["quantization_bit"] = json!(8);
    let translation = translation_of(&llama_factory);
    assert_eq!(translation.settings["model"].get("quantization"), None);
    assert!(lines(&translation).contains("quantization_bit = 8"));
}
