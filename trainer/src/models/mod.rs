//! Networks only: no loss, no files of their own, no optimizer.

pub mod config;
pub mod decoder;
mod foreign_keys;
pub mod kv_cache;
pub mod load;
pub mod minilm;

pub use config::ModelConfig;
pub use decoder::{BatchContext, Decoder};
