//! Parses the header of a GGUF file: its metadata, and the offset and data type of each tensor.
//!
//! Supports versions 2 and 3, little-endian. Every length is compared with the remaining bytes
//! before anything is allocated, so a corrupt header causes an error, not a large allocation.
//! Source: ggml-org/ggml `docs/gguf.md`.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;

use super::encoding::{Format, GGUF_TYPES};
pub(crate) use super::gguf_metadata::{GgufMetadata, GgufValue};
use super::source::SourceFile;
use super::{HostTensor, decode_at};
use crate::budgets::{GGUF_HEADER_BYTES, GGUF_ITEMS, TENSORS};
use crate::error::CheckpointError;

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// The architecture of a model, or of the base model of an adapter.
pub(crate) const ARCHITECTURE: &str = "general.architecture";
/// Divisors of rotary frequencies; Hugging Face stores them in the config, not as a tensor.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";
/// Divisors for prompts within the pre-training context.
pub(crate) const SHORT_FACTORS: &str = "rope_factors_short.weight";
/// Divisors for prompts beyond the pre-training context.
pub(crate) const LONG_FACTORS: &str = "rope_factors_long.weight";
/// The three tensors with divisors of rotary frequencies.
pub(super) const ROPE_TENSORS: [&str; 3] = [ROPE_FREQS, SHORT_FACTORS, LONG_FACTORS];
const MAX_DIMS: u32 = 4;
/// The format allows arrays of arrays; no known file uses them.
const MAX_NESTING: usize = 4;

/// A tensor in the header, with the outermost dimension first.
#[derive(Debug)]
pub(super) struct GgufTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) format: Format,
    /// Offset from the beginning of the file, in bytes.
    pub(super) offset: u64,
    n_bytes: u64,
}

/// The position of a metadata entry (key, type and value) in its file.
#[derive(Debug)]
struct EntrySpan {
    key: String,
    bytes: Range<u64>,
}

/// A GGUF file with a parsed and checked header.
#[derive(Debug)]
pub(crate) struct GgufFile {
    pub(super) source: SourceFile,
    pub(crate) metadata: GgufMetadata,
    entries: Vec<EntrySpan>,
    pub(super) tensors: Vec<GgufTensor>,
    /// End of the last tensor including its padding.
    end: u64,
}

impl GgufFile {
    /// Reads the header of `path`.
    pub(crate) fn open(path: &Path) -> Result<GgufFile, CheckpointError> {
        let source = SourceFile::open(path)?;
        let mut header = HeaderReader {
            reader: BufReader::new(source.file()),
            source: &source,
            position: 0,
            n_items: 0,
        };
        let (n_tensors, n_entries) = header.counts()?;
        let (mut entries, mut spans) = (BTreeMap::new(), Vec::new());
        for _ in 0..n_entries {
            let start = header.position;
            let key = header.text("a metadata key")?;
            let kind = header.u32("a metadata type")?;
            let value = header.value(kind, &key, 0)?;
            spans.push(EntrySpan {
                key: key.clone(),
                bytes: start..header.position,
            });
            if entries.insert(key.clone(), value).is_some() {
                return Err(CheckpointError::malformed(
                    path,
                    key,
                    "the key occurs twice",
                ));
            }
        }
        let metadata = GgufMetadata::new(path, entries);
        refuse_split(&metadata)?;
        let infos = (0..n_tensors)
            .map(|_| header.tensor_info())
            .collect::<Result<Vec<_>, _>>()?;
        let (data_start, alignment) = data_start(&metadata, header.position)?;
        let mut tensors = Vec::with_capacity(infos.len());
        for info in infos {
            info.check_aligned(path, alignment)?;
            tensors.push(info.locate(&source, data_start)?);
        }
        refuse_overlaps(path, &tensors)?;
        let ends = tensors.iter().map(|tensor| tensor.offset + tensor.n_bytes);
        let data_end = ends.max().unwrap_or(data_start);
        let end = data_end
            .checked_next_multiple_of(alignment)
            .unwrap_or(data_end);
        Ok(GgufFile {
            metadata,
            entries: spans,
            tensors,
            end: end.min(source.len()),
            source,
        })
    }
}

impl GgufFile {
    /// End of the content that the header describes; the file may be longer.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether the file has a tensor with this GGUF name.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.shape(name).is_some()
    }

    /// Dimensions of the tensor with this GGUF name.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors
            .iter()
            .find(|tensor| tensor.name == name)
            .map(|t| t.shape.as_slice())
    }

    /// Tensor names, in file order.
    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// Reads the tensor with this GGUF name without reordering; `None` if there is none.
    pub(crate) fn read_f32(&self, name: &str) -> Result<Option<HostTensor>, CheckpointError> {
        let Some(tensor) = self.tensors.iter().find(|tensor| tensor.name == name) else {
            return Ok(None);
        };
        let values = decode_at(&self.source, tensor.offset, &tensor.shape, tensor.format)?;
        Ok(Some(HostTensor {
            shape: tensor.shape.clone(),
            values,
        }))
    }

    /// The metadata entries in file order: each key with the raw bytes of key, type and value.
    pub(crate) fn raw_entries(
        &self,
    ) -> impl Iterator<Item = Result<(&str, Vec<u8>), CheckpointError>> {
        self.entries.iter().map(|span| {
            let n_bytes = (span.bytes.end - span.bytes.start) as usize;
            let mut bytes = vec![0; n_bytes];
            self.source.read_at(span.bytes.start, &mut bytes)?;
            Ok((span.key.as_str(), bytes))
        })
    }

    /// The divisors of rotary frequencies, highest frequency first, if the file has any.
    pub(crate) fn rope_divisors(&self) -> Result<Option<Vec<f32>>, CheckpointError> {
        Ok(self.read_f32(ROPE_FREQS)?.map(|tensor| tensor.values))
    }

    /// The divisors for short and for long prompts, if the file has them.
    pub(crate) fn rope_factors(&self) -> Result<Option<[Vec<f32>; 2]>, CheckpointError> {
        let short = self.read_f32(SHORT_FACTORS)?;
        let long = self.read_f32(LONG_FACTORS)?;
        match (short, long) {
            (Some(short), Some(long)) => Ok(Some([short.values, long.values])),
            (None, None) => Ok(None),
            (short, _) => {
                let absent = if short.is_none() {
                    SHORT_FACTORS
                } else {
                    LONG_FACTORS
                };
                let problem = "the tensor is missing, but the other one is present";
                Err(CheckpointError::malformed(
                    self.metadata.path(),
                    absent,
                    problem,
                ))
            }
        }
    }
}

fn refuse_split(metadata: &GgufMetadata) -> Result<(), CheckpointError> {
    let n_parts = metadata.unsigned("split.count")?.unwrap_or(1);
    if n_parts <= 1 {
        return Ok(());
    }
    Err(CheckpointError::Unsupported {
        path: metadata.path().to_owned(),
        feature: format!("a model split into {n_parts} GGUF files"),
        fix: "join them with llama-gguf-split --merge",
    })
}

/// Refuses two tensors that share bytes, because the header of one must be wrong.
fn refuse_overlaps(path: &Path, tensors: &[GgufTensor]) -> Result<(), CheckpointError> {
    let mut by_offset: Vec<&GgufTensor> =
        tensors.iter().filter(|sized| sized.n_bytes > 0).collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if second.offset < first.offset + first.n_bytes {
            let problem = format!(
                "it begins at byte {} and overlaps tensor {}, which ends at byte {}",
                second.offset,
                first.name,
                first.offset + first.n_bytes
            );
            let location = format!("tensor {}", second.name);
            return Err(CheckpointError::malformed(path, location, problem));
        }
    }
    Ok(())
}

/// The first multiple of the alignment at or after the end of the header, and the alignment.
fn data_start(metadata: &GgufMetadata, header_end: u64) -> Result<(u64, u64), CheckpointError> {
    let alignment = metadata
        .unsigned("general.alignment")?
        .unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(metadata.type_error("general.alignment", "a power of two"));
    }
    let start = header_end
        .checked_next_multiple_of(alignment)
        .ok_or_else(|| metadata.type_error("general.alignment", "smaller than the file"))?;
    Ok((start, alignment))
}

struct TensorInfo {
    name: String,
    /// Innermost dimension first, as in the file.
    dims: Vec<u64>,
    gguf_type: u32,
    relative_offset: u64,
}

impl TensorInfo {
    fn check_aligned(&self, path: &Path, alignment: u64) -> Result<(), CheckpointError> {
        if self.relative_offset.is_multiple_of(alignment) {
            return Ok(());
        }
        let problem = format!(
            "its offset {} is not aligned: it is not a multiple of {alignment} (general.alignment)",
            self.relative_offset
        );
        let location = format!("tensor {}", self.name);
        Err(CheckpointError::malformed(path, location, problem))
    }

    /// Checks the tensor's size and offset against the file.
    fn locate(self, source: &SourceFile, data_start: u64) -> Result<GgufTensor, CheckpointError> {
        let path = source.path();
        let format = Format::from_gguf(self.gguf_type).map_err(|dtype| {
            CheckpointError::UnsupportedDtype {
                path: path.to_owned(),
                tensor: self.name.clone(),
                dtype,
                supported: GGUF_TYPES,
            }
        })?;
        let shape: Vec<u64> = self.dims.iter().rev().copied().collect();
        let overflow = || CheckpointError::SizeOverflow {
            path: path.to_owned(),
            tensor: self.name.clone(),
            shape: shape.clone(),
        };
        let row_len = self.dims.first().copied().unwrap_or(1);
        if !row_len.is_multiple_of(format.block_values() as u64) {
            let problem = format!(
                "rows of {row_len} values do not divide into blocks of {}",
                format.block_values()
            );
            return Err(CheckpointError::malformed(
                path,
                format!("tensor {}", self.name),
                problem,
            ));
        }
        let n_values = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        let n_blocks = n_values.ok_or_else(overflow)? / format.block_values() as u64;
        let n_bytes = n_blocks
            .checked_mul(format.block_bytes() as u64)
            .ok_or_else(overflow)?;
        let offset = data_start
            .checked_add(self.relative_offset)
            .ok_or_else(overflow)?;
        let end = offset.checked_add(n_bytes).ok_or_else(overflow)?;
        if end > source.len() {
            return Err(CheckpointError::TensorOutsideFile {
                path: path.to_owned(),
                tensor: self.name,
                end,
                has: source.len(),
            });
        }
        let shape = shape
            .iter()
            .map(|&d| usize::try_from(d).map_err(|_| overflow()));
        let shape = shape.collect::<Result<_, _>>()?;
        Ok(GgufTensor {
            shape,
            format,
            offset,
            n_bytes,
            name: self.name,
        })
    }
}

struct HeaderReader<'a> {
    reader: BufReader<&'a std::fs::File>,
    source: &'a SourceFile,
    /// Number of bytes read so far.
    position: u64,
    /// Number of array items read so far.
    n_items: u64,
}

impl HeaderReader<'_> {
    /// Checks magic and version; returns the numbers of tensors and metadata entries.
    fn counts(&mut self) -> Result<(u64, u64), CheckpointError> {
        let path = self.source.path();
        if self.bytes::<4>("the magic number")? != *MAGIC {
            return Err(CheckpointError::WrongMagic {
                path: path.to_owned(),
                format: "GGUF",
                first_bytes: self.source.beginning(),
            });
        }
        let version = self.u32("the version")?;
        if !(2..=3).contains(&version) {
            let big_endian = (2..=3).contains(&version.swap_bytes());
            return Err(CheckpointError::UnsupportedVersion {
                path: path.to_owned(),
                format: "GGUF",
                version,
                supported: "2 and 3, little-endian",
                hint: if big_endian {
                    "; the file is big-endian, convert it with gguf-convert-endian"
                } else {
                    "; convert the model again with a current llama.cpp"
                },
            });
        }
        // A tensor info needs at least 24 bytes, a metadata entry at least 13.
        let n_tensors = self.count(24, "the list of tensors")?;
        let n_entries = self.count(13, "the metadata entries")?;
        if n_tensors > TENSORS {
            let problem =
                format!("{n_tensors} exceeds the limit of {TENSORS} (TENSORS in docs/limits.md)");
            let location = "the number of tensors";
            return Err(CheckpointError::malformed(path, location, problem));
        }
        self.count_items(n_entries, "the metadata entries")?;
        Ok((n_tensors, n_entries))
    }

    /// Reads an item count, and checks that the file has room for this many items of at least
    /// `item_bytes` bytes.
    fn count(&mut self, item_bytes: u64, part: &str) -> Result<u64, CheckpointError> {
        let n = self.u64(part)?;
        self.check_room(n.saturating_mul(item_bytes), part)?;
        Ok(n)
    }

    fn check_room(&self, n_bytes: u64, part: &str) -> Result<(), CheckpointError> {
        let needs = self.position.saturating_add(n_bytes);
        let path = self.source.path();
        if needs > self.source.len() {
            return Err(CheckpointError::Truncated {
                path: path.to_owned(),
                part: part.to_owned(),
                needs,
                has: self.source.len(),
            });
        }
        if needs > GGUF_HEADER_BYTES {
            let problem = format!(
                "the header has more than {GGUF_HEADER_BYTES} bytes (GGUF_HEADER_BYTES in docs/limits.md)"
            );
            return Err(CheckpointError::malformed(path, part, problem));
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8], part: &str) -> Result<(), CheckpointError> {
        self.check_room(buffer.len() as u64, part)?;
        let path = self.source.path();
        self.reader
            .read_exact(buffer)
            .map_err(CheckpointError::io("read", path))?;
        self.position += buffer.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, part: &str) -> Result<[u8; N], CheckpointError> {
        let mut buffer = [0; N];
        self.fill(&mut buffer, part)?;
        Ok(buffer)
    }

    fn u32(&mut self, part: &str) -> Result<u32, CheckpointError> {
        self.bytes(part).map(u32::from_le_bytes)
    }

    fn u64(&mut self, part: &str) -> Result<u64, CheckpointError> {
        self.bytes(part).map(u64::from_le_bytes)
    }

    fn text(&mut self, part: &str) -> Result<String, CheckpointError> {
        let n = self.count(1, part)?;
        let mut buffer = vec![0; n as usize];
        self.fill(&mut buffer, part)?;
        String::from_utf8(buffer).map_err(|e| {
            let location = format!("byte {}, {part}", self.position - n);
            CheckpointError::malformed(self.source.path(), location, e.to_string())
        })
    }

    /// Reads the value of `key` with type number `kind`.
    fn value(
        &mut self,
        kind: u32,
        key: &str,
        nesting: usize,
    ) -> Result<GgufValue, CheckpointError> {
        Ok(match kind {
            0 => GgufValue::Unsigned(self.bytes::<1>(key)?[0].into()),
            1 => GgufValue::Signed(i8::from_le_bytes(self.bytes(key)?).into()),
            2 => GgufValue::Unsigned(u16::from_le_bytes(self.bytes(key)?).into()),
            3 => GgufValue::Signed(i16::from_le_bytes(self.bytes(key)?).into()),
            4 => GgufValue::Unsigned(self.u32(key)?.into()),
            5 => GgufValue::Signed(i32::from_le_bytes(self.bytes(key)?).into()),
            6 => GgufValue::F32(f32::from_le_bytes(self.bytes(key)?)),
            7 => GgufValue::Bool(self.bytes::<1>(key)?[0] != 0),
            8 => GgufValue::Text(self.text(key)?),
            9 if nesting < MAX_NESTING => self.array(key, nesting)?,
            10 => GgufValue::Unsigned(self.u64(key)?),
            11 => GgufValue::Signed(i64::from_le_bytes(self.bytes(key)?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.bytes(key)?)),
            _ => {
                let problem = format!("unknown metadata type {kind} at byte {}", self.position);
                return Err(CheckpointError::malformed(self.source.path(), key, problem));
            }
        })
    }

    fn array(&mut self, key: &str, nesting: usize) -> Result<GgufValue, CheckpointError> {
        let kind = self.u32(key)?;
        let min_item_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            _ => 8,
        };
        let n = self.count(min_item_bytes, key)?;
        self.count_items(n, key)?;
        let items = (0..n).map(|_| self.value(kind, key, nesting + 1));
        Ok(GgufValue::Array(items.collect::<Result<_, _>>()?))
    }

    /// Adds `n` to the number of metadata items.
    fn count_items(&mut self, n: u64, part: &str) -> Result<(), CheckpointError> {
        self.n_items += n;
        if self.n_items > GGUF_ITEMS {
            let problem = format!(
                "its metadata lists more than {GGUF_ITEMS} items (GGUF_ITEMS in docs/limits.md)"
            );
            return Err(CheckpointError::malformed(
                self.source.path(),
                part,
                problem,
            ));
        }
        Ok(())
    }

    fn tensor_info(&mut self) -> Result<TensorInfo, CheckpointError> {
        let name = self.text("a tensor name")?;
        let n_dims = self.u32(&name)?;
        if n_dims > MAX_DIMS {
            let problem = format!("{n_dims} dimensions, more than {MAX_DIMS}");
            let location = format!("tensor {name}");
            return Err(CheckpointError::malformed(
                self.source.path(),
                location,
                problem,
            ));
        }
        let dims = (0..n_dims)
            .map(|_| self.u64(&name))
            .collect::<Result<_, _>>()?;
        let gguf_type = self.u32(&name)?;
        let relative_offset = self.u64(&name)?;
        Ok(TensorInfo {
            name,
            dims,
            gguf_type,
            relative_offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf_writer::GgufWriter;

    /// The tiny model with the offset of a tensor's data changed.
    fn with_offset(tensor: &str, change: impl Fn(u64) -> u64) -> Result<GgufFile, CheckpointError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let mut bytes = GgufWriter::tiny("llama").bytes();
        let name = bytes
            .windows(tensor.len())
            .position(|at| at == tensor.as_bytes());
        let dims = name.unwrap() + tensor.len();
        let n_dims = u32::from_le_bytes(bytes[dims..dims + 4].try_into().unwrap()) as usize;
        let at = dims + 4 + 8 * n_dims + 4;
        let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        bytes[at..at + 8].copy_from_slice(&change(offset).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        GgufFile::open(&path)
    }

    #[test]
    fn bytes_after_the_last_tensor_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let bytes = GgufWriter::tiny("llama").bytes();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(GgufFile::open(&path).unwrap().end(), bytes.len() as u64);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        // A sparse file uses no disk space.
        file.set_len(1 << 40).unwrap();
        let start = std::time::Instant::now();
        assert_eq!(GgufFile::open(&path).unwrap().end(), bytes.len() as u64);
        let digest = crate::input_files::FileDigest::compute(&path, None).unwrap();
        assert_eq!(digest.sha256, crate::digest::sha256_bytes(&bytes));
        assert_eq!(digest.bytes, bytes.len() as u64);
        let recomputed = crate::input_files::FileDigest::compute(&path, Some(&digest));
        assert_eq!(recomputed.unwrap(), digest);
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }

    #[test]
    fn tensors_must_be_aligned_and_disjoint() {
        let name = "blk.0.attn_q.weight";
        assert!(with_offset(name, |offset| offset).is_ok());
        let error = with_offset(name, |offset| offset + 3)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(name) && error.contains("is not aligned"),
            "{error}"
        );
        let error = with_offset(name, |offset| offset + 32)
            .unwrap_err()
            .to_string();
        let expected = "overlaps tensor blk.0.attn_q.weight";
        assert!(error.contains(expected), "{error}");
        let error = with_offset(name, |_| 0).unwrap_err().to_string();
        assert!(error.contains("overlaps tensor"), "{error}");
    }
}
