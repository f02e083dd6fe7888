//! What is learned, as a configuration says it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::template::{SpanKind, Turns};

/// Which tokens of a row are learned, and how much each counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaskConfig {
    /// The turns that are learned.
    pub train_on: TrainOn,
    /// Weights of spans inside those turns, applied in order; everything else weighs 1.
    pub weights: Vec<SpanWeight>,
    /// Which argument values of calls weigh 0, whatever `weights` says of them.
    pub arguments: ArgumentMask,
    /// What becomes of a token that crosses the border of a span.
    pub straddle: Straddle,
    /// What becomes of a row in which nothing is learned.
    pub on_empty: OnEmpty,
    /// What becomes of a row with a learned turn whose reasoning the template leaves out.
    pub on_lost_reasoning: OnLostReasoning,
}

/// Which part of a row is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TrainOn {
    /// Every turn of the assistant.
    Assistant,
    /// The last turn of the assistant.
    LastAssistant,
    /// The answer of a slot or prompt-completion row, the last turn of a conversation.
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
            Self::All => Turns::WithUnlearned,
            Self::LastAssistant => Turns::Last,
            Self::Completion => Turns::Completion,
        }
    }
}

/// Which values in the arguments of calls are left out of the loss.
///
/// Names, argument names, quotes, brackets and the end of the turn are learned in any case.
///
/// # Source
///
/// GOAT, appendix H, which masks all of them; the other choices are for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ArgumentMask {
    /// None: all are learned.
    #[default]
    None,
    /// All.
    All,
    /// Those that stand in the query.
    Fixed,
    /// Those that came from an earlier call.
    Derived,
}

impl ArgumentMask {
    fn masked(self) -> Option<SpanKind> {
        match self {
            Self::None => None,
            Self::All => Some(SpanKind::ToolCallArgumentValue),
            Self::Fixed => Some(SpanKind::FixedArgumentValue),
            Self::Derived => Some(SpanKind::DerivedArgumentValue),
        }
    }
}

/// The weight of one kind of span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanWeight {
    /// The kind, such as `tool_call.arguments.value`.
    pub span: String,
    /// 0 leaves the span out of the loss, 1 changes nothing.
    pub weight: f32,
}

/// What a token counts as that lies on the border of a weighted span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Straddle {
    /// It takes the smaller of the weights on the two sides.
    #[default]
    Mask,
    /// It takes the larger of the two.
    Train,
    /// The run does not start.
    Error,
}

/// What happens to a row without a single learned token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnEmpty {
    /// The run does not start.
    #[default]
    Error,
    /// The row is left out and counted.
    Drop,
}

/// What happens to a row with a learned turn whose reasoning the template leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnLostReasoning {
    /// The run does not start.
    #[default]
    Error,
    /// The turns without their reasoning are not learned, and counted.
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
        self.checked_weights().map(|_| ())
    }

    /// Checks that each kind of span that the settings name was there, given how often in all rows.
    ///
    /// # Errors
    ///
    /// - a kind was in none of the `n_rows` rows
    pub(super) fn check_found(&self, n_spans: &[usize], n_rows: usize) -> Result<(), DataError> {
        let kinds = self.checked_weights()?;
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

    /// Each kind with its weight; that of [`MaskConfig::arguments`] is the last.
    pub(super) fn checked_weights(&self) -> Result<Vec<(SpanKind, f32)>, DataError> {
        let masked = self.arguments.masked().map(|kind| Ok((kind, 0.0)));
        self.weights
            .iter()
            .map(SpanWeight::checked)
            .chain(masked)
            .collect()
    }
}

impl SpanWeight {
    fn checked(&self) -> Result<(SpanKind, f32), DataError> {
        let known = SpanKind::WEIGHTABLE;
        let kind = known
            .into_iter()
            .find(|kind| kind.name() == self.span)
            .ok_or_else(|| DataError::UnknownSpan {
                span: self.span.clone(),
                known: known.map(SpanKind::name).join(", "),
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
