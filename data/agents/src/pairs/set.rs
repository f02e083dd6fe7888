//! Pairs, their distinct texts, and the positive documents of each query.

use std::collections::{BTreeSet, HashMap};

use tooltune_apis::{ApiCatalogue, ToolsError, Trajectory};

use crate::Method;

/// A text and its location, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedText {
    /// File and line, or the name of the described API.
    pub place: String,
    /// The text.
    pub text: String,
    /// The id by which pairs refer to it, if there is one.
    pub id: Option<String>,
}

/// Distinct texts, in order of first appearance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NumberedTexts {
    texts: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Location of the first appearance of each text.
    places: Vec<String>,
}

impl NumberedTexts {
    fn index_of_text(&mut self, text: &str, location: &str) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len();
        self.texts.push(text.to_owned());
        self.places.push(location.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The first text of each group of equivalent texts, and the new index of each text.
    fn merge(&self, first_numbers: &[usize]) -> (Self, Vec<usize>) {
        let mut merged = Self::default();
        let mut numbers: Vec<usize> = Vec::with_capacity(first_numbers.len());
        for (number, &representative) in first_numbers.iter().enumerate() {
            let new = match numbers.get(representative) {
                Some(&new) => new,
                None => merged.index_of_text(&self.texts[number], &self.places[number]),
            };
            numbers.push(new);
        }
        (merged, numbers)
    }
}

/// A query with a positive document, and the negatives of its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Id of the row, for reports.
    pub id: String,
    /// Index of the query.
    pub query: usize,
    /// Index of the document.
    pub document: usize,
    /// Indices of the hard negatives.
    pub negatives: Vec<usize>,
}

/// All pairs of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PairSet {
    queries: NumberedTexts,
    documents: NumberedTexts,
    pairs: Vec<Pair>,
    /// Positive documents of each query.
    relevant: Vec<BTreeSet<usize>>,
}

impl PairSet {
    /// Adds a document without a pair, for example from an index; returns its index.
    pub fn add_document(&mut self, text: &str, location: &str) -> usize {
        self.documents.index_of_text(text, location)
    }

    /// Adds a pair whose only location is its id; otherwise like [`PairSet::push_from`].
    ///
    /// # Errors
    ///
    /// As for [`PairSet::push_from`].
    pub fn push(
        &mut self,
        id: String,
        query: &str,
        document: &str,
        negatives: &[String],
    ) -> Result<(), ToolsError> {
        let location = id.clone();
        self.push_from(&location, id, query, document, negatives)
    }

    /// Adds a pair found at `location`; repeated pairs count once.
    ///
    /// # Errors
    ///
    /// - a text is blank
    /// - a negative is the positive document itself
    pub fn push_from(
        &mut self,
        location: &str,
        id: String,
        query: &str,
        document: &str,
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
                needed: "a text without words cannot be embedded meaningfully; fill it in, or remove it",
            });
        }
        if negatives.iter().any(|negative| negative == document) {
            return Err(ToolsError::NegativeIsPositive);
        }
        let query = self.queries.index_of_text(query, location);
        self.relevant
            .resize_with(self.queries.texts.len(), BTreeSet::new);
        let document = self.documents.index_of_text(document, location);
        let is_new = self.relevant[query].insert(document);
        let negatives: Vec<usize> = negatives
            .iter()
            .map(|negative| self.documents.index_of_text(negative, location))
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

    /// The pairs of trajectories: depending on `method`, the query or each sub-query, with the
    /// documents of the APIs that answer it.
    ///
    /// # Errors
    ///
    /// A trajectory has no calls, or calls an API without a document.
    ///
    /// # Source
    ///
    /// GOAT, section 3.2.
    pub fn from_trajectories<'a>(
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
                set.push(id, &query, &document.retriever_text(), &[])
                    .map_err(|error| error.at(&trajectory.id))?;
            }
        }
        Ok(set)
    }

    /// Merges texts that an encoder cannot distinguish.
    ///
    /// `queries` and `documents` contain, for each text, the index of the first equivalent text, or
    /// its own index if there is none. Repeated pairs count once, and a negative that equals its
    /// positive document is dropped.
    ///
    /// # Panics
    ///
    /// If the number of indices differs from the number of texts.
    pub fn merge(&self, queries: &[usize], documents: &[usize]) -> Self {
        let (query_texts, queries) = self.queries.merge(queries);
        let (document_texts, documents) = self.documents.merge(documents);
        let mut relevant = vec![BTreeSet::new(); query_texts.texts.len()];
        for (query, right) in self.relevant.iter().enumerate() {
            relevant[queries[query]].extend(right.iter().map(|&document| documents[document]));
        }
        let mut seen_pairs = BTreeSet::new();
        let mut pairs = Vec::new();
        for pair in &self.pairs {
            let (query, document) = (queries[pair.query], documents[pair.document]);
            let mut negatives: Vec<usize> = Vec::new();
            for &negative in &pair.negatives {
                let negative = documents[negative];
                if negative != document && !negatives.contains(&negative) {
                    negatives.push(negative);
                }
            }
            if seen_pairs.insert((query, document)) || !negatives.is_empty() {
                pairs.push(Pair {
                    id: pair.id.clone(),
                    query,
                    document,
                    negatives,
                });
            }
        }
        Self {
            queries: query_texts,
            documents: document_texts,
            pairs,
            relevant,
        }
    }

    /// Location of the first appearance of each query.
    pub fn query_places(&self) -> &[String] {
        &self.queries.places
    }

    /// Location of the first appearance of each document.
    pub fn document_places(&self) -> &[String] {
        &self.documents.places
    }

    /// The pairs, in row order.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Distinct queries, by index.
    pub fn queries(&self) -> &[String] {
        &self.queries.texts
    }

    /// Distinct documents, including negatives and documents without a pair, by index.
    pub fn documents(&self) -> &[String] {
        &self.documents.texts
    }

    /// Indices of the positive documents of a query.
    ///
    /// # Panics
    ///
    /// If the query does not exist.
    pub fn relevant_documents(&self, query: usize) -> &BTreeSet<usize> {
        &self.relevant[query]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_texts_are_merged() {
        let mut set = PairSet::default();
        let rows: [(&str, &str, &[&str]); 5] = [
            ("q", "long a", &["c"]),
            ("Q", "long b", &[]),
            ("p", "long b", &[]),
            ("p", "long a", &[]),
            ("r", "d", &["long a", "long b"]),
        ];
        for (i, (query, document, negatives)) in rows.into_iter().enumerate() {
            let negatives: Vec<String> = negatives.iter().map(|text| text.to_string()).collect();
            let location = format!("rows.jsonl:{}", i + 1);
            set.push_from(&location, i.to_string(), query, document, &negatives)
                .expect("a pair");
        }
        assert_eq!(set.queries(), ["q", "Q", "p", "r"]);
        assert_eq!(set.documents(), ["long a", "c", "long b", "d"]);
        let merged = set.merge(&[0, 0, 2, 3], &[0, 1, 0, 3]);
        assert_eq!(merged.queries(), ["q", "p", "r"]);
        assert_eq!(merged.documents(), ["long a", "c", "d"]);
        assert_eq!(merged.document_places()[2], "rows.jsonl:5");
        let pairs: Vec<_> = merged
            .pairs()
            .iter()
            .map(|p| (p.query, p.document))
            .collect();
        assert_eq!(pairs, [(0, 0), (1, 0), (2, 2)]);
        assert_eq!(merged.pairs()[0].negatives, [1]);
        assert_eq!(merged.pairs()[2].negatives, [0], "one document, once");
        assert_eq!(
            merged
                .relevant_documents(0)
                .iter()
                .copied()
                .collect::<Vec<_>>(),
            [0]
        );
        let unchanged = set.merge(&[0, 1, 2, 3], &[0, 1, 2, 3]);
        assert_eq!(unchanged, set, "where nothing is alike, nothing changes");
    }

    #[test]
    fn a_negative_equal_to_the_right_document_is_dropped() {
        let mut set = PairSet::default();
        let negatives = ["a rest".to_owned(), "b".to_owned()];
        set.push(String::new(), "q", "a other", &negatives)
            .expect("a pair");
        let merged = set.merge(&[0], &[0, 0, 2]);
        assert_eq!(merged.documents(), ["a other", "b"]);
        assert_eq!(merged.pairs()[0].negatives, [1]);
    }
}
