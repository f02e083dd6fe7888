//! The header of a safetensors file: JSON text to the place and format of each tensor.
//!
//! Read here rather than by the `safetensors` crate because that needs the whole file in memory
//! or mapped, and its errors do not name file and tensor. The rules are the crate's: at most
//! 100 MB of header, tensors without gaps or overlaps, nothing behind the last one.

use serde::Deserialize;
use std::collections::BTreeMap;

use super::encoding::{Encoding, Format};
use super::source::SourceFile;
use super::{RowOrder, StoredTensor};
use crate::budgets::SAFETENSORS_HEADER_BYTES;
use crate::error::CheckpointError;

#[derive(Deserialize)]
struct TensorInfo {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Reads and checks the header of `source`, whose index among the model's files is `file_idx`.
pub(super) fn read(
    source: &SourceFile,
    file_idx: usize,
) -> Result<BTreeMap<String, StoredTensor>, CheckpointError> {
    let (infos, data_start) = tensor_infos(source)?;
    let mut spans = Vec::with_capacity(infos.len());
    let mut tensors = BTreeMap::new();
    for (name, info) in infos {
        let tensor = stored_tensor(source, &name, &info, data_start)?;
        spans.push((info.data_offsets, name.clone()));
        tensors.insert(name, StoredTensor { file_idx, ..tensor });
    }
    spans.sort();
    check_spans(source, &spans, data_start)?;
    Ok(tensors)
}

/// Parses the JSON header; returns it with the offset of the first data byte.
fn tensor_infos(
    source: &SourceFile,
) -> Result<(BTreeMap<String, TensorInfo>, u64), CheckpointError> {
    let path = source.path();
    let header_len = header_len(source)?;
    let mut header = vec![0; header_len as usize];
    source.read_at(8, &mut header)?;
    if header.first() != Some(&b'{') {
        return Err(CheckpointError::WrongMagic {
            path: path.to_owned(),
            format: "safetensors",
            found: source.beginning(),
        });
    }
    let not_json =
        |e: serde_json::Error| CheckpointError::malformed(path, "the JSON header", e.to_string());
    let mut fields: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&header).map_err(not_json)?;
    fields.remove("__metadata__");
    let mut infos = BTreeMap::new();
    for (name, value) in fields {
        let info = TensorInfo::deserialize(value).map_err(|e| {
            let at = format!("tensor {} of the header", excerpt(&name));
            CheckpointError::malformed(path, at, excerpt(&e.to_string()))
        })?;
        infos.insert(name, info);
    }
    Ok((infos, 8 + header_len))
}

/// The beginning of a text of the file, which may have the size of the whole header.
fn excerpt(text: &str) -> String {
    const N_CHARACTERS: usize = 200;
    match text.char_indices().nth(N_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn header_len(source: &SourceFile) -> Result<u64, CheckpointError> {
    let truncated = |what: &str, needs| CheckpointError::Truncated {
        path: source.path().to_owned(),
        what: what.to_owned(),
        needs,
        has: source.len(),
    };
    if source.len() < 8 {
        return Err(truncated("the header length", 8));
    }
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > SAFETENSORS_HEADER_BYTES {
        return Err(CheckpointError::WrongMagic {
            path: source.path().to_owned(),
            format: "safetensors",
            found: source.beginning(),
        });
    }
    if 8 + length > source.len() {
        return Err(truncated("the header", 8 + length));
    }
    Ok(length)
}

fn stored_tensor(
    source: &SourceFile,
    name: &str,
    info: &TensorInfo,
    data_start: u64,
) -> Result<StoredTensor, CheckpointError> {
    let path = source.path();
    let (begin, end) = info.data_offsets;
    let at = || format!("tensor {name} of the header");
    if begin > end {
        let problem = format!("data_offsets run backwards, from {begin} to {end}");
        return Err(CheckpointError::malformed(path, at(), problem));
    }
    let overflow = || CheckpointError::SizeOverflow {
        path: path.to_owned(),
        tensor: name.to_owned(),
        shape: info.shape.clone(),
    };
    let n_values = info.shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    let n_values = n_values.ok_or_else(overflow)?;
    let absolute_end = end.checked_add(data_start).ok_or_else(overflow)?;
    if absolute_end > source.len() {
        return Err(CheckpointError::TensorOutsideFile {
            path: path.to_owned(),
            tensor: name.to_owned(),
            end: absolute_end,
            has: source.len(),
        });
    }
    let encoding = match Format::from_safetensors(&info.dtype) {
        Some(format) => {
            let n_bytes = n_values.checked_mul(format.block_bytes() as u64);
            if n_bytes.ok_or_else(overflow)? != end - begin {
                let problem = format!(
                    "shape {:?} of {} does not fill the {} bytes of its data_offsets",
                    info.shape,
                    info.dtype,
                    end - begin
                );
                return Err(CheckpointError::malformed(path, at(), problem));
            }
            Encoding::Read(format)
        }
        None => Encoding::Other(info.dtype.clone()),
    };
    let shape = info
        .shape
        .iter()
        .map(|&d| usize::try_from(d).map_err(|_| overflow()));
    Ok(StoredTensor {
        file_idx: 0,
        offset: data_start + begin,
        shape: shape.collect::<Result<_, _>>()?,
        encoding,
        row_order: RowOrder::AsIs,
    })
}

/// Checks that the sorted spans cover the data without gap or overlap.
fn check_spans(
    source: &SourceFile,
    spans: &[((u64, u64), String)],
    data_start: u64,
) -> Result<(), CheckpointError> {
    let mut covered = 0;
    for ((begin, end), name) in spans {
        if *begin != covered {
            let problem =
                format!("its data begins at {begin} but the tensor before ends at {covered}");
            let at = format!("tensor {name} of the header");
            return Err(CheckpointError::malformed(source.path(), at, problem));
        }
        covered = *end;
    }
    let behind = source.len() - data_start - covered;
    if behind > 0 {
        let problem = format!("{behind} bytes follow the last tensor");
        return Err(CheckpointError::malformed(
            source.path(),
            "the end",
            problem,
        ));
    }
    Ok(())
}
