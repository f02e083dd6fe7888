//! A row in, and why it must not be handed out, if anything is wrong with its words.
//!
//! Values are looked for as whole tokens: the 12 of "at 12:30" states no 12. The decision to
//! question: values that an earlier call gives need not stand in the query, and mostly do not.

use thiserror::Error;

use super::binding::BoundCall;
use super::language::{Told, text};
use crate::slot::contains_token;

/// Longest query, in characters; about 60 tokens of a small model.
const MAX_QUERY_CHARS: usize = 190;
/// Longest response, in characters.
const MAX_RESPONSE_CHARS: usize = 320;

/// A row that would teach something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum RowProblem {
    #[error("the query does not state {0}")]
    Unstated(String),
    #[error("the response does not state the fact {0}")]
    NoFact(String),
    #[error("the query has {0} characters")]
    LongQuery(usize),
    #[error("the response has {0} characters")]
    LongResponse(usize),
}

/// Checks the words of one row.
///
/// # Errors
///
/// - a value that no call gives does not stand in the query
/// - a fact does not stand in the response
/// - the query or the response is too long
pub(super) fn check(calls: &[BoundCall], told: &Told) -> Result<(), RowProblem> {
    let arguments = calls.iter().flat_map(|call| &call.arguments);
    for argument in arguments.filter(|argument| argument.source.is_none()) {
        let value = text(&argument.value);
        if !contains_token(&told.query, &value) {
            return Err(RowProblem::Unstated(value));
        }
    }
    if let Some(fact) = told
        .facts
        .iter()
        .find(|fact| !contains_token(&told.response, fact))
    {
        return Err(RowProblem::NoFact(fact.clone()));
    }
    let (n_query, n_response) = (told.query.chars().count(), told.response.chars().count());
    if n_query > MAX_QUERY_CHARS {
        return Err(RowProblem::LongQuery(n_query));
    }
    if n_response > MAX_RESPONSE_CHARS {
        return Err(RowProblem::LongResponse(n_response));
    }
    Ok(())
}
