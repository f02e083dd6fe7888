//! File access: opens regular files without blocking, writes atomically, and limits the size of
//! files that are read completely.
//!
//! ```
//! use tooltune_disk::{atomic, regular_file};
//! use tooltune_disk::budgets::Limit;
//!
//! let dir = tempfile::tempdir().unwrap();
//! let path = dir.path().join("state.json");
//! atomic::write_atomic(&path, b"{}").unwrap();
//! let text = regular_file::read_text(&path, Limit::new("STATE_BYTES", 100)).unwrap();
//! assert_eq!(text, "{}");
//! ```

pub mod appended;
pub mod atomic;
pub mod budgets;
mod error;
pub mod leb128;
pub mod regular_file;

pub use error::DiskError;
