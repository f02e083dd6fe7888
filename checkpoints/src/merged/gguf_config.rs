//! The fields of a `config.json` as metadata of a GGUF file.
//!
//! What llama.cpp computes in another way than the config says is refused with the name of its field,
//! because the file would be another model.
//!
//! # Source
//!
//! ggml-org/llama.cpp, `convert_hf_to_gguf.py`, `set_gguf_parameters` of each model; what is read of the
//! keys: `load_arch_hparams` in `src/models/`, and `llama-context.cpp` for rotary scalings.

use std::path::Path;

use serde_json::Value;

use super::gguf_layers::write_layers;
use super::gguf_linear::write_linear;
use crate::error::CheckpointError;
use crate::families::{Family, Multipliers};
use crate::model_files::llama3_divisors;
use crate::weights::gguf::{LONG_FACTORS, ROPE_FREQS, SHORT_FACTORS};
use crate::weights::gguf_write::GgufHeader;

/// Tensors that stand beside those of the folder, by their names.
type Beside = Vec<(&'static str, Vec<f32>)>;

/// A `config.json` about to be said in GGUF's keys.
pub(super) struct Config<'a> {
    pub(super) path: &'a Path,
    pub(super) fields: &'a Value,
    pub(super) family: &'static Family,
}

impl Config<'_> {
    /// Writes all fields; the tensors that say the others.
    pub(super) fn write(&self, header: &mut GgufHeader) -> Result<Beside, CheckpointError> {
        let [turned, head_dim] = self.write_sizes(header)?;
        self.write_multipliers(header, head_dim)?;
        write_layers(self, header)?;
        write_linear(self, header, [turned, head_dim])?;
        self.write_rotation(header, head_dim)
    }

    /// A key of the architecture's own group.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.gguf.architecture)
    }

    pub(super) fn size(&self, key: &str) -> Result<u32, CheckpointError> {
        let size = self.fields[key]
            .as_u64()
            .and_then(|n| u32::try_from(n).ok());
        size.ok_or_else(|| CheckpointError::field(self.path, key, "must be a whole number"))
    }

    fn number(&self, key: &str) -> Result<f64, CheckpointError> {
        let number = self.fields[key].as_f64();
        number.ok_or_else(|| CheckpointError::field(self.path, key, "must be a number"))
    }

    pub(super) fn refused(&self, feature: String) -> CheckpointError {
        CheckpointError::Unsupported {
            path: self.path.to_owned(),
            feature,
            fix: "llama.cpp computes it otherwise or not at all; export --to merged, which keeps it",
        }
    }

    /// Refuses a field for what it says.
    pub(super) fn refused_field(&self, key: &str) -> CheckpointError {
        self.refused(format!("a GGUF file with {key} = {}", self.fields[key]))
    }

    /// A size, or what the family has where the file does not name it, or what `null` means.
    fn size_or(&self, key: &str, absent: Option<usize>, null: u32) -> Result<u32, CheckpointError> {
        match (self.fields.get(key), absent) {
            (None, Some(size)) => Ok(size as u32),
            (None | Some(Value::Null), _) => Ok(null),
            _ => self.size(key),
        }
    }

    /// Writes sizes and norm; how much of a head is turned, and its size.
    fn write_sizes(&self, header: &mut GgufHeader) -> Result<[u32; 2], CheckpointError> {
        let rules = &self.family.config;
        let hidden = self.size("hidden_size")?;
        let n_heads = self.size("num_attention_heads")?;
        let key_values = "num_key_value_heads";
        let n_key_value = self.size_or(key_values, rules.absent_key_value_heads, n_heads)?;
        let head_dim = hidden / n_heads.max(1);
        let head_dim = self.size_or("head_dim", rules.absent_head_dim, head_dim)?;
        let turned = match rules.rotary.partial {
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
            ("rope.dimension_count", turned),
            ("vocab_size", self.size("vocab_size")?),
        ] {
            header.u32(&self.key(name), value);
        }
        let epsilon = self.number("rms_norm_eps")? as f32;
        header.f32(&self.key("attention.layer_norm_rms_epsilon"), epsilon);
        Ok([turned, head_dim])
    }

    /// Writes what the family multiplies numbers with, as far as llama.cpp does not know it by heart.
    fn write_multipliers(
        &self,
        header: &mut GgufHeader,
        head_dim: u32,
    ) -> Result<(), CheckpointError> {
        match self.family.config.multipliers {
            Multipliers::None => {}
            Multipliers::Granite => {
                for (name, field) in self.family.gguf.numbers {
                    // transformers multiplies by 1 where the file says nothing.
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
                let known = if is_27b { width } else { head_dim };
                // transformers' own default is the size of a head of every model but the largest.
                let says = self.size_or(field, Some(256), head_dim)?;
                if says != known {
                    let feature = format!("a GGUF file with {field} = {says}");
                    return Err(self.refused(feature));
                }
            }
        }
        Ok(())
    }

    /// Writes how queries and keys are turned.
    fn write_rotation(
        &self,
        header: &mut GgufHeader,
        head_dim: u32,
    ) -> Result<Beside, CheckpointError> {
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
        match scaling["rope_type"].as_str() {
            None if scaling.is_null() && !rules.must_be_said => Ok(Vec::new()),
            Some("llama3") => {
                let divisors = llama3_divisors(scaling, theta, head_dim.into());
                let refused = || self.refused_field("rope_scaling");
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
            _ => Err(self.refused_field("rope_scaling")),
        }
    }

    fn factor(&self) -> Result<f64, CheckpointError> {
        let factor = self.fields["rope_scaling"]["factor"].as_f64();
        let problem = "must be a number above 0";
        factor
            .filter(|factor| *factor > 0.0)
            .ok_or_else(|| CheckpointError::field(self.path, "rope_scaling.factor", problem))
    }

    /// The context of pre-training: that of the scaling, or one of the top of the file.
    fn original_context(&self) -> Result<u32, CheckpointError> {
        let key = "original_max_position_embeddings";
        let scaling = &self.fields["rope_scaling"][key];
        let top = &self.fields[key];
        let of_family = self.family.config.rotary.original_context;
        let said = match of_family {
            Some(absent) => top.as_u64().or(scaling.as_u64()).or(Some(absent as u64)),
            None => scaling.as_u64(),
        };
        match said {
            Some(said) => u32::try_from(said)
                .map_err(|_| CheckpointError::field(self.path, key, "must be a whole number")),
            None => self.size("max_position_embeddings"),
        }
    }

    /// YaRN, as far as llama.cpp has it: what it multiplies cosines with is its own, but for the
    /// architecture that reads a `rope.scaling.yarn_log_multiplier`.
    fn write_yarn(&self, header: &mut GgufHeader) -> Result<(), CheckpointError> {
        let scaling = &self.fields["rope_scaling"];
        let factor = self.factor()?;
        header.text(&self.key("rope.scaling.type"), "yarn");
        header.f32(&self.key("rope.scaling.factor"), factor as f32);
        let original = self.original_context()?;
        header.u32(&self.key("rope.scaling.original_context_length"), original);
        let usual = 0.1 * factor.max(1.0).ln() + 1.0;
        let multiplier = match (
            scaling["mscale"].as_f64(),
            scaling["mscale_all_dim"].as_f64(),
        ) {
            (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => Some((mscale, all)),
            _ => None,
        };
        let is_read = self.family.gguf.architecture == "mistral3";
        let is_said = match (scaling["attention_factor"].as_f64(), multiplier) {
            (Some(said), _) => (said - usual).abs() < 1e-6 * usual && multiplier.is_none(),
            (None, Some((mscale, _))) => is_read && mscale == 1.0,
            (None, None) => true,
        };
        if !is_said || scaling["truncate"] == false {
            return Err(self.refused_field("rope_scaling"));
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

    /// Phi's divisors of each frequency, for short texts and for long ones.
    fn write_longrope(&self, header: &mut GgufHeader) -> Result<Beside, CheckpointError> {
        let scaling = &self.fields["rope_scaling"];
        let original = self.original_context()?;
        header.u32(&self.key("rope.scaling.original_context_length"), original);
        let context = f64::from(self.size("max_position_embeddings")?);
        let scale = context / f64::from(original.max(1));
        let usual = match scale > 1.0 {
            true => (1.0 + scale.ln() / f64::from(original).ln()).sqrt(),
            false => 1.0,
        };
        let attention = scaling["attention_factor"].as_f64().unwrap_or(usual);
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
