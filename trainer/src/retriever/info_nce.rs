//! The contrastive loss of a batch's embeddings, with its gradient.
//!
//! The logits are dot products divided by a temperature. For unit vectors, the dot products are
//! cosines. Pairs that must not be negatives are masked.

use burn::tensor::{Bool, Int, Tensor, TensorData, activation};
use tooltune_agents::pairs::PairBatch;

use crate::optim::backward::leaf;

/// Direction of the ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Each query ranks the documents.
    QueryToDocument,
    /// Each query ranks the documents and each right document ranks the queries; the loss is the
    /// mean of both.
    Symmetric,
}

/// `MultipleNegativesRankingLoss`: InfoNCE with in-batch negatives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InfoNce {
    /// Inverse temperature.
    pub scale: f64,
    /// Direction of the ranking.
    pub direction: Direction,
}

/// Logit of a masked candidate. Its exponential is 0, and unlike -∞ it can be subtracted without a
/// NaN as the result.
const MASKED_LOGIT: f64 = -1e30;

/// Loss of a batch and its gradient with respect to the embeddings.
#[derive(Debug, Clone)]
pub struct LossAndGradients {
    /// Mean loss over the pairs, in nats.
    pub loss: f64,
    /// Gradient of the queries, `[distinct queries, d]`.
    pub d_queries: Tensor<2>,
    /// Gradient of the documents, `[distinct documents, d]`.
    pub d_documents: Tensor<2>,
}

/// The queries or the documents of a batch.
#[derive(Debug, Clone, Copy)]
struct Side<'a> {
    embeddings: &'a Tensor<2>,
    /// Index of the embedding for each row of the batch.
    rows: &'a [usize],
}

impl InfoNce {
    /// The loss of the embeddings, which are in the order of the batch's texts.
    ///
    /// # Shapes
    ///
    /// - `queries`: `[distinct queries, d]`, f32; `documents`: `[distinct documents, d]`
    ///
    /// # Source
    ///
    /// van den Oord et al. 2018, equation 4, with cosines or dot products as scores;
    /// `MultipleNegativesRankingLoss` of sentence-transformers 6.2.
    pub fn loss(
        &self,
        queries: Tensor<2>,
        documents: Tensor<2>,
        batch: &PairBatch,
    ) -> LossAndGradients {
        let [queries, documents] = [queries, documents].map(leaf);
        let loss = self.tracked_loss(queries.clone(), documents.clone(), batch);
        let value = f64::from(loss.clone().inner().into_scalar::<f32>());
        let mut gradients = loss.backward();
        let mut gradient = |x: &Tensor<2>| {
            let gradient = x.grad_remove(&mut gradients);
            gradient.unwrap_or_else(|| x.clone().inner().zeros_like())
        };
        LossAndGradients {
            loss: value,
            d_queries: gradient(&queries),
            d_documents: gradient(&documents),
        }
    }

    fn tracked_loss(
        &self,
        queries: Tensor<2>,
        documents: Tensor<2>,
        batch: &PairBatch,
    ) -> Tensor<1> {
        let of_query: Vec<usize> = batch.rows.iter().map(|row| row.query).collect();
        let of_document: Vec<usize> = batch.rows.iter().map(|row| row.document).collect();
        let queries = Side {
            embeddings: &queries,
            rows: &of_query,
        };
        let documents = Side {
            embeddings: &documents,
            rows: &of_document,
        };
        let forward = self.cross_entropy(queries, documents, &batch.excluded_documents);
        match self.direction {
            Direction::QueryToDocument => forward,
            Direction::Symmetric => {
                let backward = self.cross_entropy(documents, queries, &batch.excluded_queries);
                forward.add(backward).mul_scalar(0.5)
            }
        }
    }

    /// Mean negative log-probability of the correct candidate in each row.
    fn cross_entropy(
        &self,
        Side {
            embeddings: anchors,
            rows,
        }: Side<'_>,
        Side {
            embeddings: candidates,
            rows: correct,
        }: Side<'_>,
        excluded: &[bool],
    ) -> Tensor<1> {
        let shape = [rows.len(), candidates.dims()[0]];
        let device = anchors.device();
        let positions = |indices: &[usize]| -> Tensor<1, Int> {
            let indices: Vec<i32> = indices.iter().map(|&idx| idx as i32).collect();
            Tensor::from_data(TensorData::new(indices, [rows.len()]), &device)
        };
        let scores = anchors
            .clone()
            .select(0, positions(rows))
            .matmul(candidates.clone().transpose())
            .mul_scalar(self.scale);
        let excluded =
            Tensor::<2, Bool>::from_data(TensorData::new(excluded.to_vec(), shape), &device);
        let scores = scores.mask_fill(excluded, MASKED_LOGIT);
        let correct = positions(correct).unsqueeze_dim(1);
        activation::log_softmax(scores, 1)
            .gather(1, correct)
            .mean()
            .neg()
    }
}
