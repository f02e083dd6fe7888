//! Numeric comparisons with transformers, PEFT and sentence-transformers, from fixtures generated
//! by `scripts/fixtures`.

use tooltune_agents::pairs::{BatchRow, PairBatch};

mod backward;
mod families;
mod logits;
mod minilm;
mod peft;
mod retriever;
mod retriever_kinds;
mod smollm2;
mod starting;

/// A batch of `n` pairs in which document i is the positive document of query i.
fn diagonal_batch(n: usize) -> PairBatch {
    PairBatch {
        queries: (0..n).collect(),
        documents: (0..n).collect(),
        rows: (0..n)
            .map(|i| BatchRow {
                query: i,
                document: i,
            })
            .collect(),
        excluded_documents: vec![false; n * n],
        excluded_queries: vec![false; n * n],
    }
}
