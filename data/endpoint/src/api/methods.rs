//! Which HTTP methods an executor may send.
//!
//! Models make up the arguments, while generating data or during evaluation. A call that changes
//! data would change it at random, so only read-only methods are sent unless others are allowed.

use tooltune_apis::ApiOperation;

use crate::http::HttpConfigError;

/// Read-only methods, which are always sent (RFC 9110, section 9.2.1). TRACE is excluded because it
/// echoes the headers including keys.
pub const SAFE_METHODS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

/// All methods that a specification can contain.
const METHODS: [&str; 8] = [
    "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE",
];

/// The allowed methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowedMethods(Vec<&'static str>);

impl AllowedMethods {
    /// Allows the safe methods and these names, which are compared without case.
    ///
    /// # Errors
    ///
    /// A name is not a method.
    pub(super) fn parse(names: &[String]) -> Result<Self, HttpConfigError> {
        let mut methods = SAFE_METHODS.to_vec();
        for name in names {
            let known = METHODS
                .into_iter()
                .find(|method| method.eq_ignore_ascii_case(name.trim()));
            methods.push(known.ok_or_else(|| HttpConfigError::BadOption {
                field: "allow_methods",
                reason: format!(
                    "contains {name:?}, which is not a method; use only {}",
                    METHODS.join(", ")
                ),
            })?);
        }
        Ok(Self(methods))
    }

    /// Why an operation is not called; `None` if it is allowed.
    pub(super) fn refusal(&self, operation: &ApiOperation) -> Option<String> {
        let method = operation.document.method.as_str();
        if self.0.contains(&method) {
            return None;
        }
        Some(format!(
            "{}: {method} is not sent, because it may change data; allow it with \
             goat.executor.allow_methods = [\"{method}\"], or with --allow-method {method} in `data \
             goat` and `chat`",
            operation.document.call_name()
        ))
    }
}
