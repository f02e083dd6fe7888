//! Distinguishes a model card written by this program from one that was written or edited by
//! others.
//!
//! The last line is a comment with a digest of everything before it, so any edit is detected.

use sha2::{Digest, Sha256};

use crate::download::hex;

/// The beginning of the last line.
const BEGIN: &str = "<!-- tooltune writes this card again at each upload unless it is edited: ";
/// The end of the last line.
const END: &str = " -->";

/// A card with the identifying last line.
pub fn marked_card(text: &str) -> String {
    let text = text.trim_end();
    format!("{text}\n\n{BEGIN}{}{END}\n", digest(text))
}

/// Whether a card is unchanged since this program wrote it.
pub(super) fn is_unedited(card: &[u8]) -> bool {
    let Ok(card) = std::str::from_utf8(card) else {
        return false;
    };
    // Git may convert line endings.
    let card = card.replace("\r\n", "\n");
    let Some((text, line)) = card.trim_end().rsplit_once('\n') else {
        return false;
    };
    let written_digest = line
        .strip_prefix(BEGIN)
        .and_then(|without_end| without_end.strip_suffix(END));
    written_digest.is_some_and(|digest_found| digest_found == digest(text.trim_end()))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_card_is_not_replaced() {
        let card = marked_card("---\nlicense: mit\n---\n\nWhat it is.\n");
        assert!(is_unedited(card.as_bytes()));
        assert!(is_unedited(card.replace('\n', "\r\n").as_bytes()));
        for edited_card in [
            card.replace("mit", "apache-2.0"),
            card.replace("What it is.", "What it is.\nMore."),
            format!("{card}\nMore.\n"),
            "Written by somebody.\n".to_owned(),
            String::new(),
        ] {
            assert!(!is_unedited(edited_card.as_bytes()), "{edited_card}");
        }
        assert!(!is_unedited(b"\xff\n"));
    }
}
