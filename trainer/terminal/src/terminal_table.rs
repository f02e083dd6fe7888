//! Lays out Markdown tables to fit the width of a terminal.
//!
//! Programs read the Markdown. On a terminal, people read aligned columns. If these are too wide,
//! they read the transposed table, or one block per row.

use textwrap::core::display_width;

/// Gap between two columns.
const GAP: &str = "  ";

/// Lays out every Markdown table in a text for `columns` columns. Other lines are passed through
/// `other`.
pub(crate) fn laid_out(text: &str, columns: usize, other: impl Fn(&str) -> String) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let mut out: Vec<String> = Vec::with_capacity(lines.len());
    let mut at = 0;
    while at < lines.len() {
        match Table::parse(&lines[at..]) {
            Some((table, n_lines)) => {
                out.extend(table.fit(columns));
                at += n_lines;
            }
            None => {
                out.push(other(lines[at]));
                at += 1;
            }
        }
    }
    out.join("\n")
}

/// The cells of a table, header first, and which columns are right-aligned.
#[derive(Debug, PartialEq)]
struct Table {
    rows: Vec<Vec<String>>,
    is_right: Vec<bool>,
}

impl Table {
    /// Parses the table that begins with the first line, and returns it with its number of lines.
    fn parse(lines: &[&str]) -> Option<(Self, usize)> {
        let [heads, rule, ..] = lines else {
            return None;
        };
        let (heads, rule) = (cells(heads)?, cells(rule)?);
        let is_rule = |cell: &String| {
            let dashes = cell.trim_matches(':');
            !dashes.is_empty() && dashes.bytes().all(|byte| byte == b'-')
        };
        if rule.len() != heads.len() || !rule.iter().all(is_rule) {
            return None;
        }
        let body = lines[2..].iter().map_while(|line| cells(line));
        let n = heads.len();
        let body: Vec<Vec<String>> = body
            .map(|mut row| {
                row.resize(n, String::new());
                row
            })
            .collect();
        let n_lines = body.len() + 2;
        let table = Self {
            rows: [heads].into_iter().chain(body).collect(),
            is_right: rule.iter().map(|cell| cell.ends_with(':')).collect(),
        };
        Some((table, n_lines))
    }

    fn fit(self, columns: usize) -> Vec<String> {
        let lines = self.with_aligned_columns();
        if fits(&lines, columns) {
            return lines;
        }
        let transposed = self.transposed();
        let lines = transposed.with_aligned_columns();
        if transposed.rows.first().map_or(0, Vec::len) > 1 && fits(&lines, columns) {
            return lines;
        }
        self.blocks(columns)
    }

    /// The table with aligned columns.
    fn with_aligned_columns(&self) -> Vec<String> {
        let width = |idx: usize| {
            let cells = self.rows.iter().map(|row| display_width(&row[idx]));
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.is_right.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.is_right);
            let cells = cells.map(|((cell, width), is_right)| {
                let space = " ".repeat(width - display_width(cell));
                match is_right {
                    true => format!("{space}{cell}"),
                    false => format!("{cell}{space}"),
                }
            });
            let line = cells.collect::<Vec<_>>().join(GAP);
            line.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    /// The transposed table.
    fn transposed(&self) -> Self {
        let column = |idx: usize| self.rows.iter().map(|row| row[idx].clone()).collect();
        let n_rows = self.rows.len();
        Self {
            rows: (0..self.is_right.len()).map(column).collect(),
            is_right: (0..n_rows).map(|idx| idx > 0).collect(),
        }
    }

    /// One block per row: its first cell as a heading, and the other cells below.
    fn blocks(&self, columns: usize) -> Vec<String> {
        let Some((heads, body)) = self.rows.split_first() else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        for row in body {
            lines.push(row[0].clone());
            for (head, cell) in heads.iter().zip(row).skip(1) {
                if !cell.is_empty() {
                    let options = textwrap::Options::new(columns)
                        .initial_indent("  ")
                        .subsequent_indent("      ")
                        .break_words(false)
                        .word_splitter(textwrap::WordSplitter::NoHyphenation);
                    let text = match head.is_empty() {
                        true => cell.clone(),
                        false => format!("{head}: {cell}"),
                    };
                    lines.extend(textwrap::wrap(&text, options).into_iter().map(String::from));
                }
            }
        }
        lines
    }
}

fn fits(lines: &[String], columns: usize) -> bool {
    lines.iter().all(|line| display_width(line) <= columns)
}

/// The cells of a line in a Markdown table; `None` for other lines.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut letters = inner.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.peek() == Some(&'|') => {
                letters.next();
                cells.last_mut()?.push('|');
            }
            '|' => cells.push(String::new()),
            letter => cells.last_mut()?.push(letter),
        }
    }
    Some(cells.iter().map(|cell| cell.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "before\n| metric | at | first | second |\n|---|---|--:|--:|\n\
                         | loss | step 0 | 1.250 | 11.000 |\n| a\\|b | best | 0.5 | – |\nafter";

    fn rendered(columns: usize) -> Vec<String> {
        let text = laid_out(TABLE, columns, |line| line.to_uppercase());
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_that_fits_has_aligned_columns() {
        let expected = [
            "BEFORE",
            "metric  at      first  second",
            "loss    step 0  1.250  11.000",
            "a|b     best      0.5       –",
            "AFTER",
        ];
        assert_eq!(rendered(80), expected);
        assert_eq!(rendered(29), expected);
    }

    #[test]
    fn a_wide_table_is_transposed_and_a_wider_one_becomes_blocks() {
        let transposed = [
            "BEFORE",
            "metric    loss   a|b",
            "at      step 0  best",
            "first    1.250   0.5",
            "second  11.000     –",
            "AFTER",
        ];
        assert_eq!(rendered(28), transposed);
        let blocks = [
            "BEFORE",
            "loss",
            "  at: step 0",
            "  first: 1.250",
            "  second: 11.000",
            "a|b",
            "  at: best",
            "  first: 0.5",
            "  second: –",
            "AFTER",
        ];
        assert_eq!(rendered(17), blocks);
    }

    #[test]
    fn text_outside_tables_is_unchanged() {
        for text in [
            "| a | b |",
            "| a | b |\n| c | d |",
            "a | b\n--|--",
            "",
            "|---|\n",
        ] {
            assert_eq!(laid_out(text, 10, str::to_owned), text);
        }
    }
}
