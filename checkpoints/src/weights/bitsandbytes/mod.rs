//! Weights that bitsandbytes quantised to NF4, as in the `…-bnb-4bit` repositories of the hub.
//!
//! A safetensors file contains such a weight in several tensors: `X.weight` with the codes,
//! `X.weight.absmax`, `X.weight.quant_map`, with nested absmax values also
//! `X.weight.nested_absmax` and `X.weight.nested_quant_map`, and JSON in
//! `X.weight.quant_state.bitsandbytes__nf4`. `parts` checks them and turns them into one tensor.
//! `read` dequantises any range of it, and `write` returns the tensors to store. `layout` contains the arithmetic, and quantises.
//!
//! Values have the bits of `bitsandbytes.functional.dequantize_4bit`, and codes those of
//! `quantize_4bit`.

mod layout;
mod parts;
mod quant_state;
mod read;
mod write;

pub use layout::{NF4_BLOCK, NF4_NESTED_BLOCK, NF4_TABLE, Nf4Absmax, Nf4Tensor, nf4_dynamic_map};
pub(super) use parts::join;
pub(super) use read::{Nf4Reader, StoredNf4};
pub(crate) use write::Nf4Part;

#[cfg(test)]
mod tests;
