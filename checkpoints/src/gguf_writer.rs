//! Writes small GGUF files for tests, well-formed or with one thing wrong.

use std::path::Path;

/// A GGUF file in the making.
pub(crate) struct GgufWriter {
    pub(crate) version: u32,
    entries: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes
}

impl GgufWriter {
    pub(crate) fn new() -> GgufWriter {
        GgufWriter {
            version: 3,
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// A model of architecture `architecture` with one block of hidden size 8, two heads of
    /// width 4, four tokens, all f32 zeros.
    pub(crate) fn tiny(architecture: &str) -> GgufWriter {
        let key = |name: &str| format!("{architecture}.{name}");
        let mut gguf = GgufWriter::new()
            .text("general.architecture", architecture)
            .u32(&key("block_count"), 1)
            .u32(&key("context_length"), 64)
            .u32(&key("embedding_length"), 8)
            .u32(&key("feed_forward_length"), 8)
            .u32(&key("attention.head_count"), 2)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .text("tokenizer.ggml.model", "gpt2")
            .texts("tokenizer.ggml.tokens", &["<s>", "</s>", "a", "b"])
            .f32_tensor("token_embd.weight", &[4, 8])
            .f32_tensor("output_norm.weight", &[8]);
        for name in ["attn_norm", "ffn_norm"] {
            gguf = gguf.f32_tensor(&format!("blk.0.{name}.weight"), &[8]);
        }
        for name in [
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        ] {
            gguf = gguf.f32_tensor(&format!("blk.0.{name}.weight"), &[8, 8]);
        }
        gguf
    }

    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> GgufWriter {
        let mut bytes = text(key);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        self.entries.push(bytes);
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> GgufWriter {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> GgufWriter {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn text(self, key: &str, value: &str) -> GgufWriter {
        self.entry(key, 8, &text(value))
    }

    pub(crate) fn texts(self, key: &str, values: &[&str]) -> GgufWriter {
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| text(value)));
        self.entry(key, 9, &bytes)
    }

    /// Adds a tensor of `shape`, outermost first, whose bytes are `data`.
    pub(crate) fn tensor(
        mut self,
        name: &str,
        shape: &[u64],
        (gguf_type, data): (u32, Vec<u8>),
    ) -> GgufWriter {
        let dims = shape.iter().rev().copied().collect();
        self.tensors.push((name.to_owned(), dims, gguf_type, data));
        self
    }

    pub(crate) fn f32_tensor(self, name: &str, shape: &[u64]) -> GgufWriter {
        let n_values = shape.iter().product::<u64>() as usize;
        self.tensor(name, shape, (0, vec![0; n_values * 4]))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.entries.concat());
        let mut data = Vec::new();
        for (name, dims, gguf_type, tensor) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((dims.len() as u32).to_le_bytes());
            bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
            bytes.extend(gguf_type.to_le_bytes());
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(tensor);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        bytes
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}
