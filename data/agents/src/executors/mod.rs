//! Executors of API calls, with recorded, canned or real outputs, behind one trait.
//!
//! An executor never fails: every error is a [`CallResult`] with an exception, because a run
//! continues after a failed call and shows the model `{"error": ...}` (GOAT, section 4.1). A failed
//! call keeps its output in addition to the exception, because API-Bank's correctness compares
//! both.

mod arguments;
mod canned;
mod global;
mod known;
mod literal;
mod recording;
mod replay;
mod result;

use serde_json::{Map, Value};

pub use arguments::canonical_arguments;
pub use canned::CannedExecutor;
pub use global::{WithGlobalFunctions, global_functions, without_global_functions};
pub use literal::container_literal;
pub use recording::RecordingExecutor;
pub use replay::{ReplayExecutor, describe_parameters, missing_argument, unrecorded_message};
pub use result::CallResult;

/// Executes calls by API name.
pub trait Executor {
    /// Executes a call.
    ///
    /// An unknown name, a missing argument or an API error gives a result with an exception; it
    /// never stops the run.
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult;

    /// Why calls of an API are refused, for example because its method may change data; `None` if
    /// they are allowed. Checked before a call, so that a refused call uses no budget.
    fn refusal(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// Why further calls are useless, for example because the recording cannot be written. Checked
    /// after each call.
    fn fault(&self) -> Option<String> {
        None
    }
}
