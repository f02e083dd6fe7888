//! API documents to a dependency graph, its sub-graphs and their orders of execution: the part of
//! GOAT's pipeline that asks no language model (sections 3.1.1 and 3.1.2).
//!
//! 1. [`DependencyGraph::complete`]: an edge from every API to every parameter of every other one.
//! 2. [`DependencyGraph::by_similarity`]: keeps an edge if the description of the output, or of
//!    a field of it, is near enough to that of the parameter.
//! 3. [`connected_subgraphs`]: every connected set of APIs of a few sizes, each once.
//! 4. [`execution_order`]: cycles broken at random, one edge a parameter, a topological order.
//! 5. [`retriever_pairs`]: from finished trajectories, what the retriever learns from.
//!
//! The filters by a language model and by execution come between 2 and 3 and belong to whoever has
//! a model or an executor; a graph of true edges enters by
//! [`DependencyGraph::new`], or by names, from a file, as a [`NamedGraph`].
//! The decision to question: everything is named by position, in the order of the documents, and
//! ties are broken by name, so that a graph is a function of its documents and its seed.

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
