//! The queries and documents of an evaluation of a retriever.

use tooltune_agents::flat::FlatDocuments;
use tooltune_agents::pairs::{PairSet, read_documents, read_pairs_of};
use tooltune_rows::tools::ApiCatalogue;

use crate::config::Config;
use crate::encoder::cut_texts::{Consequence, CutTexts, PlacedIds};
use crate::encoder::documents::no_retriever;
use crate::encoder::{EncoderFiles, Role, TextIds};
use crate::error::Error;
use crate::rows::{RowFiles, eval_trajectories, flat_documents, goat_options};

/// Queries with their right documents, among all documents.
#[derive(Debug)]
pub struct RankedTexts {
    set: PairSet,
    n_queries: usize,
    /// The tokens of the queries.
    pub query_ids: TextIds,
    /// The tokens of the documents.
    pub document_ids: TextIds,
}

impl RankedTexts {
    /// Reads queries and documents: those of `[retriever]`, or of trajectories; and warns of those
    /// that the retriever does not read to their end.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, a text that the tokenizer refuses, or nothing to evaluate on.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
        let mut set = if retriever.eval.is_empty() {
            trajectory_pairs(config)?
        } else {
            read_pairs_of(RowFiles::whole(&retriever.eval).open()?)?
        };
        let n_queries = set.queries().len();
        if let Some(path) = &retriever.documents {
            for document in read_documents(path)? {
                set.add_document(&document.text, &document.place);
            }
        }
        let n_queries = n_queries.min(config.eval.max_samples.unwrap_or(usize::MAX));
        let files = EncoderFiles::of_retriever(retriever)?;
        let query_ids = files.token_ids(Role::Query, &set.queries()[..n_queries])?;
        let document_ids = files.token_ids(Role::Document, set.documents())?;
        let queries = PlacedIds {
            places: &set.query_places()[..n_queries],
            ids: &query_ids,
        };
        let documents = PlacedIds {
            places: set.document_places(),
            ids: &document_ids,
        };
        let cut = CutTexts::new(&files, Some(queries), Some(documents));
        for line in cut.lines(Consequence::ShareRanks) {
            tracing::warn!("evaluation of the retriever: {line}");
        }
        Ok(Self {
            n_queries,
            set,
            query_ids,
            document_ids,
        })
    }

    /// The queries.
    pub fn queries(&self) -> &[String] {
        &self.set.queries()[..self.n_queries]
    }

    /// All documents.
    pub fn documents(&self) -> &[String] {
        self.set.documents()
    }

    /// Positions of the right documents of a query, by its position.
    pub fn relevant(&self, query: usize) -> Vec<usize> {
        self.set.relevant(query).iter().copied().collect()
    }
}

/// The queries of the evaluation's trajectories, and all documents of their catalogue.
fn trajectory_pairs(config: &Config) -> Result<PairSet, Error> {
    let options = goat_options(config)?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let trajectories = eval_trajectories(config, &catalogue)?;
    let flat = flat_documents(config, &catalogue)?;
    let shown = flat.as_ref().map_or(&catalogue, FlatDocuments::catalogue);
    let mut set = PairSet::of_trajectories(&trajectories, shown, options.method)?;
    for document in shown {
        set.add_document(&document.retriever_text(), &document.call_name());
    }
    Ok(set)
}
