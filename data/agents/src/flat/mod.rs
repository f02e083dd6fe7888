//! Flattens nested JSON Schemas, and brings arguments from one form to the other.
//!
//! A model that writes `customer_address_city` keeps no brackets in mind; the nested value is put
//! together afterwards, so an executor or a metric never sees the flat form.
//! The decision to question: the way back goes through the mapping alone. A flat name is never
//! split, because `a_b` may be one key or two.
//!
//! [`FlatSchema`] holds the schema, its mapping and both directions, [`advise`] says where the
//! transform is worth it, and [`flatten_slot_row`] and [`flatten_tool_row`] apply it to rows, with
//! what the evaluation needs to undo it; [`flatten_rows`] does so while rows are read, and
//! [`FlatDocuments`] for the documents that agents are shown.
//!
//! # Source
//!
//! "Why LLMs Suck at Calling APIs (And How Flat Schemas Fix It)", DEV Community. Its own code,
//! [`flatten_minimal`], drops `required`, overwrites names that collide and leaves arrays nested.

mod advice;
mod arguments;
mod documents;
mod error;
mod extent;
mod flatten;
mod inline;
mod minimal;
mod missing;
mod names;
mod reading;
mod report;
mod rows;
mod shape;
#[cfg(test)]
mod tests;
mod tool_rows;

pub use advice::{Advice, Audience, Reason, advise};
pub use documents::FlatDocuments;
pub use error::FlatError;
pub use flatten::{FlatSchema, FlattenOptions};
pub use minimal::flatten_minimal;
pub use names::OnCollision;
pub use reading::flatten_rows;
pub use report::{FlattenReport, Kept, KeptSchema, UnflattenReport};
pub use rows::{FlatSlotRow, FlattenWhen, NestedCompletion, RowFlattening, flatten_slot_row};
pub use tool_rows::{FlatToolRow, flatten_tool_row};
