//! Long outputs of tools to short ones that keep their shape.
//!
//! Three steps in this order: a JMESPath expression keeps the fields that matter ([`filter`]),
//! long lists are sliced and deep objects summarised ([`prune`]), and what is still too long is cut
//! ([`truncate_text`]). Only the last step breaks JSON, and says how much it left out.
//!
//! Prompts of agents are cut by [`cut_output`](crate::tools::cut_output), which always leaves JSON;
//! these steps are for outputs whose shape counts more than their first characters.
//!
//! # Source
//!
//! "Response Side: Smart Truncation" of the post named in [`crate::flat`], with the defaults and
//! the wording of the section on lists.

mod error;
mod filter;
mod key_order;
mod prune;
#[cfg(test)]
mod tests;
mod text;

pub use error::FilterError;
pub use filter::filter;
pub use prune::{PruneOptions, Scalars, prune};
pub use text::{TruncationOptions, truncate_output, truncate_text};
