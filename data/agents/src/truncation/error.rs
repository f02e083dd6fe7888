//! Errors from filtering a value.

/// An error in a JMESPath expression, or in applying it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The expression does not parse, or fails on this value.
    #[error("JMESPath expression {expression:?}: {reason}")]
    Refused {
        /// The expression, truncated if it is long.
        expression: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// The expression exceeds a limit.
    #[error("the JMESPath expression has {n} {what}, but at most {max} are allowed; shorten it")]
    TooLarge {
        /// The unit of the limit.
        what: &'static str,
        /// The actual number.
        n: usize,
        /// The limit.
        max: usize,
    },
}
