//! Invisible marks around pieces of a conversation, and the text without them again.
//!
//! A mark is a private-use character that says what it is, followed by four that spell its number.
//! Numbers make every mark unique, so that a template may repeat, drop or reorder pieces and each
//! mark still says which piece of which message it belongs to.

use std::collections::HashMap;

use super::spans::SpanKind;

const FIRST: u32 = 0x10_FF00;
const LAST: u32 = 0x10_FF7F;
const DIGITS: u32 = 0x10_FF40;
const N_DIGITS: u32 = 4;
const BASE: u32 = 64;

const OPEN: char = '\u{10FF00}';
const CLOSE: char = '\u{10FF01}';
const LITERAL_OPEN: char = '\u{10FF02}';
const LITERAL_CLOSE: char = '\u{10FF03}';
const GENERATION_OPEN: &str = "\u{10FF04}";
const GENERATION_CLOSE: &str = "\u{10FF05}";

/// What a template prints at its generation tags while marks are on.
pub(super) const GENERATION: [&str; 2] = [GENERATION_OPEN, GENERATION_CLOSE];

/// Whether a character belongs to marks and must not occur in data.
pub(super) fn is_reserved(character: char) -> bool {
    (FIRST..=LAST).contains(&u32::from(character))
}

/// What a pair of marks surrounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: SpanKind,
    pub(super) message: usize,
}

/// The pieces marked so far; a piece's number is its index.
#[derive(Debug, Default)]
pub(super) struct MarkTable {
    pieces: Vec<Piece>,
}

/// Which end of a piece a mark stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum End {
    Open,
    Close,
}

/// A mark found in a rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundMark {
    pub(super) number: usize,
    pub(super) end: End,
    /// Byte offset in the text without marks.
    pub(super) at: usize,
}

/// A rendered text taken apart.
#[derive(Debug, Default)]
pub(super) struct Stripped {
    pub(super) text: String,
    pub(super) marks: Vec<FoundMark>,
    /// Byte ranges between generation tags.
    pub(super) generated: Vec<(usize, usize)>,
}

/// The marks of the full text by what is asked for, so that a turn does not go through all.
#[derive(Default)]
pub(super) struct FoundMarks {
    /// Those of each message, in the order of the text.
    pub(super) by_message: Vec<Vec<FoundMark>>,
    /// Where each stands last.
    pub(super) last: HashMap<(usize, End), usize>,
    /// Of which pieces one stands in the text.
    is_found: Vec<bool>,
}

impl FoundMarks {
    pub(super) fn new(full: &Stripped, table: &MarkTable, n_messages: usize) -> Self {
        let mut found = Self {
            by_message: vec![Vec::new(); n_messages],
            last: HashMap::with_capacity(full.marks.len()),
            is_found: vec![false; table.pieces().len()],
        };
        for mark in &full.marks {
            found.last.insert((mark.number, mark.end), mark.at);
            if let Some(piece) = table.piece(mark.number) {
                found.by_message[piece.message].push(*mark);
                found.is_found[mark.number] = true;
            }
        }
        found
    }

    /// Kinds of the pieces of a message of which no mark stands in the text.
    pub(super) fn left_out(
        &self,
        table: &MarkTable,
        message: usize,
    ) -> impl Iterator<Item = SpanKind> {
        // Pieces are numbered in the order of the messages.
        let pieces = table.pieces();
        let first = pieces.partition_point(|piece| piece.message < message);
        let end = pieces.partition_point(|piece| piece.message <= message);
        (first..end)
            .filter(|&number| !self.is_found[number])
            .map(|number| pieces[number].kind)
    }
}

impl MarkTable {
    /// Surrounds a text; `None` once the numbers are used up.
    pub(super) fn around(&mut self, piece: Piece, text: &str) -> Option<String> {
        let number = self.spell_next(piece)?;
        Some(format!("{OPEN}{number}{text}{CLOSE}{number}"))
    }

    /// Surrounds a number, boolean or null, which [`unquoted_literal`] knows again.
    pub(super) fn around_literal(&mut self, piece: Piece, literal: &str) -> Option<String> {
        let number = self.spell_next(piece)?;
        Some(format!(
            "{LITERAL_OPEN}{number}{literal}{LITERAL_CLOSE}{number}"
        ))
    }

    pub(super) fn piece(&self, number: usize) -> Option<Piece> {
        self.pieces.get(number).copied()
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn spell_next(&mut self, piece: Piece) -> Option<String> {
        let number = u32::try_from(self.pieces.len()).ok()?;
        if number >= BASE.pow(N_DIGITS) {
            return None;
        }
        self.pieces.push(piece);
        (0..N_DIGITS)
            .map(|place| char::from_u32(DIGITS + number / BASE.pow(place) % BASE))
            .collect()
    }
}

/// A string that stands for a JSON literal: what `tojson` must print without quotes.
pub(super) fn unquoted_literal(text: &str) -> bool {
    text.starts_with(LITERAL_OPEN)
}

/// A text that one pair of marks surrounds, taken apart.
pub(super) struct Surrounded<'t> {
    pub(super) open: &'t str,
    pub(super) inner: &'t str,
    pub(super) close: &'t str,
    /// Whether the text stands for a JSON literal.
    pub(super) is_literal: bool,
}

/// Takes a text apart that one pair of marks surrounds; `None` for any other.
pub(super) fn split(text: &str) -> Option<Surrounded<'_>> {
    const N_BYTES: usize = 4 * (1 + N_DIGITS as usize);
    let (open, rest) = text.split_at_checked(N_BYTES)?;
    let (inner, close) = rest.split_at_checked(rest.len().checked_sub(N_BYTES)?)?;
    let is_literal = open.starts_with(LITERAL_OPEN);
    let is_pair = if is_literal {
        close.starts_with(LITERAL_CLOSE)
    } else {
        open.starts_with(OPEN) && close.starts_with(CLOSE)
    };
    (is_pair && !inner.contains(is_reserved)).then_some(Surrounded {
        open,
        inner,
        close,
        is_literal,
    })
}

/// The text without any mark, whole or cut.
pub(super) fn without_marks(text: &str) -> String {
    text.chars()
        .filter(|&character| !is_reserved(character))
        .collect()
}

/// Takes a rendered text apart; `None` if the template cut a mark in two.
pub(super) fn strip(marked: &str) -> Option<Stripped> {
    let mut stripped = Stripped::default();
    let mut generation_opens = Vec::new();
    let mut rest = marked;
    while let Some(position) = rest.find(is_reserved) {
        stripped.text.push_str(&rest[..position]);
        let at = stripped.text.len();
        let mut characters = rest[position..].chars();
        let end = match characters.next()? {
            OPEN | LITERAL_OPEN => Some(End::Open),
            CLOSE | LITERAL_CLOSE => Some(End::Close),
            '\u{10FF04}' => {
                generation_opens.push(at);
                None
            }
            '\u{10FF05}' => {
                stripped.generated.push((generation_opens.pop()?, at));
                None
            }
            _ => return None,
        };
        if let Some(end) = end {
            let number = read_number(&mut characters)?;
            stripped.marks.push(FoundMark { number, end, at });
        }
        rest = characters.as_str();
    }
    stripped.text.push_str(rest);
    Some(stripped)
}

fn read_number(characters: &mut std::str::Chars<'_>) -> Option<usize> {
    let mut number = 0;
    for place in 0..N_DIGITS {
        let digit = u32::from(characters.next()?).checked_sub(DIGITS)?;
        if digit >= BASE {
            return None;
        }
        number += digit * BASE.pow(place);
    }
    usize::try_from(number).ok()
}
