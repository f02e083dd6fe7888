//! Documents to the tiles that cubes work on, none across a border, and these to a list on a GPU.

use std::sync::{Arc, Mutex};

use burn_cubecl::tensor::CubeTensor;

use crate::attention::{Causality, Documents};
use crate::cube::launch::upload;
#[cfg(feature = "cuda")]
use crate::cudnn::numbers;

/// Whose rows a tile holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Those of queries: forward, and their gradients.
    Queries,
    /// Those of keys and values, for their gradients.
    Keys,
}

/// What a list follows from, beside the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListKey {
    /// Tiles of so many rows.
    Tiles {
        rows: usize,
        causality: Causality,
        side: Side,
    },
    /// Where so many documents begin, in units of so many elements.
    #[cfg(feature = "cuda")]
    Starts { documents: usize, units: [usize; 3] },
}

/// The lists of a micro-batch that are on a GPU already, shared by all copies of its documents.
#[derive(Debug, Clone, Default)]
pub(in crate::attention) struct BlockLists(Arc<Mutex<Vec<(ListKey, CubeTensor)>>>);

/// Lists follow from the documents, so that they make no difference between two of them.
impl PartialEq for BlockLists {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for BlockLists {}

impl Documents {
    /// The tiles of `rows` rows on the device of `like`: four numbers each, which [`query_blocks`] and
    /// [`key_blocks`] say. They are uploaded when a layer first asks for them.
    pub(super) fn blocks(
        &self,
        like: &CubeTensor,
        rows: usize,
        causality: Causality,
        side: Side,
    ) -> CubeTensor {
        let key = ListKey::Tiles {
            rows,
            causality,
            side,
        };
        self.list(like, key, || match side {
            Side::Queries => query_blocks(self, rows, causality),
            Side::Keys => key_blocks(self, rows, causality),
        })
    }

    /// Lengths and starts of the documents on the device of `like`, which [`numbers`] says.
    #[cfg(feature = "cuda")]
    pub(crate) fn starts(
        &self,
        like: &CubeTensor,
        documents: usize,
        units: [usize; 3],
    ) -> CubeTensor {
        let key = ListKey::Starts { documents, units };
        self.list(like, key, || numbers(self, documents, units))
    }

    fn list(&self, like: &CubeTensor, key: ListKey, made: impl FnOnce() -> Vec<u32>) -> CubeTensor {
        let mut lists = self.lists.0.lock().expect("no list panics");
        let kept = |(of, list): &&(ListKey, CubeTensor)| *of == key && list.device == like.device;
        if let Some((_, list)) = lists.iter().find(kept) {
            return list.clone();
        }
        let list = upload(like, &made());
        lists.push((key, list.clone()));
        list
    }
}

/// Start and end of the document, first and last row, of each tile of `rows` queries.
///
/// Tiles with the most keys come first, so that none of them is left for the end. Padding is cut
/// into tiles of a document without tokens.
fn query_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
    let mut blocks: Vec<[usize; 4]> = blocks(documents, rows).collect();
    if causality == Causality::Causal {
        blocks.sort_by_key(|[start, _, first, _]| std::cmp::Reverse(first - start));
    }
    flat(blocks)
}

/// The same of each tile of `rows` keys; those that the most queries see come first.
fn key_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
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
