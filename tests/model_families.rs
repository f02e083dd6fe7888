//! Each model family by the program: it learns, is planned, exported in every way and read again, and its
//! GGUF files compute what its folder does. What a family has shown is its row in the README's table.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tooltune::models::load::expected_tensors;
use tooltune::models::{BatchContext, DecoderConfig};
use tooltune_checkpoints::families::{FAMILIES, Family};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{HostTensor, write_tensors};
use tooltune_rows::batches::SeededRandom;

use crate::bad_input::edit;
use crate::support::{fixture, load_base, max_abs_difference, root};
use crate::workplace::Workplace;

/// Fields that llama.cpp has no place for in some architectures, as the README names them, each with a
/// config that uses it. A family that does not read a field computes the same with it as without.
fn fields(n_layers: usize) -> [(&'static str, Value); 6] {
    let window = json!({
        "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0, "layer_types": null,
    });
    let turned: Vec<u8> = (0..n_layers).map(|layer| (layer > 0).into()).collect();
    [
        ("sliding_window", window),
        ("no_rope_layers", json!({"no_rope_layers": turned})),
        ("query_pre_attn_scalar", json!({"query_pre_attn_scalar": 7})),
        ("attention_bias", json!({"attention_bias": true})),
        ("attention_out_bias", json!({"attention_out_bias": true})),
        ("mlp_bias", json!({"mlp_bias": true})),
    ]
}

/// A tiny model with the tokenizer of the tiny chat model, in a folder of its own.
struct Case {
    /// Its shape, a folder of tests/fixtures/models.
    shape: &'static str,
    /// What is put over the fields of the shape.
    patch: Value,
}

impl Case {
    fn config(&self) -> Value {
        let path = fixture(&format!("models/{}/config.json", self.shape));
        let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let ids = json!({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0});
        let sizes = json!({"vocab_size": 1024, "max_position_embeddings": 4096});
        for fields in [&ids, &sizes, &self.patch] {
            for (key, value) in fields.as_object().into_iter().flatten() {
                config[key] = value.clone();
            }
        }
        // GGUF has the settings of the published models alone.
        if config["rope_scaling"]["rope_type"] == "llama3" {
            config["rope_scaling"]["original_max_position_embeddings"] = 8192.into();
        }
        config
    }

    /// The same with these fields, too.
    fn with(&self, fields: &Value) -> Self {
        let mut patch = self.patch.clone();
        for (key, value) in fields.as_object().into_iter().flatten() {
            patch[key] = value.clone();
        }
        Self { patch, ..*self }
    }

    /// Writes it with random weights, as the folder `name`.
    fn write(&self, workplace: &Workplace, name: &str) -> Result<(), String> {
        write_random_weights(&workplace.copy_model(name), &self.config())
    }
}

/// Replaces the model of a folder by a random one of this `config.json`; tokenizer and template stay.
/// The error is what is refused of the config.
pub(crate) fn write_random_weights(folder: &Path, config: &Value) -> Result<(), String> {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = ModelFiles::read_config(folder).map_err(|error| error.to_string())?;
    let config = DecoderConfig::from_json(&config).map_err(|error| error.to_string())?;
    let mut random = SeededRandom::new(11, 0);
    let mut number = move || random.uniform_f64() as f32 - 0.5;
    let tensors: BTreeMap<String, HostTensor> = expected_tensors(&config)
        .into_iter()
        .map(|(name, shape)| {
            let n = shape.iter().product();
            let width = (shape[shape.len() - 1] as f32).sqrt();
            let scale = 1.7 / if shape.len() == 1 { 1.0 } else { width };
            let centre = match name.contains("norm") {
                true => 1.0 - config.family.norms.offset,
                false => 0.0,
            };
            let values = (0..n).map(|_| centre + scale * number()).collect();
            (name, HostTensor { shape, values })
        })
        .collect();
    let weights = folder.join("model.safetensors");
    std::fs::remove_file(&weights).unwrap();
    write_tensors(&weights, &tensors).unwrap();
    Ok(())
}

/// Logits of a text by a model of the workplace, a folder or a GGUF file.
fn logits(workplace: &Workplace, model: &str) -> Vec<f32> {
    let decoder = load_base(&workplace.path(model));
    let ids: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 1024).collect();
    let positions: Vec<u32> = (0..ids.len() as u32).collect();
    let context = BatchContext::new(&decoder, &positions, &[0, ids.len()]);
    let logits = decoder.logits(decoder.forward(&ids, &context));
    logits.into_data().iter::<f32>().collect()
}

/// The largest difference as a share of the largest number of the second.
fn share(ours: &[f32], theirs: &[f32]) -> f64 {
    let largest = theirs.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    max_abs_difference(ours, theirs) / f64::from(largest)
}

fn run(workplace: &Workplace, words: &str) -> String {
    workplace.run(words.split(' ')).success()
}

/// Learns two steps with the model of the folder `model`, and is evaluated after them.
fn learns(workplace: &Workplace) {
    let settings =
        "--set model.model_name_or_path=model --set train.max_steps=2 --set data.max_length=2048";
    run(workplace, &format!("train config.toml {settings}"));
    run(workplace, &format!("plan config.toml {settings}"));
    let metrics = workplace.read("run/metrics.jsonl");
    let mut lines = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_evaluated = |line: &Value| line["step"] == 2 && line["eval/slot.mean"].is_number();
    assert!(lines.any(|line| is_evaluated(&line)), "{metrics}");
}

/// Every export of the run but whole models in GGUF, read by the rules of its target.
fn is_exported(workplace: &Workplace, case: &Case) {
    for (target, output, reader) in [
        ("peft", "peft", "peft-rules"),
        ("peft --neutral", "neutral", "vllm-rules"),
        ("gguf", "adapter.gguf", "gguf"),
        ("merged", "merged", "merged"),
    ] {
        run(
            workplace,
            &format!("export run --checkpoint last --to {target} --output {output}"),
        );
        let verify =
            format!("verify run --checkpoint last --rows 1 --against {reader} --export {output}");
        let said = run(workplace, &verify);
        assert!(
            said.contains("agrees with"),
            "{} {reader}: {said}",
            case.shape
        );
    }
    let (merged, base) = (logits(workplace, "merged"), logits(workplace, "model"));
    assert!(share(&merged, &base) > 1e-3, "nothing was learned");
    // A merged model is a model of the same family.
    let config = |folder: &str| ModelFiles::read_config(&workplace.path(folder)).unwrap();
    assert_eq!(
        config("merged")["model_type"],
        config("model")["model_type"]
    );
}

/// The run as a whole model in GGUF, in every format and for Ollama, beside its merged folder; the family
/// that reads it.
///
/// Where llama.cpp has no place for a `field` of the model, the export is refused by its name, and the
/// adapter is merged with the model of the same weights without it, the case `without`.
fn is_written_whole(
    workplace: &Workplace,
    case: &Case,
    field: Option<&str>,
    without: &Case,
) -> String {
    let (mut adapter, mut merged) = ("run --checkpoint last", "merged");
    if let Some(field) = field {
        refuses(workplace, adapter, field);
        without.write(workplace, "without").unwrap();
        edit(
            &workplace.path("peft/adapter_config.json"),
            "base_model_name_or_path",
            "without".into(),
        );
        (adapter, merged) = ("peft", "merged-without");
        run(
            workplace,
            &format!("export {adapter} --to merged --output {merged}"),
        );
    }
    let theirs = logits(workplace, merged);
    // f32 holds the sums that the folder holds; others round each weight once.
    for (dtype, most) in [("f32", 1e-6), ("f16", 5e-3), ("q8_0", 0.1)] {
        let output = format!("{dtype}.gguf");
        run(
            workplace,
            &format!("export {adapter} --to gguf --merged --dtype {dtype} --output {output}"),
        );
        let differs = share(&logits(workplace, &output), &theirs);
        assert!(differs <= most, "{} {dtype}: {differs}", case.shape);
        assert!(
            dtype == "f32" || differs > 0.0,
            "{} {dtype} is not rounded",
            case.shape
        );
    }
    run(
        workplace,
        &format!("export {adapter} --to ollama --output ollama"),
    );
    let read = |name: &str| std::fs::read(workplace.path(name)).unwrap();
    assert!(
        read("ollama/model.gguf") == read("f16.gguf"),
        "{}",
        case.shape
    );
    assert!(
        workplace
            .read("ollama/Modelfile")
            .contains("FROM ./model.gguf\nTEMPLATE ")
    );
    // The vocabulary is read as the folder's tokenizer, and the file is a model to learn on.
    let texts = ["f32.gguf", merged].map(|model| {
        run(
            workplace,
            &format!("generate {model} --message Hi --set eval.max_new_tokens=8"),
        )
    });
    assert_eq!(texts[0], texts[1]);
    let settings = "--set model.model_name_or_path=f32.gguf --set train.output_dir=again --set train.max_steps=1";
    run(
        workplace,
        &format!("train config.toml {settings} --set eval.eval_strategy=no"),
    );
    let config = ModelFiles::open(&workplace.path("f32.gguf"))
        .unwrap()
        .config;
    config["model_type"].as_str().unwrap().to_owned()
}

/// Exports a model that llama.cpp computes otherwise: it is refused by the name of the field, or of the
/// tensors that the field is about.
fn refuses(workplace: &Workplace, target: &str, field: &str) -> String {
    let export = format!("export {target} --to gguf --merged --output refused.gguf");
    let answer = workplace.run(export.split(' '));
    let tensors = if field.ends_with("bias") {
        "proj.bias"
    } else {
        field
    };
    let is_named = answer.stderr.contains(field) || answer.stderr.contains(tensors);
    assert!(
        answer.status != Some(0) && is_named,
        "{target} with {field}: {}",
        answer.stderr
    );
    assert!(
        answer.stderr.contains("--to merged"),
        "no remedy: {}",
        answer.stderr
    );
    assert!(!workplace.path("refused.gguf").exists());
    answer.stderr
}

/// Of each of [`fields`], the base alone as a GGUF file: it computes what the folder does, or is refused.
/// The names of those that are.
fn refused_fields(workplace: &Workplace, case: &Case) -> Vec<&'static str> {
    let n_layers = case.config()["num_hidden_layers"].as_u64().unwrap() as usize;
    let mut refused = Vec::new();
    for (field, patch) in fields(n_layers) {
        let with = case.with(&patch);
        // What transformers does not have in this family is refused wherever it is read.
        if with.write(workplace, field).is_err() {
            continue;
        }
        let output = format!("{field}.gguf");
        let export = format!("export {field} --to gguf --merged --dtype f32 --output {output}");
        if workplace.run(export.split(' ')).status == Some(0) {
            let differs = share(&logits(workplace, &output), &logits(workplace, field));
            assert!(differs <= 1e-6, "{} with {field}: {differs}", case.shape);
        } else {
            refuses(workplace, field, field);
            refused.push(field);
        }
    }
    refused
}

/// The whole way of a family, and its row in the README's table.
fn check(case: &Case, field: Option<(&str, Value)>) {
    let workplace = Workplace::new();
    case.write(&workplace, "model").unwrap();
    learns(&workplace);
    is_exported(&workplace, case);
    let [read_as, whole, adapter] = in_gguf(&workplace, case, field);
    let model_type = case.config()["model_type"].as_str().unwrap().to_owned();
    let row = format!("| `{model_type}` | yes | yes | {read_as} | yes | {whole} | {adapter} |");
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(
        readme.lines().any(|line| line == row),
        "the README lacks the row\n{row}"
    );
}

/// What the README says of a family in GGUF: how a file is read, what is written, and the adapter.
fn in_gguf(workplace: &Workplace, case: &Case, field: Option<(&str, Value)>) -> [String; 3] {
    let (field, patch) = field.unzip();
    let without = case.with(&patch.unwrap_or_default());
    let read_as = is_written_whole(workplace, case, field, &without);
    let refused = refused_fields(workplace, &without);

    let model_type = case.config()["model_type"].as_str().unwrap().to_owned();
    let read_as = match read_as == model_type {
        true => "yes".to_owned(),
        false => format!("as `{read_as}`"),
    };
    let names: Vec<String> = refused.iter().map(|field| format!("`{field}`")).collect();
    let whole = match names.is_empty() {
        true => "yes".to_owned(),
        false => format!("without {}", names.join(", ")),
    };
    [read_as, whole, "yes".to_owned()]
}

macro_rules! goes_its_way {
    ($($shape:ident $(, $field:literal: $without:tt)?);+ $(;)?) => {
        /// Shapes of the families, each of which has a test here.
        const SHAPES: &[&str] = &[$(stringify!($shape)),+];

        $(#[test]
        fn $shape() {
            #[allow(unused_mut, unused_assignments)]
            let mut field = None;
            $(field = Some(($field, json!($without)));)?
            check(&Case { shape: stringify!($shape), patch: json!({}) }, field);
        })+
    };
}

goes_its_way!(
    llama31;
    mistral_window, "sliding_window": {"sliding_window": null};
    qwen2;
    qwen3;
    granite;
    smollm3;
    phi3, "sliding_window": {"sliding_window": null};
    seed_oss;
    olmo3, "attention_factor": {"rope_parameters": {
        "full_attention": {
            "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0,
            "original_max_position_embeddings": 128,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
    }};
    gemma3_text;
    ministral3;
    qwen3_5_text_even;
);

/// Heads of keys and values of two sizes, blocks in no fixed turn, and sections by which texts turn
/// otherwise: llama.cpp loads the second alone.
#[test]
fn linear_attention_that_llama_cpp_does_not_have_is_refused_whole() {
    let workplace = Workplace::new();
    let case = |patch| Case {
        shape: "qwen3_5_text_even",
        patch,
    };
    let values = case(json!({"linear_value_head_dim": 6}));
    values.write(&workplace, "values").unwrap();
    refuses(&workplace, "values", "linear_value_head_dim");
    let sections = json!({"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "mrope_section": [4, 0, 0],
    }});
    case(sections).write(&workplace, "sections").unwrap();
    refuses(&workplace, "sections", "mrope_section");
    let kinds = ["full_attention", "full_attention", "linear_attention"];
    let kinds = case(json!({"layer_types": kinds}));
    kinds.write(&workplace, "kinds").unwrap();
    run(
        &workplace,
        "export kinds --to gguf --merged --dtype f32 --output kinds.gguf",
    );
    let [ours, theirs] = ["kinds.gguf", "kinds"].map(|model| logits(&workplace, model));
    let differs = share(&ours, &theirs);
    assert!(differs <= 1e-6, "{differs}");
}

/// llama.cpp multiplies cosines and sines by a number of its own, in every family.
#[test]
fn a_yarn_of_another_factor_is_refused_whole() {
    let workplace = Workplace::new();
    let yarn = json!({"rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5,
        "original_max_position_embeddings": 1024,
    }});
    let case = Case {
        shape: "llama31",
        patch: yarn,
    };
    case.write(&workplace, "yarn").unwrap();
    refuses(&workplace, "yarn", "attention_factor");
}

/// The README's table has a row of each family, which its test compares, and no other.
#[test]
fn every_family_has_a_test_and_a_row() {
    assert_eq!(SHAPES.len(), FAMILIES.len());
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let table = readme
        .lines()
        .skip_while(|line| !line.starts_with("| `model_type` |"));
    let rows: Vec<&str> = table
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .collect();
    assert_eq!(rows.len(), FAMILIES.len());
    for (Family { model_type, .. }, row) in FAMILIES.iter().zip(rows) {
        assert!(
            SHAPES.iter().any(|shape| shape.starts_with(model_type)),
            "{model_type}"
        );
        assert!(
            row.starts_with(&format!("| `{model_type}` |")),
            "{model_type}: {row}"
        );
    }
}
