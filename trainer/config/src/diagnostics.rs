//! Collects the mistakes in a config and displays them together, each with its line.
//!
//! A [`ConfigError`] owns its source text, so it can be passed anywhere and still display the wrong
//! line. `Display` prints one compact line per mistake; [`ConfigError::render`] prints the source
//! line and marks the position.

use std::fmt;
use std::ops::Range;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
};
use regex::Regex;
use tooltune_json::printable;

/// Longest source line that is displayed, in bytes.
const LONGEST_LINE: usize = 240;

/// Number of mistakes that are displayed; a file with more is not a config.
const MOST_DRAWN: usize = 50;

/// Source of settings: a file, or one `--set`.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name in messages: the path as given, or `--set`.
    pub name: String,
    /// Complete text.
    pub text: String,
}

/// A range of bytes in one of the sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceSpan {
    /// Index of the source.
    pub source: usize,
    /// Start in bytes.
    pub start: usize,
    /// End in bytes, exclusive.
    pub end: usize,
}

impl SourceSpan {
    pub(crate) fn new(source: usize, span: Range<usize>) -> Self {
        Self {
            source,
            start: span.start,
            end: span.end,
        }
    }
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Describes the mistake.
    pub message: String,
    /// How to fix it.
    pub help: String,
    /// Position of the mistake; `None` for a missing setting.
    pub span: Option<SourceSpan>,
}

/// Whether rendered errors contain terminal colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// Colored output for a terminal.
    On,
    /// Plain output for files and pipes.
    Off,
}

/// All mistakes of a config; never empty.
#[derive(Debug, Clone)]
pub struct ConfigError {
    sources: Vec<Source>,
    problems: Vec<Problem>,
}

impl ConfigError {
    /// Sorts the problems by position; mistakes in the file are before mistakes in `--set`.
    pub(crate) fn new(sources: Vec<Source>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| {
            problem
                .span
                .map_or((0, usize::MAX), |span| (span.source, span.start))
        });
        Self { sources, problems }
    }

    /// Mistakes in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// `file:line:column` of a problem, or only the file if the position is unknown.
    pub fn location(&self, problem: &Problem) -> String {
        location(&self.sources, problem.span)
    }

    /// Renders all mistakes with their source lines for the terminal.
    pub fn render(&self, colors: Colors) -> String {
        let theme = match colors {
            Colors::On => GraphicalTheme::unicode(),
            Colors::Off => GraphicalTheme::unicode_nocolor(),
        };
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_width(100)
            .with_links(false);
        let mut text = String::new();
        for problem in self.problems.iter().take(MOST_DRAWN) {
            let drawn = to_report(problem, &self.sources);
            // Writing to a string only fails if `Display` of our own text fails, which it does not.
            if handler.render_report(&mut text, drawn.as_ref()).is_err() {
                let line = format!("{}: {}", self.location(problem), problem.message);
                text.push_str(&printable::line(&line));
                text.push('\n');
            }
            text.push('\n');
        }
        text.push_str(&printable::line(&self.summary()));
        text.push('\n');
        text
    }

    fn summary(&self) -> String {
        let name = self
            .sources
            .first()
            .map_or("config", |source| source.name.as_str());
        match self.problems.len() {
            1 => format!("1 mistake in {name}"),
            count if count > MOST_DRAWN => {
                format!("{count} mistakes in {name}; the first {MOST_DRAWN} are shown")
            }
            count => format!("{count} mistakes in {name}"),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(MOST_DRAWN).enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            let Problem { message, help, .. } = problem;
            write!(
                formatter,
                "{}: {message} (help: {help})",
                self.location(problem)
            )?;
        }
        if self.problems.len() > MOST_DRAWN {
            write!(formatter, "\n{}", self.summary())
        } else {
            Ok(())
        }
    }
}

impl std::error::Error for ConfigError {}

/// `file:line:column`, both counted from 1, with the column in characters.
pub(crate) fn location(sources: &[Source], span: Option<SourceSpan>) -> String {
    let source = span.map_or(0, |span| span.source);
    let Some(Source { name, text }) = sources.get(source) else {
        return "config".to_owned();
    };
    let Some(span) = span else {
        return name.clone();
    };
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("{name}:{line}:{column}")
}

fn line_length(text: &str, span: SourceSpan) -> usize {
    let before = text.get(..span.start).unwrap_or(text);
    let after = text.get(span.start..).unwrap_or("");
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    before.len() - start + after.find('\n').unwrap_or(after.len())
}

/// Whether messages escape a character.
fn is_unprintable(character: char) -> bool {
    let mut buffer = [0; 4];
    let text: &str = character.encode_utf8(&mut buffer);
    printable::line(text) != text
}

/// The source without terminal control characters and possible secrets, with the length unchanged.
/// Possible secrets are the user and the query string of a URL, and an API key in a setting for the
/// name of a variable.
fn mask_secrets(text: &str) -> String {
    let Ok(address) =
        Regex::new(r#"(?:base_url|://)["']?\s*[=:]?\s*["']?([^"'\s]*@|[^"'\s@?#]*[?#][^"'\s]*)"#)
    else {
        return text.to_owned();
    };
    let Ok(key) = Regex::new(r#"api_key_env["']?\s*[=:]\s*["']?([^"'\n]*[^\w"'\s][^"'\n]*)"#)
    else {
        return text.to_owned();
    };
    let mut bytes = text.as_bytes().to_vec();
    let secrets = address.captures_iter(text).chain(key.captures_iter(text));
    for secret in secrets.filter_map(|secrets| secrets.get(1)) {
        // One `*` per byte keeps the positions of mistakes.
        bytes[secret.range()].fill(b'*');
    }
    for (offset, character) in text.char_indices() {
        let is_line_end = text[offset..].starts_with("\r\n") || matches!(character, '\n' | '\t');
        if is_unprintable(character) && !is_line_end {
            bytes[offset..offset + character.len_utf8()].fill(b'?');
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Converts a problem for miette.
fn to_report(problem: &Problem, sources: &[Source]) -> Report {
    let span = problem.span;
    let source = span.and_then(|span| {
        let source = sources.get(span.source)?;
        (line_length(&source.text, span) <= LONGEST_LINE).then_some(source)
    });
    let message = match source {
        Some(_) => problem.message.clone(),
        None => format!("{}: {}", location(sources, span), problem.message),
    };
    let label =
        span.map(|span| LabeledSpan::underline((span.start, span.end.saturating_sub(span.start))));
    let diagnostic = MietteDiagnostic::new(printable::lines(&message))
        .with_help(printable::lines(&problem.help))
        .with_labels(label);
    match source {
        Some(source) => Report::new(diagnostic).with_source_code(NamedSource::new(
            printable::line(&source.name),
            mask_secrets(&source.text),
        )),
        None => Report::new(diagnostic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_file_reaches_the_terminal() {
        let odd = "\u{1b}[8mk\u{9b}31m\u{202e}\u{7}";
        let text = format!("# {odd}\n{odd} = 1\n");
        let start = text.rfind(odd).expect("there");
        let span = SourceSpan::new(0, start..start + odd.len());
        let problem = |span| Problem {
            message: format!("unknown key {odd}"),
            help: format!("remove {odd}"),
            span,
        };
        let name = format!("{odd}.toml");
        let error = ConfigError::new(
            vec![Source { name, text }],
            vec![problem(Some(span)), problem(None)],
        );
        let rendered = error.render(Colors::Off);
        let is_odd = |c: char| is_unprintable(c) && c != '\n';
        assert!(!rendered.contains(is_odd), "{rendered:?}");
        assert!(rendered.contains("unknown key \\u{1b}[8mk"), "{rendered}");
        assert!(rendered.contains("?[8mk??31m???? = 1"), "{rendered}");
    }

    /// Invariant: Messages contain no secret from an address or a key.
    #[test]
    fn a_rendered_source_has_no_secrets() {
        for (text, expected) in [
            (
                "base_url = \"http://a:hunter2@host/v1\"\nx = 1",
                "base_url = \"*****************host/v1\"\nx = 1",
            ),
            (
                "base_url = \"https://host/v1?api-key=hunter2\" # ?",
                "base_url = \"*******************************\" # ?",
            ),
            (
                "  base_url: host?k=hunter2\n",
                "  base_url: **************\n",
            ),
            (
                "api_key_env = \"sk-hunter2\"",
                "api_key_env = \"**********\"",
            ),
            ("api_key_env = \"MY_KEY\"", "api_key_env = \"MY_KEY\""),
            (
                "base_url = \"https://host/v1\"",
                "base_url = \"https://host/v1\"",
            ),
        ] {
            let masked_text = mask_secrets(text);
            assert_eq!(masked_text, expected);
            assert!(!masked_text.contains("hunter2") && masked_text.len() == text.len());
        }
    }
}
