//! Computes the encoder gradient of a step, one mini-batch of sentences at a time.
//!
//! The loss needs all embeddings, but only the activations of one mini-batch fit into memory. All
//! sentences are therefore first embedded without autodiff. The loss returns the gradient of each
//! embedding. Each mini-batch is then embedded again, to propagate its embedding gradients to the
//! parameters. If one mini-batch contains all sentences, they are embedded only once.

use burn::tensor::Tensor;
use tooltune_agents::pairs::PairBatch;
use tooltune_kernels::ComputeDtype;
use tooltune_kernels::adamw::concatenate;
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::operation;

use super::info_nce::InfoNce;
use super::trained::{Tracked, Trained};
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
    /// under autodiff at once.
    ///
    /// # Errors
    ///
    /// A parameter has no gradient.
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
    ) -> Result<StepGradient, StepError> {
        let n_queries = sentences.queries.len();
        let all = [&sentences.queries[..], &sentences.documents].concat();
        let loss_of_embeddings = |embeddings: Tensor<2>| {
            let [n, d] = embeddings.dims();
            let queries = embeddings.clone().narrow(0, 0, n_queries);
            let documents = embeddings.narrow(0, n_queries, n - n_queries);
            let loss_result = loss.loss(queries, documents, batch);
            let gradient = Tensor::cat(vec![loss_result.d_queries, loss_result.d_documents], 0);
            (loss_result.loss, gradient.reshape([n, d]))
        };
        if all.len() <= mini_batch_size {
            let graph = self.graph(flat, &all);
            let (loss, d_embeddings) = loss_of_embeddings(graph.embeddings.clone().inner());
            let gradient = graph.backward(d_embeddings)?;
            return Ok(StepGradient { loss, gradient });
        }
        let mini_batches: Vec<&[Sentence<'_>]> = all.chunks(mini_batch_size.max(1)).collect();
        let plain = self.with_parameters(flat);
        let embeddings = mini_batches.iter().map(|part| plain.embed(part)).collect();
        let (loss, d_embeddings) = loss_of_embeddings(Tensor::cat(embeddings, 0));
        let mut total: Option<Tensor<1>> = None;
        let mut first = 0;
        for part in mini_batches {
            let d_part = d_embeddings.clone().narrow(0, first, part.len());
            first += part.len();
            let gradient = self.graph(flat, part).backward(d_part)?;
            total = Some(match total {
                Some(total) => total.add(gradient),
                None => gradient,
            });
        }
        let gradient = total.unwrap_or_else(|| flat.zeros_like());
        Ok(StepGradient { loss, gradient })
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
    /// Computes the gradient of all parameters from the gradient of the embeddings.
    fn backward(self, d_embeddings: Tensor<2>) -> Result<Tensor<1>, StepError> {
        operation!("encoder backward");
        let mut gradients = backward_with_gradient(self.embeddings, d_embeddings);
        let parts = self.leaves.iter().map(|leaf| {
            let gradient = leaf.grad_remove(&mut gradients);
            gradient.ok_or(StepError::NoEncoderGradient)
        });
        Ok(concatenate(parts.collect::<Result<_, _>>()?))
    }
}
