//! Splits documents into tiles, one per cube and within one document, and uploads the list of
//! tiles.

use std::sync::{Arc, Mutex};

use burn_cubecl::tensor::CubeTensor;

use crate::attention::{Causality, Documents};
use crate::cube::launch::upload;
#[cfg(feature = "cuda")]
use crate::cudnn::lengths_and_starts;

/// Rows that a tile holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Query rows: forward pass and query gradients.
    Queries,
    /// Key and value rows: their gradients.
    Keys,
}

/// Key of a cached list: its parameters other than the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListKey {
    /// Tiles with this many rows.
    Tiles {
        rows: usize,
        causality: Causality,
        side: Side,
    },
    /// Starts of this many documents, in units of this many elements.
    #[cfg(feature = "cuda")]
    Starts { documents: usize, units: [usize; 3] },
}

/// The lists of a micro-batch that are already on a GPU, shared by all copies of its documents.
#[derive(Debug, Clone, Default)]
pub(in crate::attention) struct BlockLists(Arc<Mutex<Vec<(ListKey, CubeTensor)>>>);

/// Lists are derived from the documents, so they are ignored when documents are compared.
impl PartialEq for BlockLists {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for BlockLists {}

impl Documents {
    /// The tiles of `rows` rows on the device of `like`, four values per tile; see [`query_blocks`]
    /// and [`key_blocks`]. Uploaded when a layer first requests them.
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

    /// Lengths and starts of the documents on the device of `like`; see [`numbers`].
    #[cfg(feature = "cuda")]
    pub(crate) fn starts(
        &self,
        like: &CubeTensor,
        documents: usize,
        units: [usize; 3],
    ) -> CubeTensor {
        let key = ListKey::Starts { documents, units };
        self.list(like, key, || lengths_and_starts(self, documents, units))
    }

    fn list(
        &self,
        like: &CubeTensor,
        key: ListKey,
        compute: impl FnOnce() -> Vec<u32>,
    ) -> CubeTensor {
        let mut lists = self
            .lists
            .0
            .lock()
            .expect("computing a list does not panic");
        let is_cached = |(cached_key, list): &&(ListKey, CubeTensor)| {
            *cached_key == key && list.device == like.device
        };
        if let Some((_, list)) = lists.iter().find(is_cached) {
            return list.clone();
        }
        let list = upload(like, &compute());
        lists.push((key, list.clone()));
        list
    }
}

/// For each tile of `rows` queries: start and end of the document, first row, end of the rows.
///
/// Tiles with the most keys come first, so that no long tile runs last. Padding is split into tiles
/// of an empty document.
fn query_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
    let mut blocks: Vec<[usize; 4]> = blocks(documents, rows).collect();
    if causality == Causality::Causal {
        blocks.sort_by_key(|[start, _, first, _]| std::cmp::Reverse(first - start));
    }
    flat(blocks)
}

/// For each tile of `rows` keys, the same four values; tiles that the most queries attend to come
/// first.
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
