//! `data graph` and `data pairs`: the parts of GOAT's pipeline that ask no language model.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tooltune_agents::Method;
use tooltune_agents::pairs::PairSet;
use tooltune_rows::batches::SeededRandom;
use tooltune_rows::text::all_rows;
use tooltune_rows::tools::{ApiCatalogue, JsonLines, read_checked_trajectories};
use tooltune_synth::graph::{
    ApiTexts, DependencyGraph, Edge, Ground, OutputText, ParameterText, SubgraphSizes, TextRule,
    connected_subgraphs, execution_order, n_complete_edges,
};

use super::data::write_lines;
use super::{DeviceOption, print_line};
use crate::cli::{GraphArgs, OutputTextName, PairsArgs, ParameterTextName};
use crate::config;
use crate::encoder::MiniLmEncoder;
use crate::error::Error;

/// An edge by names, as files hold it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedEdge {
    /// The API whose output it is.
    source: String,
    /// The API that has the parameter.
    target: String,
    /// The parameter's name.
    parameter: String,
    /// The field of the output that fills it, where the document says which there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// How alike the texts are: their cosine, to four places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
}

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
    let graph = match &args.from_edges {
        Some(path) => read_graph(path, &catalogue)?,
        None => similar(args, &catalogue, place)?,
    };
    let named = |edge: &Edge| named_edge(edge, &graph, &catalogue);
    if let Some(path) = &args.edges {
        write_lines("edges", graph.edges().iter().map(named), Some(path))?;
    }
    let sizes = SubgraphSizes {
        min: args.min_calls,
        max: args.max_calls,
        limit: args.limit,
    };
    let subgraphs = connected_subgraphs(&graph, &sizes)?;
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
        .filter_map(|nodes| execution_order(&graph, nodes, &mut random))
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

fn named_edge(edge: &Edge, graph: &DependencyGraph, catalogue: &ApiCatalogue) -> NamedEdge {
    let ground = graph.ground(edge);
    let rounded = |score: f32| (f64::from(score) * 1e4).round() / 1e4;
    let documents = catalogue.documents();
    let parameter = documents[edge.target].parameters().nth(edge.parameter);
    NamedEdge {
        source: documents[edge.source].call_name(),
        target: documents[edge.target].call_name(),
        parameter: parameter.map_or_else(String::new, |parameter| parameter.name.clone()),
        field: ground
            .map(|ground| ground.field.to_owned())
            .filter(|field| !field.is_empty()),
        score: ground.map(|ground| rounded(ground.score)),
    }
}

/// A graph of edges by names.
fn read_graph(path: &Path, catalogue: &ApiCatalogue) -> Result<DependencyGraph, Error> {
    let mut edges = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, value) = line?;
        let bad = |reason: String| Error::Usage(format!("{place}: {reason}"));
        let named: NamedEdge = serde_json::from_value(value).map_err(|error| {
            bad(format!(
                "{error}; each line is {{\"source\": API, \"target\": API, \"parameter\": name}}, and \
                 may have field and score"
            ))
        })?;
        let is_cosine = |score: f64| (-1.0..=1.0).contains(&score);
        if let Some(score) = named.score.filter(|score| !is_cosine(*score)) {
            return Err(bad(format!(
                "score is {score}, but a cosine is from -1 to 1"
            )));
        }
        let position = |name: &str| {
            let hint = || format!("no document is named {name:?}{}", catalogue.hint(name));
            catalogue.position(name).ok_or_else(|| bad(hint()))
        };
        let (source, target) = (position(&named.source)?, position(&named.target)?);
        let mut parameters = catalogue.documents()[target].parameters();
        let parameter = parameters.position(|parameter| parameter.name == named.parameter);
        let edge = Edge {
            source,
            target,
            parameter: parameter.ok_or_else(|| {
                let NamedEdge {
                    target, parameter, ..
                } = &named;
                bad(format!("{target} has no parameter {parameter:?}"))
            })?,
        };
        edges.push((edge, named));
    }
    let grounded = edges.iter().map(|(edge, named)| {
        let ground = named.score.map(|score| Ground {
            score: score as f32,
            field: named.field.as_deref().unwrap_or_default(),
        });
        (*edge, ground)
    });
    let edges: Vec<_> = grounded.collect();
    let apis: Vec<(String, usize)> = catalogue
        .iter()
        .map(|document| (document.call_name(), document.parameters().count()))
        .collect();
    Ok(DependencyGraph::with_grounds(&apis, &edges)?)
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
