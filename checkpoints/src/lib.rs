//! Files that hold models: base weights, adapters, and the checkpoints of a run, to and from host memory.

pub mod adapter;
pub mod error;
pub mod model_files;
pub mod run_dir;
pub mod weights;
