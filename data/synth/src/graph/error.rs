//! What can be wrong with a graph or with what it is made of.

use tooltune_rows::budgets::SUBGRAPH_NODES;
use tooltune_rows::tools::ToolsError;
use tooltune_suites::EncoderError;

/// Why there is no graph, no sub-graph or no pair.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// Two APIs have one name, so that an order by name would not be one.
    #[error("two APIs are named `{name}`; give each `tool/api` once")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// An edge leads to or from an API that is not there, to a parameter that its API does not
    /// have, or from an API to itself.
    #[error("edge {edge_idx} ({edge}) {fault}; fix the edge or leave it out")]
    BadEdge {
        /// Position of the edge, from 0.
        edge_idx: usize,
        /// The edge in words.
        edge: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The graph would have more edges than memory should hold.
    #[error("the graph has more than {limit} edges; raise the threshold or take fewer documents")]
    TooManyEdges {
        /// Number of edges that are allowed.
        limit: usize,
    },
    /// The threshold is no cosine.
    #[error("the threshold {threshold} is no cosine; give a number from -1 to 1")]
    BadThreshold {
        /// The number given.
        threshold: f64,
    },
    /// The sizes of sub-graphs are empty or upside down.
    #[error("sub-graphs of {min} to {max} nodes cannot be; give 1 or more, the smaller one first")]
    BadSizes {
        /// Smallest number of nodes asked for.
        min: usize,
        /// Largest number of nodes asked for.
        max: usize,
    },
    /// The graph has more connected sub-graphs than are allowed.
    #[error(
        "the graph has more than {limit} connected sub-graphs; filter its edges further, ask for \
         fewer nodes, or raise the limit"
    )]
    TooManySubgraphs {
        /// Number of sub-graphs that are allowed.
        limit: usize,
    },
    /// The sub-graphs have too many nodes together to be listed.
    #[error(
        "the connected sub-graphs have more than {SUBGRAPH_NODES} nodes together; ask for smaller \
         ones (SUBGRAPH_NODES in docs/limits.md)"
    )]
    LargeSubgraphs,
    /// The edges form a cycle, which has no order of execution.
    #[error("the edges form a cycle through `{name}`; break it first")]
    Cyclic {
        /// One API of the cycle.
        name: String,
    },
    /// A trajectory calls an API that has no document.
    #[error("trajectory {trajectory}: no document is named `{name}`; add it or drop the row")]
    UnknownApi {
        /// The trajectory's id, or its position if it has none.
        trajectory: String,
        /// The name called.
        name: String,
    },
    /// A trajectory calls nothing, so that its query has no document.
    #[error("trajectory {trajectory} has no call; a query without a document teaches nothing")]
    NoCalls {
        /// The trajectory's id, or its position if it has none.
        trajectory: String,
    },
    /// An edge by names that cannot be one.
    #[error("{place}: {reason}")]
    Named {
        /// File and line, or the edge itself.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A file of edges that cannot be read.
    #[error(transparent)]
    File(#[from] ToolsError),
    /// The sentence encoder failed.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
}
