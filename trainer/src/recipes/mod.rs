//! Training recipes, one plain loop each.

pub mod all_reduce;
mod attention_plan_prefetch;
pub mod data_plane;
pub(crate) mod deal;
pub mod follower;
pub mod history;
pub mod kept_blocks;
pub mod learner;
mod loss_watch;
pub mod pending_lock;
pub mod preparation;
pub mod ranks;
pub(crate) mod reporter;
pub mod resume;
pub mod retriever;
pub mod run_files;
pub mod run_lock;
mod run_loop;
pub mod selection;
pub mod sft;
pub mod starting;
pub mod summary;
pub mod trainer_state;
