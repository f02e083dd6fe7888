//! API documents and the trajectories that call them, in one form whatever file they came from.
//!
//! A document is what the retriever ranks and the prompt shows; a trajectory is a query, the calls
//! that answer it, and the answer (GOAT, section 3.1.2).
//! The decision to question: a call is known by `tool/api`, because API names alone repeat between
//! tools.

mod catalogue;
mod document;
mod error;
mod fields;
mod import;
mod source;
mod trajectory;
mod views;

pub use catalogue::ApiCatalogue;
pub use document::{ApiDocument, ApiParameter};
pub use error::ToolsError;
pub use import::{
    ApiBankSet, RequestBodies, import_apibank, import_openapi, import_openapi_file,
    import_stabletoolbench,
};
pub use source::{JsonLines, read_json, read_text};
pub use trajectory::{Derived, Trajectory, TrajectoryCall};
