//! Reads any part of plain floating-point tensors as bf16.

use half::bf16;

use super::blocks::f16_to_f32;
use super::encoding::Format;
use super::source::SourceFile;
use super::{HeadOrder, StoredValue, Weights};
use crate::error::CheckpointError;

/// Bytes read at once: few enough to be still in the L1 cache when they are converted.
const PLAIN_BYTES: usize = 1 << 15;

/// Concatenated plain floating-point tensors.
#[derive(Debug)]
pub struct PlainTensors<'a>(Vec<PlainTensor<'a>>);

#[derive(Debug)]
struct PlainTensor<'a> {
    source: &'a SourceFile,
    /// Offset from the beginning of the file, in bytes.
    offset: u64,
    n_values: usize,
    format: Format,
}

impl Weights {
    /// The tensors with these names, concatenated, or `None` if the file stores one of them
    /// quantised, transformed or reordered.
    ///
    /// # Errors
    ///
    /// A tensor does not exist, or is stored as integers, booleans or another unsupported data
    /// type.
    pub fn plain(&self, names: &[String]) -> Result<Option<PlainTensors<'_>>, CheckpointError> {
        let tensors = names.iter().map(|name| {
            let tensor = self.find_tensor(name)?;
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
    /// Total number of values.
    pub fn n_values(&self) -> usize {
        self.0.iter().map(|tensor| tensor.n_values).sum()
    }

    /// Reads the values from index `start`, rounded to the nearest bf16 with ties to even. NaN
    /// becomes a quiet NaN. The bits equal the rounded output of [`Weights::read_f32`].
    ///
    /// # Errors
    ///
    /// A file cannot be read, or became shorter since it was opened.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer values.
    pub fn read_bf16(&self, start: usize, values: &mut [bf16]) -> Result<(), CheckpointError> {
        let (mut skipped, mut remaining) = (start, values);
        for tensor in &self.0 {
            if skipped >= tensor.n_values {
                skipped -= tensor.n_values;
                continue;
            }
            let n = remaining.len().min(tensor.n_values - skipped);
            let (head, tail) = remaining.split_at_mut(n);
            tensor.read_bf16(skipped, head)?;
            (skipped, remaining) = (0, tail);
        }
        assert!(remaining.is_empty(), "values of plain tensors");
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

/// Rounds `values.len()` values from their bytes in a plain data type.
fn round(format: Format, bytes: &[u8], values: &mut [bf16]) {
    let rounded = |value: f32| bf16::from_bits(round_to_bf16(value.to_bits()));
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
                *value = bf16::from_bits(quiet_nan(u16::from_le_bytes(*bytes)));
            }
        }
        quantised => unreachable!("{quantised:?} has no plain floats"),
    }
}

/// Rounds the bits of an f32 to the nearest bf16. It has no branch, so the compiler can vectorise
/// it.
fn round_to_bf16(bits: u32) -> u16 {
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounding could clear the payload of a NaN; the quiet bit keeps it a NaN.
    let bits = if is_nan { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

/// The bits of a bf16; a NaN becomes quiet, as in arithmetic.
fn quiet_nan(bits: u16) -> u16 {
    let is_nan = bits & 0x7fff > 0x7f80;
    bits | u16::from(is_nan) << 6
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::weights::FloatDtype;

    /// Writes a file with one tensor per plain data type, with these bytes.
    fn write_plain_file(path: &Path, tensors: &[(&str, &str, Vec<u8>)]) {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for (name, dtype, bytes) in tensors {
            let n = bytes.len() / if *dtype == "F32" { 4 } else { 2 };
            let start = data.len();
            data.extend(bytes);
            header.push(format!(
                r#""{name}":{{"dtype":"{dtype}","shape":[{n}],"data_offsets":[{start},{}]}}"#,
                data.len()
            ));
        }
        let header = format!("{{{}}}", header.join(","));
        let length = (header.len() as u64).to_le_bytes();
        fs::write(path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
    }

    /// Writes all 16-bit numbers, and every 65,521st 32-bit number. They include NaN, infinities,
    /// subnormals, and numbers between two bf16 values.
    fn every_format(path: &Path) -> Weights {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let ties = (0..=u16::MAX).map(|high| u32::from(high) << 16 | 0x8000);
        let floats = (0..=u32::MAX).step_by(65_521).chain(ties);
        let floats: Vec<u8> = floats.flat_map(u32::to_le_bytes).collect();
        write_plain_file(
            path,
            &[
                ("a", "BF16", halves.clone()),
                ("b", "F32", floats),
                ("c", "F16", halves),
            ],
        );
        Weights::open(path).unwrap()
    }

    #[test]
    fn parts_have_the_bits_of_f32_rounded() {
        let dir = tempfile::tempdir().unwrap();
        let weights = every_format(&dir.path().join("model.safetensors"));
        let names = ["b", "a", "c"].map(str::to_owned);
        let expected: Vec<u16> = names
            .iter()
            .flat_map(|name| weights.read_f32(name).unwrap().values)
            .map(|value| bf16::from_f32(value).to_bits())
            .collect();
        let plain = weights.plain(&names).unwrap().unwrap();
        assert_eq!(plain.n_values(), expected.len());
        let read = |start: usize, n: usize| -> Vec<u16> {
            let mut values = vec![bf16::ONE; n];
            plain.read_bf16(start, &mut values).unwrap();
            values.iter().map(|value| value.to_bits()).collect()
        };
        assert!(read(0, expected.len()) == expected);
        // Ranges within a tensor, across borders, and empty at the very end.
        let first = weights.shape("b").unwrap()[0];
        for (start, n) in [
            (7, 1),
            (first - 3, 5),
            (first - 1, (1 << 16) + 2),
            (expected.len(), 0),
        ] {
            assert!(
                read(start, n) == expected[start..start + n],
                "{n} from {start} on"
            );
        }
    }

    #[test]
    fn quantised_and_reordered_tensors_are_not_plain() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let weights = Weights::open(&fixtures.join("tiny_llama.gguf")).unwrap();
        let mut n_plain = 0;
        for name in weights.names() {
            let plain = weights.plain(&[name.to_owned()]).unwrap();
            let is_float = weights
                .stored_as(name)
                .and_then(FloatDtype::parse)
                .is_some();
            let is_turned = name.contains("q_proj") || name.contains("k_proj");
            assert_eq!(plain.is_some(), is_float && !is_turned, "{name}");
            let Some(plain) = plain else { continue };
            n_plain += 1;
            let mut values = vec![bf16::ZERO; plain.n_values()];
            plain.read_bf16(0, &mut values).unwrap();
            let expected = weights.read_f32(name).unwrap().values;
            assert!(
                values
                    .iter()
                    .zip(&expected)
                    .all(|(a, b)| *a == bf16::from_f32(*b))
            );
        }
        assert!(n_plain > 0);
        let error = weights.plain(&["model.norm".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("model.norm"), "{error}");
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let weights = every_format(&path);
        let plain = weights.plain(&["c".to_owned()]).unwrap().unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(fs::metadata(&path).unwrap().len() - 2)
            .unwrap();
        let mut values = vec![bf16::ZERO; plain.n_values()];
        let error = plain.read_bf16(0, &mut values).unwrap_err().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
        plain.read_bf16(0, &mut values[1..]).unwrap();
    }
}
