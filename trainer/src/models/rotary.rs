//! Rotary embeddings of queries and keys: the frequencies, and their scaling for long texts.

use std::f64::consts::PI;

use serde_json::Value;
use tooltune_checkpoints::families::RotaryRules;

use super::config::DecoderConfigError;
use super::config_fields::{flag, number, numbers, optional_count, optional_number};

/// One rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of rotated values of a head, starting with the first.
    pub dim: usize,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are scaled for texts beyond the context of pre-training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided, high ones are unchanged, and those in between are
    /// interpolated.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
    },
    /// YaRN: low frequencies are divided, high ones are unchanged, and those in between are
    /// interpolated by index.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Frequencies with more rotations than this within the context of pre-training are
        /// unchanged.
        beta_fast: f64,
        /// Frequencies with fewer rotations than this are divided.
        beta_slow: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
        /// Whether the bounds of the interpolation are rounded to integers.
        truncate: bool,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// LongRoPE: one divisor per frequency, with separate lists for texts within the context of
    /// pre-training and for longer texts.
    LongRope {
        /// Divisors for texts within the context of pre-training.
        short_factor: Vec<f64>,
        /// Divisors for longer texts.
        long_factor: Vec<f64>,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
}

/// The inputs that determine a scaling, apart from its table in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// The whole file.
    pub json: &'a Value,
    /// `max_position_embeddings`.
    pub max_position_embeddings: usize,
    /// Number of rotated values of a head.
    pub dim: usize,
    /// Rules of the family.
    pub rules: RotaryRules,
}

impl Rotary {
    /// Frequencies for texts within the context of pre-training, one per pair of rotated values.
    ///
    /// # Source
    ///
    /// `modeling_rope_utils.py` of transformers 5.23.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        self.frequencies(false)
    }

    /// The context of pre-training and the frequencies for longer texts, if they differ.
    pub fn long_frequencies(&self) -> Option<(usize, Vec<f64>)> {
        match self.scaling {
            RopeScaling::LongRope {
                original_max_position_embeddings: original,
                ..
            } => Some((original, self.frequencies(true))),
            _ => None,
        }
    }

    /// Factor on cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            }
            | RopeScaling::LongRope {
                attention_factor, ..
            } => attention_factor,
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }

    fn frequencies(&self, is_long_context: bool) -> Vec<f64> {
        let plain = |i: usize| 1.0 / self.theta.powf(2.0 * i as f64 / self.dim as f64);
        let scale = self.scale(is_long_context);
        (0..self.dim / 2).map(|i| scale(i, plain(i))).collect()
    }

    /// Returns a function that scales a frequency, given its index and its unscaled value.
    fn scale(&self, is_long_context: bool) -> Box<dyn Fn(usize, f64) -> f64 + '_> {
        match &self.scaling {
            RopeScaling::None => Box::new(|_, frequency| frequency),
            &RopeScaling::Linear { factor } => Box::new(move |_, frequency| frequency / factor),
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            } => Box::new(move |_, frequency| {
                let wavelength = 2.0 * PI / frequency;
                if wavelength < original / high_freq_factor {
                    frequency
                } else if wavelength > original / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (original / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }),
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: original,
                truncate,
                ..
            } => {
                let dim = self.dim as f64;
                // Index of the frequency that makes `rotations` rotations in the context.
                let index_of_rotations = |rotations: f64| {
                    dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) =
                    (index_of_rotations(beta_fast), index_of_rotations(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                Box::new(move |i, frequency| {
                    let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    frequency / factor * divided + frequency * (1.0 - divided)
                })
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                ..
            } => {
                let factors = if is_long_context {
                    long_factor
                } else {
                    short_factor
                };
                Box::new(move |i, frequency| frequency / factors[i])
            }
        }
    }
}

impl RopeScaling {
    pub(super) fn from_json(context: Context<'_>) -> Result<Self, DecoderConfigError> {
        let table = context.json.get("rope_scaling");
        let Some(table) = table.filter(|value| value.is_object()) else {
            return Ok(Self::None);
        };
        let kind = table
            .get("rope_type")
            .or_else(|| table.get("type"))
            .and_then(Value::as_str)
            .unwrap_or("default");
        // Early Phi-3 files use other names for the same scaling.
        let kind = match kind {
            "su" | "yarn" if context.rules.original_context.is_some() => "longrope",
            kind => kind,
        };
        match kind {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear {
                factor: number(table, "factor")?,
            }),
            "llama3" => Ok(Self::Llama3 {
                factor: number(table, "factor")?,
                low_freq_factor: number(table, "low_freq_factor")?,
                high_freq_factor: number(table, "high_freq_factor")?,
                original_max_position_embeddings: context.pretraining_context(table)? as f64,
            }),
            "yarn" => context.yarn(table),
            "longrope" => context.longrope(table),
            other => Err(DecoderConfigError::unsupported(
                "rope_scaling.rope_type",
                other,
                "supported types are default, linear, llama3, yarn and longrope",
            )),
        }
    }
}

impl Context<'_> {
    /// # Source
    ///
    /// `_compute_yarn_parameters` of transformers 5.23.
    fn yarn(self, table: &Value) -> Result<RopeScaling, DecoderConfigError> {
        let original = self.pretraining_context(table)? as f64;
        let longer = self.max_position_embeddings as f64 / original;
        let factor = optional_number(table, "factor")?.unwrap_or(longer);
        let mscale = |times: f64| match factor <= 1.0 {
            true => 1.0,
            false => 0.1 * times * factor.ln() + 1.0,
        };
        let [top, bottom] = [
            optional_number(table, "mscale")?,
            optional_number(table, "mscale_all_dim")?,
        ];
        let inferred = match (top, bottom) {
            (Some(top), Some(bottom)) => mscale(top) / mscale(bottom),
            _ => mscale(1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: optional_number(table, "beta_fast")?.unwrap_or(32.0),
            beta_slow: optional_number(table, "beta_slow")?.unwrap_or(1.0),
            original_max_position_embeddings: original,
            truncate: flag(table, "truncate", true)?,
            attention_factor: optional_number(table, "attention_factor")?.unwrap_or(inferred),
        })
    }

    /// # Source
    ///
    /// `_compute_longrope_parameters` of transformers 5.23.
    fn longrope(self, table: &Value) -> Result<RopeScaling, DecoderConfigError> {
        let original = self.pretraining_context(table)?;
        let longer = self.max_position_embeddings as f64 / original as f64;
        let factor = optional_number(table, "factor")?.unwrap_or(longer);
        let inferred = match factor <= 1.0 {
            true => 1.0,
            false => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let factors = |field| numbers(table, field, self.dim / 2);
        Ok(RopeScaling::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original_max_position_embeddings: original,
            attention_factor: optional_number(table, "attention_factor")?.unwrap_or(inferred),
        })
    }

    /// Context of pre-training, in tokens. It is read from the scaling's table, and defaults to the
    /// model's own context. Some families have it at the top level of the file instead, with their
    /// own default. transformers ignores the other location in both cases, so a different number
    /// there is an error.
    ///
    /// # Source
    ///
    /// transformers 5.23's `AutoConfig`, tested with files of each kind.
    fn pretraining_context(self, table: &Value) -> Result<usize, DecoderConfigError> {
        let field = "original_max_position_embeddings";
        let [top, original] = [
            optional_count(self.json, field)?,
            optional_count(table, field)?,
        ];
        let (read, other) = match self.rules.original_context {
            Some(default) => (top.unwrap_or(default), original),
            None => (original.unwrap_or(self.max_position_embeddings), top),
        };
        match other {
            Some(other) if other != read => Err(DecoderConfigError::unsupported(
                field,
                other,
                match self.rules.original_context {
                    Some(_) => {
                        "the number at the top level of the file differs, or is missing and therefore \
                         4096; set both to the right number"
                    }
                    None => {
                        "the number in rope_scaling differs, or is missing and therefore \
                         max_position_embeddings; set the right number in rope_scaling"
                    }
                },
            )),
            _ => Ok(read),
        }
    }
}

/// Number of rotated values of a head. `default_share` is the family's default for the rotated
/// share of a head, if it has one.
pub(super) fn rotated_dim(
    json: &Value,
    default_share: Option<f64>,
    head_dim: usize,
) -> Result<usize, DecoderConfigError> {
    let field = "partial_rotary_factor";
    let share = optional_number(json, field)?
        .or(default_share)
        .unwrap_or(1.0);
    if share == 1.0 {
        return Ok(head_dim);
    }
    let dim = (head_dim as f64 * share) as usize;
    if default_share.is_none() {
        let hint = "only 1 is supported, which rotates whole heads";
        return Err(DecoderConfigError::unsupported(field, share, hint));
    }
    if share > 1.0 || dim == 0 || !dim.is_multiple_of(2) {
        let hint = format!(
            "with heads of size {head_dim} it must rotate an even number of values, at most the whole head"
        );
        return Err(DecoderConfigError::unsupported(field, share, hint));
    }
    Ok(dim)
}

/// The rotary frequencies of each token. They can be different in texts longer than the context of
/// pre-training.
pub(super) struct TokenFrequencies<'a> {
    short: Vec<f64>,
    long: Option<Vec<f64>>,
    is_long_context: &'a [bool],
}

impl<'a> TokenFrequencies<'a> {
    pub(super) fn new(rotary: &Rotary, is_long_context: &'a [bool]) -> Self {
        Self {
            short: rotary.inverse_frequencies(),
            long: rotary.long_frequencies().map(|(_, long)| long),
            is_long_context,
        }
    }

    /// Number of frequencies per token.
    pub(super) fn half(&self) -> usize {
        self.short.len()
    }

    /// Frequencies of one token.
    pub(super) fn get(&self, token: usize) -> &[f64] {
        match (&self.long, self.is_long_context.get(token)) {
            (Some(long), Some(true)) => long,
            _ => &self.short,
        }
    }
}
