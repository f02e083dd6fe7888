//! The second and third stages: which outputs are described as parameters are, and which of them a
//! model finds to fill them (Figure 14).

use tooltune_rows::tools::{ApiCatalogue, ApiDocument};
use tooltune_suites::SentenceEncoder;
use tooltune_synth::graph::{
    ApiTexts, DependencyGraph, NamedEdge, NamedGraph, OutputField, OutputText, ParameterText,
    TextRule, n_complete_edges,
};

use super::asking::{Freedom, Given, Question, shown_document, verdict, verdict_schema};
use super::items::ParsedApi;
use super::{FILTER, prompts};
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Made, Run};

/// How fields of a schema are described beside the words of the model.
const FIELD_RULE: TextRule = TextRule {
    parameter: ParameterText::NameAndDescription,
    output: OutputText::Returned,
};

const UNLIKE: &str = "output and parameter are not described alike";
const BEYOND: &str = "others are more alike, and --max-edges takes no more";
const NOT_CONNECTABLE: &str = "the model finds that the output does not fill the parameter";

/// The edges between outputs and parameters that are described alike, the most alike ones where
/// there are more than are wanted.
///
/// # Source
///
/// GOAT, section 3.1.1: graph initialization, and filtering via embedding similarity.
pub(super) fn similar(
    given: Given<'_>,
    parsed: &[ParsedApi],
    encoder: &dyn SentenceEncoder,
) -> Result<Made<NamedEdge>, PipelineError> {
    let mut documents = Vec::new();
    let mut texts = Vec::new();
    for api in parsed {
        let document = given.document(&api.api)?;
        texts.push(texts_of(api, document));
        documents.push(document.clone());
    }
    let catalogue = ApiCatalogue::new(documents)?;
    let graph = DependencyGraph::by_similarity(&texts, encoder, given.options.threshold)?;
    let graph = NamedGraph::of(graph, &catalogue);
    let mut edges: Vec<NamedEdge> = graph
        .graph()
        .edges()
        .iter()
        .map(|edge| graph.named(edge))
        .collect();
    let n_complete = n_complete(&catalogue);
    let n_alike = edges.len();
    if let Some(most) = given.options.max_edges {
        edges = most_alike(edges, most);
    }
    let n_kept = edges.len();
    let mut made = Made::of(edges.into_iter().map(Ok));
    made.n_in = n_complete;
    for (reason, n) in [(UNLIKE, n_complete - n_alike), (BEYOND, n_alike - n_kept)] {
        if n > 0 {
            made.dropped_in_bulk.insert(reason.to_owned(), n);
        }
    }
    Ok(made)
}

/// The edges of the over-complete graph.
pub(super) fn n_complete(catalogue: &ApiCatalogue) -> usize {
    let sizes: Vec<usize> = catalogue
        .iter()
        .map(|document| document.parameters().count())
        .collect();
    usize::try_from(n_complete_edges(&sizes)).unwrap_or(usize::MAX)
}

/// The model's words, and the fields of the output where a schema says which there are.
fn texts_of(api: &ParsedApi, document: &ApiDocument) -> ApiTexts {
    let mut outputs = match document.output_schema {
        Some(_) => ApiTexts::of(document, FIELD_RULE).outputs,
        None => Vec::new(),
    };
    // An API that says that it returns nothing fills no parameter, whatever the words are.
    if document.output_schema.is_none() || !outputs.is_empty() {
        outputs.push(OutputField::whole(api.output.clone()));
    }
    let inputs = document
        .parameters()
        .map(|parameter| api.meaning(&parameter.name).to_owned());
    ApiTexts {
        name: document.call_name(),
        inputs: inputs.collect(),
        outputs,
    }
}

/// The edges with the greatest scores, in their order; of those that are equal, the first.
fn most_alike(edges: Vec<NamedEdge>, most: usize) -> Vec<NamedEdge> {
    let score = |place: &usize| edges[*place].score.unwrap_or_default();
    let mut places: Vec<usize> = (0..edges.len()).collect();
    places.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
    places.truncate(most);
    places.sort_unstable();
    places
        .into_iter()
        .map(|place| edges[place].clone())
        .collect()
}

/// A question for each edge.
pub(super) fn questions(
    given: Given<'_>,
    edges: &[NamedEdge],
    parsed: &[ParsedApi],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
    let words = |name: &str| {
        let found = parsed.iter().find(|api| api.api == name);
        found.ok_or_else(|| {
            PipelineError::Usage(format!(
                "an edge names {name:?}, of which the stage parse has no words; take the edge out, \
                 or run the stage again with --stage parse"
            ))
        })
    };
    let question = |edge: &NamedEdge| {
        let (source, target) = (given.document(&edge.source)?, given.document(&edge.target)?);
        given.ask(
            prompts,
            Question {
                id: edge.label(),
                prompt: prompts::FILTER,
                values: &[
                    ("source_document", &shown_document(source)),
                    ("output", &words(&edge.source)?.output),
                    ("target_document", &shown_document(target)),
                    ("parameter", &edge.parameter),
                    ("meaning", words(&edge.target)?.meaning(&edge.parameter)),
                ],
                schema: verdict_schema(),
                freedom: Freedom::None,
            },
        )
    };
    edges.iter().map(question).collect()
}

/// Keeps the edges that a model finds to hold, with its reasons.
///
/// # Source
///
/// GOAT, section 3.1.1: filtering via LLM.
pub(super) fn filter(
    run: &mut Run<'_>,
    edges: Vec<NamedEdge>,
    asked: &[Asked],
) -> Result<Made<NamedEdge>, PipelineError> {
    let verdicts = run.ask(FILTER, asked, &|_, text| verdict(text))?;
    Ok(Made::of(edges.into_iter().zip(verdicts).map(
        |(edge, verdict)| {
            let verdict = verdict?;
            if !verdict.is_connectable {
                let detail = excerpt(&verdict.reason);
                return Err(Dropped::new(&edge.label(), NOT_CONNECTABLE, detail));
            }
            Ok(NamedEdge {
                reason: Some(verdict.reason),
                ..edge
            })
        },
    )))
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
    fn the_most_alike_edges_stay_in_their_order() {
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
        let names = |most| {
            let kept = most_alike(edges.clone(), most);
            kept.into_iter().map(|edge| edge.source).collect::<Vec<_>>()
        };
        assert_eq!(names(3), ["a", "b", "d"]);
        assert_eq!(names(9), ["a", "b", "c", "d"]);
        assert!(names(0).is_empty());
    }
}
