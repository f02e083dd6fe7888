//! Writes the header of a GGUF file: metadata and the list of tensors.
//!
//! Writes version 3, little-endian, with the default alignment. Source: ggml-org/ggml
//! `docs/gguf.md`.

use super::float::NewTensor;
use super::gguf::{DEFAULT_ALIGNMENT, MAGIC};

/// Format version that is written.
pub(crate) const VERSION: u32 = 3;

/// A header under construction; metadata and tensors keep the order in which they are added.
#[derive(Debug, Default)]
pub(crate) struct GgufHeader {
    entries: Vec<u8>,
    n_entries: u64,
    tensors: Vec<u8>,
    n_tensors: u64,
    /// Offset of the next tensor, relative to the first.
    offset: u64,
}

fn text_bytes(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes
}

impl GgufHeader {
    fn entry(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.entries.extend(text_bytes(key));
        self.entries.extend(kind.to_le_bytes());
        self.entries.extend(value);
        self.n_entries += 1;
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.entry(key, 6, &value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.entry(key, 8, &text_bytes(value));
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.entry(key, 4, &value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.entry(key, 7, &[u8::from(value)]);
    }

    pub(crate) fn texts<T: AsRef<str>>(&mut self, key: &str, values: &[T]) {
        let bytes = values.iter().flat_map(|value| text_bytes(value.as_ref()));
        self.array(key, 8, values.len(), bytes);
    }

    pub(crate) fn i32s(&mut self, key: &str, values: &[i32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.array(key, 5, values.len(), bytes);
    }

    pub(crate) fn bools(&mut self, key: &str, values: &[bool]) {
        let bytes = values.iter().map(|value| u8::from(*value));
        self.array(key, 7, values.len(), bytes);
    }

    pub(crate) fn f32s(&mut self, key: &str, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.array(key, 6, values.len(), bytes);
    }

    fn array(&mut self, key: &str, kind: u32, n: usize, items: impl Iterator<Item = u8>) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((n as u64).to_le_bytes());
        bytes.extend(items);
        self.entry(key, 9, &bytes);
    }

    /// Adds an entry copied from another file: key, type and value.
    pub(crate) fn raw(&mut self, entry: &[u8]) {
        self.entries.extend(entry);
        self.n_entries += 1;
    }

    /// Adds a floating-point tensor; `None` if its size overflows `usize`.
    pub(crate) fn tensor(&mut self, new: &NewTensor) -> Option<()> {
        let shape: Vec<u64> = new.shape.iter().map(|&dim| dim as u64).collect();
        let gguf_type = new.dtype.format().gguf_type();
        self.place(&new.name, &shape, gguf_type, new.n_bytes()? as u64)
    }

    /// Adds a tensor with `n_bytes` bytes and dimensions `shape`, outermost first.
    pub(crate) fn place(
        &mut self,
        name: &str,
        shape: &[u64],
        gguf_type: u32,
        n_bytes: u64,
    ) -> Option<()> {
        let end = self.offset.checked_add(n_bytes)?;
        let next = end.checked_next_multiple_of(DEFAULT_ALIGNMENT)?;
        self.tensors.extend(text_bytes(name));
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        let innermost_first = shape.iter().rev();
        self.tensors
            .extend(innermost_first.flat_map(|dim| dim.to_le_bytes()));
        self.tensors.extend(gguf_type.to_le_bytes());
        self.tensors.extend(self.offset.to_le_bytes());
        self.n_tensors += 1;
        self.offset = next;
        Some(())
    }

    /// All bytes before the first tensor.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.n_tensors.to_le_bytes());
        bytes.extend(self.n_entries.to_le_bytes());
        bytes.extend(&self.entries);
        bytes.extend(&self.tensors);
        bytes.resize(bytes.len() + padding(bytes.len() as u64).len(), 0);
        bytes
    }

    /// Bytes of all tensors, each with its padding.
    pub(crate) fn n_data_bytes(&self) -> u64 {
        self.offset
    }
}

/// Zeros from a length to the next multiple of the alignment.
pub(crate) fn padding(length: u64) -> &'static [u8] {
    const ZEROS: [u8; DEFAULT_ALIGNMENT as usize] = [0; DEFAULT_ALIGNMENT as usize];
    let n = (DEFAULT_ALIGNMENT - length % DEFAULT_ALIGNMENT) % DEFAULT_ALIGNMENT;
    &ZEROS[..n as usize]
}
