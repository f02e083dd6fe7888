//! GGUF metadata as the fields of Hugging Face's config.json.
//!
//! Mistral models carry the architecture "llama" in GGUF and the same computation, so they come
//! out as model type llama.

use serde_json::{Map, Value, json};

use super::{gguf_keys, gguf_linear, gguf_rope};
use crate::error::CheckpointError;
use crate::families::{Family, LLAMA, LayerRules, MISTRAL, Multipliers};
use crate::weights::BlocksAhead;
use crate::weights::gguf::{ARCHITECTURE, GgufFile, GgufMetadata, GgufValue};

/// Blocks beyond these are refused by whoever reads the config.
const MODEL_LAYERS: usize = 1 << 16;

/// The config as `transformers` would have written it.
pub(super) fn synthesise(gguf: &GgufFile) -> Result<Value, CheckpointError> {
    let metadata = &gguf.metadata;
    let kind = "general.type";
    if metadata.text(kind)? == Some("adapter") {
        let problem = "is \"adapter\": this is a LoRA adapter for llama.cpp, which loads it beside its \
                       base (--lora), and no model; name the base, or for the adapter the run or the \
                       folder of PEFT that it came from";
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
        "num_hidden_layers": BlocksAhead::from_metadata(metadata, family)?.own(n_blocks),
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
    let of_output = gguf.has_tensor("blk.0.attn_output.bias");
    if family.model_type == LLAMA.model_type && config["attention_bias"] == true && !of_output {
        // Biases of queries, keys and values alone are those of a Mistral, here without a window.
        config["model_type"] = MISTRAL.model_type.into();
        config["sliding_window"] = Value::Null;
    }
    let mut own = own_fields(&fields, family, &config)?;
    if let LayerRules::LinearButEach(_) = family.config.layers {
        own.extend(gguf_linear::fields(&fields, &config, n_blocks)?);
    }
    config
        .as_object_mut()
        .into_iter()
        .for_each(|config| config.extend(own.clone()));
    Ok(config)
}

/// What the family alone says.
fn own_fields(
    fields: &Fields<'_>,
    family: &Family,
    config: &Value,
) -> Result<Map<String, Value>, CheckpointError> {
    let mut own = Map::new();
    for (key, field) in family.gguf.numbers {
        let Some(number) = fields.optional_number_or_count(key)? else {
            continue;
        };
        let Some(scaling) = field.strip_prefix("rope_scaling.") else {
            own.insert((*field).to_owned(), number);
            continue;
        };
        let mut table = config["rope_scaling"].clone();
        let Some(entries) = table.as_object_mut() else {
            let problem = "needs a rotary scaling beside it; convert the model again";
            return Err(CheckpointError::field(
                fields.metadata.path(),
                fields.key(key),
                problem,
            ));
        };
        entries.insert(scaling.to_owned(), number);
        own.insert("rope_scaling".to_owned(), table);
    }
    let size = |field: &str| config[field].as_f64().unwrap_or_default();
    let head_dim = size("head_dim");
    match family.config.multipliers {
        Multipliers::None => {}
        // Without the key llama.cpp divides by the root of the size of a head.
        Multipliers::Granite => {
            let usual = own.entry("attention_multiplier");
            usual.or_insert_with(|| head_dim.powf(-0.5).into());
        }
        // llama.cpp knows the one size of Gemma 3 with another scale by its blocks.
        Multipliers::Gemma => {
            let is_27b = size("num_hidden_layers") == 62.0;
            let of_width = size("hidden_size") / size("num_attention_heads");
            let scalar = if is_27b { of_width } else { head_dim };
            own.insert("query_pre_attn_scalar".to_owned(), scalar.into());
        }
    }
    if family.config.rotary.partial.is_some() {
        let turned = fields
            .metadata
            .unsigned(&fields.key("rope.dimension_count"))?;
        let share = turned.map_or(1.0, |turned| turned as f64 / head_dim);
        own.insert("partial_rotary_factor".to_owned(), share.into());
    }
    let original = "original_max_position_embeddings";
    let context = &config["rope_scaling"][original];
    if family.config.rotary.original_context.is_some() && !context.is_null() {
        own.insert(original.to_owned(), context.clone());
    }
    own.extend(window(fields, family, config)?);
    Ok(own)
}

/// The window of a family that may have one, 0 and no key meaning none.
fn window(
    fields: &Fields<'_>,
    family: &Family,
    config: &Value,
) -> Result<Map<String, Value>, CheckpointError> {
    let window = fields.metadata.unsigned(&fields.key(gguf_keys::WINDOW))?;
    let window = window.filter(|&window| window > 0);
    let mut own = Map::new();
    match family.config.layers {
        LayerRules::Full | LayerRules::LinearButEach(_) => return Ok(own),
        LayerRules::FromLayer | LayerRules::UnturnedEach(_) if window.is_some() => {
            return Err(CheckpointError::Unsupported {
                path: fields.metadata.path().to_owned(),
                feature: fields.key(gguf_keys::WINDOW),
                fix: "llama.cpp knows no window of this architecture; take the model's \
                       safetensors directory",
            });
        }
        LayerRules::AllButEach(_) if window.is_none() => {
            let n_layers = config["num_hidden_layers"].as_u64().unwrap_or_default();
            let n_layers = usize::try_from(n_layers)
                .unwrap_or(usize::MAX)
                .min(MODEL_LAYERS);
            own.insert(
                "layer_types".to_owned(),
                vec!["full_attention"; n_layers].into(),
            );
        }
        _ => {}
    }
    own.insert("sliding_window".to_owned(), window.into());
    if matches!(family.config.layers, LayerRules::AllButEach(_)) && window.is_some() {
        own.extend(pattern(fields, config)?);
    }
    Ok(own)
}

/// Which blocks have the window, where the file says it: all but each so-manieth, or a list.
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
        let each = fields.metadata.unsigned(&key)?;
        return Ok(each.map(|each| ("sliding_window_pattern".to_owned(), each.into())));
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
        let problem = "must be a number, or say of each block whether it has the window";
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

/// Metadata fields under the architecture's prefix.
pub(super) struct Fields<'a> {
    pub(super) metadata: &'a GgufMetadata,
    architecture: &'static str,
}

impl Fields<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn unsigned(&self, name: &str) -> Result<u64, CheckpointError> {
        let key = self.key(name);
        self.metadata.require(&key, self.metadata.unsigned(&key)?)
    }

    /// Refuses a size that is there and is not that of a head.
    fn must_be(&self, name: &str, head_dim: u64) -> Result<(), CheckpointError> {
        let key = self.key(name);
        match self.metadata.unsigned(&key)? {
            Some(size) if size != head_dim => Err(CheckpointError::Unsupported {
                path: self.metadata.path().to_owned(),
                feature: format!("{key} = {size} beside heads of size {head_dim}"),
                fix: "take a model whose heads have one size and are rotated as a whole, or \
                       convert it again",
            }),
            _ => Ok(()),
        }
    }

    /// A number of whatever type it is stored in.
    fn optional_number_or_count(&self, name: &str) -> Result<Option<Value>, CheckpointError> {
        let key = self.key(name);
        let mut entries = self.metadata.entries();
        match entries.find(|(entry, _)| *entry == key) {
            Some((_, GgufValue::Unsigned(count))) => Ok(Some((*count).into())),
            _ => self.optional_number(name),
        }
    }

    /// The shortest decimal that is the stored f32: 1e-5, not 9.999999747378752e-6.
    pub(super) fn optional_number(&self, name: &str) -> Result<Option<Value>, CheckpointError> {
        let key = self.key(name);
        let Some(number) = self.metadata.f32(&key)? else {
            return Ok(None);
        };
        let shortest: Option<f64> = format!("{number:e}").parse().ok();
        match shortest.filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number.into())),
            None => Err(CheckpointError::field(
                self.metadata.path(),
                key,
                "must be finite",
            )),
        }
    }
}

/// Rows of the embedding: the metadata's own count is optional and sometimes stale.
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
    fn a_qwen2_gguf_has_tied_head_and_biases_where_the_tensors_say_so() {
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
    fn what_a_family_alone_says_stands_in_its_config() {
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
        assert_eq!(gemma["query_pre_attn_scalar"], 4.0);
        assert_eq!(gemma["rope_theta"], 1e6);
        let olmo = config(GgufWriter::tiny("olmo2"));
        assert_eq!(olmo["layer_types"], json!(["full_attention"]));
        assert_eq!(config(GgufWriter::tiny("smollm3"))["rope_theta"], 2e6);

        let factors = |name: &str, gguf: GgufWriter| {
            let data = 2f32.to_le_bytes().to_vec();
            gguf.tensor(&format!("rope_factors_{name}.weight"), &[1], 0, data)
        };
        let phi = || GgufWriter::tiny("phi3").u32("phi3.rope.dimension_count", 2);
        let both = config(factors("long", factors("short", phi())));
        assert_eq!(both["partial_rotary_factor"], 0.5);
        assert_eq!(
            both["rope_scaling"],
            json!({"rope_type": "longrope", "short_factor": [2.0], "long_factor": [2.0],
                "original_max_position_embeddings": 64})
        );
        let error = open_gguf(factors("long", phi())).unwrap_err().to_string();
        assert!(error.contains("rope_factors_short.weight"), "{error}");
        let mistral = GgufWriter::tiny("mistral3").f32("mistral3.attention.temperature_scale", 0.1);
        let error = open_gguf(mistral).unwrap_err().to_string();
        assert!(error.contains("temperature_scale"), "{error}");
    }
}
