//! The first characters of a text, on one line, for messages.

/// Characters of a body that a message quotes.
const N_CHARACTERS: usize = 200;

/// The first characters of `text` with runs of blanks and control characters made one blank, and
/// `...` where there is more.
pub fn excerpt(text: &str) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    // A body may be megabytes long; blanks at its beginning may be as well.
    let words = text.split(is_gap).filter(|word| !word.is_empty());
    let mut shown = String::new();
    let mut n_characters = 0;
    for (idx, word) in words.enumerate() {
        let gap = (idx > 0).then_some(' ');
        for character in gap.into_iter().chain(word.chars()) {
            if n_characters == N_CHARACTERS {
                shown.push_str("...");
                return shown;
            }
            shown.push(character);
            n_characters += 1;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(
            excerpt(" <html>\r\n\t<b>\u{0}502\u{1b}[1m "),
            "<html> <b> 502 [1m"
        );
        assert_eq!(excerpt(""), "");
        let exact = "é".repeat(N_CHARACTERS);
        assert_eq!(excerpt(&exact), exact);
        assert_eq!(excerpt(&format!("{exact}x")), format!("{exact}..."));
        assert_eq!(excerpt(&format!("{exact} \n ")), exact);
    }
}
