//! The `goat` suite: agents plan, call and answer the queries of trajectories.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use serde_json::{Value, json};
use tooltune_agents::{Method, Outcome};
use tooltune_apis::{ApiCatalogue, GoldCall, TextLines, Trajectory, TrajectoryCall};
use tooltune_suites::JudgeVerdict;
use tooltune_suites::goat::{
    Call, GoatError, GoatReport, GoatSample, GoatScore, SUITE, answer_holds_facts, goat_table,
    is_answered, outcome_leaf_errors,
};
use tooltune_suites::leaf_errors::LeafErrors;
use tooltune_suites::ranking::{RankedGold, RetrievalReport, retrieval_table};

use super::report::with_leaf_errors;
use super::{AgentBenchmark, AgentLoops, AgentScores, AgentTask};
use crate::config::{Config, Suite};
use crate::encoder::documents::{DocumentIndex, ranked_gold};
use crate::error::Error;
use crate::eval::by_file::SampleFiles;
use crate::eval::report_files::json_value;
use crate::eval::suites::named_means;
use crate::rows::{RowFiles, eval_trajectories, goat_options};

/// Retrieval metrics that the suite adds to its own.
const RETRIEVAL: [&str; 2] = ["recall_at_gt", "recall_at_5"];

/// Queries with reference calls, and the documents of all APIs.
#[derive(Debug)]
pub(super) struct GoatBenchmark {
    catalogue: ApiCatalogue,
    trajectories: Vec<Trajectory>,
    tasks: Vec<AgentTask>,
    files: SampleFiles,
}

/// The result of one query; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct GoatPrediction {
    /// Trajectory id.
    pub id: String,
    /// User query.
    pub query: String,
    /// Reference calls and answer.
    pub gold: GoatGold,
    /// Outcome of the loop.
    pub outcome: Outcome,
    /// Score of the outcome.
    pub score: GoatScore,
    /// Errors of the arguments.
    pub leaf_errors: LeafErrors,
    /// Tools of the reference calls.
    pub tools: BTreeSet<String>,
    /// File of the trajectory, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The reference, with the field names of outcomes.
#[derive(Debug, Clone, Serialize)]
struct GoatGold {
    /// Calls in order.
    pub calls: Vec<GoldCall>,
    /// Final answer.
    pub response: String,
    /// Strings that the answer must contain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

impl GoatBenchmark {
    /// Reads documents and queries.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or a trajectory does not match the documents.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let catalogue = ApiCatalogue::read(&goat_options(config)?.documents)?;
        let trajectories = eval_trajectories(config, &catalogue)?;
        let mut files = SampleFiles::default();
        for records in RowFiles::evaluation(config).open()? {
            let file = records.path().to_owned();
            // All trajectories were parsed above, so this only counts them.
            files.add(&file, TextLines::from_records(records).count());
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

    /// The tools of a trajectory's calls. An API without a tool is its own tool.
    fn gold_tools(&self, trajectory: &Trajectory) -> BTreeSet<String> {
        let tool = |call: &TrajectoryCall| {
            let document = self.catalogue.get(&call.name);
            let tool = document.map(|document| &document.tool_name);
            let tool = tool.filter(|tool| !tool.is_empty());
            tool.unwrap_or(&call.name).clone()
        };
        trajectory.calls.iter().map(tool).collect()
    }

    /// Ranks the documents for every retrieval text.
    fn retrieval(&self, index: &DocumentIndex, method: Method) -> Result<Rankings, Error> {
        // Unique texts in order of first use, each with all its documents.
        let mut texts: Vec<String> = Vec::new();
        let mut gold: HashMap<String, BTreeSet<usize>> = HashMap::new();
        let mut n_texts = Vec::with_capacity(self.trajectories.len());
        for trajectory in &self.trajectories {
            let n_before = texts.len();
            for call in &trajectory.calls {
                let text = method.retrieval_text(&trajectory.query, &call.sub_query);
                if !gold.contains_key(&text) {
                    texts.push(text.clone());
                }
                let documents = gold.entry(text).or_default();
                documents.extend(self.catalogue.position(&call.name));
            }
            n_texts.push(texts.len() - n_before);
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
        Ok(Rankings { golds, n_texts })
    }
}

/// Ranks of the relevant documents.
struct Rankings {
    /// One entry per unique text.
    golds: Vec<RankedGold>,
    /// For each trajectory, the number of its texts that no earlier trajectory has.
    n_texts: Vec<usize>,
}

impl Rankings {
    /// For each trajectory, the mean recall over its texts and their number. The mean of these
    /// values, weighted by the number of texts, is the mean of the report.
    fn trajectory_recalls(&self) -> Vec<Value> {
        let mut golds = self.golds.iter();
        let mean = |n: usize| {
            let own: Vec<&RankedGold> = golds.by_ref().take(n).collect();
            let mean = |recall: fn(&RankedGold) -> f64| match n {
                0 => Value::Null,
                n => Value::from(own.iter().map(|gold| recall(gold)).sum::<f64>() / n as f64),
            };
            let [at_gt, at_5] = RETRIEVAL;
            json!({
                at_gt: mean(RankedGold::recall_at_gt),
                at_5: mean(|gold| gold.recall_at(5)),
                "n_texts": n,
            })
        };
        self.n_texts.iter().copied().map(mean).collect()
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
        let rankings = self.retrieval(loops.index(), loops.method())?;
        let trajectory_recalls = rankings.trajectory_recalls();
        for (line, own) in scores.predictions.iter_mut().zip(trajectory_recalls) {
            line["score"]["retrieval"] = own;
        }
        let report = RetrievalReport::new(&rankings.golds)?;
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
                Ok(GoatPrediction {
                    tools: self.gold_tools(trajectory),
                    file: self.files.file_of(i).map(str::to_owned),
                    ..scored_prediction(trajectory, outcome, verdict)?
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let scores: Vec<GoatScore> = predictions.iter().map(|p| p.score).collect();
        let report = GoatReport::new(&scores)?;
        let golds = self.trajectories.iter().map(gold_score);
        let golds = GoatReport::new(&golds.collect::<Result<Vec<_>, _>>()?)?;
        Ok(AgentScores {
            ceilings: SUITE.ceilings(|name| golds.value(name)),
            metrics: named_means(Suite::from_info(&SUITE), &GoatReport::NAMES, |name| {
                report.value(name)
            }),
            verdicts: None,
            table: goat_table(&[("this run", &report)]),
            by_file: self.files.measure_by_file(GoatReport::NAMES, |range| {
                let report = GoatReport::new(&scores[range])?;
                Ok(GoatReport::NAMES.map(|name| report.value(name)))
            })?,
            report: with_leaf_errors(
                ("goat", json_value(&report)?),
                predictions.iter().map(|p| (p.id.as_str(), &p.leaf_errors)),
            )?,
            predictions: predictions
                .iter()
                .map(json_value)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Scores an outcome by the judge's verdict. Without a verdict, an outcome is correct if its answer
/// contains the facts.
fn scored_prediction(
    trajectory: &Trajectory,
    outcome: Outcome,
    verdict: Option<bool>,
) -> Result<GoatPrediction, Error> {
    let gold: Vec<Call> = trajectory.calls.iter().map(Call::from).collect();
    let pred: Vec<Call> = outcome.calls.iter().map(Call::from).collect();
    let facts = &trajectory.facts;
    let has_facts = (!facts.is_empty()).then(|| answer_holds_facts(&outcome.response, facts));
    let score = GoatScore::from_sample(&GoatSample {
        pred: &pred,
        gold: &gold,
        success: verdict
            .or(has_facts)
            .map(|is_solved| is_solved && is_answered(&outcome)),
        has_parse_error: !outcome.failures.is_empty(),
    })?;
    let calls: Vec<GoldCall> = trajectory.calls.iter().map(gold_call).collect();
    Ok(GoatPrediction {
        id: trajectory.id.clone(),
        query: trajectory.query.clone(),
        leaf_errors: outcome_leaf_errors(&outcome, &calls),
        tools: BTreeSet::new(),
        file: None,
        gold: GoatGold {
            calls,
            response: trajectory.response.clone(),
            facts: trajectory.facts.clone(),
        },
        outcome,
        score,
    })
}

/// Scores the reference trajectory, whose answer is correct if it contains its facts.
fn gold_score(trajectory: &Trajectory) -> Result<GoatScore, GoatError> {
    let gold: Vec<Call> = trajectory.calls.iter().map(Call::from).collect();
    let facts = &trajectory.facts;
    let has_facts = (!facts.is_empty()).then(|| answer_holds_facts(&trajectory.response, facts));
    GoatScore::from_sample(&GoatSample {
        pred: &gold,
        gold: &gold,
        success: has_facts,
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
