//! Removes secrets from server results where they enter the program.

use tooltune_agents::executors::CallResult;

use crate::http::Redactor;

/// The result with all secrets removed from its decoded strings.
pub(crate) fn without_secrets(redactor: &Redactor, result: CallResult) -> CallResult {
    CallResult {
        output: redactor.redact_value(result.output),
        exception: result.exception.map(|exception| redactor.redact(exception)),
        is_unanswered: result.is_unanswered,
    }
}
