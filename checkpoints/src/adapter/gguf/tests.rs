//! Tests adapters that are written as GGUF and read back by llama.cpp's rules, and files that are
//! refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::adapter::{Adapter, ModuleScaling, PeftConfig, Scalings, TargetModules};
use crate::families::{self, MISTRAL, QWEN2};
use crate::gguf_writer::GgufWriter;
use crate::weights::{FloatDtype, HeadCounts, HostTensor};

const HEADS: HeadCounts = HeadCounts {
    n_query: 2,
    n_key_value: 1,
};
const LLAMA: GgufBase = GgufBase {
    architecture: GgufArchitecture {
        family: &families::LLAMA,
        heads: HeadLayout::Halves(HEADS),
    },
    tied_head: true,
};

/// Factors with ascending values. The tuples are module, rank and output size; each module has 6
/// inputs.
fn adapter(modules: &[(&str, usize, usize)]) -> Adapter {
    let mut tensors = BTreeMap::new();
    for (module, rank, n_out) in modules {
        for (end, shape) in [("lora_A", [*rank, 6]), ("lora_B", [*n_out, *rank])] {
            let values = (0..shape[0] * shape[1]).map(|i| i as f32 / 8.0 - 1.0);
            let tensor = HostTensor {
                shape: shape.to_vec(),
                values: values.collect(),
            };
            tensors.insert(format!("{module}.{end}.weight"), tensor);
        }
    }
    Adapter {
        config: PeftConfig::new(2, 4.0, TargetModules::Pattern("all-linear".to_owned())),
        tensors,
    }
}

const Q: &str = "model.layers.0.self_attn.q_proj";
const K: &str = "model.layers.0.self_attn.k_proj";
const DOWN: &str = "model.layers.11.mlp.down_proj";

fn scalings(entries: &[(&str, usize, f64)]) -> Scalings {
    let entry = |&(module, rank, scaling): &(&str, usize, f64)| {
        (module.to_owned(), ModuleScaling { rank, scaling })
    };
    entries.iter().map(entry).collect()
}

struct Written {
    _dir: TempDir,
    path: PathBuf,
    result: Result<(), CheckpointError>,
}

fn write(adapter: &Adapter, scalings: &Scalings, base: GgufBase, dtype: FloatDtype) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    let result = write_gguf_adapter(&path, adapter, scalings, &base, dtype);
    Written {
        _dir: dir,
        path,
        result,
    }
}

fn read(written: &Written) -> GgufAdapter {
    written.result.as_ref().unwrap();
    read_gguf_adapter(&written.path, LLAMA.architecture).unwrap()
}

#[test]
fn plain_lora_keeps_every_bit_of_its_factors() {
    let adapter = adapter(&[(Q, 2, 8), (K, 2, 4), (DOWN, 2, 5)]);
    let plain = scalings(&[(Q, 2, 2.0), (K, 2, 2.0), (DOWN, 2, 2.0)]);
    let written = write(&adapter, &plain, LLAMA, FloatDtype::F32);
    let back = read(&written);
    assert_eq!(back.tensors, adapter.tensors);
    assert_eq!(back.scalings, plain);
    let weights = crate::weights::gguf::GgufFile::open(&written.path).unwrap();
    assert_eq!(
        weights.metadata.text("general.type").unwrap(),
        Some("adapter")
    );
    assert_eq!(
        weights.metadata.f32("adapter.lora.alpha").unwrap(),
        Some(4.0)
    );
    // llama.cpp interleaves the two halves of each head of q.
    let in_gguf = weights
        .read_f32("blk.0.attn_q.weight.lora_b")
        .unwrap()
        .unwrap();
    let b = &adapter.tensors[&format!("{Q}.lora_B.weight")];
    let row = |tensor: &HostTensor, row: usize| tensor.values[2 * row..2 * row + 2].to_vec();
    for (stored_row, hugging_face_row) in [0, 2, 1, 3, 4, 6, 5, 7].into_iter().enumerate() {
        assert_eq!(row(&in_gguf, stored_row), row(b, hugging_face_row));
    }
    let names: Vec<&str> = weights.tensor_names().collect();
    assert_eq!(names.len(), 6);
    assert!(names.contains(&"blk.11.ffn_down.weight.lora_a"));
}

#[test]
fn qwen2_rows_keep_their_order_and_its_files_are_not_llama_adapters() {
    let qwen2 = GgufBase {
        architecture: GgufArchitecture {
            family: &QWEN2,
            heads: HeadLayout::AsIs,
        },
        tied_head: false,
    };
    let with_head = adapter(&[(Q, 2, 8), ("lm_head", 2, 9)]);
    let plain = scalings(&[(Q, 2, 2.0), ("lm_head", 2, 2.0)]);
    let written = write(&with_head, &plain, qwen2, FloatDtype::F32);
    let back = read_gguf_adapter(&written.path, qwen2.architecture).unwrap();
    assert_eq!(back.tensors, with_head.tensors);
    let file = crate::weights::gguf::GgufFile::open(&written.path).unwrap();
    let in_gguf = file
        .read_f32("blk.0.attn_q.weight.lora_b")
        .unwrap()
        .unwrap();
    assert_eq!(in_gguf, with_head.tensors[&format!("{Q}.lora_B.weight")]);
    let error = read_gguf_adapter(&written.path, LLAMA.architecture).unwrap_err();
    let expected = "general.architecture: is \"qwen2\" but must be \"llama\"";
    assert!(error.to_string().contains(expected), "{error}");
}

/// Invariant: A GGUF adapter keeps the scaling of every module.
#[test]
fn scalings_beyond_one_alpha_are_folded_into_b() {
    let adapter = adapter(&[(Q, 2, 8), (K, 2, 4), (DOWN, 4, 5)]);
    // The first two share alpha 3; the last would need 16.
    let mixed = scalings(&[(Q, 2, 1.5), (K, 2, 1.5), (DOWN, 4, 4.0)]);
    let back = read(&write(&adapter, &mixed, LLAMA, FloatDtype::F32));
    for (name, tensor) in &adapter.tensors {
        let module = name.rsplit_once(".lora_").unwrap().0;
        let is_folded = module == DOWN && name.ends_with("B.weight");
        assert_eq!(back.tensors[name] == *tensor, !is_folded, "{name}");
        if name.ends_with("B.weight") {
            let (found, wanted) = (back.scalings[module].scaling, mixed[module].scaling);
            let pairs = back.tensors[name].values.iter().zip(&tensor.values);
            for (&ours, &trained) in pairs {
                let (ours, trained) = (f64::from(ours) * found, f64::from(trained) * wanted);
                assert!(
                    (ours - trained).abs() <= 1e-6 * trained.abs(),
                    "{ours} {trained}"
                );
            }
        }
    }
}

#[test]
fn a_scaling_of_zero_is_not_written_as_alpha_zero() {
    let adapter = adapter(&[(Q, 2, 8)]);
    let back = read(&write(
        &adapter,
        &scalings(&[(Q, 2, 0.0)]),
        LLAMA,
        FloatDtype::F32,
    ));
    let b = &back.tensors[&format!("{Q}.lora_B.weight")];
    assert!(b.values.iter().all(|value| *value == 0.0));
    assert!(back.scalings[Q].scaling.is_normal());
}

#[test]
fn half_precision_rounds_once() {
    let adapter = adapter(&[(Q, 2, 8)]);
    for dtype in [FloatDtype::F16, FloatDtype::BF16] {
        let back = read(&write(&adapter, &scalings(&[(Q, 2, 2.0)]), LLAMA, dtype));
        for (name, tensor) in &adapter.tensors {
            let rounded: Vec<f32> = tensor.values.iter().map(|&v| dtype.rounded(v)).collect();
            assert_eq!(back.tensors[name].values, rounded, "{name} {dtype:?}");
        }
    }
}

#[test]
fn an_adapter_that_cannot_be_written_leaves_no_file() {
    let plain = scalings(&[(Q, 2, 2.0)]);
    let mut diverged = adapter(&[(Q, 2, 8)]);
    let b = diverged
        .tensors
        .get_mut(&format!("{Q}.lora_B.weight"))
        .unwrap();
    b.values[3] = f32::NAN;
    let mut large = adapter(&[(Q, 2, 8)]);
    let a = large
        .tensors
        .get_mut(&format!("{Q}.lora_A.weight"))
        .unwrap();
    a.values[5] = 1e5;
    let mut half = adapter(&[(Q, 2, 8)]);
    half.tensors.remove(&format!("{Q}.lora_A.weight"));
    let strange = adapter(&[("lm_head", 2, 9), ("model.layers.0.mlp.experts", 2, 4)]);
    let strange_scalings = scalings(&[("lm_head", 2, 2.0), ("model.layers.0.mlp.experts", 2, 2.0)]);
    let infinite = scalings(&[(Q, 2, f64::INFINITY)]);
    let odd_rows = adapter(&[(Q, 2, 6)]);
    let even_rows = adapter(&[(Q, 2, 8)]);
    for (adapter, scalings, part) in [
        (&diverged, &plain, "lora_b has the value NaN at element"),
        (&large, &plain, "is 100000, beyond the range of F16"),
        (&half, &plain, "the other half of"),
        (&even_rows, &infinite, "has scaling inf"),
        (&odd_rows, &plain, "6 rows do not divide into 2 heads"),
        (
            &strange,
            &strange_scalings,
            "2 module(s) of the adapter: lm_head, model.layers.0.mlp.experts",
        ),
    ] {
        let written = write(adapter, scalings, LLAMA, FloatDtype::F16);
        let error = written.result.unwrap_err().to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
        assert!(!written.path.exists());
    }
}

#[test]
fn an_existing_file_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    fs::write(&path, "mine").unwrap();
    let (adapter, plain) = (adapter(&[(Q, 2, 8)]), scalings(&[(Q, 2, 2.0)]));
    let error = write_gguf_adapter(&path, &adapter, &plain, &LLAMA, FloatDtype::F32).unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Disk(tooltune_disk::DiskError::AlreadyExists { .. })
        ),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn the_base_is_read_from_its_config() {
    let path = Path::new("models/tiny/config.json");
    let config = json!({"model_type": "mistral", "num_attention_heads": 2,
        "num_key_value_heads": 1, "tie_word_embeddings": true});
    let mistral = GgufArchitecture {
        family: &MISTRAL,
        ..LLAMA.architecture
    };
    let expected = GgufBase {
        architecture: mistral,
        ..LLAMA
    };
    assert_eq!(GgufBase::from_config(path, &config).unwrap(), expected);
    assert_eq!(mistral.name(), "llama");
    let qwen2 = GgufBase::from_config(path, &json!({"model_type": "qwen2"})).unwrap();
    assert_eq!(
        (qwen2.architecture.name(), qwen2.tied_head),
        ("qwen2", false)
    );
    for (config, part) in [
        (json!({"model_type": "gemma"}), "model_type \"gemma\""),
        (
            json!({"model_type": "llama"}),
            "num_attention_heads: is absent",
        ),
        (
            json!({"model_type": "llama", "num_attention_heads": 0}),
            "must be at least 1",
        ),
    ] {
        let error = GgufBase::from_config(path, &config)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
    }
}

/// Two key heads with three value heads each; the head size is 1.
#[test]
fn linear_attention_factors_are_interleaved_across_key_heads() {
    let path = Path::new("models/tiny/config.json");
    let mut config = json!({"model_type": "qwen3_5_text", "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, "linear_key_head_dim": 1, "linear_value_head_dim": 1});
    let base = GgufBase::from_config(path, &config).unwrap();
    let module = |name: &str| format!("model.layers.0.linear_attn.{name}");
    let (qkv, out, steps) = (
        module("in_proj_qkv"),
        module("out_proj"),
        module("in_proj_a"),
    );
    let adapter = adapter(&[(&qkv, 1, 10), (&out, 1, 4), (&steps, 1, 6)]);
    let scalings = scalings(&[(&qkv, 1, 1.0), (&out, 1, 1.0), (&steps, 1, 1.0)]);
    let written = write(&adapter, &scalings, base, FloatDtype::F32);
    written.result.as_ref().unwrap();
    let file = crate::weights::gguf::GgufFile::open(&written.path).unwrap();
    let row_order = |name: &str| {
        let values = file.read_f32(name).unwrap().unwrap().values;
        let indices = values.iter().map(|value| (value + 1.0) * 8.0);
        indices.map(|value| value as usize).collect::<Vec<_>>()
    };
    assert_eq!(
        row_order("blk.0.attn_qkv.weight.lora_b"),
        [0, 1, 2, 3, 4, 7, 5, 8, 6, 9]
    );
    assert_eq!(
        row_order("blk.0.attn_qkv.weight.lora_a"),
        [0, 1, 2, 3, 4, 5]
    );
    assert_eq!(
        row_order("blk.0.ssm_alpha.weight.lora_b"),
        [0, 3, 1, 4, 2, 5]
    );
    assert_eq!(row_order("blk.0.ssm_out.weight.lora_a"), [0, 3, 1, 4, 2, 5]);
    assert_eq!(row_order("blk.0.ssm_out.weight.lora_b"), [0, 1, 2, 3]);
    let back = read_gguf_adapter(&written.path, base.architecture).unwrap();
    assert_eq!(back.tensors, adapter.tensors);

    config["linear_num_value_heads"] = 5.into();
    let error = GgufBase::from_config(path, &config)
        .unwrap_err()
        .to_string();
    assert!(error.contains("linear_num_value_heads: is 5"), "{error}");
}

/// llama.cpp adapts only linear layers.
#[test]
fn a_convolution_cannot_be_a_target() {
    let path = Path::new("models/tiny/config.json");
    let config = json!({"model_type": "qwen3_5_text", "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 1, "linear_value_head_dim": 1});
    let base = GgufBase::from_config(path, &config).unwrap();
    let conv = "model.layers.0.linear_attn.conv1d";
    let adapter = adapter(&[(conv, 1, 6)]);
    let written = write(
        &adapter,
        &scalings(&[(conv, 1, 1.0)]),
        base,
        FloatDtype::F32,
    );
    let error = written.result.unwrap_err().to_string();
    assert!(error.contains(conv), "{error}");
    let file = GgufWriter::new()
        .text("general.type", "adapter")
        .text("general.architecture", "qwen35")
        .text("adapter.type", "lora")
        .f32_tensor("blk.0.ssm_conv1d.weight.lora_a", &[1, 6])
        .f32_tensor("blk.0.ssm_conv1d.weight.lora_b", &[6, 1]);
    file.write(&written.path);
    let error = read_gguf_adapter(&written.path, base.architecture).unwrap_err();
    assert!(
        error.to_string().contains("is not a linear layer"),
        "{error}"
    );
}

/// An adapter file with one pair of factors, which the tests then damage.
fn pair() -> GgufWriter {
    GgufWriter::new()
        .text("general.type", "adapter")
        .text("general.architecture", "llama")
        .text("adapter.type", "lora")
        .f32("adapter.lora.alpha", 4.0)
        .f32_tensor("blk.0.attn_q.weight.lora_a", &[2, 6])
}

#[test]
fn files_that_llama_cpp_refuses_are_errors() {
    let b = "blk.0.attn_q.weight.lora_b";
    let complete = || pair().f32_tensor(b, &[8, 2]);
    for (gguf, part) in [
        (GgufWriter::tiny("llama"), "general.type: is missing"),
        (
            GgufWriter::new().text("general.type", "model"),
            "is \"model\" but must be \"adapter\"",
        ),
        (
            pair(),
            "no tensor blk.0.attn_q.weight.lora_b, the other half",
        ),
        (pair().f32_tensor(b, &[8, 3]), "does not fit lora_b [8, 3]"),
        (pair().f32_tensor(b, &[16]), "must be matrices"),
        (
            pair().f32_tensor(b, &[6, 2]),
            "6 rows do not divide into 2 heads",
        ),
        (
            complete().f32_tensor("blk.0.attn_k.weight", &[8, 2]),
            "neither .lora_a nor",
        ),
        (complete().f32_tensor(b, &[8, 2]), "occurs twice"),
        (
            complete().f32_tensor("blk.0.attn_x.weight.lora_a", &[2, 6]),
            "is not a linear layer of these models",
        ),
        (
            complete().f32_tensor("token_embd.weight.lora_a", &[2, 6]),
            "is not a linear layer of these models",
        ),
        (
            complete().texts("adapter.alora.invocation_tokens", &["a"]),
            "adapter.alora.invocation_tokens is not supported",
        ),
        (
            pair().tensor(b, &[8, 2], 0, f32::NAN.to_le_bytes().repeat(16)),
            "lora_b, element 0: it is NaN",
        ),
        (
            pair().tensor(b, &[1 << 40, 2], 0, vec![0; 8]),
            "ends at byte",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("adapter.gguf");
        gguf.write(&path);
        let error = read_gguf_adapter(&path, LLAMA.architecture).unwrap_err();
        assert!(
            error.to_string().contains(part),
            "no \"{part}\" in: {error}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    let norm = complete().f32_tensor("blk.0.attn_norm.weight", &[8]);
    norm.write(&path);
    let adapter_read = read_gguf_adapter(&path, LLAMA.architecture).unwrap();
    assert_eq!(adapter_read.tensors.len(), 2);
    assert_eq!(adapter_read.scalings[Q].scaling, 2.0);
}

/// Invariant: A file truncated at any length is an error, not a panic.
#[test]
fn a_truncated_adapter_is_an_error_at_every_length() {
    let (adapter, plain) = (adapter(&[(Q, 2, 8)]), scalings(&[(Q, 2, 2.0)]));
    let written = write(&adapter, &plain, LLAMA, FloatDtype::F32);
    let bytes = fs::read(&written.path).unwrap();
    for length in 0..bytes.len() {
        fs::write(&written.path, &bytes[..length]).unwrap();
        read_gguf_adapter(&written.path, LLAMA.architecture).unwrap_err();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Invariant: A GGUF adapter keeps the scaling of every module.
    #[test]
    fn any_scaling_survives_writing_and_reading(
        ranks in proptest::collection::vec(1_usize..9, 3),
        factors in proptest::collection::vec(-20.0_f64..20.0, 3),
    ) {
        let modules = [(Q, ranks[0], 8), (K, ranks[1], 4), (DOWN, ranks[2], 5)];
        let adapter = adapter(&modules);
        let expected: Vec<(&str, usize, f64)> = modules
            .iter()
            .zip(&factors)
            .map(|((module, rank, _), factor)| (*module, *rank, *factor))
            .collect();
        let back = read(&write(&adapter, &scalings(&expected), LLAMA, FloatDtype::F32));
        for (module, _, expected) in expected {
            let a = format!("{module}.lora_A.weight");
            prop_assert_eq!(&back.tensors[&a], &adapter.tensors[&a]);
            let b = format!("{module}.lora_B.weight");
            let scaling = back.scalings[module].scaling;
            let pairs = back.tensors[&b].values.iter().zip(&adapter.tensors[&b].values);
            for (&ours, &trained) in pairs {
                let (ours, trained) = (f64::from(ours) * scaling, f64::from(trained) * expected);
                prop_assert!((ours - trained).abs() <= 1e-6 * trained.abs());
            }
        }
    }

    #[test]
    fn scrambled_adapters_give_errors_or_finite_factors(
        at in 0_usize..430, replacement in proptest::collection::vec(any::<u8>(), 1..12),
    ) {
        let adapter = adapter(&[(Q, 2, 8)]);
        let written = write(&adapter, &scalings(&[(Q, 2, 2.0)]), LLAMA, FloatDtype::F32);
        let mut bytes = fs::read(&written.path).unwrap();
        bytes[at..at + replacement.len()].copy_from_slice(&replacement);
        fs::write(&written.path, bytes).unwrap();
        if let Ok(read) = read_gguf_adapter(&written.path, LLAMA.architecture) {
            let finite = |tensor: &HostTensor| tensor.values.iter().all(|v| v.is_finite());
            prop_assert!(read.tensors.values().all(finite));
        }
    }
}
