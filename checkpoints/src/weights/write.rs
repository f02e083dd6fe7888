//! Writes host tensors to a safetensors file that PyTorch can load, one tensor at a time.

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tooltune_disk::atomic::{NewFile, write_in_parts};

use super::HostTensor;
use super::float::{FloatDtype, NewTensor, check_values, write_values};
use crate::budgets::SAFETENSORS_HEADER_BYTES;
use crate::error::CheckpointError;

/// Writes tensors as f32 with the metadata `{"format": "pt"}`, and syncs the file to disk.
///
/// The same tensors produce the same bytes. `path` must not exist; to replace a file, write into a
/// staging directory. To read the file, use [`super::Weights::open`].
///
/// # Errors
///
/// - A value is NaN or infinite; nothing is written.
/// - A tensor's values do not fill its shape.
/// - `path` exists, or cannot be written, for example because the disk is full.
pub fn write_tensors<T: Borrow<HostTensor>>(
    path: &Path,
    tensors: &BTreeMap<String, T>,
) -> Result<(), CheckpointError> {
    write_tensors_as(path, FloatDtype::F32, tensors)
}

/// Like [`write_tensors`], but rounds the values to `dtype`.
///
/// # Errors
///
/// As for [`write_tensors`], or a value is not finite in `dtype`.
pub fn write_tensors_as<T: Borrow<HostTensor>>(
    path: &Path,
    dtype: FloatDtype,
    tensors: &BTreeMap<String, T>,
) -> Result<(), CheckpointError> {
    let mut planned = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let new = NewTensor {
            name: name.clone(),
            shape: tensor.borrow().shape.clone(),
            dtype,
        };
        check_values(path, &new, tensor.borrow())?;
        planned.push(FileTensor::Floats(new));
    }
    write_file_tensors(path, planned, |name| {
        let tensor = tensors
            .get(name)
            .map(|tensor| Content::Floats(Cow::Borrowed(tensor.borrow())));
        tensor.ok_or_else(|| CheckpointError::malformed(path, name, "the tensor is not planned"))
    })
}

/// A tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileTensor {
    /// Floats, rounded when they are written.
    Floats(NewTensor),
    /// A vector or column whose bytes are given.
    Bytes {
        name: String,
        /// U8 or F32.
        dtype: Dtype,
        shape: Vec<usize>,
    },
}

/// What a tensor of a safetensors file contains.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    /// For [`FileTensor::Floats`].
    Floats(Cow<'a, HostTensor>),
    /// For [`FileTensor::Bytes`].
    Bytes(Cow<'a, [u8]>),
}

impl FileTensor {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Floats(NewTensor { name, .. }) | Self::Bytes { name, .. } => name,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Floats(NewTensor { shape, .. }) | Self::Bytes { shape, .. } => shape,
        }
    }

    fn dtype(&self) -> Dtype {
        match self {
            Self::Floats(new) => new.dtype.safetensors(),
            Self::Bytes { dtype, .. } => *dtype,
        }
    }

    /// Bytes of the tensor; `None` on overflow of `usize`.
    pub(crate) fn n_bytes(&self) -> Option<usize> {
        match self {
            Self::Floats(new) => new.n_bytes(),
            Self::Bytes { dtype, shape, .. } => {
                let width = dtype.bitsize() / 8;
                shape.iter().try_fold(width, |n, &dim| n.checked_mul(dim))
            }
        }
    }

    fn write(&self, file: &mut NewFile, content: Content<'_>) -> Result<(), CheckpointError> {
        match (self, content) {
            (Self::Floats(new), Content::Floats(values)) => write_values(file, new, values),
            (Self::Bytes { .. }, Content::Bytes(bytes)) if self.n_bytes() == Some(bytes.len()) => {
                Ok(file.write(&bytes)?)
            }
            _ => {
                let problem = "its content does not fit its header";
                Err(CheckpointError::malformed(
                    file.path(),
                    self.name(),
                    problem,
                ))
            }
        }
    }
}

/// Writes the tensors `planned`, in the order and with the header of the `safetensors` crate and
/// the metadata `{"format": "pt"}`. Calls `content` for one tensor at a time, so that only one
/// tensor is in memory.
///
/// # Errors
///
/// - `content` returns an error, or does not fit the planned tensor as for [`write_values`].
/// - `path` exists, or cannot be written. No partial file remains.
pub(crate) fn write_file_tensors<'a>(
    path: &Path,
    mut planned: Vec<FileTensor>,
    mut content: impl FnMut(&str) -> Result<Content<'a>, CheckpointError>,
) -> Result<(), CheckpointError> {
    // Sorting the widest type first aligns every tensor. Tensors of one type are sorted by name.
    planned.sort_by(|left, right| {
        let dtypes = right.dtype().cmp(&left.dtype());
        dtypes.then_with(|| left.name().cmp(right.name()))
    });
    let (header, n_data_bytes) = header(path, &planned)?;
    let n_bytes = (header.len() as u64).saturating_add(n_data_bytes);
    write_in_parts(path, n_bytes, |file| {
        file.write(&header)?;
        for tensor in &planned {
            tensor.write(file, content(tensor.name())?)?;
        }
        Ok(())
    })
}

/// All bytes before the tensor data, and the number of data bytes.
fn header(path: &Path, planned: &[FileTensor]) -> Result<(Vec<u8>, u64), CheckpointError> {
    let mut infos = Vec::with_capacity(planned.len());
    let mut offset = 0_usize;
    for new in planned {
        let end = new.n_bytes().and_then(|n| offset.checked_add(n));
        let end = end.ok_or_else(|| CheckpointError::SizeOverflow {
            path: path.to_owned(),
            tensor: new.name().to_owned(),
            shape: new.shape().iter().map(|&dim| dim as u64).collect(),
        })?;
        let info = TensorInfo {
            dtype: new.dtype(),
            shape: new.shape().to_vec(),
            data_offsets: (offset, end),
        };
        infos.push((new.name().to_owned(), info));
        offset = end;
    }
    let header_error = |problem: String| CheckpointError::malformed(path, "the header", problem);
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(|e| header_error(e.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| header_error(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() as u64 > SAFETENSORS_HEADER_BYTES {
        return Err(header_error(format!(
            "it would have {} bytes, more than {SAFETENSORS_HEADER_BYTES} (SAFETENSORS_HEADER_BYTES in \
             docs/limits.md)",
            json.len()
        )));
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    Ok((header, offset as u64))
}
