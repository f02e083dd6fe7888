//! How a GGUF file transforms the values of a tensor.

use crate::families::{Family, LOG_RATES};

/// How llama.cpp's converter transforms the values and dimensions of a tensor.
///
/// # Source
///
/// ggml-org/llama.cpp, `conversion/qwen.py`, `Qwen3NextModel.modify_tensors`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StoredValue {
    /// The value unchanged.
    AsIs,
    /// The value plus this number.
    Offset(f32),
    /// `-exp(x)`, for log decay rates.
    NegativeExponential,
}

impl StoredValue {
    /// The transform of the tensor of `family` with this Hugging Face name.
    pub(crate) fn for_tensor(family: &Family, tensor: &str) -> StoredValue {
        let has_rates = !family.gguf.parameters.is_empty();
        if has_rates && tensor.ends_with(&format!(".{LOG_RATES}")) {
            return StoredValue::NegativeExponential;
        }
        match family.gguf.value_offset(tensor) {
            0.0 => StoredValue::AsIs,
            more => StoredValue::Offset(more),
        }
    }

    /// Converts to stored values; exponentials are rounded once.
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            StoredValue::AsIs => {}
            StoredValue::Offset(more) => values.iter_mut().for_each(|value| *value += more),
            StoredValue::NegativeExponential => {
                let negative_exponential = |x: f32| -(f64::from(x).exp()) as f32;
                values
                    .iter_mut()
                    .for_each(|value| *value = negative_exponential(*value));
            }
        }
    }

    /// Converts stored values to Hugging Face's. The error is the index of the first invalid value.
    pub(crate) fn undo(self, values: &mut [f32]) -> Result<(), usize> {
        match self {
            StoredValue::AsIs => {}
            StoredValue::Offset(more) => values.iter_mut().for_each(|value| *value -= more),
            StoredValue::NegativeExponential => {
                // NaN is unchanged, as in all tensors.
                if let Some(element) = values.iter().position(|stored| *stored >= 0.0) {
                    return Err(element);
                }
                let value = |stored: f32| (-f64::from(stored)).ln() as f32;
                values
                    .iter_mut()
                    .for_each(|stored| *stored = value(*stored));
            }
        }
        Ok(())
    }
}

/// Converts GGUF dimensions to Hugging Face's. The linear-attention convolution is `[channels,
/// kernel]` in GGUF and `[channels, 1, kernel]` in Hugging Face; others are equal.
pub(crate) fn hugging_face_shape(tensor: &str, shape: Vec<usize>) -> Vec<usize> {
    match shape[..] {
        [channels, kernel] if is_convolution(tensor) => vec![channels, 1, kernel],
        _ => shape,
    }
}

/// Converts Hugging Face dimensions to GGUF's.
pub(crate) fn gguf_shape(tensor: &str, shape: &[usize]) -> Vec<usize> {
    match shape[..] {
        [channels, 1, kernel] if is_convolution(tensor) => vec![channels, kernel],
        _ => shape.to_vec(),
    }
}

fn is_convolution(tensor: &str) -> bool {
    tensor.ends_with(".linear_attn.conv1d.weight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::{GEMMA3_TEXT, LLAMA, QWEN3_5_TEXT};

    #[test]
    fn norms_and_rates_are_stored_as_the_converter_does() {
        let stored_values = |family, tensor: &str| {
            let mut values = [-2.5, 0.0, 1.5];
            let conversion = StoredValue::for_tensor(family, &format!("model.layers.0.{tensor}"));
            conversion.apply(&mut values);
            let converted = values;
            conversion.undo(&mut values).unwrap();
            assert_eq!(values, [-2.5, 0.0, 1.5], "{tensor}");
            converted
        };
        let unchanged = [-2.5, 0.0, 1.5];
        let more = [-1.5, 1.0, 2.5];
        assert_eq!(stored_values(&LLAMA, "input_layernorm.weight"), unchanged);
        assert_eq!(stored_values(&GEMMA3_TEXT, "input_layernorm.weight"), more);
        assert_eq!(
            stored_values(&QWEN3_5_TEXT, "self_attn.q_norm.weight"),
            more
        );
        assert_eq!(
            stored_values(&QWEN3_5_TEXT, "linear_attn.norm.weight"),
            unchanged
        );
        assert_eq!(
            stored_values(&QWEN3_5_TEXT, "linear_attn.dt_bias"),
            unchanged
        );
        let rates = stored_values(&QWEN3_5_TEXT, "linear_attn.A_log");
        assert_eq!(rates, [-0.082_085, -1.0, -4.481_689]);
        let rates = StoredValue::NegativeExponential;
        assert_eq!(rates.undo(&mut [-1.0, 0.5]), Err(1));
        assert_eq!(rates.undo(&mut [-1.0, -0.0]), Err(1));
    }
}
