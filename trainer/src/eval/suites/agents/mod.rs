//! Loops over the queries of a suite: documents, a model and an executor to outcomes.
//!
//! Every query is a loop of its own; a round asks all loops what they need, embeds all texts
//! together, makes all calls, and completes all prompts in one batch. Outcomes are kept as they
//! were, so that scoring can be repeated without a model.

mod apibank;
mod executor;
mod goat;
mod restbench;
mod suite;

pub use executor::{mcp_error, open_executor};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_agents::flat::FlatDocuments;
use tooltune_agents::{Agent, AgentLimits, AgentRequest, EndReason, Method, Outcome};
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_rows::text::Conversation;
use tooltune_rows::tools::ApiCatalogue;
use tooltune_suites::goat::{APIBANK, GoatError, RESTBENCH, SUITE};
use tooltune_suites::{Ceiling, JudgeVerdict};

use self::suite::AgentSuite;
use super::{Files, Metrics, SuiteKind};
use crate::config::Config;
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::{DocumentIndex, texts_of};
use crate::error::{Error, SuiteError};
use crate::eval::by_file::ByFile;
use crate::eval::generator::{
    Completion, Constrainer, GenerationRequest, Generator, PromptText, Rounds, TextConstraint,
};
use crate::eval::journal::Journal;
use crate::eval::report_files::{JUDGE_FILE, json_lines, report_files};
use crate::progress::{GenerationProgress, Waiting, Work};
use crate::rows::{flat_documents, goat_options};

pub(super) static GOAT_KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |opening| AgentSuite::open(&SUITE, opening, goat::GoatBenchmark::open),
    change: None,
};

pub(super) static RESTBENCH_KIND: SuiteKind = SuiteKind {
    info: &RESTBENCH,
    open: |opening| AgentSuite::open(&RESTBENCH, opening, restbench::RestBenchBenchmark::open),
    change: None,
};

pub(super) static APIBANK_KIND: SuiteKind = SuiteKind {
    info: &APIBANK,
    open: |opening| AgentSuite::open(&APIBANK, opening, apibank::ApiBankBenchmark::open),
    change: None,
};

impl SuiteError for GoatError {}

/// A query by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentTask {
    /// Unique in its suite.
    pub id: String,
    /// What the user asks.
    pub query: String,
}

/// The retriever over all documents, the method and the limits.
#[derive(Debug)]
pub(super) struct AgentLoops {
    index: DocumentIndex,
    method: Method,
    limits: AgentLimits,
    /// Seconds that a loop may take.
    max_time: Option<f64>,
    /// Whether plans, sub-queries and calls keep to their schemas.
    constrained: bool,
    /// The documents as the model and the retriever see them, where the config flattens.
    flat: Option<FlatDocuments>,
}

/// What loops write and call with.
pub(super) struct Means<'a> {
    /// Writes their texts.
    pub generator: Generator<'a>,
    /// Answers their calls.
    pub executor: &'a mut dyn Executor,
    /// Has the texts and results of an evaluation that was interrupted, and keeps those of this one.
    pub journal: Option<&'a mut Journal>,
}

/// Queries that agents answer, and how what became of them is scored.
pub(super) trait AgentBenchmark: Debug {
    /// All APIs.
    fn catalogue(&self) -> &ApiCatalogue;

    /// The queries, in order.
    fn tasks(&self) -> &[AgentTask];

    /// What a reader of the scores has to know of the data.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Whether the outcomes answer queries, so that a judge can say which are solved.
    fn has_answers(&self) -> bool {
        true
    }

    /// What becomes of each query, in order; `None` if `watch` ended the work.
    ///
    /// # Errors
    ///
    /// As [`AgentLoops::run`].
    fn outcomes(
        &self,
        loops: &AgentLoops,
        means: Means<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Outcome>>, Error> {
        loops.run(self.catalogue(), self.tasks(), means, watch)
    }

    /// Scores outcomes that are in the order of the queries, with the judge's verdicts if there
    /// are some.
    ///
    /// # Errors
    ///
    /// A query without gold calls, or no query.
    fn score(
        &self,
        outcomes: Vec<Outcome>,
        verdicts: Option<&[JudgeVerdict]>,
    ) -> Result<AgentScores, Error>;

    /// Adds to `scores` how well the retriever of `loops` finds the gold documents, where the suite
    /// has some, of each text that their method retrieves with.
    ///
    /// # Errors
    ///
    /// A query that the tokenizer refuses.
    fn add_retrieval(&self, _scores: &mut AgentScores, _loops: &AgentLoops) -> Result<(), Error> {
        Ok(())
    }
}

/// Scores of a benchmark, ready to be written and shown.
#[derive(Debug, Clone)]
pub(super) struct AgentScores {
    /// Means by name, such as `goat.sa`; those that no query has are left out.
    pub metrics: Metrics,
    /// Means with their intervals, by suite.
    pub report: BTreeMap<&'static str, Value>,
    /// Id, query, outcome and score of each query.
    pub predictions: Vec<Value>,
    /// The means as a Markdown table with one line, called `this run`.
    pub table: String,
    /// The means of each file, where the queries come from several.
    pub by_file: Option<ByFile>,
    /// The metrics in which the gold is not the best.
    pub ceilings: Vec<Ceiling>,
    /// The judge's verdicts, where one was asked.
    pub verdicts: Option<Vec<JudgeVerdict>>,
}

impl AgentScores {
    /// `metrics.json`, `predictions.jsonl` with a line for each query, and `judge.jsonl` with a
    /// line for each verdict where there are some.
    ///
    /// # Errors
    ///
    /// Never for outcomes that were made here; serialisation has no other failure.
    pub(super) fn files(&self) -> Result<Files, Error> {
        let by_file = self.by_file.as_ref().map(ByFile::fields);
        let report = self.report.iter().map(|(name, value)| (*name, value));
        let report = report.chain(by_file.iter().flatten().map(|(k, v)| (k.as_str(), v)));
        let report: BTreeMap<&str, &Value> = report.collect();
        let mut files = report_files(&report, &self.predictions)?;
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
    /// A config without a table `[goat]`, or a document that the tokenizer refuses.
    pub(super) fn open(
        config: &Config,
        catalogue: &ApiCatalogue,
        retriever: MiniLmEncoder,
    ) -> Result<Self, Error> {
        let options = goat_options(config)?;
        let flat = flat_documents(config, catalogue)?;
        let shown = flat.as_ref().map_or(catalogue, FlatDocuments::catalogue);
        Ok(Self {
            index: DocumentIndex::new(retriever, &texts_of(shown))?,
            flat,
            method: options.method,
            limits: within(options.limits(), config.eval.max_new_tokens),
            max_time: config.eval.max_time,
            constrained: config.eval.constrained,
        })
    }

    /// The documents as the retriever sees them.
    pub(super) fn index(&self) -> &DocumentIndex {
        &self.index
    }

    /// The prompting method.
    pub(super) fn method(&self) -> Method {
        self.method
    }

    /// What a loop may use.
    pub(super) fn limits(&self) -> &AgentLimits {
        &self.limits
    }

    /// Runs a loop for each task to its end; `None` if `watch` ended the work. What the journal has
    /// is neither written nor called again, and takes no time.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, or a journal that cannot be written.
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
        let mut rounds = Rounds::of(agents.len());
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
            let wanted = wanted_texts(&agents);
            if wanted.is_empty() {
                break;
            }
            let n_done = agents.iter().filter(|agent| agent.is_done()).count();
            let constraints = constraints(constrainer.as_ref(), &wanted);
            let prompts: Vec<GenerationRequest<'_>> = wanted
                .iter()
                .zip(&constraints)
                .map(|(wanted, constraint)| GenerationRequest {
                    id: &tasks[wanted.agent].id,
                    text: PromptText::Chat(&wanted.conversation),
                    max_new_tokens: wanted.max_new_tokens,
                    constraint: constraint.as_ref(),
                })
                .collect();
            let started = Instant::now();
            let texts =
                rounds.write(&generator, &prompts, n_done, journal.as_deref_mut(), watch)?;
            let Some(texts) = texts else {
                return Ok(None);
            };
            // What is generated together is shared by those that it is for.
            let share = started.elapsed().as_secs_f64() / wanted.len() as f64;
            for (wanted, written) in wanted.iter().zip(&texts) {
                seconds[wanted.agent] += share;
                agents[wanted.agent].feed_text(&written.text);
                ends[wanted.agent].push(written.end());
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

    /// What became of the schemas of the documents, in sentences; none where none is flattened.
    pub(super) fn flat_lines(&self) -> Vec<String> {
        let lines = self.flat.iter().flat_map(|flat| flat.report().lines());
        lines
            .map(|line| format!("goat.documents: {line}"))
            .collect()
    }

    /// Ends the loops that have used up their time.
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

/// The limits, with no text longer than `eval.max_new_tokens`; those that it lowers are named.
fn within(mut limits: AgentLimits, most: usize) -> AgentLimits {
    let tokens = [
        ("plan_tokens", &mut limits.plan_tokens),
        ("call_tokens", &mut limits.call_tokens),
        ("answer_tokens", &mut limits.answer_tokens),
    ];
    for (name, limit) in tokens {
        if *limit > most {
            tracing::warn!(
                "goat.limits.{name} = {limit} is above eval.max_new_tokens = {most}, which holds; \
                 raise that for longer texts"
            );
            *limit = most;
        }
    }
    limits
}

/// What answers the calls of all loops.
struct Calls<'a> {
    executor: &'a mut dyn Executor,
    /// Calls of each loop so far.
    n_made: Vec<usize>,
}

impl Calls<'_> {
    /// Answers retrievals and calls until every loop has ended or wants a text; false if the work
    /// was ended before.
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
            let mut asked: Vec<(usize, String, usize)> = Vec::new();
            let mut served = false;
            for (i, agent) in agents.iter_mut().enumerate() {
                match agent.next() {
                    AgentRequest::Retrieve { text, k } => asked.push((i, text, k)),
                    AgentRequest::Call { name, arguments } => {
                        let started = Instant::now();
                        let call = AskedCall {
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
            let most = asked.iter().map(|(_, _, k)| *k).max().unwrap_or(0);
            let texts: Vec<String> = asked.iter().map(|(_, text, _)| text.clone()).collect();
            for ((i, _, k), positions) in asked.iter().zip(index.nearest(&texts, most)?) {
                agents[*i].feed_documents(&positions[..positions.len().min(*k)]);
                served = true;
            }
            if !served {
                return Ok(true);
            }
        }
    }

    /// The result of a call, from the journal if it has it, or nothing where the work was ended.
    fn result(
        &mut self,
        asked: &AskedCall<'_>,
        serving: &mut Serving<'_>,
        journal: Option<&mut Journal>,
    ) -> Result<Option<CallResult>, Error> {
        let (name, arguments) = (asked.name, asked.arguments);
        self.n_made[asked.loop_index] += 1;
        let n_made = self.n_made.iter().sum();
        let mut call = |executor: &mut dyn Executor| {
            let result = serving
                .goes_on(n_made)
                .then(|| executor.call(name, arguments));
            result.filter(|_| serving.goes_on(n_made))
        };
        let Some(journal) = journal else {
            let result = call(self.executor);
            return self.must_go_on().map(|()| result);
        };
        let called = json!([name, arguments]).to_string();
        let n = self.n_made[asked.loop_index];
        let key = format!(
            "{} call {n} {}",
            asked.task_id,
            sha256_bytes(called.as_bytes())
        );
        if let Some(result) = journal.written(&key).and_then(|kept| result_of(&kept.text)) {
            return Ok(Some(result));
        }
        let Some(result) = call(self.executor) else {
            return Ok(None);
        };
        self.must_go_on()?;
        let kept = Completion {
            text: json!([result.output, result.exception]).to_string(),
            finish_reason: "call".to_owned(),
            n_tokens: 0,
            without_text: None,
            error: None,
            tool_calls: Vec::new(),
        };
        journal.add(&key, &kept)?;
        Ok(Some(result))
    }

    /// Refuses to go on where the executor cannot.
    fn must_go_on(&self) -> Result<(), Error> {
        self.executor
            .fault()
            .map_or(Ok(()), |fault| Err(Error::Usage(fault)))
    }
}

/// The loops of a suite, and what they share.
struct Loops<'a, 'c> {
    tasks: &'a [AgentTask],
    index: &'a DocumentIndex,
    agents: &'a mut [Agent<'c>],
    /// What each loop has taken.
    seconds: &'a mut [f64],
}

/// A call that a loop wants to have made.
struct AskedCall<'a> {
    loop_index: usize,
    task_id: &'a str,
    name: &'a str,
    arguments: &'a Map<String, Value>,
}

/// Whoever watches the loops, asked around each call.
struct Serving<'a> {
    watch: &'a mut dyn FnMut(GenerationProgress) -> bool,
    n_done: usize,
    n_total: usize,
}

impl Serving<'_> {
    fn goes_on(&mut self, n_calls: usize) -> bool {
        (self.watch)(GenerationProgress {
            work: Work::Generating,
            n_done: self.n_done,
            n_total: self.n_total,
            n_tokens: 0,
            waiting: Some(Waiting {
                what: "calls of the executor",
                n: n_calls.min(1),
                seconds: 0,
            }),
        })
    }
}

/// What [`Calls::result`] has kept.
fn result_of(text: &str) -> Option<CallResult> {
    let (output, exception) = serde_json::from_str(text).ok()?;
    Some(CallResult::of(output, exception))
}

/// A loop that waits for a text.
struct Wanted {
    agent: usize,
    conversation: Conversation,
    max_new_tokens: usize,
    schema: Option<Value>,
}

/// What each text keeps to; nothing where it is free, or its schema cannot be enforced.
fn constraints(
    constrainer: Option<&Constrainer>,
    wanted: &[Wanted],
) -> Vec<Option<TextConstraint>> {
    let mut constraints = vec![None; wanted.len()];
    let Some(constrainer) = constrainer else {
        return constraints;
    };
    let asked = wanted.iter().enumerate();
    let (places, schemas): (Vec<usize>, Vec<&Value>) = asked
        .filter_map(|(i, wanted)| Some((i, wanted.schema.as_ref()?)))
        .unzip();
    for (place, compiled) in places.into_iter().zip(constrainer.constraints(&schemas)) {
        match compiled {
            Ok(constraint) => constraints[place] = Some(constraint),
            Err(reason) => tracing::warn!("a text is generated freely: {reason}"),
        }
    }
    constraints
}

fn wanted_texts(agents: &[Agent<'_>]) -> Vec<Wanted> {
    let wanted = agents.iter().enumerate().filter_map(|(agent, state)| {
        let AgentRequest::Generate {
            conversation,
            max_new_tokens,
            ..
        } = state.next()
        else {
            return None;
        };
        Some(Wanted {
            agent,
            conversation,
            max_new_tokens,
            schema: state.text_schema(),
        })
    });
    wanted.collect()
}
