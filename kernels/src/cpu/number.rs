//! Element types of tensors; all arithmetic is in f32.
//!
//! Conversions use integer arithmetic, which compilers vectorise at any width and which is bitwise
//! the same on every CPU. The instruction that rounds to bf16 flushes subnormals to zero; only
//! loops for AVX-512 use it.

use burn::backend::DType;
use burn::backend::flex::FlexTensor;
use burn::tensor::bf16;

/// f32 or bf16.
pub(crate) trait Number: Copy + Send + Sync + 'static {
    const DTYPE: DType;

    fn widen(self) -> f32;

    /// The nearest value, ties to even; NaN stays NaN.
    fn narrow(value: f32) -> Self;

    /// The elements of a tensor, if it has this dtype and is contiguous.
    fn slice(x: &FlexTensor) -> Option<&[Self]>;

    /// All elements in the tensor's memory, which is copied first if another tensor shares it.
    ///
    /// # Panics
    ///
    /// If the tensor has another dtype.
    fn storage_mut(x: &mut FlexTensor) -> &mut [Self];
}

macro_rules! with_flex_storage {
    ($t:ty, $dtype:expr) => {
        const DTYPE: DType = $dtype;

        fn slice(x: &FlexTensor) -> Option<&[Self]> {
            x.as_slice::<$t>()
        }

        fn storage_mut(x: &mut FlexTensor) -> &mut [Self] {
            x.storage_mut::<$t>()
        }
    };
}

impl Number for f32 {
    with_flex_storage!(f32, DType::F32);

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Number for bf16 {
    with_flex_storage!(bf16, DType::BF16);

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits((rounded_bits(value) >> 16) as u16)
    }
}

/// Bits whose upper half is the bf16 nearest to `value`; the lower half is arbitrary.
#[inline(always)]
pub(crate) fn rounded_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounding could clear the payload of a NaN; the quiet bit keeps it a NaN.
    if value.is_nan() {
        bits | 0x0040_0000
    } else {
        rounded
    }
}

/// Evaluates an expression with `$name` bound to the element type of a tensor.
macro_rules! with_element_type {
    ($dtype:expr, $t:ident => $work:expr) => {
        match $dtype {
            burn::tensor::DType::F32 => {
                type $t = f32;
                $work
            }
            burn::tensor::DType::BF16 => {
                type $t = burn::tensor::bf16;
                $work
            }
            other => unreachable!("tensors of {other:?} use the reference"),
        }
    };
}

pub(crate) use with_element_type;

#[cfg(test)]
mod tests {
    use super::{Number, bf16};

    #[test]
    fn rounding_matches_the_half_crate_for_every_97th_value() {
        for bits in (0..=u32::MAX).step_by(97) {
            let value = f32::from_bits(bits);
            let (ours, theirs) = (bf16::narrow(value), bf16::from_f32(value));
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn widening_and_rounding_preserves_every_bf16() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            let back = bf16::narrow(value.widen());
            assert!(back.to_bits() == bits || (back.is_nan() && value.is_nan()));
        }
    }
}
