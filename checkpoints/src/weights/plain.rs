//! Tensors of plain floats, any part of which is read alone, as bf16.

use half::bf16;

use super::blocks::f16_to_f32;
use super::encoding::Format;
use super::source::SourceFile;
use super::{HeadOrder, StoredValue, Weights};
use crate::error::CheckpointError;

/// Bytes fetched at once: they are still in the first cache when they are converted.
const PLAIN_BYTES: usize = 1 << 15;

/// Tensors of plain floats, one behind the other.
#[derive(Debug)]
pub struct PlainTensors<'a>(Vec<PlainTensor<'a>>);

#[derive(Debug)]
struct PlainTensor<'a> {
    source: &'a SourceFile,
    /// From the beginning of the file, in bytes.
    offset: u64,
    n_values: usize,
    format: Format,
}

impl Weights {
    /// The tensors of these names, one behind the other, or `None` where one of them is quantised, or
    /// has its values changed or in another order than Hugging Face's.
    ///
    /// # Errors
    ///
    /// - there is no tensor of one of the names
    /// - one is stored as integers, booleans or another format without a conversion here
    pub fn plain(&self, names: &[String]) -> Result<Option<PlainTensors<'_>>, CheckpointError> {
        let tensors = names.iter().map(|name| {
            let tensor = self.stored(name)?;
            let format = self.format(name, tensor)?;
            let is_plain = format.block_values() == 1
                && tensor.order == HeadOrder::AsIs
                && tensor.values == StoredValue::AsIs;
            Ok(is_plain.then(|| PlainTensor {
                source: &self.files[tensor.file_idx],
                offset: tensor.offset,
                n_values: tensor.shape.iter().product(),
                format,
            }))
        });
        let tensors = tensors.collect::<Result<Option<Vec<_>>, CheckpointError>>()?;
        Ok(tensors.map(PlainTensors))
    }
}

impl PlainTensors<'_> {
    /// How many values they have together.
    pub fn n_values(&self) -> usize {
        self.0.iter().map(|tensor| tensor.n_values).sum()
    }

    /// Reads the values from number `start` on, each rounded to the nearest bf16, the even one of two;
    /// NaN becomes a quiet one. These are the bits of what [`Weights::read_f32`] gives, rounded.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or became shorter since it was opened.
    ///
    /// # Panics
    ///
    /// If there are fewer values.
    pub fn read_bf16(&self, start: usize, values: &mut [bf16]) -> Result<(), CheckpointError> {
        let (mut skipped, mut left) = (start, values);
        for tensor in &self.0 {
            if skipped >= tensor.n_values {
                skipped -= tensor.n_values;
                continue;
            }
            let n = left.len().min(tensor.n_values - skipped);
            let (now, later) = left.split_at_mut(n);
            tensor.read_bf16(skipped, now)?;
            (skipped, left) = (0, later);
        }
        assert!(left.is_empty(), "values of plain tensors");
        Ok(())
    }
}

impl PlainTensor<'_> {
    fn read_bf16(&self, start: usize, values: &mut [bf16]) -> Result<(), CheckpointError> {
        let width = self.format.block_bytes();
        let mut offset = self.offset + (start * width) as u64;
        let mut bytes = [0; PLAIN_BYTES];
        for values in values.chunks_mut(PLAIN_BYTES / width) {
            let bytes = &mut bytes[..values.len() * width];
            self.source.read_at(offset, bytes)?;
            round(self.format, bytes, values);
            offset += bytes.len() as u64;
        }
        Ok(())
    }
}

/// As many values as there are, of their bytes in a plain format.
fn round(format: Format, bytes: &[u8], values: &mut [bf16]) {
    let rounded = |value: f32| bf16::from_bits(nearest(value.to_bits()));
    match format {
        Format::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = rounded(f32::from_le_bytes(*bytes));
            }
        }
        Format::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = rounded(f16_to_f32(u16::from_le_bytes(*bytes)));
            }
        }
        Format::BF16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = bf16::from_bits(quiet(u16::from_le_bytes(*bytes)));
            }
        }
        quantised => unreachable!("{quantised:?} has no plain floats"),
    }
}

/// The bits of the bf16 that is nearest to an f32 of these bits. Without a branch, so that many are
/// rounded at once.
fn nearest(bits: u32) -> u16 {
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounding could carry the payload of a NaN away; the quiet bit keeps it one.
    let bits = if is_nan { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

/// The bits of a bf16, with those of a NaN made quiet, as arithmetic makes it.
fn quiet(bits: u16) -> u16 {
    let is_nan = bits & 0x7fff > 0x7f80;
    bits | u16::from(is_nan) << 6
}
