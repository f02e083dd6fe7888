//! Builds dependency graphs of API documents, their sub-graphs and execution orders: the part of
//! GOAT's pipeline without a language model (sections 3.1.1 and 3.1.2).
//!
//! 1. [`DependencyGraph::complete_graph`]: an edge from every API to every parameter of every other one.
//! 2. [`DependencyGraph::by_similarity`]: keeps an edge if the description of the output, or of a
//!    field of it, is similar enough to the description of the parameter.
//! 3. [`connected_subgraphs`]: every connected set of APIs of the given sizes, each once.
//! 4. [`execution_order`]: cycles broken at random, one edge per parameter, a topological order.
//! 5. [`retriever_pairs`]: the retriever's training pairs, from finished trajectories.
//!
//! The filters by a language model and by execution come between 2 and 3 and are implemented
//! elsewhere. A graph of true edges is built by [`DependencyGraph::new`], or from a file with
//! names, as a [`NamedGraph`]. Everything is identified by its index in document order, and ties
//! are broken by name, so that a graph depends only on its documents and its seed.

mod dependencies;
mod error;
mod execution_order;
mod named;
mod pairs;
mod similarity;
mod subgraphs;

pub use dependencies::{DependencyGraph, Edge, Ground, MAX_EDGES, n_complete_edges};
pub use error::GraphError;
pub use execution_order::{ExecutionOrder, execution_order, topological_order};
pub use named::{NamedEdge, NamedGraph};
pub use pairs::{RetrieverPair, retriever_pairs};
pub use similarity::{ApiTexts, OutputField, OutputText, ParameterText, TextRule};
pub use subgraphs::{SubgraphSizes, connected_subgraphs};
