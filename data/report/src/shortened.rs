//! Cuts long texts to their beginning, and says how much is left out.

use super::number::count;

/// Characters of a prompt, prediction or gold that are shown.
pub(super) const MAX_TEXT: usize = 4_000;

/// Characters of a config or lock file that are shown.
pub(super) const MAX_FILE: usize = 100_000;

/// Characters of a name or of a value within a table.
pub(super) const MAX_CELL: usize = 200;

/// The first `most` characters, and a note if there are more.
pub(super) fn shortened(text: &str, most: usize) -> (&str, Option<String>) {
    let Some((end, _)) = text.char_indices().nth(most) else {
        return (text, None);
    };
    let (shown, rest) = text.split_at(end);
    let n_more = rest.chars().count() as u64;
    let noun = if n_more == 1 {
        "character"
    } else {
        "characters"
    };
    (
        shown,
        Some(format!("{} more {noun} not shown", count(n_more))),
    )
}

/// For the cell of a table: what is left out shows as an ellipsis.
pub(super) fn cell(text: &str) -> String {
    match shortened(text, MAX_CELL) {
        (shown, Some(_)) => format!("{shown}…"),
        (shown, None) => shown.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_says_how_much_is_left_out() {
        assert_eq!(shortened("häuser", 6), ("häuser", None));
        let note = Some("1 more character not shown".to_owned());
        assert_eq!(shortened("häuser", 5), ("häuse", note));
        let long = "é".repeat(3_000);
        let (shown, note) = shortened(&long, 10);
        assert_eq!(shown.chars().count(), 10);
        assert_eq!(note.as_deref(), Some("2,990 more characters not shown"));
        assert_eq!(cell(&long).chars().count(), MAX_CELL + 1);
    }
}
