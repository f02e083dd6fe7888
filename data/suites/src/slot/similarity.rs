//! Computes precision, recall and F1 over the leaves of two values, by similarity and by equality.
//!
//! Leaves are paired only by path. A correct value at a wrong path scores nothing, and array items
//! are compared index by index. Texts are compared without surrounding whitespace. Equal texts
//! score 1 without the encoder, so an exact answer scores 1 with any encoder.

use crate::budgets::COMPARED_LEAVES;
use serde::Serialize;
use serde_json::Value;
use tooltune_json::blank::is_blank;

use super::error::ScoreError;
use crate::encoder::{Embeddings, SentenceEncoder};
use crate::leaves::{is_leaf, n_leaves, scalar_text};

/// Agreement of a prediction with the gold value; each part is in 0..=1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Agreement {
    /// Mean over the prediction's leaves. A leaf whose path is not in the gold value counts as 0.
    pub precision: f64,
    /// Mean over the gold value's leaves. A leaf that is missing in the prediction counts as 0.
    pub recall: f64,
    /// Harmonic mean of precision and recall; 0 if both are 0.
    pub f: f64,
}

impl Agreement {
    fn new(matched: f64, n_pred: usize, n_gold: usize) -> Self {
        // Adding zero turns the empty sum, -0, into 0.
        let matched = matched + 0.0;
        let (precision, recall) = (matched / n_pred as f64, matched / n_gold as f64);
        let sum = precision + recall;
        let f = if sum == 0.0 {
            0.0
        } else {
            2.0 * precision * recall / sum
        };
        Self {
            precision,
            recall,
            f,
        }
    }
}

/// Similarity of two texts, 0..=1, computed as for leaves.
///
/// Surrounding whitespace is ignored. Equal texts score 1. A blank text compared with a different
/// text scores 0. Other pairs score the cosine of their vectors, clamped to 0..=1.
///
/// # Errors
///
/// The encoder fails.
pub fn value_similarity(
    left: &str,
    right: &str,
    encoder: &dyn SentenceEncoder,
) -> Result<f64, ScoreError> {
    let pair = Pair::new(left, right);
    Ok(pair.similarity(&Embeddings::encode(pair.texts_to_encode(), encoder)?))
}

/// Content similarity of a parsed prediction and the gold value.
///
/// # Errors
///
/// The encoder fails, or more than [`COMPARED_LEAVES`] leaves differ.
///
/// # Source
///
/// SLOT, section 3 (content similarity); this module and [`leaves`](super::leaves()) define the
/// pairing and the texts.
pub fn content_agreement(
    pred: &Value,
    gold: &Value,
    encoder: &dyn SentenceEncoder,
) -> Result<Agreement, ScoreError> {
    let comparison = Comparison::new(pred, gold)?;
    Ok(comparison.content(&Embeddings::encode(comparison.texts_to_encode(), encoder)?))
}

/// Two leaves at the same path.
#[derive(Debug)]
enum Pair {
    Equal,
    OneBlank,
    Differing(String, String),
}

impl Pair {
    fn new(left: &str, right: &str) -> Self {
        let (left, right) = (trim_like_python(left), trim_like_python(right));
        if left == right {
            Self::Equal
        } else if left.is_empty() || right.is_empty() {
            Self::OneBlank
        } else {
            Self::Differing(left.to_owned(), right.to_owned())
        }
    }

    fn texts_to_encode(&self) -> impl Iterator<Item = &str> {
        let texts = match self {
            Self::Differing(left, right) => [Some(left.as_str()), Some(right.as_str())],
            Self::Equal | Self::OneBlank => [None, None],
        };
        texts.into_iter().flatten()
    }

    fn similarity(&self, embeddings: &Embeddings) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::OneBlank => 0.0,
            Self::Differing(left, right) => embeddings.similarity(left, right),
        }
    }
}

/// Strips the characters that Python's `str.strip` strips: Unicode white space and the four
/// separators from U+001C.
fn trim_like_python(text: &str) -> &str {
    text.trim_matches(is_blank)
}

/// Pairs the leaves at equal paths of both values, in the order of `pred`. Both values are walked
/// at the same time instead of by paths, because the paths may be longer than the values.
fn pair_up(pred: &Value, gold: &Value, pairs: &mut Vec<Pair>) {
    match (pred, gold) {
        (Value::Object(pred), Value::Object(gold)) if !pred.is_empty() && !gold.is_empty() => {
            for (key, field) in pred {
                if let Some(gold) = gold.get(key) {
                    pair_up(field, gold, pairs);
                }
            }
        }
        (Value::Array(pred), Value::Array(gold)) if !pred.is_empty() && !gold.is_empty() => {
            for (item, gold) in pred.iter().zip(gold) {
                pair_up(item, gold, pairs);
            }
        }
        (pred, gold) if is_leaf(pred) && is_leaf(gold) => {
            pairs.push(Pair::new(&scalar_text(pred), &scalar_text(gold)));
        }
        _ => {}
    }
}

/// The leaves that a prediction and the gold value share, before any text is encoded.
#[derive(Debug)]
pub(super) struct Comparison {
    n_pred: usize,
    n_gold: usize,
    pairs: Vec<Pair>,
}

impl Comparison {
    /// # Errors
    ///
    /// More than [`COMPARED_LEAVES`] leaves differ.
    pub(super) fn new(pred: &Value, gold: &Value) -> Result<Self, ScoreError> {
        let mut pairs = Vec::new();
        pair_up(pred, gold, &mut pairs);
        let is_differing = |pair: &&Pair| matches!(pair, Pair::Differing(..));
        let n_differing = pairs.iter().filter(is_differing).count();
        if n_differing > COMPARED_LEAVES {
            return Err(ScoreError::TooManyLeaves { n: n_differing });
        }
        Ok(Self {
            n_pred: n_leaves(pred),
            n_gold: n_leaves(gold),
            pairs,
        })
    }

    /// The texts whose vectors [`Comparison::content`] needs.
    pub(super) fn texts_to_encode(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().flat_map(Pair::texts_to_encode)
    }

    pub(super) fn content(&self, embeddings: &Embeddings) -> Agreement {
        let matched = self
            .pairs
            .iter()
            .map(|pair| pair.similarity(embeddings))
            .sum();
        Agreement::new(matched, self.n_pred, self.n_gold)
    }

    /// Agreement in which only equal texts match.
    pub(super) fn exact(&self) -> Agreement {
        let n_equal = self
            .pairs
            .iter()
            .filter(|pair| matches!(pair, Pair::Equal))
            .count();
        Agreement::new(n_equal as f64, self.n_pred, self.n_gold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::HashEncoder;
    use serde_json::json;

    fn exact(pred: Value, gold: Value) -> [f64; 3] {
        let agreement = Comparison::new(&pred, &gold).expect("few leaves").exact();
        [agreement.precision, agreement.recall, agreement.f]
    }

    #[test]
    fn precision_counts_predicted_leaves_and_recall_gold_leaves() {
        let gold = json!({"city": "Ulm", "rooms": [3, 4]});
        assert_eq!(exact(gold.clone(), gold.clone()), [1.0, 1.0, 1.0]);
        assert_eq!(
            exact(json!({"city": "Ulm"}), gold.clone()),
            [1.0, 1.0 / 3.0, 0.5]
        );
        assert_eq!(
            exact(
                json!({"city": "Ulm", "rooms": [3, 4], "floor": 1}),
                gold.clone()
            ),
            [0.75, 1.0, 6.0 / 7.0]
        );
        assert_eq!(exact(json!({"town": "Ulm"}), gold), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn an_array_in_another_order_and_a_key_for_a_position_do_not_match() {
        assert_eq!(
            exact(json!({"a": ["y", "x"]}), json!({"a": ["x", "y"]})),
            [0.0; 3]
        );
        assert_eq!(
            exact(json!({"a": {"0": "x"}}), json!({"a": ["x"]})),
            [0.0; 3]
        );
        assert_eq!(exact(json!({"a": {"b": "x"}}), json!({"b": "x"})), [0.0; 3]);
    }

    #[test]
    fn scalars_are_compared_as_texts() {
        let gold = json!({"year": 1887, "open": true, "note": null, "tags": []});
        let pred = json!({"year": "1887.0", "open": "true", "note": "null", "tags": "[]"});
        assert_eq!(exact(pred, gold.clone()), [0.75; 3]);
        let pred = json!({"year": 1887.0, "open": true, "note": null, "tags": []});
        assert_eq!(exact(pred, gold), [1.0; 3]);
    }

    #[test]
    fn surrounding_blanks_do_not_matter_and_a_blank_text_matches_none() {
        let similarity = |left, right| value_similarity(left, right, &HashEncoder).expect("hash");
        assert_eq!(similarity(" Ulm\u{a0}", "Ulm"), 1.0);
        assert_eq!(similarity("\t", ""), 1.0);
        assert_eq!(similarity(" ", "Ulm"), 0.0);
        let almost = similarity("Ulm station", "Ulm Station");
        assert!(almost > 0.5 && almost < 1.0, "{almost}");
    }

    #[test]
    fn content_is_never_below_exact_agreement() {
        let gold = json!({"name": "Hotel Adler", "stars": 4, "parking": false});
        let pred = json!({"name": "Adler Hotel", "stars": 4, "parking": true});
        let content = content_agreement(&pred, &gold, &HashEncoder).expect("hash");
        let exact = Comparison::new(&pred, &gold).expect("few leaves").exact();
        assert!(content.f > exact.f, "{} and {}", content.f, exact.f);
    }

    #[test]
    fn leaves_are_paired_by_their_paths() {
        let values = [
            json!({"a": [1, {"b": "x"}], "c": {}}),
            json!({"c": [], "a": [1.0, {"b": "y", "d": null}, 2]}),
            json!({"a": {"0": 1}}),
            json!([[], {}, ""]),
            json!({}),
            json!("x"),
        ];
        for pred in &values {
            for gold in &values {
                let gold_leaves = crate::leaves::leaves(gold);
                let paired = crate::leaves::leaves(pred);
                let paired = paired
                    .iter()
                    .filter(|(path, _)| gold_leaves.iter().any(|(other, _)| other == path));
                let comparison = Comparison::new(pred, gold).expect("few leaves");
                assert_eq!(comparison.pairs.len(), paired.count(), "{pred} {gold}");
                assert_eq!(comparison.n_gold, gold_leaves.len());
            }
        }
    }

    #[test]
    fn nothing_in_common_is_zero_and_not_minus_zero() {
        let agreement = content_agreement(&json!(1), &json!([1]), &HashEncoder).expect("hash");
        for part in [agreement.precision, agreement.recall, agreement.f] {
            assert!(part == 0.0 && part.is_sign_positive());
        }
    }

    #[test]
    fn only_differing_leaves_count_against_the_limit() {
        let items = |from: usize| Value::from_iter(from..from + COMPARED_LEAVES + 1);
        assert!(Comparison::new(&items(0), &items(0)).is_ok());
        let error = Comparison::new(&items(0), &items(1)).expect_err("too many");
        assert!(error.to_string().contains("100001 leaves"), "{error}");
    }
}
