//! Parses the header of a safetensors file: the offset and data type of each tensor.
//!
//! The `safetensors` crate is not used because it needs the whole file in memory or mapped, and its
//! errors do not name file and tensor. The rules are the same as in the crate: no gaps or overlaps
//! between tensors, and no bytes after the last one. The header limit is a third of the crate's
//! limit.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::encoding::{Encoding, Format};
use super::source::SourceFile;
use super::{HeadOrder, StoredTensor, StoredValue};
use crate::budgets::{SAFETENSORS_HEADER_BYTES, TENSOR_DIMENSIONS, TENSORS};
use crate::error::CheckpointError;

#[derive(Deserialize)]
struct TensorInfo {
    dtype: String,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

/// At most [`TENSOR_DIMENSIONS`] numbers, regardless of the file.
struct Dimensions(Vec<u64>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence of whole numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Dimensions, A::Error> {
                let mut dimensions = Vec::new();
                while let Some(dimension) = items.next_element()? {
                    if dimensions.len() == TENSOR_DIMENSIONS {
                        let problem = format!(
                            "more than {TENSOR_DIMENSIONS} dimensions (TENSOR_DIMENSIONS in docs/limits.md)"
                        );
                        return Err(A::Error::custom(problem));
                    }
                    dimensions.push(dimension);
                }
                Ok(Dimensions(dimensions))
            }
        }
        deserializer.deserialize_seq(Shape)
    }
}

/// Deserialises the tensors of a header one by one and skips other keys. Stores the name of the
/// current tensor for errors.
struct Header<'a> {
    current: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for Header<'_> {
    type Value = BTreeMap<String, TensorInfo>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut infos = BTreeMap::new();
        while let Some(name) = fields.next_key::<String>()? {
            if name == "__metadata__" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            if infos.len() as u64 == TENSORS {
                return Err(A::Error::custom(format!(
                    "more than {TENSORS} tensors (TENSORS in docs/limits.md)"
                )));
            }
            *self.current = Some(name.clone());
            let info = fields.next_value()?;
            if infos.insert(name, info).is_some() {
                return Err(A::Error::custom("the name occurs twice"));
            }
            *self.current = None;
        }
        Ok(infos)
    }
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

/// Parses the JSON header and returns it with the offset of the first data byte.
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
            first_bytes: source.beginning(),
        });
    }
    let mut current = None;
    let mut json = serde_json::Deserializer::from_slice(&header);
    let infos = json.deserialize_map(Header {
        current: &mut current,
    });
    let infos = infos.and_then(|infos| json.end().map(|()| infos));
    let infos = infos.map_err(|e| {
        let location = match &current {
            Some(name) => format!("tensor {} of the header", truncate_text(name)),
            None => "the JSON header".to_owned(),
        };
        CheckpointError::malformed(path, location, truncate_text(&e.to_string()))
    })?;
    Ok((infos, 8 + header_len))
}

/// The beginning of a string from the file, because the string may be as long as the header.
fn truncate_text(text: &str) -> String {
    const N_CHARACTERS: usize = 200;
    match text.char_indices().nth(N_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn header_len(source: &SourceFile) -> Result<u64, CheckpointError> {
    let truncated = |part: &str, needs| CheckpointError::Truncated {
        path: source.path().to_owned(),
        part: part.to_owned(),
        needs,
        has: source.len(),
    };
    if source.len() < 8 {
        return Err(truncated("the header length", 8));
    }
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    // A file with such a length is a safetensors file only if its header begins with `{`.
    if length > SAFETENSORS_HEADER_BYTES && length <= source.len() - 8 {
        let mut first = [0];
        source.read_at(8, &mut first)?;
        if first == *b"{" {
            let problem = format!(
                "its {length} bytes exceed the limit of {SAFETENSORS_HEADER_BYTES} \
                 (SAFETENSORS_HEADER_BYTES in docs/limits.md)"
            );
            return Err(CheckpointError::malformed(
                source.path(),
                "the JSON header",
                problem,
            ));
        }
    }
    if length > SAFETENSORS_HEADER_BYTES {
        return Err(CheckpointError::WrongMagic {
            path: source.path().to_owned(),
            format: "safetensors",
            first_bytes: source.beginning(),
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
    let location = || format!("tensor {name} of the header");
    if begin > end {
        let problem = format!("data_offsets run backwards, from {begin} to {end}");
        return Err(CheckpointError::malformed(path, location(), problem));
    }
    let overflow = || CheckpointError::SizeOverflow {
        path: path.to_owned(),
        tensor: name.to_owned(),
        shape: info.shape.0.clone(),
    };
    let n_values = info
        .shape
        .0
        .iter()
        .try_fold(1_u64, |n, &d| n.checked_mul(d));
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
                    info.shape.0,
                    info.dtype,
                    end - begin
                );
                return Err(CheckpointError::malformed(path, location(), problem));
            }
            Encoding::Decodable(format)
        }
        None => Encoding::Unsupported(info.dtype.clone()),
    };
    let shape = info
        .shape
        .0
        .iter()
        .map(|&d| usize::try_from(d).map_err(|_| overflow()));
    Ok(StoredTensor {
        file_idx: 0,
        offset: data_start + begin,
        shape: shape.collect::<Result<_, _>>()?,
        encoding,
        order: HeadOrder::AsIs,
        values: StoredValue::AsIs,
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
                format!("its data begins at {begin} but the previous tensor ends at {covered}");
            let location = format!("tensor {name} of the header");
            return Err(CheckpointError::malformed(source.path(), location, problem));
        }
        covered = *end;
    }
    let n_trailing = source.len() - data_start - covered;
    if n_trailing > 0 {
        let problem = format!("{n_trailing} bytes follow the last tensor");
        return Err(CheckpointError::malformed(
            source.path(),
            "the end",
            problem,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The error for a file with this header and no data.
    fn header_error(header: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let length = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&length[..], header.as_bytes()].concat()).unwrap();
        let source = SourceFile::open(&path).unwrap();
        read(&source, 0).unwrap_err().to_string()
    }

    #[test]
    fn a_header_cannot_request_more_than_its_budget() {
        let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        let many: Vec<String> = (0..=TENSORS).map(|i| format!(r#""{i}":{empty}"#)).collect();
        let error = header_error(&format!("{{{}}}", many.join(",")));
        assert!(error.contains("more than 262144 tensors"), "{error}");
        let shape = "0,".repeat(1_000_000);
        let error = header_error(&format!(
            r#"{{"a":{{"dtype":"F32","data_offsets":[0,0],"shape":[{shape}0]}}}}"#
        ));
        assert!(
            error.contains("tensor a") && error.contains("more than 8 dimensions"),
            "{error}"
        );
        let error = header_error(&format!(r#"{{"a":{empty},"a":{empty}}}"#));
        assert!(
            error.contains("tensor a") && error.contains("occurs twice"),
            "{error}"
        );
        let blanks = " ".repeat(SAFETENSORS_HEADER_BYTES as usize);
        let error = header_error(&format!("{{{blanks}}}"));
        assert!(error.contains("exceed the limit of 33554432"), "{error}");
    }
}
