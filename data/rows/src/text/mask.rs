//! Settings that select the supervised tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_template::{SpanKind, Turns};

use super::error::DataError;

/// Which tokens of a row are supervised, and their weights.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaskConfig {
    /// The supervised turns.
    pub train_on: TrainOn,
    /// Weights of spans inside those turns, applied in order; other tokens have weight 1.
    pub weights: Vec<SpanWeight>,
    /// Argument values of calls with weight 0, regardless of `weights`.
    pub arguments: ArgumentMask,
    /// Weight of a token that crosses a span boundary.
    pub straddle: Straddle,
    /// Handling of a row without supervised tokens.
    pub on_empty: OnEmpty,
    /// Handling of a row if the template drops the reasoning of a supervised turn.
    pub on_lost_reasoning: OnLostReasoning,
}

/// The supervised part of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TrainOn {
    /// Every assistant turn.
    Assistant,
    /// The last assistant turn.
    LastAssistant,
    /// The answer of a slot or prompt-completion row, or the last turn of a conversation.
    #[default]
    Completion,
    /// Every token.
    All,
}

impl TrainOn {
    /// The turns that must be located and must end with a stop token.
    pub(super) fn turns(self) -> Turns {
        match self {
            Self::Assistant => Turns::All,
            Self::All => Turns::WithUntrained,
            Self::LastAssistant => Turns::Last,
            Self::Completion => Turns::Completion,
        }
    }
}

/// Argument values of calls that are excluded from the loss.
///
/// API names, argument names, quotes, brackets and the end of the turn are always supervised.
///
/// # Source
///
/// GOAT, appendix H, which masks all values; the other choices are for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ArgumentMask {
    /// Excludes no values.
    #[default]
    None,
    /// Excludes all values.
    All,
    /// Excludes values that occur in the query.
    Fixed,
    /// Excludes values taken from an earlier call.
    Derived,
}

impl ArgumentMask {
    fn masked_kind(self) -> Option<SpanKind> {
        match self {
            Self::None => None,
            Self::All => Some(SpanKind::ToolCallArgumentValue),
            Self::Fixed => Some(SpanKind::FixedArgumentValue),
            Self::Derived => Some(SpanKind::DerivedArgumentValue),
        }
    }
}

/// Weight of one kind of span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanWeight {
    /// Kind of span, such as `tool_call.arguments.value`.
    pub span: String,
    /// 0 excludes the span from the loss, 1 changes nothing.
    pub weight: f32,
}

/// Weight of a token on the boundary of a weighted span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Straddle {
    /// The smaller of the weights on the two sides.
    #[default]
    Mask,
    /// The larger of the weights on the two sides.
    Train,
    /// Stops the run before training.
    Error,
}

/// Handling of a row without supervised tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnEmpty {
    /// Stops the run before training.
    #[default]
    Error,
    /// Drops and counts the row.
    Drop,
}

/// Handling of a row if the template drops the reasoning of a supervised turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnLostReasoning {
    /// Stops the run before training.
    #[default]
    Error,
    /// Excludes and counts the turns without reasoning.
    Keep,
}

impl MaskConfig {
    /// Checks span names and weights.
    ///
    /// # Errors
    ///
    /// - a span does not exist
    /// - a weight is negative, infinite or not a number
    pub fn validate(&self) -> Result<(), DataError> {
        self.resolve_weights().map(|_| ())
    }

    /// Checks that each kind of span named by the settings occurs in at least one row; `n_spans`
    /// contains the counts over all rows.
    ///
    /// # Errors
    ///
    /// - a kind occurs in none of the `n_rows` rows
    pub(super) fn check_found(&self, n_spans: &[usize], n_rows: usize) -> Result<(), DataError> {
        let kinds = self.resolve_weights()?;
        let Some(i) = n_spans.iter().position(|&n| n == 0) else {
            return Ok(());
        };
        let setting = if i < self.weights.len() {
            "mask.weights"
        } else {
            "mask.arguments"
        };
        Err(DataError::NoSpan {
            setting,
            span: kinds[i].0.name(),
            n_rows,
        })
    }

    /// Each kind with its weight; the entry of [`MaskConfig::arguments`] is the last.
    pub(super) fn resolve_weights(&self) -> Result<Vec<(SpanKind, f32)>, DataError> {
        let masked = self.arguments.masked_kind().map(|kind| Ok((kind, 0.0)));
        self.weights
            .iter()
            .map(SpanWeight::resolve)
            .chain(masked)
            .collect()
    }
}

impl SpanWeight {
    fn resolve(&self) -> Result<(SpanKind, f32), DataError> {
        let kinds = SpanKind::WEIGHTABLE;
        let kind = kinds
            .into_iter()
            .find(|kind| kind.name() == self.span)
            .ok_or_else(|| DataError::UnknownSpan {
                span: self.span.clone(),
                known: kinds.map(SpanKind::name).join(", "),
            })?;
        if !self.weight.is_finite() || self.weight < 0.0 {
            return Err(DataError::BadWeight {
                span: self.span.clone(),
                weight: self.weight,
            });
        }
        Ok((kind, self.weight))
    }
}
