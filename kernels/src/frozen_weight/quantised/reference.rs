//! Dequantises NF4 one value at a time.

use burn::tensor::{DType, bf16, f16};

use super::{BLOCK, Nf4, TABLE};

/// The values of a matrix, rounded to its dtype and then to `output` (f32 or bf16), row-major.
///
/// # Source
///
/// bitsandbytes 0.50.2, `functional.dequantize_4bit`.
pub fn dequantised(matrix: &Nf4, output: DType) -> Vec<f32> {
    let value = |index: usize| {
        let byte = matrix.codes[index / 2];
        let code = if index.is_multiple_of(2) {
            byte >> 4
        } else {
            byte & 15
        };
        let value = TABLE[usize::from(code)] * matrix.absmax(index / BLOCK);
        rounded(rounded(value, matrix.dtype), output)
    };
    (0..matrix.n_values()).map(value).collect()
}

/// The values of stacked matrices, from top to bottom.
pub fn dequantised_stack(parts: &[Nf4], output: DType) -> Vec<f32> {
    let values = parts.iter().map(|part| dequantised(part, output));
    values.flatten().collect()
}

/// The nearest value of `dtype`.
fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
