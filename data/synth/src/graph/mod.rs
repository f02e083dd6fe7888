//! Builds dependency graphs of API documents, their sub-graphs and execution orders. This is the
//! part of GOAT's pipeline that needs no language model (sections 3.1.1 and 3.1.2).
//!
//! 1. [`DependencyGraph::complete_graph`]: an edge from every API to every parameter of every other
//!    API.
//! 2. [`DependencyGraph::from_similarity`]: keeps an edge if the description of the output, or of one
//!    of its fields, is similar enough to the description of the parameter.
//! 3. [`connected_subgraphs`]: every connected set of APIs of the given sizes, each once.
//! 4. [`execution_order`]: breaks cycles at random, keeps one edge per parameter, and sorts
//!    topologically.
//! 5. [`retriever_pairs`]: the retriever's training pairs, from complete trajectories.
//!
//! The filters by a language model and by execution come between 2 and 3 and are implemented
//! elsewhere. To build a graph of known edges, use [`DependencyGraph::new`], or [`NamedGraph`] for
//! a file with names. APIs, parameters and edges are identified by their index in document order,
//! and ties are broken by name, so a graph depends only on its documents and its seed.

mod dependencies;
mod error;
mod execution_order;
mod named;
mod pairs;
mod similarity;
mod subgraphs;

pub use dependencies::{DependencyGraph, Edge, EdgeEvidence, MAX_EDGES, n_complete_edges};
pub use error::GraphError;
pub use execution_order::{ExecutionOrder, execution_order, topological_order};
pub use named::{NamedEdge, NamedGraph};
pub use pairs::{RetrieverPair, retriever_pairs};
pub use similarity::{ApiDescriptions, OutputField, OutputText, ParameterText, TextRule};
pub use subgraphs::{SubgraphSizes, connected_subgraphs};
