//! The table `[mask]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_rows::text::{ArgumentMask, OnEmpty, OnLostReasoning, Straddle, TrainOn};

use super::settings::settings;
use crate::enums::Span;

settings! {
    /// Supervised tokens and their weights.
    pub struct MaskConfig {
        /// Supervised part of a row; by default "assistant" for messages, sharegpt, alpaca and
        /// chat, otherwise "completion".
        #[schemars(extend("default" = null))]
        pub train_on: TrainOn = TrainOn::Completion,
        /// Weights of spans inside that part; 0 is not supervised, and 1 is unchanged.
        pub weights: Vec<SpanWeight>,
        /// Which values in call arguments are masked: "none", "all", "fixed" (from the query),
        /// "derived" (from an earlier call).
        pub arguments: ArgumentMask = ArgumentMask::None,
        /// Weight of a token on the border of a span: "mask" uses the smaller one, "train" the
        /// larger one, and "error" refuses the row.
        pub straddle: Straddle = Straddle::Mask,
        /// What happens to a row without a supervised token.
        pub on_empty: OnEmpty = OnEmpty::Error,
        /// What happens to a row whose template drops the reasoning of a supervised turn: "error",
        /// or "keep" (such turns are counted and not supervised).
        pub on_lost_reasoning: OnLostReasoning = OnLostReasoning::Error,
    }
}

/// The weight of one kind of span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpanWeight {
    /// Required. The kind of span.
    pub span: Span,
    /// Required. Its weight in the loss.
    #[schemars(range(min = 0.0))]
    pub weight: f64,
}
