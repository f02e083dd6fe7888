//! Limits of input.
//!
//! The comment of each constant gives its reason; docs/limits.md tells users what exceeds it and
//! what to do.

/// Maximum total number of nodes in the listed sub-graphs of a graph.
pub const SUBGRAPH_NODES: usize = 10_000_000;
