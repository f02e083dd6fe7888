//! What a GGUF file holds in the place of each value of a tensor.

use crate::families::{Family, LOG_RATES};

/// How llama.cpp's converter has changed the values of a tensor, and its dimensions.
///
/// # Source
///
/// ggml-org/llama.cpp, `conversion/qwen.py`, `Qwen3NextModel.modify_tensors`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StoredValue {
    /// The value itself.
    AsIs,
    /// So much more.
    More(f32),
    /// `-exp(x)`, of the logarithms of rates.
    NegativeExponential,
}

impl StoredValue {
    /// Of the tensor of `family` with this Hugging Face name.
    pub(crate) fn of(family: &Family, tensor: &str) -> StoredValue {
        let has_rates = !family.gguf.parameters.is_empty();
        if has_rates && tensor.ends_with(&format!(".{LOG_RATES}")) {
            return StoredValue::NegativeExponential;
        }
        match family.gguf.excess(tensor) {
            0.0 => StoredValue::AsIs,
            more => StoredValue::More(more),
        }
    }

    /// The values as stored; exponentials are rounded once.
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            StoredValue::AsIs => {}
            StoredValue::More(more) => values.iter_mut().for_each(|value| *value += more),
            StoredValue::NegativeExponential => {
                let stored = |x: f32| -(f64::from(x).exp()) as f32;
                values.iter_mut().for_each(|value| *value = stored(*value));
            }
        }
    }

    /// The values as Hugging Face has them; the error is the first element that no value is stored as.
    pub(crate) fn undo(self, values: &mut [f32]) -> Result<(), usize> {
        match self {
            StoredValue::AsIs => {}
            StoredValue::More(more) => values.iter_mut().for_each(|value| *value -= more),
            StoredValue::NegativeExponential => {
                // NaN is passed on, as in all tensors.
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

/// The dimensions of the convolution of linear attention in Hugging Face, `[channels, 1, kernel]`, of
/// those in GGUF, `[channels, kernel]`, and others as they are.
pub(crate) fn hugging_face_shape(tensor: &str, shape: Vec<usize>) -> Vec<usize> {
    match shape[..] {
        [channels, kernel] if is_convolution(tensor) => vec![channels, 1, kernel],
        _ => shape,
    }
}

/// The same in GGUF of those in Hugging Face.
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
        let of = |family, tensor: &str| {
            let mut values = [-2.5, 0.0, 1.5];
            let stored = StoredValue::of(family, &format!("model.layers.0.{tensor}"));
            stored.apply(&mut values);
            let found = values;
            stored.undo(&mut values).unwrap();
            assert_eq!(values, [-2.5, 0.0, 1.5], "{tensor}");
            found
        };
        let unchanged = [-2.5, 0.0, 1.5];
        let more = [-1.5, 1.0, 2.5];
        assert_eq!(of(&LLAMA, "input_layernorm.weight"), unchanged);
        assert_eq!(of(&GEMMA3_TEXT, "input_layernorm.weight"), more);
        assert_eq!(of(&QWEN3_5_TEXT, "self_attn.q_norm.weight"), more);
        assert_eq!(of(&QWEN3_5_TEXT, "linear_attn.norm.weight"), unchanged);
        assert_eq!(of(&QWEN3_5_TEXT, "linear_attn.dt_bias"), unchanged);
        let rates = of(&QWEN3_5_TEXT, "linear_attn.A_log");
        assert_eq!(rates, [-0.082_085, -1.0, -4.481_689]);
        let rates = StoredValue::NegativeExponential;
        assert_eq!(rates.undo(&mut [-1.0, 0.5]), Err(1));
        assert_eq!(rates.undo(&mut [-1.0, -0.0]), Err(1));
    }
}
