//! Which projections receive adapters, their flat parameter buffer, and their dropout.

mod adapters;
mod dropout;
mod matching;
mod peft;
mod principal;
mod singular;

pub use adapters::{AdapterSlot, Adapters, WholeWeight};
pub use dropout::{DropoutKey, DropoutRate};
pub use matching::{LoraError, adapter_slots, linear_layers, whole_weights};
pub use principal::{principal_factors, take_out};
