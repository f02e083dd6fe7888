//! Shortens long outputs of tools so that they keep their shape.
//!
//! Three steps in this order: a JMESPath expression keeps the fields that matter ([`filter`]),
//! long lists are sliced and deep objects summarised ([`prune`]), and what is still too long is cut
//! ([`truncate_text`]). Only the last step breaks JSON, and says how much it left out.
//!
//! Prompts of tool-output QA take all three; those of agents take the first two ([`shorten`]) and
//! are then cut by [`cut_output`](tooltune_rows::tools::cut_output), which always leaves JSON.
//!
//! # Source
//!
//! "Response Side: Smart Truncation" of the post named in [`crate::flat`], with the defaults and
//! the wording of the section on lists.

mod error;
mod filter;
mod key_order;
mod prune;
mod shape;
#[cfg(test)]
mod tests;
mod text;

pub use error::FilterError;
pub use filter::{check_filter, filter};
pub use prune::{MAX_DEPTH, MAX_ITEMS, PruneOptions, Scalars, prune};
pub use shape::{ShapeOptions, shorten, shorten_or_explain};
pub use text::{MAX_CHARS, TruncationOptions, cut_text, truncate_output, truncate_text};
