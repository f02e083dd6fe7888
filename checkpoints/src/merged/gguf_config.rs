//! Writes the fields of a `config.json` as metadata of a GGUF file.
//!
//! A field that llama.cpp computes differently is an error that names the field, because the file
//! would describe a different model.
//!
//! # Source
//!
//! ggml-org/llama.cpp, `convert_hf_to_gguf.py`, `set_gguf_parameters` of each model. llama.cpp
//! reads the keys in `load_arch_hparams` in `src/models/`, and the RoPE scaling in
//! `llama-context.cpp`.

use std::path::Path;

use serde_json::Value;

use super::gguf_fields::Config;
use super::gguf_layers::write_layers;
use super::gguf_linear::write_linear;
use crate::error::CheckpointError;
use crate::families::{Family, Multipliers};
use crate::model_files::llama3_divisors;
use crate::weights::gguf::{LONG_FACTORS, ROPE_FREQS, SHORT_FACTORS};
use crate::weights::gguf_write::GgufHeader;

/// Named tensors to write in addition to the tensors of the folder.
type ExtraTensors = Vec<(&'static str, Vec<f32>)>;

/// The largest context size at which llama.cpp computes short prompts as the config at `base`
/// specifies. `None` if the model has only one set of frequency divisors.
///
/// RoPE scaling "longrope" has separate frequency divisors for short and long prompts. transformers
/// and tooltune select them by the prompt length; llama.cpp selects them by its context size.
///
/// # Errors
///
/// A size in the config is not a number.
pub fn short_context(base: &Path, fields: &Value) -> Result<Option<u32>, CheckpointError> {
    let scaling = &fields["rope_scaling"];
    let Some(family) = Family::of_config(fields) else {
        return Ok(None);
    };
    let config = Config {
        path: base,
        fields,
        family,
    };
    match config.rope_type() {
        Some("longrope") if scaling["short_factor"] != scaling["long_factor"] => {
            config.original_context().map(Some)
        }
        _ => Ok(None),
    }
}

impl Config<'_> {
    /// Writes all fields. Returns the fields that GGUF stores as tensors.
    pub(super) fn write(&self, header: &mut GgufHeader) -> Result<ExtraTensors, CheckpointError> {
        let [rotary_dim, head_dim] = self.write_sizes(header)?;
        self.write_multipliers(header, head_dim)?;
        write_layers(self, header)?;
        write_linear(self, header, [rotary_dim, head_dim])?;
        self.write_rotation(header, head_dim)
    }

    /// Writes sizes and norm. Returns the rotary dimension and the head size.
    fn write_sizes(&self, header: &mut GgufHeader) -> Result<[u32; 2], CheckpointError> {
        let rules = &self.family.config;
        let hidden = self.size("hidden_size")?;
        let n_heads = self.size("num_attention_heads")?;
        let key_values = "num_key_value_heads";
        let n_key_value = self.size_or(key_values, rules.default_key_value_heads, n_heads)?;
        let head_dim = hidden / n_heads.max(1);
        let head_dim = self.size_or("head_dim", rules.default_head_dim, head_dim)?;
        let rotary_dim = match rules.rotary.partial {
            Some(absent) => {
                let share = self.fields["partial_rotary_factor"].as_f64();
                (f64::from(head_dim) * share.unwrap_or(absent)) as u32
            }
            None => head_dim,
        };
        for (name, value) in [
            ("block_count", self.size("num_hidden_layers")?),
            ("context_length", self.size("max_position_embeddings")?),
            ("embedding_length", hidden),
            ("feed_forward_length", self.size("intermediate_size")?),
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", n_key_value),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("rope.dimension_count", rotary_dim),
            ("vocab_size", self.size("vocab_size")?),
        ] {
            header.u32(&self.key(name), value);
        }
        let epsilon = self.number("rms_norm_eps")? as f32;
        header.f32(&self.key("attention.layer_norm_rms_epsilon"), epsilon);
        Ok([rotary_dim, head_dim])
    }

    /// Writes the family's multipliers, except those hard-coded in llama.cpp.
    fn write_multipliers(
        &self,
        header: &mut GgufHeader,
        head_dim: u32,
    ) -> Result<(), CheckpointError> {
        match self.family.config.multipliers {
            Multipliers::None => {}
            Multipliers::Granite => {
                for (name, field) in self.family.gguf.numbers {
                    // transformers multiplies by 1 if the field is absent.
                    let value = match self.fields.get(*field) {
                        None => 1.0,
                        Some(_) => self.number(field)?,
                    };
                    header.f32(&self.key(name), value as f32);
                }
            }
            Multipliers::Gemma => {
                let field = "query_pre_attn_scalar";
                let is_27b = self.size("num_hidden_layers")? == 62;
                let width = self.size("hidden_size")? / self.size("num_attention_heads")?.max(1);
                let expected = if is_27b { width } else { head_dim };
                // transformers' default of 256 is the head size of every model except the largest.
                let scalar = self.size_or(field, Some(256), head_dim)?;
                if scalar != expected {
                    let feature = format!("a GGUF file with {field} = {scalar}");
                    return Err(self.unsupported(feature));
                }
            }
        }
        Ok(())
    }

    /// Writes the RoPE parameters.
    fn write_rotation(
        &self,
        header: &mut GgufHeader,
        head_dim: u32,
    ) -> Result<ExtraTensors, CheckpointError> {
        let rules = &self.family.config.rotary;
        let theta = self.fields["rope_theta"].as_f64().unwrap_or(rules.theta);
        header.f32(&self.key("rope.freq_base"), theta as f32);
        if let Some(local) = rules.local_theta {
            let local = self.fields["rope_local_base_freq"]
                .as_f64()
                .unwrap_or(local);
            header.f32(&self.key("rope.freq_base_swa"), local as f32);
        }
        let scaling = &self.fields["rope_scaling"];
        match self.rope_type() {
            None if scaling.is_null() && !rules.requires_rope_parameters => Ok(Vec::new()),
            Some("llama3") => {
                let divisors = llama3_divisors(scaling, theta, head_dim.into());
                let refused = || self.unsupported_field("rope_scaling");
                Ok(vec![(ROPE_FREQS, divisors.ok_or_else(refused)?)])
            }
            Some("linear") => {
                header.text(&self.key("rope.scaling.type"), "linear");
                header.f32(&self.key("rope.scaling.factor"), self.factor()? as f32);
                Ok(Vec::new())
            }
            Some("yarn") => {
                self.write_yarn(header)?;
                Ok(Vec::new())
            }
            Some("longrope") if rules.original_context.is_some() => self.write_longrope(header),
            _ => Err(self.unsupported_field("rope_scaling")),
        }
    }

    /// The type of RoPE scaling; Phi uses older names.
    fn rope_type(&self) -> Option<&str> {
        let has_both = self.family.config.rotary.original_context.is_some();
        match self.fields["rope_scaling"]["rope_type"].as_str() {
            Some("su" | "yarn") if has_both => Some("longrope"),
            rope_type => rope_type,
        }
    }

    fn factor(&self) -> Result<f64, CheckpointError> {
        let factor = self.fields["rope_scaling"]["factor"].as_f64();
        let problem = "must be a number above 0";
        factor
            .filter(|factor| *factor > 0.0)
            .ok_or_else(|| CheckpointError::field(self.path, "rope_scaling.factor", problem))
    }

    /// The pre-training context, from the scaling or the top level of the file.
    fn original_context(&self) -> Result<u32, CheckpointError> {
        let key = "original_max_position_embeddings";
        let scaling = &self.fields["rope_scaling"][key];
        let top = &self.fields[key];
        let default_context = self.family.config.rotary.original_context;
        let context = match default_context {
            Some(absent) => top.as_u64().or(scaling.as_u64()).or(Some(absent as u64)),
            None => scaling.as_u64(),
        };
        match context {
            Some(context) => u32::try_from(context)
                .map_err(|_| CheckpointError::field(self.path, key, "must be a whole number")),
            None => self.size("max_position_embeddings"),
        }
    }

    /// Writes YaRN within llama.cpp's limits: it computes its own cosine multiplier, except in the
    /// architecture that reads `rope.scaling.yarn_log_multiplier`.
    fn write_yarn(&self, header: &mut GgufHeader) -> Result<(), CheckpointError> {
        let scaling = &self.fields["rope_scaling"];
        let factor = self.factor()?;
        header.text(&self.key("rope.scaling.type"), "yarn");
        header.f32(&self.key("rope.scaling.factor"), factor as f32);
        let original = self.original_context()?;
        header.u32(&self.key("rope.scaling.original_context_length"), original);
        let default_factor = 0.1 * factor.max(1.0).ln() + 1.0;
        let multiplier = match (
            scaling["mscale"].as_f64(),
            scaling["mscale_all_dim"].as_f64(),
        ) {
            (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => Some((mscale, all)),
            _ => None,
        };
        let reads_log_multiplier = self.family.gguf.architecture == "mistral3";
        let is_expressible = match (scaling["attention_factor"].as_f64(), multiplier) {
            (Some(attention_factor), _) => {
                (attention_factor - default_factor).abs() < 1e-6 * default_factor
                    && multiplier.is_none()
            }
            (None, Some((mscale, _))) => reads_log_multiplier && mscale == 1.0,
            (None, None) => true,
        };
        if !is_expressible || scaling["truncate"] == false {
            return Err(self.unsupported_field("rope_scaling"));
        }
        for (name, field) in [
            ("yarn_attn_factor", "attention_factor"),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
        ] {
            if let Some(number) = scaling[field].as_f64() {
                header.f32(&self.key(&format!("rope.scaling.{name}")), number as f32);
            }
        }
        if let Some((_, all)) = multiplier {
            header.f32(&self.key("rope.scaling.yarn_log_multiplier"), all as f32);
        }
        for (name, field) in self.family.gguf.numbers {
            let Some(field) = field.strip_prefix("rope_scaling.") else {
                continue;
            };
            if let Some(number) = scaling[field].as_f64() {
                header.f32(&self.key(name), number as f32);
            }
        }
        Ok(())
    }

    /// Phi's frequency divisors for short and for long prompts.
    fn write_longrope(&self, header: &mut GgufHeader) -> Result<ExtraTensors, CheckpointError> {
        let scaling = &self.fields["rope_scaling"];
        let original = self.original_context()?;
        header.u32(&self.key("rope.scaling.original_context_length"), original);
        let context = f64::from(self.size("max_position_embeddings")?);
        let scale = context / f64::from(original.max(1));
        let default_factor = match scale > 1.0 {
            true => (1.0 + scale.ln() / f64::from(original).ln()).sqrt(),
            false => 1.0,
        };
        let attention = scaling["attention_factor"]
            .as_f64()
            .unwrap_or(default_factor);
        let key = self.key("rope.scaling.attn_factor");
        header.f32(&key, attention as f32);
        let factors = |field: &str| {
            let entries = scaling[field].as_array().into_iter().flatten();
            let factors: Option<Vec<f32>> = entries
                .map(|entry| entry.as_f64().map(|factor| factor as f32))
                .collect();
            let problem = "must be a list of numbers";
            factors
                .filter(|factors| !factors.is_empty())
                .ok_or_else(|| {
                    CheckpointError::field(self.path, format!("rope_scaling.{field}"), problem)
                })
        };
        Ok(vec![
            (LONG_FACTORS, factors("long_factor")?),
            (SHORT_FACTORS, factors("short_factor")?),
        ])
    }
}
