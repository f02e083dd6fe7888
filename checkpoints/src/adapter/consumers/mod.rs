//! How each program loads adapters: the modules it applies, the scaling it uses, and what it
//! refuses.
//!
//! The programs use different parts of `adapter_config.json`, and most ignore the rest, so the same
//! adapter can compute different functions in them. [`peft_rules`] defines the trained function;
//! [`compatibility`] compares the others with it.

mod compatibility;
mod peft;
mod servers;
mod verdict;

pub(super) use peft::ALL_LINEAR;

pub use compatibility::{Compatibility, CompatibilityRow, ServedBase, compatibility};
pub use peft::{PeftRules, peft_rules};
pub use servers::{VllmLoad, converter_rules, sglang_rules, vllm_rules};
pub use verdict::{Consumer, Verdict};

/// The output layer. Some programs do not support adapters of it.
const HEAD: &str = "lm_head";

#[cfg(test)]
mod tests;
