//! Why a value cannot be filtered.

/// What is wrong with a JMESPath expression, or with applying it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The expression does not parse, or fails on this value.
    #[error("JMESPath expression {expression:?}: {reason}")]
    Refused {
        /// The expression, its end left out if it is long.
        expression: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// The expression is beyond what is evaluated.
    #[error("the JMESPath expression has {n} {what}, but at most {max} are evaluated; shorten it")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        n: usize,
        /// The most that is evaluated.
        max: usize,
    },
}
