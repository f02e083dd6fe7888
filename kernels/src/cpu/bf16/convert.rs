//! f32 to bf16 and back, in arithmetic that compilers turn into vectors of any width.

use std::mem::MaybeUninit;

use burn::tensor::bf16;

use crate::cpu::isa::for_each_isa;

/// The nearest bf16, ties to even; NaN stays NaN and what is too large becomes infinite.
#[inline(always)]
pub(crate) fn narrow(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // The lowest bits alone may say that it is NaN, and they are lost.
    let nan = (bits >> 16) | 0x40;
    bf16::from_bits(if x.is_nan() { nan } else { rounded } as u16)
}

/// The same number.
#[inline(always)]
pub(crate) fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

for_each_isa! {
    /// Narrows a slice.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub(crate) fn narrow_slice(from: &[f32], to: &mut [MaybeUninit<bf16>]) {
        assert_eq!(from.len(), to.len(), "as many results as numbers");
        for (to, &x) in to.iter_mut().zip(from) {
            to.write(narrow(x));
        }
    }
}

/// A slice narrowed.
pub(crate) fn narrowed(from: &[f32]) -> Vec<bf16> {
    let mut to = Vec::with_capacity(from.len());
    narrow_slice(from, &mut to.spare_capacity_mut()[..from.len()]);
    // SAFETY: the capacity suffices, and all of it was written.
    unsafe { to.set_len(from.len()) };
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_agrees_with_half_on_every_kind_of_number() {
        let special = [
            0,
            0x8000_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7f80_0001,
            0x7fff_ffff,
            0x7f7f_ffff,
            1,
            0x0000_8000,
            0x0001_8000,
        ];
        let spread = (0..1 << 16).map(|i: u32| i.wrapping_mul(0x9e37_79b9));
        for bits in special.into_iter().chain(spread) {
            let x = f32::from_bits(bits);
            let (ours, expected) = (narrow(x), bf16::from_f32(x));
            assert!(
                ours.to_bits() == expected.to_bits() || (ours.is_nan() && expected.is_nan()),
                "{bits:#x}: {ours:?} against {expected:?}"
            );
            assert!(widen(ours) == expected.to_f32() || ours.is_nan());
        }
    }
}
