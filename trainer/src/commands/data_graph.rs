//! `data graph` and `data pairs`: the parts of GOAT's pipeline that ask no language model.

use serde::Serialize;
use tooltune_agents::Method;
use tooltune_agents::pairs::PairSet;
use tooltune_rows::batches::SeededRandom;
use tooltune_rows::text::all_rows;
use tooltune_rows::tools::{ApiCatalogue, read_checked_trajectories};
use tooltune_synth::graph::{
    ApiTexts, DependencyGraph, Edge, NamedEdge, NamedGraph, OutputText, ParameterText,
    SubgraphSizes, TextRule, connected_subgraphs, execution_order, n_complete_edges,
};

use super::data::write_lines;
use super::{DeviceOption, print_line};
use crate::cli::{GraphArgs, OutputTextName, PairsArgs, ParameterTextName};
use crate::config;
use crate::encoder::MiniLmEncoder;
use crate::error::Error;

/// APIs that hang together, in the order of their names; a line of the list of sub-graphs.
#[derive(Debug, Serialize)]
struct Subgraph<'a> {
    apis: Vec<&'a str>,
}

/// The calls of a task before they have arguments; a line of the output.
#[derive(Debug, Serialize)]
struct Task {
    /// Names in the order of their calls.
    apis: Vec<String>,
    /// What gives arguments their values.
    edges: Vec<NamedEdge>,
}

pub(super) fn graph(args: &GraphArgs, place: &DeviceOption) -> Result<(), Error> {
    let catalogue = ApiCatalogue::read(&args.documents)?;
    let named_graph = match &args.from_edges {
        Some(path) => NamedGraph::read(path, &catalogue)?,
        None => NamedGraph::of(similar(args, &catalogue, place)?, &catalogue),
    };
    let graph = named_graph.graph();
    let named = |edge: &Edge| named_graph.named(edge);
    if let Some(path) = &args.edges {
        write_lines("edges", graph.edges().iter().map(named), Some(path))?;
    }
    let sizes = SubgraphSizes {
        min: args.min_calls,
        max: args.max_calls,
        limit: args.limit,
    };
    let subgraphs = connected_subgraphs(graph, &sizes)?;
    if let Some(path) = &args.subgraphs {
        let named = |nodes: &Vec<usize>| Subgraph {
            apis: nodes
                .iter()
                .map(|&api| graph.names()[api].as_str())
                .collect(),
        };
        write_lines("sub-graphs", subgraphs.iter().map(named), Some(path))?;
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
            edges: order.edges.iter().map(named).collect(),
        })
        .collect();
    write_lines("tasks", &tasks, args.output.as_deref())?;
    // The terminal holds the tasks themselves where no file does.
    if args.output.is_none() {
        return Ok(());
    }
    let sizes: Vec<usize> = catalogue
        .iter()
        .map(|document| document.parameters().count())
        .collect();
    print_line(&format!(
        "{} documents, {} of {} edges, {} sub-graphs, of which {} have no order of calls",
        catalogue.len(),
        graph.edges().len(),
        n_complete_edges(&sizes),
        subgraphs.len(),
        subgraphs.len() - tasks.len()
    ))
}

/// The edges whose output and parameter are described alike.
fn similar(
    args: &GraphArgs,
    catalogue: &ApiCatalogue,
    place: &DeviceOption,
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
    let texts: Vec<ApiTexts> = catalogue
        .iter()
        .map(|document| ApiTexts::of(document, rule))
        .collect();
    let encoder = MiniLmEncoder::open(&args.retriever, &place.open(config::Device::Cpu)?)?;
    let graph = DependencyGraph::by_similarity(&texts, &encoder, args.threshold)?;
    Ok(graph)
}

/// A line of pairs.
#[derive(Debug, Serialize)]
struct NamedPair<'a> {
    query: &'a str,
    positive: &'a str,
}

pub(super) fn pairs(args: &PairsArgs) -> Result<(), Error> {
    let catalogue = ApiCatalogue::read(&args.documents)?;
    let trajectories = all_rows(read_checked_trajectories(&args.file, &catalogue)?)?;
    let method = if args.sub_queries {
        Method::GlobalId
    } else {
        Method::Global
    };
    let set = PairSet::of_trajectories(&trajectories, &catalogue, method)?;
    let pairs = set.pairs().iter().map(|pair| NamedPair {
        query: &set.queries()[pair.query],
        positive: &set.documents()[pair.document],
    });
    write_lines("pairs", pairs, args.output.as_deref())
}
