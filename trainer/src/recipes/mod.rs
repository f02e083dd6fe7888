//! One straight loop for each thing that is trained.

pub mod history;
pub mod interrupt;
pub mod kept_blocks;
pub mod preparation;
pub(crate) mod reporter;
pub mod resume;
pub mod retriever;
pub mod rows;
pub mod run_files;
pub mod run_lock;
pub mod selection;
pub mod settings;
pub mod sft;
pub mod summary;
pub mod trainer_state;
