//! Reads any range of a stored NF4 tensor.

use half::bf16;

use super::layout::{
    NESTED_VALUES, NF4_BLOCK, NF4_NESTED_BLOCK, Nf4Absmax, Nf4Tensor, block_table, decode, unnested,
};
use crate::error::CheckpointError;
use crate::weights::plain::round_to_bf16;
use crate::weights::source::SourceFile;
use crate::weights::{FloatDtype, StoredTensor};

/// Position of a tensor's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::weights) struct Span {
    pub(super) file_idx: usize,
    /// Offset from the beginning of the file, in bytes.
    pub(super) offset: u64,
}

/// The parts of an NF4 tensor besides its codes. Their lengths fit its shape.
#[derive(Debug, PartialEq)]
pub(in crate::weights) struct StoredNf4 {
    /// Data type to which values are rounded.
    pub(super) dtype: FloatDtype,
    /// u8 indices if they are nested, else f32.
    pub(super) absmax: Span,
    pub(super) nested: Option<StoredNested>,
}

#[derive(Debug, PartialEq)]
pub(super) struct StoredNested {
    /// f32 scales.
    pub(super) scales: Span,
    pub(super) offset: f32,
    /// The file's map, which may differ from ours in the last bits.
    pub(super) map: Box<[f32; 256]>,
}

impl StoredNf4 {
    /// Data type to which values are rounded.
    pub(in crate::weights) fn dtype(&self) -> FloatDtype {
        self.dtype
    }
}

/// Reads the values of one tensor, from any number of threads.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) struct Nf4Reader<'a> {
    files: &'a [SourceFile],
    codes: Span,
    parts: &'a StoredNf4,
}

impl<'a> Nf4Reader<'a> {
    pub(in crate::weights) fn new(
        files: &'a [SourceFile],
        tensor: &StoredTensor,
        parts: &'a StoredNf4,
    ) -> Nf4Reader<'a> {
        let codes = Span {
            file_idx: tensor.file_idx,
            offset: tensor.offset,
        };
        Nf4Reader {
            files,
            codes,
            parts,
        }
    }

    /// Reads the values from index `start`.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or became shorter since it was opened.
    pub(in crate::weights) fn read_f32(
        &self,
        start: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        self.read(start, values, |value| value)
    }

    /// Like [`read_f32`](Self::read_f32), rounded to bf16.
    pub(in crate::weights) fn read_bf16(
        &self,
        start: usize,
        values: &mut [bf16],
    ) -> Result<(), CheckpointError> {
        self.read(start, values, |value| {
            bf16::from_bits(round_to_bf16(value.to_bits()))
        })
    }

    /// All parts as they are stored, for a tensor of this shape.
    pub(in crate::weights) fn read_parts(
        &self,
        shape: &[usize],
    ) -> Result<Nf4Tensor, CheckpointError> {
        let n_values: usize = shape.iter().product();
        let n_blocks = n_values.div_ceil(NF4_BLOCK);
        let bytes = |span: Span, n: usize| {
            let mut bytes = vec![0; n];
            self.bytes(span, 0, &mut bytes).map(|()| bytes)
        };
        let floats = |span: Span, n: usize| -> Result<Vec<f32>, CheckpointError> {
            let bytes = bytes(span, 4 * n)?;
            let floats = bytes.as_chunks().0.iter().copied();
            Ok(floats.map(f32::from_le_bytes).collect())
        };
        let absmax = match &self.parts.nested {
            None => Nf4Absmax::Plain(floats(self.parts.absmax, n_blocks)?),
            Some(nested) => Nf4Absmax::Nested {
                codes: bytes(self.parts.absmax, n_blocks)?,
                scales: floats(nested.scales, n_blocks.div_ceil(NF4_NESTED_BLOCK))?,
                offset: nested.offset,
                map: nested.map.clone(),
            },
        };
        Ok(Nf4Tensor {
            shape: shape.to_vec(),
            codes: bytes(self.codes, n_values.div_ceil(2))?,
            absmax,
            dtype: self.parts.dtype,
        })
    }

    /// Reads one nested block after the other. `convert` is applied to the 16 values of each block.
    fn read<T: Copy>(
        &self,
        start: usize,
        values: &mut [T],
        convert: impl Fn(f32) -> T,
    ) -> Result<(), CheckpointError> {
        let (mut position, mut remaining) = (start, values);
        while !remaining.is_empty() {
            let n = remaining
                .len()
                .min(NESTED_VALUES - position % NESTED_VALUES);
            let (piece, rest) = remaining.split_at_mut(n);
            self.read_piece(position, piece, &convert)?;
            (position, remaining) = (position + n, rest);
        }
        Ok(())
    }

    /// Reads values of one nested block from index `start`.
    fn read_piece<T: Copy>(
        &self,
        start: usize,
        values: &mut [T],
        convert: &impl Fn(f32) -> T,
    ) -> Result<(), CheckpointError> {
        let end = start + values.len();
        let mut absmax = [0.0; NF4_NESTED_BLOCK];
        let first_block = start / NF4_BLOCK;
        let absmax = &mut absmax[..end.div_ceil(NF4_BLOCK) - first_block];
        self.read_absmax(first_block, absmax)?;
        let mut bytes = [0; NESTED_VALUES / 2];
        let bytes = &mut bytes[..end.div_ceil(2) - start / 2];
        self.bytes(self.codes, start / 2, bytes)?;
        let (mut position, mut remaining) = (start, values);
        for absmax in absmax {
            let n = remaining.len().min(NF4_BLOCK - position % NF4_BLOCK);
            let (block, rest) = remaining.split_at_mut(n);
            let table = block_table(*absmax, self.parts.dtype).map(convert);
            decode(bytes, position - start / 2 * 2, &table, block);
            (position, remaining) = (position + n, rest);
        }
        Ok(())
    }

    /// Reads the absmax of blocks of one nested block, from index `first`.
    fn read_absmax(&self, first: usize, absmax: &mut [f32]) -> Result<(), CheckpointError> {
        let Some(nested) = &self.parts.nested else {
            return self.floats(self.parts.absmax, first, absmax);
        };
        let mut scale = [0.0];
        self.floats(nested.scales, first / NF4_NESTED_BLOCK, &mut scale)?;
        let mut codes = [0; NF4_NESTED_BLOCK];
        let codes = &mut codes[..absmax.len()];
        self.bytes(self.parts.absmax, first, codes)?;
        for (absmax, code) in absmax.iter_mut().zip(codes) {
            *absmax = unnested(&nested.map, *code, scale[0], nested.offset);
        }
        Ok(())
    }

    /// Reads at most [`NF4_NESTED_BLOCK`] f32 values from index `first`.
    fn floats(&self, span: Span, first: usize, values: &mut [f32]) -> Result<(), CheckpointError> {
        let mut bytes = [0; 4 * NF4_NESTED_BLOCK];
        let bytes = &mut bytes[..4 * values.len()];
        self.bytes(span, 4 * first, bytes)?;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    /// Fills `buffer` from byte `first` of a part.
    fn bytes(&self, span: Span, first: usize, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        self.files[span.file_idx].read_at(span.offset + first as u64, buffer)
    }
}
