//! Loops over the queries of a suite: documents, a model and an executor to outcomes.
//!
//! Every query is a loop of its own; a round asks all loops what they need, embeds all texts
//! together, makes all calls, and completes all prompts in one batch. Outcomes are kept as they
//! were, so that scoring can be repeated without a model.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_agents::{Agent, AgentLimits, AgentRequest, EndReason, Method, Outcome};
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_rows::text::Conversation;
use tooltune_rows::tools::{ApiCatalogue, JsonLines};
use tooltune_suites::goat::JudgeVerdict;

use super::executor::open_executor;
use super::judge::{GOAT_JUDGE, Judge};
use super::{EvalContext, Files, LoadedSuite, Metrics, Opening, Purpose, Retriever, SuiteResult};
use crate::config::{Config, Suite};
use crate::encoder::documents::{DocumentIndex, no_retriever, texts_of, warn_of_cut_documents};
use crate::encoder::{EncoderFiles, MiniLmEncoder};
use crate::error::Error;
use crate::eval::by_file::ByFile;
use crate::eval::generator::{
    Completion, Constrainer, GenerationRequest, Generator, PromptText, Rounds, TextConstraint,
};
use crate::eval::journal::Journal;
use crate::eval::report_files::{METRICS_FILE, json_lines, json_value, report_files};
use crate::eval::saved::check_ids;
use crate::progress::{GenerationProgress, Waiting};
use crate::rows::{goat_config, goat_options};

/// The file of the judge's replies.
pub const JUDGE_FILE: &str = "judge.jsonl";

/// A query by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTask {
    /// Unique in its suite.
    pub id: String,
    /// What the user asks.
    pub query: String,
}

/// The retriever over all documents, the method and the limits.
#[derive(Debug)]
pub struct AgentLoops {
    index: DocumentIndex,
    method: Method,
    limits: AgentLimits,
    /// Seconds that a loop may take.
    max_time: Option<f64>,
    /// Whether plans, sub-queries and calls keep to their schemas.
    constrained: bool,
}

/// What loops write and call with.
#[expect(
    missing_debug_implementations,
    reason = "an executor has none, and its state is nobody's to read"
)]
pub struct Means<'a> {
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
        loops.run((self.catalogue(), self.tasks()), means, watch)
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

/// A suite whose queries agents answer: a benchmark with its judge.
#[derive(Debug)]
pub struct AgentSuite {
    suite: Suite,
    benchmark: Box<dyn AgentBenchmark>,
    /// The settings, with what the table of the suite says in `data.eval` and `[goat]`.
    config: Config,
    judge: Option<Judge>,
    /// Loops whose retriever stays as it is.
    loops: OnceCell<Rc<AgentLoops>>,
}

impl AgentSuite {
    /// Opens everything that evaluations will need but a retriever, so that a mistake is found
    /// before anything is generated.
    ///
    /// # Errors
    ///
    /// As `benchmark`, or an executor or judge that cannot be opened.
    pub(super) fn open<B: AgentBenchmark + 'static>(
        suite: Suite,
        opening: Opening<'_>,
        benchmark: impl FnOnce(&Config) -> Result<B, Error>,
    ) -> Result<Self, Error> {
        let mut config = opening.config.of_agents(suite);
        if !opening.data.is_empty() {
            config.data.eval = opening.data.to_vec();
        }
        let benchmark: Box<dyn AgentBenchmark> = Box::new(benchmark(&config)?);
        let goat = goat_config(&config)?;
        let is_run = opening.purpose == Purpose::Run;
        let judge = goat.judge.as_ref();
        let judge = judge.filter(|judge| benchmark.has_answers() && (judge.in_loop || !is_run));
        let judge = judge
            .map(|judge| Judge::open(GOAT_JUDGE, judge))
            .transpose()?;
        if opening.purpose != Purpose::SavedPredictions {
            open_executor(goat, benchmark.catalogue())?;
            if let Some(retriever) = &config.retriever {
                let files = EncoderFiles::of_retriever(retriever)?;
                warn_of_cut_documents(benchmark.catalogue(), &files)?;
            }
        }
        Ok(Self {
            suite,
            benchmark,
            judge,
            config,
            loops: OnceCell::new(),
        })
    }

    /// The loops, whose documents `retriever` ranks.
    fn loops(&self, retriever: Retriever<'_>) -> Result<Rc<AgentLoops>, Error> {
        if let Some(loops) = self.loops.get().filter(|_| !retriever.is_trained) {
            return Ok(Rc::clone(loops));
        }
        let catalogue = self.benchmark.catalogue();
        let encoder = retriever.encoder.clone();
        let loops = Rc::new(AgentLoops::open(&self.config, catalogue, encoder)?);
        if !retriever.is_trained {
            self.loops.get_or_init(|| Rc::clone(&loops));
        }
        Ok(loops)
    }

    /// Judges and scores outcomes; `loops` are those that they are of, where they were made now.
    ///
    /// Outcomes are kept before a judge is asked, so that a judge that fails costs no generation.
    fn scored(
        &self,
        outcomes: Vec<Outcome>,
        loops: Option<&AgentLoops>,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        let EvalContext { keep, watch, .. } = context;
        let mut verdicts = None;
        if let Some(judge) = &self.judge {
            let mut files = self.benchmark.score(outcomes.clone(), None)?.files()?;
            files.remove(METRICS_FILE);
            keep(&files)?;
            let judged = judge.judge(self.benchmark.tasks(), &outcomes, watch);
            if let Some(failure) = judged.failure {
                let lines = json_lines(&judged.verdicts)?;
                keep(&Files::from([(JUDGE_FILE.to_string(), lines)]))?;
                return match failure {
                    Error::Stopped => Ok(None),
                    failure => Err(failure),
                };
            }
            verdicts = Some(judged.verdicts);
        }
        let mut scores = self.benchmark.score(outcomes, verdicts.as_deref())?;
        if let Some(loops) = loops {
            self.benchmark.add_retrieval(&mut scores, loops)?;
        }
        let mut notes = Vec::new();
        if let Some((judge, verdicts)) = self.judge.as_ref().zip(verdicts) {
            let summary = judge.summary(&verdicts);
            notes.push(summary.line("queries", "unsolved"));
            scores.report.insert("judge", json_value(&summary)?);
            scores.verdicts = Some(verdicts);
        }
        Ok(Some(SuiteResult {
            files: scores.files()?,
            metrics: scores.metrics,
            table: scores.table,
            by_file: scores.by_file,
            notes,
            warnings: Vec::new(),
        }))
    }
}

impl LoadedSuite for AgentSuite {
    fn suite(&self) -> Suite {
        self.suite
    }

    fn n_samples(&self) -> usize {
        self.benchmark.tasks().len()
    }

    fn remarks(&self) -> Vec<String> {
        self.benchmark.remark().into_iter().collect()
    }

    fn evaluate(&self, mut context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let loops = self.loops(context.retriever.ok_or_else(no_retriever)?)?;
        let catalogue = self.benchmark.catalogue();
        let mut executor = open_executor(goat_config(&self.config)?, catalogue)?;
        let means = Means {
            generator,
            executor: &mut *executor,
            journal: context.journal.take(),
        };
        let outcomes = self.benchmark.outcomes(&loops, means, context.watch)?;
        match outcomes {
            Some(outcomes) => self.scored(outcomes, Some(&loops), context),
            None => Ok(None),
        }
    }

    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        let (outcomes, n_left) = read_outcomes(path, self.benchmark.tasks())?;
        let mut result = self.scored(outcomes, None, context)?;
        if let (Some(result), true) = (&mut result, n_left > 0) {
            let note = format!("{n_left} predictions belong to no query and are left out");
            result.notes.insert(0, note);
        }
        Ok(result)
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

/// A line of `predictions.jsonl`, as far as it is needed to score it again.
#[derive(Deserialize)]
struct SavedOutcome {
    id: String,
    outcome: Outcome,
}

/// Reads the outcomes of `tasks`, in their order, from the `predictions.jsonl` of a former
/// evaluation; the second part is the number of lines that belong to no task.
///
/// # Errors
///
/// A line that is no prediction, an id that comes twice, a task without a line, or no line of any
/// task.
pub fn read_outcomes(path: &Path, tasks: &[AgentTask]) -> Result<(Vec<Outcome>, usize), Error> {
    let mut saved = HashMap::new();
    for line in JsonLines::open(path)? {
        let (place, value) = line?;
        let row: SavedOutcome = serde_json::from_value(value).map_err(|error| {
            Error::Usage(format!(
                "{place}: {error}; each line is {{\"id\": ..., \"outcome\": ...}}, as `tooltune \
                 eval --output` writes it"
            ))
        })?;
        if saved.insert(row.id.clone(), row.outcome).is_some() {
            let id = row.id;
            return Err(Error::Usage(format!("{place}: {id:?} has a line already")));
        }
    }
    let ids = saved.keys().map(String::as_str).collect::<BTreeSet<_>>();
    check_ids(path, ids, tasks.iter().map(|task| task.id.as_str()))?;
    let n_saved = saved.len();
    let outcomes: Vec<Outcome> = tasks
        .iter()
        .filter_map(|task| saved.remove(&task.id))
        .collect();
    if outcomes.len() < tasks.len() {
        let n_missing = tasks.len() - outcomes.len();
        let all = JsonLines::open(path)?.filter_map(Result::ok);
        let written: Vec<String> = all
            .filter_map(|(_, row)| row["id"].as_str().map(str::to_string))
            .collect();
        let first = tasks.iter().find(|task| !written.contains(&task.id));
        let first = first.map_or("", |task| task.id.as_str());
        return Err(Error::Usage(format!(
            "{}: {n_missing} of {} queries have no line, such as {first:?}; score them on the data \
             that they were made of, or give --max-samples",
            path.display(),
            tasks.len()
        )));
    }
    let n_left = n_saved - outcomes.len();
    Ok((outcomes, n_left))
}

impl AgentLoops {
    /// Embeds the documents of `catalogue`.
    ///
    /// # Errors
    ///
    /// A config without a table `[goat]`, or a document that the tokenizer refuses.
    pub fn open(
        config: &Config,
        catalogue: &ApiCatalogue,
        retriever: MiniLmEncoder,
    ) -> Result<Self, Error> {
        let options = goat_options(config)?;
        Ok(Self {
            index: DocumentIndex::new(retriever, &texts_of(catalogue))?,
            method: options.method,
            limits: within(options.limits(), config.eval.max_new_tokens),
            max_time: config.eval.max_time,
            constrained: config.eval.constrained,
        })
    }

    /// The documents as the retriever sees them.
    pub fn index(&self) -> &DocumentIndex {
        &self.index
    }

    /// The prompting method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// What a loop may use.
    pub fn limits(&self) -> &AgentLimits {
        &self.limits
    }

    /// Runs a loop for each task to its end; `None` if `watch` ended the work. What the journal has
    /// is neither written nor called again, and takes no time.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, or a journal that cannot be written.
    pub fn run(
        &self,
        (catalogue, tasks): (&ApiCatalogue, &[AgentTask]),
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
            .map(|task| Agent::new(self.method, &task.query, catalogue, self.limits.clone()))
            .collect();
        let constrainer = match self.constrained {
            true => Some(generator.constrainer()?),
            false => None,
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
            let state = (agents.as_mut_slice(), seconds.as_mut_slice());
            let served = (tasks, &self.index, &mut serving);
            if !calls.serve(served, state, journal.as_deref_mut())? {
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
            let round = (prompts.as_slice(), n_done);
            let Some(texts) = rounds.write(&generator, round, journal.as_deref_mut(), watch)?
            else {
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
        (tasks, index, serving): (&[AgentTask], &DocumentIndex, &mut Serving<'_>),
        (agents, seconds): (&mut [Agent<'_>], &mut [f64]),
        mut journal: Option<&mut Journal>,
    ) -> Result<bool, Error> {
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
            return Ok(call(self.executor));
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
        let kept = Completion {
            text: json!([result.output, result.exception]).to_string(),
            finish_reason: "call".to_owned(),
            n_tokens: 0,
            without_text: None,
            error: None,
        };
        journal.add(&key, &kept)?;
        Ok(Some(result))
    }
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
    Some(CallResult { output, exception })
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
