//! Expands a trajectory into training examples, one for each text that the model should write.
//!
//! The trajectory is replayed through [`Agent`], and gold texts answer its requests. Each request
//! for a text becomes the prompt of an example.

use std::fmt;

use sha2::{Digest, Sha256};
use tooltune_apis::{ApiCatalogue, Trajectory};
use tooltune_rows::batches::SeededRandom;
use tooltune_rows::text::{DataError, Row};
use tooltune_template::{Conversation, Message};

use super::agent::{Agent, AgentRequest};
use super::completions;
use super::method::{ExampleKind, Method};
use super::options::{AgentLimits, GoatOptions};
use super::prompts::one_line;
use super::reading::read_sub_query;
use super::shown_documents::{gold_and_distractors, random_ranking};
use crate::executors::CallResult;

/// A prompt with the text that the model should write.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatExample {
    /// `trajectory/kind-number`, numbered from 1.
    pub id: String,
    /// The kind of the text.
    pub kind: ExampleKind,
    /// The prompt, with the text as its last message and the spans of argument values.
    pub conversation: Conversation,
    /// Weight of the example, above 0.
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

/// How the documents other than the gold ones are chosen.
pub enum Ranking<'r> {
    /// Random documents.
    Random,
    /// A retriever: returns the indices of the `k` documents nearest to a text, nearest first.
    /// [`Expansion::retrieval_texts`] lists the texts, so that they can be embedded in advance.
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

/// Expands trajectories into examples.
///
/// With the same seed, a trajectory gives the same examples, independent of other trajectories.
#[derive(Debug, Clone, Copy)]
pub struct Expansion<'a> {
    /// All APIs, the source of gold documents and distractors.
    pub catalogue: &'a ApiCatalogue,
    /// The method, the format of its prompts and the weights.
    pub options: &'a GoatOptions,
    /// Seed of the order of documents and of random documents; use another seed per epoch to vary
    /// them.
    pub seed: u64,
}

impl<'a> Expansion<'a> {
    /// The examples of a trajectory, in the order in which the model writes their texts.
    ///
    /// Kinds of weight 0 are omitted.
    ///
    /// # Errors
    ///
    /// The error names the trajectory:
    ///
    /// - as for [`Trajectory::check`]: no query, no calls, an unknown API, or an argument derived
    ///   from a call that was not made before
    /// - the method trains on sub-queries, and one is empty or is the word that ends sub-queries
    /// - the ranking contains an index out of range
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

    /// The texts for which the expansion of a trajectory retrieves documents.
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
        let gold = self.gold_documents(trajectory)?;
        let mut random = SeededRandom::new(self.seed, random_stream(trajectory));
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
                    let ranked =
                        self.ranked_documents(&text, k.max(gold.len()), ranking, &mut random)?;
                    agent.feed_documents(&gold_and_distractors(gold, ranked, k, &mut random));
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

    /// Indices of the documents that belong to the calls.
    fn gold_documents(&self, trajectory: &Trajectory) -> Result<Vec<usize>, DataError> {
        let trains_on_sub_queries = self.options.method.decomposes();
        trajectory
            .calls
            .iter()
            .enumerate()
            .map(|(call_idx, call)| {
                if trains_on_sub_queries && read_sub_query(&call.sub_query).is_none() {
                    return Err(DataError::NoSubQuery { call: call_idx });
                }
                let position = self.catalogue.position(&call.name);
                Ok(position.expect("the trajectory was checked against the catalogue"))
            })
            .collect()
    }

    fn ranked_documents(
        &self,
        text: &str,
        k: usize,
        ranking: &mut Ranking<'_>,
        random: &mut SeededRandom,
    ) -> Result<Vec<usize>, DataError> {
        let n_documents = self.catalogue.len();
        let ranked = match ranking {
            // Some of these may be gold documents, and a prompt needs `k` documents in total.
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
        earlier_examples: &[GoatExample],
        kind: ExampleKind,
        mut conversation: Conversation,
        completion: Message,
    ) -> Option<GoatExample> {
        let weight = self.options.weights.for_kind(kind);
        let number = 1 + earlier_examples
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

/// A random stream per trajectory, independent of its position in the file.
fn random_stream(trajectory: &Trajectory) -> u64 {
    let digest = Sha256::new()
        .chain_update(&trajectory.id)
        .chain_update([0])
        .chain_update(&trajectory.query)
        .finalize();
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(prefix)
}
