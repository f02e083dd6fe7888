//! What answers a call: recorded, canned or real outputs behind one trait.
//!
//! An executor never fails: whatever goes wrong is a [`CallResult`] with an exception, because a
//! run continues after a failed call and shows the model `{"error": ...}` (GOAT, section 4.1).
//! The decision to question: the output of a failed call is kept beside the exception, since
//! API-Bank's correctness compares both.

mod arguments;
mod canned;
mod global;
mod known;
mod literal;
mod recording;
mod replay;
mod result;

use serde_json::{Map, Value};

pub use arguments::canonical as canonical_arguments;
pub use canned::CannedExecutor;
pub use global::{WithGlobalFunctions, global_functions, without_global_functions};
pub use literal::{container_literal, leading_literal};
pub use recording::RecordingExecutor;
pub use replay::{ReplayExecutor, missing_argument, parameters_taken, unrecorded};
pub use result::CallResult;

/// Answers calls by name.
pub trait Executor {
    /// Executes one call.
    ///
    /// An unknown name, a missing argument and a failure inside the API are results with an
    /// exception that says what is wrong; they never end the run.
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult;

    /// Why no further call is of use, such as a recording that cannot be written; asked after each
    /// call by whoever makes them.
    fn fault(&self) -> Option<String> {
        None
    }
}
