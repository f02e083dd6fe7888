//! Reads the GGUF metadata about linear attention and RoPE sections.

use serde_json::{Map, Value, json};

use super::gguf_fields::Fields;
use crate::error::CheckpointError;
use crate::weights::gguf::GgufValue;
use crate::weights::{INNER_SIZE, LINEAR_HEADS, PREDICTION_BLOCKS, VALUE_DIM};

/// Each nth block has full attention.
pub(crate) const INTERVAL: &str = "full_attention_interval";
/// Whether each block has linear attention; takes precedence over the interval.
pub(crate) const RECURRENT: &str = "attention.recurrent_layers";
/// Kernel size of the convolution, in tokens.
pub(crate) const KERNEL: [&str; 2] = ["linear_conv_kernel_dim", "ssm.conv_kernel"];
/// Number of frequencies per image coordinate.
pub(crate) const SECTIONS: &str = "rope.dimension_sections";
/// Name of the sections in `config.json`.
pub(crate) const MROPE_SECTION: &str = "mrope_section";
/// transformers' default for absent sections.
pub(crate) const DEFAULT_SECTIONS: [u32; 4] = [11, 11, 10, 0];

/// Whether this module or the tensor reader uses this key. `name` has no architecture prefix.
pub(super) fn is_supported_key(name: &str) -> bool {
    let [_, kernel] = KERNEL;
    [
        INTERVAL,
        RECURRENT,
        SECTIONS,
        kernel,
        INNER_SIZE,
        PREDICTION_BLOCKS,
    ]
    .contains(&name)
        || LINEAR_HEADS.iter().any(|(_, heads)| *heads == name)
}

/// Reads the linear-attention fields of a `config.json`; `config` already has the common fields.
///
/// # Errors
///
/// A key is absent or has the wrong type, value heads have different sizes, or llama.cpp would
/// apply RoPE to text differently with these sections.
///
/// # Source
///
/// ggml-org/llama.cpp, `models/qwen35.cpp`, `load_arch_hparams`.
pub(super) fn fields(
    fields: &Fields<'_>,
    config: &Value,
    n_blocks: u64,
) -> Result<Map<String, Value>, CheckpointError> {
    let mut config_fields = Map::new();
    let mut copy_field = |field: &str, name: &str| {
        let number = fields.unsigned(name)?;
        config_fields.insert(field.to_owned(), number.into());
        Ok::<_, CheckpointError>(number)
    };
    for (field, name) in LINEAR_HEADS {
        copy_field(field, name)?;
    }
    let [field, name] = KERNEL;
    copy_field(field, name)?;
    // The tensor reader checks that all value heads have the same size.
    let inner = fields.unsigned(INNER_SIZE)?;
    let n_value = fields.unsigned(LINEAR_HEADS[1].1)?;
    let value_dim = inner.checked_div(n_value).unwrap_or(0);
    config_fields.insert(VALUE_DIM.to_owned(), value_dim.into());
    let interval = fields.metadata.unsigned(&fields.key(INTERVAL))?;
    if let Some(types) = types(fields, config, n_blocks)? {
        config_fields.insert("layer_types".to_owned(), types);
    } else if let Some(interval) = interval {
        config_fields.insert(INTERVAL.to_owned(), interval.into());
    }
    config_fields.extend(sections(fields, config)?);
    Ok(config_fields)
}

/// The types of the model's blocks, if the file lists them. The list has `n_blocks` entries, some
/// of which may be prediction blocks that do not belong to the model.
fn types(
    fields: &Fields<'_>,
    config: &Value,
    n_blocks: u64,
) -> Result<Option<Value>, CheckpointError> {
    let key = fields.key(RECURRENT);
    let mut entries = fields.metadata.entries();
    let Some((_, value)) = entries.find(|(entry, _)| *entry == key) else {
        return Ok(None);
    };
    let problem = "must be a list with one flag per block";
    let error = || CheckpointError::field(fields.metadata.path(), &key, problem);
    let GgufValue::Array(items) = value else {
        return Err(error());
    };
    let n_layers = config["num_hidden_layers"].as_u64().unwrap_or_default();
    if items.len() as u64 != n_blocks || n_layers > n_blocks {
        return Err(error());
    }
    let types = items.iter().take(n_layers as usize).map(|item| match item {
        GgufValue::Bool(true) | GgufValue::Unsigned(1) | GgufValue::Signed(1) => {
            Ok("linear_attention")
        }
        GgufValue::Bool(false) | GgufValue::Unsigned(0) | GgufValue::Signed(0) => {
            Ok("full_attention")
        }
        _ => Err(error()),
    });
    let types: Vec<&str> = types.collect::<Result<_, _>>()?;
    Ok(Some(types.into()))
}

fn sections(
    fields: &Fields<'_>,
    config: &Value,
) -> Result<Option<(String, Value)>, CheckpointError> {
    let key = fields.key(SECTIONS);
    let Some(lengths) = fields.metadata.i32s(&key)? else {
        return Ok(None);
    };
    let path = fields.metadata.path();
    let mut sections = [0_u32; 4];
    if lengths.len() > sections.len() || lengths.iter().any(|section| *section < 0) {
        let problem = "must have at most four counts; convert the model again";
        return Err(CheckpointError::field(path, key, problem));
    }
    for (section, lengths) in sections.iter_mut().zip(&lengths) {
        *section = lengths.unsigned_abs();
    }
    let head_dim = config["head_dim"].as_u64().unwrap_or_default();
    let rotary_dim = fields
        .metadata
        .unsigned(&fields.key("rope.dimension_count"))?;
    if !rotates_by_text_position(sections, rotary_dim.unwrap_or(head_dim), head_dim) {
        return Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: format!("{key} = {lengths:?}"),
            fix: "some head dimensions do not rotate by the text position; use the model's \
                  safetensors directory",
        });
    }
    let [t, h, w, _] = sections;
    Ok(Some((MROPE_SECTION.to_owned(), json!([t, h, w]))))
}

/// Whether llama.cpp rotates all `rotary_dim` numbers of a head of size `head_dim` by the text
/// position. In text, the first three coordinates are equal; the fourth one is 0.
///
/// # Source
///
/// ggml-org/llama.cpp, `ggml-cpu/ops.cpp`, `ggml_mrope_cache_init`, with its bound on all sections.
pub(crate) fn rotates_by_text_position(sections: [u32; 4], rotary_dim: u64, head_dim: u64) -> bool {
    let all: u64 = sections.iter().map(|section| u64::from(*section)).sum();
    let three = [0, 1, 2].map(|i| 3 * u64::from(sections[i]));
    if three == [0; 3] || all > head_dim {
        return false;
    }
    // The sections repeat after the last one.
    (0..all.min(rotary_dim / 2)).all(|sector| sector < three[(sector % 3) as usize])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::rotates_by_text_position;
    use crate::error::CheckpointError;
    use crate::gguf_writer::GgufWriter;
    use crate::model_files::ModelFiles;

    /// A model with two linear-attention blocks (two key heads of size 4, four value heads of size
    /// 2) and one full-attention block. `more` adds to the file.
    fn tiny(more: impl FnOnce(GgufWriter) -> GgufWriter) -> Result<ModelFiles, CheckpointError> {
        let mut gguf = GgufWriter::new()
            .text("general.architecture", "qwen35")
            .u32("qwen35.context_length", 64)
            .u32("qwen35.embedding_length", 8)
            .u32("qwen35.feed_forward_length", 8)
            .u32("qwen35.attention.head_count", 2)
            .u32("qwen35.attention.key_length", 8)
            .u32("qwen35.attention.value_length", 8)
            .u32("qwen35.rope.dimension_count", 4)
            .f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6)
            .u32("qwen35.ssm.conv_kernel", 4)
            .u32("qwen35.ssm.state_size", 4)
            .u32("qwen35.ssm.group_count", 2)
            .u32("qwen35.ssm.time_step_rank", 4)
            .text("tokenizer.ggml.model", "gpt2")
            .texts("tokenizer.ggml.tokens", &["a", "b"])
            .f32_tensor("token_embd.weight", &[2, 8])
            .f32_tensor("blk.0.ssm_conv1d.weight", &[24, 4])
            .f32_tensor("blk.2.attn_q.weight", &[32, 8]);
        let rates = [-1.0_f32, -2.0, -4.0, -8.0];
        let bytes = rates.iter().flat_map(|rate| rate.to_le_bytes());
        gguf = gguf.tensor("blk.0.ssm_a", &[4], 0, bytes.collect());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        more(gguf).write(&path);
        ModelFiles::open(&path)
    }

    fn complete(gguf: GgufWriter) -> GgufWriter {
        gguf.u32("qwen35.block_count", 3)
            .u32("qwen35.ssm.inner_size", 8)
    }

    fn config(more: impl FnOnce(GgufWriter) -> GgufWriter) -> Value {
        tiny(|gguf| more(complete(gguf))).unwrap().config
    }

    #[test]
    fn the_config_contains_sizes_and_types_of_blocks() {
        let converted = config(|gguf| {
            gguf.u32("qwen35.full_attention_interval", 3)
                .i32s("qwen35.rope.dimension_sections", &[1, 1, 1, 0])
        });
        for (field, value) in [
            ("model_type", json!("qwen3_5_text")),
            ("linear_num_key_heads", json!(2)),
            ("linear_num_value_heads", json!(4)),
            ("linear_key_head_dim", json!(4)),
            ("linear_value_head_dim", json!(2)),
            ("linear_conv_kernel_dim", json!(4)),
            ("full_attention_interval", json!(3)),
            ("partial_rotary_factor", json!(0.5)),
            ("mrope_section", json!([1, 1, 1])),
        ] {
            assert_eq!(converted[field], value, "{field}");
        }
        assert!(config(|gguf| gguf).get("full_attention_interval").is_none());
        let kinds = config(|gguf| gguf.i32s("qwen35.attention.recurrent_layers", &[1, 0, 0]));
        let listed = json!(["linear_attention", "full_attention", "full_attention"]);
        assert_eq!(kinds["layer_types"], listed);
    }

    #[test]
    fn tensors_have_the_names_shapes_and_values_of_hugging_face() {
        let weights = tiny(complete).unwrap().weights;
        let conv = "model.layers.0.linear_attn.conv1d.weight";
        assert_eq!(weights.shape(conv), Some(&[24, 1, 4][..]));
        let rates = "model.layers.0.linear_attn.A_log";
        // The value heads of each key head are adjacent: 1 and 4, then 2 and 8.
        let expected = [1.0, 4.0, 2.0, 8.0].map(|rate: f64| rate.ln() as f32);
        assert_eq!(weights.read_f32(rates).unwrap().values, expected);
        assert!(
            weights
                .shape("model.layers.2.self_attn.q_proj.weight")
                .is_some()
        );
    }

    #[test]
    fn multi_token_prediction_blocks_are_omitted() {
        let files = tiny(|gguf| {
            gguf.u32("qwen35.block_count", 4)
                .u32("qwen35.ssm.inner_size", 8)
                .u32("qwen35.nextn_predict_layers", 1)
                .i32s("qwen35.attention.recurrent_layers", &[1, 1, 0, 0])
                .f32_tensor("blk.3.attn_q.weight", &[32, 8])
                .f32_tensor("blk.3.nextn.eh_proj.weight", &[8, 16])
        });
        let files = files.unwrap();
        assert_eq!(files.config["num_hidden_layers"], 3);
        assert_eq!(files.config["layer_types"].as_array().unwrap().len(), 3);
        assert_eq!(files.weights.n_prediction(), 2);
        assert_eq!(files.weights.names().count(), 4);
        let remarks = files.remarks.concat();
        assert!(
            remarks.contains("2 tensors that predict tokens"),
            "{remarks}"
        );
    }

    #[test]
    fn download_sizes_are_checked_against_the_free_space() {
        type Damage = fn(GgufWriter) -> GgufWriter;
        let cases: [(Damage, &str); 6] = [
            (
                |gguf| gguf.u32("qwen35.block_count", 3),
                "ssm.inner_size: is missing",
            ),
            (
                |gguf| {
                    gguf.u32("qwen35.block_count", 3)
                        .u32("qwen35.ssm.inner_size", 7)
                },
                "qwen35.ssm.time_step_rank: is 4 but must be a multiple",
            ),
            (
                |gguf| complete(gguf).u32("qwen35.nextn_predict_layers", 3),
                "nextn_predict_layers: is 3, but there are only 3 blocks",
            ),
            (
                |gguf| complete(gguf).i32s("qwen35.attention.recurrent_layers", &[1, 0]),
                "one flag per block",
            ),
            (
                |gguf| complete(gguf).i32s("qwen35.rope.dimension_sections", &[1, 0, 1, 0]),
                "rope.dimension_sections = [1, 0, 1, 0]",
            ),
            (
                |gguf| complete(gguf).f32_tensor("blk.1.attn_gate.weight", &[12, 8]),
                "blk.1.attn_gate",
            ),
        ];
        for (more, part) in cases {
            let error = tiny(more).unwrap_err().to_string();
            let part = part.replace("blk.1.attn_gate", "layers.1.linear_attn.in_proj_z");
            assert!(error.contains(&part), "no {part:?} in {error}");
        }
        let rates = tiny(|gguf| complete(gguf).f32_tensor("blk.1.ssm_a", &[4])).unwrap();
        let error = rates.weights.read_f32("model.layers.1.linear_attn.A_log");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("is 0 at element 0"), "{error}");
    }

    #[test]
    fn sections_rotate_text_alike_unless_one_uses_the_fourth_coordinate() {
        assert!(rotates_by_text_position([11, 11, 10, 0], 64, 256));
        assert!(rotates_by_text_position([11, 11, 10, 0], 8, 32));
        assert!(rotates_by_text_position([2, 1, 1, 0], 8, 32));
        // Short section lists repeat.
        assert!(rotates_by_text_position([1, 1, 1, 0], 64, 256));
        assert!(!rotates_by_text_position([8, 12, 12, 0], 64, 256));
        assert!(!rotates_by_text_position([11, 11, 10, 0], 64, 31));
        assert!(!rotates_by_text_position([0, 0, 0, 4], 8, 32));
    }
}
