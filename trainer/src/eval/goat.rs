//! The suite goat: queries to agents that plan, call and answer, and their scores.
//!
//! Every query is a loop of its own; a round asks all loops what they need, embeds all texts
//! together, makes all calls, and completes all prompts in one batch. Outcomes are kept as they
//! were, so that scoring can be repeated without a model.

use std::collections::BTreeMap;

use burn::tensor::Device;
use serde::Serialize;
use tooltune_data::agents::{Agent, AgentLimits, AgentRequest, Method, Outcome};
use tooltune_data::benchmarks::goat::{
    Call, GoatReport, GoatSample, GoatScore, answer_holds_facts,
};
use tooltune_data::benchmarks::retrieval::{RankedGold, RetrievalReport};
use tooltune_data::executors::Executor;
use tooltune_data::synth::goat::GoatExecutor;
use tooltune_data::text::{Conversation, Row, Specials, prompt_ids};
use tooltune_data::tools::{ApiCatalogue, Trajectory};

use super::documents::{DocumentIndex, texts_of, untrained};
use super::encoder::MiniLmEncoder;
use super::generate::{GenerationOptions, GenerationProgress, generate};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::models::Decoder;
use crate::recipes::rows::{eval_trajectories, goat_options};

/// Metrics of retrieval that the suite adds to its own.
const RETRIEVAL: [&str; 2] = ["recall_at_gt", "recall_at_5"];

/// Queries, documents and tools of a config.
#[derive(Debug)]
pub struct GoatSuite {
    catalogue: ApiCatalogue,
    trajectories: Vec<Trajectory>,
    index: DocumentIndex,
    method: Method,
    limits: AgentLimits,
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

/// What a model is worth on the queries.
#[derive(Debug, Clone)]
pub struct GoatEvaluation {
    /// Means with their intervals.
    pub report: GoatReport,
    /// The retriever over all documents, with the queries as its questions.
    pub retrieval: RetrievalReport,
    /// In the order of the queries.
    pub predictions: Vec<GoatPrediction>,
}

impl GoatEvaluation {
    /// Means by name: `goat.sa` and so on; those that no query has are left out.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let own = GoatReport::NAMES
            .into_iter()
            .map(|name| (name, self.report.value(name)));
        let of_retrieval = RETRIEVAL
            .into_iter()
            .map(|name| (name, self.retrieval.value(name)));
        own.chain(of_retrieval)
            .filter_map(|(name, estimate)| Some((format!("goat.{name}"), estimate?.value)))
            .collect()
    }

    /// `metrics.json`, and `predictions.jsonl` with a line for each query.
    ///
    /// # Errors
    ///
    /// Never for outcomes that were made here; serialisation has no other failure.
    pub fn files(&self) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let failed = |error: serde_json::Error| Error::Usage(format!("goat scores: {error}"));
        let mut lines = Vec::new();
        for prediction in &self.predictions {
            serde_json::to_writer(&mut lines, prediction).map_err(failed)?;
            lines.push(b'\n');
        }
        let reports = serde_json::json!({ "goat": self.report, "retrieval": self.retrieval });
        let mut report = serde_json::to_vec_pretty(&reports).map_err(failed)?;
        report.push(b'\n');
        Ok(BTreeMap::from([
            ("metrics.json".to_string(), report),
            ("predictions.jsonl".to_string(), lines),
        ]))
    }
}

impl GoatSuite {
    /// Reads documents and queries, and embeds the documents.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, a document of an API that the executor does not have, or a
    /// retriever that cannot be loaded.
    pub fn open(config: &Config, device: &Device) -> Result<Self, Error> {
        let options = goat_options(config)?;
        let catalogue = ApiCatalogue::read(&options.documents)?;
        let known = tooltune_data::synth::goat::documents();
        let is_known = |name: &str| known.iter().any(|document| document.call_name() == name);
        let mut names = catalogue.iter().map(|document| document.call_name());
        if let Some(foreign) = names.find(|name| !is_known(name)) {
            return Err(Error::Usage(format!(
                "{}: nothing executes {foreign:?}: the suite goat calls the APIs of \
                 `tooltune data synth goat`",
                options.documents.display()
            )));
        }
        let trajectories = eval_trajectories(config, &catalogue)?;
        let index = DocumentIndex::new(untrained(config, device)?, texts_of(&catalogue))?;
        Ok(Self {
            trajectories,
            index,
            method: options.method,
            limits: options.limits(),
            catalogue,
        })
    }

    /// Number of queries.
    pub fn len(&self) -> usize {
        self.trajectories.len()
    }

    /// Whether there is no query.
    pub fn is_empty(&self) -> bool {
        self.trajectories.is_empty()
    }

    /// Runs and scores a loop for each query; `None` if `watch` ended it. A `retriever` that has
    /// been trained takes the place of the config's.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, or a query without gold calls.
    pub fn evaluate(
        &self,
        (decoder, base): (&Decoder, &BaseModel),
        retriever: Option<&MiniLmEncoder>,
        options: &GenerationOptions,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<GoatEvaluation>, Error> {
        let trained = retriever
            .map(|encoder| self.index.seen_by(encoder))
            .transpose()?;
        let index = trained.as_ref().unwrap_or(&self.index);
        let Some(outcomes) = self.outcomes((decoder, base), index, options, watch)? else {
            return Ok(None);
        };
        let predictions = self
            .trajectories
            .iter()
            .zip(outcomes)
            .map(|(trajectory, outcome)| predicted(trajectory, outcome))
            .collect::<Result<Vec<_>, _>>()?;
        let scores: Vec<GoatScore> = predictions.iter().map(|p| p.score).collect();
        Ok(Some(GoatEvaluation {
            report: GoatReport::new(&scores)?,
            retrieval: self.retrieval(index)?,
            predictions,
        }))
    }

    /// Runs all loops to their ends.
    fn outcomes(
        &self,
        (decoder, base): (&Decoder, &BaseModel),
        index: &DocumentIndex,
        options: &GenerationOptions,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Outcome>>, Error> {
        let mut executor = GoatExecutor::new();
        let mut agents: Vec<Agent<'_>> = self
            .trajectories
            .iter()
            .map(|row| Agent::new(self.method, &row.query, &self.catalogue, self.limits))
            .collect();
        let mut n_tokens = 0;
        loop {
            serve(&mut agents, index, &mut executor)?;
            let wanted = wanted_texts(&agents);
            if wanted.is_empty() {
                break;
            }
            let n_done = agents.iter().filter(|agent| agent.is_done()).count();
            let n_total = agents.len();
            let prompts = wanted
                .iter()
                .map(|wanted| prompt(base, &self.trajectories[wanted.agent], &wanted.conversation))
                .collect::<Result<Vec<_>, _>>()?;
            let options = GenerationOptions {
                max_new_tokens: wanted
                    .iter()
                    .map(|wanted| wanted.max_new_tokens)
                    .fold(0, usize::max)
                    .min(options.max_new_tokens),
                ..options.clone()
            };
            let mut tokens_of_round = 0;
            let generations = generate(decoder, &prompts, &options, &mut |progress| {
                tokens_of_round = progress.n_tokens;
                watch(GenerationProgress {
                    n_done,
                    n_total,
                    n_tokens: n_tokens + progress.n_tokens,
                })
            });
            let Some(generations) = generations else {
                return Ok(None);
            };
            n_tokens += tokens_of_round;
            for (wanted, generation) in wanted.iter().zip(&generations) {
                let text = base.tokenizer.decode(&generation.ids, Specials::Skip)?;
                agents[wanted.agent].feed_text(&text);
            }
        }
        let outcomes = agents.iter().filter_map(|agent| match agent.next() {
            AgentRequest::Done(outcome) => Some(outcome),
            _ => None,
        });
        Ok(Some(outcomes.collect()))
    }

    /// How well the retriever finds the gold documents of each query.
    fn retrieval(&self, index: &DocumentIndex) -> Result<RetrievalReport, Error> {
        let queries: Vec<String> = self.trajectories.iter().map(|t| t.query.clone()).collect();
        let ranked = index.nearest(&queries, self.catalogue.len())?;
        let golds = self
            .trajectories
            .iter()
            .zip(ranked)
            .map(|(trajectory, ranked)| {
                let gold: Vec<usize> = trajectory
                    .calls
                    .iter()
                    .filter_map(|call| self.catalogue.position(&call.name))
                    .collect();
                RankedGold::new(&ranked, &gold)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(RetrievalReport::new(&golds)?)
    }
}

/// Answers retrievals and calls until every loop has ended or wants a text.
fn serve(
    agents: &mut [Agent<'_>],
    index: &DocumentIndex,
    executor: &mut GoatExecutor,
) -> Result<(), Error> {
    loop {
        let mut asked: Vec<(usize, String, usize)> = Vec::new();
        let mut served = false;
        for (i, agent) in agents.iter_mut().enumerate() {
            match agent.next() {
                AgentRequest::Retrieve { text, k } => asked.push((i, text, k)),
                AgentRequest::Call { name, arguments } => {
                    agent.feed_result(executor.call(&name, &arguments));
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
            return Ok(());
        }
    }
}

/// A loop that waits for a text.
struct Wanted {
    agent: usize,
    conversation: Conversation,
    max_new_tokens: usize,
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
        })
    });
    wanted.collect()
}

fn prompt(
    base: &BaseModel,
    trajectory: &Trajectory,
    conversation: &Conversation,
) -> Result<Vec<u32>, Error> {
    let row = Row {
        id: trajectory.id.clone(),
        conversation: conversation.clone(),
        weight: 1.0,
        slot: None,
    };
    Ok(prompt_ids(&row, &base.template, &base.tokenizer)?)
}

fn predicted(trajectory: &Trajectory, outcome: Outcome) -> Result<GoatPrediction, Error> {
    let gold: Vec<Call> = trajectory.calls.iter().map(Call::from).collect();
    let pred: Vec<Call> = outcome.calls.iter().map(Call::from).collect();
    let facts = &trajectory.facts;
    let score = GoatScore::of(&GoatSample {
        pred: &pred,
        gold: &gold,
        success: (!facts.is_empty()).then(|| answer_holds_facts(&outcome.response, facts)),
        has_parse_error: !outcome.failures.is_empty(),
    })?;
    Ok(GoatPrediction {
        id: trajectory.id.clone(),
        query: trajectory.query.clone(),
        outcome,
        score,
    })
}
