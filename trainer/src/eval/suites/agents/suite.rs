//! A suite whose queries agents answer, opened once for the evaluations of a run or for one of its
//! own.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;
use tooltune_agents::Outcome;
use tooltune_rows::tools::JsonLines;
use tooltune_suites::goat::JudgeSample;
use tooltune_suites::{SuiteInfo, judge_samples};

use super::executor::open_executor;
use super::{AgentBenchmark, AgentLoops, AgentTask, Means};

use crate::config::{Config, Suite};
use crate::encoder::EncoderFiles;
use crate::encoder::documents::{no_retriever, warn_of_cut_documents};
use crate::error::Error;
use crate::eval::report_files::{JUDGE_FILE, METRICS_FILE, json_lines, json_value};
use crate::eval::saved::check_ids;
use crate::eval::suites::judge::Judge;
use crate::eval::suites::{
    EvalContext, Files, LoadedSuite, Opening, Purpose, Retriever, SuiteResult,
};
use crate::rows::goat_config;

/// A suite whose queries agents answer: a benchmark with its judge.
#[derive(Debug)]
pub(super) struct AgentSuite {
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
        suite: &'static SuiteInfo,
        opening: Opening<'_>,
        benchmark: impl FnOnce(&Config) -> Result<B, Error>,
    ) -> Result<Box<dyn LoadedSuite>, Error> {
        let suite = Suite::of(suite);
        let mut config = opening.config.of_agents(suite);
        if !opening.data.is_empty() {
            config.data.evaluate_on(opening.data.to_vec());
        }
        let benchmark: Box<dyn AgentBenchmark> = Box::new(benchmark(&config)?);
        let goat = goat_config(&config)?;
        let is_run = opening.purpose == Purpose::Run;
        let judge = goat.judge.as_ref();
        let judge = judge.filter(|judge| benchmark.has_answers() && (judge.in_loop || !is_run));
        let judge = judge
            .map(|judge| Judge::open("goat.judge", judge))
            .transpose()?;
        if opening.purpose != Purpose::SavedPredictions {
            open_executor(goat, benchmark.catalogue())?;
            if let Some(retriever) = &config.retriever {
                let files = EncoderFiles::of_retriever(retriever)?;
                warn_of_cut_documents(benchmark.catalogue(), &files)?;
            }
        }
        Ok(Box::new(Self {
            suite,
            benchmark,
            judge,
            config,
            loops: OnceCell::new(),
        }))
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
            let queries = self.benchmark.tasks().iter().zip(&outcomes);
            let samples: Vec<JudgeSample> = queries
                .map(|(task, outcome)| JudgeSample::of_outcome(&task.id, &task.query, outcome))
                .collect();
            let judged = judge.verdicts(watch, |endpoint, options, watch| {
                judge_samples(endpoint, &samples, options, watch)
            });
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
        let mut notes = loops.map(AgentLoops::flat_lines).unwrap_or_default();
        if let Some((judge, verdicts)) = self.judge.as_ref().zip(verdicts) {
            let summary = judge.summary(&verdicts);
            notes.push(summary.line("queries", "unsolved"));
            scores.report.insert("judge", json_value(&summary)?);
            scores.verdicts = Some(verdicts);
        }
        let ceilings = std::mem::take(&mut scores.ceilings);
        let result = SuiteResult {
            files: scores.files()?,
            metrics: scores.metrics,
            table: scores.table,
            by_file: scores.by_file,
            notes,
            warnings: Vec::new(),
        };
        result.with_ceilings(self.suite.info(), &ceilings).map(Some)
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

    fn remarks_are_results(&self) -> bool {
        true
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
pub(super) fn read_outcomes(
    path: &Path,
    tasks: &[AgentTask],
) -> Result<(Vec<Outcome>, usize), Error> {
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
