//! NF4 codes in the order of panels, and the loops that decode them.
//!
//! A panel has 32 columns, which are rows of the weight. Its codes are lines of 32 words, one per
//! column, for eight depths: the low half of a word has the codes of the even depths, and the high
//! half the codes of the odd depths. A shift by a multiple of four bits therefore moves the codes of a pair of
//! depths to the bits where instructions look up 16 or 32 bits at a time, without a shuffle between
//! columns.

mod few_rows;

use std::ops::Range;

use burn::tensor::{DType, f16};
use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::cpu_vectors as vectors;
use super::{BLOCK, NESTED_BLOCK, Nf4, TABLE};
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::{Isa, has_pairs};
use crate::cpu::number::rounded_bits;
use crate::cpu::packed::layout::{PanelLayout, PanelWords, PanelWordsMut};
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::{COLUMNS, HALF, Panels};
use crate::cpu::packed::product::MANY_PANELS;
use crate::cpu::weight_arena::ArenaArray;

/// The codes of [`LINE_PAIRS`] pairs of depths in all columns of a panel.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct CodeLine(pub(super) [u32; COLUMNS]);

/// Pairs of depths per line.
pub(super) const LINE_PAIRS: usize = 4;

/// Pairs of depths that share the scales of a panel.
const PAIRS: usize = BLOCK / 2;

/// Eight codes of the value 0.
const ZEROS: u32 = 0x7777_7777;

/// Position of the code of a depth in a word of a line, in bits.
const fn code_bit(depth: usize) -> usize {
    4 * (depth / 2) + 16 * (depth % 2)
}

/// The smallest absmax that the instruction that rounds to bf16 supports: it flushes subnormal
/// results, which smaller ones could have.
const SMALLEST_ABSMAX: f32 = 1e-30;

/// Bytes of decoded panels that a thread multiplies with few rows at a time: a share of its L2 cache.
const CHUNK_BYTES: usize = 256 << 10;

/// A matrix in NF4 for products on the CPU.
#[derive(Debug)]
pub(crate) struct PanelCodes {
    /// Depth and columns of the product `x Wᵀ`.
    shape: [usize; 2],
    order: Order,
}

/// How codes are stored.
#[derive(Debug)]
enum Order {
    /// For depths that are a multiple of [`BLOCK`], where a block is a part of one column.
    Panels(Ordered),
    /// As bitsandbytes stores them.
    Rows(Vec<Nf4>),
}

/// Codes and scales in the order of panels.
#[derive(Debug)]
struct Ordered {
    lines: ArenaArray<CodeLine>,
    /// Pairs of depths per panel.
    pairs: usize,
    absmax: Absmax,
    /// How values are rounded before they are converted to the dtype of the product.
    dtype: DType,
    /// Whether an absmax that is not 0 is smaller than [`SMALLEST_ABSMAX`].
    has_small: bool,
}

/// The absmax of each block: for each panel and block of depths, 32 values.
#[derive(Debug)]
enum Absmax {
    Plain(ArenaArray<[f32; COLUMNS]>),
    Nested {
        indices: ArenaArray<[u8; COLUMNS]>,
        /// The scales of each part.
        parts: Vec<NestedScales>,
        /// The part of each column.
        part_of: Vec<u32>,
    },
}

/// What turns indices of a part into absmax values.
#[derive(Debug)]
struct NestedScales {
    first_column: usize,
    scales: Vec<f32>,
    offset: f32,
    map: Box<[f32; 256]>,
}

impl PanelCodes {
    /// Reorders the codes of stacked valid parts; `shape` is `[out, in]`.
    pub(super) fn new(parts: &[Nf4], [columns, depth]: [usize; 2]) -> Self {
        let first = parts.first();
        let is_nested = first.is_some_and(|part| !part.absmax8.is_empty());
        let are_alike = parts.iter().all(|part| {
            Some(part.dtype) == first.map(|first| first.dtype)
                && part.absmax8.is_empty() != is_nested
        });
        let order = if depth.is_multiple_of(BLOCK) && depth > 0 && are_alike {
            Order::Panels(Ordered::new(parts, [columns, depth], is_nested))
        } else {
            Order::Rows(parts.to_vec())
        };
        Self {
            shape: [depth, columns],
            order,
        }
    }

    /// Depth of the product `x Wᵀ`.
    pub(crate) fn depth(&self) -> usize {
        self.shape[0]
    }

    /// Columns of the product `x Wᵀ`.
    pub(crate) fn columns(&self) -> usize {
        self.shape[1]
    }

    /// Panels for `x Wᵀ`, in borrowed memory.
    pub(crate) fn forward<T: Operand>(&self) -> Panels<T> {
        self.panels(0..self.columns().div_ceil(COLUMNS), true)
    }

    /// Panels for `dy W`, in borrowed memory.
    pub(crate) fn backward<T: Operand>(&self) -> Panels<T> {
        let [depth, columns] = self.shape;
        match &self.order {
            Order::Rows(parts) => Panels::pack_matrix(&row_values::<T>(parts), [columns, depth]),
            Order::Panels(ordered) if columns.is_multiple_of(COLUMNS) => {
                ordered.transposed(self.shape)
            }
            Order::Panels(_) => self.forward::<T>().transposed(),
        }
    }

    /// Calls `work` with the panels for `x Wᵀ` in parts, each with its panels' numbers. All threads
    /// share the parts if `spread` is set.
    pub(crate) fn for_each_part<T: Operand>(
        &self,
        spread: bool,
        work: impl Fn(&Panels<T>, Range<usize>) + Sync,
    ) {
        let n_panels = self.columns().div_ceil(COLUMNS);
        let bytes = COLUMNS * self.depth().next_multiple_of(T::DEPTHS) * size_of::<T>();
        // How rows are packed affects rounding if products widen, and depends on the number of
        // panels. With as many panels as that needs, parts are multiplied like the whole.
        let least = if T::widens() { MANY_PANELS } else { 1 };
        let each = (CHUNK_BYTES / bytes.max(1)).max(least);
        let n_parts = match &self.order {
            Order::Panels(_) => (n_panels / each).max(1),
            Order::Rows(_) => 1,
        };
        let part = |i: usize| {
            let range = n_panels * i / n_parts..n_panels * (i + 1) / n_parts;
            work(&self.panels(range.clone(), false), range);
        };
        if spread && n_parts > 1 {
            (0..n_parts).into_par_iter().for_each(part);
        } else {
            (0..n_parts).for_each(part);
        }
    }

    /// Some panels for `x Wᵀ`.
    fn panels<T: Operand>(&self, panels: Range<usize>, spread: bool) -> Panels<T> {
        let ordered = match &self.order {
            Order::Rows(parts) => {
                let [depth, columns] = self.shape;
                return Panels::pack_rows_on_loan(&row_values::<T>(parts), [columns, depth]);
            }
            Order::Panels(ordered) => ordered,
        };
        let pairs = self.depth() / 2;
        let fill = |panel: Range<usize>, words: PanelWordsMut| {
            // SAFETY: a panel has a word for each column and depth or pair of depths.
            unsafe { ordered.decode::<T>(panel.start, 0..pairs, words) };
        };
        // SAFETY: all depths of all columns are decoded.
        unsafe { Panels::from_groups(self.shape, panels, 1, spread, fill) }
    }

    /// The values, as f32, row-major `[out, in]`.
    pub(super) fn values<T: Operand>(&self) -> Vec<f32> {
        let panels = self.forward::<T>();
        let mut values = vec![0.0; self.shape[0] * self.shape[1]];
        let rows = values.par_chunks_mut(self.shape[0].max(1)).enumerate();
        rows.for_each(|(column, to)| {
            let mut row = vec![T::ZERO; to.len()];
            panels.read_column(column, &mut row);
            to.iter_mut()
                .zip(row)
                .for_each(|(to, value)| *to = value.widen());
        });
        values
    }

    /// Bytes of codes and scales.
    pub(super) fn bytes(&self) -> usize {
        match &self.order {
            Order::Panels(ordered) => ordered.bytes(),
            Order::Rows(parts) => parts.iter().map(Nf4::bytes).sum(),
        }
    }
}

/// The values of matrices in the order of bitsandbytes, row-major.
fn row_values<T: Operand>(parts: &[Nf4]) -> Vec<T> {
    let mut values = vec![T::ZERO; parts.iter().map(Nf4::n_values).sum()];
    let mut rest = &mut values[..];
    for part in parts {
        let (own, others) = rest.split_at_mut(part.n_values());
        rest = others;
        let blocks = own.par_chunks_mut(BLOCK).enumerate();
        blocks.with_min_len(NESTED_BLOCK).for_each(|(block, to)| {
            let absmax = part.absmax(block);
            let table = TABLE.map(|value| T::narrow(rounded(value * absmax, part.dtype)));
            let bytes = &part.codes[block * BLOCK / 2..];
            for (pair, byte) in to.chunks_mut(2).zip(bytes) {
                let codes = [byte >> 4, byte & 15];
                for (to, code) in pair.iter_mut().zip(codes) {
                    *to = table[usize::from(code)];
                }
            }
        });
    }
    values
}

/// The nearest value of `dtype`.
fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => f32::from_bits(rounded_bits(value) & 0xffff_0000),
        _ => value,
    }
}

impl Ordered {
    fn new(parts: &[Nf4], [columns, depth]: [usize; 2], is_nested: bool) -> Self {
        let (pairs, blocks) = (depth / 2, depth / BLOCK);
        let n_panels = columns.div_ceil(COLUMNS);
        let mut first = 0;
        let mut rows = Vec::with_capacity(columns);
        for (index, part) in parts.iter().enumerate() {
            rows.extend((0..part.shape[0]).map(|row| (index, row)));
        }
        let lines_of_panel = pairs / LINE_PAIRS;
        let mut lines = ArenaArray::repeated(CodeLine([ZEROS; COLUMNS]), n_panels * lines_of_panel);
        let panels = lines.par_chunks_mut(lines_of_panel.max(1)).enumerate();
        panels.for_each(|(panel, lines)| {
            let own = &rows[panel * COLUMNS..columns.min((panel + 1) * COLUMNS)];
            for (column, &(part, row)) in own.iter().enumerate() {
                let codes = &parts[part].codes[row * pairs..(row + 1) * pairs];
                for (line, bytes) in lines.iter_mut().zip(codes.chunks_exact(LINE_PAIRS)) {
                    let codes = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                    let words = codes.enumerate();
                    let words = words.map(|(depth, code)| u32::from(code) << code_bit(depth));
                    line.0[column] = words.fold(0, |word, code| word | code);
                }
            }
        });
        let in_panels = |to: &mut dyn FnMut(usize, usize, &Nf4, usize)| {
            for (column, &(part, row)) in rows.iter().enumerate() {
                for block in 0..blocks {
                    let at = column / COLUMNS * blocks + block;
                    to(at, column % COLUMNS, &parts[part], row * blocks + block);
                }
            }
        };
        let mut has_small = false;
        in_panels(&mut |_, _, part, block| {
            let absmax = part.absmax(block).abs();
            has_small |= absmax != 0.0 && absmax < SMALLEST_ABSMAX;
        });
        let absmax = if is_nested {
            let mut indices = ArenaArray::repeated([0; COLUMNS], n_panels * blocks);
            in_panels(&mut |at, column, part, block| indices[at][column] = part.absmax8[block]);
            let scales = parts.iter().map(|part| {
                let first_column = first;
                first += part.shape[0];
                NestedScales {
                    first_column,
                    scales: part.absmax32.clone(),
                    offset: part.offset,
                    map: part.map.clone(),
                }
            });
            Absmax::Nested {
                indices,
                parts: scales.collect(),
                part_of: rows.iter().map(|&(part, _)| part as u32).collect(),
            }
        } else {
            let mut absmax = ArenaArray::repeated([0.0; COLUMNS], n_panels * blocks);
            in_panels(&mut |at, column, part, block| absmax[at][column] = part.absmax32[block]);
            Absmax::Plain(absmax)
        };
        Self {
            lines,
            pairs,
            absmax,
            dtype: parts.first().map_or(DType::F32, |part| part.dtype),
            has_small,
        }
    }

    /// The absmax of a block of depths in all columns of a panel.
    fn absmax(&self, panel: usize, block: usize) -> [f32; COLUMNS] {
        let blocks = self.pairs / PAIRS;
        let at = panel * blocks + block;
        let (indices, parts, part_of) = match &self.absmax {
            Absmax::Plain(absmax) => return absmax[at],
            Absmax::Nested {
                indices,
                parts,
                part_of,
            } => (&indices[at], parts, part_of),
        };
        let mut absmax = [0.0; COLUMNS];
        let first = panel * COLUMNS;
        let columns = part_of.len().min(first + COLUMNS) - first;
        for (i, absmax) in absmax[..columns].iter_mut().enumerate() {
            let part = &parts[part_of[first + i] as usize];
            let stored = (first + i - part.first_column) * blocks + block;
            let unit = part.map[usize::from(indices[i])];
            *absmax = unit * part.scales[stored / NESTED_BLOCK] + part.offset;
        }
        absmax
    }

    /// The lines of a panel.
    fn lines(&self, panel: usize) -> &[CodeLine] {
        let n = self.pairs / LINE_PAIRS;
        &self.lines[panel * n..(panel + 1) * n]
    }

    /// Decodes some pairs of depths of a panel, in whole lines; `to` begins at the first of them.
    ///
    /// # Safety
    ///
    /// `to` has a word for each column and, per pair of depths, `2 / T::DEPTHS` lines.
    unsafe fn decode<T: Operand>(&self, panel: usize, pairs: Range<usize>, to: PanelWordsMut) {
        let mut start = pairs.start;
        while start < pairs.end {
            let block = start / PAIRS;
            let end = pairs.end.min((block + 1) * PAIRS);
            let absmax = self.absmax(panel, block);
            let lines = &self.lines(panel)[start / LINE_PAIRS..end / LINE_PAIRS];
            let first_line = (start - pairs.start) * 2 / T::DEPTHS;
            let words = to.words.wrapping_add(first_line * to.layout.line);
            // SAFETY: guaranteed by the caller.
            unsafe { self.decode_lines::<T>(lines, &absmax, PanelWordsMut { words, ..to }) };
            start = end;
        }
    }

    /// Decodes lines with the same absmax in each column.
    ///
    /// # Safety
    ///
    /// Same as for `decode`.
    unsafe fn decode_lines<T: Operand>(
        &self,
        lines: &[CodeLine],
        absmax: &[f32; COLUMNS],
        to: PanelWordsMut,
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.dtype != DType::F16 {
            let is_bf16 = T::DTYPE == DType::BF16;
            let rounds = is_bf16 || self.dtype == DType::BF16;
            // SAFETY: the CPU feature was detected; the words are guaranteed by the caller.
            unsafe {
                match (Isa::detect(), is_bf16, rounds) {
                    (Isa::Avx512, true, _) if has_pairs() && !self.has_small => {
                        return vectors::decode_pairs(lines, absmax, to);
                    }
                    (Isa::Avx512, true, _) => {
                        return vectors::decode_avx512::<true, true>(lines, absmax, to);
                    }
                    (Isa::Avx512, false, true) => {
                        return vectors::decode_avx512::<false, true>(lines, absmax, to);
                    }
                    (Isa::Avx512, false, false) => {
                        return vectors::decode_avx512::<false, false>(lines, absmax, to);
                    }
                    (Isa::Avx2, true, _) => {
                        return vectors::decode_avx2::<true, true>(lines, absmax, to);
                    }
                    (Isa::Avx2, false, true) => {
                        return vectors::decode_avx2::<false, true>(lines, absmax, to);
                    }
                    (Isa::Avx2, false, false) => {
                        return vectors::decode_avx2::<false, false>(lines, absmax, to);
                    }
                    (Isa::Portable, ..) => {}
                }
            }
        }
        for (index, line) in lines.iter().enumerate() {
            for (column, codes) in line.0.into_iter().enumerate() {
                let values: [T; 2 * LINE_PAIRS] = std::array::from_fn(|depth| {
                    let code = codes >> code_bit(depth) & 15;
                    let value = TABLE[code as usize] * absmax[column];
                    T::narrow(rounded(value, self.dtype))
                });
                for (i, values) in values.chunks_exact(T::DEPTHS).enumerate() {
                    let line = index * 2 * LINE_PAIRS / T::DEPTHS + i;
                    let word = T::pack_word(|depth| values[depth]);
                    // SAFETY: guaranteed by the caller.
                    unsafe { *to.words.add(to.layout.offset(line, column)) = word };
                }
            }
        }
    }

    /// Panels for `dy W`; the argument is the shape of the product `x Wᵀ`, with whole panels.
    fn transposed<T: Operand>(&self, [depth, columns]: [usize; 2]) -> Panels<T> {
        /// Words of a block of weights in all columns of a panel.
        #[repr(C, align(64))]
        struct Words([u32; BLOCK * COLUMNS]);
        // A block of depths becomes the columns of two panels.
        const GROUP: usize = BLOCK / COLUMNS;
        let lines = COLUMNS / T::DEPTHS;
        let between = PanelLayout {
            line: COLUMNS,
            half: HALF,
        };
        let fill = |group: Range<usize>, to: PanelWordsMut| {
            let mut block = Words([0; BLOCK * COLUMNS]);
            let pairs = group.start / GROUP * PAIRS..group.end / GROUP * PAIRS;
            for source in 0..columns / COLUMNS {
                let words = block.0.as_mut_ptr();
                let decoded = PanelWordsMut {
                    words,
                    layout: between,
                };
                // SAFETY: the block has a word for each column and depth or pair of depths. Each
                // panel of the result has `lines` lines per panel of the source.
                unsafe {
                    self.decode::<T>(source, pairs.clone(), decoded);
                    for i in 0..GROUP {
                        let panel = i * columns / T::DEPTHS * COLUMNS;
                        let from = PanelWords {
                            words: words.add(i * lines * COLUMNS),
                            layout: between,
                        };
                        let words = to.words.add(panel + source * lines * to.layout.line);
                        T::transpose_block(from, PanelWordsMut { words, ..to });
                    }
                }
            }
        };
        // SAFETY: the blocks of all panels of the source cover every line.
        unsafe { Panels::from_groups([columns, depth], 0..depth / COLUMNS, GROUP, true, fill) }
    }

    fn bytes(&self) -> usize {
        let absmax = match &self.absmax {
            Absmax::Plain(absmax) => size_of_val(&**absmax),
            Absmax::Nested { indices, parts, .. } => {
                let scales: usize = parts.iter().map(|part| part.scales.len()).sum();
                size_of_val(&**indices) + scales * size_of::<f32>()
            }
        };
        size_of_val(&*self.lines) + absmax
    }
}
