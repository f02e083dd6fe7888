//! Makes text from servers and files safe to print. Control characters that would move the cursor,
//! change the window title or reverse the reading order are escaped.
//!
//! All external names and error texts in messages, log lines and progress bars are printed through
//! this module.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Maximum characters of a name in a message.
const NAME_CHARACTERS: usize = 120;

/// Escapes the text onto one line, including line breaks and tabs.
///
/// ```
/// use tooltune_json::printable;
///
/// assert_eq!(printable::line("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
/// assert_eq!(printable::line("naïve 😀"), "naïve 😀");
/// ```
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, is_unprintable)
}

/// Escapes the same characters as [`line()`], except line breaks and tabs.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unprintable(c) && c != '\n' && c != '\t')
}

/// Shortens a name to one line, with `...` if it is cut.
pub fn name(text: &str) -> String {
    match text.char_indices().nth(NAME_CHARACTERS) {
        Some((end, _)) => format!("{}...", line(&text[..end])),
        None => line(text).into_owned(),
    }
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut printable = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            c if !is_escaped(c) => printable.push(c),
            '\n' => printable.push_str("\\n"),
            '\r' => printable.push_str("\\r"),
            '\t' => printable.push_str("\\t"),
            // Writing to a string cannot fail.
            c => _ = write!(printable, "\\u{{{:x}}}", u32::from(c)),
        }
    }
    Cow::Owned(printable)
}

/// Whether a terminal would interpret a character, reorder text because of it, or not show it.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Marks, embeddings, overrides and isolates of bidirectional text.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Line and paragraph separators, the byte-order mark, annotations, and tags.
            | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        for (text, shown) in [
            ("\u{1b}]0;x\u{7}", "\\u{1b}]0;x\\u{7}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}"),
            ("a\r\n\tb\0\u{7f}", "a\\r\\n\\tb\\u{0}\\u{7f}"),
            ("a\u{2028}b\u{feff}", "a\\u{2028}b\\u{feff}"),
            ("\u{e0041}", "\\u{e0041}"),
        ] {
            assert_eq!(line(text), shown);
        }
        assert_eq!(lines("a\n\tb\r\u{1b}"), "a\n\tb\\r\\u{1b}");
        for plain in ["", "a b", "naïve 日本 😀 👨‍👩‍👧", "\\n"] {
            assert!(matches!(line(plain), Cow::Borrowed(same) if same == plain));
        }
    }

    #[test]
    fn a_long_name_is_cut() {
        let exact = "é".repeat(NAME_CHARACTERS);
        assert_eq!(name(&exact), exact);
        assert_eq!(name(&format!("{exact}\u{1b}x")), format!("{exact}..."));
        assert_eq!(name("a\nb"), "a\\nb");
    }
}
