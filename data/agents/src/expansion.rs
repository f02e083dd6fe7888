//! Expands a trajectory into training examples: one for each text that the model is to write.
//!
//! The trajectory is replayed through [`Agent`], each request for a text answered with the gold
//! one, and what the loop asked is the prompt of an example.

use std::fmt;

use sha2::{Digest, Sha256};
use tooltune_rows::batches::SeededRandom;
use tooltune_rows::text::{Conversation, DataError, Message, Row};
use tooltune_rows::tools::{ApiCatalogue, Trajectory};

use super::agent::{Agent, AgentRequest};
use super::completions;
use super::method::{ExampleKind, Method};
use super::options::{AgentLimits, GoatOptions};
use super::prompts::one_line;
use super::reading::read_sub_query;
use super::shown_documents::{beside_gold, random_ranking};
use crate::executors::CallResult;

/// One prompt with the text that the model should write.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatExample {
    /// `trajectory/kind-number`, numbers from 1.
    pub id: String,
    /// What the text is.
    pub kind: ExampleKind,
    /// The prompt, and the text as its last message with the places of argument values.
    pub conversation: Conversation,
    /// How much the example counts; above 0.
    pub weight: f32,
}

impl From<GoatExample> for Row {
    fn from(example: GoatExample) -> Self {
        Self {
            id: example.id,
            conversation: example.conversation,
            weight: example.weight,
            slot: None,
        }
    }
}

/// Where the documents beside the gold ones come from.
pub enum Ranking<'r> {
    /// Chance.
    Random,
    /// A retriever: the positions of the `k` documents nearest to a text, nearest first. The texts
    /// are those of [`Expansion::retrieval_texts`], so that they can be embedded in advance.
    Retriever(&'r mut dyn FnMut(&str, usize) -> Vec<usize>),
}

impl fmt::Debug for Ranking<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Random => "Random",
            Self::Retriever(_) => "Retriever",
        })
    }
}

/// Makes trajectories into examples.
///
/// The same seed gives the same examples of a trajectory, whichever others are expanded.
#[derive(Debug, Clone, Copy)]
pub struct Expansion<'a> {
    /// All APIs; gold documents and distractors are taken from it.
    pub catalogue: &'a ApiCatalogue,
    /// The method, the shape of its prompts and the weights.
    pub options: &'a GoatOptions,
    /// Decides the order of documents, and random ones; another seed for each epoch shows other
    /// ones.
    pub seed: u64,
}

impl<'a> Expansion<'a> {
    /// The examples of a trajectory, in the order in which the model writes their texts.
    ///
    /// Kinds of weight 0 are left out.
    ///
    /// # Errors
    ///
    /// Each names the trajectory:
    ///
    /// - as [`Trajectory::check`]: no query, no calls, an API that is not in the catalogue, an
    ///   argument derived from a call that was not made before
    /// - a sub-query is empty, or is the word that ends sub-queries, and the method learns it
    /// - the ranking names a position beyond the catalogue
    pub fn expand(
        &self,
        trajectory: &Trajectory,
        ranking: &mut Ranking<'_>,
    ) -> Result<Vec<GoatExample>, DataError> {
        trajectory.check(self.catalogue)?;
        self.replay(trajectory, ranking).map_err(|error| {
            if trajectory.id.is_empty() {
                error
            } else {
                error.at(&trajectory.id)
            }
        })
    }

    /// The texts that the expansion of a trajectory retrieves documents for.
    pub fn retrieval_texts(&self, trajectory: &Trajectory) -> Vec<String> {
        if self.options.method.decomposes() {
            trajectory
                .calls
                .iter()
                .map(|call| one_line(&call.sub_query))
                .collect()
        } else {
            vec![trajectory.query.clone()]
        }
    }

    fn replay(
        &self,
        trajectory: &Trajectory,
        ranking: &mut Ranking<'_>,
    ) -> Result<Vec<GoatExample>, DataError> {
        let gold = self.gold(trajectory)?;
        let mut random = SeededRandom::new(self.seed, stream(trajectory));
        let limits = AgentLimits {
            max_calls: usize::MAX,
            max_steps: usize::MAX,
            ..self.options.limits()
        };
        let method = self.options.method;
        let mut agent = Agent::new(method, &trajectory.query, self.catalogue, limits);
        let mut examples = Vec::new();
        let mut n_calls = 0;
        loop {
            match agent.next() {
                AgentRequest::Retrieve { text, k } => {
                    let gold = if method.decomposes() {
                        &gold[n_calls..=n_calls]
                    } else {
                        &gold
                    };
                    let ranked = self.ranked(&text, k.max(gold.len()), ranking, &mut random)?;
                    agent.feed_documents(&beside_gold(gold, ranked, k, &mut random));
                }
                AgentRequest::Generate {
                    conversation, kind, ..
                } => {
                    let completion = completion(method, kind, trajectory, n_calls);
                    let text = completion.content.clone().unwrap_or_default();
                    examples.extend(self.example(
                        trajectory,
                        &examples,
                        kind,
                        conversation,
                        completion,
                    ));
                    agent.feed_text(&text);
                }
                AgentRequest::Call { .. } => {
                    let output = trajectory.calls[n_calls].output.clone();
                    agent.feed_result(CallResult::success(output));
                    n_calls += 1;
                }
                AgentRequest::Done(outcome) => {
                    debug_assert_eq!(outcome.response, trajectory.response.trim());
                    debug_assert_eq!(outcome.failures, []);
                    return Ok(examples);
                }
            }
        }
    }

    /// Positions of the documents of the calls.
    fn gold(&self, trajectory: &Trajectory) -> Result<Vec<usize>, DataError> {
        let learns_sub_queries = self.options.method.decomposes();
        trajectory
            .calls
            .iter()
            .enumerate()
            .map(|(call_idx, call)| {
                if learns_sub_queries && read_sub_query(&call.sub_query).is_none() {
                    return Err(DataError::NoSubQuery { call: call_idx });
                }
                let position = self.catalogue.position(&call.name);
                Ok(position.expect("the trajectory was checked against the catalogue"))
            })
            .collect()
    }

    fn ranked(
        &self,
        text: &str,
        k: usize,
        ranking: &mut Ranking<'_>,
        random: &mut SeededRandom,
    ) -> Result<Vec<usize>, DataError> {
        let n_documents = self.catalogue.len();
        let ranked = match ranking {
            // Some of these may be gold, and a prompt needs `k` in all.
            Ranking::Random => random_ranking(2 * k, n_documents, random),
            Ranking::Retriever(rank) => rank(text, k),
        };
        match ranked.iter().find(|&&position| position >= n_documents) {
            None => Ok(ranked),
            Some(&position) => Err(DataError::BadRanking {
                position,
                n_documents,
            }),
        }
    }

    fn example(
        &self,
        trajectory: &Trajectory,
        earlier: &[GoatExample],
        kind: ExampleKind,
        mut conversation: Conversation,
        completion: Message,
    ) -> Option<GoatExample> {
        let weight = self.options.weights.of(kind);
        let number = 1 + earlier
            .iter()
            .filter(|example| example.kind == kind)
            .count();
        conversation.messages.push(completion);
        (weight > 0.0).then(|| GoatExample {
            id: format!("{}/{}-{number}", trajectory.id, kind.as_str()),
            kind,
            conversation,
            weight,
        })
    }
}

/// The gold text after `n_calls` calls.
fn completion(
    method: Method,
    kind: ExampleKind,
    trajectory: &Trajectory,
    n_calls: usize,
) -> Message {
    let call = trajectory.calls.get(n_calls);
    match (kind, call) {
        (ExampleKind::Plan, _) => completions::plan(trajectory),
        (ExampleKind::Call, Some(call)) => completions::call(call),
        (ExampleKind::Step, Some(call)) => completions::step(call),
        (ExampleKind::Step, None) => completions::finish(trajectory),
        (ExampleKind::Decompose, _) if method == Method::GlobalId => {
            completions::sub_queries(trajectory)
        }
        (ExampleKind::Decompose, Some(call)) => completions::sub_query(call),
        (ExampleKind::Decompose, None) => completions::no_sub_query(),
        (ExampleKind::Final | ExampleKind::Call, _) => completions::answer(trajectory),
    }
}

/// A stream of random numbers for each trajectory, whatever its place in the file.
fn stream(trajectory: &Trajectory) -> u64 {
    let digest = Sha256::new()
        .chain_update(&trajectory.id)
        .chain_update([0])
        .chain_update(&trajectory.query)
        .finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}
