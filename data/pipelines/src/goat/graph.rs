//! Stages 2 and 3: finds candidate edges between outputs and parameters with similar descriptions,
//! then asks the model which of them hold (Figure 14).

use tooltune_apis::{ApiCatalogue, ApiDocument};
use tooltune_suites::SentenceEncoder;
use tooltune_synth::graph::{
    ApiDescriptions, DependencyGraph, NamedEdge, NamedGraph, OutputField, OutputText,
    ParameterText, TextRule, n_complete_edges,
};

use super::items::ParsedApi;
use super::stage_prompts::{
    Question, Sampling, StageInput, parse_verdict, shown_document, verdict_schema,
};
use super::{FILTER, prompts};
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Run, StageResult};

/// How the descriptions of schema fields are combined with the model's text.
const FIELD_RULE: TextRule = TextRule {
    parameter: ParameterText::NameAndDescription,
    output: OutputText::Returned,
};

const REFUSED: &str = "the executor does not call the API, because it may change data";
const UNLIKE: &str = "the descriptions of output and parameter are not similar";
const BEYOND: &str = "less similar than others: --max-edges limit reached";
const NOT_CONNECTABLE: &str = "rejected by the model: the output does not fill the parameter";

/// Returns edges between outputs and parameters with similar descriptions. If there are more than
/// requested, the most similar ones are kept. APIs for which `is_refused` holds have no edges,
/// because their calls would fail.
///
/// # Source
///
/// GOAT, section 3.1.1: graph initialization, and filtering via embedding similarity.
pub(super) fn similar_edges(
    input: StageInput<'_>,
    parsed: &[ParsedApi],
    encoder: &dyn SentenceEncoder,
    is_refused: &dyn Fn(&str) -> bool,
) -> Result<StageResult<NamedEdge>, PipelineError> {
    let mut documents = Vec::new();
    let mut texts = Vec::new();
    for api in parsed {
        let document = input.document(&api.api)?;
        texts.push(texts_of(api, document));
        documents.push(document.clone());
    }
    let catalogue = ApiCatalogue::new(documents)?;
    let graph = DependencyGraph::from_similarity(&texts, encoder, input.options.threshold)?;
    let graph = NamedGraph::from_graph(graph, &catalogue);
    let mut edges: Vec<NamedEdge> = graph
        .graph()
        .edges()
        .iter()
        .map(|edge| graph.to_named(edge))
        .collect();
    let n_complete = n_complete(&catalogue);
    let n_alike = edges.len();
    edges.retain(|edge| !is_refused(&edge.source) && !is_refused(&edge.target));
    let n_callable = edges.len();
    if let Some(max_edges) = input.options.max_edges {
        edges = most_similar(edges, max_edges);
    }
    let n_kept = edges.len();
    let mut result = StageResult::from_results(edges.into_iter().map(Ok));
    result.n_in = n_complete;
    for (reason, n) in [
        (UNLIKE, n_complete - n_alike),
        (REFUSED, n_alike - n_callable),
        (BEYOND, n_callable - n_kept),
    ] {
        if n > 0 {
            result.dropped_in_bulk.insert(reason.to_owned(), n);
        }
    }
    Ok(result)
}

/// Number of edges of the over-complete graph.
pub(super) fn n_complete(catalogue: &ApiCatalogue) -> usize {
    let sizes: Vec<usize> = catalogue
        .iter()
        .map(|document| document.parameters().count())
        .collect();
    usize::try_from(n_complete_edges(&sizes)).unwrap_or(usize::MAX)
}

/// The model's descriptions, and the output fields of the schema if there is one.
fn texts_of(api: &ParsedApi, document: &ApiDocument) -> ApiDescriptions {
    let mut outputs = match document.output_schema {
        Some(_) => ApiDescriptions::from_document(document, FIELD_RULE).outputs,
        None => Vec::new(),
    };
    // An API whose schema declares no output cannot fill a parameter, whatever its description is.
    if document.output_schema.is_none() || !outputs.is_empty() {
        outputs.push(OutputField::single_text(api.output.clone()));
    }
    let inputs = document
        .parameters()
        .map(|parameter| api.meaning(&parameter.name).to_owned());
    ApiDescriptions {
        name: document.call_name(),
        inputs: inputs.collect(),
        outputs,
    }
}

/// The edges with the highest scores, in their original order; ties keep the first.
fn most_similar(edges: Vec<NamedEdge>, n_edges: usize) -> Vec<NamedEdge> {
    let score = |edge_idx: &usize| edges[*edge_idx].score.unwrap_or_default();
    let mut edge_idxs: Vec<usize> = (0..edges.len()).collect();
    edge_idxs.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
    edge_idxs.truncate(n_edges);
    edge_idxs.sort_unstable();
    edge_idxs
        .into_iter()
        .map(|edge_idx| edges[edge_idx].clone())
        .collect()
}

/// One question per edge.
pub(super) fn item_prompts(
    input: StageInput<'_>,
    edges: &[NamedEdge],
    parsed: &[ParsedApi],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let describe = |name: &str| {
        let description = parsed.iter().find(|api| api.api == name);
        description.ok_or_else(|| {
            PipelineError::Usage(format!(
                "an edge names {name:?}, which stage parse has not described; remove the edge, \
                 or run the stage again with --stage parse"
            ))
        })
    };
    let question = |edge: &NamedEdge| {
        let (source, target) = (input.document(&edge.source)?, input.document(&edge.target)?);
        input.ask(
            prompts,
            Question {
                id: edge.label(),
                prompt: prompts::FILTER,
                values: &[
                    ("source_document", &shown_document(source)),
                    ("output", &describe(&edge.source)?.output),
                    ("target_document", &shown_document(target)),
                    ("parameter", &edge.parameter),
                    ("meaning", describe(&edge.target)?.meaning(&edge.parameter)),
                ],
                schema: verdict_schema(),
                sampling: Sampling::Greedy,
            },
        )
    };
    edges.iter().map(question).collect()
}

/// Keeps the edges that the model confirms, with its reasons.
///
/// # Source
///
/// GOAT, section 3.1.1: filtering via LLM.
pub(super) fn filter(
    run: &mut Run<'_>,
    edges: Vec<NamedEdge>,
    item_prompts: &[ItemPrompt],
) -> Result<StageResult<NamedEdge>, PipelineError> {
    let verdicts = run.ask(FILTER, item_prompts, &|_, text| parse_verdict(text))?;
    Ok(StageResult::from_results(
        edges.into_iter().zip(verdicts).map(|(edge, verdict)| {
            let verdict = verdict?;
            if !verdict.is_connectable {
                let detail = excerpt(&verdict.reason);
                return Err(Dropped::new(&edge.label(), NOT_CONNECTABLE, detail));
            }
            Ok(NamedEdge {
                reason: Some(verdict.reason),
                ..edge
            })
        }),
    ))
}

/// The reason of an edge, for a prompt.
pub(super) fn reason_of(edge: &NamedEdge) -> String {
    match (&edge.reason, &edge.field) {
        (Some(reason), _) => reason.clone(),
        (None, Some(field)) => format!("The value stands at {field}."),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_edges_keep_their_order() {
        let edge = |name: &str, score: f64| NamedEdge {
            source: name.to_owned(),
            target: String::new(),
            parameter: String::new(),
            field: None,
            score: Some(score),
            reason: None,
        };
        let edges = vec![
            edge("a", 0.2),
            edge("b", 0.9),
            edge("c", 0.2),
            edge("d", 0.4),
        ];
        let names = |n_edges| {
            let selected = most_similar(edges.clone(), n_edges);
            selected
                .into_iter()
                .map(|edge| edge.source)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(3), ["a", "b", "d"]);
        assert_eq!(names(9), ["a", "b", "c", "d"]);
        assert!(names(0).is_empty());
    }
}
