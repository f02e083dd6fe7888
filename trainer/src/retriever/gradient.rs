//! Computes the encoder gradient of a step, one mini-batch of sentences at a time.
//!
//! The loss needs all embeddings, but only the activations of one mini-batch fit into memory. All
//! sentences are therefore first embedded without autodiff. The loss returns the gradient of each
//! embedding. Each mini-batch is then embedded again, to propagate its embedding gradients to the
//! parameters. Each process of a run does this for its own mini-batches; its last one is embedded
//! only once.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use tooltune_agents::pairs::PairBatch;
use tooltune_kernels::ComputeDtype;
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::operation;

use super::division::Division;
use super::info_nce::InfoNce;
use super::trained::{Tracked, Trained};
use crate::error::Error;
use crate::models::minilm::{EmbeddingHead, MiniLm, MiniLmConfig, ParameterLayout, Sentence};
use crate::optim::StepError;

/// Encoder without its parameters.
#[derive(Debug, Clone)]
pub struct Encoder {
    /// Shape.
    pub config: MiniLmConfig,
    /// Head that computes the embeddings for the loss.
    pub head: EmbeddingHead,
    /// Layout of the parameters.
    pub layout: ParameterLayout,
    /// The dtype of matrix-multiplication inputs.
    pub dtype: ComputeDtype,
    /// Trained parameters.
    pub trained: Trained,
}

/// Result of a batch.
#[derive(Debug, Clone)]
pub struct StepGradient {
    /// Mean loss over the pairs, in nats.
    pub loss: f64,
    /// Gradient of all trained parameters, `[p]`, f32.
    pub gradient: Tensor<1>,
}

/// The texts of a batch as token IDs.
#[derive(Debug, Clone)]
pub struct Sentences<'a> {
    /// Distinct queries.
    pub queries: Vec<Sentence<'a>>,
    /// Distinct documents.
    pub documents: Vec<Sentence<'a>>,
}

impl Sentences<'_> {
    /// Total tokens of the texts.
    pub fn n_tokens(&self) -> usize {
        let texts = self.queries.iter().chain(&self.documents);
        texts.map(|sentence| sentence.ids.len()).sum()
    }
}

impl Encoder {
    /// An encoder of `config` with matmuls in `dtype`, whose parameters are all trained.
    pub fn new(config: MiniLmConfig, head: EmbeddingHead, dtype: ComputeDtype) -> Self {
        let layout = ParameterLayout::new(&config);
        Self {
            config,
            head,
            layout,
            dtype,
            trained: Trained::All,
        }
    }

    /// The encoder with trained parameters `flat`.
    pub fn with_parameters(&self, flat: &Tensor<1>) -> MiniLm {
        let all = self.trained.merged_parameters(&self.layout, flat);
        MiniLm::new(&self.config, self.head, &self.layout, &all, self.dtype)
    }

    /// Loss of a batch and gradient of the parameters, with at most `mini_batch_size` sentences
    /// under autodiff at once. The mini-batches are divided among the processes of `division`; the
    /// result does not depend on them.
    ///
    /// # Errors
    ///
    /// A parameter has no gradient, or a process was lost.
    ///
    /// # Source
    ///
    /// Gao et al. 2021 ("Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"),
    /// section 3: GradCache.
    pub fn gradient(
        &self,
        flat: &Tensor<1>,
        sentences: &Sentences<'_>,
        batch: &PairBatch,
        loss: &InfoNce,
        mini_batch_size: usize,
        division: &mut dyn Division,
    ) -> Result<StepGradient, Error> {
        let n_queries = sentences.queries.len();
        let all = [&sentences.queries[..], &sentences.documents].concat();
        let size = mini_batch_size.clamp(1, all.len().max(1));
        let mini_batches: Vec<&[Sentence<'_>]> = all.chunks(size).collect();
        let n_tokens =
            |part: &&[Sentence<'_>]| part.iter().map(|s| s.ids.len() as u64).sum::<u64>();
        let own = division.own(&mini_batches.iter().map(n_tokens).collect::<Vec<u64>>());

        let mut values = BTreeMap::new();
        let plain = (own.len() > 1).then(|| self.with_parameters(flat));
        let mut kept = None;
        for (position, &i) in own.iter().enumerate() {
            let embedded = match &plain {
                Some(plain) if position + 1 < own.len() => plain.embed(mini_batches[i]),
                _ => {
                    let graph = kept.insert(self.graph(flat, mini_batches[i]));
                    graph.embeddings.clone().inner()
                }
            };
            values.insert(i, embedded.to_data().iter::<f32>().collect());
            division.progress();
        }
        drop(plain);
        let values = division.exchange(values, mini_batches.len())?.concat();
        let shape = [all.len(), values.len() / all.len().max(1)];
        let embeddings = Tensor::<2>::from_data(TensorData::new(values, shape), &flat.device());

        let queries = embeddings.clone().narrow(0, 0, n_queries);
        let documents = embeddings.narrow(0, n_queries, all.len() - n_queries);
        let computed = loss.loss(queries, documents, batch);
        let d_embeddings = Tensor::cat(vec![computed.d_queries, computed.d_documents], 0);

        let mut sum = division.gradient_sum(flat.dims()[0], mini_batches.len());
        // The kept graph comes first, so that at most one graph is in memory.
        for &i in own.iter().rev() {
            let graph = kept
                .take()
                .unwrap_or_else(|| self.graph(flat, mini_batches[i]));
            let d_part = d_embeddings
                .clone()
                .narrow(0, i * size, mini_batches[i].len());
            sum.add_matrices(graph.backward(d_part)?);
            division.progress();
        }
        Ok(StepGradient {
            loss: computed.loss,
            gradient: division.add(sum, flat)?,
        })
    }

    /// Embeds sentences, with the trained parameters as leaves.
    fn graph(&self, flat: &Tensor<1>, sentences: &[Sentence<'_>]) -> Graph {
        operation!("encoder");
        let Tracked { leaves, pieces } = self.trained.tracked(&self.layout, flat);
        let encoder = MiniLm::from_pieces(&self.config, self.head, &pieces, self.dtype);
        Graph {
            embeddings: encoder.embed(sentences),
            leaves,
        }
    }
}

/// Embeddings under autodiff.
struct Graph {
    embeddings: Tensor<2>,
    leaves: Vec<Tensor<2>>,
}

impl Graph {
    /// Computes the gradients of all leaves from the gradient of the embeddings.
    fn backward(self, d_embeddings: Tensor<2>) -> Result<Vec<Tensor<2>>, StepError> {
        operation!("encoder backward");
        let mut gradients = backward_with_gradient(self.embeddings, d_embeddings);
        let parts = self.leaves.iter().map(|leaf| {
            let gradient = leaf.grad_remove(&mut gradients);
            gradient.ok_or(StepError::NoEncoderGradient)
        });
        parts.collect()
    }
}
