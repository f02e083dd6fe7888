//! Pairs with their distinct texts, and which documents are right for each query.

use std::collections::{BTreeSet, HashMap};

use crate::agents::Method;
use crate::tools::{ApiCatalogue, ToolsError, Trajectory};

/// Distinct texts, in the order in which they first came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Texts {
    texts: Vec<String>,
    places: HashMap<String, usize>,
}

impl Texts {
    fn place(&mut self, text: &str) -> usize {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = self.texts.len();
        self.texts.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }
}

/// A query with a right document, and wrong ones that were given with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Name of the row, for reports.
    pub id: String,
    /// Number of the query.
    pub query: usize,
    /// Number of the document.
    pub document: usize,
    /// Numbers of hard negatives.
    pub negatives: Vec<usize>,
}

/// All pairs of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PairSet {
    queries: Texts,
    documents: Texts,
    pairs: Vec<Pair>,
    /// Right documents of each query.
    relevant: Vec<BTreeSet<usize>>,
}

impl PairSet {
    /// Adds a document that no pair needs, such as another one of an index; returns its number.
    pub fn add_document(&mut self, text: &str) -> usize {
        self.documents.place(text)
    }

    /// Adds a pair; one that is there already counts once.
    ///
    /// # Errors
    ///
    /// - a text is blank
    /// - a negative is the right document itself
    pub fn push(
        &mut self,
        id: String,
        (query, document): (&str, &str),
        negatives: &[String],
    ) -> Result<(), ToolsError> {
        let texts = [("query", query), ("positive", document)];
        let negative = |text: &String| ("negatives", text.trim().is_empty());
        let blank = texts
            .iter()
            .map(|(field, text)| (*field, text.trim().is_empty()))
            .chain(negatives.iter().map(negative))
            .find(|(_, is_blank)| *is_blank);
        if let Some((field, _)) = blank {
            return Err(ToolsError::EmptyField {
                field: field.to_owned(),
                needed: "a text without words has no meaning to learn; write one, or leave it out",
            });
        }
        if negatives.iter().any(|negative| negative == document) {
            return Err(ToolsError::NegativeIsPositive);
        }
        let query = self.queries.place(query);
        self.relevant
            .resize_with(self.queries.texts.len(), BTreeSet::new);
        let document = self.documents.place(document);
        let is_new = self.relevant[query].insert(document);
        let negatives: Vec<usize> = negatives
            .iter()
            .map(|negative| self.documents.place(negative))
            .collect();
        if is_new || !negatives.is_empty() {
            self.pairs.push(Pair {
                id,
                query,
                document,
                negatives,
            });
        }
        Ok(())
    }

    /// The pairs of trajectories: as `method` retrieves, the query or each sub-query with the
    /// documents of the APIs that answer it.
    ///
    /// # Errors
    ///
    /// - a trajectory calls nothing, or an API that has no document
    ///
    /// # Source
    ///
    /// GOAT, section 3.2.
    pub fn of_trajectories<'a>(
        trajectories: impl IntoIterator<Item = &'a Trajectory>,
        catalogue: &ApiCatalogue,
        method: Method,
    ) -> Result<Self, ToolsError> {
        let mut set = Self::default();
        for trajectory in trajectories {
            trajectory.check(catalogue)?;
            for (i, call) in trajectory.calls.iter().enumerate() {
                let Some(document) = catalogue.get(&call.name) else {
                    continue;
                };
                let query = method.retrieval_text(&trajectory.query, &call.sub_query);
                let id = format!("{}#{i}", trajectory.id);
                set.push(id, (&query, &document.retriever_text()), &[])
                    .map_err(|error| error.at(&trajectory.id))?;
            }
        }
        Ok(set)
    }

    /// The pairs, in the order of their rows.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Distinct queries, by number.
    pub fn queries(&self) -> &[String] {
        &self.queries.texts
    }

    /// Distinct documents, negatives and further ones included, by number.
    pub fn documents(&self) -> &[String] {
        &self.documents.texts
    }

    /// Numbers of the documents that are right for a query.
    ///
    /// # Panics
    ///
    /// If there is no such query.
    pub fn relevant(&self, query: usize) -> &BTreeSet<usize> {
        &self.relevant[query]
    }
}
