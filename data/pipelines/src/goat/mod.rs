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
//! A call of an API is in the journal as a reply is, and is made once in a folder, whichever edges
//! and tasks need it. The decision to question: values that are made up are drawn, so that edges and
//! tasks with one API get different ones; everything else is asked for at temperature 0.
//!
//! # Source
//!
//! GOAT, section 3.1 and appendices A, D and I.

mod asking;
mod calls;
mod execute;
mod graph;
mod items;
mod origins;
mod parse;
mod plan;
mod prompts;
mod splits;
mod subgraphs;
mod words;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};
use tooltune_agents::Method;
use tooltune_agents::executors::Executor;
use tooltune_agents::pairs::PairSet;
use tooltune_rows::tools::{ApiCatalogue, Trajectory};
use tooltune_suites::SentenceEncoder;
use tooltune_synth::graph::NamedEdge;

use self::asking::Given;
use self::items::{CalledTask, ParsedApi, Task};
use crate::ask::StagePlan;
use crate::error::PipelineError;
use crate::files::WholeFiles;
use crate::generator::{Generator, ModelInfo};
use crate::prompts::Prompts;
use crate::report::Report;
use crate::run::{Limits, MAX_TOKENS, Opening, Progress, Run, Stage, check_range, digest_of};

pub use self::prompts::PROMPTS;
pub use self::splits::{SplitShares, Splits, split};

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
/// The pairs of the rows of training, for a retriever.
pub const PAIRS_FILE: &str = "pairs.jsonl";

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

/// What is made.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatOptions {
    /// The file of API documents.
    pub documents: PathBuf,
    /// Least cosine of an edge.
    pub threshold: f64,
    /// Most edges that a model is asked about, the most alike ones; all by default.
    pub max_edges: Option<usize>,
    /// Fewest calls of a task.
    pub min_calls: usize,
    /// Most calls of a task.
    pub max_calls: usize,
    /// Most sub-graphs that are met.
    pub max_subgraphs: usize,
    /// Most tasks that are drawn, of which each may become a row.
    pub rows: usize,
    /// The parts of the splits.
    pub shares: SplitShares,
    /// Seed of all draws.
    pub seed: u64,
    /// At which values are made up.
    pub temperature: f64,
    /// Characters of a result in a prompt.
    pub output_limit: usize,
    /// Tokens that a reply may have.
    pub reply_tokens: usize,
    /// What tells the encoder from others, such as a digest of its weights.
    pub encoder: String,
    /// What tells the executor from others.
    pub executor: Value,
}

/// A pipeline with what it is given, read.
#[derive(Debug)]
pub struct GoatPipeline {
    options: GoatOptions,
    prompts: Prompts,
    settings: Map<String, Value>,
    catalogue: ApiCatalogue,
}

/// Where and with what a pipeline runs.
pub struct GoatPlace<'a> {
    /// Its folder.
    pub dir: &'a Path,
    /// What generates.
    pub generator: &'a dyn Generator,
    /// What compares descriptions.
    pub encoder: &'a dyn SentenceEncoder,
    /// What answers calls.
    pub executor: &'a mut dyn Executor,
    /// What makes files.
    pub files: &'a dyn WholeFiles,
    /// The budget.
    pub limits: Limits,
    /// The one stage that is made.
    pub only: Option<&'a str>,
    /// Shown how far the work is; it ends the work by returning false.
    pub watch: &'a mut dyn FnMut(&Progress) -> bool,
}

impl std::fmt::Debug for GoatPlace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GoatPlace")
            .field("dir", &self.dir)
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
    /// - options that cannot be
    pub fn read(options: GoatOptions, prompts: Option<&Path>) -> Result<Self, PipelineError> {
        check(&options)?;
        let catalogue = ApiCatalogue::read(&options.documents)?;
        let settings = json!({
            "pipeline": "goat",
            "documents": digest_of(&options.documents)?,
            "threshold": options.threshold,
            "max-edges": options.max_edges,
            "min-calls": options.min_calls,
            "max-calls": options.max_calls,
            "max-subgraphs": options.max_subgraphs,
            "rows": options.rows,
            "seed": options.seed,
            "temperature": options.temperature,
            "output-limit": options.output_limit,
            "reply-tokens": options.reply_tokens,
            "encoder": options.encoder,
            "executor": options.executor,
        });
        Ok(Self {
            prompts: Prompts::open(PROMPTS, prompts)?,
            settings: settings.as_object().cloned().unwrap_or_default(),
            catalogue,
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
        let Self {
            options,
            prompts,
            settings,
            catalogue,
        } = self;
        let mut run = Run::open(Opening {
            dir: place.dir,
            stages: STAGES,
            settings,
            prompts,
            generator: place.generator,
            files: place.files,
            limits: place.limits,
            only: place.only,
            watch: place.watch,
        })?;
        let given = Given {
            options: &options,
            catalogue: &catalogue,
        };
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

fn check(options: &GoatOptions) -> Result<(), PipelineError> {
    let SplitShares {
        dev,
        test_seen,
        test_unseen,
    } = options.shares;
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    let sum = dev + test_seen + test_unseen;
    let fault = if options.rows == 0 {
        "--rows 0: nothing is made; give at least 1".to_owned()
    } else if !(-1.0..=1.0).contains(&options.threshold) {
        let threshold = options.threshold;
        format!("--threshold {threshold}: give a cosine, a number from -1 to 1")
    } else if options.min_calls == 0 || options.min_calls > options.max_calls {
        let (min, max) = (options.min_calls, options.max_calls);
        format!("--min-calls {min} and --max-calls {max}: give the fewest first, at least 1")
    } else if options.max_edges == Some(0) {
        "--max-edges 0: no edge is asked about; give at least 1".to_owned()
    } else if !(0.0..=2.0).contains(&options.temperature) {
        let temperature = options.temperature;
        format!("--temperature {temperature}: give a number from 0 to 2")
    } else if ![dev, test_seen, test_unseen].into_iter().all(is_share) || sum > 1.0 {
        "the shares of the splits: give numbers from 0 to 1 that are at most 1 together".to_owned()
    } else {
        return check_range("--reply-tokens", options.reply_tokens, MAX_TOKENS);
    };
    Err(PipelineError::Usage(fault))
}

/// The edges and the rows, once the last stage is done.
fn stages_of(
    run: &mut Run<'_>,
    given: Given<'_>,
    encoder: &dyn SentenceEncoder,
    executor: &mut dyn Executor,
) -> Result<Option<(Vec<NamedEdge>, Vec<Trajectory>)>, PipelineError> {
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
    let edges = run.stage(EXECUTE, |run| execute::execute(run, given, edges, executor))?;
    let Some(edges) = edges else { return Ok(None) };
    let tasks: Option<Vec<Task>> =
        run.stage(SUBGRAPHS, |_| subgraphs::tasks(given, edges.clone()))?;
    let Some(tasks) = tasks else { return Ok(None) };
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
        words::ask_queries(run, tasks, &asked)
    })?;
    let Some(tasks) = tasks else { return Ok(None) };
    let rows = run.stage(RESPONSE, |run| {
        let asked = words::responses(given, &tasks, run.prompts())?;
        words::ask_responses(run, given, tasks, &asked)
    })?;
    Ok(rows.map(|rows| (edges, rows)))
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
    let options = given.options;
    let splits = split(rows, given.catalogue, options.shares, options.seed);
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
