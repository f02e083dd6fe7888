//! Base models of both layouts described alike, and what is refused in them.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::gguf_writer::GgufWriter;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A directory with weights, an empty tokenizer.json and these files.
fn model_dir(files: &[(&str, Value)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(
        fixture("tiny_llama.safetensors"),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content.to_string()).unwrap();
    }
    dir
}

fn open(files: &[(&str, Value)]) -> Result<ModelFiles, CheckpointError> {
    ModelFiles::open(model_dir(files).path())
}

fn open_gguf(gguf: GgufWriter) -> Result<ModelFiles, CheckpointError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    gguf.write(&path);
    ModelFiles::open(&path)
}

#[test]
fn a_gguf_file_gives_config_vocabulary_template_and_stop_ids() {
    let model = ModelFiles::open(&fixture("tiny_llama.gguf")).unwrap();
    assert_eq!(
        model.config,
        json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "vocab_size": 32, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
            "rope_scaling": null, "max_position_embeddings": 128, "tie_word_embeddings": false,
            "attention_bias": false, "mlp_bias": false, "hidden_act": "silu",
        })
    );
    assert_eq!(model.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!(model.eos_token_ids, [1]);
    assert_eq!(
        model.special_tokens.bos_token.as_deref(),
        Some("<|endoftext|>")
    );
    assert_eq!(
        model.special_tokens.pad_token.as_deref(),
        Some("<|im_end|>")
    );
    let TokenizerSource::Gguf(vocabulary) = model.tokenizer else {
        panic!("not from GGUF")
    };
    assert_eq!(
        (vocabulary.pre.as_str(), vocabulary.tokens.len()),
        ("smollm", 32)
    );
    assert_eq!(
        (vocabulary.merges.as_slice(), vocabulary.token_types[1]),
        (&["a b".to_owned()][..], 3)
    );
    assert_eq!(vocabulary.add_bos, Some(false));
}

#[test]
fn a_directory_with_one_gguf_file_opens_as_that_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(
        fixture("tiny_llama.gguf"),
        dir.path().join("some-name.gguf"),
    )
    .unwrap();
    let model = ModelFiles::open(dir.path()).unwrap();
    assert_eq!(model.config["model_type"], "llama");
    let expected = crate::digest::sha256_file(&fixture("tiny_llama.gguf")).unwrap();
    assert_eq!(model.fingerprint().unwrap(), expected);
}

#[test]
fn a_qwen2_gguf_has_tied_head_and_biases_where_the_tensors_say_so() {
    let mut gguf = GgufWriter::tiny("qwen2");
    for name in ["attn_q", "attn_k", "attn_v"] {
        gguf = gguf.f32_tensor(&format!("blk.0.{name}.bias"), &[8]);
    }
    let model = open_gguf(gguf).unwrap();
    assert_eq!(model.config["model_type"], "qwen2");
    assert_eq!(model.config["attention_bias"], true);
    assert_eq!(model.config["tie_word_embeddings"], true);
    assert_eq!(model.config["rope_theta"], 10_000.0);
    assert!(
        model
            .weights
            .shape("model.layers.0.self_attn.k_proj.bias")
            .is_some()
    );
}

/// A llama model whose rotary frequencies are divided by these.
fn with_divisors(divisors: &[f32]) -> GgufWriter {
    let data = divisors
        .iter()
        .flat_map(|divisor| divisor.to_le_bytes())
        .collect();
    GgufWriter::tiny("llama")
        .f32("llama.rope.freq_base", 500_000.0)
        .tensor("rope_freqs.weight", &[divisors.len() as u64], (0, data))
}

#[test]
fn the_divisors_of_llama_3_become_its_rope_scaling() {
    // For theta 5e5 and head_dim 16 the wavelengths are 6.3, 32, 167, 862, 4443, …: the fifth
    // lies between 2048 and 8192. Its divisor by transformers' formula, worked out in Python:
    //   w = 2*pi*5e5**(4/8); s = (8192/w - 1)/3; 1/((1-s)/32 + s)
    let divisors = [1.0, 1.0, 1.0, 1.0, 3.292_262, 32.0, 32.0, 32.0];
    let model = open_gguf(with_divisors(&divisors)).unwrap();
    assert_eq!(
        model.config["rope_scaling"],
        json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})
    );
    assert!(model.weights.names().all(|name| !name.contains("rope")));
}

#[test]
fn other_divisors_are_refused() {
    for divisors in [
        [1.0, 2.0, 3.0, 4.0].as_slice(),
        &[],
        &[f32::NAN; 4],
        &[0.5; 4],
    ] {
        let error = open_gguf(with_divisors(divisors)).unwrap_err().to_string();
        assert!(
            error.contains("rope_freqs.weight with other divisors"),
            "{error}"
        );
    }
}

#[test]
fn gguf_scaling_is_taken_over_if_linear_and_refused_otherwise() {
    let scaled = |kind: &str| {
        GgufWriter::tiny("llama")
            .text("llama.rope.scaling.type", kind)
            .f32("llama.rope.scaling.factor", 4.0)
    };
    let model = open_gguf(scaled("linear")).unwrap();
    assert_eq!(
        model.config["rope_scaling"],
        json!({"rope_type": "linear", "factor": 4.0})
    );
    let error = open_gguf(scaled("yarn")).unwrap_err().to_string();
    assert!(
        error.contains("llama.rope.scaling.type \"yarn\" is not supported"),
        "{error}"
    );
}

#[test]
fn gguf_models_that_cannot_be_described_are_errors_that_name_the_field() {
    for (gguf, part) in [
        (
            GgufWriter::tiny("gemma3"),
            "general.architecture \"gemma3\"",
        ),
        (
            GgufWriter::new().text("general.architecture", "llama"),
            "llama.embedding_length",
        ),
        (
            GgufWriter::tiny("llama").u32("split.count", 3),
            "split into 3 GGUF files",
        ),
        (
            GgufWriter::tiny("llama").u32("tokenizer.ggml.eos_token_id", 4),
            "4 is outside the 4",
        ),
        (
            GgufWriter::tiny("llama").u32("tokenizer.chat_template", 4),
            "must be a string",
        ),
        (
            GgufWriter::tiny("llama").u32("general.alignment", 3),
            "a power of two",
        ),
        (
            GgufWriter::tiny("llama").text("llama.block_count", "2"),
            "occurs twice",
        ),
    ] {
        let error = open_gguf(gguf).unwrap_err().to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
        assert!(error.contains("model.gguf"), "{error}");
    }
}

#[test]
fn a_sentencepiece_vocabulary_gives_way_to_a_tokenizer_json_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let mut bytes = GgufWriter::tiny("llama").bytes();
    let at = bytes
        .windows(4)
        .position(|window| window == b"gpt2")
        .unwrap();
    bytes[at..at + 4].copy_from_slice(b"bert");
    fs::write(&path, bytes).unwrap();
    assert!(matches!(
        ModelFiles::open(&path).unwrap().tokenizer,
        TokenizerSource::Gguf(_)
    ));
    let json = dir.path().join("tokenizer.json");
    fs::write(&json, "{}").unwrap();
    assert_eq!(
        ModelFiles::open(&path).unwrap().tokenizer,
        TokenizerSource::Json(json)
    );
}

#[test]
fn the_config_is_taken_as_it_is_but_for_the_rotary_spelling() {
    let config = json!({"model_type": "llama", "unknown_to_us": [1],
        "rope_parameters": {"rope_theta": 100_000, "rope_type": "default"}});
    let model = open(&[("config.json", config)]).unwrap();
    let expected = json!({"model_type": "llama", "unknown_to_us": [1], "rope_theta": 100_000,
        "rope_scaling": null});
    assert_eq!(model.config, expected);
}

#[test]
fn the_chat_template_comes_from_its_own_file_first() {
    let in_config = (
        "tokenizer_config.json",
        json!({"chat_template": "from the config"}),
    );
    assert_eq!(
        open(std::slice::from_ref(&in_config))
            .unwrap()
            .chat_template
            .unwrap(),
        "from the config"
    );
    let dir = model_dir(&[in_config]);
    fs::write(dir.path().join("chat_template.jinja"), "from the file").unwrap();
    let model = ModelFiles::open(dir.path()).unwrap();
    assert_eq!(model.chat_template.unwrap(), "from the file");
    assert_eq!(model.tool_use_template, None);
    let additional = dir.path().join("additional_chat_templates");
    fs::create_dir(&additional).unwrap();
    fs::write(additional.join("tool_use.jinja"), "with tools").unwrap();
    let model = ModelFiles::open(dir.path()).unwrap();
    assert_eq!(model.tool_use_template.unwrap(), "with tools");
}

#[test]
fn of_several_templates_the_default_one_and_that_for_tools_are_taken() {
    let named = |name: &str| {
        let templates =
            json!([{"name": "tool_use", "template": "t"}, {"name": name, "template": "d"}]);
        open(&[(
            "tokenizer_config.json",
            json!({ "chat_template": templates }),
        )])
    };
    let model = named("default").unwrap();
    assert_eq!(model.chat_template.unwrap(), "d");
    assert_eq!(model.tool_use_template.unwrap(), "t");
    let in_gguf = GgufWriter::tiny("llama")
        .text("tokenizer.chat_template", "d")
        .text("tokenizer.chat_template.tool_use", "t");
    let model = open_gguf(in_gguf).unwrap();
    assert_eq!(model.chat_template.unwrap(), "d");
    assert_eq!(model.tool_use_template.unwrap(), "t");
    let error = named("rag").unwrap_err().to_string();
    assert!(error.contains("no template named \"default\""), "{error}");
    assert_eq!(open(&[]).unwrap().chat_template, None);
}

#[test]
fn special_tokens_are_read_in_both_spellings_and_from_both_files() {
    let model = open(&[
        (
            "tokenizer_config.json",
            json!({"bos_token": null, "eos_token": {"content": "</s>"}}),
        ),
        (
            "special_tokens_map.json",
            json!({"bos_token": "<s>", "eos_token": "other"}),
        ),
    ])
    .unwrap();
    let expected = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    };
    assert_eq!(model.special_tokens, expected);
}

#[test]
fn stop_ids_come_from_the_generation_config_first() {
    let config = ("config.json", json!({"eos_token_id": 2}));
    assert_eq!(
        open(std::slice::from_ref(&config)).unwrap().eos_token_ids,
        [2]
    );
    let generation = (
        "generation_config.json",
        json!({"eos_token_id": [128001, 128009]}),
    );
    assert_eq!(
        open(&[config.clone(), generation]).unwrap().eos_token_ids,
        [128001, 128009]
    );
    let silent = ("generation_config.json", json!({"temperature": 0.6}));
    assert_eq!(open(&[config, silent]).unwrap().eos_token_ids, [2]);
    let error = open(&[("config.json", json!({"eos_token_id": "</s>"}))])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("config.json: eos_token_id: \"</s>\" must be a token id"),
        "{error}"
    );
}

#[test]
fn absent_and_broken_files_are_named() {
    for (absent, part) in [
        ("config.json", "config.json"),
        ("tokenizer.json", "save_pretrained(directory)"),
    ] {
        let dir = model_dir(&[]);
        fs::remove_file(dir.path().join(absent)).unwrap();
        let error = ModelFiles::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(absent), "{error}");
    }
    let dir = model_dir(&[]);
    fs::write(
        dir.path().join("config.json"),
        "{\n  \"model_type\": llama\n}",
    )
    .unwrap();
    let error = ModelFiles::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json:2:"), "{error}");
    let error = open(&[("config.json", json!({"rope_scaling": 2}))])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rope_scaling: must be an object or null"),
        "{error}"
    );
}
