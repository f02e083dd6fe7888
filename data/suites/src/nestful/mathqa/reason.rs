//! Why a row of MathQA is dropped.

use std::fmt;

/// The kinds of reasons, in the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The entry lacks a formula, or the formula lacks an operation.
    NoOperation,
    /// The formula cannot be parsed.
    Malformed,
    /// The formula has too many operations or levels.
    TooLarge,
    /// A number is missing in the problem, or a constant is unknown.
    UnknownNumber,
    /// An operation is not one of the 40 functions.
    UnknownOperation,
    /// An operation has too many or too few arguments.
    Arity,
    /// A list would have to contain a reference.
    ReferenceInList,
    /// A function has no result for its arguments.
    NoResult,
    /// `linear_formula` computes another value, or none.
    LinearDiffers,
    /// The correct option is missing, or is not one number.
    NoOption,
    /// The result is not the correct option.
    WrongResult,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoOperation => "no operation in the formula",
            Self::Malformed => "a formula that cannot be parsed",
            Self::TooLarge => "a formula with too many operations or levels",
            Self::UnknownNumber => {
                "a number that the problem does not have, or an unknown constant"
            }
            Self::UnknownOperation => "an operation that is not among the 40 functions",
            Self::Arity => "an operation with the wrong number of arguments",
            Self::ReferenceInList => "a maximum or minimum of results, which lists cannot refer to",
            Self::NoResult => "a function without a result for its arguments",
            Self::LinearDiffers => "a linear_formula with another result",
            Self::NoOption => "a correct option that is not one number",
            Self::WrongResult => "a result that is not the correct option",
        })
    }
}

/// A dropped row: the reason and its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) reason: Reason,
    pub(super) detail: String,
}

impl Dropped {
    pub(super) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }
}
