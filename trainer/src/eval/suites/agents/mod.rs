//! Agent loops over the queries of a suite, from documents, a model and an executor to outcomes.
//!
//! Every query has its own loop. A round collects the requests of all loops, embeds all texts
//! together, makes all calls, and completes all prompts in one batch. Outcomes are saved unscored,
//! so that scoring can be repeated without a model.

mod apibank;
mod executor;
mod goat;
mod report;
mod restbench;
mod suite;

pub use executor::{
    PlannedCall, PlannedCalls, RefusedApis, mcp_error, open_executor, planned_calls,
};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_agents::flat::FlatDocuments;
use tooltune_agents::{Agent, AgentLimits, AgentRequest, EndReason, Method, Outcome};
use tooltune_apis::ApiCatalogue;
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_suites::goat::{APIBANK, GoatError, RESTBENCH, SUITE};
use tooltune_suites::{Ceiling, JudgeVerdict};
use tooltune_template::Conversation;

use self::suite::AgentSuite;
use super::{Files, Metrics, SuiteKind};
use crate::config::{Config, Suite};
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::{DocumentIndex, texts_of};
use crate::error::{Error, SuiteError};
use crate::eval::by_file::ByFile;
use crate::eval::generator::{
    Completion, Constrainer, GenerationRequest, Generator, PromptText, Rounds, TextConstraint,
};
use crate::eval::journal::Journal;
use crate::eval::report_files::{JUDGE_FILE, PredictionLines, json_lines, report_files};
use crate::rows::{flat_documents, goat_options};
use tooltune_terminal::{GenerationProgress, Waiting, Work};

pub(super) static GOAT_KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |suite_context| AgentSuite::open(&SUITE, suite_context, goat::GoatBenchmark::open),
    change: None,
};

pub(super) static RESTBENCH_KIND: SuiteKind = SuiteKind {
    info: &RESTBENCH,
    open: |suite_context| {
        AgentSuite::open(
            &RESTBENCH,
            suite_context,
            restbench::RestBenchBenchmark::open,
        )
    },
    change: None,
};

pub(super) static APIBANK_KIND: SuiteKind = SuiteKind {
    info: &APIBANK,
    open: |suite_context| {
        AgentSuite::open(&APIBANK, suite_context, apibank::ApiBankBenchmark::open)
    },
    change: None,
};

impl SuiteError for GoatError {}

/// A query with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentTask {
    /// Unique id in the suite.
    pub id: String,
    /// User query.
    pub query: String,
}

/// The retriever over all documents, the method and the limits.
#[derive(Debug)]
pub(super) struct AgentLoops {
    index: DocumentIndex,
    method: Method,
    limits: AgentLimits,
    /// Maximum seconds per loop.
    max_time: Option<f64>,
    /// Whether plans, sub-queries and calls are constrained by schemas.
    constrained: bool,
    /// The flattened documents for the model and retriever, if the config flattens.
    flat: Option<FlatDocuments>,
}

/// The generator, executor and journal of the loops.
pub(super) struct Means<'a> {
    /// Generates completions.
    pub generator: Generator<'a>,
    /// Answers calls.
    pub executor: &'a mut dyn Executor,
    /// Contains the completions and call results of an interrupted evaluation, and saves new ones.
    pub journal: Option<&'a mut Journal>,
}

/// Queries for agents, and the scoring of outcomes.
pub(super) trait AgentBenchmark: Debug {
    /// All APIs.
    fn catalogue(&self) -> &ApiCatalogue;

    /// The queries, in order.
    fn tasks(&self) -> &[AgentTask];

    /// A remark about the data that matters for the scores.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Whether outcomes contain answers that a judge can rate.
    fn has_answers(&self) -> bool {
        true
    }

    /// Runs all queries and returns their outcomes in order; `None` if `watch` stopped the work.
    ///
    /// # Errors
    ///
    /// Same as [`AgentLoops::run`].
    fn outcomes(
        &self,
        loops: &AgentLoops,
        means: Means<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Outcome>>, Error> {
        loops.run(self.catalogue(), self.tasks(), means, watch)
    }

    /// Scores outcomes in the order of the queries, with the judge's verdicts if given.
    ///
    /// # Errors
    ///
    /// There are no queries, or a query has no reference calls.
    fn score(
        &self,
        outcomes: Vec<Outcome>,
        verdicts: Option<&[JudgeVerdict]>,
    ) -> Result<AgentScores, Error>;

    /// Adds retrieval metrics to `scores` if the suite has reference documents: how well the
    /// retriever of `loops` finds them for each text of the method.
    ///
    /// # Errors
    ///
    /// The tokenizer rejects a query.
    fn add_retrieval(&self, _scores: &mut AgentScores, _loops: &AgentLoops) -> Result<(), Error> {
        Ok(())
    }
}

/// Scores of a benchmark, ready to be written and printed.
#[derive(Debug, Clone)]
pub(super) struct AgentScores {
    /// Means by name, such as `goat.sa`; undefined ones are left out.
    pub metrics: Metrics,
    /// Means with intervals, by suite.
    pub report: BTreeMap<&'static str, Value>,
    /// Id, query, outcome and score of each query.
    pub predictions: Vec<Value>,
    /// Means as a Markdown table with the single line `this run`.
    pub table: String,
    /// Means of each file, if the queries are from several.
    pub by_file: Option<ByFile>,
    /// Metrics whose reference answers do not get the best score.
    pub ceilings: Vec<Ceiling>,
    /// Verdicts of the judge, if there is one.
    pub verdicts: Option<Vec<JudgeVerdict>>,
}

impl AgentScores {
    /// Builds `metrics.json`, `predictions.jsonl` with one line per query, and `judge.jsonl` with
    /// one line per verdict, if there are any.
    ///
    /// # Errors
    ///
    /// Never for outcomes of this crate.
    pub(super) fn files(&self, suite: Suite) -> Result<Files, Error> {
        let by_file = self.by_file.as_ref().map(ByFile::fields);
        let report = self.report.iter().map(|(name, value)| (*name, value));
        let report = report.chain(by_file.iter().flatten().map(|(k, v)| (k.as_str(), v)));
        let report: BTreeMap<&str, &Value> = report.collect();
        let lines = PredictionLines {
            suite: suite.info(),
            kind: "loop",
        };
        let mut files = report_files(lines, &report, &self.predictions)?;
        if let Some(verdicts) = &self.verdicts {
            files.insert(JUDGE_FILE.to_string(), json_lines(verdicts)?);
        }
        Ok(files)
    }
}

impl AgentLoops {
    /// Embeds the documents of `catalogue`.
    ///
    /// # Errors
    ///
    /// The config has no `[goat]` table, or the tokenizer rejects a document.
    pub(super) fn open(
        config: &Config,
        catalogue: &ApiCatalogue,
        retriever: MiniLmEncoder,
    ) -> Result<Self, Error> {
        let options = goat_options(config)?;
        let flat = flat_documents(config, catalogue)?;
        let visible = flat.as_ref().map_or(catalogue, FlatDocuments::catalogue);
        Ok(Self {
            index: DocumentIndex::new(retriever, &texts_of(visible))?,
            flat,
            method: options.method,
            limits: limit_rounds(options.limits(), config.eval.max_new_tokens),
            max_time: config.eval.max_time,
            constrained: config.eval.constrained,
        })
    }

    /// Index of the documents for the retriever.
    pub(super) fn index(&self) -> &DocumentIndex {
        &self.index
    }

    /// Prompting method.
    pub(super) fn method(&self) -> Method {
        self.method
    }

    /// Limits of a loop.
    pub(super) fn limits(&self) -> &AgentLimits {
        &self.limits
    }

    /// Runs one loop per task. Returns `None` if `watch` stopped the work. Completions and results
    /// from the journal are reused, and take none of a loop's time.
    ///
    /// # Errors
    ///
    /// The template rejects a prompt, or the journal cannot be written.
    pub(super) fn run(
        &self,
        catalogue: &ApiCatalogue,
        tasks: &[AgentTask],
        means: Means<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Outcome>>, Error> {
        let Means {
            generator,
            executor,
            mut journal,
        } = means;
        let mut agents: Vec<Agent<'_>> = tasks
            .iter()
            .map(|task| self.agent(&task.query, catalogue))
            .collect();
        let constrainer = if self.constrained {
            Some(generator.constrainer()?)
        } else {
            None
        };
        let mut rounds = Rounds::new(agents.len());
        let mut seconds = vec![0.0; agents.len()];
        let mut ends = vec![Vec::new(); agents.len()];
        let mut calls = Calls {
            executor,
            n_made: vec![0; agents.len()],
        };
        loop {
            let mut serving = Serving {
                watch: &mut *watch,
                n_done: agents.iter().filter(|agent| agent.is_done()).count(),
                n_total: tasks.len(),
            };
            let loops = Loops {
                tasks,
                index: &self.index,
                agents: &mut agents,
                seconds: &mut seconds,
            };
            if !calls.serve(loops, &mut serving, journal.as_deref_mut())? {
                return Ok(None);
            }
            self.stop_late(&mut agents, &seconds);
            let pending = pending_completions(&agents);
            if pending.is_empty() {
                break;
            }
            let n_done = agents.iter().filter(|agent| agent.is_done()).count();
            let constraints = constraints(constrainer.as_ref(), &pending);
            let prompts: Vec<GenerationRequest<'_>> = pending
                .iter()
                .zip(&constraints)
                .map(|(pending, constraint)| GenerationRequest {
                    id: &tasks[pending.agent].id,
                    text: PromptText::Chat(&pending.conversation),
                    max_new_tokens: pending.max_new_tokens,
                    constraint: constraint.as_ref(),
                })
                .collect();
            let started = Instant::now();
            let texts =
                rounds.write(&generator, &prompts, n_done, journal.as_deref_mut(), watch)?;
            let Some(texts) = texts else {
                return Ok(None);
            };
            // The loops of a batch share its time equally.
            let share = started.elapsed().as_secs_f64() / pending.len() as f64;
            for (pending, completion) in pending.iter().zip(&texts) {
                seconds[pending.agent] += share;
                agents[pending.agent].feed_text(&completion.text);
                ends[pending.agent].push(completion.end());
            }
        }
        let outcomes = agents.iter().zip(ends);
        let outcomes = outcomes.filter_map(|(agent, texts)| match agent.next() {
            AgentRequest::Done(outcome) => Some(Outcome { texts, ..outcome }),
            _ => None,
        });
        Ok(Some(outcomes.collect()))
    }

    fn agent<'a>(&'a self, query: &str, catalogue: &'a ApiCatalogue) -> Agent<'a> {
        let limits = self.limits.clone();
        match &self.flat {
            Some(flat) => Agent::with_flat_documents(self.method, query, flat, limits),
            None => Agent::new(self.method, query, catalogue, limits),
        }
    }

    /// Report lines about flattened documents; empty if nothing is flattened.
    pub(super) fn flat_lines(&self) -> Vec<String> {
        let lines = self.flat.iter().flat_map(|flat| flat.report().lines());
        lines
            .map(|line| format!("goat.documents: {line}"))
            .collect()
    }

    /// Ends loops that have exceeded their time.
    fn stop_late(&self, agents: &mut [Agent<'_>], seconds: &[f64]) {
        let Some(max_time) = self.max_time else {
            return;
        };
        for (agent, _) in agents
            .iter_mut()
            .zip(seconds)
            .filter(|(_, s)| **s > max_time)
        {
            if !agent.is_done() {
                agent.stop(EndReason::Deadline);
            }
        }
    }
}

/// Lowers limits above `eval.max_new_tokens` and warns about them.
fn limit_rounds(mut limits: AgentLimits, most: usize) -> AgentLimits {
    let tokens = [
        ("plan_tokens", &mut limits.plan_tokens),
        ("call_tokens", &mut limits.call_tokens),
        ("answer_tokens", &mut limits.answer_tokens),
    ];
    for (name, limit) in tokens {
        if *limit > most {
            tracing::warn!(
                "goat.limits.{name} = {limit} is lowered to eval.max_new_tokens = {most}; \
                 raise eval.max_new_tokens for longer completions"
            );
            *limit = most;
        }
    }
    limits
}

/// Answers the calls of all loops.
struct Calls<'a> {
    executor: &'a mut dyn Executor,
    /// Number of calls per loop so far.
    n_made: Vec<usize>,
}

impl Calls<'_> {
    /// Serves retrievals and calls until every loop has ended or needs a completion; `false` if the
    /// work was stopped.
    fn serve(
        &mut self,
        loops: Loops<'_, '_>,
        serving: &mut Serving<'_>,
        mut journal: Option<&mut Journal>,
    ) -> Result<bool, Error> {
        let Loops {
            tasks,
            index,
            agents,
            seconds,
        } = loops;
        loop {
            let mut queries: Vec<(usize, String, usize)> = Vec::new();
            let mut served = false;
            for (i, agent) in agents.iter_mut().enumerate() {
                match agent.next() {
                    AgentRequest::Retrieve { text, k } => queries.push((i, text, k)),
                    AgentRequest::Call { name, arguments } => {
                        let started = Instant::now();
                        let call = RequestedCall {
                            loop_index: i,
                            task_id: &tasks[i].id,
                            name: &name,
                            arguments: &arguments,
                        };
                        let result = self.result(&call, serving, journal.as_deref_mut())?;
                        let Some(result) = result else {
                            return Ok(false);
                        };
                        agent.feed_result(result);
                        seconds[i] += started.elapsed().as_secs_f64();
                        served = true;
                    }
                    AgentRequest::Generate { .. } | AgentRequest::Done(_) => {}
                }
            }
            let most = queries.iter().map(|(_, _, k)| *k).max().unwrap_or(0);
            let texts: Vec<String> = queries.iter().map(|(_, text, _)| text.clone()).collect();
            for ((i, _, k), positions) in queries.iter().zip(index.nearest(&texts, most)?) {
                agents[*i].feed_documents(&positions[..positions.len().min(*k)]);
                served = true;
            }
            if !served {
                return Ok(true);
            }
        }
    }

    /// The result of a call, from the journal if it was saved there. Returns `None` if the work was
    /// stopped.
    fn result(
        &mut self,
        requested: &RequestedCall<'_>,
        serving: &mut Serving<'_>,
        journal: Option<&mut Journal>,
    ) -> Result<Option<CallResult>, Error> {
        let (name, arguments) = (requested.name, requested.arguments);
        self.n_made[requested.loop_index] += 1;
        let n_made = self.n_made.iter().sum();
        let mut call = |executor: &mut dyn Executor| {
            let result = serving
                .should_continue(n_made)
                .then(|| executor.call(name, arguments));
            result.filter(|_| serving.should_continue(n_made))
        };
        let Some(journal) = journal else {
            let result = call(self.executor);
            return self.check_executor().map(|()| result);
        };
        let called = json!([name, arguments]).to_string();
        let n = self.n_made[requested.loop_index];
        let key = format!(
            "{} call {n} {}",
            requested.task_id,
            sha256_bytes(called.as_bytes())
        );
        if let Some(result) = journal
            .saved_completion(&key)
            .and_then(|saved| result_of(&saved.text))
        {
            return Ok(Some(result));
        }
        let Some(result) = call(self.executor) else {
            return Ok(None);
        };
        self.check_executor()?;
        let record = Completion {
            text: json!([result.output, result.exception]).to_string(),
            finish_reason: "call".to_owned(),
            n_tokens: 0,
            without_text: None,
            error: None,
            tool_calls: Vec::new(),
            rewritten: None,
        };
        journal.add(&key, &record)?;
        Ok(Some(result))
    }

    /// Fails if the executor cannot continue.
    fn check_executor(&self) -> Result<(), Error> {
        self.executor
            .fault()
            .map_or(Ok(()), |fault| Err(Error::Usage(fault)))
    }
}

/// The loops of a suite and their shared data.
struct Loops<'a, 'c> {
    tasks: &'a [AgentTask],
    index: &'a DocumentIndex,
    agents: &'a mut [Agent<'c>],
    /// Seconds used by each loop.
    seconds: &'a mut [f64],
}

/// A call requested by a loop.
struct RequestedCall<'a> {
    loop_index: usize,
    task_id: &'a str,
    name: &'a str,
    arguments: &'a Map<String, Value>,
}

/// Reports progress and checks for a stop around each call.
struct Serving<'a> {
    watch: &'a mut dyn FnMut(GenerationProgress) -> bool,
    n_done: usize,
    n_total: usize,
}

impl Serving<'_> {
    fn should_continue(&mut self, n_calls: usize) -> bool {
        (self.watch)(GenerationProgress {
            work: Work::Generating,
            n_done: self.n_done,
            n_total: self.n_total,
            n_tokens: 0,
            waiting: Some(Waiting {
                what: "executor calls",
                n: n_calls.min(1),
                seconds: 0,
            }),
        })
    }
}

/// Parses a result saved by [`Calls::result`].
fn result_of(text: &str) -> Option<CallResult> {
    let (output, exception) = serde_json::from_str(text).ok()?;
    Some(CallResult::new(output, exception))
}

/// A loop that needs a completion.
struct PendingCompletion {
    agent: usize,
    conversation: Conversation,
    max_new_tokens: usize,
    schema: Option<Value>,
}

/// The constraint of each completion; `None` if it has no schema or the schema cannot be enforced.
fn constraints(
    constrainer: Option<&Constrainer>,
    pending: &[PendingCompletion],
) -> Vec<Option<TextConstraint>> {
    let mut constraints = vec![None; pending.len()];
    let Some(constrainer) = constrainer else {
        return constraints;
    };
    let numbered = pending.iter().enumerate();
    let (places, schemas): (Vec<usize>, Vec<&Value>) = numbered
        .filter_map(|(i, pending)| Some((i, pending.schema.as_ref()?)))
        .unzip();
    for (idx, compiled) in places.into_iter().zip(constrainer.constraints(&schemas)) {
        match compiled {
            Ok(constraint) => constraints[idx] = Some(constraint),
            Err(reason) => {
                tracing::warn!("a completion is generated without its constraint: {reason}")
            }
        }
    }
    constraints
}

fn pending_completions(agents: &[Agent<'_>]) -> Vec<PendingCompletion> {
    let pending = agents.iter().enumerate().filter_map(|(agent, state)| {
        let AgentRequest::Generate {
            conversation,
            max_new_tokens,
            ..
        } = state.next()
        else {
            return None;
        };
        Some(PendingCompletion {
            agent,
            conversation,
            max_new_tokens,
            schema: state.text_schema(),
        })
    });
    pending.collect()
}
