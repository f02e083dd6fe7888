//! Files that hold models: base weights, adapters, and the checkpoints of a run, to and from host memory.
//!
//! In reading order: [`weights`] opens safetensors and GGUF and hands out one tensor at a time;
//! [`model_files`] adds the config, tokenizer and chat template that belong to it; [`adapter`]
//! reads and writes PEFT directories and GGUF adapters and knows what other programs make of them, [`merged`] adds
//! an adapter to its base's weights, [`sentence_transformers`] writes encoders; [`run_dir`] keeps the checkpoints of one run.
//!
//! Every file is taken to be hostile: sizes are checked before they are trusted, and what is
//! wrong is an error that names the file and how to fix it, never a panic. No device here.
//!
//! ```
//! use tooltune_checkpoints::digest::sha256_bytes;
//!
//! assert_eq!(sha256_bytes(b"an adapter").len(), 64);
//! ```

pub mod adapter;
pub mod atomic;
pub mod budgets;
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
