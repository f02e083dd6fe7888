//! Computes precision, recall and F over the leaves of two values, by likeness and by equality.
//!
//! Leaves are paired by path alone: a right value at a wrong place earns nothing, and the items
//! of an array are compared position by position.
//! Texts are compared without the blanks around them; equal texts are 1 without asking the
//! encoder, which keeps an exact answer exact under any encoder.

use serde::Serialize;
use serde_json::Value;
use tooltune_rows::budgets::COMPARED_LEAVES;
use tooltune_rows::python::is_blank;

use super::error::ScoreError;
use super::leaves::{is_leaf, n_leaves, scalar_text};
use crate::encoder::{Embeddings, SentenceEncoder};

/// How well a prediction agrees with the gold value; each part lies in 0..=1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Agreement {
    /// Mean over the prediction's leaves; a leaf at a path that the gold lacks counts 0.
    pub precision: f64,
    /// Mean over the gold's leaves; a leaf that the prediction lacks counts 0.
    pub recall: f64,
    /// Harmonic mean of the two; 0 if both are 0.
    pub f: f64,
}

impl Agreement {
    fn new(matched: f64, n_pred: usize, n_gold: usize) -> Self {
        // The sum of nothing is -0.
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

/// Likeness of two texts, 0..=1, by the rule for leaves.
///
/// Both are taken without the blanks around them: equal texts are 1, a blank beside a text is 0,
/// all else is the cosine of their vectors clamped to 0..=1.
///
/// # Errors
///
/// - the encoder fails
pub fn value_similarity(
    left: &str,
    right: &str,
    encoder: &dyn SentenceEncoder,
) -> Result<f64, ScoreError> {
    let pair = Pair::new(left, right);
    Ok(pair.likeness(&Embeddings::of(pair.texts(), encoder)?))
}

/// Content similarity of a parsed prediction with the gold value.
///
/// # Errors
///
/// - the encoder fails, or more than [`COMPARED_LEAVES`] leaves differ
///
/// # Source
///
/// SLOT, section 3 (content similarity); pairing and texts as this module and
/// [`leaves`](super::leaves()) say.
pub fn content_agreement(
    pred: &Value,
    gold: &Value,
    encoder: &dyn SentenceEncoder,
) -> Result<Agreement, ScoreError> {
    let comparison = Comparison::new(pred, gold)?;
    Ok(comparison.content(&Embeddings::of(comparison.texts(), encoder)?))
}

/// Two leaves at one path.
#[derive(Debug)]
enum Pair {
    Equal,
    OneBlank,
    Differing(String, String),
}

impl Pair {
    fn new(left: &str, right: &str) -> Self {
        let (left, right) = (trimmed(left), trimmed(right));
        if left == right {
            Self::Equal
        } else if left.is_empty() || right.is_empty() {
            Self::OneBlank
        } else {
            Self::Differing(left.to_owned(), right.to_owned())
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let texts = match self {
            Self::Differing(left, right) => [Some(left.as_str()), Some(right.as_str())],
            Self::Equal | Self::OneBlank => [None, None],
        };
        texts.into_iter().flatten()
    }

    fn likeness(&self, embeddings: &Embeddings) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::OneBlank => 0.0,
            Self::Differing(left, right) => embeddings.similarity(left, right),
        }
    }
}

/// Cuts what Python's `str.strip` cuts: Unicode white space and the four separators from U+001C.
fn trimmed(text: &str) -> &str {
    text.trim_matches(is_blank)
}

/// Pairs the leaves that stand at one place of both values, in the order of `pred`: both are walked at
/// once, because the paths to the leaves may be longer than the values.
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

/// The leaves that a prediction shares with the gold, before any text is encoded.
#[derive(Debug)]
pub(super) struct Comparison {
    n_pred: usize,
    n_gold: usize,
    pairs: Vec<Pair>,
}

impl Comparison {
    /// # Errors
    ///
    /// - more than [`COMPARED_LEAVES`] leaves differ
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
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().flat_map(Pair::texts)
    }

    pub(super) fn content(&self, embeddings: &Embeddings) -> Agreement {
        let matched = self
            .pairs
            .iter()
            .map(|pair| pair.likeness(embeddings))
            .sum();
        Agreement::new(matched, self.n_pred, self.n_gold)
    }

    /// Agreement in which only equal texts count.
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
    fn blanks_around_a_text_do_not_matter_and_a_blank_is_unlike_any_text() {
        let similarity = |left, right| value_similarity(left, right, &HashEncoder).expect("hash");
        assert_eq!(similarity(" Ulm\u{a0}", "Ulm"), 1.0);
        assert_eq!(similarity("\t", ""), 1.0);
        assert_eq!(similarity(" ", "Ulm"), 0.0);
        let near = similarity("Ulm station", "Ulm Station");
        assert!(near > 0.5 && near < 1.0, "{near}");
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
    fn leaves_are_paired_as_their_paths_say() {
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
                let gold_leaves = super::super::leaves::leaves(gold);
                let paired = super::super::leaves::leaves(pred);
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
        let none = content_agreement(&json!(1), &json!([1]), &HashEncoder).expect("hash");
        for part in [none.precision, none.recall, none.f] {
            assert!(part == 0.0 && part.is_sign_positive());
        }
    }

    #[test]
    fn differing_leaves_are_bounded_and_equal_ones_are_not() {
        let items = |from: usize| Value::from_iter(from..from + COMPARED_LEAVES + 1);
        assert!(Comparison::new(&items(0), &items(0)).is_ok());
        let error = Comparison::new(&items(0), &items(1)).expect_err("too many");
        assert!(error.to_string().contains("100001 leaves"), "{error}");
    }
}
