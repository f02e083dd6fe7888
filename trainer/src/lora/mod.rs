//! Which projections receive adapters, their flat parameter buffer, and their dropout.

mod adapters;
mod dropout;
mod matching;
mod peft;

pub use adapters::{AdapterSlot, Adapters};
pub use dropout::{DropoutKey, DropoutRate};
pub use matching::{LoraError, adapter_slots, linear_layers};
