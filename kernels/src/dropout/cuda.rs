//! Dropout of an adapter's input on a GPU: the mask is computed where it is used.
//!
//! Whether element (row, column) is kept is a pure function of a 64-bit key, identical to the
//! CPU's, so a run from a GPU can be resumed on a CPU. 64-bit integers are pairs of 32-bit ones
//! here, as GPUs implement them anyway.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Dropout, KeepElements};
use crate::cube::launch::{argument, contiguous, element, output, units, vector_size};

/// Columns whose 16 random bits come from one 64-bit word.
const GROUP: usize = 4;

/// Vectors of a row per unit.
const VECTORS: usize = 4;

/// A 64-bit integer.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Word {
    pub(crate) low: u32,
    pub(crate) high: u32,
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
        high: a.low.mul_hi(b_low) + a.low * b_high + a.high * b_low,
    }
}

/// `a ^ (a >> shift)`.
#[cube]
fn xor_shifted(a: Word, #[comptime] shift: u32) -> Word {
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
    let x = product(xor_shifted(sum(x, step), 30u32), 0xBF58_476D_1CE4_E5B9u64);
    let x = product(xor_shifted(x, 27u32), 0x94D0_49BB_1331_11EBu64);
    xor_shifted(x, 31u32)
}

/// The 64 random bits of a group of columns.
#[cube]
fn bits_of(key_low: u32, key_high: u32, group: usize) -> Word {
    mix(sum(
        Word {
            low: key_low,
            high: key_high,
        },
        Word {
            low: group as u32,
            high: comptime!(0u32).runtime(),
        },
    ))
}

/// The first word from which the random bits of a row derive.
#[cube]
pub(crate) fn row_key(row: usize, state_low: u32, state_high: u32) -> Word {
    let key = mix(Word {
        low: row as u32,
        high: comptime!(0u32).runtime(),
    });
    mix(Word {
        low: key.low ^ state_low,
        high: key.high ^ state_high,
    })
}

/// A vector starting at column `first` of a row, with zeros for dropped elements; `threshold` is in
/// units of 1/65536.
#[cube]
pub(crate) fn apply_dropout_to_vector<T: Float, N: Size>(
    vector: Vector<T, N>,
    key_low: u32,
    key_high: u32,
    first: usize,
    threshold: u32,
    // Elements per vector.
    #[comptime] size: usize,
) -> Vector<T, N> {
    let mut dropped = vector;
    #[unroll]
    for group in 0..comptime!(size.div_ceil(GROUP)) {
        let bits = bits_of(key_low, key_high, first / GROUP + group);
        #[unroll]
        for i in 0..comptime!(size.min(GROUP)) {
            // Position of the element within its group.
            let position = if comptime!(size < GROUP) {
                first % GROUP + i
            } else {
                comptime!(i).runtime()
            };
            let half = select(position < 2, bits.low, bits.high);
            let draw = (half >> (position as u32 % 2 * 16)) & 0xFFFF;
            let e = comptime!(group * GROUP + i);
            let value = select(draw < threshold, T::new(0.0), dropped.extract(e));
            dropped.insert(e, value);
        }
    }
    dropped
}

/// Each unit processes every `units`-th vector of a row, so the row's first word is computed once
/// for all of them.
#[cube(launch, create_dummy_kernel)]
fn drop_elements<T: Float, N: Size>(
    x: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors per row.
    width: u32,
    // Units per row.
    units: u32,
    state_low: u32,
    state_high: u32,
    // In units of 1/65536.
    threshold: u32,
    // Elements per vector.
    #[comptime] size: usize,
    // Whether kept elements are added to `y`.
    #[comptime] adds: bool,
    #[define(T)] _dtype: ElemType,
) {
    let width = width as usize;
    let units = units as usize;
    let row = ABSOLUTE_POS / units;
    if row < rows as usize {
        let key = row_key(row, state_low, state_high);
        let key_low = key.low;
        let key_high = key.high;
        let mut column = ABSOLUTE_POS % units;
        while column < width {
            let kept = apply_dropout_to_vector::<T, N>(
                x[row * width + column],
                key_low,
                key_high,
                column * size,
                threshold,
                size,
            );
            if comptime!(adds) {
                let sum = Vector::<f32, N>::cast_from(y[row * width + column]);
                let sum = sum + Vector::<f32, N>::cast_from(kept);
                y[row * width + column] = Vector::<T, N>::cast_from(sum);
            } else {
                y[row * width + column] = kept;
            }
            column += units;
        }
    }
}

/// `x`, `[n, in]`, with dropped elements set to zero.
pub(crate) fn apply_dropout(x: CubeTensor, dropout: Dropout) -> CubeTensor {
    let (x, [n, width]) = contiguous(x);
    let y = output(&x, [n, width], x.dtype);
    launch(&x, &y, [n, width], dropout, false);
    y
}

/// Adds the kept elements of `x` to `y` in place; both `[n, in]`, contiguous and of the same dtype.
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
    let vector = vector_size(16 / x.dtype.size(), &[width]);
    let vectors = width / vector;
    let row_units = vectors.div_ceil(VECTORS);
    let (count, dim) = units(&x.client, n * row_units);
    drop_elements::launch(
        &x.client,
        count,
        dim,
        vector,
        argument(x),
        argument(y),
        n as u32,
        vectors as u32,
        row_units as u32,
        state as u32,
        (state >> 32) as u32,
        u32::from(threshold),
        vector,
        adds,
        element(y),
    );
}

impl KeepElements for CubeBackend {
    fn keep(x: CubeTensor, dropout: Dropout) -> CubeTensor {
        apply_dropout(x, dropout)
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let wide = 16 / element.size();
        for (adds, vector, form) in [
            (false, wide, ""),
            (true, wide, "added"),
            (false, 1, "single"),
        ] {
            let [x, y] = [0; 2].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = drop_elements::create_dummy_kernel(
                device, target, count, dim, vector, x, y, 1, 1, 1, 1, 1, 1, vector, adds, element,
            );
            sources.add(form, dim, kernel);
        }
    }
}
