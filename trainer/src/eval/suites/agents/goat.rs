//! The suite goat: trajectories as queries to agents that plan, call and answer, and their scores.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use tooltune_agents::{Method, Outcome};
use tooltune_rows::tools::{ApiCatalogue, GoldCall, TextLines, Trajectory, TrajectoryCall};
use tooltune_suites::JudgeVerdict;
use tooltune_suites::goat::{
    Call, GoatError, GoatReport, GoatSample, GoatScore, SUITE, answer_holds_facts, goat_table,
};
use tooltune_suites::ranking::{RetrievalReport, retrieval_table};

use super::{AgentBenchmark, AgentLoops, AgentScores, AgentTask};
use crate::config::{Config, Suite};
use crate::encoder::documents::{DocumentIndex, ranked_gold};
use crate::error::Error;
use crate::eval::by_file::SampleFiles;
use crate::eval::report_files::json_value;
use crate::eval::suites::named_means;
use crate::rows::{RowFiles, eval_trajectories, goat_options};

/// Metrics of retrieval that the suite adds to its own.
const RETRIEVAL: [&str; 2] = ["recall_at_gt", "recall_at_5"];

/// Queries with their gold calls, and the documents of all APIs.
#[derive(Debug)]
pub(super) struct GoatBenchmark {
    catalogue: ApiCatalogue,
    trajectories: Vec<Trajectory>,
    tasks: Vec<AgentTask>,
    files: SampleFiles,
}

/// What became of one query; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct GoatPrediction {
    /// The trajectory's id.
    pub id: String,
    /// What the user asked.
    pub query: String,
    /// The right calls and the answer that they lead to.
    pub gold: GoatGold,
    /// What the loop did.
    pub outcome: Outcome,
    /// What that is worth.
    pub score: GoatScore,
}

/// What is right, with the names that outcomes have.
#[derive(Debug, Clone, Serialize)]
struct GoatGold {
    /// The calls in order.
    pub calls: Vec<GoldCall>,
    /// The final answer.
    pub response: String,
    /// Texts that it must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

impl GoatBenchmark {
    /// Reads documents and queries.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a trajectory that does not fit the documents.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let catalogue = ApiCatalogue::read(&goat_options(config)?.documents)?;
        let trajectories = eval_trajectories(config, &catalogue)?;
        let mut files = SampleFiles::default();
        for records in RowFiles::evaluation(config).open()? {
            let file = records.path().to_owned();
            // Each trajectory has been read by now.
            files.add(&file, TextLines::of_records(records).count());
        }
        files.truncate(config.eval.max_samples.unwrap_or(usize::MAX));
        let task = |trajectory: &Trajectory| AgentTask {
            id: trajectory.id.clone(),
            query: trajectory.query.clone(),
        };
        Ok(Self {
            tasks: trajectories.iter().map(task).collect(),
            catalogue,
            trajectories,
            files,
        })
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
        let scores = index.scores(&texts)?;
        let golds = texts
            .iter()
            .zip(scores)
            .map(|(text, scores)| {
                let gold: Vec<usize> = gold[text].iter().copied().collect();
                ranked_gold(&scores, &gold)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(RetrievalReport::new(&golds)?)
    }
}

impl AgentBenchmark for GoatBenchmark {
    fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn tasks(&self) -> &[AgentTask] {
        &self.tasks
    }

    fn add_retrieval(&self, scores: &mut AgentScores, loops: &AgentLoops) -> Result<(), Error> {
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
        let golds = self.trajectories.iter().map(gold_score);
        let golds = GoatReport::new(&golds.collect::<Result<Vec<_>, _>>()?)?;
        Ok(AgentScores {
            ceilings: SUITE.ceilings(|name| golds.value(name)),
            metrics: named_means(Suite::of(&SUITE), &GoatReport::NAMES, |name| {
                report.value(name)
            }),
            verdicts: None,
            table: goat_table(&[("this run", &report)]),
            by_file: self.files.measured(GoatReport::NAMES, |range| {
                let report = GoatReport::new(&scores[range])?;
                Ok(GoatReport::NAMES.map(|name| report.value(name)))
            })?,
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
        gold: GoatGold {
            calls: trajectory.calls.iter().map(gold_call).collect(),
            response: trajectory.response.clone(),
            facts: trajectory.facts.clone(),
        },
        outcome,
        score,
    })
}

/// The score of the trajectory itself, whose answer is right where it holds its facts.
fn gold_score(trajectory: &Trajectory) -> Result<GoatScore, GoatError> {
    let gold: Vec<Call> = trajectory.calls.iter().map(Call::from).collect();
    let facts = &trajectory.facts;
    let holds = (!facts.is_empty()).then(|| answer_holds_facts(&trajectory.response, facts));
    GoatScore::of(&GoatSample {
        pred: &gold,
        gold: &gold,
        success: holds,
        has_parse_error: false,
    })
}

fn gold_call(call: &TrajectoryCall) -> GoldCall {
    GoldCall {
        name: call.name.clone(),
        arguments: Some(call.arguments.clone()),
        output: call.output.clone(),
        exception: None,
        check_input: false,
    }
}
