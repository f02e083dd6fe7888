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
        #[schemars(extend("x-also" = [
            "train_on_prompt; false is \"completion\", true is \"all\"",
            "train_on_inputs; false is \"completion\", true is \"all\"",
            "mask_prompt; true is \"completion\"", "assistant_only_loss; true is \"assistant\"",
            "completion_only_loss; true is \"completion\"", "roles_to_train"
        ]))]
        pub train_on: TrainOn = TrainOn::Completion,
        /// Loss weights of spans inside the supervised part: 0 excludes a span from the loss, and 1
        /// is the normal weight.
        pub weights: Vec<SpanWeight>,
        /// Argument values of calls to exclude from the loss: "none", "all", "fixed" (values from
        /// the query), "derived" (values from an earlier call).
        pub arguments: ArgumentMask = ArgumentMask::None,
        /// Weight of a token that crosses the border of a span: "mask" uses the smaller weight,
        /// "train" the larger one, and "error" refuses the row.
        pub straddle: Straddle = Straddle::Mask,
        /// What to do with a row without a supervised token.
        pub on_empty: OnEmpty = OnEmpty::Error,
        /// What to do if the template drops the reasoning of a supervised turn: "error", or "keep"
        /// (keeps the row, counts the turn and does not supervise it).
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
