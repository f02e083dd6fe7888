//! Pairs with their distinct texts, and which documents are right for each query.

use std::collections::{BTreeSet, HashMap};

use tooltune_rows::tools::{ApiCatalogue, ToolsError, Trajectory};

use crate::Method;

/// A text and where it stands, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedText {
    /// File and line, or the name of what it describes.
    pub place: String,
    /// The text.
    pub text: String,
}

/// Distinct texts, in the order in which they first came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Texts {
    texts: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Where each first stood.
    places: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str, place: &str) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len();
        self.texts.push(text.to_owned());
        self.places.push(place.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The texts that are the first of those that are one, and the new number of each text.
    fn merged(&self, same: &[usize]) -> (Self, Vec<usize>) {
        let mut merged = Self::default();
        let mut numbers: Vec<usize> = Vec::with_capacity(same.len());
        for (number, &first) in same.iter().enumerate() {
            let new = match numbers.get(first) {
                Some(&new) => new,
                None => merged.number(&self.texts[number], &self.places[number]),
            };
            numbers.push(new);
        }
        (merged, numbers)
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
    pub fn add_document(&mut self, text: &str, place: &str) -> usize {
        self.documents.number(text, place)
    }

    /// Adds a pair that is known by its id alone, as [`PairSet::push_at`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn push(
        &mut self,
        id: String,
        query: &str,
        document: &str,
        negatives: &[String],
    ) -> Result<(), ToolsError> {
        let place = id.clone();
        self.push_at(&place, id, query, document, negatives)
    }

    /// Adds a pair that stands at `place`; one that is there already counts once.
    ///
    /// # Errors
    ///
    /// - a text is blank
    /// - a negative is the right document itself
    pub fn push_at(
        &mut self,
        place: &str,
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
                needed: "a text without words has no meaning to learn; write one, or leave it out",
            });
        }
        if negatives.iter().any(|negative| negative == document) {
            return Err(ToolsError::NegativeIsPositive);
        }
        let query = self.queries.number(query, place);
        self.relevant
            .resize_with(self.queries.texts.len(), BTreeSet::new);
        let document = self.documents.number(document, place);
        let is_new = self.relevant[query].insert(document);
        let negatives: Vec<usize> = negatives
            .iter()
            .map(|negative| self.documents.number(negative, place))
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
                set.push(id, &query, &document.retriever_text(), &[])
                    .map_err(|error| error.at(&trajectory.id))?;
            }
        }
        Ok(set)
    }

    /// The set in which texts that are one to an encoder are one text.
    ///
    /// `queries` and `documents` have for each text the number of the first one that is the same,
    /// which is its own where none before it is. A pair that is there already counts once, and a
    /// negative that is its own right document is none.
    ///
    /// # Panics
    ///
    /// If there are not as many numbers as texts.
    pub fn merged(&self, queries: &[usize], documents: &[usize]) -> Self {
        let (query_texts, queries) = self.queries.merged(queries);
        let (document_texts, documents) = self.documents.merged(documents);
        let mut relevant = vec![BTreeSet::new(); query_texts.texts.len()];
        for (query, right) in self.relevant.iter().enumerate() {
            relevant[queries[query]].extend(right.iter().map(|&document| documents[document]));
        }
        let mut seen = BTreeSet::new();
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
            if seen.insert((query, document)) || !negatives.is_empty() {
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

    /// Where each distinct query first stood.
    pub fn query_places(&self) -> &[String] {
        &self.queries.places
    }

    /// Where each distinct document first stood.
    pub fn document_places(&self) -> &[String] {
        &self.documents.places
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_an_encoder_reads_alike_are_one_text() {
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
            let place = format!("rows.jsonl:{}", i + 1);
            set.push_at(&place, i.to_string(), query, document, &negatives)
                .expect("a pair");
        }
        assert_eq!(set.queries(), ["q", "Q", "p", "r"]);
        assert_eq!(set.documents(), ["long a", "c", "long b", "d"]);
        let merged = set.merged(&[0, 0, 2, 3], &[0, 1, 0, 3]);
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
        assert_eq!(merged.relevant(0).iter().copied().collect::<Vec<_>>(), [0]);
        let same = set.merged(&[0, 1, 2, 3], &[0, 1, 2, 3]);
        assert_eq!(same, set, "where nothing is alike, nothing changes");
    }

    #[test]
    fn a_negative_that_is_its_own_right_document_is_none() {
        let mut set = PairSet::default();
        let negatives = ["a rest".to_owned(), "b".to_owned()];
        set.push(String::new(), "q", "a other", &negatives)
            .expect("a pair");
        let merged = set.merged(&[0], &[0, 0, 2]);
        assert_eq!(merged.documents(), ["a other", "b"]);
        assert_eq!(merged.pairs()[0].negatives, [1]);
    }
}
