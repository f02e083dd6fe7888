//! Score operations for the steps of GOAT's data pipeline.
//!
//! With them, you can check a pipeline in another language against this one, step by step.

use std::collections::HashMap;

use serde_json::{Value, json};
use tooltune_agents::mask_spans;
use tooltune_synth::graph::{
    DependencyGraph, Edge, GraphError, SubgraphSizes, connected_subgraphs, n_complete_edges,
    topological_order,
};

use tooltune_suites::operations::{InputField, LineError, Operation, Request};

const NODES: InputField = InputField::new("nodes", "names of the nodes");
const EDGES: InputField =
    InputField::new("edges", "array of [source, target], both names of nodes");

/// All operations of the pipeline.
pub(super) static TABLE: &[Operation] = &[
    Operation {
        name: "goat.mask",
        fields: &[
            InputField::new("call", "{name, arguments}"),
            InputField::new("prefix", "text of the completion before the call; optional"),
        ],
        definition: "the completion, and the positions of its argument values, which are not supervised",
        run: |request| {
            let call = request.input.object("call")?;
            let prefix = request.input.optional_text("prefix")?.unwrap_or_default();
            let masked = mask_spans(call.text("name")?, call.fields("arguments")?, prefix);
            Ok(json!(masked))
        },
    },
    Operation {
        name: "goat.subgraphs",
        fields: &[
            NODES,
            EDGES,
            InputField::new("L", "largest number of nodes"),
            InputField::new("lo", "smallest number of nodes"),
        ],
        definition: "all weakly connected sets of lo to L nodes, sorted",
        run: subgraphs,
    },
    Operation {
        name: "goat.topo",
        fields: &[NODES, EDGES],
        definition: "the nodes in topological order; ties are ordered by name",
        run: |request| {
            let NamedGraph { nodes, edges } = named_graph(request)?;
            let order = topological_order(&nodes, &edges).map_err(|error| no_graph(&error))?;
            Ok(order.into_iter().map(|node| nodes[node]).collect())
        },
    },
    Operation {
        name: "goat.init",
        fields: &[InputField::new(
            "params_per_api",
            "number of parameters of each API",
        )],
        definition: "initial number of edges of the graph",
        run: |request| {
            let counts = request.input.counts("params_per_api")?;
            let sizes: Vec<usize> = counts
                .into_iter()
                .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
                .collect();
            let n_edges = n_complete_edges(&sizes);
            Ok(u64::try_from(n_edges).map_or_else(|_| json!(n_edges as f64), |n| json!(n)))
        },
    },
];

/// Why a graph operation has no value.
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

/// A graph as written in a line; self-loops are kept.
struct NamedGraph<'l> {
    nodes: Vec<&'l str>,
    /// Source and target as indices of nodes.
    edges: Vec<(usize, usize)>,
}

fn named_graph<'l>(request: &Request<'l>) -> Result<NamedGraph<'l>, LineError> {
    let nodes = request.input.texts("nodes")?;
    // If two nodes have the same name, the first one is used.
    let mut positions = HashMap::new();
    for (idx, node) in nodes.iter().enumerate() {
        positions.entry(*node).or_insert(idx);
    }
    let idx = |edge_idx: usize, name: &str| {
        positions
            .get(name)
            .copied()
            .ok_or_else(|| LineError::NoValue {
                kind: "unknown_node",
                message: format!("edge {edge_idx} refers to `{name}`, which is not a node"),
            })
    };
    let edges = request.input.text_lists("edges")?;
    let pair = |(edge_idx, edge): (usize, &Vec<&str>)| match edge.as_slice() {
        [source, target] => Ok((idx(edge_idx, source)?, idx(edge_idx, target)?)),
        _ => Err(request.input.wrong_type("edges", EDGES.holds)),
    };
    let edges = edges
        .iter()
        .enumerate()
        .map(pair)
        .collect::<Result<_, _>>()?;
    Ok(NamedGraph { nodes, edges })
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
    let subgraphs = connected_subgraphs(&graph, &sizes).map_err(|error| no_graph(&error))?;
    let named_subgraphs: Vec<Vec<&str>> = subgraphs
        .iter()
        .map(|set| set.iter().map(|node| nodes[*node]).collect())
        .collect();
    Ok(json!(named_subgraphs))
}
