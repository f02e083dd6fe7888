//! Scores one completion.
//!
//! A completion that does not parse, or that exceeds the work limit, scores zero and is never an
//! error. Its violation is the reason. Only an unusable schema or a failing encoder is an error.

use std::error::Error;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json as json;
use tooltune_json::json_depth;
use tooltune_json::json_schema::{BUDGET, SchemaCache, checked_formats};

use super::dataset::SlotRow;
use super::error::ScoreError;
use super::schema_check::{SchemaChecker, SchemaMode, Violation};
use super::similarity::{Agreement, Comparison};
use crate::encoder::{Embeddings, SentenceEncoder};
use crate::named_metrics::named_columns;

/// The scores of one completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowScore {
    /// Whether the completion is a single JSON value and nothing else.
    pub parses: bool,
    /// Whether it parses and is valid under the schema.
    pub schema: bool,
    /// Whether it parses and is valid under the schema with closed objects and required keys.
    pub strict_keys: bool,
    /// Content similarity; zero if it does not parse.
    pub content: Agreement,
    /// Agreement in which only equal texts match; zero if it does not parse.
    pub exact: Agreement,
    /// Whether it equals the gold value as JSON: in any key order, and 1 equals 1.0 but not `"1"`.
    pub exact_match: bool,
    /// Depth of the gold value.
    pub gold_depth: usize,
    /// The rules of the plain schema that the completion breaks. The rule is `json` if the
    /// completion does not parse, and `budget` if the check exceeds the work limit.
    pub violations: Vec<Violation>,
    /// Number of strings that break their `format`, if the completion is valid under the schema.
    /// The metrics treat `format` as an annotation, like the published schema accuracy.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_broken_formats: usize,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(super) fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// One value per metric of the suite, all as fractions in 0..=1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics<T> {
    /// Completions that are a single JSON value.
    pub parse_rate: T,
    /// Completions that are valid under their schema.
    pub schema_accuracy: T,
    /// Completions that are valid under the strict form of their schema.
    pub strict_keys_accuracy: T,
    /// Mean F1 of content similarity.
    pub content_similarity: T,
    /// Mean F1 over leaves with equal texts.
    pub exact_match_f: T,
    /// Completions that equal the gold value.
    pub exact_match: T,
    /// Mean of schema accuracy and content similarity: SLOT's criterion for selecting a checkpoint.
    pub mean: T,
}

named_columns!(
    Metrics,
    [
        parse_rate,
        schema_accuracy,
        strict_keys_accuracy,
        content_similarity,
        exact_match_f,
        exact_match,
        mean
    ]
);

impl RowScore {
    /// This row's contribution to the means of a data set.
    pub fn metrics(&self) -> Metrics<f64> {
        let indicator = |as_number: bool| if as_number { 1.0 } else { 0.0 };
        Metrics {
            parse_rate: indicator(self.parses),
            schema_accuracy: indicator(self.schema),
            strict_keys_accuracy: indicator(self.strict_keys),
            content_similarity: self.content.f,
            exact_match_f: self.exact.f,
            exact_match: indicator(self.exact_match),
            mean: f64::midpoint(indicator(self.schema), self.content.f),
        }
    }
}

/// Scores one raw completion against its row's schema and gold value.
///
/// For many rows use [`super::score_dataset`], which encodes each text once.
///
/// # Errors
///
/// The schema is unusable, or the encoder fails.
pub fn score_row(
    raw: &str,
    schema: &Value,
    gold: &Value,
    encoder: &dyn SentenceEncoder,
) -> Result<RowScore, ScoreError> {
    let checked = CheckedRow::new(&SlotRow { raw, schema, gold }, &mut Checkers::default())?;
    let embeddings = Embeddings::encode(checked.texts_to_encode(), encoder)?;
    Ok(checked.score(&embeddings))
}

/// The compiled checkers of schemas seen so far.
pub(super) type Checkers = SchemaCache<RowCheckers>;

#[derive(Debug)]
pub(super) struct RowCheckers {
    plain: SchemaChecker,
    strict: SchemaChecker,
    /// A checker for formats, if the schema has any.
    formats: Option<SchemaChecker>,
}

impl RowCheckers {
    fn new(schema: &Value) -> Result<Self, ScoreError> {
        Ok(Self {
            plain: SchemaChecker::new(schema, SchemaMode::Schema)?,
            strict: SchemaChecker::new(schema, SchemaMode::StrictKeys)?,
            formats: match checked_formats(schema).is_empty() {
                true => None,
                false => Some(SchemaChecker::new(schema, SchemaMode::Formats)?),
            },
        })
    }
}

/// A row with all scores except the similarity of differing texts.
#[derive(Debug)]
pub(super) struct CheckedRow {
    comparison: Option<Comparison>,
    score: RowScore,
}

impl CheckedRow {
    /// # Errors
    ///
    /// The schema is unusable, whether or not the completion parses.
    pub(super) fn new(row: &SlotRow<'_>, checkers: &mut Checkers) -> Result<Self, ScoreError> {
        let RowCheckers {
            plain,
            strict,
            formats,
        } = &*checkers.get_or_compile(row.schema, RowCheckers::new)?;
        let gold_depth = json_depth(row.gold);
        let pred = match json::parse(row.raw) {
            Ok(pred) => pred,
            Err(error) => {
                return Ok(Self {
                    comparison: None,
                    score: zero_score("json", &error, gold_depth),
                });
            }
        };
        let comparison = match Comparison::new(&pred, row.gold) {
            Ok(comparison) => comparison,
            Err(error) => {
                return Ok(Self {
                    comparison: None,
                    score: zero_score(BUDGET, &error, gold_depth),
                });
            }
        };
        let violations = plain.errors(&pred);
        let formats = formats.as_ref().filter(|_| violations.is_empty());
        let broken_rules = formats.map_or_else(Vec::new, |formats| formats.errors(&pred));
        let score = RowScore {
            n_broken_formats: broken_rules
                .iter()
                .filter(|violation| violation.rule == "format")
                .count(),
            parses: true,
            schema: violations.is_empty(),
            strict_keys: strict.is_valid(&pred),
            content: Agreement::default(),
            exact: comparison.exact(),
            exact_match: is_same_json(&pred, row.gold),
            gold_depth,
            violations,
        };
        Ok(Self {
            comparison: Some(comparison),
            score,
        })
    }

    /// The texts whose vectors [`CheckedRow::score`] needs.
    pub(super) fn texts_to_encode(&self) -> impl Iterator<Item = &str> {
        self.comparison.iter().flat_map(Comparison::texts_to_encode)
    }

    pub(super) fn score(self, embeddings: &Embeddings) -> RowScore {
        match self.comparison {
            Some(comparison) => RowScore {
                content: comparison.content(embeddings),
                ..self.score
            },
            None => self.score,
        }
    }
}

/// The score of a completion that was not parsed or not compared.
fn zero_score(rule: &str, error: &dyn Error, gold_depth: usize) -> RowScore {
    let violation = Violation {
        rule: rule.to_owned(),
        path: String::new(),
        message: error.to_string(),
    };
    RowScore {
        parses: false,
        schema: false,
        strict_keys: false,
        content: Agreement::default(),
        exact: Agreement::default(),
        exact_match: false,
        gold_depth,
        violations: vec![violation],
        n_broken_formats: 0,
    }
}

fn is_same_json(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            left == right || (left.is_f64() || right.is_f64()) && left.as_f64() == right.as_f64()
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(l, r)| is_same_json(l, r))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, field)| right.get(key).is_some_and(|r| is_same_json(field, r)))
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashEncoder;
    use serde_json::json;

    fn score(raw: &str) -> RowScore {
        let schema = json!({
            "type": "object",
            "properties": {"guest": {"type": "string"}, "nights": {"type": "integer"}},
            "required": ["guest"],
        });
        let gold = json!({"guest": "Ida Brandt", "nights": 3});
        score_row(raw, &schema, &gold, &HashEncoder).expect("a usable schema")
    }

    #[test]
    fn the_gold_scores_one_in_every_metric() {
        let perfect = score(r#" {"nights": 3.0, "guest": "Ida Brandt"} "#);
        assert_eq!(perfect.metrics().columns(), [1.0; 7]);
        assert_eq!(perfect.violations, []);
        assert_eq!(perfect.gold_depth, 1);
    }

    #[test]
    fn a_completion_with_surrounding_prose_scores_zero_in_every_metric() {
        let prose = score("Here you are: {\"guest\": \"Ida Brandt\", \"nights\": 3}");
        assert_eq!(prose.metrics().columns(), [0.0; 7]);
        assert_eq!(prose.violations[0].rule, "json");
    }

    #[test]
    fn a_schema_violation_does_not_zero_the_similarity() {
        let typed_wrong = score(r#"{"guest": "Ida Brandt", "nights": "3"}"#);
        assert!(!typed_wrong.schema && !typed_wrong.exact_match);
        assert_eq!(typed_wrong.content.f, 1.0);
        assert_eq!(typed_wrong.metrics().mean, 0.5);
        assert_eq!(typed_wrong.violations[0].path, "/nights");
    }

    #[test]
    fn the_plain_and_the_strict_schema_are_checked_separately() {
        let partial = score(r#"{"guest": "Ida Brandt"}"#);
        assert!(partial.schema && !partial.strict_keys);
        assert_eq!(partial.exact.recall, 0.5);
    }

    #[test]
    fn an_unusable_schema_is_an_error_even_if_the_completion_does_not_parse() {
        let schema = json!({"type": 7});
        let error = score_row("oops", &schema, &json!({}), &HashEncoder).expect_err("unusable");
        assert!(matches!(error, ScoreError::Schema { .. }));
    }

    /// Invariant: The work of scoring one completion is bounded.
    #[test]
    fn a_completion_over_the_work_limit_fails_with_a_reason() {
        // The definitions refer to the same location twice, and have a keyword whose results cannot
        // be cached.
        let mut definitions = json!({"d0": {"type": "object", "unevaluatedProperties": true}});
        for i in 1..=40 {
            let below = json!({"properties": {"a": {"$ref": format!("#/$defs/d{}", i - 1)}}});
            definitions[format!("d{i}")] = json!({"allOf": [below, below]});
        }
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d40"});
        let raw = format!("{}{{}}{}", r#"{"a": "#.repeat(40), "}".repeat(40));
        let score = score_row(&raw, &schema, &json!({}), &HashEncoder).expect("a usable schema");
        assert!(score.parses && !score.schema && !score.strict_keys);
        assert_eq!(score.violations[0].rule, BUDGET);
    }
}
