//! Truncates long texts, with a note about the omitted amount.

use super::number::group_digits;

/// Maximum number of characters of a prompt, prediction or gold answer on the page.
pub(super) const MAX_TEXT: usize = 4_000;

/// Maximum number of characters of a config or lock file on the page.
pub(super) const MAX_FILE: usize = 100_000;

/// Maximum number of characters of a name or table value.
pub(super) const MAX_CELL: usize = 200;

/// The first `max_chars` characters, and a note if there are more.
pub(super) fn truncate(text: &str, max_chars: usize) -> (&str, Option<String>) {
    let Some((end, _)) = text.char_indices().nth(max_chars) else {
        return (text, None);
    };
    let (start, rest) = text.split_at(end);
    let n_more = rest.chars().count() as u64;
    let noun = if n_more == 1 {
        "character"
    } else {
        "characters"
    };
    (
        start,
        Some(format!("{} more {noun} not shown", group_digits(n_more))),
    )
}

/// Truncates a table value, with an ellipsis if it is longer.
pub(super) fn shorten_cell(text: &str) -> String {
    match truncate(text, MAX_CELL) {
        (start, Some(_)) => format!("{start}…"),
        (start, None) => start.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_text_has_a_note() {
        assert_eq!(truncate("häuser", 6), ("häuser", None));
        let note = Some("1 more character not shown".to_owned());
        assert_eq!(truncate("häuser", 5), ("häuse", note));
        let long = "é".repeat(3_000);
        let (start, note) = truncate(&long, 10);
        assert_eq!(start.chars().count(), 10);
        assert_eq!(note.as_deref(), Some("2,990 more characters not shown"));
        assert_eq!(shorten_cell(&long).chars().count(), MAX_CELL + 1);
    }
}
