//! Checks the wording of a row before it is released.
//!
//! Values are matched as whole tokens: the 12 in "at 12:30" does not state the value 12. Values
//! that an earlier call returns may be missing in the query, and usually are.

use thiserror::Error;

use super::binding::BoundCall;
use super::language::{RowTexts, text};
use crate::slot::contains_token;

/// Maximum length of a query in characters; about 60 tokens of a small model.
const MAX_QUERY_CHARS: usize = 190;
/// Maximum length of a response in characters.
const MAX_RESPONSE_CHARS: usize = 320;

/// An error in the wording of a row.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum RowProblem {
    #[error("the query does not state {0}")]
    Unstated(String),
    #[error("the response does not state the fact {0}")]
    NoFact(String),
    #[error("the query has {0} characters; the limit is {MAX_QUERY_CHARS}")]
    LongQuery(usize),
    #[error("the response has {0} characters; the limit is {MAX_RESPONSE_CHARS}")]
    LongResponse(usize),
}

/// Checks the wording of a row.
///
/// # Errors
///
/// - a value that no call returns is not in the query
/// - a fact is not in the response
/// - the query or the response is too long
pub(super) fn check(calls: &[BoundCall], texts: &RowTexts) -> Result<(), RowProblem> {
    let arguments = calls.iter().flat_map(|call| &call.arguments);
    for argument in arguments.filter(|argument| argument.source.is_none()) {
        let value = text(&argument.value);
        if !contains_token(&texts.query, &value) {
            return Err(RowProblem::Unstated(value));
        }
    }
    if let Some(fact) = texts
        .facts
        .iter()
        .find(|fact| !contains_token(&texts.response, fact))
    {
        return Err(RowProblem::NoFact(fact.clone()));
    }
    let (n_query, n_response) = (texts.query.chars().count(), texts.response.chars().count());
    if n_query > MAX_QUERY_CHARS {
        return Err(RowProblem::LongQuery(n_query));
    }
    if n_response > MAX_RESPONSE_CHARS {
        return Err(RowProblem::LongResponse(n_response));
    }
    Ok(())
}
