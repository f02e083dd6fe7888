//! Randomly damages models, adapters and runs. The outcome must be an error or a result, never a
//! panic, and memory must remain proportional to the file sizes.
//!
//! The damage is derived from a seed, which a failure prints. `TOOLTUNE_MUTATIONS` sets the number
//! of damaged files per kind (default 300), `TOOLTUNE_MUTATIONS_SEED` the first seed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{
    GgufBase, ModuleScaling, TargetModules, load_adapter, read_gguf_adapter, save_adapter,
    write_gguf_adapter,
};
use tooltune_checkpoints::run_dir::Selected;
use tooltune_checkpoints::sentence_transformers::SentenceTransformer;
use tooltune_checkpoints::weights::FloatDtype;
use tooltune_checkpoints::{
    Adapter, HostTensor, MetricsFile, ModelFiles, PeftConfig, RunDir, Weights,
};

/// Maximum memory. The files are a few tens of kilobytes long, and even a small header must not
/// request more than this.
const MAX_BYTES: u64 = 512 << 20;

/// Lengths and counts at which file arithmetic tends to fail.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 61,
    i64::MAX as u64,
    u64::MAX,
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Prints the seed when a test panics.
struct Seed<'a>(&'a str, u64);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(kind, seed) = self;
            // The test harness shows the output of a failed test.
            let command = format!("{kind}: TOOLTUNE_MUTATIONS=1 TOOLTUNE_MUTATIONS_SEED={seed}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), command.as_bytes());
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let typed = std::env::var(variable).ok();
    typed.map_or(default, |text| text.parse().expect("a number"))
}

/// Calls `work` with a random generator for each damaged file.
fn for_each_seed(kind: &str, mut work: impl FnMut(&mut Random)) {
    let first = number("TOOLTUNE_MUTATIONS_SEED", 1);
    for seed in first..first + number("TOOLTUNE_MUTATIONS", 300) {
        let _seed = Seed(kind, seed);
        work(&mut Random(seed));
    }
    if let Some(most) = peak_memory() {
        assert!(most < MAX_BYTES, "{kind}: {most} bytes at the peak");
    }
}

/// Peak memory of this process so far, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Damages the bytes of a file in one to three places, mostly in its header.
fn damage(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return bytes;
        }
        let reach = match random.below(4) {
            0 => bytes.len(),
            _ => bytes.len().min(2_000),
        };
        let offset = random.below(reach);
        match random.below(7) {
            0 => bytes[offset] ^= 1 << random.below(8),
            1 => bytes[offset] = random.next() as u8,
            2 => {
                let edge = random.one_of(&EDGES).to_le_bytes();
                let n = *random.one_of(&[4, 8]).min(&(bytes.len() - offset));
                bytes[offset..offset + n].copy_from_slice(&edge[..n]);
            }
            3 => bytes.truncate(offset),
            4 => drop(bytes.drain(offset..(offset + 1 + random.below(40)).min(bytes.len()))),
            5 => {
                let end = (offset + 1 + random.below(40)).min(bytes.len());
                let again = bytes[offset..end].to_vec();
                bytes.splice(offset..offset, again);
            }
            _ => drop(bytes.splice(offset..offset, [random.next() as u8; 3])),
        }
    }
    bytes
}

/// An unusual or misplaced value.
fn unusual_value(random: &mut Random) -> Value {
    let number = *random.one_of(&EDGES);
    match random.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(0.5),
        4 => json!(1e308),
        5 => json!(""),
        6 => json!("x".repeat(1_000)),
        7 => json!("../../etc/passwd"),
        8 => json!([]),
        9 => json!({}),
        10 => json!([[[0]], {"a": null}]),
        11 => json!("\u{0}\u{feff}é"),
        12 => json!(["q_proj", 1, null]),
        _ => json!(number),
    }
}

/// Replaces one to three values by unusual ones, or removes or renames fields.
fn with_unusual_values(random: &mut Random, file: &Value) -> Value {
    let mut file = file.clone();
    for _ in 0..=random.below(3) {
        let mut value = &mut file;
        loop {
            let n = match value {
                Value::Object(fields) => fields.len(),
                Value::Array(items) => items.len(),
                _ => 0,
            };
            if n == 0 || random.below(4) == 0 {
                break;
            }
            let chosen = random.below(n);
            value = match value {
                Value::Object(fields) => fields.values_mut().nth(chosen).expect("a field"),
                Value::Array(items) => &mut items[chosen],
                _ => break,
            };
        }
        match (random.below(5), &mut *value) {
            (0, Value::Object(fields)) if !fields.is_empty() => {
                let chosen = random.below(fields.len());
                let key = fields.keys().nth(chosen).expect("a key").clone();
                fields.remove(&key);
            }
            (1, Value::Object(fields)) => {
                fields.insert(format!("key{}", random.below(9)), unusual_value(random));
            }
            (2, Value::Array(items)) => items.push(unusual_value(random)),
            _ => *value = unusual_value(random),
        }
    }
    file
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fs::read(folder.join(name)).expect(name)
}

/// Reads every tensor and ignores errors.
fn read_all(weights: &Weights) {
    for name in weights.names() {
        let _ = weights.read_f32(name);
    }
    let _ = weights.not_finite();
}

/// Opens a base model and reads its contents.
fn read_model(path: &Path) {
    if let Ok(model) = ModelFiles::open(path) {
        read_all(&model.weights);
        let _ = GgufBase::from_config(path, &model.config);
    }
    let _ = ModelFiles::read_config(path);
}

/// Invariant: Random damage to a model, adapter or run gives an error or a result in bounded
/// memory.
#[test]
fn damaged_gguf_files_are_errors_or_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    let qwen2 = GgufBase::from_config(&path, &json!({"model_type": "qwen2"}));
    let qwen2 = qwen2.expect("a base").architecture;
    // The second has linear attention, whose order depends on more header fields.
    for name in [
        "tiny_llama.gguf",
        "../../../tests/fixtures/models/qwen3_5_text_even/model.gguf",
    ] {
        let bytes = fixture(name);
        for_each_seed("gguf", |random| {
            fs::write(&path, damage(random, &bytes)).expect("written");
            read_model(&path);
            let _ = read_gguf_adapter(&path, qwen2);
        });
    }
}

/// Invariant: Random damage to a model, adapter or run gives an error or a result in bounded
/// memory.
#[test]
fn damaged_safetensors_files_are_errors_or_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = fixture("tiny_llama.safetensors");
    let path = folder.path().join("model.safetensors");
    let n = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + n]).expect("a header");
    for_each_seed("safetensors", |random| {
        // Damaged bytes, or a valid header with other values.
        let bytes = match random.below(2) {
            0 => damage(random, &whole),
            _ => {
                let header = with_unusual_values(random, &header).to_string();
                let length = (header.len() as u64).to_le_bytes();
                [&length[..], header.as_bytes(), &whole[8 + n..]].concat()
            }
        };
        fs::write(&path, bytes).expect("written");
        if let Ok(weights) = Weights::open(&path) {
            read_all(&weights);
        }
    });
}

/// Invariant: Random damage to a model, adapter or run gives an error or a result in bounded
/// memory.
#[test]
fn damaged_nf4_files_are_errors_or_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = fixture("nf4/cases.safetensors");
    let path = folder.path().join("model.safetensors");
    let n = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + n]).expect("a header");
    // The positions of the JSON descriptions in the file.
    let states = header.as_object().expect("an object").iter();
    let states = states.filter(|(name, _)| name.contains("quant_state"));
    let range =
        |offsets: &Value| [0, 1].map(|i| 8 + n + offsets[i].as_u64().expect("one") as usize);
    let states: Vec<[usize; 2]> = states
        .map(|(_, info)| range(&info["data_offsets"]))
        .collect();
    for_each_seed("nf4", |random| {
        let bytes = match random.below(3) {
            0 => damage(random, &whole),
            1 => {
                let header = with_unusual_values(random, &header).to_string();
                let length = (header.len() as u64).to_le_bytes();
                [&length[..], header.as_bytes(), &whole[8 + n..]].concat()
            }
            // A description with other values or damaged bytes, of the same length.
            _ => {
                let [begin, end] = *random.one_of(&states);
                let state: Value = serde_json::from_slice(&whole[begin..end]).expect("JSON");
                let mut state = match random.below(2) {
                    0 => damage(random, &whole[begin..end]),
                    _ => with_unusual_values(random, &state).to_string().into_bytes(),
                };
                state.resize(end - begin, b' ');
                [&whole[..begin], &state[..], &whole[end..]].concat()
            }
        };
        fs::write(&path, bytes).expect("written");
        if let Ok(weights) = Weights::open(&path) {
            read_all(&weights);
            let names: Vec<String> = weights.names().map(str::to_owned).collect();
            for name in names {
                let _ = weights.read_nf4(&name);
            }
        }
    });
}

/// The small files of a Hugging Face folder.
fn model_files() -> Vec<(&'static str, Value)> {
    let token = |content: &str, id: usize| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    vec![
        (
            "config.json",
            json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
                "rms_norm_eps": 1e-5, "rope_theta": 1e5, "max_position_embeddings": 128,
                "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e5,
                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64},
                "tie_word_embeddings": true, "eos_token_id": [1, 2]}),
        ),
        (
            "tokenizer.json",
            json!({"version": "1.0", "added_tokens": [token("<s>", 0), token("</s>", 1)],
                "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1}, "merges": []},
                "pre_tokenizer": null, "post_processor": null, "decoder": null}),
        ),
        (
            "tokenizer_config.json",
            json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                "eos_token": {"content": "</s>", "lstrip": false},
                "added_tokens_decoder": {"0": token("<s>", 0), "1": token("</s>", 1)},
                "extra_special_tokens": ["<a>"], "model_max_length": 1e30,
                "chat_template": [{"name": "default", "template": "{{ messages }}"}]}),
        ),
        (
            "generation_config.json",
            json!({"eos_token_id": 1, "do_sample": true, "temperature": 0.6, "top_p": 0.9}),
        ),
        (
            "special_tokens_map.json",
            json!({"bos_token": "<s>", "additional_special_tokens": ["<b>"]}),
        ),
        ("added_tokens.json", json!({"<c>": 3})),
        (
            "model.safetensors.index.json",
            json!({"metadata": {"total_size": 1}, "weight_map": {"a": "b.safetensors"}}),
        ),
    ]
}

/// Invariant: Random damage to a model, adapter or run gives an error or a result in bounded
/// memory.
#[test]
fn damaged_config_and_tokenizer_files_are_errors_or_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = folder.path().join("model.safetensors");
    fs::write(&weights, fixture("tiny_llama.safetensors")).expect("written");
    let files = model_files();
    for (name, value) in &files {
        fs::write(folder.path().join(name), value.to_string()).expect("written");
    }
    read_model(folder.path());
    for_each_seed("model folder", |random| {
        let (name, whole) = random.one_of(&files);
        let bytes = match random.below(2) {
            0 => damage(random, whole.to_string().as_bytes()),
            _ => with_unusual_values(random, whole).to_string().into_bytes(),
        };
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        // The index is used only if there is no single weights file.
        let is_index = *name == "model.safetensors.index.json";
        let aside = folder.path().join("aside");
        if is_index {
            fs::rename(&weights, &aside).expect("renamed");
        }
        read_model(folder.path());
        if is_index {
            fs::rename(&aside, &weights).expect("renamed");
        }
        fs::write(&path, whole.to_string()).expect("written");
    });
}

/// An adapter of rank 2 on one module.
fn adapter() -> Adapter {
    let names = TargetModules::Names(vec!["q_proj".to_owned()]);
    let module = "model.layers.0.self_attn.q_proj";
    let tensor = |shape: [usize; 2]| HostTensor {
        values: vec![0.5; shape[0] * shape[1]],
        shape: shape.to_vec(),
    };
    Adapter {
        config: PeftConfig::new(2, 4.0, names),
        tensors: BTreeMap::from([
            (format!("{module}.lora_A.weight"), tensor([2, 32])),
            (format!("{module}.lora_B.weight"), tensor([32, 2])),
        ]),
    }
}

/// Invariant: Random damage to a model, adapter or run gives an error or a result in bounded
/// memory.
#[test]
fn damaged_adapters_are_errors_or_adapters() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("adapter");
    save_adapter(&dir, &adapter(), FloatDtype::F32, &PromptFiles::default()).expect("saved");
    load_adapter(&dir).expect("whole");
    let names = ["adapter_config.json", "adapter_model.safetensors"];
    let files = names.map(|name| (dir.join(name), fs::read(dir.join(name)).expect("written")));
    let config: Value = serde_json::from_slice(&files[0].1).expect("JSON");
    for_each_seed("adapter", |random| {
        let (path, whole) = random.one_of(&files);
        let is_config = *path == files[0].0;
        let bytes = match (is_config, random.below(2)) {
            (true, 0) => with_unusual_values(random, &config)
                .to_string()
                .into_bytes(),
            _ => damage(random, whole),
        };
        fs::write(path, bytes).expect("written");
        if let Ok(adapter) = load_adapter(&dir) {
            let expected = vec![("x".to_owned(), vec![1])];
            let _ = adapter.check(&dir, &expected);
            // Everything that can be read can also be written.
            let copy = folder.path().join("copy");
            if save_adapter(&copy, &adapter, FloatDtype::F32, &PromptFiles::default()).is_ok() {
                fs::remove_dir_all(&copy).expect("removed");
            }
        }
        fs::write(path, whole).expect("written");
    });
}

#[test]
fn damaged_gguf_adapters_are_errors_or_adapters() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("adapter.gguf");
    let config = json!({"model_type": "qwen2", "num_attention_heads": 4});
    let base = GgufBase::from_config(&path, &config).expect("a base");
    let scaling = ModuleScaling {
        rank: 2,
        scaling: 2.0,
    };
    let scalings = BTreeMap::from([("model.layers.0.self_attn.q_proj".to_owned(), scaling)]);
    write_gguf_adapter(&path, &adapter(), &scalings, &base, FloatDtype::F32).expect("written");
    let bytes = fs::read(&path).expect("written");
    read_gguf_adapter(&path, base.architecture).expect("whole");
    for_each_seed("gguf adapter", |random| {
        fs::write(&path, damage(random, &bytes)).expect("written");
        let _ = read_gguf_adapter(&path, base.architecture);
    });
}

#[test]
fn damaged_folders_of_encoders_are_errors_or_encoders() {
    let folder = tempfile::tempdir().expect("a folder");
    let class = |name: &str| format!("sentence_transformers.models.{name}");
    let files = [
        (
            "modules.json",
            json!([{"idx": 0, "name": "0", "path": "", "type": class("Transformer")},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": class("Pooling")},
                {"idx": 2, "name": "2", "path": "2_Normalize", "type": class("Normalize")}]),
        ),
        (
            "1_Pooling/config.json",
            json!({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true,
                "pooling_mode_cls_token": false, "include_prompt": true}),
        ),
        (
            "sentence_bert_config.json",
            json!({"max_seq_length": 128, "do_lower_case": false}),
        ),
        (
            "config_sentence_transformers.json",
            json!({"prompts": {"query": "q: ", "document": ""}, "similarity_fn_name": "cosine",
                "default_prompt_name": null}),
        ),
        (
            "tokenizer_config.json",
            json!({"tokenizer_class": "BertTokenizer", "do_lower_case": true,
                "model_max_length": 512}),
        ),
    ];
    let path_of = |name: &str| folder.path().join(name);
    fs::create_dir(path_of("1_Pooling")).expect("a folder");
    for (name, value) in &files {
        fs::write(path_of(name), value.to_string()).expect("written");
    }
    SentenceTransformer::read(folder.path(), 32).expect("whole");
    for_each_seed("encoder", |random| {
        let (name, whole) = random.one_of(&files);
        let bytes = match random.below(2) {
            0 => damage(random, whole.to_string().as_bytes()),
            _ => with_unusual_values(random, whole).to_string().into_bytes(),
        };
        fs::write(path_of(name), bytes).expect("written");
        if let Ok(encoder) = SentenceTransformer::read(folder.path(), 32) {
            let _ = (encoder.query_prompt(), encoder.default_prompt());
            let _ = (encoder.document_prompt(), encoder.length(512));
        }
        fs::write(path_of(name), whole.to_string()).expect("written");
    });
}

#[test]
fn damaged_files_of_runs_are_errors_or_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("run");
    let run = RunDir::create_or_open(&root).expect("a run");
    let save = |step| {
        run.save_checkpoint(step, |dir| {
            fs::write(dir.join("state.json"), "{}").expect("written");
            Ok(())
        })
    };
    save(1).expect("saved");
    save(2).expect("saved");
    let best = Selected {
        step: 1,
        metric: "slot.mean",
        value: 0.5,
        chosen_at: None,
    };
    run.set_best(best).expect("set");
    let lines = MetricsFile::open(&root.join("metrics.jsonl"));
    let line = Value::Object(Map::from_iter([("step".to_owned(), json!(1))]));
    lines
        .and_then(|mut lines| lines.append(&line))
        .expect("written");
    let names = [
        "LATEST",
        "BEST",
        "metrics.jsonl",
        "checkpoint-000002/manifest.json",
        "checkpoint-000002/state.json",
    ];
    let path_of = |name: &str| -> PathBuf { root.join(name) };
    let files = names.map(|name| (name, fs::read(path_of(name)).expect(name)));
    for_each_seed("run", |random| {
        let (name, whole) = random.one_of(&files);
        fs::write(path_of(name), damage(random, whole)).expect("written");
        let run_dir = RunDir::open_to_read(&root).expect("a folder");
        let _ = (run_dir.latest(), run_dir.best());
        let newest = run_dir.latest_valid().expect("a folder that can be listed");
        let newest = newest.checkpoint.expect("the first one is whole");
        assert!(newest.step == 1 || newest.step == 2);
        let _ = MetricsFile::read(&path_of("metrics.jsonl"));
        fs::write(path_of(name), whole).expect("written");
    });
}
