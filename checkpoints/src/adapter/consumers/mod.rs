//! What each program that loads adapters makes of one: which modules it applies, with which
//! scaling, and what it refuses.
//!
//! The programs read different parts of `adapter_config.json`, and most pass over what they do
//! not read, so that one adapter can be another function elsewhere. [`peft_rules`] is the function
//! that was trained; the others are compared with it in [`compatibility`].

mod compatibility;
mod peft;
mod servers;
mod verdict;

pub(super) use peft::ALL_LINEAR;

pub use compatibility::{Compatibility, CompatibilityRow, compatibility};
pub use peft::{PeftRules, peft_rules};
pub use servers::{VllmLoad, converter_rules, sglang_rules, vllm_rules};
pub use verdict::{Consumer, Verdict};

/// The output layer, to which some programs grant no adapter.
const HEAD: &str = "lm_head";

#[cfg(test)]
mod tests;
