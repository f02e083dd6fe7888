//! Each model family in the whole program: training, `plan`, and every export, which is read again.
//! Its GGUF files must compute the same logits as its folder, and its row in docs/models.md must
//! match the results.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Value, json};
use tooltune::models::families as networks;
use tooltune::models::load::expected_tensors;
use tooltune::models::{BatchContext, DecoderConfig};
use tooltune_checkpoints::families::{FAMILIES, Family};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{HostTensor, write_tensors};
use tooltune_rows::batches::SeededRandom;

use crate::bad_input::edit;
use crate::shapes::{folder_of, unsupported_by_llama_cpp};
use crate::support::{fixture, load_base, max_abs_difference, root};
use crate::workplace::Workplace;

/// Fields in docs/models.md that llama.cpp does not support in some architectures, each with config
/// values that use it. If a family does not have a field, the field does not change its logits.
fn fields(n_layers: usize) -> [(&'static str, Value); 6] {
    let window = json!({
        "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0, "layer_types": null,
    });
    let rotated_layers: Vec<u8> = (0..n_layers).map(|layer| (layer > 0).into()).collect();
    [
        ("sliding_window", window),
        ("no_rope_layers", json!({"no_rope_layers": rotated_layers})),
        ("query_pre_attn_scalar", json!({"query_pre_attn_scalar": 7})),
        ("attention_bias", json!({"attention_bias": true})),
        ("attention_out_bias", json!({"attention_out_bias": true})),
        ("mlp_bias", json!({"mlp_bias": true})),
    ]
}

/// A tiny model with the tokenizer of the tiny chat model, in its own folder.
struct Case {
    /// A folder of tests/fixtures/models, whose config has the shape.
    shape: &'static str,
    /// Fields that override the shape.
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
        // GGUF does not store this value; llama.cpp uses the value of the published models.
        if config["rope_scaling"]["rope_type"] == "llama3" {
            config["rope_scaling"]["original_max_position_embeddings"] = 8192.into();
        }
        config
    }

    /// The same model with these additional fields.
    fn with_fields(&self, fields: &Value) -> Self {
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

/// Replaces the model of a folder by a random one with this `config.json`; tokenizer and template
/// are kept. Returns an error if the config is rejected.
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

/// Logits of a text from a model of the workplace, a folder or a GGUF file.
fn logits(workplace: &Workplace, model: &str) -> Vec<f32> {
    let decoder = load_base(&workplace.path(model));
    let ids: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 1024).collect();
    let positions: Vec<u32> = (0..ids.len() as u32).collect();
    let context = BatchContext::new(&decoder, &positions, &[0, ids.len()]);
    let logits = decoder.logits(decoder.forward(&ids, &context));
    logits.into_data().iter::<f32>().collect()
}

/// The largest absolute difference, relative to the largest absolute value of `theirs`.
fn relative_change(ours: &[f32], theirs: &[f32]) -> f64 {
    let largest = theirs.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    max_abs_difference(ours, theirs) / f64::from(largest)
}

fn run(workplace: &Workplace, words: &str) -> String {
    workplace.run(words.split(' ')).success()
}

/// Trains two steps with the model in the folder `model`, and evaluates after them.
fn check_training(workplace: &Workplace) {
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

/// Writes every export of the run except whole GGUF models, and reads it by the rules of its
/// target.
fn check_exports(workplace: &Workplace, case: &Case) {
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
        let output = run(workplace, &verify);
        assert!(
            output.contains(" matches "),
            "{} {reader}: {output}",
            case.shape
        );
    }
    let (merged, base) = (logits(workplace, "merged"), logits(workplace, "model"));
    assert!(
        relative_change(&merged, &base) > 1e-3,
        "training did not change the logits"
    );
    // The merged model has the same model type.
    let config = |folder: &str| ModelFiles::read_config(&workplace.path(folder)).unwrap();
    assert_eq!(
        config("merged")["model_type"],
        config("model")["model_type"]
    );
}

/// Exports the run as a whole GGUF model, in every dtype and for Ollama, compares the models with
/// the merged folder, and returns the `model_type` that the GGUF file is read as.
///
/// If llama.cpp does not support a `field` of the model, the export must fail and name the field.
/// Then the adapter is merged into the case `without`: the same weights without the field.
fn check_gguf_model(
    workplace: &Workplace,
    case: &Case,
    field: Option<&str>,
    without: &Case,
) -> String {
    let (mut adapter, mut merged) = ("run --checkpoint last", "merged");
    if let Some(field) = field {
        assert_export_refused(workplace, adapter, field);
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
    // In f32 the file has the weights of the folder; other dtypes round each weight once.
    for (dtype, bound) in [("f32", 1e-6), ("f16", 5e-3), ("q8_0", 0.1)] {
        let output = format!("{dtype}.gguf");
        run(
            workplace,
            &format!("export {adapter} --to gguf --merged --dtype {dtype} --output {output}"),
        );
        let difference = relative_change(&logits(workplace, &output), &theirs);
        assert!(difference <= bound, "{} {dtype}: {difference}", case.shape);
        assert!(
            dtype == "f32" || difference > 0.0,
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
    if case.shape == "phi3" {
        check_context_size(workplace, adapter);
    }
    // The file's tokenizer gives the same completion as the folder's, and the file can be trained.
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

/// llama.cpp uses the factors for long texts if its context is larger than the original one. The
/// export therefore prints the original size, and the Modelfile sets it if the model was trained
/// only on short texts.
fn check_context_size(workplace: &Workplace, adapter: &str) {
    for (max_length, is_set) in [(64, true), (65, false)] {
        let output = format!("ollama-{max_length}");
        let settings = format!("--set data.max_length={max_length} --output {output}");
        let answer = workplace.run(format!("export {adapter} --to ollama {settings}").split(' '));
        assert!(answer.stderr.contains("--ctx-size 64"), "{}", answer.stderr);
        answer.success();
        let modelfile = workplace.read(&format!("{output}/Modelfile"));
        let sets = modelfile.contains("PARAMETER num_ctx 64\n");
        assert_eq!(sets, is_set, "{modelfile}");
    }
}

/// Asserts that the export of a model that llama.cpp computes differently is refused, and that the
/// error names the field or its tensors.
fn assert_export_refused(workplace: &Workplace, target: &str, field: &str) -> String {
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

/// Exports the base with each of [`fields`] as a GGUF file, which must compute the same logits as
/// the folder or be refused. Returns the refused fields.
fn refused_fields(workplace: &Workplace, case: &Case) -> Vec<&'static str> {
    let n_layers = case.config()["num_hidden_layers"].as_u64().unwrap() as usize;
    let mut refused = Vec::new();
    for (field, patch) in fields(n_layers) {
        let changed = case.with_fields(&patch);
        // Skip fields that transformers does not have in this family: the config is rejected.
        if changed.write(workplace, field).is_err() {
            continue;
        }
        let output = format!("{field}.gguf");
        let export = format!("export {field} --to gguf --merged --dtype f32 --output {output}");
        if workplace.run(export.split(' ')).status == Some(0) {
            let difference =
                relative_change(&logits(workplace, &output), &logits(workplace, field));
            assert!(
                difference <= 1e-6,
                "{} with {field}: {difference}",
                case.shape
            );
        } else {
            assert_export_refused(workplace, field, field);
            refused.push(field);
        }
    }
    refused
}

/// The position of `model_type` in the order of families.
fn position(model_type: &str) -> Option<usize> {
    FAMILIES
        .iter()
        .position(|family| family.model_type == model_type)
}

/// The rows of the table of families in docs/models.md.
fn table_rows(page: &str) -> Vec<&str> {
    page.lines()
        .skip_while(|line| !line.starts_with("| `model_type` |"))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .collect()
}

/// The `model_type` of a row.
fn type_of(row: &str) -> &str {
    row.split('`').nth(1).unwrap_or_default()
}

/// Writes the row of a family into the table of docs/models.md.
fn write_row(page: &Path, model_type: &str, row: &str) {
    static WRITING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = WRITING.lock().unwrap();
    let text = std::fs::read_to_string(page).unwrap();
    let old = table_rows(&text);
    let others = old.iter().copied();
    let mut rows: Vec<&str> = others.filter(|row| type_of(row) != model_type).collect();
    rows.push(row);
    rows.sort_by_key(|row| position(type_of(row)));
    let [old, rows] = [old, rows].map(|rows| rows.join("\n"));
    std::fs::write(page, text.replacen(&old, &rows, 1)).unwrap();
}

fn writes_guide() -> bool {
    std::env::var_os("TOOLTUNE_WRITE_GUIDE").is_some()
}

/// Trains, exports and reads back a family, and compares its row in docs/models.md.
fn check(family: &'static str) {
    let model_type = family;
    let family = FAMILIES
        .iter()
        .find(|family| family.model_type == model_type);
    let Family { models, gguf, .. } = family.expect("a family");
    let case = Case {
        shape: folder_of(model_type),
        patch: json!({}),
    };
    let workplace = Workplace::new();
    case.write(&workplace, "model").unwrap();
    check_training(&workplace);
    check_exports(&workplace, &case);
    let [read_as, exported] = check_base_in_gguf(&workplace, &case);
    let architecture = gguf.architecture;
    let row =
        format!("| `{model_type}` | `{architecture}` | `{read_as}` | {exported} | {models} |");
    let path = root().join("docs/models.md");
    if writes_guide() {
        write_row(&path, model_type, &row);
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert!(
        table_rows(&page).contains(&row.as_str()),
        "docs/models.md lacks this row; run scripts/docs --families\n{row}"
    );
}

/// The `model_type` that a GGUF file of the family is read as, and the cell for whole GGUF models.
fn check_base_in_gguf(workplace: &Workplace, case: &Case) -> [String; 2] {
    let unsupported = unsupported_by_llama_cpp(case.shape);
    let (field, patch) = unsupported.unzip();
    let plain = case.with_fields(&patch.unwrap_or_default());
    let read_as = check_gguf_model(workplace, case, field.as_deref(), &plain);
    let refused = refused_fields(workplace, &plain);

    let names: Vec<String> = refused.iter().map(|field| format!("`{field}`")).collect();
    let exported = match names.is_empty() {
        true => "yes".to_owned(),
        false => format!("without {}", names.join(", ")),
    };
    [read_as, exported]
}

macro_rules! family_round_trips {
    ($($family:ident),+ $(,)?) => {$(
        #[test]
        fn $family() {
            check(stringify!($family));
        }
    )+};
}

tooltune::for_families!(family_round_trips);

/// llama.cpp does not support key heads and value heads of different sizes, nor RoPE sections that
/// change the rotation of text. It does support layers in an irregular order.
#[test]
fn linear_attention_unsupported_by_llama_cpp_is_not_exported() {
    let workplace = Workplace::new();
    let case = |patch| Case {
        shape: "qwen3_5_text_even",
        patch,
    };
    let values = case(json!({"linear_value_head_dim": 6}));
    values.write(&workplace, "values").unwrap();
    assert_export_refused(&workplace, "values", "linear_value_head_dim");
    let sections = json!({"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "mrope_section": [4, 0, 0],
    }});
    case(sections).write(&workplace, "sections").unwrap();
    assert_export_refused(&workplace, "sections", "mrope_section");
    let kinds = ["full_attention", "full_attention", "linear_attention"];
    let kinds = case(json!({"layer_types": kinds}));
    kinds.write(&workplace, "kinds").unwrap();
    run(
        &workplace,
        "export kinds --to gguf --merged --dtype f32 --output kinds.gguf",
    );
    let [ours, theirs] = ["kinds.gguf", "kinds"].map(|model| logits(&workplace, model));
    let difference = relative_change(&ours, &theirs);
    assert!(difference <= 1e-6, "{difference}");
}

/// llama.cpp computes the attention factor of YaRN itself, so other values are refused.
#[test]
fn yarn_with_another_attention_factor_is_not_exported() {
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
    assert_export_refused(&workplace, "yarn", "attention_factor");
}

/// Each family has its fixtures, and one row in docs/models.md. A test of this module compares the
/// row, and fails if the trainer has no network of the family.
///
/// Invariant: Every model family matches transformers and PEFT in logits, training and decoding.
#[test]
fn every_family_has_a_test_and_a_row() {
    const STEPS: &str = "of \"Add a model family\" in CONTRIBUTING.md";
    let path = root().join("docs/models.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = table_rows(&page).into_iter().map(type_of).collect();
    let families: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
    for model_type in &families {
        assert!(
            networks::of_model_type(model_type).is_some(),
            "{model_type} is not in for_families! of trainer/src/models/families/mod.rs; see step 2 \
             {STEPS}"
        );
        for file in ["config.json", "model.safetensors", "made_by.json"] {
            let path = format!("models/{}/{file}", folder_of(model_type));
            assert!(
                fixture(&path).exists(),
                "{model_type} has no tests/fixtures/{path}; see step 3 {STEPS}"
            );
        }
        assert!(
            writes_guide() || rows.contains(model_type),
            "docs/models.md has no row of {model_type}; run scripts/docs --families (step 4 {STEPS})"
        );
    }
    assert!(
        writes_guide() || rows == families,
        "docs/models.md has the rows {rows:?}, not {families:?}; run scripts/docs --families"
    );
}

/// README.md lists the models of every family; `scripts/docs --families` writes them.
#[test]
fn the_readme_lists_the_models_of_every_family() {
    let path = root().join("README.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("- **Models**: ").expect("a list of models");
    let (listed, after) = rest.split_once(", from safetensors").expect("its end");
    let models: Vec<&str> = FAMILIES
        .iter()
        .flat_map(|family| family.models.split(", "))
        .collect();
    let (last, others) = models.split_last().expect("families");
    let models = format!("{} and {last}", others.join(", "));
    if writes_guide() {
        let page = format!("{before}- **Models**: {models}, from safetensors{after}");
        std::fs::write(&path, page).unwrap();
        return;
    }
    assert_eq!(listed, models, "README.md: run scripts/docs --families");
}
