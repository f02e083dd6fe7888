//! Tests that base models of both formats have the same description, and that damaged files are
//! refused.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::gguf_writer::GgufWriter;
use crate::weights::{HostTensor, write_tensors};

mod generation_config;
mod gguf_vocabulary;

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
fn a_llama_cpp_adapter_given_as_a_model_is_an_error() {
    let adapter = GgufWriter::new()
        .text("general.type", "adapter")
        .text("general.architecture", "llama");
    let error = open_gguf(adapter).unwrap_err().to_string();
    assert!(
        error.contains("this file is a llama.cpp LoRA adapter"),
        "{error}"
    );
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
    let paths: Vec<&Path> = model.weights.paths().collect();
    assert_eq!(paths, [dir.path().join("some-name.gguf")]);
}

/// A llama model with these rotary frequency divisors.
fn with_divisors(divisors: &[f32]) -> GgufWriter {
    let data = divisors
        .iter()
        .flat_map(|divisor| divisor.to_le_bytes())
        .collect();
    GgufWriter::tiny("llama")
        .f32("llama.rope.freq_base", 500_000.0)
        .tensor("rope_freqs.weight", &[divisors.len() as u64], 0, data)
}

#[test]
fn llama_3_divisors_are_converted_to_rope_scaling() {
    // For theta 5e5 and head_dim 16 the wavelengths are 6.3, 32, 167, 862, 4443, …: the fifth is
    // between 2048 and 8192. Its divisor by transformers' formula, computed in Python:
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
fn gguf_rope_scaling_is_converted_if_linear_or_yarn_and_refused_otherwise() {
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
    let yarn = scaled("yarn").f32("llama.rope.scaling.yarn_beta_fast", 16.0);
    assert_eq!(
        open_gguf(yarn).unwrap().config["rope_scaling"],
        json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0,
            "original_max_position_embeddings": 64})
    );
    let error = open_gguf(scaled("longrope")).unwrap_err().to_string();
    assert!(
        error.contains("llama.rope.scaling.type \"longrope\" is not supported"),
        "{error}"
    );
}

#[test]
fn a_rope_factor_is_read_under_each_name_as_in_llama_cpp() {
    let [factor, old] = ["llama.rope.scaling.factor", "llama.rope.scale_linear"];
    let tiny = || GgufWriter::tiny("llama");
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    let typed = |kind: &str| tiny().text("llama.rope.scaling.type", kind);
    for (gguf, expected) in [
        // The default type is linear.
        (tiny().f32(factor, 4.0), &linear),
        (tiny().f32(old, 4.0), &linear),
        (tiny().f32(factor, 4.0).f32(old, 4.0), &linear),
        (typed("linear").f32(old, 4.0), &linear),
        // No factor, 0, 1 and type "none" mean no scaling.
        (typed("linear"), &Value::Null),
        (tiny().f32(factor, 0.0), &Value::Null),
        (tiny().f32(factor, 1.0), &Value::Null),
        (typed("none").f32(factor, 4.0), &Value::Null),
        (
            tiny().f32("llama.rope.scaling.attn_factor", 1.0),
            &Value::Null,
        ),
    ] {
        assert_eq!(&open_gguf(gguf).unwrap().config["rope_scaling"], expected);
    }
    for (gguf, expected) in [
        (
            tiny().f32(factor, 4.0).f32(old, 2.0),
            "rope.scaling.factor: is 4.0",
        ),
        (
            tiny().f32("llama.rope.scaling.attn_factor", 1.5),
            "llama.rope.scaling.attn_factor = 1.5 is not supported",
        ),
        (
            with_divisors(&[1.0; 8]).f32(factor, 4.0),
            "rope_freqs.weight together with a RoPE factor of 4.0",
        ),
    ] {
        let error = open_gguf(gguf).unwrap_err().to_string();
        assert!(error.contains(expected), "no {expected:?} in {error}");
    }
}

/// Invariant: Conflicting values in model files resolve as in the reference implementation or are
/// an error.
#[test]
fn metadata_that_may_change_what_a_gguf_model_computes_is_refused_by_name() {
    for (key, value) in [
        ("attention.scale", 0.5),
        ("attention.clamp_kqv", 8.0),
        ("logit_scale", 0.5),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.freq_base_swa", 1e4),
        ("some_key_of_tomorrow", 1.0),
    ] {
        for architecture in ["llama", "qwen2"] {
            let key = format!("{architecture}.{key}");
            let gguf = GgufWriter::tiny(architecture).f32(&key, value);
            let error = open_gguf(gguf).unwrap_err().to_string();
            let message = format!("{key} = {value} is not supported");
            assert!(error.contains(&message), "no {message:?} in {error}");
        }
    }
    let sizes = [
        (
            "llama.rope.dimension_count",
            2,
            "rope.dimension_count = 2 with heads of size 4",
        ),
        (
            "llama.attention.value_length",
            8,
            "attention.value_length = 8 with heads of size 4",
        ),
        ("llama.expert_count", 8, "llama.expert_count = 8"),
        (
            "llama.attention.sliding_window",
            4096,
            "llama.attention.sliding_window = 4096",
        ),
    ];
    for (key, value, message) in sizes {
        let error = open_gguf(GgufWriter::tiny("llama").u32(key, value)).unwrap_err();
        assert!(
            error.to_string().contains(message),
            "no {message:?} in {error}"
        );
    }
    let harmless = GgufWriter::tiny("llama")
        .u32("llama.rope.dimension_count", 4)
        .u32("llama.attention.value_length", 4)
        .u32("llama.vocab_size", 4)
        .u32("llama.expert_count", 0)
        .u32("llama.rope.scaling.original_context_length", 64)
        .f32("llama.attention.layer_norm_epsilon", 1e-6)
        // Keys of a different architecture, and keys about the file, do not affect this model.
        .f32("qwen2.attention.scale", 0.5)
        .f32("general.sampling.temp", 0.7);
    assert!(open_gguf(harmless).is_ok());
}

/// A folder as in [`model_dir`] whose weights are an embedding and a head.
fn with_head(tied: bool, head: &[f32]) -> Result<ModelFiles, CheckpointError> {
    let dir = model_dir(&[(
        "config.json",
        json!({"model_type": "llama", "tie_word_embeddings": tied}),
    )]);
    let tensor = |values: &[f32]| HostTensor {
        shape: vec![values.len() / 2, 2],
        values: values.to_vec(),
    };
    let tensors = [
        ("model.embed_tokens.weight", tensor(&[1.0, 2.0, 3.0, 4.0])),
        ("lm_head.weight", tensor(head)),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
    let weights = dir.path().join("model.safetensors");
    fs::remove_file(&weights).unwrap();
    write_tensors(&weights, &BTreeMap::from(tensors)).unwrap();
    ModelFiles::open(dir.path())
}

#[test]
fn a_tied_head_that_differs_from_the_embedding_is_refused() {
    assert!(with_head(true, &[1.0, 2.0, 3.0, 4.0]).is_ok());
    assert!(with_head(false, &[1.0, 2.0, 3.5, 4.0]).is_ok());
    for (head, element) in [(&[1.0, 2.0, 3.5, 4.0][..], 2), (&[1.0, 2.0], 0)] {
        let error = with_head(true, head).unwrap_err().to_string();
        let message = format!(
            "lm_head.weight that differs from model.embed_tokens.weight in element {element}"
        );
        assert!(
            error.contains("config.json: tie_word_embeddings"),
            "{error}"
        );
        assert!(error.contains(&message), "no {message:?} in {error}");
        assert!(error.contains("set the field to false"), "{error}");
    }
}

#[test]
fn gguf_models_that_cannot_be_described_are_errors_that_name_the_field() {
    for (gguf, part) in [
        (
            GgufWriter::tiny("gemma9"),
            "general.architecture \"gemma9\"",
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
fn a_tokenizer_json_replaces_a_sentencepiece_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let mut bytes = GgufWriter::tiny("llama").bytes();
    let offset = bytes
        .windows(4)
        .position(|window| window == b"gpt2")
        .unwrap();
    bytes[offset..offset + 4].copy_from_slice(b"bert");
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
fn the_config_is_unchanged_except_for_its_rope_settings() {
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
    // The default template of the folder has precedence over chat_template.jinja.
    fs::write(additional.join("default.jinja"), "of the folder").unwrap();
    let model = ModelFiles::open(dir.path()).unwrap();
    assert_eq!(model.chat_template.unwrap(), "of the folder");
    // transformers uses only the folder.
    fs::remove_file(additional.join("default.jinja")).unwrap();
    fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let error = ModelFiles::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("contains tool_use.jinja but no default"),
        "{error}"
    );
}

#[test]
fn the_default_and_the_tool_template_are_selected_by_name() {
    let open_with_template = |name: &str| {
        let templates =
            json!([{"name": "tool_use", "template": "t"}, {"name": name, "template": "d"}]);
        open(&[(
            "tokenizer_config.json",
            json!({ "chat_template": templates }),
        )])
    };
    let model = open_with_template("default").unwrap();
    assert_eq!(model.chat_template.unwrap(), "d");
    assert_eq!(model.tool_use_template.unwrap(), "t");
    let in_gguf = GgufWriter::tiny("llama")
        .text("tokenizer.chat_template", "d")
        .text("tokenizer.chat_template.tool_use", "t");
    let model = open_gguf(in_gguf).unwrap();
    assert_eq!(model.chat_template.unwrap(), "d");
    assert_eq!(model.tool_use_template.unwrap(), "t");
    let error = open_with_template("rag").unwrap_err().to_string();
    assert!(error.contains("no template named \"default\""), "{error}");
    assert_eq!(open(&[]).unwrap().chat_template, None);
}

#[test]
fn special_tokens_come_from_the_file_that_transformers_reads() {
    let map = (
        "special_tokens_map.json",
        json!({"bos_token": "<s>", "eos_token": {"content": "other"}, "pad_token": null}),
    );
    let config = |more: Value| {
        let mut fields = json!({"bos_token": null, "eos_token": {"content": "</s>"},
            "pad_token": "<pad>"});
        fields
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        ("tokenizer_config.json", fields)
    };
    let tokens = |config| open(&[config, map.clone()]).unwrap().special_tokens;
    let text = |token: &str| Some(token.to_owned());
    // The map has precedence, even with null, if the config has no added_tokens_decoder ...
    let expected = SpecialTokens {
        bos_token: text("<s>"),
        eos_token: text("other"),
        ..SpecialTokens::default()
    };
    assert_eq!(tokens(config(json!({}))), expected);
    // ... and is ignored otherwise.
    let expected = SpecialTokens {
        eos_token: text("</s>"),
        pad_token: text("<pad>"),
        ..SpecialTokens::default()
    };
    assert_eq!(
        tokens(config(json!({"added_tokens_decoder": {}}))),
        expected
    );
}

#[test]
fn settings_that_change_tokenization_are_refused() {
    for (fields, expected) in [
        (
            json!({"split_special_tokens": true}),
            "split_special_tokens = true",
        ),
        (
            json!({"clean_up_tokenization_spaces": true,
                "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": true}),
            "will_corrupt_output = true",
        ),
        (
            json!({"fast_tokenizer_files": ["tokenizer.json", "config.json"]}),
            "fast_tokenizer_files with config.json in addition to tokenizer.json",
        ),
        (
            json!({"eos_token": 7}),
            "eos_token: must be a string or an object",
        ),
        (
            json!({"extra_special_tokens": "a"}),
            "extra_special_tokens: must be a list",
        ),
        (
            json!({"added_tokens_decoder": {"x": {"content": "a"}}}),
            "\"x\" must be a token id",
        ),
    ] {
        let error = open(&[("tokenizer_config.json", fields)])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("tokenizer_config.json: ") && error.contains(expected),
            "{error}"
        );
    }
}

#[test]
fn absent_and_invalid_files_are_reported() {
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
