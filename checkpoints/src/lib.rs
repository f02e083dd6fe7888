//! Reads and writes model files in host memory: base weights, adapters, and the checkpoints of a
//! run.
//!
//! Read the modules in this order. [`weights`] opens safetensors and GGUF, and reads one tensor at
//! a time. [`model_files`] adds the model's config, tokenizer and chat template. [`adapter`] reads
//! and writes PEFT directories and GGUF adapters, and checks their compatibility with other
//! programs. [`merged`] adds an adapter to its base weights. [`sentence_transformers`] reads and
//! writes encoders. [`run_dir`] manages the checkpoints of one run.
//!
//! Every file may be malicious: sizes are checked before they are used, and a problem is an error
//! that names the file and the fix, never a panic. This crate uses no device.
//!
//! ```
//! use tooltune_checkpoints::digest::sha256_bytes;
//!
//! assert_eq!(sha256_bytes(b"an adapter").len(), 64);
//! ```

pub mod adapter;
pub mod budgets;
pub mod config_types;
pub mod digest;
pub mod error;
pub mod families;
#[cfg(test)]
mod gguf_writer;
pub mod input_files;
pub mod merged;
pub mod model_files;
pub mod prompt_files;
mod regular_file;
pub mod run_dir;
pub mod sentence_transformers;
pub mod weights;

pub use adapter::{Adapter, PeftConfig};
pub use error::CheckpointError;
pub use model_files::{GgufVocabulary, ModelFiles, TokenizerSource};
pub use prompt_files::PromptFiles;
pub use run_dir::{Checkpoint, MetricsFile, RunDir};
pub use weights::{HostTensor, Weights};
