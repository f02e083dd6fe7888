//! NF4 codes in GPU memory, dequantised to a dense matrix before each product that reads them.
//!
//! One cube computes one nested block: 256 blocks of 64 weights, whose absmax values share an f32
//! scale. It first writes the 256 products of map and scale to shared memory. The barrier after
//! that also separates the product from the sum with the offset: NVRTC otherwise contracts them
//! into one operation with one rounding, and the bits differ from bitsandbytes.

use std::ops::Range;

use burn::backend::{DType, DispatchDevice};
use burn::tensor::{Device, Shape, bf16, f16};
use burn_cubecl::tensor::CubeTensor;
use burn_std::Bytes;
use cubecl::prelude::*;

use super::{BLOCK, NESTED_BLOCK, Nf4, TABLE};
use crate::cube::launch::{UNITS, argument, cubes, element, output};
use crate::frozen_weight::ComputeDtype;

/// Weights of a nested block, which one cube computes.
const WEIGHTS: usize = BLOCK * NESTED_BLOCK;

/// Codes in a word; the first one is in the high half of the lowest byte.
const CODES: usize = 8;

/// Words of codes and of absmax indices of a nested block.
const CODE_WORDS: usize = WEIGHTS / CODES;
const ABSMAX_WORDS: usize = NESTED_BLOCK / 4;

/// Numbers that describe the weights of a nested block.
const SPAN: usize = 3;

/// Values of the last of these numbers for weights that are rounded to another dtype than the
/// matrix first.
const F16: u32 = 1;
const BF16: u32 = 2;

/// Copies of the code table in shared memory, one per lane of a warp, so that lanes that read
/// different entries use different banks.
const LANES: usize = 32;

/// Variant of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Variant {
    /// Whether the absmax values are indices into a map; otherwise they are f32.
    is_nested: bool,
    /// Whether some weights are rounded to f16 first, and whether some are rounded to bf16 first.
    has_f16: bool,
    has_bf16: bool,
}

/// Writes the weights of one nested block per cube.
#[cube(launch, create_dummy_kernel)]
fn dequantise_nf4<T: Float, N: Size>(
    codes: &[u32],
    // Indices into the map, if they exist.
    absmax: &[u32],
    // Scale and offset of the absmax values of each nested block, or the absmax values.
    scales: &[f32],
    // First weight, number of weights and how they are rounded first, for each nested block.
    spans: &[u32],
    // Values of the codes, then of the indices.
    tables: &[f32],
    weights: &mut [Vector<T, N>],
    nested_blocks: u32,
    #[comptime] variant: Variant,
    #[define(T)] _dtype: ElemType,
) {
    let block = CUBE_POS;
    if block < nested_blocks as usize {
        let unit = UNIT_POS as usize;
        let mut levels = Shared::<[f32]>::new_slice(UNITS as usize);
        let mut values = Shared::<[f32]>::new_slice(comptime!(2 * UNITS as usize));
        values[unit] = tables[unit / LANES];
        values[unit + UNITS as usize] = tables[(unit + UNITS as usize) / LANES];
        if comptime!(variant.is_nested) {
            let bytes = absmax[block * ABSMAX_WORDS + unit / 4];
            let level = (bytes >> (unit % 4 * 8) as u32) & 0xFF;
            levels[unit] = tables[16 + level as usize] * scales[2 * block];
        } else {
            levels[unit] = scales[block * NESTED_BLOCK + unit];
        }
        sync_cube();
        let start = spans[SPAN * block] as usize;
        let count = spans[SPAN * block + 1] as usize;
        let rounding = spans[SPAN * block + 2];
        let lane = unit % LANES;
        for round in 0..comptime!(CODE_WORDS / UNITS as usize) {
            let word = round * UNITS as usize + unit;
            let first = word * CODES;
            if first < count {
                let bits = codes[block * CODE_WORDS + word];
                let mut scale = levels[first / BLOCK];
                if comptime!(variant.is_nested) {
                    scale += scales[2 * block + 1];
                }
                let mut vector = Vector::<f32, N>::new(0.0);
                let size = vector.vector_size();
                #[unroll]
                for piece in 0..comptime!(CODES / size) {
                    #[unroll]
                    for i in 0..size {
                        // Of two codes in a byte, the first one is the higher.
                        let shift = comptime!(4 * ((piece * size + i) ^ 1) as u32).runtime();
                        let code = (bits >> shift) & 0xF;
                        let mut value = values[code as usize * LANES + lane] * scale;
                        if comptime!(variant.has_f16) {
                            if rounding == F16 {
                                value = f32::cast_from(f16::cast_from(value));
                            }
                        }
                        if comptime!(variant.has_bf16) {
                            if rounding == BF16 {
                                value = f32::cast_from(bf16::cast_from(value));
                            }
                        }
                        vector.insert(i, value);
                    }
                    let at = first + comptime!(piece * size);
                    if at < count {
                        weights[(start + at) / size] = Vector::<T, N>::cast_from(vector);
                    }
                }
            }
        }
    }
}

/// Where the parts of an NF4 matrix `[out, in]` are in a buffer of words, and how the kernel reads
/// them. The matrix is made of matrices one below the other, each of which begins with a new nested
/// block.
#[derive(Debug, Clone)]
pub(crate) struct Nf4Layout {
    /// Words of [`CODES`] codes.
    codes: Range<usize>,
    /// Words of four indices into the map; empty if absmax values are f32.
    absmax: Range<usize>,
    /// Two f32 per nested block: scale and offset of its absmax values; without `absmax` the
    /// [`NESTED_BLOCK`] absmax values.
    scales: Range<usize>,
    /// [`SPAN`] u32 per nested block: its first weight, the number of its weights, and [`F16`] or
    /// [`BF16`] if they are rounded to it first.
    spans: Range<usize>,
    /// [`TABLE`], then the map.
    tables: Range<usize>,
    nested_blocks: usize,
    shape: [usize; 2],
    dtype: DType,
    variant: Variant,
    /// Weights that the kernel writes at once.
    vector: usize,
}

/// Parts of a buffer begin at multiples of this number of words, so that a GPU can read each as a
/// buffer of its own.
const ALIGNMENT: usize = 128;

impl Nf4Layout {
    /// The buffer of valid matrices that are stacked to `shape`, and its layout. `dtype` is the
    /// dtype of the dense matrix.
    pub(crate) fn pack(parts: &[Nf4], shape: [usize; 2], dtype: ComputeDtype) -> (Vec<u32>, Self) {
        let dtype = dtype.dtype();
        let host = HostCodes::new(parts, dtype);
        let mut words = host.codes;
        let mut append = |part: Vec<u32>| {
            words.resize(words.len().next_multiple_of(ALIGNMENT), 0);
            let start = words.len();
            words.extend(part);
            start..words.len()
        };
        let nested_blocks = host.spans.len() / SPAN;
        let layout = Self {
            codes: 0..nested_blocks * CODE_WORDS,
            absmax: append(host.absmax),
            scales: append(host.scales),
            spans: append(host.spans),
            tables: append(host.tables),
            nested_blocks,
            shape,
            dtype,
            variant: host.variant,
            vector: match host.is_aligned {
                true => 16 / dtype.size(),
                false => 1,
            },
        };
        (words, layout)
    }

    /// The dtype of the dense matrix.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dense matrix, `[out, in]`, of the buffer `words`. Its memory returns to the pool when
    /// the tensor is dropped.
    pub(crate) fn dense(&self, words: &CubeTensor) -> CubeTensor {
        let matrix = output(words, self.shape, self.dtype);
        if self.nested_blocks == 0 {
            return matrix;
        }
        let client = &matrix.client;
        let part = |range: &Range<usize>, dtype| argument(&words_of(words, range, dtype));
        let absmax = match self.variant.is_nested {
            true => &self.absmax,
            false => &self.codes,
        };
        dequantise_nf4::launch(
            client,
            cubes(client, self.nested_blocks),
            CubeDim::new_1d(UNITS),
            self.vector,
            part(&self.codes, DType::U32),
            part(absmax, DType::U32),
            part(&self.scales, DType::F32),
            part(&self.spans, DType::U32),
            part(&self.tables, DType::F32),
            argument(&matrix),
            self.nested_blocks as u32,
            self.variant,
            element(&matrix),
        );
        matrix
    }
}

/// A range of the words of a buffer.
fn words_of(words: &CubeTensor, range: &Range<usize>, dtype: DType) -> CubeTensor {
    let n_after = words.meta.num_elements() - range.end;
    let bytes = |words: usize| (words * size_of::<u32>()) as u64;
    let handle = words.handle.clone();
    let handle = handle
        .offset_start(bytes(range.start))
        .offset_end(bytes(n_after));
    let (client, device) = (words.client.clone(), words.device.clone());
    CubeTensor::new_contiguous(client, device, Shape::new([range.len()]), handle, dtype)
}

/// An NF4 matrix in GPU memory.
#[derive(Debug)]
pub(crate) struct QuantisedOnGpu {
    words: CubeTensor,
    layout: Nf4Layout,
}

impl QuantisedOnGpu {
    /// Uploads valid matrices, which are stacked to `shape`.
    ///
    /// # Panics
    ///
    /// If the device is not a GPU: a bug of the caller.
    pub(crate) fn new(
        parts: &[Nf4],
        shape: [usize; 2],
        dtype: ComputeDtype,
        device: &Device,
    ) -> Self {
        let DispatchDevice::Cube(device) = device.as_dispatch() else {
            panic!("NF4 codes are uploaded to GPUs only");
        };
        let client = device.client();
        let (words, layout) = Nf4Layout::pack(parts, shape, dtype);
        let shape = Shape::new([words.len()]);
        let handle = client.create(Bytes::from_elems(words));
        let words = CubeTensor::new_contiguous(client, device.clone(), shape, handle, DType::U32);
        Self { words, layout }
    }

    /// The dtype of the dense matrix.
    pub(crate) fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// The buffer of all parts, and its layout.
    #[cfg(feature = "cuda")]
    pub(crate) fn parts(&self) -> (&CubeTensor, &Nf4Layout) {
        (&self.words, &self.layout)
    }

    /// Bytes of codes and scales.
    pub(crate) fn bytes(&self) -> usize {
        self.words.meta.num_elements() * size_of::<u32>()
    }

    /// The dense matrix, `[out, in]`, in memory of the pool.
    pub(crate) fn dense(&self) -> CubeTensor {
        self.layout.dense(&self.words)
    }
}

/// The codes of a stack as the kernel reads them.
struct HostCodes {
    codes: Vec<u32>,
    absmax: Vec<u32>,
    scales: Vec<u32>,
    spans: Vec<u32>,
    tables: Vec<u32>,
    variant: Variant,
    /// Whether every part begins and ends at a multiple of [`CODES`].
    is_aligned: bool,
}

impl HostCodes {
    /// The codes for a dense matrix of `dtype`.
    fn new(parts: &[Nf4], dtype: DType) -> Self {
        // If this is false, the absmax values are computed here; the bits are the same.
        let is_nested = parts.iter().all(|part| {
            (!part.absmax8.is_empty() || part.n_values() == 0) && part.map == parts[0].map
        });
        let map = parts.first().map_or(&[][..], |part| &part.map[..]);
        let n_words: usize = parts
            .iter()
            .map(|part| part.n_values().div_ceil(WEIGHTS) * CODE_WORDS)
            .sum();
        let mut all = Self {
            // Slightly more than the codes, for the other parts of the buffer.
            codes: Vec::with_capacity(n_words + n_words / 16 + 1024),
            absmax: Vec::new(),
            scales: Vec::new(),
            spans: Vec::new(),
            tables: TABLE.iter().chain(map).map(|x| x.to_bits()).collect(),
            variant: Variant {
                is_nested,
                has_f16: parts.iter().any(|part| part.dtype == DType::F16),
                has_bf16: dtype == DType::F32 && parts.iter().any(|part| part.dtype == DType::BF16),
            },
            is_aligned: true,
        };
        let mut first = 0;
        for part in parts {
            all.add(part, first);
            first += part.n_values();
        }
        all
    }

    /// Adds a matrix whose first weight is `first`.
    fn add(&mut self, part: &Nf4, first: usize) {
        let n = part.n_values();
        self.is_aligned &= n.is_multiple_of(CODES);
        for start in (0..n).step_by(WEIGHTS) {
            let position =
                u32::try_from(first + start).expect("a stack has fewer than 2^32 weights");
            let rounding = match part.dtype {
                DType::F16 => F16,
                DType::BF16 => BF16,
                _ => 0,
            };
            let count = WEIGHTS.min(n - start) as u32;
            self.spans.extend([position, count, rounding]);
            if self.variant.is_nested {
                let scale = part.absmax32[start / WEIGHTS];
                self.scales.extend([scale, part.offset].map(f32::to_bits));
            }
        }
        let nested_blocks = self.spans.len() / SPAN;
        append_words(&mut self.codes, &part.codes, nested_blocks * CODE_WORDS);
        if self.variant.is_nested {
            let len = nested_blocks * ABSMAX_WORDS;
            append_words(&mut self.absmax, &part.absmax8, len);
        } else {
            let absmax = (0..n.div_ceil(BLOCK)).map(|block| part.absmax(block).to_bits());
            self.scales.extend(absmax);
            self.scales.resize(nested_blocks * NESTED_BLOCK, 0);
        }
    }
}

/// Appends bytes as little-endian words, then zeros up to `len` words.
fn append_words(words: &mut Vec<u32>, bytes: &[u8], len: usize) {
    let (whole, rest) = bytes.as_chunks::<4>();
    words.extend(whole.iter().map(|bytes| u32::from_le_bytes(*bytes)));
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u32::from_le_bytes(last));
    }
    words.resize(len, 0);
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    for (element, vector) in crate::cube::source::ELEMENTS.into_iter().zip([4, 8]) {
        for (form, is_nested, has_f16) in [("", true, false), ("plain f16", false, true)] {
            let [codes, absmax, scales, spans, tables, weights] = [0; 6].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let variant = Variant {
                is_nested,
                has_f16,
                has_bf16: vector == 4,
            };
            let kernel = dequantise_nf4::create_dummy_kernel(
                device, target, count, dim, vector, codes, absmax, scales, spans, tables, weights,
                1, variant, element,
            );
            sources.add(form, dim, kernel);
        }
    }
}
