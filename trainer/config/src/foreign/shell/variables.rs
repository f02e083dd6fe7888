//! Variables of a script, and their expansion in words.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::Word;
use super::scanner::Piece;

/// Variables set so far.
#[derive(Debug, Default)]
pub(super) struct Variables {
    set: BTreeMap<String, Variable>,
    /// Total bytes of expanded variables so far.
    n_expanded: Cell<usize>,
}

#[derive(Debug, Clone)]
enum Variable {
    Text(String),
    List(Vec<String>),
    /// The variable is set to a value that depends on a running shell.
    Unknown,
}

/// Limit of bytes in a variable and in all expansions. Without it, variables that contain another
/// variable twice would grow exponentially.
const MOST_BYTES: usize = 1 << 20;

/// Parses a word as an assignment: name and pieces of the value.
pub(super) fn assignment(pieces: &[Piece]) -> Option<(String, Vec<Piece>)> {
    let Some(Piece::Bare(first)) = pieces.first() else {
        return None;
    };
    let (name, rest) = first.split_once('=')?;
    let bare = name.strip_suffix('+').unwrap_or(name);
    let is_name = bare.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && bare.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return None;
    }
    let mut value = pieces[1..].to_vec();
    if !rest.is_empty() {
        value.insert(0, Piece::Bare(rest.to_owned()));
    }
    Some((name.to_owned(), value))
}

impl Variables {
    /// Sets a variable, or appends to it if the name ends with `+`. Unless `is_sure`, the value is
    /// unknown.
    pub(super) fn set(&mut self, name: &str, value: &[Piece], is_sure: bool) {
        let (name, is_appended) = strip_plus(name);
        // The value of an assignment is one word.
        let value = self.expand_joined(value);
        let before = self.set.get(name).filter(|_| is_appended);
        let variable = match (before, value.unknown) {
            (Some(Variable::Text(before)), None) => Variable::Text(before.clone() + &value.text),
            (None, None) if !is_appended => Variable::Text(value.text),
            _ => Variable::Unknown,
        };
        self.insert(name, variable, is_sure);
    }

    /// As [`Self::set`], for an array.
    pub(super) fn set_list(&mut self, name: &str, words: Vec<Word>, is_sure: bool) {
        let (name, is_appended) = strip_plus(name);
        let is_known = words.iter().all(|word| word.unknown.is_none());
        let words = words.into_iter().map(|word| word.text);
        let before = self.set.get(name).filter(|_| is_appended);
        let variable = match before {
            _ if !is_known => Variable::Unknown,
            Some(Variable::List(before)) => {
                Variable::List(before.iter().cloned().chain(words).collect())
            }
            None if !is_appended => Variable::List(words.collect()),
            _ => Variable::Unknown,
        };
        self.insert(name, variable, is_sure);
    }

    fn insert(&mut self, name: &str, variable: Variable, is_sure: bool) {
        let is_kept = is_sure && variable.n_bytes() <= MOST_BYTES;
        let variable = if is_kept { variable } else { Variable::Unknown };
        self.set.insert(name.to_owned(), variable);
    }

    /// Expands a word. The result is several words if it contains unquoted variables or lists.
    pub(super) fn expand(&self, pieces: &[Piece]) -> Vec<Word> {
        let mut words = vec![Word::default()];
        // Whether the last word exists although it is empty.
        let mut is_there = false;
        for (at, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Variable {
                    name,
                    is_quoted,
                    is_list,
                    raw,
                } => match (self.value(name), is_quoted, is_list) {
                    (Some(Variable::Text(text)), true, _) => {
                        append(&mut words, text);
                        is_there = true;
                    }
                    (Some(Variable::Text(text)), false, _) => {
                        split_into(&mut words, &mut is_there, text, raw);
                    }
                    (Some(Variable::List(items)), true, true) => {
                        for (idx, item) in items.iter().enumerate() {
                            if idx > 0 {
                                words.push(Word::default());
                            }
                            append(&mut words, item);
                            is_there = true;
                        }
                    }
                    (Some(Variable::List(items)), false, true) => {
                        split_into(&mut words, &mut is_there, &items.join(" "), raw);
                    }
                    _ => mark_unknown(&mut words, raw),
                },
                Piece::Literal(text) => {
                    append(&mut words, text);
                    is_there = true;
                }
                Piece::Bare(text) => {
                    let is_home = at == 0 && text.starts_with('~');
                    if is_home || has_pattern(text) {
                        mark_unknown(&mut words, text);
                    }
                    append(&mut words, text);
                    is_there = true;
                }
                Piece::Unknown(raw) => mark_unknown(&mut words, raw),
            }
        }
        let is_empty = words.last().is_some_and(|word| word.text.is_empty());
        if is_empty && !is_there && words.last().is_some_and(|word| word.unknown.is_none()) {
            words.pop();
        }
        words
    }

    /// Value of a variable, whose bytes are counted.
    fn value(&self, name: &str) -> Option<&Variable> {
        let variable = self.set.get(name)?;
        let n_bytes = self.n_expanded.get() + variable.n_bytes();
        self.n_expanded.set(n_bytes);
        (n_bytes <= MOST_BYTES).then_some(variable)
    }

    /// Joins the pieces to one word.
    fn expand_joined(&self, pieces: &[Piece]) -> Word {
        let as_quoted = pieces.iter().map(|piece| match piece {
            Piece::Variable {
                name, is_list, raw, ..
            } => Piece::Variable {
                name: name.clone(),
                is_quoted: true,
                is_list: *is_list,
                raw: raw.clone(),
            },
            // Assignments do not expand patterns, only `~`.
            Piece::Bare(text) if !text.starts_with('~') => Piece::Literal(text.clone()),
            other => other.clone(),
        });
        let as_quoted: Vec<Piece> = as_quoted.collect();
        let mut words = self.expand(&as_quoted).into_iter();
        let mut result = words.next().unwrap_or_default();
        for word in words {
            result.text.push(' ');
            result.text.push_str(&word.text);
            result.unknown = result.unknown.or(word.unknown);
        }
        result
    }
}

impl Variable {
    fn n_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(words) => words.iter().map(|word| word.len() + 1).sum(),
            Self::Unknown => 0,
        }
    }
}

/// The name without the `+` of `+=`, and whether it has one.
fn strip_plus(name: &str) -> (&str, bool) {
    name.strip_suffix('+')
        .map_or((name, false), |name| (name, true))
}

fn append(words: &mut [Word], text: &str) {
    if let Some(word) = words.last_mut() {
        word.text.push_str(text);
    }
}

fn mark_unknown(words: &mut [Word], raw: &str) {
    if let Some(word) = words.last_mut() {
        word.unknown.get_or_insert_with(|| raw.to_owned());
    }
}

/// Adds the value of an unquoted variable, split at whitespace.
fn split_into(words: &mut Vec<Word>, is_there: &mut bool, text: &str, raw: &str) {
    let blanks = [' ', '\t', '\n'];
    if has_pattern(text) {
        mark_unknown(words, raw);
    }
    for (idx, part) in text.split(blanks).enumerate() {
        let is_word = words.last().is_some_and(|word| !word.text.is_empty()) || *is_there;
        if idx > 0 && is_word {
            words.push(Word::default());
            *is_there = false;
        }
        append(words, part);
    }
}

/// Whether a shell would expand the text to file names or several words.
fn has_pattern(text: &str) -> bool {
    let has_class = text
        .split_once('[')
        .is_some_and(|(_, rest)| rest.contains(']'));
    let has_braces = text.split_once('{').is_some_and(|(_, rest)| {
        rest.split_once('}')
            .is_some_and(|(inner, _)| inner.contains(',') || inner.contains(".."))
    });
    text.contains(['*', '?']) || has_class || has_braces
}
