//! The suite goat: trajectories as queries to agents that plan, call and answer, and their scores.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use tooltune_data::agents::{Method, Outcome};
use tooltune_data::benchmarks::goat::{
    Call, GoatReport, GoatSample, GoatScore, JudgeVerdict, answer_holds_facts, goat_table,
};
use tooltune_data::benchmarks::retrieval::{RankedGold, RetrievalReport, retrieval_table};
use tooltune_data::tools::{ApiCatalogue, Trajectory};

use super::agents::{AgentLoops, AgentScores, AgentSuite, AgentTask, Means};
use super::documents::{DocumentIndex, no_retriever};
use super::encoder::MiniLmEncoder;
use super::executor::open_executor;
use super::generate::{GenerationOptions, GenerationProgress};
use super::judge::{GOAT_JUDGE, Judge, Judged};
use super::report_files::json_value;
use super::writer::{ModelWriter, Writer};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::models::Decoder;
use crate::recipes::rows::{eval_trajectories, goat_config, goat_options};

/// Metrics of retrieval that the suite adds to its own.
const RETRIEVAL: [&str; 2] = ["recall_at_gt", "recall_at_5"];

/// Queries with their gold calls, and the documents of all APIs.
#[derive(Debug)]
pub struct GoatSuite {
    catalogue: ApiCatalogue,
    trajectories: Vec<Trajectory>,
    tasks: Vec<AgentTask>,
}

/// What became of one query; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
pub struct GoatPrediction {
    /// The trajectory's id.
    pub id: String,
    /// What the user asked.
    pub query: String,
    /// What the loop did.
    pub outcome: Outcome,
    /// What that is worth.
    pub score: GoatScore,
}

impl GoatSuite {
    /// Reads documents and queries.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a trajectory that does not fit the documents.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let catalogue = ApiCatalogue::read(&goat_options(config)?.documents)?;
        let trajectories = eval_trajectories(config, &catalogue)?;
        let task = |trajectory: &Trajectory| AgentTask {
            id: trajectory.id.clone(),
            query: trajectory.query.clone(),
        };
        Ok(Self {
            tasks: trajectories.iter().map(task).collect(),
            catalogue,
            trajectories,
        })
    }

    /// Adds to `scores` how well the retriever of `loops` finds the gold documents of each text that
    /// their method retrieves with.
    ///
    /// # Errors
    ///
    /// A query that the tokenizer refuses.
    pub fn add_retrieval(&self, scores: &mut AgentScores, loops: &AgentLoops) -> Result<(), Error> {
        let report = self.retrieval(loops.index(), loops.method())?;
        for name in RETRIEVAL {
            if let Some(estimate) = report.value(name) {
                scores
                    .metrics
                    .insert(format!("goat.{name}"), estimate.value);
            }
        }
        scores.table.push('\n');
        scores
            .table
            .push_str(&retrieval_table(&[("retriever", &report)]));
        scores.report.insert("retrieval", json_value(&report)?);
        Ok(())
    }

    fn retrieval(&self, index: &DocumentIndex, method: Method) -> Result<RetrievalReport, Error> {
        // Each text once, in the order in which it first comes, with all of its documents.
        let mut texts: Vec<String> = Vec::new();
        let mut gold: HashMap<String, BTreeSet<usize>> = HashMap::new();
        for trajectory in &self.trajectories {
            for call in &trajectory.calls {
                let text = method.retrieval_text(&trajectory.query, &call.sub_query);
                if !gold.contains_key(&text) {
                    texts.push(text.clone());
                }
                let documents = gold.entry(text).or_default();
                documents.extend(self.catalogue.position(&call.name));
            }
        }
        let ranked = index.nearest(&texts, self.catalogue.len())?;
        let golds = texts
            .iter()
            .zip(ranked)
            .map(|(text, ranked)| {
                let gold: Vec<usize> = gold[text].iter().copied().collect();
                RankedGold::new(&ranked, &gold)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(RetrievalReport::new(&golds)?)
    }
}

impl AgentSuite for GoatSuite {
    fn name(&self) -> &'static str {
        "goat"
    }

    fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn tasks(&self) -> &[AgentTask] {
        &self.tasks
    }

    fn score(
        &self,
        outcomes: Vec<Outcome>,
        verdicts: Option<&[JudgeVerdict]>,
    ) -> Result<AgentScores, Error> {
        let predictions = self
            .trajectories
            .iter()
            .zip(outcomes)
            .enumerate()
            .map(|(i, (trajectory, outcome))| {
                let verdict = verdicts.map(|verdicts| verdicts[i].is_solved());
                predicted(trajectory, outcome, verdict)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let scores: Vec<GoatScore> = predictions.iter().map(|p| p.score).collect();
        let report = GoatReport::new(&scores)?;
        let metrics = GoatReport::NAMES.into_iter().filter_map(|name| {
            let value = report.value(name)?.value;
            Some((format!("goat.{name}"), value))
        });
        Ok(AgentScores {
            metrics: metrics.collect(),
            verdicts: None,
            table: goat_table(&[("this run", &report)]),
            report: [("goat", json_value(&report)?)].into(),
            predictions: predictions
                .iter()
                .map(json_value)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// The judge's verdict counts where there is one, else whether the answer holds the facts.
fn predicted(
    trajectory: &Trajectory,
    outcome: Outcome,
    verdict: Option<bool>,
) -> Result<GoatPrediction, Error> {
    let gold: Vec<Call> = trajectory.calls.iter().map(Call::from).collect();
    let pred: Vec<Call> = outcome.calls.iter().map(Call::from).collect();
    let facts = &trajectory.facts;
    let holds = (!facts.is_empty()).then(|| answer_holds_facts(&outcome.response, facts));
    let score = GoatScore::of(&GoatSample {
        pred: &pred,
        gold: &gold,
        success: verdict.or(holds),
        has_parse_error: !outcome.failures.is_empty(),
    })?;
    Ok(GoatPrediction {
        id: trajectory.id.clone(),
        query: trajectory.query.clone(),
        outcome,
        score,
    })
}

/// The suite within a training run: queries and judge, opened once.
#[derive(Debug)]
pub struct GoatInLoop {
    suite: GoatSuite,
    /// Absent where the retriever is trained: each evaluation brings its own.
    loops: Option<AgentLoops>,
    config: Config,
    judge: Option<Judge>,
}

impl GoatInLoop {
    /// Opens everything that the evaluations will need, so that a mistake ends the run before its
    /// first step. `untrained` ranks documents where the run trains no retriever.
    ///
    /// # Errors
    ///
    /// As [`GoatSuite::open`], or an executor or judge that cannot be opened.
    pub fn open(config: &Config, untrained: Option<&MiniLmEncoder>) -> Result<Self, Error> {
        let suite = GoatSuite::open(config)?;
        let goat = goat_config(config)?;
        open_executor(goat, &suite.catalogue)?;
        let judge = goat.judge.as_ref().filter(|judge| judge.in_loop);
        let seen_by =
            |encoder: &MiniLmEncoder| AgentLoops::open(config, &suite.catalogue, encoder.clone());
        Ok(Self {
            loops: untrained.map(seen_by).transpose()?,
            config: config.clone(),
            judge: judge
                .map(|judge| Judge::open(GOAT_JUDGE, judge))
                .transpose()?,
            suite,
        })
    }

    /// Runs and scores a loop for each query; `None` if `watch` ended it. A `retriever` that has
    /// been trained takes the place of the config's.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, a query without gold calls, or a judge that fails.
    pub fn evaluate(
        &self,
        (decoder, base): (&Decoder, &BaseModel),
        retriever: Option<&MiniLmEncoder>,
        options: &GenerationOptions,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<AgentScores>, Error> {
        let seen_by = |encoder: &MiniLmEncoder| {
            AgentLoops::open(&self.config, &self.suite.catalogue, encoder.clone())
        };
        let trained = retriever.map(seen_by).transpose()?;
        let loops = trained.as_ref().or(self.loops.as_ref());
        let loops = loops.ok_or_else(no_retriever)?;
        let writer = Writer::Model(ModelWriter {
            decoder,
            base,
            options,
        });
        let mut executor = open_executor(goat_config(&self.config)?, &self.suite.catalogue)?;
        let means = Means {
            writer,
            executor: &mut *executor,
            journal: None,
        };
        let outcomes = self.suite.outcomes(loops, means, watch)?;
        let Some(outcomes) = outcomes else {
            return Ok(None);
        };
        let judged = self
            .judge
            .as_ref()
            .map(|judge| judge.judge(&self.suite.tasks, &outcomes, watch));
        let verdicts = match judged {
            None => None,
            Some(Judged {
                failure: Some(Error::Stopped),
                ..
            }) => return Ok(None),
            Some(Judged {
                failure: Some(failure),
                ..
            }) => return Err(failure),
            Some(Judged { verdicts, .. }) => Some(verdicts),
        };
        let mut scores = self.suite.score(outcomes, verdicts.as_deref())?;
        self.suite.add_retrieval(&mut scores, loops)?;
        if let (Some(judge), Some(verdicts)) = (&self.judge, verdicts) {
            judge.add_to(&mut scores, verdicts)?;
        }
        Ok(Some(scores))
    }
}
