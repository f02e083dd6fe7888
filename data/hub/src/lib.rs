//! Names instead of folders: models and data sets of the Hugging Face hub, in the cache that
//! `huggingface_hub` keeps, and exports that are uploaded there.
//!
//! What either program has fetched, the other finds: blobs under their ETags, snapshots of relative
//! links, refs, locks, and the listing of a commit. A file is resumed where it broke off, its hash is
//! checked before it has its name, and only files that are needed are fetched.
//!
//! The decision to question: this is written on the blocking client that the other requests use,
//! and not with the crate `hf-hub`. That crate (1.0) brings tokio, reqwest, hyper and the protocol
//! of Xet; it resumes no file that an earlier process began, compares no hash of a plain download,
//! and what it knows of the cache is less than this folder. Xet's headers are ignored here: the hub
//! serves the same bytes at the plain address.
//!
//! ```
//! use tooltune_hub::{HubName, Part, RepoKind};
//!
//! let name = HubName::of_model("Qwen/Qwen3-0.6B").expect("no mistake").expect("a name");
//! assert_eq!((name.repo.kind, name.repo.id.as_str()), (RepoKind::Model, "Qwen/Qwen3-0.6B"));
//! assert_eq!(name.part, Part::Model);
//! // A path stays one.
//! assert!(HubName::of_model("models/smollm2-135m").expect("no mistake").is_none());
//! ```

mod budgets;
mod cache;
mod choice;
mod client;
mod download;
mod environment;
mod error;
mod fetch;
mod listing;
mod name;
mod push;
mod refusal;

#[cfg(any(test, feature = "test-server"))]
pub mod test_hub;
#[cfg(test)]
mod tests;

pub use choice::Need;
pub use environment::{Environment, HubSettings};
pub use error::HubError;
pub use fetch::{Event, Fetched, Hub, Listener};
pub use name::{HubName, NameError, Part, RepoKind, RepoName};
pub use push::{Pushed, Upload};
