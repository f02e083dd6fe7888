//! Downloads models and data sets from the Hugging Face Hub into the cache of `huggingface_hub`,
//! and uploads exports.
//!
//! tooltune and `huggingface_hub` share the cache: blobs named by their hashes, snapshots of
//! relative links, refs, locks, and commit listings. Interrupted downloads are resumed, a blob's
//! name is the hash of the received bytes, and only required files are downloaded.
//!
//! HTTP requests use the blocking client of `tooltune_endpoint` instead of the crate `hf-hub`. That
//! crate (1.0) would add tokio, reqwest, hyper and the Xet protocol. It does not resume files of an
//! earlier process, does not verify hashes of plain downloads, and supports less of the cache than
//! this crate. Xet's headers are ignored here, because the hub serves the same bytes at the plain
//! address.
//!
//! ```
//! use tooltune_hub::{HubName, NamePart, RepoKind};
//!
//! let name = HubName::parse_model("Qwen/Qwen3-0.6B").expect("no mistake").expect("a name");
//! assert_eq!((name.repo.kind, name.repo.id.as_str()), (RepoKind::Model, "Qwen/Qwen3-0.6B"));
//! assert_eq!(name.part, NamePart::Model);
//! // A path is not a name.
//! assert!(HubName::parse_model("models/smollm2-135m").expect("no mistake").is_none());
//! ```

#![expect(
    clippy::result_large_err,
    reason = "a failure ends a request, and requests are rare"
)]

mod budgets;
mod cache;
mod choice;
mod client;
mod download;
mod environment;
mod error;
mod event;
mod fetch;
mod listing;
mod name;
mod push;
mod refusal;

#[cfg(any(test, feature = "test-server"))]
pub mod test_hub;
#[cfg(test)]
mod tests;

pub use choice::WantedFiles;
pub use environment::{Environment, HubSettings};
pub use error::HubError;
pub use event::{Event, Listener};
pub use fetch::{Fetched, Hub};
pub use name::{HubName, NameError, NamePart, RepoKind, RepoName};
pub use push::{KeptCard, Pushed, Upload, UploadTarget, marked_card};
