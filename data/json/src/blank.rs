//! Python's character classes.

/// Whether Python's `str.isspace` is true for the character. It is true for Unicode white space and
/// the four separators from U+001C.
pub fn is_blank(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}
