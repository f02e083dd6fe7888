//! Splits a script into words, redirections and operators.

use super::ShellError;

/// Token of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word with unexpanded pieces.
    Word {
        /// Line of its start, from 1.
        line: usize,
        pieces: Vec<Piece>,
        /// The word as written.
        raw: String,
    },
    /// A redirection before its word, such as `2>`.
    Redirection(String),
    /// End of a command, or a round bracket; a line end is `\n`.
    Operator(String),
}

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Literal characters.
    Literal(String),
    /// Unquoted characters, in which patterns are expanded.
    Bare(String),
    /// A variable, by its name.
    Variable {
        name: String,
        is_quoted: bool,
        /// Whether the array's words are separate words.
        is_list: bool,
        raw: String,
    },
    /// Text that only a running shell can expand.
    Unknown(String),
}

struct Scanner<'t> {
    rest: &'t str,
    line: usize,
    tokens: Vec<Token>,
    /// The current word: its pieces, text and line.
    pieces: Vec<Piece>,
    raw: String,
    begin: usize,
    /// Delimiters of here-documents that start on the next line, and whether leading tabs are
    /// stripped.
    documents: Vec<(String, bool)>,
}

/// Tokens of a script.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ShellError> {
    let mut scanner = Scanner {
        rest: text,
        line: 1,
        tokens: Vec::new(),
        pieces: Vec::new(),
        raw: String::new(),
        begin: 1,
        documents: Vec::new(),
    };
    while !scanner.rest.is_empty() {
        scanner.step()?;
    }
    scanner.end_word();
    Ok(scanner.tokens)
}

impl Scanner<'_> {
    /// Consumes `n_bytes` of the text.
    fn take(&mut self, n_bytes: usize) -> String {
        let (consumed, rest) = self.rest.split_at(n_bytes);
        self.rest = rest;
        self.line += consumed.matches('\n').count();
        consumed.to_owned()
    }

    /// Consumes `n_bytes` as part of the word.
    fn take_raw(&mut self, n_bytes: usize) -> String {
        if self.raw.is_empty() {
            self.begin = self.line;
        }
        let consumed = self.take(n_bytes);
        self.raw.push_str(&consumed);
        consumed
    }

    fn step(&mut self) -> Result<(), ShellError> {
        let Some(first) = self.rest.chars().next() else {
            return Ok(());
        };
        match first {
            ' ' | '\t' => {
                self.end_word();
                self.take(1);
            }
            '\n' => self.end_line(),
            '#' if self.raw.is_empty() => {
                let length = self.rest.find('\n').unwrap_or(self.rest.len());
                self.take(length);
            }
            '\\' if self.rest.starts_with("\\\n") => {
                self.take(2);
            }
            '\\' => {
                let next = self.rest[1..].chars().next();
                let next = next.ok_or(ShellError::Open { line: self.line })?;
                let escaped = self.take_raw(1 + next.len_utf8());
                self.pieces.push(Piece::Literal(escaped[1..].to_owned()));
            }
            '\'' => self.single_quoted()?,
            '"' => self.double_quoted()?,
            '$' | '`' => self.expansion(false)?,
            '<' | '>' => self.redirection(),
            '&' if self.rest.starts_with("&>") => self.redirection(),
            '|' | '&' | ';' | '(' | ')' => self.operator(),
            other => {
                let character = self.take_raw(other.len_utf8());
                match self.pieces.last_mut() {
                    Some(Piece::Bare(text)) => text.push_str(&character),
                    _ => self.pieces.push(Piece::Bare(character)),
                }
            }
        }
        Ok(())
    }

    fn end_word(&mut self) {
        if self.raw.is_empty() {
            return;
        }
        let raw = std::mem::take(&mut self.raw);
        let pieces = std::mem::take(&mut self.pieces);
        if let Some(Token::Redirection(operator)) = self.tokens.last()
            && (operator.ends_with("<<") || operator.ends_with("<<-"))
        {
            let end = pieces.iter().map(|piece| match piece {
                Piece::Literal(text) | Piece::Bare(text) | Piece::Unknown(text) => text.as_str(),
                Piece::Variable { raw, .. } => raw.as_str(),
            });
            self.documents
                .push((end.collect(), operator.ends_with('-')));
        }
        self.tokens.push(Token::Word {
            line: self.begin,
            pieces,
            raw,
        });
    }

    fn end_line(&mut self) {
        self.end_word();
        self.take(1);
        self.tokens.push(Token::Operator("\n".to_owned()));
        for (end, skips_tabs) in std::mem::take(&mut self.documents) {
            while !self.rest.is_empty() {
                let length = self.rest.find('\n').map_or(self.rest.len(), |idx| idx + 1);
                let line = self.take(length);
                let line = line.trim_end_matches('\n');
                let line = if skips_tabs {
                    line.trim_start_matches('\t')
                } else {
                    line
                };
                if line == end {
                    break;
                }
            }
        }
    }

    fn operator(&mut self) {
        self.end_word();
        let two = self.rest.get(..2).unwrap_or_default();
        let length = if ["&&", "||", "|&", ";;"].contains(&two) {
            2
        } else {
            1
        };
        let operator = self.take(length);
        self.tokens.push(Token::Operator(operator));
    }

    fn redirection(&mut self) {
        // A number directly before the operator is a file descriptor.
        let is_number = !self.raw.is_empty() && self.raw.bytes().all(|byte| byte.is_ascii_digit());
        let number = if is_number {
            self.pieces.clear();
            std::mem::take(&mut self.raw)
        } else {
            self.end_word();
            String::new()
        };
        let operators = [
            "&>>", "<<<", "<<-", "&>", ">>", ">|", ">&", "<<", "<&", "<>", ">", "<",
        ];
        let longest = operators
            .iter()
            .find(|operator| self.rest.starts_with(**operator));
        let operator = self.take(longest.map_or(1, |operator| operator.len()));
        self.tokens
            .push(Token::Redirection(format!("{number}{operator}")));
    }

    fn single_quoted(&mut self) -> Result<(), ShellError> {
        let open = ShellError::Open { line: self.line };
        let length = self.rest[1..].find('\'').ok_or(open)?;
        let quoted = self.take_raw(length + 2);
        self.pieces
            .push(Piece::Literal(quoted[1..=length].to_owned()));
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), ShellError> {
        let open = ShellError::Open { line: self.line };
        self.take_raw(1);
        // An empty string is also a word.
        self.pieces.push(Piece::Literal(String::new()));
        loop {
            let next = self.rest.chars().next().ok_or(open)?;
            match next {
                '"' => {
                    self.take_raw(1);
                    return Ok(());
                }
                '\\' => {
                    let escaped = self.rest[1..].chars().next().ok_or(open)?;
                    let sequence = self.take_raw(1 + escaped.len_utf8());
                    let text = match escaped {
                        '\n' => "",
                        '$' | '`' | '"' | '\\' => &sequence[1..],
                        _ => &sequence,
                    };
                    self.pieces.push(Piece::Literal(text.to_owned()));
                }
                '$' | '`' => self.expansion(true)?,
                other => {
                    let character = self.take_raw(other.len_utf8());
                    match self.pieces.last_mut() {
                        Some(Piece::Literal(text)) => text.push_str(&character),
                        _ => self.pieces.push(Piece::Literal(character)),
                    }
                }
            }
        }
    }

    /// An expansion that starts with `$` or a back quote.
    fn expansion(&mut self, is_quoted: bool) -> Result<(), ShellError> {
        let open = ShellError::Open { line: self.line };
        if self.rest.starts_with('`') {
            let length = self.rest[1..].find('`').ok_or(open)?;
            let raw = self.take_raw(length + 2);
            self.pieces.push(Piece::Unknown(raw));
            return Ok(());
        }
        let after = &self.rest[1..];
        let name = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &after[..name.unwrap_or(after.len())];
        match after.chars().next() {
            Some('(') => {
                let length = bracketed_len(after, '(', ')').ok_or(open)?;
                let raw = self.take_raw(1 + length);
                self.pieces.push(Piece::Unknown(raw));
            }
            Some('{') => {
                let length = bracketed_len(after, '{', '}').ok_or(open)?;
                let raw = self.take_raw(1 + length);
                self.pieces.push(braced_piece(raw, is_quoted));
            }
            Some('\'') if !is_quoted => self.ansi_quoted(open)?,
            Some('"') if !is_quoted => {
                self.take_raw(1);
                self.double_quoted()?;
            }
            Some(first) if first.is_ascii_alphabetic() || first == '_' => {
                let name = name.to_owned();
                let raw = self.take_raw(1 + name.len());
                self.pieces.push(Piece::Variable {
                    name,
                    is_quoted,
                    is_list: false,
                    raw,
                });
            }
            Some(first) if first.is_ascii_digit() || "@*#?$!-".contains(first) => {
                let raw = self.take_raw(2);
                self.pieces.push(Piece::Unknown(raw));
            }
            _ => {
                let raw = self.take_raw(1);
                self.pieces.push(Piece::Literal(raw));
            }
        }
        Ok(())
    }

    /// `$'...'` with the escapes of C.
    fn ansi_quoted(&mut self, open: ShellError) -> Result<(), ShellError> {
        self.take_raw(2);
        let mut text = String::new();
        loop {
            let next = self.rest.chars().next().ok_or(open)?;
            self.take_raw(next.len_utf8());
            match next {
                '\'' => break,
                '\\' => {
                    let escaped = self.rest.chars().next().ok_or(open)?;
                    self.take_raw(escaped.len_utf8());
                    match escaped {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        'a' => text.push('\u{7}'),
                        'b' => text.push('\u{8}'),
                        'e' | 'E' => text.push('\u{1b}'),
                        'f' => text.push('\u{c}'),
                        'v' => text.push('\u{b}'),
                        'x' => text.push(self.escaped_code(16, 2)),
                        'u' => text.push(self.escaped_code(16, 4)),
                        'U' => text.push(self.escaped_code(16, 8)),
                        '\\' | '\'' | '"' | '?' => text.push(escaped),
                        other => text.extend(['\\', other]),
                    }
                }
                other => text.push(other),
            }
        }
        self.pieces.push(Piece::Literal(text));
        Ok(())
    }

    /// A character by its code, with at most `most` digits.
    fn escaped_code(&mut self, radix: u32, most: usize) -> char {
        let digits = self.rest.chars().take(most);
        let n_digits = digits.take_while(|c| c.is_digit(radix)).count();
        let digits = self.take_raw(n_digits);
        let code = u32::from_str_radix(&digits, radix).ok();
        code.and_then(char::from_u32).unwrap_or('\u{fffd}')
    }
}

/// Number of bytes from an opening bracket to its closing bracket.
fn bracketed_len(text: &str, begin: char, end: char) -> Option<usize> {
    let (mut depth, mut quote, mut is_escaped) = (0_usize, None, false);
    for (idx, c) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' && quote != Some('\'') {
            is_escaped = true;
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_some() {
        } else if c == '\'' || c == '"' {
            quote = Some(c);
        } else if c == begin {
            depth += 1;
        } else if c == end {
            depth -= 1;
            if depth == 0 {
                return Some(idx + c.len_utf8());
            }
        }
    }
    None
}

/// `${name}`, `${name[@]}`, or an expansion that only a running shell knows, such as `${name%.*}`.
fn braced_piece(raw: String, is_quoted: bool) -> Piece {
    let inner = raw.get(2..raw.len().saturating_sub(1)).unwrap_or_default();
    let (name, is_list) = match inner.strip_suffix("[@]").or(inner.strip_suffix("[*]")) {
        Some(name) => (name, true),
        None => (inner, false),
    };
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Piece::Unknown(raw);
    }
    Piece::Variable {
        name: name.to_owned(),
        is_quoted,
        is_list,
        raw,
    }
}
