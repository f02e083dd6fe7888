//! GOAT's data pipeline: generates trajectories from API documents with a language model.
//!
//! 1. `parse`: describes the inputs and outputs of each API.
//! 2. `graph`: edges from outputs to similarly described parameters.
//! 3. `filter`: a model selects the edges that hold, with reasons.
//! 4. `execute`: keeps the edges whose APIs, called one after another, confirm them.
//! 5. `subgraphs`: connected sub-graphs, each with a call order.
//! 6. `calls`: arguments, taken from earlier results along edges, and the results of the calls.
//! 7. `sub-queries`, `query`, `response`: the texts of the user and of the answer.
//!
//! A run that generates the rows of an earlier run again starts with the sub-graphs of these rows.
//!
//! API calls are stored in the journal like replies, and each call is made once per folder, even if
//! several edges and tasks need it. Values that the model makes up are sampled, so that edges and
//! tasks with the same API get different ones; all other requests use temperature 0.
//!
//! # Source
//!
//! GOAT, section 3.1 and appendices A, D and I.

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
mod stage_prompts;
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
use tooltune_apis::{ApiCatalogue, Trajectory};
use tooltune_suites::SentenceEncoder;
use tooltune_synth::graph::NamedEdge;

use self::earlier::EarlierRun;
use self::items::{CalledTask, ParsedApi, Task};
use self::options::{catalogue_of, check, check_held_out, settings_of};
use self::stage_prompts::StageInput;
use crate::ask::StagePlan;
use crate::error::PipelineError;
use crate::generator::ModelInfo;
use crate::prompts::Prompts;
use crate::report::Report;
use crate::run::{Run, RunContext, RunInput, Stage};

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

/// All rows, in the folder of the pipeline, next to the splits.
pub const TRAJECTORIES_FILE: &str = "trajectories.jsonl";
/// The training rows.
pub const TRAIN_FILE: &str = "train.jsonl";
/// The documents, including the global functions.
pub const DOCUMENTS_FILE: &str = "documents.jsonl";
/// The training pairs for a retriever.
pub const PAIRS_FILE: &str = "pairs.jsonl";

/// The test split on the training tools.
const TEST_SEEN: &str = "test_seen";

/// The stages in order.
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

/// Index of the first stage of a run that generates rows of an earlier run again.
const FIRST_AGAIN: usize = 4;

/// A pipeline with its parsed input.
#[derive(Debug)]
pub struct GoatPipeline {
    options: GoatOptions,
    prompts: Prompts,
    settings: Map<String, Value>,
    catalogue: ApiCatalogue,
    earlier: Option<EarlierRun>,
}

/// Folder and services of a GOAT run.
pub struct GoatContext<'a> {
    /// Folder and services of any pipeline.
    pub place: RunContext<'a>,
    /// Encoder for descriptions; not needed to generate rows of an earlier run again.
    pub encoder: Option<&'a dyn SentenceEncoder>,
    /// Executes API calls.
    pub executor: &'a mut dyn Executor,
}

impl std::fmt::Debug for GoatContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GoatContext")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatOutcome {
    /// The reports of the stages.
    pub report: Report,
    /// Remarks about the files and the replies.
    pub notes: Vec<String>,
    /// The result; `None` until the last stage is done.
    pub data_set: Option<GoatDataSet>,
}

/// The result of a pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatDataSet {
    /// The confirmed edges.
    pub edges: Vec<NamedEdge>,
    /// The rows.
    pub splits: Splits,
    /// Number of pairs of a training query and a document.
    pub n_pairs: usize,
}

impl GoatPipeline {
    /// Reads prompts and documents.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or has unexpected content
    /// - a folder of prompts is invalid, see [`Prompts::open`]
    /// - an option is invalid, such as an unknown tool to hold out
    /// - the earlier run is not complete, or used other documents
    pub fn read(options: GoatOptions, prompts: Option<&Path>) -> Result<Self, PipelineError> {
        check(&options)?;
        let catalogue = catalogue_of(&options)?;
        check_held_out(&options.hold_out, &catalogue)?;
        let earlier = match &options.seen_from {
            Some(dir) => Some(EarlierRun::read(dir, &catalogue)?),
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

    fn input(&self) -> StageInput<'_> {
        StageInput {
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

    /// The requests and calls of each stage in this folder, without sending or writing anything:
    /// exact for existing items, upper bounds for the others.
    ///
    /// # Errors
    ///
    /// As for [`GoatPipeline::run`] before its first request.
    pub fn plan(&self, dir: &Path, model: &dyn ModelInfo) -> Result<Vec<StagePlan>, PipelineError> {
        plan::plan(self, dir, model)
    }

    /// Runs the stages that are not done, and splits the rows.
    ///
    /// # Errors
    ///
    /// - the folder was created with other settings, prompts, documents or another model
    /// - the budget is used up, the user stops the work, or the generator fails; the same call
    ///   continues from there
    /// - the encoder fails, or there are too many edges or sub-graphs
    /// - files cannot be read or written
    pub fn run(self, services: GoatContext<'_>) -> Result<GoatOutcome, PipelineError> {
        let stages = self.stages();
        let Self {
            options,
            prompts,
            settings,
            catalogue,
            earlier,
        } = self;
        let mut run = Run::open(RunInput {
            place: services.place,
            stages,
            settings,
            prompts,
        })?;
        let input = StageInput {
            options: &options,
            catalogue: &catalogue,
            earlier: earlier.as_ref(),
        };
        if options.has_global_functions {
            run.write_lines(DOCUMENTS_FILE, catalogue.documents())?;
        }
        let result = stages_of(&mut run, input, services.encoder, services.executor)?;
        let data_set = match result {
            Some((edges, rows)) => Some(write_splits(&run, input, edges, rows)?),
            None => None,
        };
        Ok(GoatOutcome {
            report: run.report().clone(),
            notes: run.notes(),
            data_set,
        })
    }
}

/// The results of the stages.
type EdgesAndRows = (Vec<NamedEdge>, Vec<Trajectory>);

/// The edges and the rows, once the last stage is done.
fn stages_of(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    encoder: Option<&dyn SentenceEncoder>,
    executor: &mut dyn Executor,
) -> Result<Option<EdgesAndRows>, PipelineError> {
    let (tasks, edges) = match (input.earlier, encoder) {
        (Some(earlier), _) => {
            let GoatOptions { rows, seed, .. } = *input.options;
            (
                run.stage(SUBGRAPHS, |_| Ok(earlier.tasks(rows, seed)))?,
                Vec::new(),
            )
        }
        (None, Some(encoder)) => match edges_of(run, input, encoder, executor)? {
            Some(edges) => {
                let tasks = run.stage(SUBGRAPHS, |_| subgraphs::tasks(input, edges.clone()))?;
                (tasks, edges)
            }
            None => (None, Vec::new()),
        },
        (None, None) => {
            let message = "comparing outputs with parameters needs an encoder, but there is none";
            return Err(PipelineError::Usage(message.to_owned()));
        }
    };
    let Some(tasks) = tasks else { return Ok(None) };
    let rows = rows_of(run, input, tasks, executor)?;
    Ok(rows.map(|rows| (edges, rows)))
}

/// The edges, once they are executed.
fn edges_of(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    encoder: &dyn SentenceEncoder,
    executor: &mut dyn Executor,
) -> Result<Option<Vec<NamedEdge>>, PipelineError> {
    let parsed: Option<Vec<ParsedApi>> = run.stage(PARSE, |run| parse::parse(run, input))?;
    let Some(parsed) = parsed else {
        return Ok(None);
    };
    let is_refused = |name: &str| executor.refusal(name).is_some();
    let edges = run.stage(GRAPH, |_| {
        graph::similar_edges(input, &parsed, encoder, &is_refused)
    })?;
    let Some(edges) = edges else { return Ok(None) };
    let edges = run.stage(FILTER, |run| {
        let item_prompts = graph::item_prompts(input, &edges, &parsed, run.prompts())?;
        graph::filter(run, edges, &item_prompts)
    })?;
    let Some(edges) = edges else { return Ok(None) };
    run.stage(EXECUTE, |run| execute::execute(run, input, edges, executor))
}

/// The rows of tasks, once the last stage is done.
fn rows_of(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    tasks: Vec<Task>,
    executor: &mut dyn Executor,
) -> Result<Option<Vec<Trajectory>>, PipelineError> {
    let tasks: Option<Vec<CalledTask>> =
        run.stage(CALLS, |run| calls::make_calls(run, input, tasks, executor))?;
    let Some(tasks) = tasks else { return Ok(None) };
    let tasks = run.stage(SUB_QUERIES, |run| {
        let item_prompts = words::sub_queries(input, &tasks, run.prompts())?;
        words::ask_sub_queries(run, tasks, &item_prompts)
    })?;
    let Some(tasks) = tasks else { return Ok(None) };
    let tasks = run.stage(QUERY, |run| {
        let item_prompts = words::queries(input, &tasks, run.prompts())?;
        words::ask_queries(run, input, tasks, &item_prompts)
    })?;
    let Some(tasks) = tasks else { return Ok(None) };
    run.stage(RESPONSE, |run| {
        let item_prompts = words::responses(input, &tasks, run.prompts())?;
        words::ask_responses(run, input, tasks, &item_prompts)
    })
}

/// A line of the pairs file.
#[derive(Debug, Serialize)]
struct NamedPair<'a> {
    query: &'a str,
    positive: &'a str,
}

/// Writes the splits and the training pairs.
fn write_splits(
    run: &Run<'_>,
    input: StageInput<'_>,
    edges: Vec<NamedEdge>,
    rows: Vec<Trajectory>,
) -> Result<GoatDataSet, PipelineError> {
    let GoatOptions {
        shares,
        seed,
        hold_out,
        ..
    } = input.options;
    if input.earlier.is_some() {
        run.write_lines(&format!("{TEST_SEEN}.jsonl"), &rows)?;
        let splits = Splits {
            test_seen: rows,
            ..Splits::default()
        };
        return Ok(GoatDataSet {
            edges,
            n_pairs: 0,
            splits,
        });
    }
    let splits = split(rows, input.catalogue, *shares, hold_out, *seed);
    for (name, rows) in splits.named_splits() {
        run.write_lines(&format!("{name}.jsonl"), rows)?;
    }
    let set = PairSet::from_trajectories(&splits.train, input.catalogue, Method::Global)?;
    let pairs: Vec<NamedPair<'_>> = set
        .pairs()
        .iter()
        .map(|pair| NamedPair {
            query: &set.queries()[pair.query],
            positive: &set.documents()[pair.document],
        })
        .collect();
    run.write_lines(PAIRS_FILE, &pairs)?;
    Ok(GoatDataSet {
        edges,
        n_pairs: pairs.len(),
        splits,
    })
}
