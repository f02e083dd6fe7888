//! `data graph` and `data pairs`: the parts of GOAT's pipeline without a language model.

use serde::Serialize;
use tooltune_agents::Method;
use tooltune_agents::pairs::PairSet;
use tooltune_apis::{ApiCatalogue, read_checked_trajectories};
use tooltune_json::faults::collect_rows;
use tooltune_rows::batches::SeededRandom;
use tooltune_synth::graph::{
    ApiDescriptions, DependencyGraph, Edge, NamedEdge, NamedGraph, OutputText, ParameterText,
    SubgraphSizes, TextRule, connected_subgraphs, execution_order, n_complete_edges,
};

use crate::cli::{GraphArgs, OutputTextName, PairsArgs, ParameterTextName};
use crate::commands::data::write_lines;
use crate::commands::new_file::must_be_new;
use crate::commands::{DeviceOption, print_line};
use crate::config;
use crate::encoder::MiniLmEncoder;
use crate::error::Error;

/// A line of the sub-graph file: connected APIs, sorted by name.
#[derive(Debug, Serialize)]
struct Subgraph<'a> {
    apis: Vec<&'a str>,
}

/// A line of the output: the calls of a task, without arguments.
#[derive(Debug, Serialize)]
struct Task {
    /// API names in call order.
    apis: Vec<String>,
    /// Edges that supply argument values.
    edges: Vec<NamedEdge>,
}

pub(in crate::commands) fn graph(
    args: &GraphArgs,
    device_option: &DeviceOption,
) -> Result<(), Error> {
    must_be_new(&[
        ("--output", args.output.as_deref()),
        ("--edges", args.edges.as_deref()),
        ("--subgraphs", args.subgraphs.as_deref()),
    ])?;
    let catalogue = ApiCatalogue::read(&args.documents)?;
    let named_graph = match &args.from_edges {
        Some(path) => NamedGraph::read(path, &catalogue)?,
        None => NamedGraph::from_graph(
            similarity_graph(args, &catalogue, device_option)?,
            &catalogue,
        ),
    };
    let graph = named_graph.graph();
    let with_names = |edge: &Edge| named_graph.to_named(edge);
    if let Some(path) = &args.edges {
        write_lines("edges", graph.edges().iter().map(with_names), Some(path))?;
    }
    let sizes = SubgraphSizes {
        min: args.min_calls,
        max: args.max_calls,
        limit: args.limit,
    };
    let subgraphs = connected_subgraphs(graph, &sizes)?;
    if let Some(path) = &args.subgraphs {
        let with_names = |nodes: &Vec<usize>| Subgraph {
            apis: nodes
                .iter()
                .map(|&api| graph.names()[api].as_str())
                .collect(),
        };
        write_lines("sub-graphs", subgraphs.iter().map(with_names), Some(path))?;
    }
    let mut random = SeededRandom::new(args.seed, 0);
    let tasks: Vec<Task> = subgraphs
        .iter()
        .filter_map(|nodes| execution_order(graph, nodes, &mut random))
        .map(|order| Task {
            apis: order
                .apis
                .iter()
                .map(|&api| graph.names()[api].clone())
                .collect(),
            edges: order.edges.iter().map(with_names).collect(),
        })
        .collect();
    write_lines("tasks", &tasks, args.output.as_deref())?;
    // Without an output file, `write_lines` has printed the tasks to standard output, which must
    // not also contain the summary.
    if args.output.is_none() {
        return Ok(());
    }
    let parameters_per_api: Vec<usize> = catalogue
        .iter()
        .map(|document| document.parameters().count())
        .collect();
    print_line(&format!(
        "{} documents, {} of {} edges, {} sub-graphs ({} of them without an order of calls)",
        catalogue.len(),
        graph.edges().len(),
        n_complete_edges(&parameters_per_api),
        subgraphs.len(),
        subgraphs.len() - tasks.len()
    ))
}

/// Finds edges by the similarity between descriptions of outputs and parameters.
fn similarity_graph(
    args: &GraphArgs,
    catalogue: &ApiCatalogue,
    device_option: &DeviceOption,
) -> Result<DependencyGraph, Error> {
    let rule = TextRule {
        parameter: match args.parameter_text {
            ParameterTextName::NameAndDescription => ParameterText::NameAndDescription,
            ParameterTextName::Description => ParameterText::Description,
        },
        output: match args.output_text {
            OutputTextName::Returned => OutputText::Returned,
            OutputTextName::Description => OutputText::Description,
        },
    };
    let texts: Vec<ApiDescriptions> = catalogue
        .iter()
        .map(|document| ApiDescriptions::from_document(document, rule))
        .collect();
    let encoder = MiniLmEncoder::open(&args.retriever, &device_option.open(config::Device::Cpu)?)?;
    let graph = DependencyGraph::from_similarity(&texts, &encoder, args.threshold)?;
    Ok(graph)
}

/// A line of the pairs file.
#[derive(Debug, Serialize)]
struct NamedPair<'a> {
    query: &'a str,
    positive: &'a str,
}

pub(in crate::commands) fn pairs(args: &PairsArgs) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let catalogue = ApiCatalogue::read(&args.documents)?;
    let trajectories = collect_rows(read_checked_trajectories(&args.file, &catalogue)?)?;
    let method = if args.sub_queries {
        Method::GlobalId
    } else {
        Method::Global
    };
    let set = PairSet::from_trajectories(&trajectories, &catalogue, method)?;
    let pairs = set.pairs().iter().map(|pair| NamedPair {
        query: &set.queries()[pair.query],
        positive: &set.documents()[pair.document],
    });
    write_lines("pairs", pairs, args.output.as_deref())
}
