//! Shortens long tool outputs while keeping their shape.
//!
//! There are three steps: a JMESPath expression selects the relevant fields ([`filter`]), long
//! lists are sliced and deep objects summarised ([`prune`]), and the remaining text is cut
//! ([`truncate_text`]). Only the last step breaks the JSON, and it appends how much is omitted.
//!
//! Prompts of tool-output QA use all three steps. Prompts of agents use the first two
//! ([`shorten`]), and [`cut_output`](tooltune_apis::cut_output) then cuts them such that they are
//! still valid JSON.
//!
//! # Source
//!
//! "Response Side: Smart Truncation" of the post named in [`crate::flat`], with the defaults and
//! the wording of its section on lists.

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
