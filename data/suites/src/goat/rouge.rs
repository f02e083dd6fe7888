//! Scores a final answer by ROUGE-L, in the two common variants.
//!
//! API-Bank uses the Python package `rouge`, which counts distinct words, splits sentences at every
//! full stop, even inside `3.5`, and is case-sensitive. Google's `rouge_score` does none of this.
//! Both are implemented, because published numbers use API-Bank's variant and readers expect
//! Google's.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::budgets::ROUGE_STEPS;

use super::endpoints::collapse_blanks;
use super::subsequence::{Interner, StepBudget, common_length, common_subsequence};

/// Prevents 0/0 in the package. Because of this term, a perfect answer scores slightly below 1.
const EPSILON: f64 = 1e-8;

/// Cost of a sentence pair in addition to its table, in table steps.
const STEPS_OF_A_PAIR: usize = 2_000;

/// ROUGE-L F1 as API-Bank computes it: from 0 to slightly below 1, and 0 if either text has no
/// sentence. `None` if the comparison takes more than [`ROUGE_STEPS`].
///
/// # Source
///
/// Package `rouge` 1.0.1, `rouge_l_summary_level`: union of the longest common subsequences of all
/// pairs of sentences, over sets of words. `data/suites/tests/fixtures/rouge_l` has values of the
/// package.
pub fn rouge_l_apibank(hypothesis: &str, reference: &str) -> Option<f64> {
    let (hypothesis, reference) = (sentences(hypothesis), sentences(reference));
    if hypothesis.is_empty() || reference.is_empty() {
        return Some(0.0);
    }
    let mut interner = Interner::default();
    let [hypothesis, reference] = [&hypothesis, &reference].map(|sentences| -> Vec<_> {
        let words = sentences.iter().map(|sentence| words(sentence));
        words.map(|words| interner.intern(words)).collect()
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

/// The words in the longest common subsequences of all sentence pairs.
///
/// A pair is skipped if the union already contains all of its common words, because it cannot
/// enlarge the union.
fn common_words(hypothesis: &[Vec<usize>], reference: &[Vec<usize>]) -> Option<HashSet<usize>> {
    let mut steps = StepBudget::new(ROUGE_STEPS);
    let hypothesis: BTreeSet<&Vec<usize>> = hypothesis.iter().collect();
    let hypothesis: Vec<&Vec<usize>> = hypothesis.into_iter().collect();
    let mut having: HashMap<usize, Vec<usize>> = HashMap::new();
    for (idx, sentence) in hypothesis.iter().enumerate() {
        for word in sentence.iter().collect::<BTreeSet<_>>() {
            having.entry(*word).or_default().push(idx);
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
                steps.use_steps(STEPS_OF_A_PAIR + 20 * n_words)?;
                let common = common_subsequence(reference, hypothesis[*sentence], &mut steps)?;
                union.extend(common.into_iter().map(|idx| reference[idx]));
            }
        }
    }
    Some(union)
}

/// ROUGE-L F1 as Google's `rouge_score` computes it without stemming, 0 to 1. `None` if the
/// comparison takes more than [`ROUGE_STEPS`].
///
/// Words are runs of `a` to `z` and digits of the lower-cased text.
///
/// # Source
///
/// Package `rouge-score` 0.1.2, `rougeL`. `data/suites/tests/fixtures/rouge_l` has values of the
/// package.
pub fn rouge_l_plain(hypothesis: &str, reference: &str) -> Option<f64> {
    let (hypothesis, reference) = (hypothesis.to_lowercase(), reference.to_lowercase());
    let mut interner = Interner::default();
    let [hypothesis, reference] =
        [&hypothesis, &reference].map(|text| interner.intern(latin_words(text)));
    let mut steps = StepBudget::new(ROUGE_STEPS);
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

/// The words of a sentence. A blank sentence has one empty word, as in the package.
fn words(sentence: &str) -> impl Iterator<Item = &str> {
    sentence.split(' ')
}

fn latin_words(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|c: char| !matches!(c, 'a'..='z' | '0'..='9'));
    parts.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use tooltune_json as json;

    use super::*;

    const PAIRS: &str = include_str!("../../tests/fixtures/rouge_l/pairs.jsonl");

    #[test]
    fn both_rouge_variants_equal_their_python_packages() {
        let mut n_rows = 0;
        for line in PAIRS.lines() {
            let row = json::parse(line).expect("a row");
            let text = |name: &str| row[name].as_str().expect("a text");
            let (hypothesis, reference) = (text("hyp"), text("ref"));
            let scores = [
                rouge_l_apibank(hypothesis, reference),
                rouge_l_plain(hypothesis, reference),
            ];
            for (scores, name) in scores.into_iter().zip(["rouge", "rouge_score"]) {
                let expected = row[name].as_f64().expect("a number");
                let scores = scores.expect("short texts");
                assert!((scores - expected).abs() < 1e-12, "{line}: {scores}");
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
    fn long_texts_are_compared_or_refused_within_a_budget() {
        let (left, right) = ("a b ".repeat(30_000), "b a ".repeat(30_000));
        // All words except one are in both texts.
        let expected = 59_999.0 / 60_000.0;
        assert_eq!(rouge_l_plain(&left, &right), Some(expected));
        let score = rouge_l_apibank(&left, &right).expect("a number");
        assert!((score - 1.0).abs() < 1e-6, "{score}");
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
        // There are many sentences, and the union never contains all of their common words.
        let left: String = (0..30_000).map(|i| format!("a w x{i}.")).collect();
        let right: String = (0..30_000).map(|i| format!("w a z{i}.")).collect();
        assert_eq!(rouge_l_apibank(&left, &right), None);
    }
}
