//! Marks the pieces that only a prediction or only its gold has.

use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Piece {
    /// Its characters.
    pub(super) text: String,
    /// Whether the other text lacks it.
    pub(super) differs: bool,
}

/// Cuts both texts where they differ, by words, blanks and single signs.
pub(super) fn differences(prediction: &str, gold: &str) -> (Vec<Piece>, Vec<Piece>) {
    let (old, new) = (words(prediction), words(gold));
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for op in capture_diff_slices(Algorithm::Myers, &old, &new) {
        let differs = !matches!(op, DiffOp::Equal { .. });
        push(&mut left, old.get(op.old_range()), differs);
        push(&mut right, new.get(op.new_range()), differs);
    }
    (left, right)
}

fn push(pieces: &mut Vec<Piece>, words: Option<&[&str]>, differs: bool) {
    let text = words.unwrap_or_default().concat();
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(last) if last.differs == differs => last.text.push_str(&text),
        _ => pieces.push(Piece { text, differs }),
    }
}

/// Words, runs of blanks, and each other character by itself: JSON has few blanks.
fn words(text: &str) -> Vec<&str> {
    let kind = |sign: char| match sign {
        _ if sign.is_alphanumeric() || sign == '_' => 1,
        _ if sign.is_whitespace() => 2,
        _ => 0,
    };
    let mut words = Vec::new();
    let mut start = 0;
    let mut signs = text.char_indices().peekable();
    while let Some((_, sign)) = signs.next() {
        let end = signs.peek().map_or(text.len(), |(next, _)| *next);
        let continues =
            kind(sign) != 0 && signs.peek().is_some_and(|(_, s)| kind(*s) == kind(sign));
        if !continues {
            words.extend(text.get(start..end));
            start = end;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(pieces: &[Piece]) -> String {
        let piece = |piece: &Piece| {
            if piece.differs {
                format!("[{}]", piece.text)
            } else {
                piece.text.clone()
            }
        };
        pieces.iter().map(piece).collect()
    }

    #[test]
    fn what_only_one_text_has_is_marked() {
        let (left, right) = differences(r#"{"a":"red fox","n":12}"#, r#"{"a":"fox","n":13,"z":0}"#);
        assert_eq!(shown(&left), r#"{"a":"[red ]fox","n":[12]}"#);
        assert_eq!(shown(&right), r#"{"a":"fox","n":[13,"z":0]}"#);
        let (left, right) = differences("same", "same");
        assert_eq!(
            (shown(&left), shown(&right)),
            ("same".into(), "same".into())
        );
        let (left, right) = differences("", "gone");
        assert_eq!(
            (shown(&left), shown(&right)),
            (String::new(), "[gone]".into())
        );
    }

    proptest! {
        #[test]
        fn pieces_are_the_texts_and_what_is_not_marked_is_common(
            a in "[ab\" \nß]{0,40}",
            b in "[ab\" \nß]{0,40}",
        ) {
            let (left, right) = differences(&a, &b);
            let all = |pieces: &[Piece]| pieces.iter().map(|p| p.text.as_str()).collect::<String>();
            let common = |pieces: &[Piece]| {
                let kept = pieces.iter().filter(|piece| !piece.differs);
                kept.map(|piece| piece.text.as_str()).collect::<String>()
            };
            prop_assert_eq!(all(&left), a);
            prop_assert_eq!(all(&right), b);
            prop_assert_eq!(common(&left), common(&right));
        }
    }
}
