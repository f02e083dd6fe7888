//! Prints text with colors on a terminal; parts of the text are untrusted.

use std::borrow::Cow;

use tooltune_json::printable;

/// Escapes the control characters of a text, except for color sequences. Code that adds colors must
/// escape the text between them itself.
pub fn with_colors_only(text: &str) -> Cow<'_, str> {
    let mut escaped = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once("\x1b[") {
        let end = from.find(|c: char| !c.is_ascii_digit() && c != ';');
        let end = end.filter(|end| from[*end..].starts_with('m'));
        escaped.push_str(&printable::lines(before));
        match end {
            Some(end) => {
                escaped.push_str("\x1b[");
                escaped.push_str(&from[..=end]);
                rest = &from[end + 1..];
            }
            None => {
                escaped.push_str(&printable::lines("\x1b["));
                rest = from;
            }
        }
    }
    if escaped.is_empty() {
        return printable::lines(rest);
    }
    escaped.push_str(&printable::lines(rest));
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_of_the_logger_pass_and_other_control_characters_do_not() {
        for (text, expected) in [
            ("\x1b[33m WARN\x1b[0m x\n", "\x1b[33m WARN\x1b[0m x\n"),
            ("\x1b[2Ja", "\\u{1b}[2Ja"),
            ("\x1b]0;t\x07\x1b[1;32mb", "\\u{1b}]0;t\\u{7}\x1b[1;32mb"),
            ("\u{9b}31m\r\u{202e}", "\\u{9b}31m\\r\\u{202e}"),
            ("\x1b[", "\\u{1b}["),
            ("plain\ttext\n", "plain\ttext\n"),
        ] {
            assert_eq!(with_colors_only(text), expected);
        }
    }
}
