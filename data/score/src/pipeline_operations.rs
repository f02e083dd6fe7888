//! The steps of GOAT's data pipeline as operations of the interface.
//!
//! They are here so that a pipeline in another language can be checked against ours, step by step.

use std::collections::HashMap;

use serde_json::{Value, json};
use tooltune_agents::mask_spans;
use tooltune_synth::graph::{
    DependencyGraph, Edge, GraphError, SubgraphSizes, connected_subgraphs, n_complete_edges,
    topological_order,
};

use tooltune_suites::operations::{InputField, LineError, Operation, Request};

const NODES: InputField = InputField {
    name: "nodes",
    holds: "names of the nodes",
};
const EDGES: InputField = InputField {
    name: "edges",
    holds: "array of [source, target], both names of nodes",
};

/// Every operation of the pipeline.
pub(super) static TABLE: &[Operation] = &[
    Operation {
        name: "goat.mask",
        fields: &[
            InputField {
                name: "call",
                holds: "{name, arguments}",
            },
            InputField {
                name: "prefix",
                holds: "what the completion says before the call; may be left out",
            },
        ],
        definition: "the completion, and where its argument values stand that are not learned",
        run: mask,
    },
    Operation {
        name: "goat.subgraphs",
        fields: &[
            NODES,
            EDGES,
            InputField {
                name: "L",
                holds: "largest number of nodes",
            },
            InputField {
                name: "lo",
                holds: "smallest number of nodes",
            },
        ],
        definition: "every weakly connected set of lo to L nodes, sorted",
        run: subgraphs,
    },
    Operation {
        name: "goat.topo",
        fields: &[NODES, EDGES],
        definition: "the nodes in topological order, of several the smallest name first",
        run: topo,
    },
    Operation {
        name: "goat.init",
        fields: &[InputField {
            name: "params_per_api",
            holds: "number of parameters of each API",
        }],
        definition: "number of edges that the graph begins with",
        run: init,
    },
];

/// Why a line about a graph has no value.
fn no_graph(error: &GraphError) -> LineError {
    let kind = match error {
        GraphError::DuplicateName { .. } => "duplicate_node",
        GraphError::BadEdge { .. } | GraphError::Named { .. } | GraphError::File(_) => "bad_edge",
        GraphError::Cyclic { .. } => "cycle",
        GraphError::BadSizes { .. } => "bad_sizes",
        GraphError::TooManyEdges { .. }
        | GraphError::TooManySubgraphs { .. }
        | GraphError::LargeSubgraphs => "too_large",
        GraphError::BadThreshold { .. } => "bad_threshold",
        GraphError::UnknownApi { .. } | GraphError::NoCalls { .. } => "bad_trajectory",
        GraphError::Encoder(_) => "encoder_failed",
    };
    LineError::NoValue {
        kind,
        message: error.to_string(),
    }
}

/// A graph as a line gives it; an edge from a node to itself is kept.
struct NamedGraph<'l> {
    nodes: Vec<&'l str>,
    /// Source and target as positions among the nodes.
    edges: Vec<(usize, usize)>,
}

fn named_graph<'l>(request: &Request<'l>) -> Result<NamedGraph<'l>, LineError> {
    let nodes = request.input.texts("nodes")?;
    // Of two nodes of one name, the first.
    let mut places = HashMap::new();
    for (place, node) in nodes.iter().enumerate() {
        places.entry(*node).or_insert(place);
    }
    let place = |edge_idx: usize, name: &str| {
        places.get(name).copied().ok_or_else(|| LineError::NoValue {
            kind: "unknown_node",
            message: format!("edge {edge_idx} names `{name}`, which is not among the nodes"),
        })
    };
    let edges = request.input.text_lists("edges")?;
    let pair = |(edge_idx, edge): (usize, &Vec<&str>)| match edge.as_slice() {
        [source, target] => Ok((place(edge_idx, source)?, place(edge_idx, target)?)),
        _ => Err(request.input.wrong_type("edges", EDGES.holds)),
    };
    let edges = edges
        .iter()
        .enumerate()
        .map(pair)
        .collect::<Result<_, _>>()?;
    Ok(NamedGraph { nodes, edges })
}

fn mask(request: &Request<'_>) -> Result<Value, LineError> {
    let call = request.input.object("call")?;
    let prefix = request.input.optional_text("prefix")?.unwrap_or_default();
    let masked = mask_spans(call.text("name")?, call.fields("arguments")?, prefix);
    Ok(json!(masked))
}

fn subgraphs(request: &Request<'_>) -> Result<Value, LineError> {
    let NamedGraph { nodes, edges } = named_graph(request)?;
    let size = |name| -> Result<usize, LineError> {
        Ok(usize::try_from(request.input.count(name)?).unwrap_or(usize::MAX))
    };
    let sizes = SubgraphSizes {
        min: size("lo")?,
        max: size("L")?,
        ..SubgraphSizes::default()
    };
    let apis: Vec<(String, usize)> = nodes.iter().map(|name| ((*name).to_owned(), 1)).collect();
    let between = edges.iter().filter(|(source, target)| source != target);
    let edges: Vec<Edge> = between
        .map(|(source, target)| Edge {
            source: *source,
            target: *target,
            parameter: 0,
        })
        .collect();
    let graph = DependencyGraph::new(&apis, &edges).map_err(|error| no_graph(&error))?;
    let found = connected_subgraphs(&graph, &sizes).map_err(|error| no_graph(&error))?;
    let named: Vec<Vec<&str>> = found
        .iter()
        .map(|set| set.iter().map(|node| nodes[*node]).collect())
        .collect();
    Ok(json!(named))
}

fn topo(request: &Request<'_>) -> Result<Value, LineError> {
    let NamedGraph { nodes, edges } = named_graph(request)?;
    let order = topological_order(&nodes, &edges).map_err(|error| no_graph(&error))?;
    Ok(order.into_iter().map(|node| nodes[node]).collect())
}

fn init(request: &Request<'_>) -> Result<Value, LineError> {
    let counts = request.input.counts("params_per_api")?;
    let sizes: Vec<usize> = counts
        .into_iter()
        .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
        .collect();
    let n_edges = n_complete_edges(&sizes);
    Ok(u64::try_from(n_edges).map_or_else(|_| json!(n_edges as f64), |n| json!(n)))
}
