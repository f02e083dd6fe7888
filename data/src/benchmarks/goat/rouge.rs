//! A final answer beside the gold one, to ROUGE-L in the two readings of the field.
//!
//! API-Bank uses the Python package `rouge`, which counts distinct words, splits sentences at every
//! full stop, also inside `3.5`, and knows upper and lower case; Google's `rouge_score` does none of
//! this. Both are here because published numbers are of the first kind and readers expect the second.

use std::collections::BTreeSet;

use super::endpoints::collapse_blanks;

/// Keeps the package's division from 0/0; it also keeps a perfect answer just below 1.
const EPSILON: f64 = 1e-8;

/// ROUGE-L F as API-Bank computes it, 0 to just below 1; 0 if either text has no sentence.
///
/// # Source
///
/// Package `rouge` 1.0.1, `rouge_l_summary_level`: union of the longest common subsequences of all
/// pairs of sentences, over sets of words. Numbers are compared with the package in
/// `data/tests/fixtures/rouge_l`.
pub fn rouge_l_apibank(hypothesis: &str, reference: &str) -> f64 {
    let (hypothesis, reference) = (sentences(hypothesis), sentences(reference));
    if hypothesis.is_empty() || reference.is_empty() {
        return 0.0;
    }
    let mut union = BTreeSet::new();
    for reference in &reference {
        for hypothesis in &hypothesis {
            union.extend(common_subsequence(&words(reference), &words(hypothesis)));
        }
    }
    let n_distinct = |sentences: &[String]| {
        let words = sentences.iter().flat_map(|sentence| words(sentence));
        words.collect::<BTreeSet<_>>().len() as f64
    };
    let recall = union.len() as f64 / n_distinct(&reference);
    let precision = union.len() as f64 / n_distinct(&hypothesis);
    2.0 * ((precision * recall) / (precision + recall + EPSILON))
}

/// ROUGE-L F as Google's `rouge_score` computes it without stemming, 0 to 1.
///
/// Words are runs of `a` to `z` and digits of the lower-cased text.
///
/// # Source
///
/// Package `rouge-score` 0.1.2, `rougeL`. Numbers are compared with the package in
/// `data/tests/fixtures/rouge_l`.
pub fn rouge_l_plain(hypothesis: &str, reference: &str) -> f64 {
    let (hypothesis, reference) = (hypothesis.to_lowercase(), reference.to_lowercase());
    let (hypothesis, reference) = (latin_words(&hypothesis), latin_words(&reference));
    let n_common = common_length(&reference, &hypothesis) as f64;
    if n_common == 0.0 {
        return 0.0;
    }
    let precision = n_common / hypothesis.len() as f64;
    let recall = n_common / reference.len() as f64;
    2.0 * precision * recall / (precision + recall)
}

fn sentences(text: &str) -> Vec<String> {
    let parts = text.split('.').filter(|part| !part.is_empty());
    parts.map(collapse_blanks).collect()
}

/// A sentence of blanks has one word, the empty one, as in the package.
fn words(sentence: &str) -> Vec<&str> {
    sentence.split(' ').collect()
}

fn latin_words(text: &str) -> Vec<&str> {
    let parts = text.split(|c: char| !matches!(c, 'a'..='z' | '0'..='9'));
    parts.filter(|word| !word.is_empty()).collect()
}

/// The words of one longest common subsequence, chosen among several as the package does.
fn common_subsequence<'t>(reference: &[&'t str], hypothesis: &[&str]) -> Vec<&'t str> {
    let (n, m) = (reference.len(), hypothesis.len());
    let mut lengths = vec![vec![0_u32; m + 1]; n + 1];
    for i in 1..=n {
        for j in 1..=m {
            lengths[i][j] = if reference[i - 1] == hypothesis[j - 1] {
                lengths[i - 1][j - 1] + 1
            } else {
                lengths[i - 1][j].max(lengths[i][j - 1])
            };
        }
    }
    let mut found = Vec::new();
    let (mut i, mut j) = (n, m);
    while i > 0 && j > 0 {
        if reference[i - 1] == hypothesis[j - 1] {
            found.push(reference[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if lengths[i - 1][j] > lengths[i][j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    found
}

fn common_length(left: &[&str], right: &[&str]) -> u32 {
    let mut above = vec![0_u32; right.len() + 1];
    for word in left {
        let mut row = vec![0; right.len() + 1];
        for (at, other) in right.iter().enumerate() {
            row[at + 1] = if word == other {
                above[at] + 1
            } else {
                above[at + 1].max(row[at])
            };
        }
        above = row;
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    const PAIRS: &str = include_str!("../../../tests/fixtures/rouge_l/pairs.jsonl");

    #[test]
    fn both_readings_agree_with_their_python_packages() {
        let mut n_rows = 0;
        for line in PAIRS.lines() {
            let row = json::parse(line).expect("a row");
            let text = |name: &str| row[name].as_str().expect("a text");
            let (hypothesis, reference) = (text("hyp"), text("ref"));
            let found = [
                rouge_l_apibank(hypothesis, reference),
                rouge_l_plain(hypothesis, reference),
            ];
            for (found, name) in found.into_iter().zip(["rouge", "rouge_score"]) {
                let expected = row[name].as_f64().expect("a number");
                assert!((found - expected).abs() < 1e-12, "{line}: {found}");
            }
            n_rows += 1;
        }
        assert!(n_rows >= 200, "{n_rows} rows");
    }

    #[test]
    fn a_text_without_words_scores_zero() {
        assert_eq!(rouge_l_apibank("", "Low water at six."), 0.0);
        assert_eq!(rouge_l_apibank("...", "Low water at six."), 0.0);
        assert_eq!(rouge_l_apibank("Low water", ""), 0.0);
        assert_eq!(rouge_l_plain("?!", "Low water"), 0.0);
        assert_eq!(rouge_l_plain("Low water", ""), 0.0);
        assert_eq!(rouge_l_plain("", ""), 0.0);
    }
}
