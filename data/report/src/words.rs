//! Marks the differences between a prediction and its gold answer.

use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Piece {
    /// The characters of the part.
    pub(super) text: String,
    /// Whether the other text does not have this part.
    pub(super) differs: bool,
}

/// Splits both texts at their differences, by words, whitespace and punctuation characters.
pub(super) fn mark_differences(prediction: &str, gold: &str) -> (Vec<Piece>, Vec<Piece>) {
    let (old, new) = (split_words(prediction), split_words(gold));
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for op in capture_diff_slices(Algorithm::Myers, &old, &new) {
        let differs = !matches!(op, DiffOp::Equal { .. });
        push_piece(&mut left, old.get(op.old_range()), differs);
        push_piece(&mut right, new.get(op.new_range()), differs);
    }
    (left, right)
}

fn push_piece(pieces: &mut Vec<Piece>, words: Option<&[&str]>, differs: bool) {
    let text = words.unwrap_or_default().concat();
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(last) if last.differs == differs => last.text.push_str(&text),
        _ => pieces.push(Piece { text, differs }),
    }
}

/// Splits a text into words, runs of whitespace, and other characters one by one, because JSON has
/// little whitespace.
fn split_words(text: &str) -> Vec<&str> {
    let kind = |sign: char| match sign {
        _ if sign.is_alphanumeric() || sign == '_' => 1,
        _ if sign.is_whitespace() => 2,
        _ => 0,
    };
    let mut words = Vec::new();
    let mut start = 0;
    let mut signs = text.char_indices().peekable();
    while let Some((_, sign)) = signs.next() {
        let end = signs.peek().map_or(text.len(), |(next_sign, _)| *next_sign);
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

    fn marked_text(pieces: &[Piece]) -> String {
        let mark_piece = |mark_piece: &Piece| {
            if mark_piece.differs {
                format!("[{}]", mark_piece.text)
            } else {
                mark_piece.text.clone()
            }
        };
        pieces.iter().map(mark_piece).collect()
    }

    #[test]
    fn differences_are_marked() {
        let (left, right) =
            mark_differences(r#"{"a":"red fox","n":12}"#, r#"{"a":"fox","n":13,"z":0}"#);
        assert_eq!(marked_text(&left), r#"{"a":"[red ]fox","n":[12]}"#);
        assert_eq!(marked_text(&right), r#"{"a":"fox","n":[13,"z":0]}"#);
        let (left, right) = mark_differences("same", "same");
        assert_eq!(
            (marked_text(&left), marked_text(&right)),
            ("same".into(), "same".into())
        );
        let (left, right) = mark_differences("", "gone");
        assert_eq!(
            (marked_text(&left), marked_text(&right)),
            (String::new(), "[gone]".into())
        );
    }

    proptest! {
        #[test]
        fn pieces_cover_both_texts_and_unmarked_ones_agree(
            a in "[ab\" \nß]{0,40}",
            b in "[ab\" \nß]{0,40}",
        ) {
            let (left, right) = mark_differences(&a, &b);
            let whole_text = |pieces: &[Piece]| pieces.iter().map(|p| p.text.as_str()).collect::<String>();
            let common = |pieces: &[Piece]| {
                let unmarked = pieces.iter().filter(|piece| !piece.differs);
                unmarked.map(|piece| piece.text.as_str()).collect::<String>()
            };
            prop_assert_eq!(whole_text(&left), a);
            prop_assert_eq!(whole_text(&right), b);
            prop_assert_eq!(common(&left), common(&right));
        }
    }
}
