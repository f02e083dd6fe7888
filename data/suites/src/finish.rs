//! Interprets the finish reason of a completion.

/// Whether a completion with this `finish_reason` was cut off by a limit on tokens, time or
/// context, by a filter, or by an error. An unknown or empty reason means that it ended normally.
///
/// A completion that was cut off never counts as correct, even if a valid answer can be parsed from
/// it.
pub fn is_cut(finish_reason: &str) -> bool {
    const CUT: [&str; 10] = [
        "length",
        "max_tokens",
        "model_length",
        "context",
        "time",
        "constraint",
        "content_filter",
        "abort",
        "cancelled",
        "error",
    ];
    CUT.contains(&finish_reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_token_limit_counts_as_truncation() {
        for reason in ["length", "time", "context", "constraint", "content_filter"] {
            assert!(is_cut(reason), "{reason}");
        }
        for reason in ["stop", "tool_calls", "eos", "end_turn", ""] {
            assert!(!is_cut(reason), "{reason}");
        }
    }
}
