//! Shortens text to its first characters on one line, for messages.

use tooltune_json::printable;

/// Number of characters of a body that a message quotes.
const N_CHARACTERS: usize = 200;

/// The first characters of `text`, with runs of whitespace and control characters replaced by one
/// space, followed by `...` if there is more.
pub fn excerpt(text: &str) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    // A body, or the whitespace at its beginning, may be megabytes long.
    let words = text.split(is_gap).filter(|word| !word.is_empty());
    let mut shortened = String::new();
    let mut n_characters = 0;
    for (idx, word) in words.enumerate() {
        let gap = (idx > 0).then_some(' ');
        for character in gap.into_iter().chain(word.chars()) {
            if n_characters == N_CHARACTERS {
                shortened.push_str("...");
                return printable::line(&shortened).into_owned();
            }
            shortened.push(character);
            n_characters += 1;
        }
    }
    printable::line(&shortened).into_owned()
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
        assert_eq!(excerpt("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(excerpt(""), "");
        let longest = "é".repeat(N_CHARACTERS);
        assert_eq!(excerpt(&longest), longest);
        assert_eq!(excerpt(&format!("{longest}x")), format!("{longest}..."));
        assert_eq!(excerpt(&format!("{longest} \n ")), longest);
    }
}
