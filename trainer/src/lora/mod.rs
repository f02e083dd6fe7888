//! LoRA: adapted projections and the flat buffer of their parameters.

mod adapters;
mod matching;
mod principal;
mod singular;

pub use adapters::{AdapterSlot, Adapters, WholeWeight};
pub use matching::{LoraError, LoraLayout, adapter_slots, linear_layers, whole_weights};
pub use principal::{principal_factors, subtract_initial};
