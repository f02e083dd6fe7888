//! Opens a model's weights in any supported format, and reads one tensor at a time as f32, or parts
//! of plain and NF4 tensors as bf16.
//!
//! [`Weights::open`] reads only headers, and the few bytes that describe NF4 tensors. [`Weights::read_f32`] then fetches one tensor with
//! positioned reads and converts it in chunks. [`PlainTensors::read_bf16`] reads any part of plain
//! floating-point tensors and NF4 tensors from any number of threads. This module does not use memory maps: they
//! need `unsafe`, add file pages to the process's memory, and raise a signal instead of an error if
//! the file shrinks. All formats use Hugging Face's tensor names.

mod bitsandbytes;
mod blocks;
mod encoding;
mod float;
pub(crate) mod gguf;
mod gguf_dtype;
mod gguf_metadata;
pub(crate) mod gguf_write;
mod head_layout;
mod head_order;
mod open;
mod plain;
mod prediction_blocks;
mod safetensors_header;
mod source;
pub(crate) mod stored_value;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{CheckpointError, TensorDifferences};
pub(crate) use bitsandbytes::Nf4Part;
use bitsandbytes::Nf4Reader;
pub use bitsandbytes::{
    NF4_BLOCK, NF4_NESTED_BLOCK, NF4_TABLE, Nf4Absmax, Nf4Tensor, nf4_dynamic_map,
};
use encoding::{Encoding, Format};
pub use float::FloatDtype;
pub(crate) use float::{NewTensor, write_values};
pub use gguf_dtype::GgufDtype;
pub(crate) use gguf_dtype::NewGgufTensor;
pub use head_layout::{HeadCounts, HeadLayout, LinearHeads};
pub(crate) use head_layout::{INNER_SIZE, LINEAR_HEADS, VALUE_DIM};
pub(crate) use head_order::HeadOrder;
pub(crate) use open::{INDEX, SINGLE, only_weight_file};
pub use plain::PlainTensors;
pub(crate) use prediction_blocks::{PREDICTION_BLOCKS, PredictionBlocks};
pub(crate) use source::SourceFile;
use stored_value::StoredValue;
pub(crate) use write::{Content, FileTensor, write_file_tensors};
pub use write::{write_tensors, write_tensors_as};

/// Bytes read at once during conversion, which limits the extra memory.
const CHUNK_BYTES: usize = 1 << 20;
/// Number of values compared at once: a multiple of every format's block size.
const COMPARED_VALUES: usize = 1 << 20;

/// A dense tensor in host memory.
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    /// Dimensions, outermost first, as in PyTorch.
    pub shape: Vec<usize>,
    /// Row-major values; their number is the product of `shape`.
    pub values: Vec<f32>,
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostTensor {{ shape: {:?}, {} values }}",
            self.shape,
            self.values.len()
        )
    }
}

/// A tensor with a value that is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct NotFinite {
    /// The file that contains it.
    pub path: PathBuf,
    /// The Hugging Face name of the tensor.
    pub tensor: String,
    /// The first such element in row-major order.
    pub element: usize,
    /// NaN or infinity.
    pub value: f32,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, value) = (self.path.display(), self.value);
        write!(
            f,
            "{path}: tensor {} has the value {value} at element {}",
            self.tensor, self.element
        )
    }
}

/// File position and data type of one tensor.
#[derive(Debug)]
struct StoredTensor {
    file_idx: usize,
    /// Offset from the beginning of the file, in bytes.
    offset: u64,
    shape: Vec<usize>,
    encoding: Encoding,
    order: HeadOrder,
    /// How the file transforms each value.
    values: StoredValue,
}

impl StoredTensor {
    fn n_values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in its file; for NF4 the bytes of the codes.
    fn n_bytes(&self) -> u64 {
        match &self.encoding {
            Encoding::Decodable(format) => {
                let n_blocks = self.n_values() / format.block_values();
                n_blocks as u64 * format.block_bytes() as u64
            }
            Encoding::Nf4(_) => self.n_values().div_ceil(2) as u64,
            Encoding::Unsupported { n_bytes, .. } => *n_bytes,
        }
    }
}

/// The tensors of a model on disk, by Hugging Face name.
#[derive(Debug)]
pub struct Weights {
    origin: PathBuf,
    files: Vec<SourceFile>,
    tensors: BTreeMap<String, StoredTensor>,
    /// Number of vision tensors, which are omitted.
    n_vision: usize,
    /// Number of multi-token-prediction tensors, which are omitted.
    n_prediction: usize,
}

impl Weights {
    /// Number of vision tensors in the files. They are omitted, and the prefix of the language
    /// model's tensor names is removed.
    pub fn n_vision(&self) -> usize {
        self.n_vision
    }

    /// Number of multi-token-prediction tensors (`mtp.`) in the files, which are omitted.
    pub fn n_prediction(&self) -> usize {
        self.n_prediction
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Dimensions of a tensor, or `None` if there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Data type in which a tensor is stored, such as "BF16", "Q4_1" or "NF4".
    pub fn stored_as(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|tensor| tensor.encoding.name())
    }

    /// The directory or file that was opened.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The files that contain the tensors; shards sorted by name.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(SourceFile::path)
    }

    /// Whether the tensors are in a GGUF file.
    pub(crate) fn is_gguf(&self) -> bool {
        self.paths()
            .any(|path| path.extension().is_some_and(|e| e == "gguf"))
    }

    /// The data type of a tensor for writing it without loss, if it is stored as plain floats or
    /// NF4.
    pub(crate) fn float_dtype(&self, name: &str) -> Option<FloatDtype> {
        match &self.tensors.get(name)?.encoding {
            Encoding::Nf4(parts) => Some(parts.dtype()),
            other => FloatDtype::parse(other.name()),
        }
    }

    /// Number of tensors that bitsandbytes quantised to NF4.
    pub fn n_nf4(&self) -> usize {
        let tensors = self.tensors.values();
        tensors
            .filter(|tensor| matches!(tensor.encoding, Encoding::Nf4(_)))
            .count()
    }

    /// Reads the codes and absmax values of a tensor, or returns `None` if it is not stored as NF4.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name, or the file cannot be read.
    pub fn read_nf4(&self, name: &str) -> Result<Option<Nf4Tensor>, CheckpointError> {
        let tensor = self.find_tensor(name)?;
        match &tensor.encoding {
            Encoding::Nf4(parts) => {
                let reader = Nf4Reader::new(&self.files, tensor, parts);
                reader.read_parts(&tensor.shape).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Reads the NF4 codes of a tensor. If it is not stored as NF4, its values are rounded to `dtype`
    /// and quantised with nested absmax values. As in transformers, the codes are therefore those of
    /// `from_pretrained` with this dtype and `bnb_4bit_use_double_quant`.
    ///
    /// # Errors
    ///
    /// As for [`read_f32`](Self::read_f32), or a value is NaN or infinite.
    pub fn quantise_nf4(
        &self,
        name: &str,
        dtype: FloatDtype,
    ) -> Result<Nf4Tensor, CheckpointError> {
        if let Some(stored) = self.read_nf4(name)? {
            return Ok(stored);
        }
        Nf4Tensor::quantise_rounded(self.read_f32(name)?, dtype, &self.origin, name)
    }

    /// Reads one tensor and converts it to f32, dequantising if necessary.
    ///
    /// # Errors
    ///
    /// - There is no tensor of this name.
    /// - It is stored as integers, booleans or another unsupported data type.
    /// - It contains decay rates that are not below 0.
    /// - The file cannot be read, or became shorter since it was opened.
    pub fn read_f32(&self, name: &str) -> Result<HostTensor, CheckpointError> {
        let tensor = self.find_tensor(name)?;
        let source = &self.files[tensor.file_idx];
        let mut values = self.values_of(name, tensor, 0, tensor.n_values())?;
        if let Err(element) = tensor.values.undo(&mut values) {
            let problem = format!(
                "it is {} at element {element}, but decay rates must be below 0; convert the model again",
                values[element]
            );
            let location = format!("tensor {name}");
            return Err(CheckpointError::malformed(source.path(), location, problem));
        }
        Ok(HostTensor {
            values: tensor.order.undo(values, &tensor.shape),
            shape: tensor.shape.clone(),
        })
    }

    /// Like [`read_f32`](Self::read_f32), for weights in which a single value that is not finite
    /// affects every result.
    ///
    /// # Errors
    ///
    /// As for [`read_f32`](Self::read_f32), or a value is NaN or infinite.
    pub fn read_finite_f32(&self, name: &str) -> Result<HostTensor, CheckpointError> {
        let tensor = self.read_f32(name)?;
        let Some(element) = tensor.values.iter().position(|value| !value.is_finite()) else {
            return Ok(tensor);
        };
        let path = self.files[self.find_tensor(name)?.file_idx].path();
        let problem = format!("it is {} at element {element}", tensor.values[element]);
        Err(CheckpointError::malformed(
            path,
            format!("tensor {name}"),
            problem,
        ))
    }

    /// The tensors that contain NaN or infinity, each with its first such element. Tensors in
    /// unsupported data types are skipped. Reads all weights, one tensor at a time.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or became shorter since it was opened.
    pub fn not_finite(&self) -> Result<Vec<NotFinite>, CheckpointError> {
        let mut tensors = Vec::new();
        for (name, tensor) in &self.tensors {
            if matches!(tensor.encoding, Encoding::Unsupported { .. }) {
                continue;
            }
            let values = self.read_f32(name)?.values;
            if let Some(element) = values.iter().position(|value| !value.is_finite()) {
                tensors.push(NotFinite {
                    path: self.files[tensor.file_idx].path().to_owned(),
                    tensor: name.clone(),
                    element,
                    value: values[element],
                });
            }
        }
        Ok(tensors)
    }

    /// The first element in which two tensors differ as f32, or `None` if all are equal. Tensors of
    /// different shapes differ at element 0. Both are read in pieces.
    ///
    /// # Errors
    ///
    /// As for [`Self::read_f32`], for either tensor.
    pub(crate) fn first_difference(
        &self,
        first: &str,
        second: &str,
    ) -> Result<Option<usize>, CheckpointError> {
        let [a, b] = [self.find_tensor(first)?, self.find_tensor(second)?];
        if a.shape != b.shape {
            return Ok(Some(0));
        }
        let n_values = a.n_values();
        for start in (0..n_values).step_by(COMPARED_VALUES) {
            let n = COMPARED_VALUES.min(n_values - start);
            let [left, right] = [
                self.values_of(first, a, start, n)?,
                self.values_of(second, b, start, n)?,
            ];
            let mut pairs = left.iter().zip(&right);
            // NaN in both is not a difference.
            if let Some(index) = pairs.position(|(a, b)| a != b && a.to_bits() != b.to_bits()) {
                return Ok(Some(start + index));
            }
        }
        Ok(None)
    }

    fn find_tensor(&self, name: &str) -> Result<&StoredTensor, CheckpointError> {
        self.tensors
            .get(name)
            .ok_or_else(|| self.unknown_tensor(name))
    }

    /// Reads `n` values of a tensor from index `start`, in file order. Both ends must be block
    /// boundaries.
    fn values_of(
        &self,
        name: &str,
        tensor: &StoredTensor,
        start: usize,
        n: usize,
    ) -> Result<Vec<f32>, CheckpointError> {
        let source = &self.files[tensor.file_idx];
        if let Encoding::Nf4(parts) = &tensor.encoding {
            let mut values = vec![0.0; n];
            Nf4Reader::new(&self.files, tensor, parts).read_f32(start, &mut values)?;
            return Ok(values);
        }
        let format = self.format(name, tensor)?;
        let offset = (start / format.block_values() * format.block_bytes()) as u64;
        decode_at(source, tensor.offset + offset, n, format)
    }

    fn format(&self, name: &str, tensor: &StoredTensor) -> Result<Format, CheckpointError> {
        match &tensor.encoding {
            Encoding::Decodable(format) => Ok(*format),
            unsupported => Err(CheckpointError::UnsupportedDtype {
                path: self.files[tensor.file_idx].path().to_owned(),
                tensor: name.to_owned(),
                dtype: unsupported.name().to_owned(),
                supported: encoding::SAFETENSORS_TYPES,
            }),
        }
    }

    /// Compares the tensors on disk with the model's tensors, in both directions.
    ///
    /// Extra tensors without parameters are ignored: rotary tables (`….rotary_emb.inv_freq`),
    /// `….position_ids`, and an `lm_head.weight` if the model ties its head to the embedding.
    ///
    /// # Errors
    ///
    /// A tensor is missing, extra or has a different shape. One error lists all of them.
    pub fn check(&self, expected: &[(String, Vec<usize>)]) -> Result<(), CheckpointError> {
        let actual = self
            .tensors
            .iter()
            .map(|(name, t)| (name.as_str(), t.shape.as_slice()));
        let mut differences = tensor_differences(expected, actual);
        differences.extra.retain(|name| !is_ignorable(name));
        reject_differences(&self.origin, differences)
    }

    fn unknown_tensor(&self, name: &str) -> CheckpointError {
        let alternative = match name.strip_prefix("model.") {
            Some(unprefixed) => unprefixed.to_owned(),
            None => format!("model.{name}"),
        };
        let hint = if self.tensors.contains_key(&alternative) {
            format!("; it has {alternative}")
        } else {
            format!("; it has {} tensors with other names", self.tensors.len())
        };
        CheckpointError::UnknownTensor {
            path: self.origin.clone(),
            tensor: name.to_owned(),
            hint,
        }
    }
}

/// Whether an extra tensor can be ignored because the model does not need it.
fn is_ignorable(name: &str) -> bool {
    name == "lm_head.weight"
        || name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("position_ids")
}

/// Compares two sets of tensors by name and shape.
pub(crate) fn tensor_differences<'a>(
    expected: &[(String, Vec<usize>)],
    actual: impl Iterator<Item = (&'a str, &'a [usize])>,
) -> TensorDifferences {
    let mut remaining: BTreeMap<&str, &[usize]> = expected
        .iter()
        .map(|(name, shape)| (name.as_str(), shape.as_slice()))
        .collect();
    let mut differences = TensorDifferences::default();
    for (name, shape) in actual {
        match remaining.remove(name) {
            None => differences.extra.push(name.to_owned()),
            Some(remaining) if remaining != shape => {
                differences
                    .misshapen
                    .push((name.to_owned(), remaining.to_vec(), shape.to_vec()));
            }
            Some(_) => {}
        }
    }
    differences.missing = remaining.into_keys().map(str::to_owned).collect();
    differences
}

pub(crate) fn reject_differences(
    path: &Path,
    differences: TensorDifferences,
) -> Result<(), CheckpointError> {
    if differences.is_empty() {
        return Ok(());
    }
    Err(CheckpointError::TensorsDiffer {
        path: path.to_owned(),
        differences,
    })
}

/// Reads and decodes values whose bytes start at `offset`, in chunks.
fn decode_at(
    source: &SourceFile,
    offset: u64,
    n_values: usize,
    format: Format,
) -> Result<Vec<f32>, CheckpointError> {
    let mut values = Vec::with_capacity(n_values);
    let chunk_blocks = (CHUNK_BYTES / format.block_bytes()).max(1);
    let mut blocks_left = n_values / format.block_values();
    let mut offset = offset;
    let mut chunk = Vec::new();
    while blocks_left > 0 {
        let n_blocks = blocks_left.min(chunk_blocks);
        chunk.resize(n_blocks * format.block_bytes(), 0);
        source.read_at(offset, &mut chunk)?;
        format.decode(&chunk, &mut values);
        offset += chunk.len() as u64;
        blocks_left -= n_blocks;
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
