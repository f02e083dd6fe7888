//! Scores a final answer by ROUGE-L in the two readings of the field.
//!
//! API-Bank uses the Python package `rouge`, which counts distinct words, splits sentences at every
//! full stop, also inside `3.5`, and knows upper and lower case; Google's `rouge_score` does none of
//! this. Both are here because published numbers are of the first kind and readers expect the second.

use std::collections::{BTreeSet, HashMap, HashSet};

use tooltune_rows::budgets::ROUGE_STEPS;

use super::endpoints::collapse_blanks;
use super::subsequence::{Interner, Steps, common_length, common_subsequence};

/// Keeps the package's division from 0/0; it also keeps a perfect answer just below 1.
const EPSILON: f64 = 1e-8;

/// What a pair of sentences takes beside its table, in steps of the table.
const STEPS_OF_A_PAIR: usize = 2_000;

/// ROUGE-L F as API-Bank computes it, 0 to just below 1; 0 if either text has no sentence. None if
/// comparing the texts takes more than [`ROUGE_STEPS`].
///
/// # Source
///
/// Package `rouge` 1.0.1, `rouge_l_summary_level`: union of the longest common subsequences of all
/// pairs of sentences, over sets of words. Numbers are compared with the package in
/// `data/suites/tests/fixtures/rouge_l`.
pub fn rouge_l_apibank(hypothesis: &str, reference: &str) -> Option<f64> {
    let (hypothesis, reference) = (sentences(hypothesis), sentences(reference));
    if hypothesis.is_empty() || reference.is_empty() {
        return Some(0.0);
    }
    let mut interner = Interner::default();
    let [hypothesis, reference] = [&hypothesis, &reference].map(|sentences| -> Vec<_> {
        let words = sentences.iter().map(|sentence| words(sentence));
        words.map(|words| interner.numbers(words)).collect()
    });
    let union = common_words(&hypothesis, &reference)?;
    let n_distinct = |sentences: &[Vec<usize>]| {
        let words = sentences.iter().flatten();
        words.collect::<HashSet<_>>().len() as f64
    };
    let recall = union.len() as f64 / n_distinct(&reference);
    let precision = union.len() as f64 / n_distinct(&hypothesis);
    Some(2.0 * ((precision * recall) / (precision + recall + EPSILON)))
}

/// The words of the longest common subsequences of all pairs of sentences.
///
/// A pair is left out where the union cannot grow by it: where its common words, of which there may
/// be none, are all in it.
fn common_words(hypothesis: &[Vec<usize>], reference: &[Vec<usize>]) -> Option<HashSet<usize>> {
    let mut steps = Steps::new(ROUGE_STEPS);
    let hypothesis: BTreeSet<&Vec<usize>> = hypothesis.iter().collect();
    let hypothesis: Vec<&Vec<usize>> = hypothesis.into_iter().collect();
    let mut having: HashMap<usize, Vec<usize>> = HashMap::new();
    for (at, sentence) in hypothesis.iter().enumerate() {
        for word in sentence.iter().collect::<BTreeSet<_>>() {
            having.entry(*word).or_default().push(at);
        }
    }
    let mut union = HashSet::new();
    for reference in reference.iter().collect::<BTreeSet<_>>() {
        for word in reference {
            let sentences = having.get(word).into_iter().flatten();
            for sentence in sentences {
                if union.contains(word) {
                    break;
                }
                let n_words = reference.len() + hypothesis[*sentence].len();
                steps.take(STEPS_OF_A_PAIR + 20 * n_words)?;
                let found = common_subsequence(reference, hypothesis[*sentence], &mut steps)?;
                union.extend(found.into_iter().map(|at| reference[at]));
            }
        }
    }
    Some(union)
}

/// ROUGE-L F as Google's `rouge_score` computes it without stemming, 0 to 1. None if comparing the
/// texts takes more than [`ROUGE_STEPS`].
///
/// Words are runs of `a` to `z` and digits of the lower-cased text.
///
/// # Source
///
/// Package `rouge-score` 0.1.2, `rougeL`. Numbers are compared with the package in
/// `data/suites/tests/fixtures/rouge_l`.
pub fn rouge_l_plain(hypothesis: &str, reference: &str) -> Option<f64> {
    let (hypothesis, reference) = (hypothesis.to_lowercase(), reference.to_lowercase());
    let mut interner = Interner::default();
    let [hypothesis, reference] =
        [&hypothesis, &reference].map(|text| interner.numbers(latin_words(text)));
    let mut steps = Steps::new(ROUGE_STEPS);
    let n_common = common_length(&reference, &hypothesis, &mut steps)? as f64;
    if n_common == 0.0 {
        return Some(0.0);
    }
    let precision = n_common / hypothesis.len() as f64;
    let recall = n_common / reference.len() as f64;
    Some(2.0 * precision * recall / (precision + recall))
}

fn sentences(text: &str) -> Vec<String> {
    let parts = text.split('.').filter(|part| !part.is_empty());
    parts.map(collapse_blanks).collect()
}

/// A sentence of blanks has one word, the empty one, as in the package.
fn words(sentence: &str) -> impl Iterator<Item = &str> {
    sentence.split(' ')
}

fn latin_words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|c: char| !matches!(c, 'a'..='z' | '0'..='9'));
    parts.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use tooltune_rows::json;

    use super::*;

    const PAIRS: &str = include_str!("../../tests/fixtures/rouge_l/pairs.jsonl");

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
                let found = found.expect("short texts");
                assert!((found - expected).abs() < 1e-12, "{line}: {found}");
            }
            n_rows += 1;
        }
        assert!(n_rows >= 200, "{n_rows} rows");
    }

    #[test]
    fn a_text_without_words_scores_zero() {
        assert_eq!(rouge_l_apibank("", "Low water at six."), Some(0.0));
        assert_eq!(rouge_l_apibank("...", "Low water at six."), Some(0.0));
        assert_eq!(rouge_l_apibank("Low water", ""), Some(0.0));
        assert_eq!(rouge_l_plain("?!", "Low water"), Some(0.0));
        assert_eq!(rouge_l_plain("Low water", ""), Some(0.0));
        assert_eq!(rouge_l_plain("", ""), Some(0.0));
    }

    #[test]
    fn long_texts_are_compared_or_refused_in_bounded_work() {
        let (left, right) = ("a b ".repeat(30_000), "b a ".repeat(30_000));
        // All but one word are common.
        let expected = 59_999.0 / 60_000.0;
        assert_eq!(rouge_l_plain(&left, &right), Some(expected));
        let found = rouge_l_apibank(&left, &right).expect("a number");
        assert!((found - 1.0).abs() < 1e-6, "{found}");
        let distinct = |prefix: &str| -> String {
            let words = (0..60_000).map(|i| format!("{prefix}{i} "));
            words.collect()
        };
        let (left, right) = (distinct("w"), distinct("w") + "x");
        let plain = rouge_l_plain(&left, &right).expect("a number");
        assert!(plain > 0.9999, "{plain}");
        let endless = "a b ".repeat(400_000);
        assert_eq!(rouge_l_plain(&endless, &endless), None);
        assert_eq!(rouge_l_apibank(&endless, &endless), None);
        // Many sentences whose common words never all come into the union.
        let left: String = (0..30_000).map(|i| format!("a w x{i}.")).collect();
        let right: String = (0..30_000).map(|i| format!("w a z{i}.")).collect();
        assert_eq!(rouge_l_apibank(&left, &right), None);
    }
}
