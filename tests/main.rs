//! Everything that crosses crates, in reading order: numbers against PyTorch and PEFT first.

mod parity;
mod runs;
mod support;
