//! Ranks in threads of one process.

mod all_reduce;
mod calls;
mod in_threads;
mod meetings;
#[path = "../support/mod.rs"]
mod support;
