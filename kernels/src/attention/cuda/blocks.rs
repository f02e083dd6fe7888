//! Documents to the tiles that cubes work on, none across a border.

use crate::attention::{Causality, Documents};

/// Start and end of the document, first and last row, of each tile of `rows` queries.
///
/// Tiles with the most keys come first, so that none of them is left for the end. Padding is cut
/// into tiles of a document without tokens.
pub(super) fn query_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
    let mut blocks: Vec<[usize; 4]> = blocks(documents, rows).collect();
    if causality == Causality::Causal {
        blocks.sort_by_key(|[start, _, first, _]| std::cmp::Reverse(first - start));
    }
    flat(blocks)
}

/// The same of each tile of `rows` keys; those that the most queries see come first.
pub(super) fn key_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
    let mut blocks: Vec<[usize; 4]> = blocks(documents, rows).collect();
    if causality == Causality::Causal {
        blocks.sort_by_key(|[_, end, first, _]| std::cmp::Reverse(end - first.min(end)));
    }
    flat(blocks)
}

fn blocks(documents: &Documents, rows: usize) -> impl Iterator<Item = [usize; 4]> + '_ {
    let n = documents.n_tokens();
    let padding = documents
        .spans()
        .last()
        .map_or(0, |(start, length)| start + length);
    let spans = documents
        .spans()
        .map(|(start, length)| [start, start + length, start + length]);
    spans
        .chain([[padding, padding, n]])
        .flat_map(move |[start, end, last]| {
            (start..last)
                .step_by(rows)
                .map(move |first| [start, end, first, last.min(first + rows)])
        })
}

fn flat(blocks: Vec<[usize; 4]>) -> Vec<u32> {
    blocks
        .into_iter()
        .flatten()
        .map(|position| u32::try_from(position).expect("a micro-batch has fewer than 2^32 tokens"))
        .collect()
}
