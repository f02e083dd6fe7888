//! Parses MathQA's formulas as calls in the order in which they run.
//!
//! `annotated_formula` is one nested term, `divide(multiply(n0, const_100), add(n1, n2))`.
//! `linear_formula` is a sequence of flat terms, `multiply(n0,const_100)|add(n1,n2)|divide(#0,#1)|`,
//! whose `#i` is the result of term i.

use tooltune_json::python::PyValue;

use super::numbers::{constant, number};
use super::reason::{Dropped, Reason};

/// Maximum number of nested operations.
pub(super) const MAX_LEVELS: usize = 64;
/// Maximum number of operations.
pub(super) const MAX_CALLS: usize = 256;

/// An operation with its arguments.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) arguments: Vec<Operand>,
}

/// An argument.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    /// The result of an earlier operation, by index.
    Result(usize),
    Number(PyValue),
}

/// Parses a nested term. Equal subterms become separate operations, as in NESTFUL.
pub(super) fn parse_annotated(
    formula: &str,
    numbers: &[PyValue],
) -> Result<Vec<Operation>, Dropped> {
    let mut parser = Parser::new(formula, numbers);
    match parser.term(0)? {
        Operand::Number(_) => Err(Dropped::new(Reason::NoOperation, formula)),
        Operand::Result(_) => {
            parser.expect_end()?;
            Ok(parser.operations)
        }
    }
}

/// Parses a sequence of terms.
pub(super) fn parse_linear(formula: &str, numbers: &[PyValue]) -> Result<Vec<Operation>, Dropped> {
    let mut parser = Parser::new("", numbers);
    for term in formula.split('|').map(str::trim) {
        if term.is_empty() {
            continue;
        }
        (parser.text, parser.at) = (term, 0);
        let operand = parser.term(0)?;
        parser.expect_end()?;
        parser.terms.push(operand);
    }
    match parser.terms.last() {
        Some(Operand::Result(_)) => Ok(parser.operations),
        _ => Err(Dropped::new(Reason::NoOperation, formula)),
    }
}

struct Parser<'f> {
    text: &'f str,
    at: usize,
    numbers: &'f [PyValue],
    operations: Vec<Operation>,
    /// The results of the terms of a linear formula.
    terms: Vec<Operand>,
}

impl<'f> Parser<'f> {
    fn new(text: &'f str, numbers: &'f [PyValue]) -> Self {
        Self {
            text,
            at: 0,
            numbers,
            operations: Vec::new(),
            terms: Vec::new(),
        }
    }

    fn rest(&self) -> &'f str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn accept(&mut self, mark: char) -> bool {
        self.skip_blanks();
        let is_next = self.rest().starts_with(mark);
        if is_next {
            self.at += mark.len_utf8();
        }
        is_next
    }

    fn malformed(&self, expected: &str) -> Dropped {
        let found = self.rest().chars().take(20).collect::<String>();
        let found = match found.as_str() {
            "" => "the end".to_owned(),
            text => format!("{text:?}"),
        };
        Dropped::new(
            Reason::Malformed,
            format!("expected {expected}, found {found}"),
        )
    }

    fn expect_end(&mut self) -> Result<(), Dropped> {
        self.skip_blanks();
        match self.rest() {
            "" => Ok(()),
            _ => Err(self.malformed("the end of the formula")),
        }
    }

    /// An operation, or a leaf. Operations are stored after their arguments.
    fn term(&mut self, level: usize) -> Result<Operand, Dropped> {
        self.skip_blanks();
        let word = leaf(self.rest());
        if word.is_empty() {
            return Err(self.malformed("an operation or a number"));
        }
        self.at += word.len();
        if !self.accept('(') {
            return self.operand(word);
        }
        if level >= MAX_LEVELS || self.operations.len() >= MAX_CALLS {
            let limits = format!("the limits are {MAX_LEVELS} levels and {MAX_CALLS} operations");
            return Err(Dropped::new(Reason::TooLarge, limits));
        }
        let mut arguments = Vec::new();
        while !self.accept(')') {
            if !arguments.is_empty() && !self.accept(',') {
                return Err(self.malformed("a comma or a closing parenthesis"));
            }
            arguments.push(self.term(level + 1)?);
        }
        if self.operations.len() >= MAX_CALLS {
            return Err(Dropped::new(
                Reason::TooLarge,
                format!("the limit is {MAX_CALLS} operations"),
            ));
        }
        self.operations.push(Operation {
            name: word.to_owned(),
            arguments,
        });
        Ok(Operand::Result(self.operations.len() - 1))
    }

    fn operand(&self, word: &str) -> Result<Operand, Dropped> {
        let unknown = |what: &str| Dropped::new(Reason::UnknownNumber, format!("{what} {word:?}"));
        let index = |digits: &str| digits.parse::<usize>().ok();
        if let Some(digits) = word.strip_prefix('#') {
            let term = index(digits).and_then(|idx| self.terms.get(idx)).cloned();
            return term.ok_or_else(|| unknown("no earlier term"));
        }
        let in_problem = word.strip_prefix('n').and_then(index);
        let value = match in_problem {
            Some(idx) => self.numbers.get(idx).cloned(),
            None => constant(word).or_else(|| number(word)),
        };
        let what = match in_problem {
            Some(_) => "the problem has no number",
            None => "unknown number or constant",
        };
        value.map(Operand::Number).ok_or_else(|| unknown(what))
    }
}

/// The name or number at the start of a text. A comma between two digits belongs to the number,
/// because formulas contain numbers such as `1,000` and separate arguments by a comma and a blank.
fn leaf(text: &str) -> &str {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is_number = is_digit(0) || text.starts_with(['.', '-']);
    let in_leaf = |at: usize, byte: u8| match byte {
        b',' => is_number && at > 0 && is_digit(at - 1) && is_digit(at + 1),
        b'#' | b'-' => at == 0,
        byte => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'),
    };
    let mut end = 0;
    while bytes.get(end).is_some_and(|&byte| in_leaf(end, byte)) {
        end += 1;
    }
    text.get(..end).unwrap_or_default()
}
