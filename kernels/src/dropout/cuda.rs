//! Dropout of an adapter's input on a GPU: the mask is computed where it is used.
//!
//! Whether element (row, column) is kept is a pure function of a 64-bit key, the same as on the
//! CPU: a GPU's run can be resumed on a CPU. 64-bit numbers are pairs of 32-bit ones here, which
//! is what every GPU makes of them anyway.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Dropout, KeepElements};
use crate::cube::launch::{argument, contiguous, element, output, units, vector_size};

/// Columns whose 16 random bits come from one 64-bit number.
const GROUP: usize = 4;

/// Vectors of a row that one unit has.
const VECTORS: usize = 4;

/// A 64-bit number.
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

/// The 64 bits that decide on a group of columns.
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

/// What the draws of a row begin with.
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

/// A vector that begins with column `first` of a row, with zeros where it is dropped; `threshold` is
/// in units of 1/65536.
#[cube]
pub(crate) fn kept_of<T: Float, N: Size>(
    vector: Vector<T, N>,
    key_low: u32,
    key_high: u32,
    first: usize,
    threshold: u32,
    // Elements of the vector.
    #[comptime] size: usize,
) -> Vector<T, N> {
    let mut kept = vector;
    #[unroll]
    for group in 0..comptime!(size.div_ceil(GROUP)) {
        let bits = bits_of(key_low, key_high, first / GROUP + group);
        #[unroll]
        for i in 0..comptime!(size.min(GROUP)) {
            // Where the element lies within its group.
            let at = if comptime!(size < GROUP) {
                first % GROUP + i
            } else {
                comptime!(i).runtime()
            };
            let half = select(at < 2, bits.low, bits.high);
            let draw = (half >> (at as u32 % 2 * 16)) & 0xFFFF;
            let e = comptime!(group * GROUP + i);
            let value = select(draw < threshold, T::new(0.0), kept.extract(e));
            kept.insert(e, value);
        }
    }
    kept
}

/// Each unit has every `units`-th vector of a row: what is drawn for the row is drawn once for them.
#[cube(launch, create_dummy_kernel)]
fn drop_elements<T: Float, N: Size>(
    x: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    rows: u32,
    // Vectors of a row.
    width: u32,
    // Units of a row.
    units: u32,
    state_low: u32,
    state_high: u32,
    // In units of 1/65536.
    threshold: u32,
    // Elements of a vector.
    #[comptime] size: usize,
    // Whether what is kept is added to `y`.
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
        let mut place = ABSOLUTE_POS % units;
        while place < width {
            let kept = kept_of::<T, N>(
                x[row * width + place],
                key_low,
                key_high,
                place * size,
                threshold,
                size,
            );
            if comptime!(adds) {
                let sum = Vector::<f32, N>::cast_from(y[row * width + place]);
                let sum = sum + Vector::<f32, N>::cast_from(kept);
                y[row * width + place] = Vector::<T, N>::cast_from(sum);
            } else {
                y[row * width + place] = kept;
            }
            place += units;
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
        kept(x, dropout)
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
    for element in crate::cube::source::ELEMENTS {
        let wide = 16 / element.size();
        for (adds, vector, form) in [
            (false, wide, ""),
            (true, wide, "added"),
            (false, 1, "single"),
        ] {
            let [x, y] = [0; 2].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = drop_elements::create_dummy_kernel(
                device, target, count, dim, vector, x, y, 1, 1, 1, 1, 1, 1, vector, adds, element,
            );
            texts.add(form, dim, kernel);
        }
    }
}
