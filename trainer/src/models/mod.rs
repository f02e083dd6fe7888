//! The networks, without losses and optimizers.

pub mod config;
mod config_fields;
pub mod decoder;
mod decoding;
pub mod families;
mod foreign_keys;
pub mod kv_cache;
pub mod layers;
pub mod linear_attention;
pub mod load;
pub mod minilm;
mod multipliers;
mod nf4;
pub mod node_blocks;
pub mod rotary;

pub use config::DecoderConfig;
pub use decoder::{BatchContext, Decoder};
pub use multipliers::QueryScaling;
pub(crate) use nf4::quantised_dtype;
