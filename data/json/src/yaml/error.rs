//! Error messages for strings that are not exactly one YAML document.

use granit_parser::{ErrorKind, Marker, ScanError};
use thiserror::Error;

/// The reason that a YAML text is rejected, and its location.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct YamlError {
    /// Line of the error, from 1.
    pub line: usize,
    /// Column of the error in characters, from 1.
    pub column: usize,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl YamlError {
    pub(super) fn at_marker(marker: &Marker, reason: impl Into<String>) -> Self {
        Self {
            line: marker.line().max(1),
            column: marker.col() + 1,
            reason: reason.into(),
        }
    }

    /// Creates a syntax error with our own message, because the library's messages describe its
    /// internal states.
    pub(super) fn from_scan_error(error: &ScanError, text: &str) -> Self {
        let fault = Self::at_marker(error.marker(), reason(error.kind()));
        match is_tab_error(error.kind()) {
            true => fault.move_to_tab(text),
            false => fault,
        }
    }

    /// Moves the location of the error to the tab. The library reports the last token before the
    /// tab, which may be several lines above.
    fn move_to_tab(self, text: &str) -> Self {
        let mut lines = text.lines().enumerate().skip(self.line - 1);
        let tab = lines.find_map(|(idx, line)| {
            let blanks = line.chars().take_while(|c| c.is_whitespace() || *c == '-');
            let column = blanks.collect::<Vec<_>>().iter().position(|c| *c == '\t')?;
            let is_behind = idx + 1 > self.line || column + 1 >= self.column;
            (is_behind && !line.trim().is_empty()).then_some((idx + 1, column + 1))
        });
        match tab {
            Some((line, column)) => Self {
                line,
                column,
                ..self
            },
            None => self,
        }
    }
}

/// The message for a document with too many levels.
pub(super) fn too_many_levels() -> String {
    let limit = crate::MAX_LEVELS;
    format!("the document has more than {limit} levels; reduce the nesting")
}

fn is_tab_error(kind: &ErrorKind) -> bool {
    use ErrorKind as Kind;
    matches!(
        kind,
        Kind::TabNotAllowed
            | Kind::TabInBlockIndentation
            | Kind::TabInIndentation
            | Kind::TabAtBlockScalarStart
            | Kind::TabInPlainScalar
    )
}

fn reason(kind: &ErrorKind) -> String {
    use ErrorKind as Kind;
    let message = match kind {
        Kind::RecursionLimitExceeded => return too_many_levels(),
        Kind::UnclosedFlowCollection { open } => {
            return format!("the {open} is not closed; add the closing bracket");
        }
        Kind::MismatchedFlowCollectionEnd { open, close } => {
            return format!("{close} closes a {open}; use the same kind of bracket");
        }
        Kind::MisplacedFlowCollectionEnd => {
            "a closing bracket has no opening one; remove it, or quote the text"
        }
        Kind::UnexpectedCharacter { character } => {
            return format!(
                "an unquoted value cannot begin with {:?}; quote it",
                character.to_string()
            );
        }
        Kind::UnexpectedEofFlowSequence
        | Kind::UnexpectedEofFlowMapping
        | Kind::UnexpectedEofImplicitFlowMapping => {
            "the document ends inside brackets; add the closing bracket"
        }
        Kind::UnexpectedEof
        | Kind::UnexpectedEofBlockMapping
        | Kind::UnexpectedEofBlockSequence => {
            "the document ends too early; check that the file is complete"
        }
        Kind::UnclosedQuotedScalar | Kind::DocumentIndicatorInQuotedScalar => {
            "the quote is not closed; add the closing quote"
        }
        Kind::UnknownAnchor => {
            "no anchor of this name is defined above; define it with &, or quote the text"
        }
        Kind::TabNotAllowed
        | Kind::TabInBlockIndentation
        | Kind::TabInIndentation
        | Kind::TabAtBlockScalarStart
        | Kind::TabInPlainScalar => "a tab cannot indent here; use spaces",
        Kind::InvalidIndentation
        | Kind::InvalidBlockScalarIndent
        | Kind::InvalidFlowScalarIndent => {
            "the indentation matches no line above; align the line with its siblings"
        }
        Kind::InvalidQuotedScalarIndent => {
            "the quote is not closed before an unindented line; close it, or indent the line"
        }
        Kind::ExpectedBlockMappingKey
        | Kind::SimpleKeyExpected
        | Kind::InvalidSimpleKey
        | Kind::MappingKeyNotAllowed
        | Kind::ExpectedBlockSequenceEntry
        | Kind::BlockSequenceEntryNotAllowed => {
            "expected a key with a colon, or a dash, aligned with the lines above"
        }
        Kind::MappingValueNotAllowed
        | Kind::InvalidColonPlacement
        | Kind::InvalidMappingValueWhitespace
        | Kind::FlowMappingValueAdjacentCollection => {
            "a colon is not allowed here; quote text that contains a colon"
        }
        Kind::ExpectedFlowMappingSeparator => "expected a comma or }",
        Kind::ExpectedFlowSequenceSeparator => "expected a comma or ]",
        Kind::UnknownQuotedScalarEscape
        | Kind::InvalidQuotedScalarHexEscape
        | Kind::InvalidLowSurrogateHexEscape
        | Kind::InvalidLowSurrogate
        | Kind::MissingLowSurrogate
        | Kind::UnpairedLowSurrogate
        | Kind::InvalidUnicodeEscape => {
            "a quoted string has an invalid escape; double the backslash, or use single quotes"
        }
        Kind::InvalidTrailingSingleQuotedScalar | Kind::InvalidTrailingDoubleQuotedScalar => {
            "text follows a closing quote; escape the quote, or quote the whole string"
        }
        Kind::CommentInterceptedScalar | Kind::CommentNotSeparated => {
            "a comment is not allowed here; put a space before the #, or quote the text"
        }
        Kind::UnsupportedYamlMajorVersion | Kind::YamlVersionTooLong => {
            "this version of YAML is not supported; use YAML 1.2"
        }
        Kind::ExpectedDocumentStart
        | Kind::MissingDocumentEndBeforeDirective
        | Kind::InvalidDocumentEnd => {
            "the document is followed by other text; check the indentation above"
        }
        _ => "invalid syntax; check the indentation, the colons and the quotes",
    };
    message.to_owned()
}
