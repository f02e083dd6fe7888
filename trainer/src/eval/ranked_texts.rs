//! The queries and documents that a retriever is evaluated on.

use std::collections::HashSet;
use std::path::Path;

use tooltune_agents::flat::FlatDocuments;
use tooltune_agents::pairs::{LocatedText, PairSet, read_documents, read_pairs_among};
use tooltune_apis::ApiCatalogue;

use crate::config::Config;
use crate::encoder::cut_texts::{CutTexts, EqualTexts, LocatedIds};
use crate::encoder::documents::no_retriever;
use crate::encoder::{EncoderFiles, Role, TextIds};
use crate::error::Error;
use crate::rows::{RowFiles, eval_trajectories, flat_documents, goat_options};

/// Queries with their relevant documents, and all documents to rank.
#[derive(Debug)]
pub struct RankedTexts {
    set: PairSet,
    n_queries: usize,
    /// Tokens of the queries.
    pub query_ids: TextIds,
    /// Tokens of the documents.
    pub document_ids: TextIds,
}

impl RankedTexts {
    /// Reads the queries and documents of `[retriever]` or of trajectories, and warns about texts
    /// that the retriever truncates.
    ///
    /// # Errors
    ///
    /// A file cannot be read, the tokenizer rejects a text, or there is nothing to evaluate.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
        let index = retriever.documents.as_deref().map(read_documents);
        let index = index.transpose()?.unwrap_or_default();
        let mut set = if !retriever.eval.is_empty() {
            read_pairs_among(RowFiles::all_rows(&retriever.eval).open()?, &index)?
        } else if config.goat.is_some() {
            trajectory_pairs(config)?
        } else {
            return Err(Error::Usage(
                "the retriever has no evaluation queries: name files of pairs in retriever.eval or \
                 with --data"
                    .to_owned(),
            ));
        };
        let n_queries = set.queries().len();
        if let Some(path) = retriever.documents.as_deref().filter(|_| !index.is_empty()) {
            if let Some(line) = missing_documents_line(&set, &index, path) {
                tracing::warn!("{line}");
            }
            for document in &index {
                set.add_document(&document.text, &document.place);
            }
        }
        let n_queries = n_queries.min(config.eval.max_samples.unwrap_or(usize::MAX));
        let files = EncoderFiles::for_retriever(retriever)?;
        let query_ids = files.token_ids(Role::Query, &set.queries()[..n_queries])?;
        let document_ids = files.token_ids(Role::Document, set.documents())?;
        let queries = LocatedIds {
            locations: &set.query_places()[..n_queries],
            ids: &query_ids,
        };
        let documents = LocatedIds {
            locations: set.document_places(),
            ids: &document_ids,
        };
        let cut = CutTexts::new(&files, Some(queries), Some(documents));
        for line in cut.lines(EqualTexts::ShareRanks) {
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

    /// Describes the number of queries and documents.
    pub fn line(&self) -> String {
        let (n_queries, n_documents) = (self.n_queries, self.set.documents().len());
        format!("{n_queries} queries rank {n_documents} documents")
    }

    /// All documents.
    pub fn documents(&self) -> &[String] {
        self.set.documents()
    }

    /// Indices of the relevant documents of a query, given by its index.
    pub fn relevant_documents(&self, query: usize) -> Vec<usize> {
        self.set.relevant_documents(query).iter().copied().collect()
    }
}

/// A warning about relevant documents that `index` does not contain verbatim; `None` if it contains
/// all of them.
fn missing_documents_line(set: &PairSet, index: &[LocatedText], path: &Path) -> Option<String> {
    let known: HashSet<&str> = index.iter().map(|one| one.text.as_str()).collect();
    let relevant: HashSet<usize> = (0..set.queries().len())
        .flat_map(|query| set.relevant_documents(query).iter().copied())
        .collect();
    let documents = set.documents().iter().enumerate();
    let missing: Vec<(usize, &String)> = documents
        .filter(|(number, text)| relevant.contains(number) && !known.contains(text.as_str()))
        .collect();
    let (first, _) = missing.first()?;
    let plain = |text: &str| -> String {
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .to_lowercase()
    };
    let known: HashSet<String> = known.iter().map(|text| plain(text)).collect();
    let n_near = missing
        .iter()
        .filter(|(_, text)| known.contains(&plain(text)))
        .count();
    let similar = match n_near {
        0 => String::new(),
        n => format!(" ({n} differ only in case or spaces)"),
    };
    Some(format!(
        "retriever.eval: {} of {} relevant documents are not in {} with exactly this text{similar}, \
         such as the document of {}; they are added to its {} documents, which may thus contain \
         duplicates: give rows the field \"document_id\" (the \"id\" of their document) or the \
         exact text of the document",
        missing.len(),
        relevant.len(),
        path.display(),
        set.document_places()[*first],
        index.len()
    ))
}

/// Queries of the evaluation trajectories, and all documents of their catalogue.
fn trajectory_pairs(config: &Config) -> Result<PairSet, Error> {
    let options = goat_options(config)?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let trajectories = eval_trajectories(config, &catalogue)?;
    let flat = flat_documents(config, &catalogue)?;
    let visible = flat.as_ref().map_or(&catalogue, FlatDocuments::catalogue);
    let mut set = PairSet::from_trajectories(&trajectories, visible, options.method)?;
    for document in visible {
        set.add_document(&document.retriever_text(), &document.call_name());
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevant_documents_missing_from_the_index_are_counted() {
        let text = |text: &str| LocatedText {
            place: "documents.jsonl:1".to_owned(),
            text: text.to_owned(),
            id: None,
        };
        let mut set = PairSet::default();
        for (query, document) in [("a", "Tide times"), ("b", "tide  times"), ("c", "Ferries")] {
            set.push(format!("pairs.jsonl:{query}"), query, document, &[])
                .unwrap();
        }
        let line =
            |index: &[LocatedText]| missing_documents_line(&set, index, Path::new("d.jsonl"));
        let all = ["Tide times", "tide  times", "Ferries", "Maps"].map(text);
        assert_eq!(line(&all), None);
        let line_text = line(&all[..1]).unwrap();
        for part in [
            "2 of 3 relevant documents are not in d.jsonl",
            "(1 differ only in case or spaces)",
            "such as the document of pairs.jsonl:b",
            "document_id",
        ] {
            assert!(line_text.contains(part), "{part}: {line_text}");
        }
    }
}
