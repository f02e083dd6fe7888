//! Writes host tensors to a safetensors file that PyTorch can load, one tensor at a time.

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use tooltune_disk::atomic::write_in_parts;

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
        planned.push(new);
    }
    write_safetensors(path, planned, |name| {
        let tensor = tensors
            .get(name)
            .map(|tensor| Cow::Borrowed(tensor.borrow()));
        tensor.ok_or_else(|| CheckpointError::malformed(path, name, "the tensor is not planned"))
    })
}

/// Writes the tensors `planned`, in the order and with the header of the `safetensors` crate and
/// the metadata `{"format": "pt"}`. Calls `values` for one tensor at a time, so that only one
/// tensor is in memory.
///
/// # Errors
///
/// - `values` returns an error, a value is not finite in the planned data type, or the values do
///   not fill the shape.
/// - `path` exists, or cannot be written. No partial file remains.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    mut planned: Vec<NewTensor>,
    mut values: impl FnMut(&str) -> Result<Cow<'a, HostTensor>, CheckpointError>,
) -> Result<(), CheckpointError> {
    // Sorting the widest type first aligns every tensor. Tensors of one type are sorted by name.
    planned.sort_by(|left, right| {
        let dtypes = right.dtype.safetensors().cmp(&left.dtype.safetensors());
        dtypes.then_with(|| left.name.cmp(&right.name))
    });
    let (header, n_data_bytes) = header(path, &planned)?;
    let n_bytes = (header.len() as u64).saturating_add(n_data_bytes);
    write_in_parts(path, n_bytes, |file| {
        file.write(&header)?;
        for new in &planned {
            write_values(file, new, values(&new.name)?)?;
        }
        Ok(())
    })
}

/// All bytes before the tensor data, and the number of data bytes.
fn header(path: &Path, planned: &[NewTensor]) -> Result<(Vec<u8>, u64), CheckpointError> {
    let mut infos = Vec::with_capacity(planned.len());
    let mut offset = 0_usize;
    for new in planned {
        let end = new.n_bytes().and_then(|n| offset.checked_add(n));
        let end = end.ok_or_else(|| CheckpointError::SizeOverflow {
            path: path.to_owned(),
            tensor: new.name.clone(),
            shape: new.shape.iter().map(|&dim| dim as u64).collect(),
        })?;
        let info = TensorInfo {
            dtype: new.dtype.safetensors(),
            shape: new.shape.clone(),
            data_offsets: (offset, end),
        };
        infos.push((new.name.clone(), info));
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
