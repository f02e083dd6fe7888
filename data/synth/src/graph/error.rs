//! Errors from building graphs, sub-graphs and pairs.

use crate::budgets::SUBGRAPH_NODES;
use tooltune_apis::ToolsError;
use tooltune_suites::EncoderError;

/// Why a graph, sub-graph or pair cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// Two APIs have the same name, which makes ordering by name ambiguous.
    #[error("duplicate API name `{name}`; each `tool/api` must be unique")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// An edge refers to an unknown API or parameter, or connects an API to itself.
    #[error("edge {edge_idx} ({edge}) {fault}; correct or remove the edge")]
    BadEdge {
        /// Index of the edge, from 0.
        edge_idx: usize,
        /// The edge as text.
        edge: String,
        /// What is wrong.
        fault: &'static str,
    },
    /// The graph would exceed the edge limit.
    #[error("the graph has more than {limit} edges; raise the threshold or use fewer documents")]
    TooManyEdges {
        /// The limit.
        limit: usize,
    },
    /// The threshold is not a cosine.
    #[error("the threshold is {threshold}; set it to a cosine from -1 to 1")]
    BadThreshold {
        /// The given number.
        threshold: f64,
    },
    /// The range of sub-graph sizes is invalid.
    #[error(
        "invalid sub-graph sizes {min} to {max}; the minimum must be at least 1 and at most the maximum"
    )]
    BadSizes {
        /// Minimum number of nodes.
        min: usize,
        /// Maximum number of nodes.
        max: usize,
    },
    /// The graph has too many connected sub-graphs.
    #[error(
        "the graph has more than {limit} connected sub-graphs; filter its edges further, request \
         smaller sub-graphs, or raise the limit"
    )]
    TooManySubgraphs {
        /// The limit.
        limit: usize,
    },
    /// The sub-graphs have too many nodes in total.
    #[error(
        "the connected sub-graphs have more than {SUBGRAPH_NODES} nodes together; request smaller \
         ones (SUBGRAPH_NODES in docs/limits.md)"
    )]
    LargeSubgraphs,
    /// The edges form a cycle, so there is no execution order.
    #[error("the edges form a cycle through `{name}`; remove one of its edges")]
    Cyclic {
        /// An API in the cycle.
        name: String,
    },
    /// A trajectory calls an API that has no document.
    #[error(
        "trajectory {trajectory}: no document is named `{name}`; add the document or remove the row"
    )]
    UnknownApi {
        /// Id of the trajectory, or its index if it has no id.
        trajectory: String,
        /// The called name.
        name: String,
    },
    /// A trajectory has no calls, so its query has no document.
    #[error("trajectory {trajectory} has no calls, so its query has no document; remove the row")]
    NoCalls {
        /// Id of the trajectory, or its index if it has no id.
        trajectory: String,
    },
    /// A named edge is invalid.
    #[error("{place}: {reason}")]
    Named {
        /// File and line, or the edge itself.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A file of edges cannot be read.
    #[error(transparent)]
    File(#[from] ToolsError),
    /// The sentence encoder failed.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
}
