//! Values that a row holds as a JSON text, read as strictly as the row itself.

use serde_json::Value;

use super::error::FormatError;
use crate::json::{self, OversizedInteger};
use crate::read_error::ReadError;
use crate::text::error::DataError;

/// The value that a text holds; `field` is where it stands, `expected` what may stand there.
///
/// # Errors
///
/// - the text is not one JSON value, or a key stands twice in an object of it
/// - it holds an integer beyond 64 bits
pub(super) fn value_of(
    text: &str,
    field: &str,
    expected: &'static str,
) -> Result<Value, DataError> {
    let value = json::parse_unique(text).map_err(|error| FormatError::JsonText {
        field: field.to_owned(),
        reason: error.to_string(),
        expected,
    })?;
    match json::oversized_integer(text, |_| true) {
        None => Ok(value),
        Some(found) => {
            let field = if found.field.starts_with('[') {
                format!("{field}{}", found.field)
            } else {
                format!("{field}.{}", found.field)
            };
            Err(ReadError::from(OversizedInteger { field, ..found }).into())
        }
    }
}
