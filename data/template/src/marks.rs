//! Invisible marks around pieces of a conversation, and their removal.
//!
//! A mark is a private-use character for its type, followed by four characters that encode its
//! number. The numbers make every mark unique, so each mark identifies its piece and message even
//! if the template repeats, drops or reorders pieces.

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

/// The strings that a template prints at its generation tags if pieces are marked.
pub(super) const GENERATION: [&str; 2] = [GENERATION_OPEN, GENERATION_CLOSE];

/// Whether a character is reserved for marks and must not occur in data.
pub(super) fn is_reserved(character: char) -> bool {
    (FIRST..=LAST).contains(&u32::from(character))
}

/// The piece that a pair of marks surrounds.
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

/// Whether a mark is at the start or end of its piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum End {
    Open,
    Close,
}

/// A mark found in a rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) number: usize,
    pub(super) end: End,
    /// Byte offset in the text without marks.
    pub(super) at: usize,
}

/// A rendered text split into plain text and marks.
#[derive(Debug, Default)]
pub(super) struct TextWithMarks {
    pub(super) text: String,
    pub(super) marks: Vec<Mark>,
    /// Byte ranges between generation tags.
    pub(super) generated: Vec<(usize, usize)>,
}

/// Index of the marks of the full text, so that locating a turn does not scan all of them.
#[derive(Default)]
pub(super) struct MarkIndex {
    /// Marks of each message, in text order.
    pub(super) by_message: Vec<Vec<Mark>>,
    /// Last position of each mark.
    pub(super) last: HashMap<(usize, End), usize>,
    /// For each piece, whether the text has a mark of it.
    is_found: Vec<bool>,
}

impl MarkIndex {
    pub(super) fn new(full: &TextWithMarks, table: &MarkTable, n_messages: usize) -> Self {
        let mut marks = Self {
            by_message: vec![Vec::new(); n_messages],
            last: HashMap::with_capacity(full.marks.len()),
            is_found: vec![false; table.pieces().len()],
        };
        for mark in &full.marks {
            marks.last.insert((mark.number, mark.end), mark.at);
            if let Some(piece) = table.piece(mark.number) {
                marks.by_message[piece.message].push(*mark);
                marks.is_found[mark.number] = true;
            }
        }
        marks
    }

    /// Returns the kinds of those pieces of a message that have no mark in the text.
    pub(super) fn unmarked_kinds(
        &self,
        table: &MarkTable,
        message: usize,
    ) -> impl Iterator<Item = SpanKind> {
        // Pieces are numbered in message order.
        let pieces = table.pieces();
        let first = pieces.partition_point(|piece| piece.message < message);
        let end = pieces.partition_point(|piece| piece.message <= message);
        (first..end)
            .filter(|&number| !self.is_found[number])
            .map(|number| pieces[number].kind)
    }
}

impl MarkTable {
    /// Surrounds a string with marks; `None` if all numbers are used.
    pub(super) fn surround(&mut self, piece: Piece, text: &str) -> Option<String> {
        let number = self.add_piece(piece)?;
        Some(format!("{OPEN}{number}{text}{CLOSE}{number}"))
    }

    /// Surrounds a number, boolean or null with marks that [`unquoted_literal`] recognizes.
    pub(super) fn surround_literal(&mut self, piece: Piece, literal: &str) -> Option<String> {
        let number = self.add_piece(piece)?;
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

    fn add_piece(&mut self, piece: Piece) -> Option<String> {
        let number = u32::try_from(self.pieces.len()).ok()?;
        if number >= BASE.pow(N_DIGITS) {
            return None;
        }
        self.pieces.push(piece);
        (0..N_DIGITS)
            .map(|digit_idx| char::from_u32(DIGITS + number / BASE.pow(digit_idx) % BASE))
            .collect()
    }
}

/// A string that represents a JSON literal, which `tojson` must print without quotes.
pub(super) fn unquoted_literal(text: &str) -> bool {
    text.starts_with(LITERAL_OPEN)
}

/// A string that was surrounded by one pair of marks, split into its parts.
pub(super) struct MarkedText<'t> {
    pub(super) open: &'t str,
    pub(super) inner: &'t str,
    pub(super) close: &'t str,
    /// Whether the text represents a JSON literal.
    pub(super) is_literal: bool,
}

/// Splits a string that is surrounded by one pair of marks; `None` for any other string.
pub(super) fn split(text: &str) -> Option<MarkedText<'_>> {
    const N_BYTES: usize = 4 * (1 + N_DIGITS as usize);
    let (open, rest) = text.split_at_checked(N_BYTES)?;
    let (inner, close) = rest.split_at_checked(rest.len().checked_sub(N_BYTES)?)?;
    let is_literal = open.starts_with(LITERAL_OPEN);
    let is_pair = if is_literal {
        close.starts_with(LITERAL_CLOSE)
    } else {
        open.starts_with(OPEN) && close.starts_with(CLOSE)
    };
    (is_pair && !inner.contains(is_reserved)).then_some(MarkedText {
        open,
        inner,
        close,
        is_literal,
    })
}

/// Removes all marks from the text, including truncated ones.
pub(super) fn remove_marks(text: &str) -> String {
    text.chars()
        .filter(|&character| !is_reserved(character))
        .collect()
}

/// Splits a rendered text into plain text and marks; `None` if the template truncated a mark.
pub(super) fn strip(marked_text: &str) -> Option<TextWithMarks> {
    let mut stripped = TextWithMarks::default();
    let mut generation_opens = Vec::new();
    let mut rest = marked_text;
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
            stripped.marks.push(Mark { number, end, at });
        }
        rest = characters.as_str();
    }
    stripped.text.push_str(rest);
    Some(stripped)
}

fn read_number(characters: &mut std::str::Chars<'_>) -> Option<usize> {
    let mut number = 0;
    for exponent in 0..N_DIGITS {
        let digit = u32::from(characters.next()?).checked_sub(DIGITS)?;
        if digit >= BASE {
            return None;
        }
        number += digit * BASE.pow(exponent);
    }
    usize::try_from(number).ok()
}
