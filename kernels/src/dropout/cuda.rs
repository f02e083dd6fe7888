//! Dropout of an adapter's input on a GPU: the mask is computed where it is used.
//!
//! Whether element (row, column) is kept is a pure function of a 64-bit key, the same as on the
//! CPU: a GPU's run can be resumed on a CPU. 64-bit numbers are pairs of 32-bit ones here, which
//! is what every GPU makes of them anyway.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Dropout, KeepElements};
use crate::cube::launch::{argument, contiguous, element, output, units};

/// Columns whose 16 random bits come from one 64-bit number.
const GROUP: usize = 4;

/// A 64-bit number.
#[derive(CubeType, Clone, Copy)]
struct Word {
    low: u32,
    high: u32,
}

#[cube]
fn sum(a: Word, b: Word) -> Word {
    let low = a.low + b.low;
    let carry = u32::cast_from(low < a.low);
    Word {
        low,
        high: a.high + b.high + carry,
    }
}

#[cube]
fn product(a: Word, #[comptime] b: u64) -> Word {
    let b_low = comptime!(b as u32).runtime();
    let b_high = comptime!((b >> 32) as u32).runtime();
    Word {
        low: a.low * b_low,
        high: high_product(a.low, b_low) + a.low * b_high + a.high * b_low,
    }
}

/// Upper half of the product of two 32-bit numbers.
#[cube]
fn high_product(a: u32, b: u32) -> u32 {
    let a_low = a & 0xFFFF;
    let a_high = a >> 16;
    let b_low = b & 0xFFFF;
    let b_high = b >> 16;
    let middle = a_high * b_low + ((a_low * b_low) >> 16);
    let other = a_low * b_high + (middle & 0xFFFF);
    a_high * b_high + (middle >> 16) + (other >> 16)
}

/// `a ^ (a >> shift)`.
#[cube]
fn folded(a: Word, #[comptime] shift: u32) -> Word {
    let rest = comptime!(32 - shift).runtime();
    let shift = comptime!(shift).runtime();
    Word {
        low: a.low ^ ((a.low >> shift) | (a.high << rest)),
        high: a.high ^ (a.high >> shift),
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014) after one step of its counter.
#[cube]
fn mix(x: Word) -> Word {
    let step = Word {
        low: comptime!(0x7F4A_7C15u32).runtime(),
        high: comptime!(0x9E37_79B9u32).runtime(),
    };
    let x = product(folded(sum(x, step), 30u32), 0xBF58_476D_1CE4_E5B9u64);
    let x = product(folded(x, 27u32), 0x94D0_49BB_1331_11EBu64);
    folded(x, 31u32)
}

#[cube(launch, create_dummy_kernel)]
fn drop_elements<T: Float>(
    x: &[T],
    y: &mut [T],
    rows: u32,
    width: u32,
    state_low: u32,
    state_high: u32,
    // In units of 1/65536.
    threshold: u32,
    // Whether what is kept is added to `y`.
    #[comptime] adds: bool,
    #[define(T)] _dtype: ElemType,
) {
    let width = width as usize;
    let groups = width.div_ceil(GROUP);
    let position = ABSOLUTE_POS;
    if position < rows as usize * groups {
        let group = position % groups;
        let row = position / groups;
        let row_key = mix(Word {
            low: row as u32,
            high: comptime!(0u32).runtime(),
        });
        let row_key = mix(Word {
            low: row_key.low ^ state_low,
            high: row_key.high ^ state_high,
        });
        let bits = mix(sum(
            row_key,
            Word {
                low: group as u32,
                high: comptime!(0u32).runtime(),
            },
        ));
        #[unroll]
        for i in 0..GROUP {
            let half = if comptime!(i < 2) {
                bits.low
            } else {
                bits.high
            };
            let draw = (half >> comptime!(16 * (i as u32 % 2)).runtime()) & 0xFFFF;
            let column = group * GROUP + i;
            if column < width {
                let value = x[row * width + column];
                let kept = select(draw < threshold, T::new(0.0), value);
                if comptime!(adds) {
                    let sum = f32::cast_from(y[row * width + column]) + f32::cast_from(kept);
                    y[row * width + column] = T::cast_from(sum);
                } else {
                    y[row * width + column] = kept;
                }
            }
        }
    }
}

/// `x`, `[n, in]`, with zeros where elements are dropped.
pub(crate) fn kept(x: CubeTensor, dropout: Dropout) -> CubeTensor {
    let (x, [n, width]) = contiguous(x);
    let y = output(&x, [n, width], x.dtype);
    launch(&x, &y, [n, width], dropout, false);
    y
}

/// `y + kept(x)` in the place of `y`; both `[n, in]`, without holes and of one type.
#[cfg(feature = "cuda")]
pub(crate) fn add_kept(y: CubeTensor, x: CubeTensor, dropout: Dropout) -> CubeTensor {
    let (x, dims) = contiguous(x);
    launch(&x, &y, dims, dropout, true);
    y
}

fn launch(
    x: &CubeTensor,
    y: &CubeTensor,
    [n, width]: [usize; 2],
    Dropout { state, threshold }: Dropout,
    adds: bool,
) {
    if n * width == 0 {
        return;
    }
    let (count, dim) = units(&x.client, n * width.div_ceil(GROUP));
    drop_elements::launch(
        &x.client,
        count,
        dim,
        argument(x),
        argument(y),
        n as u32,
        width as u32,
        state as u32,
        (state >> 32) as u32,
        u32::from(threshold),
        adds,
        element(y),
    );
}

impl KeepElements for CubeBackend {
    fn keep(x: CubeTensor, dropout: Dropout) -> CubeTensor {
        kept(x, dropout)
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        for (adds, form) in [(false, ""), (true, "added")] {
            let [x, y] = [0; 2].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = drop_elements::create_dummy_kernel(
                device, target, count, dim, x, y, 1, 1, 1, 1, 1, adds, element,
            );
            texts.add(form, dim, kernel);
        }
    }
}
