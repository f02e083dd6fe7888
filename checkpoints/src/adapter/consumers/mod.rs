//! How each program loads adapters: which modules it applies, which scaling it uses, and what it
//! refuses.
//!
//! The programs use different fields of `adapter_config.json`, and most ignore the other fields.
//! The same adapter can therefore compute different functions in them. [`peft_rules`] defines the
//! trained function; [`compatibility`] compares the others with it.

mod compatibility;
mod peft;
mod servers;
mod verdict;

pub(super) use peft::ALL_LINEAR;

pub use compatibility::{Compatibility, CompatibilityRow, ServedBase, compatibility};
pub use peft::{PeftRules, peft_rules};
pub use servers::{VllmLoad, vllm_rules};
pub use verdict::{Consumer, Verdict};

/// The output layer. Some programs do not support adapters on it.
const HEAD: &str = "lm_head";

#[cfg(test)]
mod tests;
