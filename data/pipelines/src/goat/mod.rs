//! GOAT's data pipeline: documents of APIs become trajectories, with a language model.
//!
//! 1. `parse`: what each API takes and returns, in words.
//! 2. `graph`: edges from outputs to the parameters that are described alike.
//! 3. `filter`: a model says which of them hold, and why.
//! 4. `execute`: those stay whose APIs, called one after the other, hold.
//! 5. `subgraphs`: connected sub-graphs, each with an order of calls.
//! 6. `calls`: arguments, from earlier results where an edge leads, and what the calls give.
//! 7. `sub-queries`, `query`, `response`: the words of the user and of the answer.
//!
//! A run that makes the rows of an earlier one anew begins with the sub-graphs of these.
//!
//! A call of an API is in the journal as a reply is, and is made once in a folder, whichever edges
//! and tasks need it. The decision to question: values that are made up are drawn, so that edges and
//! tasks with one API get different ones; everything else is asked for at temperature 0.
//!
//! # Source
//!
//! GOAT, section 3.1 and appendices A, D and I.

mod asking;
mod calls;
mod earlier;
mod execute;
mod graph;
mod items;
mod options;
mod origins;
mod parse;
mod plan;
mod prompts;
mod review;
mod splits;
mod subgraphs;
mod truth;
mod words;

#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_agents::Method;
use tooltune_agents::executors::Executor;
use tooltune_agents::pairs::PairSet;
use tooltune_rows::tools::{ApiCatalogue, Trajectory};
use tooltune_suites::SentenceEncoder;
use tooltune_synth::graph::NamedEdge;

use self::asking::Given;
use self::earlier::Earlier;
use self::items::{CalledTask, ParsedApi, Task};
use self::options::{catalogue_of, check, check_held_out, settings_of};
use crate::ask::StagePlan;
use crate::error::PipelineError;
use crate::generator::ModelInfo;
use crate::prompts::Prompts;
use crate::report::Report;
use crate::run::{Opening, Place, Run, Stage};

pub use self::options::GoatOptions;
pub use self::prompts::PROMPTS;
pub use self::review::{ReviewLine, Reviewed, apply_review, review_lines};
pub use self::splits::{SplitShares, Splits, split};
pub use self::truth::{EdgeScores, EdgeTruth};

const PARSE: &str = "parse";
const GRAPH: &str = "graph";
const FILTER: &str = "filter";
const EXECUTE: &str = "execute";
const SUBGRAPHS: &str = "subgraphs";
const CALLS: &str = "calls";
const SUB_QUERIES: &str = "sub-queries";
const QUERY: &str = "query";
const RESPONSE: &str = "response";

/// All rows, in the folder of the pipeline; the splits lie beside it.
pub const TRAJECTORIES_FILE: &str = "trajectories.jsonl";
/// The rows of training.
pub const TRAIN_FILE: &str = "train.jsonl";
/// The documents with the global functions.
pub const DOCUMENTS_FILE: &str = "documents.jsonl";
/// The pairs of the rows of training, for a retriever.
pub const PAIRS_FILE: &str = "pairs.jsonl";

/// The split on the tools of training.
const TEST_SEEN: &str = "test_seen";

/// The stages in their order.
pub const STAGES: &[Stage] = &[
    Stage {
        name: PARSE,
        file: "parsed.jsonl",
    },
    Stage {
        name: GRAPH,
        file: "edges.jsonl",
    },
    Stage {
        name: FILTER,
        file: "filtered.jsonl",
    },
    Stage {
        name: EXECUTE,
        file: "executed.jsonl",
    },
    Stage {
        name: SUBGRAPHS,
        file: "tasks.jsonl",
    },
    Stage {
        name: CALLS,
        file: "called.jsonl",
    },
    Stage {
        name: SUB_QUERIES,
        file: "sub_queries.jsonl",
    },
    Stage {
        name: QUERY,
        file: "queries.jsonl",
    },
    Stage {
        name: RESPONSE,
        file: TRAJECTORIES_FILE,
    },
];

/// The first of the stages that a run has which makes rows of an earlier one anew.
const FIRST_AGAIN: usize = 4;

/// A pipeline with what it is given, read.
#[derive(Debug)]
pub struct GoatPipeline {
    options: GoatOptions,
    prompts: Prompts,
    settings: Map<String, Value>,
    catalogue: ApiCatalogue,
    earlier: Option<Earlier>,
}

/// Where and with what GOAT's pipeline runs.
pub struct GoatPlace<'a> {
    /// As any pipeline.
    pub place: Place<'a>,
    /// What compares descriptions; a run that makes rows anew needs none.
    pub encoder: Option<&'a dyn SentenceEncoder>,
    /// What answers calls.
    pub executor: &'a mut dyn Executor,
}

impl std::fmt::Debug for GoatPlace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GoatPlace")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatOutcome {
    /// What became of the stages.
    pub report: Report,
    /// What there is to say of the files as they were found and of the replies.
    pub notes: Vec<String>,
    /// The result; none before the last stage is done.
    pub made: Option<GoatMade>,
}

/// The result of a pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatMade {
    /// The edges that have held.
    pub edges: Vec<NamedEdge>,
    /// The rows.
    pub splits: Splits,
    /// Pairs of a query of training and a document.
    pub n_pairs: usize,
}

impl GoatPipeline {
    /// Reads prompts and documents.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or holds something else
    /// - a folder of prompts as [`Prompts::open`] says
    /// - options that cannot be, such as a tool to hold out that there is not
    /// - the earlier run is not done, or of other documents
    pub fn read(options: GoatOptions, prompts: Option<&Path>) -> Result<Self, PipelineError> {
        check(&options)?;
        let catalogue = catalogue_of(&options)?;
        check_held_out(&options.hold_out, &catalogue)?;
        let earlier = match &options.seen_from {
            Some(dir) => Some(Earlier::read(dir, &catalogue)?),
            None => None,
        };
        let settings = settings_of(&options, earlier.as_ref())?;
        Ok(Self {
            prompts: Prompts::open(PROMPTS, prompts)?,
            settings,
            catalogue,
            earlier,
            options,
        })
    }

    /// The documents.
    pub fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn given(&self) -> Given<'_> {
        Given {
            options: &self.options,
            catalogue: &self.catalogue,
            earlier: self.earlier.as_ref(),
        }
    }

    fn stages(&self) -> &'static [Stage] {
        match self.earlier {
            Some(_) => &STAGES[FIRST_AGAIN..],
            None => STAGES,
        }
    }

    /// What each stage would ask and call in this folder, without anything being sent or written:
    /// exactly for what is there, and at most for what still has to come.
    ///
    /// # Errors
    ///
    /// As [`GoatPipeline::run`] before its first request.
    pub fn plan(&self, dir: &Path, model: &dyn ModelInfo) -> Result<Vec<StagePlan>, PipelineError> {
        plan::plan(self, dir, model)
    }

    /// Runs the stages that are not done, and parts the rows.
    ///
    /// # Errors
    ///
    /// - the folder was begun with other settings, prompts, documents or by another model
    /// - the budget is used up, the user ends the work, or what generates cannot continue; the
    ///   same call continues from there
    /// - the encoder fails, or there are too many edges or sub-graphs
    /// - files cannot be read or written
    pub fn run(self, place: GoatPlace<'_>) -> Result<GoatOutcome, PipelineError> {
        let stages = self.stages();
        let Self {
            options,
            prompts,
            settings,
            catalogue,
            earlier,
        } = self;
        let mut run = Run::open(Opening {
            place: place.place,
            stages,
            settings,
            prompts,
        })?;
        let given = Given {
            options: &options,
            catalogue: &catalogue,
            earlier: earlier.as_ref(),
        };
        if options.has_global_functions {
            run.write_lines(DOCUMENTS_FILE, catalogue.documents())?;
        }
        let result = stages_of(&mut run, given, place.encoder, place.executor)?;
        let made = match result {
            Some((edges, rows)) => Some(part(&run, given, edges, rows)?),
            None => None,
        };
        Ok(GoatOutcome {
            report: run.report().clone(),
            notes: run.notes(),
            made,
        })
    }
}

/// What the stages come to.
type EdgesAndRows = (Vec<NamedEdge>, Vec<Trajectory>);

/// The edges and the rows, once the last stage is done.
fn stages_of(
    run: &mut Run<'_>,
    given: Given<'_>,
    encoder: Option<&dyn SentenceEncoder>,
    executor: &mut dyn Executor,
) -> Result<Option<EdgesAndRows>, PipelineError> {
    let (tasks, edges) = match (given.earlier, encoder) {
        (Some(earlier), _) => {
            let GoatOptions { rows, seed, .. } = *given.options;
            (
                run.stage(SUBGRAPHS, |_| Ok(earlier.tasks(rows, seed)))?,
                Vec::new(),
            )
        }
        (None, Some(encoder)) => match edges_of(run, given, encoder, executor)? {
            Some(edges) => {
                let tasks = run.stage(SUBGRAPHS, |_| subgraphs::tasks(given, edges.clone()))?;
                (tasks, edges)
            }
            None => (None, Vec::new()),
        },
        (None, None) => {
            let fault = "outputs and parameters are compared, but no encoder is given";
            return Err(PipelineError::Usage(fault.to_owned()));
        }
    };
    let Some(tasks) = tasks else { return Ok(None) };
    let rows = rows_of(run, given, tasks, executor)?;
    Ok(rows.map(|rows| (edges, rows)))
}

/// The edges, once they are executed.
fn edges_of(
    run: &mut Run<'_>,
    given: Given<'_>,
    encoder: &dyn SentenceEncoder,
    executor: &mut dyn Executor,
) -> Result<Option<Vec<NamedEdge>>, PipelineError> {
    let parsed: Option<Vec<ParsedApi>> = run.stage(PARSE, |run| parse::parse(run, given))?;
    let Some(parsed) = parsed else {
        return Ok(None);
    };
    let edges = run.stage(GRAPH, |_| graph::similar(given, &parsed, encoder))?;
    let Some(edges) = edges else { return Ok(None) };
    let edges = run.stage(FILTER, |run| {
        let asked = graph::questions(given, &edges, &parsed, run.prompts())?;
        graph::filter(run, edges, &asked)
    })?;
    let Some(edges) = edges else { return Ok(None) };
    run.stage(EXECUTE, |run| execute::execute(run, given, edges, executor))
}

/// The rows of tasks, once the last stage is done.
fn rows_of(
    run: &mut Run<'_>,
    given: Given<'_>,
    tasks: Vec<Task>,
    executor: &mut dyn Executor,
) -> Result<Option<Vec<Trajectory>>, PipelineError> {
    let tasks: Option<Vec<CalledTask>> =
        run.stage(CALLS, |run| calls::make(run, given, tasks, executor))?;
    let Some(tasks) = tasks else { return Ok(None) };
    let tasks = run.stage(SUB_QUERIES, |run| {
        let asked = words::sub_queries(given, &tasks, run.prompts())?;
        words::ask_sub_queries(run, tasks, &asked)
    })?;
    let Some(tasks) = tasks else { return Ok(None) };
    let tasks = run.stage(QUERY, |run| {
        let asked = words::queries(given, &tasks, run.prompts())?;
        words::ask_queries(run, given, tasks, &asked)
    })?;
    let Some(tasks) = tasks else { return Ok(None) };
    run.stage(RESPONSE, |run| {
        let asked = words::responses(given, &tasks, run.prompts())?;
        words::ask_responses(run, given, tasks, &asked)
    })
}

/// A line of pairs.
#[derive(Debug, Serialize)]
struct NamedPair<'a> {
    query: &'a str,
    positive: &'a str,
}

/// Writes the splits, and the pairs of training.
fn part(
    run: &Run<'_>,
    given: Given<'_>,
    edges: Vec<NamedEdge>,
    rows: Vec<Trajectory>,
) -> Result<GoatMade, PipelineError> {
    let GoatOptions {
        shares,
        seed,
        hold_out,
        ..
    } = given.options;
    if given.earlier.is_some() {
        run.write_lines(&format!("{TEST_SEEN}.jsonl"), &rows)?;
        let splits = Splits {
            test_seen: rows,
            ..Splits::default()
        };
        return Ok(GoatMade {
            edges,
            n_pairs: 0,
            splits,
        });
    }
    let splits = split(rows, given.catalogue, *shares, hold_out, *seed);
    for (name, rows) in splits.named() {
        run.write_lines(&format!("{name}.jsonl"), rows)?;
    }
    let set = PairSet::of_trajectories(&splits.train, given.catalogue, Method::Global)?;
    let pairs: Vec<NamedPair<'_>> = set
        .pairs()
        .iter()
        .map(|pair| NamedPair {
            query: &set.queries()[pair.query],
            positive: &set.documents()[pair.document],
        })
        .collect();
    run.write_lines(PAIRS_FILE, &pairs)?;
    Ok(GoatMade {
        edges,
        n_pairs: pairs.len(),
        splits,
    })
}
