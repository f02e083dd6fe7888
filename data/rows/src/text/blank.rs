//! Detects text without visible characters.

/// Whether a string has no visible characters: it is empty or contains only white space, control
/// characters and zero-width characters.
pub fn is_blank(text: &str) -> bool {
    text.chars().all(is_invisible)
}

/// Whether a character is white space, a control character, or one of Unicode's default ignorables,
/// such as zero-width space, joiners, directional marks, the soft hyphen, variation selectors, tags
/// and fillers. The braille blank is also rendered as a blank.
fn is_invisible(character: char) -> bool {
    character.is_whitespace()
        || character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_without_visible_characters_is_blank() {
        for blank in [
            "",
            " \t\r\n",
            "\u{200b}\u{feff}",
            "\u{a0}\u{3000}",
            "\u{0}\u{7f}",
            "\u{2060}\u{ad}",
        ] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for text in ["a", " .\n", "\u{200b}é\u{200b}", "0", "👩\u{200d}🚀"] {
            assert!(!is_blank(text), "{text:?}");
        }
    }
}
