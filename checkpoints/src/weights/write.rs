//! Host tensors to a safetensors file that PyTorch loads.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use super::HostTensor;
use crate::atomic::write_file;
use crate::error::CheckpointError;

/// Writes tensors as f32 with the metadata `{"format": "pt"}`, and syncs the file to disk.
///
/// The same tensors give the same bytes. `path` must not exist; for a file that replaces
/// another, write into a staging directory. Reading back is [`super::Weights::open`].
///
/// # Errors
///
/// - a value is NaN or infinite; nothing is written
/// - a tensor's values do not fill its shape
/// - `path` exists, or cannot be written, for example because the disk is full
pub fn write_tensors<T: Borrow<HostTensor>>(
    path: &Path,
    tensors: &BTreeMap<String, T>,
) -> Result<(), CheckpointError> {
    let mut bytes = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let tensor = tensor.borrow();
        check_values(path, name, tensor)?;
        let little_endian: Vec<u8> = tensor.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        bytes.push(little_endian);
    }
    let mut views = Vec::with_capacity(tensors.len());
    for ((name, tensor), bytes) in tensors.iter().zip(&bytes) {
        let view =
            TensorView::new(Dtype::F32, tensor.borrow().shape.clone(), bytes).map_err(|e| {
                CheckpointError::malformed(path, format!("tensor {name}"), e.to_string())
            })?;
        views.push((name.as_str(), view));
    }
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let file = safetensors::serialize(views, Some(metadata))
        .map_err(|e| CheckpointError::malformed(path, "the header", e.to_string()))?;
    write_file(path, &file)
}

fn check_values(path: &Path, name: &str, tensor: &HostTensor) -> Result<(), CheckpointError> {
    if tensor.shape.iter().product::<usize>() != tensor.values.len() {
        return Err(CheckpointError::ShapeMismatch {
            tensor: name.to_owned(),
            shape: tensor.shape.clone(),
            n_values: tensor.values.len(),
        });
    }
    match tensor.values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(element_idx) => Err(CheckpointError::NonFinite {
            path: path.to_owned(),
            tensor: name.to_owned(),
            element_idx,
            value: tensor.values[element_idx],
        }),
    }
}
