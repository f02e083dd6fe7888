//! Text for the terminal: wrapping, plurals, durations.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

use crate::terminal_table::laid_out;

/// Width of a terminal that does not report its width.
const COLUMNS: usize = 80;

/// Width of the terminal in columns.
pub fn columns() -> usize {
    let size = terminal_size::terminal_size_of(io::stderr());
    let width = size.map(|(width, _)| usize::from(width.0));
    // Terminals without a size report 0.
    width.filter(|width| *width > 0).unwrap_or(COLUMNS)
}

/// Text for `output`. On a terminal, it is wrapped between words and Markdown tables are laid out;
/// otherwise it is unchanged.
pub fn fitting_text<'a>(text: &'a str, output: &impl IsTerminal) -> Cow<'a, str> {
    if !output.is_terminal() {
        return text.into();
    }
    let options = textwrap::Options::new(columns())
        .subsequent_indent("  ")
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    laid_out(text, columns(), |line| textwrap::fill(line, &options)).into()
}

/// A number and its noun, with a plural s unless the number is 1.
pub fn count_noun(n: usize, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{n} {one}s"),
    }
}

/// Seconds in the format `1h02m`, `3m05s` or `7s`.
pub fn duration_text(secs: f64) -> String {
    let secs = secs.max(0.0).round() as u64;
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, secs) => format!("{secs}s"),
        (0, minutes, secs) => format!("{minutes}m{secs:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}
