//! Counts and measures a retriever's training data: queries with positive and negative documents.

use tooltune_agents::pairs::PairSet;
use tooltune_rows::statistics::{Count, FileStatistics, Measures, TokenCount};

/// Measures pairs. Each distinct text counts once, as in training.
pub fn pair_statistics(set: &PairSet, count_tokens: TokenCount<'_>) -> FileStatistics {
    let mut measures = Measures::default();
    let pairs = set.pairs();
    for pair in pairs {
        measures.add("negatives", pair.negatives.len());
    }
    for query in set.queries() {
        let names = ["query_characters", "query_tokens"];
        measures.add_text(names, query, count_tokens);
    }
    for document in set.documents() {
        let names = ["document_characters", "document_tokens"];
        measures.add_text(names, document, count_tokens);
    }
    let without = pairs.iter().filter(|pair| pair.negatives.is_empty());
    let several = |query: &usize| set.relevant_documents(*query).len() > 1;
    let n_several = (0..set.queries().len()).filter(several).count();
    FileStatistics {
        counts: vec![
            Count::new("pairs", pairs.len()),
            Count::new("distinct queries", set.queries().len()),
            Count::new("distinct documents", set.documents().len()),
            Count::new("queries with several positive documents", n_several),
            Count::new("pairs without a hard negative", without.count()),
        ],
        groups: Vec::new(),
        measures: measures.statistics(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_counted_once_and_pairs_by_their_negatives() {
        let mut set = PairSet::default();
        for (id, query, document, negatives) in [
            ("a", "tide", "harbour depth", vec!["wind".to_owned()]),
            ("b", "tide", "tables of tides", Vec::new()),
            ("c", "storm", "wind", Vec::new()),
        ] {
            set.push(id.to_owned(), query, document, &negatives)
                .expect("texts");
        }
        let statistics = pair_statistics(&set, Some(&|text: &str| text.split(' ').count()));
        let counts: Vec<usize> = statistics.counts.iter().map(|count| count.n).collect();
        assert_eq!(counts, [3, 2, 3, 1, 2]);
        let measures = statistics.measures.iter();
        let maxima: Vec<(&str, f64)> = measures
            .map(|measure| (measure.name, measure.max))
            .collect();
        assert_eq!(
            maxima,
            [
                ("negatives", 1.0),
                ("query_characters", 5.0),
                ("query_tokens", 1.0),
                ("document_characters", 15.0),
                ("document_tokens", 3.0),
            ]
        );
    }
}
