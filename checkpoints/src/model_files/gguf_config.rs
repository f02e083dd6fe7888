//! Converts GGUF metadata to the fields of Hugging Face's config.json.
//!
//! In GGUF, Mistral models have the architecture "llama" and the same computation. They are read as
//! model type llama, or as mistral if only queries, keys and values have biases.

use serde_json::{Map, Value, json};

use super::gguf_fields::Fields;
use super::{gguf_keys, gguf_linear, gguf_rope};
use crate::error::CheckpointError;
use crate::families::{Family, LLAMA, LayerRules, MISTRAL, Multipliers};
use crate::weights::PredictionBlocks;
use crate::weights::gguf::{ARCHITECTURE, GgufFile, GgufMetadata, GgufValue};

/// Maximum number of blocks in the config. The readers of the config refuse more.
const MAX_LAYERS: usize = 1 << 16;

/// The config in the format of transformers.
pub(super) fn config_of(gguf: &GgufFile) -> Result<Value, CheckpointError> {
    let metadata = &gguf.metadata;
    let kind = "general.type";
    if metadata.text(kind)? == Some("adapter") {
        let problem = "is \"adapter\": this file is a llama.cpp LoRA adapter, not a model; give \
                       its base model; to load the adapter, give its run or PEFT folder";
        return Err(CheckpointError::field(metadata.path(), kind, problem));
    }
    let family = family(metadata)?;
    let architecture = family.gguf.architecture;
    gguf_keys::refuse_unknown(metadata, family)?;
    let fields = Fields {
        metadata,
        architecture,
    };
    let hidden_size = fields.unsigned("embedding_length")?;
    let n_heads = fields.unsigned("attention.head_count")?;
    if n_heads == 0 {
        let key = fields.key("attention.head_count");
        return Err(CheckpointError::field(
            metadata.path(),
            key,
            "must be at least 1",
        ));
    }
    let head_dim = match metadata.unsigned(&fields.key("attention.key_length"))? {
        Some(head_dim) => head_dim,
        None => hidden_size / n_heads,
    };
    fields.must_be("attention.value_length", head_dim)?;
    if family.config.rotary.partial.is_none() {
        fields.must_be("rope.dimension_count", head_dim)?;
    }
    let n_key_value = metadata.unsigned(&fields.key("attention.head_count_kv"))?;
    let rope_theta = fields
        .optional_number("rope.freq_base")?
        .unwrap_or_else(|| family.config.rotary.theta.into());
    let theta = rope_theta.as_f64().unwrap_or_default();
    let vocab_size = vocab_size(gguf)?;
    let eps = "attention.layer_norm_rms_epsilon";
    let n_blocks = fields.unsigned("block_count")?;
    let mut config = json!({
        "model_type": family.model_type,
        "hidden_size": hidden_size,
        "intermediate_size": fields.unsigned("feed_forward_length")?,
        "num_hidden_layers": PredictionBlocks::from_metadata(metadata, family)?.n_own_blocks(n_blocks),
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_key_value.unwrap_or(n_heads),
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "rms_norm_eps": metadata.require(&fields.key(eps), fields.optional_number(eps)?)?,
        "rope_theta": rope_theta,
        "rope_scaling": gguf_rope::scaling(gguf, &fields, theta)?,
        "max_position_embeddings": fields.unsigned("context_length")?,
        "tie_word_embeddings": !gguf.has_tensor("output.weight"),
        "attention_bias": gguf.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": gguf.has_tensor("blk.0.ffn_gate.bias"),
        "hidden_act": family.config.hidden_act,
    });
    let has_output_bias = gguf.has_tensor("blk.0.attn_output.bias");
    if family.model_type == LLAMA.model_type && config["attention_bias"] == true && !has_output_bias
    {
        // Biases of only queries, keys and values mark a Mistral model without a window.
        config["model_type"] = MISTRAL.model_type.into();
        config["sliding_window"] = Value::Null;
    }
    let mut family_fields = family_fields(&fields, family, &config)?;
    if let LayerRules::LinearExceptEvery(_) = family.config.layers {
        family_fields.extend(gguf_linear::fields(&fields, &config, n_blocks)?);
    }
    config
        .as_object_mut()
        .into_iter()
        .for_each(|config| config.extend(family_fields.clone()));
    Ok(config)
}

/// The fields that only this family has.
fn family_fields(
    fields: &Fields<'_>,
    family: &Family,
    config: &Value,
) -> Result<Map<String, Value>, CheckpointError> {
    let mut family_fields = Map::new();
    for (key, field) in family.gguf.numbers {
        let Some(number) = fields.optional_number_or_count(key)? else {
            continue;
        };
        let Some(scaling) = field.strip_prefix("rope_scaling.") else {
            family_fields.insert((*field).to_owned(), number);
            continue;
        };
        let mut table = config["rope_scaling"].clone();
        let Some(entries) = table.as_object_mut() else {
            let problem = "needs a RoPE scaling; convert the model again";
            return Err(CheckpointError::field(
                fields.metadata.path(),
                fields.key(key),
                problem,
            ));
        };
        entries.insert(scaling.to_owned(), number);
        family_fields.insert("rope_scaling".to_owned(), table);
    }
    let size = |field: &str| config[field].as_f64().unwrap_or_default();
    let head_dim = size("head_dim");
    match family.config.multipliers {
        Multipliers::None => {}
        // Without this key, llama.cpp divides by the square root of the head size.
        Multipliers::Granite => {
            let multiplier = family_fields.entry("attention_multiplier");
            multiplier.or_insert_with(|| head_dim.powf(-0.5).into());
        }
        // One size of Gemma 3 has a different scale. llama.cpp identifies it by its number of
        // blocks.
        Multipliers::Gemma => {
            let is_27b = size("num_hidden_layers") == 62.0;
            let query_width = size("hidden_size") / size("num_attention_heads");
            let scalar = if is_27b { query_width } else { head_dim };
            let scalar = match scalar.fract() == 0.0 {
                true => Value::from(scalar as u64),
                false => scalar.into(),
            };
            family_fields.insert("query_pre_attn_scalar".to_owned(), scalar);
        }
    }
    if family.config.rotary.partial.is_some() {
        let rotary_dim = fields
            .metadata
            .unsigned(&fields.key("rope.dimension_count"))?;
        let fraction = rotary_dim.map_or(1.0, |rotary_dim| rotary_dim as f64 / head_dim);
        family_fields.insert("partial_rotary_factor".to_owned(), fraction.into());
    }
    let context_key = "original_max_position_embeddings";
    let context = &config["rope_scaling"][context_key];
    if family.config.rotary.original_context.is_some() && !context.is_null() {
        family_fields.insert(context_key.to_owned(), context.clone());
    }
    family_fields.extend(window(fields, family, config)?);
    Ok(family_fields)
}

/// The window of a family that can have one; 0 or an absent key means none.
fn window(
    fields: &Fields<'_>,
    family: &Family,
    config: &Value,
) -> Result<Map<String, Value>, CheckpointError> {
    let window = fields.metadata.unsigned(&fields.key(gguf_keys::WINDOW))?;
    let window = window.filter(|&window| window > 0);
    let mut config_fields = Map::new();
    match family.config.layers {
        LayerRules::Full | LayerRules::LinearExceptEvery(_) => return Ok(config_fields),
        LayerRules::FromLayer | LayerRules::NoRopeEvery(_) if window.is_some() => {
            return Err(CheckpointError::Unsupported {
                path: fields.metadata.path().to_owned(),
                feature: fields.key(gguf_keys::WINDOW),
                fix: "llama.cpp has no window for this architecture; use the model's safetensors \
                      directory",
            });
        }
        LayerRules::WindowExceptEvery(_) if window.is_none() => {
            let n_layers = config["num_hidden_layers"].as_u64().unwrap_or_default();
            let n_layers = usize::try_from(n_layers)
                .unwrap_or(usize::MAX)
                .min(MAX_LAYERS);
            config_fields.insert(
                "layer_types".to_owned(),
                vec!["full_attention"; n_layers].into(),
            );
        }
        _ => {}
    }
    config_fields.insert("sliding_window".to_owned(), window.into());
    if matches!(family.config.layers, LayerRules::WindowExceptEvery(_)) && window.is_some() {
        config_fields.extend(pattern(fields, config)?);
    }
    Ok(config_fields)
}

/// Which blocks have the window, if the file specifies them: every block except each nth, or a
/// list.
fn pattern(
    fields: &Fields<'_>,
    config: &Value,
) -> Result<Option<(String, Value)>, CheckpointError> {
    let key = fields.key(gguf_keys::PATTERN);
    let mut entries = fields.metadata.entries();
    let Some((_, value)) = entries.find(|(entry, _)| *entry == key) else {
        return Ok(None);
    };
    let GgufValue::Array(items) = value else {
        let interval = fields.metadata.unsigned(&key)?;
        return Ok(interval.map(|interval| ("sliding_window_pattern".to_owned(), interval.into())));
    };
    let types = items.iter().map(|item| match item {
        GgufValue::Bool(slides) => Some(*slides),
        GgufValue::Unsigned(slides @ (0 | 1)) => Some(*slides == 1),
        GgufValue::Signed(slides @ (0 | 1)) => Some(*slides == 1),
        _ => None,
    });
    let types = types.map(|slides| {
        slides.map(|slides| match slides {
            true => "sliding_attention",
            false => "full_attention",
        })
    });
    let types: Option<Vec<&str>> = types.collect();
    let n_layers = config["num_hidden_layers"].as_u64();
    let types = types.filter(|types| n_layers == Some(types.len() as u64));
    let Some(types) = types else {
        let problem = "must be a number, or a list with one flag per block";
        return Err(CheckpointError::field(fields.metadata.path(), key, problem));
    };
    Ok(Some(("layer_types".to_owned(), types.into())))
}

fn family(metadata: &GgufMetadata) -> Result<&'static Family, CheckpointError> {
    let name = metadata.require(ARCHITECTURE, metadata.text(ARCHITECTURE)?)?;
    let family = Family::of_architecture(name).ok_or_else(|| CheckpointError::Unsupported {
        path: metadata.path().to_owned(),
        feature: format!("{ARCHITECTURE} \"{name}\""),
        fix: "choose a GGUF model of a family that docs/models.md lists",
    })?;
    Ok(family)
}

/// Number of rows of the embedding. The number in the metadata is optional and sometimes outdated.
fn vocab_size(gguf: &GgufFile) -> Result<usize, CheckpointError> {
    let name = "token_embd.weight";
    match gguf.shape(name) {
        Some([n_rows, _]) => Ok(*n_rows),
        Some(shape) => {
            let problem = format!("must be a matrix, but its shape is {shape:?}");
            Err(CheckpointError::malformed(
                gguf.metadata.path(),
                name,
                problem,
            ))
        }
        None => Err(CheckpointError::malformed(
            gguf.metadata.path(),
            name,
            "the tensor is missing",
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::error::CheckpointError;
    use crate::gguf_writer::GgufWriter;
    use crate::model_files::ModelFiles;

    fn model(gguf: GgufWriter) -> Result<ModelFiles, CheckpointError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        gguf.write(&path);
        ModelFiles::open(&path)
    }

    fn open_gguf(gguf: GgufWriter) -> Result<Value, CheckpointError> {
        Ok(model(gguf)?.config)
    }

    #[test]
    fn the_tensors_of_a_qwen2_gguf_determine_tied_head_and_biases() {
        let mut gguf = GgufWriter::tiny("qwen2");
        for name in ["attn_q", "attn_k", "attn_v"] {
            gguf = gguf.f32_tensor(&format!("blk.0.{name}.bias"), &[8]);
        }
        let model = model(gguf).unwrap();
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

    #[test]
    fn a_llama_gguf_without_a_bias_of_the_output_is_a_mistral() {
        let with = |names: &[&str]| {
            let biases = names.iter().fold(GgufWriter::tiny("llama"), |gguf, name| {
                gguf.f32_tensor(&format!("blk.0.{name}.bias"), &[8])
            });
            open_gguf(biases).unwrap()
        };
        let mistral = with(&["attn_q", "attn_k", "attn_v"]);
        assert_eq!(mistral["model_type"], "mistral");
        assert!(mistral.get("sliding_window").is_some_and(Value::is_null));
        let llama = with(&["attn_q", "attn_k", "attn_v", "attn_output"]);
        assert_eq!(llama["model_type"], "llama");
    }

    #[test]
    fn family_specific_fields_are_in_the_config() {
        let config = |gguf: GgufWriter| open_gguf(gguf).unwrap();
        let granite = GgufWriter::tiny("granite")
            .f32("granite.attention.scale", 0.25)
            .f32("granite.embedding_scale", 12.0)
            .f32("granite.residual_scale", 0.5)
            .f32("granite.logit_scale", 8.0);
        let granite = config(granite);
        assert_eq!(granite["attention_multiplier"], 0.25);
        assert_eq!(granite["embedding_multiplier"], 12.0);
        assert_eq!(granite["residual_multiplier"], 0.5);
        assert_eq!(granite["logits_scaling"], 8.0);
        let plain = config(GgufWriter::tiny("granite"));
        assert_eq!(plain["attention_multiplier"], 0.5);

        let gemma = config(GgufWriter::tiny("gemma3").u32("gemma3.attention.sliding_window", 16));
        assert_eq!(gemma["model_type"], "gemma3_text");
        assert_eq!(gemma["sliding_window"], 16);
        assert_eq!(gemma["query_pre_attn_scalar"], 4);
        assert_eq!(gemma["rope_theta"], 1e6);
        let olmo = config(GgufWriter::tiny("olmo2"));
        assert_eq!(olmo["layer_types"], json!(["full_attention"]));
        assert_eq!(config(GgufWriter::tiny("smollm3"))["rope_theta"], 2e6);

        let factors = |name: &str, gguf: GgufWriter| {
            let data = 1.1f32.to_le_bytes().to_vec();
            gguf.tensor(&format!("rope_factors_{name}.weight"), &[1], 0, data)
        };
        let phi = || GgufWriter::tiny("phi3").u32("phi3.rope.dimension_count", 2);
        let both = config(factors("long", factors("short", phi())));
        assert_eq!(both["partial_rotary_factor"], 0.5);
        // The shortest decimals of the stored numbers: 1.1, not 1.100000023841858.
        assert_eq!(
            both["rope_scaling"],
            json!({"rope_type": "longrope", "short_factor": [1.1], "long_factor": [1.1],
                "original_max_position_embeddings": 64})
        );
        let error = open_gguf(factors("long", phi())).unwrap_err().to_string();
        assert!(error.contains("rope_factors_short.weight"), "{error}");
        let mistral = GgufWriter::tiny("mistral3").f32("mistral3.attention.temperature_scale", 0.1);
        let error = open_gguf(mistral).unwrap_err().to_string();
        assert!(error.contains("temperature_scale"), "{error}");
    }
}
