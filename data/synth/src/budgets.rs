//! Limits of input.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.

/// Nodes of the sub-graphs of a graph that are listed, all together.
pub const SUBGRAPH_NODES: usize = 10_000_000;
