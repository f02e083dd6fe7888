//! The most likely allowed token on a GPU, with one cube per row.

use burn::backend::DType;
use burn_cubecl::ops::into_data_sync;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::launch::{UNITS, argument, contiguous, element, output, upload, vector_size};

/// Lower than every selectable logit.
const LOWEST: f32 = -3.0e38;

/// Logits that a unit reads at once; their mask bits are in one word.
const VECTOR: usize = 4;

#[cube(launch, create_dummy_kernel)]
fn best_tokens<T: Float, N: Size>(
    logits: &[Vector<T, N>],
    masks: &[u32],
    best: &mut [u32],
    // Vectors of logits, and mask words, per row.
    width: u32,
    words: u32,
    #[comptime] is_masked: bool,
    #[define(T)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let row = CUBE_POS_X as usize;
    let width = width as usize;
    let words = words as usize;
    let mut largest = f32::new(LOWEST);
    let mut token = 0u32.runtime();
    let mut i = unit;
    while i < width {
        let logits_vector = Vector::<f32, N>::cast_from(logits[row * width + i]);
        let size = logits_vector.vector_size();
        let first = i * size;
        let mut bits = u32::MAX.runtime();
        if comptime!(is_masked) {
            bits = masks[row * words + first / 32] >> (first % 32) as u32;
        }
        #[unroll]
        for j in 0..size {
            let logit = logits_vector.extract(j);
            if (bits >> j as u32) & 1u32 == 1u32 && logit > largest {
                largest = logit;
                token = (first + j) as u32;
            }
        }
        i += UNITS as usize;
    }
    let mut values = Shared::<[f32]>::new_slice(UNITS as usize);
    let mut tokens = Shared::<[u32]>::new_slice(UNITS as usize);
    values[unit] = largest;
    tokens[unit] = token;
    sync_cube();
    let mut half = comptime!(UNITS as usize / 2).runtime();
    while half > 0 {
        if unit < half {
            let value = values[unit + half];
            let other_token = tokens[unit + half];
            // On ties, the first one wins.
            let is_first = value == values[unit] && other_token < tokens[unit];
            if value > values[unit] || is_first {
                values[unit] = value;
                tokens[unit] = other_token;
            }
        }
        sync_cube();
        half /= 2;
    }
    if unit == 0 {
        best[row] = 0u32;
        if values[0] > f32::new(LOWEST) {
            best[row] = tokens[0];
        }
    }
}

/// Same contract as [`super::masked_argmax`], with the concatenated words of all rows, or an empty
/// slice if all tokens of all rows are allowed.
pub(super) fn masked_argmax(logits: CubeTensor, masks: Option<&[u32]>) -> Vec<u32> {
    let (logits, [rows, width]) = contiguous(logits);
    if rows * width == 0 {
        return vec![0; rows];
    }
    let best = output(&logits, [rows], DType::U32);
    let words = match masks {
        Some(masks) => upload(&logits, masks),
        None => output(&logits, [1], DType::U32),
    };
    let vector = vector_size(VECTOR, &[width]);
    best_tokens::launch(
        &logits.client,
        CubeCount::new_1d(rows as u32),
        CubeDim::new_1d(UNITS),
        vector,
        argument(&logits),
        argument(&words),
        argument(&best),
        (width / vector) as u32,
        width.div_ceil(32) as u32,
        masks.is_some(),
        element(&logits),
    );
    into_data_sync(best).iter::<u32>().collect()
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    for element in crate::cube::source::ELEMENTS {
        let [logits, masks, best] = [0; 3].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = best_tokens::create_dummy_kernel(
            device, target, count, dim, VECTOR, logits, masks, best, 1, 1, true, element,
        );
        sources.add("", dim, kernel);
    }
}
