//! Writes small GGUF files for tests, valid or with one defect.

use std::path::Path;

use crate::weights::gguf_write::{GgufHeader, VERSION, padding};

/// A GGUF file under construction.
pub(crate) struct GgufWriter {
    pub(crate) version: u32,
    header: GgufHeader,
    data: Vec<u8>,
}

impl GgufWriter {
    pub(crate) fn new() -> GgufWriter {
        GgufWriter {
            version: VERSION,
            header: GgufHeader::default(),
            data: Vec::new(),
        }
    }

    /// A model of `architecture` with one block, hidden size 8, two heads of size 4 and four
    /// tokens. All values are f32 zeros.
    pub(crate) fn tiny(architecture: &str) -> GgufWriter {
        GgufWriter::tiny_with(architecture, "gpt2", &["<s>", "</s>", "a", "b"])
    }

    /// Like [`Self::tiny`], with a vocabulary of type `model` and these four tokens.
    pub(crate) fn tiny_with(architecture: &str, model: &str, tokens: &[&str; 4]) -> GgufWriter {
        let key = |name: &str| format!("{architecture}.{name}");
        let mut gguf = GgufWriter::new()
            .text("general.architecture", architecture)
            .u32(&key("block_count"), 1)
            .u32(&key("context_length"), 64)
            .u32(&key("embedding_length"), 8)
            .u32(&key("feed_forward_length"), 8)
            .u32(&key("attention.head_count"), 2)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .text("tokenizer.ggml.model", model)
            .texts("tokenizer.ggml.tokens", tokens)
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

    pub(crate) fn u32(mut self, key: &str, value: u32) -> GgufWriter {
        self.header.u32(key, value);
        self
    }

    pub(crate) fn f32(mut self, key: &str, value: f32) -> GgufWriter {
        self.header.f32(key, value);
        self
    }

    pub(crate) fn text(mut self, key: &str, value: &str) -> GgufWriter {
        self.header.text(key, value);
        self
    }

    pub(crate) fn texts(mut self, key: &str, values: &[&str]) -> GgufWriter {
        self.header.texts(key, values);
        self
    }

    pub(crate) fn bool(mut self, key: &str, value: bool) -> GgufWriter {
        self.header.bool(key, value);
        self
    }

    pub(crate) fn i32s(mut self, key: &str, values: &[i32]) -> GgufWriter {
        self.header.i32s(key, values);
        self
    }

    /// Adds a tensor with the bytes `data`. The outermost dimension of `shape` is first.
    pub(crate) fn tensor(
        mut self,
        name: &str,
        shape: &[u64],
        gguf_type: u32,
        data: Vec<u8>,
    ) -> GgufWriter {
        let n_bytes = data.len() as u64;
        self.header.place(name, shape, gguf_type, n_bytes).unwrap();
        self.data.extend(data);
        self.data.extend(padding(n_bytes));
        self
    }

    pub(crate) fn f32_tensor(self, name: &str, shape: &[u64]) -> GgufWriter {
        let n_values = shape.iter().product::<u64>() as usize;
        self.tensor(name, shape, 0, vec![0; n_values * 4])
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.bytes();
        bytes[4..8].copy_from_slice(&self.version.to_le_bytes());
        bytes.extend(&self.data);
        bytes
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}
