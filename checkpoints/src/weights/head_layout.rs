//! Determines how llama.cpp reorders each tensor, from the head counts of a model.

use std::path::Path;

use serde_json::Value;

use super::HeadOrder;
use super::gguf::GgufMetadata;
use super::head_order::ValueHeads;
use crate::error::CheckpointError;
use crate::families::{Family, HeadRows, LOG_RATES};

/// Attention head counts, which determine how llama.cpp reorders rows of query and key projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCounts {
    /// Number of query heads.
    pub n_query: usize,
    /// Number of key and value heads; fewer if query heads share them.
    pub n_key_value: usize,
}

/// Linear-attention heads, which determine how llama.cpp reorders value heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearHeads {
    /// Number of query and key heads.
    pub n_key: usize,
    /// Number of value heads, a multiple of `n_key`.
    pub n_value: usize,
    /// Size of a key head.
    pub key_dim: usize,
    /// Size of a value head.
    pub value_dim: usize,
}

/// How llama.cpp orders the head dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadLayout {
    /// Hugging Face's order.
    AsIs,
    /// Rows of the two halves of query and key heads alternate.
    Halves(HeadCounts),
    /// Value heads of linear attention are interleaved across key heads.
    Values(LinearHeads),
}

/// Linear-attention sizes by their fields in `config.json` and their GGUF keys: number of key
/// heads, number of value heads, size of a key head.
pub(crate) const LINEAR_HEADS: [(&str, &str); 3] = [
    ("linear_num_key_heads", "ssm.group_count"),
    ("linear_num_value_heads", "ssm.time_step_rank"),
    ("linear_key_head_dim", "ssm.state_size"),
];
/// Total size of all value heads, in GGUF.
pub(crate) const INNER_SIZE: &str = "ssm.inner_size";
/// Size of a value head, in `config.json`.
pub(crate) const VALUE_DIM: &str = "linear_value_head_dim";

impl HeadLayout {
    /// Reads the metadata of a model.
    ///
    /// # Errors
    ///
    /// A count that determines the order is absent, 0, or inconsistent with the others.
    pub(crate) fn from_metadata(
        metadata: &GgufMetadata,
        family: &Family,
    ) -> Result<HeadLayout, CheckpointError> {
        let key = |name: &str| format!("{}.{name}", family.gguf.architecture);
        // A count beyond usize does not divide any row count, so `order` refuses it.
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let number = |name: &str| {
            let key = key(name);
            metadata.require(&key, metadata.unsigned(&key)?).map(count)
        };
        match family.gguf.head_rows {
            HeadRows::AsIs => Ok(HeadLayout::AsIs),
            HeadRows::HalvesInterleaved => {
                let n_query = number("attention.head_count")?;
                let n_key_value = metadata.unsigned(&key("attention.head_count_kv"))?;
                Ok(HeadLayout::Halves(HeadCounts {
                    n_query,
                    n_key_value: n_key_value.map_or(n_query, count),
                }))
            }
            HeadRows::ValueHeadsInterleaved => {
                let [n_key, n_value, key_dim] = LINEAR_HEADS.map(|(_, name)| number(name));
                let (n_key, n_value) = (n_key?, n_value?);
                let inner = number(INNER_SIZE)?;
                let divides_by_keys = n_value
                    .checked_rem(n_key)
                    .is_some_and(|remainder| remainder == 0);
                let divides_by_values = inner
                    .checked_rem(n_value)
                    .is_some_and(|remainder| remainder == 0);
                if !divides_by_keys || !divides_by_values {
                    let problem = format!(
                        "is {n_value} but must be a multiple of {} = {n_key} and divide {} = {inner}; \
                         convert the model again",
                        key(LINEAR_HEADS[0].1),
                        key(INNER_SIZE),
                    );
                    let field = key(LINEAR_HEADS[1].1);
                    return Err(CheckpointError::field(metadata.path(), field, problem));
                }
                Ok(HeadLayout::Values(LinearHeads {
                    n_key,
                    n_value,
                    key_dim: key_dim?,
                    value_dim: inner / n_value,
                }))
            }
        }
    }

    /// Reads the fields of a `config.json`. `path` is the model path named in errors.
    ///
    /// # Errors
    ///
    /// A head count is absent, 0, or inconsistent with the others.
    pub(crate) fn from_config(
        path: &Path,
        config: &Value,
        family: &Family,
    ) -> Result<HeadLayout, CheckpointError> {
        let count = |key: &str| match &config[key] {
            Value::Null => Ok(None),
            value => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) if n > 0 => Ok(Some(n)),
                _ => Err(CheckpointError::field(path, key, "must be at least 1")),
            },
        };
        let number =
            |key: &str| count(key)?.ok_or_else(|| CheckpointError::field(path, key, "is absent"));
        match family.gguf.head_rows {
            HeadRows::AsIs => Ok(HeadLayout::AsIs),
            HeadRows::HalvesInterleaved => {
                let n_query = number("num_attention_heads")?;
                Ok(HeadLayout::Halves(HeadCounts {
                    n_query,
                    n_key_value: count("num_key_value_heads")?.unwrap_or(n_query),
                }))
            }
            HeadRows::ValueHeadsInterleaved => {
                let [n_key, n_value, key_dim] = LINEAR_HEADS.map(|(field, _)| number(field));
                let (n_key, n_value) = (n_key?, n_value?);
                if !n_value.is_multiple_of(n_key) {
                    let field = LINEAR_HEADS[1].0;
                    let problem = format!(
                        "is {n_value} but must be a multiple of {} = {n_key}",
                        LINEAR_HEADS[0].0
                    );
                    return Err(CheckpointError::field(path, field, problem));
                }
                Ok(HeadLayout::Values(LinearHeads {
                    n_key,
                    n_value,
                    key_dim: key_dim?,
                    value_dim: number(VALUE_DIM)?,
                }))
            }
        }
    }

    /// llama.cpp's order of the tensor with this Hugging Face name and these dimensions. `path` is
    /// the file named in errors.
    ///
    /// # Errors
    ///
    /// A dimension does not divide into the heads.
    pub(crate) fn order(
        self,
        path: &Path,
        name: &str,
        shape: &[usize],
    ) -> Result<HeadOrder, CheckpointError> {
        match self {
            HeadLayout::AsIs => Ok(HeadOrder::AsIs),
            HeadLayout::Halves(heads) => heads.order(path, name, shape),
            HeadLayout::Values(heads) => heads.order(path, name, shape),
        }
    }
}

impl HeadCounts {
    fn order(self, path: &Path, name: &str, shape: &[usize]) -> Result<HeadOrder, CheckpointError> {
        let n_heads = if name.contains(".self_attn.q_proj.") {
            self.n_query
        } else if name.contains(".self_attn.k_proj.") {
            self.n_key_value
        } else {
            return Ok(HeadOrder::AsIs);
        };
        let n_rows = shape.first().copied().unwrap_or(0);
        let divides = n_heads
            .checked_mul(2)
            .is_some_and(|n| n > 0 && n_rows.is_multiple_of(n));
        if !divides || n_rows == 0 {
            let location = format!("tensor {name}");
            let problem =
                format!("its {n_rows} rows do not divide into {n_heads} heads of two halves");
            return Err(CheckpointError::malformed(path, location, problem));
        }
        Ok(HeadOrder::HalvesInterleaved { n_heads })
    }
}

/// The part of a linear-attention tensor that belongs to value heads.
enum Part {
    /// All rows, with this number of rows per head.
    Rows(usize),
    /// The rows after the rows of queries and keys.
    RowsAfterKeys,
    /// All columns.
    Columns,
}

impl LinearHeads {
    fn order(self, path: &Path, name: &str, shape: &[usize]) -> Result<HeadOrder, CheckpointError> {
        let Some((_, parameter_path)) = name.split_once(".linear_attn.") else {
            return Ok(HeadOrder::AsIs);
        };
        let log_rates = LOG_RATES.trim_start_matches("linear_attn.");
        let part = match parameter_path.split('.').next().unwrap_or_default() {
            "in_proj_qkv" | "conv1d" => Part::RowsAfterKeys,
            "in_proj_z" => Part::Rows(self.value_dim),
            "in_proj_b" | "in_proj_a" | "dt_bias" => Part::Rows(1),
            parameter if parameter == log_rates => Part::Rows(1),
            "out_proj" => Part::Columns,
            _ => return Ok(HeadOrder::AsIs),
        };
        if self.n_key == self.n_value {
            return Ok(HeadOrder::AsIs);
        }
        let (first, width) = match part {
            Part::Rows(width) => (Some(0), width),
            Part::Columns => (Some(0), self.value_dim),
            Part::RowsAfterKeys => {
                let keys = self.n_key.checked_mul(self.key_dim);
                (keys.and_then(|n| n.checked_mul(2)), self.value_dim)
            }
        };
        let (size, unit) = match part {
            Part::Columns => (shape.get(1), "columns"),
            _ => (shape.first(), "rows"),
        };
        let values = self.n_value.checked_mul(width);
        let expected = first.and_then(|first| values?.checked_add(first));
        let size = size.copied().unwrap_or(0);
        let Some(first) = first.filter(|_| expected == Some(size) && size > 0) else {
            let problem = format!(
                "its {size} {unit} do not divide into the heads of linear attention: {} key heads of \
                 size {} and {} value heads of size {}",
                self.n_key, self.key_dim, self.n_value, self.value_dim
            );
            let location = format!("tensor {name}");
            return Err(CheckpointError::malformed(path, location, problem));
        };
        let heads = ValueHeads {
            first,
            n_key: self.n_key,
            n_each: self.n_value / self.n_key,
            width,
        };
        Ok(match part {
            Part::Columns => HeadOrder::ValueColumns(heads),
            _ => HeadOrder::ValueRows(heads),
        })
    }
}
