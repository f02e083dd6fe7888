//! The table `[mask]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_rows::text::{ArgumentMask, OnEmpty, OnLostReasoning, Straddle, TrainOn};

use super::settings::settings;
use crate::config::enums::Span;

settings! {
    /// Which tokens are learned, and how much.
    pub struct MaskConfig {
        /// The part of a row that is learned; by default "assistant" for the formats messages,
        /// sharegpt and alpaca, otherwise "completion".
        #[schemars(extend("default" = null))]
        pub train_on: TrainOn = TrainOn::Completion,
        /// Weights of spans inside that part; 0 is not learned, 1 is learned as usual.
        pub weights: Vec<SpanWeight>,
        /// Which values in the arguments of calls are left out of the loss: "none", "all", "fixed"
        /// (those that stand in the query), "derived" (those that came from an earlier call).
        pub arguments: ArgumentMask = ArgumentMask::None,
        /// What a token on the border of such a span counts as: "mask" takes the smaller weight,
        /// "train" the larger, "error" refuses the row.
        pub straddle: Straddle = Straddle::Mask,
        /// What happens to a row without a learned token.
        pub on_empty: OnEmpty = OnEmpty::Error,
        /// What happens to a row with a learned turn whose reasoning the template leaves out:
        /// "error", "keep" (turns without their reasoning are not learned, and counted).
        pub on_lost_reasoning: OnLostReasoning = OnLostReasoning::Error,
    }
}

/// The weight of one kind of span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpanWeight {
    /// Required. The kind of span.
    pub span: Span,
    /// Required. Its weight in the loss, from 0.
    #[schemars(range(min = 0.0))]
    pub weight: f64,
}
