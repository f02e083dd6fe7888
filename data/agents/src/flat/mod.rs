//! Flattens nested JSON Schemas, and converts arguments between the two forms.
//!
//! A model that writes `customer_address_city` does not need to track brackets. The nested value is
//! restored afterwards, so executors and metrics never see the flat form. Unflattening uses only
//! the mapping and never splits a flat name, because `a_b` may be one key or two.
//!
//! [`FlatSchema`] contains the schema, its mapping and both directions, and [`advise`] decides when
//! flattening is worthwhile. [`flatten_slot_row`] and [`flatten_tool_row`] apply it to rows and
//! return the mapping with which the evaluation undoes it. [`flatten_rows`] applies it while rows
//! are read, and [`FlatDocuments`] applies it to the documents shown to agents.
//!
//! # Source
//!
//! "Why LLMs Suck at Calling APIs (And How Flat Schemas Fix It)", DEV Community. Its own code,
//! [`flatten_minimal`], drops `required`, overwrites colliding names and leaves arrays nested.

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
pub use report::{FlattenReport, NestedReason, NestedSchema, UnflattenReport};
pub use rows::{FlatSlotRow, FlattenWhen, NestedCompletion, RowFlattening, flatten_slot_row};
pub use tool_rows::{FlatToolRow, flatten_tool_row};
