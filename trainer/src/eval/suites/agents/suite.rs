//! An agent suite, opened once for all evaluations of a run or for a single evaluation.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;
use tooltune_agents::Outcome;
use tooltune_suites::goat::JudgeSample;
use tooltune_suites::{JudgeVerdict, SuiteInfo, judge_samples};

use super::executor::{RefusedApis, open_executor};
use super::{AgentBenchmark, AgentLoops, Means};

use crate::config::{Config, Suite};
use crate::encoder::EncoderFiles;
use crate::encoder::documents::{no_retriever, warn_of_cut_documents};
use crate::error::Error;
use crate::eval::report_files::{JUDGE_FILE, METRICS_FILE, json_lines, json_value};
use crate::eval::saved::{Joined, JoinedRows, join_saved, read_saved};
use crate::eval::suites::judge::Judge;
use crate::eval::suites::verdicts::{read_verdicts, verdicts_line};
use crate::eval::suites::{
    EvalContext, Files, LoadedSuite, Purpose, Retriever, SuiteContext, SuiteResult,
};
use crate::rows::goat_config;

/// An agent suite: a benchmark and its judge.
#[derive(Debug)]
pub(super) struct AgentSuite {
    suite: Suite,
    benchmark: Box<dyn AgentBenchmark>,
    /// The settings, with the table of the suite merged into `data.eval` and `[goat]`.
    config: Config,
    judge: Option<Judge>,
    /// Verdicts of people, with their file.
    verdicts: Option<(PathBuf, Vec<JudgeVerdict>)>,
    /// Loops that can be reused because their retriever does not change.
    loops: OnceCell<Rc<AgentLoops>>,
}

impl AgentSuite {
    /// Opens everything that evaluations need except the retriever, so that mistakes are found
    /// before generation.
    ///
    /// # Errors
    ///
    /// Errors of `benchmark`, or an executor or judge that cannot be opened.
    pub(super) fn open<B: AgentBenchmark + 'static>(
        suite: &'static SuiteInfo,
        suite_context: SuiteContext<'_>,
        benchmark: impl FnOnce(&Config) -> Result<B, Error>,
    ) -> Result<Box<dyn LoadedSuite>, Error> {
        let suite = Suite::from_info(suite);
        let mut config = suite_context.config.for_agents(suite);
        if !suite_context.data.is_empty() {
            config.data.evaluate_on(suite_context.data.to_vec());
        }
        let benchmark: Box<dyn AgentBenchmark> = Box::new(benchmark(&config)?);
        let goat = goat_config(&config)?;
        let is_run = suite_context.purpose == Purpose::Run;
        let verdicts = suite_context.verdicts.map(|path| {
            if !benchmark.has_answers() {
                return Err(Error::Usage(
                    "--verdicts does not apply to single steps of dialogues, which have no answers"
                        .to_owned(),
                ));
            }
            let ids: Vec<&str> = benchmark
                .tasks()
                .iter()
                .map(|task| task.id.as_str())
                .collect();
            Ok((path.to_owned(), read_verdicts(path, &ids)?))
        });
        let verdicts = verdicts.transpose()?;
        let judge = goat.judge.as_ref().filter(|_| verdicts.is_none());
        let judge = judge.filter(|judge| benchmark.has_answers() && (judge.in_loop || !is_run));
        let judge = judge
            .map(|judge| Judge::open("goat.judge", judge))
            .transpose()?;
        if suite_context.purpose != Purpose::SavedPredictions {
            let executor = open_executor(goat, benchmark.catalogue())?;
            if let Some(refused) = RefusedApis::find(&*executor, benchmark.catalogue()) {
                tracing::warn!("{refused}");
            }
            drop(executor);
            if let Some(retriever) = &config.retriever {
                let files = EncoderFiles::for_retriever(retriever)?;
                warn_of_cut_documents(benchmark.catalogue(), &files)?;
            }
        }
        Ok(Box::new(Self {
            suite,
            benchmark,
            judge,
            verdicts,
            config,
            loops: OnceCell::new(),
        }))
    }

    /// The loops with document rankings by `retriever`.
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

    /// Judges and scores outcomes. `loops` is `None` for saved outcomes.
    ///
    /// Outcomes are saved before the judge runs, so that a failed judge does not cost a generation.
    fn score_outcomes(
        &self,
        outcomes: Vec<Outcome>,
        loops: Option<&AgentLoops>,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        let EvalContext { keep, watch, .. } = context;
        let mut verdicts = None;
        if let Some(judge) = &self.judge {
            let mut files = self
                .benchmark
                .score(outcomes.clone(), None)?
                .files(self.suite)?;
            files.remove(METRICS_FILE);
            keep(&files)?;
            let queries = self.benchmark.tasks().iter().zip(&outcomes);
            let samples: Vec<JudgeSample> = queries
                .map(|(task, outcome)| JudgeSample::from_outcome(&task.id, &task.query, outcome))
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
        let people = self
            .verdicts
            .as_ref()
            .map(|(_, verdicts)| verdicts.as_slice());
        let mut scores = self
            .benchmark
            .score(outcomes, people.or(verdicts.as_deref()))?;
        if let Some(loops) = loops {
            self.benchmark.add_retrieval(&mut scores, loops)?;
        }
        let mut notes = loops.map(AgentLoops::flat_lines).unwrap_or_default();
        if let Some((path, verdicts)) = &self.verdicts {
            notes.push(verdicts_line(path, verdicts.len()));
            scores
                .report
                .insert("n_verdicts_of_people", Value::from(verdicts.len()));
        }
        if let Some((judge, verdicts)) = self.judge.as_ref().zip(verdicts) {
            let summary = judge.summary(&verdicts);
            notes.push(summary.line("queries", "unsolved"));
            scores.report.insert("judge", json_value(&summary)?);
            scores.verdicts = Some(verdicts);
        }
        let ceilings = std::mem::take(&mut scores.ceilings);
        let result = SuiteResult {
            files: scores.files(self.suite)?,
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
            Some(outcomes) => self.score_outcomes(outcomes, Some(&loops), context),
            None => Ok(None),
        }
    }

    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        let tasks = self.benchmark.tasks();
        let rows = JoinedRows {
            what: "queries",
            ids: tasks.iter().map(|task| task.id.as_str()).collect(),
            are_places: false,
            are_limited: self.config.eval.max_samples.is_some(),
        };
        let saved = read_saved(path, self.suite.info(), None, outcome_of)?;
        let Joined { values, note } = join_saved(path, saved, &rows)?;
        let mut result = self.score_outcomes(values, None, context)?;
        if let (Some(result), Some(note)) = (&mut result, note) {
            result.notes.insert(0, note);
        }
        Ok(result)
    }
}

/// The part of a `predictions.jsonl` line needed to score it again.
#[derive(Deserialize)]
struct SavedOutcome {
    outcome: Outcome,
}

/// Parses the outcome of a line of `predictions.jsonl`.
fn outcome_of(line: Value) -> Result<Outcome, String> {
    let saved: SavedOutcome = serde_json::from_value(line).map_err(|error| {
        format!(
            "{error}; write each line as {{\"id\": ..., \"outcome\": ...}}, like `tooltune eval \
             --output`"
        )
    })?;
    Ok(saved.outcome)
}
