//! The requests and calls of each stage in a folder, before anything is sent.

use std::path::Path;

use tooltune_synth::graph::NamedEdge;

use super::items::{CalledTask, ParsedApi, Task};
use super::stage_prompts::{StageInput, shown_document};
use super::{
    CALLS, EXECUTE, FILTER, GRAPH, GoatPipeline, PARSE, QUERY, RESPONSE, SUB_QUERIES, SUBGRAPHS,
    calls, execute, graph, parse, prompts, words,
};
use crate::ask::StagePlan;
use crate::error::PipelineError;
use crate::generator::ModelInfo;
use crate::journal::Journal;
use crate::run::{all_settings, read_items};

/// The state for building a plan.
struct Planner<'a> {
    pipeline: &'a GoatPipeline,
    dir: &'a Path,
    journal: Journal,
    model: &'a dyn ModelInfo,
    plans: Vec<StagePlan>,
}

/// The plan of each stage: exact for existing items, upper bounds for the others.
pub(super) fn plan(
    pipeline: &GoatPipeline,
    dir: &Path,
    model: &dyn ModelInfo,
) -> Result<Vec<StagePlan>, PipelineError> {
    let settings = all_settings(&pipeline.settings, &pipeline.prompts, model);
    let mut planner = Planner {
        journal: Journal::open_read_only(dir, &settings)?,
        pipeline,
        dir,
        model,
        plans: Vec::new(),
    };
    if pipeline.earlier.is_none() {
        planner.graph_stages()?;
    }
    planner.task_stages()?;
    Ok(planner.plans)
}

impl Planner<'_> {
    fn input(&self) -> StageInput<'_> {
        self.pipeline.input()
    }

    fn items<T: serde::de::DeserializeOwned>(
        &self,
        stage: &str,
    ) -> Result<Option<Vec<T>>, PipelineError> {
        read_items(self.dir, self.pipeline.stages(), stage)
    }

    fn add_exact(&mut self, stage: &'static str, item_prompts: &[crate::ask::ItemPrompt]) {
        let plan = StagePlan::for_items(stage, item_prompts, &self.journal, self.model);
        self.plans.push(plan);
    }

    /// Adds an upper bound for a stage; `bound` describes its requests and their prompts.
    fn add_upper_bound(&mut self, stage: &'static str, bound: Bound) -> Result<(), PipelineError> {
        let options = &self.pipeline.options;
        let n_stored = StagePlan::n_first_replies(stage, &self.journal).min(bound.n_requests);
        let n_remaining = bound.n_requests - n_stored;
        let mut frame = 0;
        for name in bound.prompts {
            let file = prompts::PROMPTS.iter().find(|file| file.name == *name);
            let variables = file.map_or(&[][..], |file| file.variables);
            let empty: Vec<(&str, &str)> = variables.iter().map(|name| (*name, "")).collect();
            let text = self.pipeline.prompts.render(name, &empty)?;
            frame = frame.max(self.model.count_tokens(&text));
        }
        let documents = self.pipeline.catalogue.iter();
        let longest = documents
            .map(|document| self.model.count_tokens(&shown_document(document)))
            .max()
            .unwrap_or(0);
        // A character is at most one token, except for rare multi-byte ones.
        let tokens = frame
            + bound.n_documents * longest
            + bound.n_results * options.output_limit
            + bound.n_replies * options.reply_tokens;
        let mut plan = StagePlan::upper_bound(stage, n_remaining, tokens, options.reply_tokens);
        plan.n_requests = bound.n_requests;
        plan.n_stored = n_stored;
        plan.n_api_calls = bound.n_api_calls;
        self.plans.push(plan);
        Ok(())
    }

    /// Adds a completed stage, which sends nothing and calls no API.
    fn add_done(&mut self, stage: &'static str) {
        let n_stored = StagePlan::n_first_replies(stage, &self.journal);
        let mut plan = StagePlan::upper_bound(stage, 0, 0, 0);
        plan.n_requests = n_stored;
        plan.n_stored = n_stored;
        plan.is_at_most = false;
        self.plans.push(plan);
    }

    fn graph_stages(&mut self) -> Result<(), PipelineError> {
        let item_prompts = parse::item_prompts(self.input(), &self.pipeline.prompts)?;
        self.add_exact(PARSE, &item_prompts);
        let parsed: Option<Vec<ParsedApi>> = self.items(PARSE)?;
        let edges: Option<Vec<NamedEdge>> = self.items(GRAPH)?;
        let n_edges = match (&parsed, &edges) {
            (Some(parsed), Some(edges)) => {
                let item_prompts =
                    graph::item_prompts(self.input(), edges, parsed, &self.pipeline.prompts)?;
                self.add_exact(FILTER, &item_prompts);
                edges.len()
            }
            _ => {
                let n_complete = graph::n_complete(&self.pipeline.catalogue);
                let max_edges = self.pipeline.options.max_edges.unwrap_or(usize::MAX);
                let n_edges = n_complete.min(max_edges);
                let bound = Bound {
                    n_requests: n_edges,
                    prompts: &[prompts::FILTER],
                    n_documents: 2,
                    n_replies: 2,
                    ..Bound::default()
                };
                self.add_upper_bound(FILTER, bound)?;
                n_edges
            }
        };
        let n_filtered = match self.items::<NamedEdge>(FILTER)? {
            Some(edges) => edges.len(),
            None => n_edges,
        };
        if self.items::<NamedEdge>(EXECUTE)?.is_some() {
            self.add_done(EXECUTE);
            return Ok(());
        }
        let bound = Bound {
            n_requests: n_filtered.saturating_mul(execute::REQUESTS_PER_EDGE),
            prompts: &[prompts::FIRST_CALL, prompts::NEXT_CALL, prompts::CHECK_CALL],
            n_documents: 1,
            n_results: 1,
            n_replies: 1,
            n_api_calls: n_filtered.saturating_mul(execute::CALLS_PER_EDGE),
        };
        self.add_upper_bound(EXECUTE, bound)
    }

    fn task_stages(&mut self) -> Result<(), PipelineError> {
        let options = &self.pipeline.options;
        let most_rows = options.rows;
        let tasks: Option<Vec<Task>> = match &self.pipeline.earlier {
            Some(earlier) => Some(earlier.tasks(most_rows, options.seed).kept),
            None => self.items(SUBGRAPHS)?,
        };
        let lengths = tasks.iter().flatten().map(|task| task.apis.len());
        let most_calls = lengths.max().unwrap_or(options.max_calls);
        let called_tasks: Option<Vec<CalledTask>> = self.items(CALLS)?;
        let n_tasks = tasks.as_ref().map_or(most_rows, Vec::len);
        let n_calls = match &tasks {
            Some(tasks) => tasks.iter().map(|task| task.apis.len()).sum(),
            None => most_rows.saturating_mul(most_calls),
        };
        if called_tasks.is_some() {
            self.add_done(CALLS);
        } else {
            let n_requests = match &tasks {
                Some(tasks) => {
                    let n_task_requests = |task: &Task| calls::n_requests(task, self.input());
                    tasks.iter().map(n_task_requests).sum()
                }
                // The first call of a task needs one request, each other call two.
                None => most_rows.saturating_mul((2 * most_calls).saturating_sub(1)),
            };
            let bound = Bound {
                n_requests,
                prompts: &[
                    prompts::FIRST_CALL,
                    prompts::OTHER_CALL,
                    prompts::FILL_CALL,
                    prompts::COMPLETE_CALL,
                ],
                n_documents: 1,
                n_results: most_calls,
                n_replies: 1,
                n_api_calls: n_calls,
            };
            self.add_upper_bound(CALLS, bound)?;
        }
        let input = self.pipeline.input();
        let prompt_files = &self.pipeline.prompts;
        match &called_tasks {
            Some(tasks) => self.add_exact(
                SUB_QUERIES,
                &words::sub_queries(input, tasks, prompt_files)?,
            ),
            None => self.add_upper_bound(
                SUB_QUERIES,
                Bound {
                    n_requests: n_calls,
                    prompts: &[prompts::SUB_QUERY],
                    n_documents: 1,
                    n_results: most_calls,
                    n_replies: 1,
                    ..Bound::default()
                },
            )?,
        }
        let n_tasks = called_tasks.as_ref().map_or(n_tasks, Vec::len);
        match self.items::<CalledTask>(SUB_QUERIES)? {
            Some(tasks) => self.add_exact(QUERY, &words::queries(input, &tasks, prompt_files)?),
            None => self.add_upper_bound(
                QUERY,
                Bound {
                    n_requests: n_tasks,
                    prompts: &[prompts::QUERY],
                    n_replies: most_calls,
                    ..Bound::default()
                },
            )?,
        }
        match self.items::<CalledTask>(QUERY)? {
            Some(tasks) => {
                self.add_exact(RESPONSE, &words::responses(input, &tasks, prompt_files)?)
            }
            None => self.add_upper_bound(
                RESPONSE,
                Bound {
                    n_requests: n_tasks,
                    prompts: &[prompts::RESPONSE],
                    n_results: most_calls,
                    n_replies: most_calls + 1,
                    ..Bound::default()
                },
            )?,
        }
        Ok(())
    }
}

/// The upper bound of a stage.
#[derive(Default)]
struct Bound {
    n_requests: usize,
    /// The possible prompts; the longest one determines the bound.
    prompts: &'static [&'static str],
    /// Number of documents in a prompt.
    n_documents: usize,
    /// Number of call results in a prompt.
    n_results: usize,
    /// Number of earlier replies in a prompt.
    n_replies: usize,
    n_api_calls: usize,
}
