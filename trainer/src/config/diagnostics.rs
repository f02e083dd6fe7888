//! Mistakes in a config, collected and shown together, each with its line.
//!
//! A [`ConfigError`] owns the texts it speaks of, so it can be carried anywhere and still show the
//! line that is wrong. `Display` gives one compact line per mistake; [`ConfigError::render`] draws
//! the source line and marks the place.

use std::fmt;
use std::ops::Range;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
};
use regex::Regex;

/// Source lines above this many bytes are not drawn.
const LONGEST_LINE: usize = 240;

/// At most this many mistakes are drawn; a file with more is no config.
const MOST_DRAWN: usize = 50;

/// A text that settings were read from: a file, or one `--set`.
#[derive(Debug, Clone)]
pub struct Source {
    /// What messages call it: the path as given, or `--set`.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A range of bytes in one of the sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceSpan {
    /// Index into the sources.
    pub source: usize,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
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
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub help: String,
    /// Where it is wrong; `None` when something is missing altogether.
    pub place: Option<SourceSpan>,
}

/// Whether rendered errors carry terminal colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// For a terminal.
    On,
    /// For files and pipes.
    Off,
}

/// All mistakes of a config; never empty.
#[derive(Debug, Clone)]
pub struct ConfigError {
    sources: Vec<Source>,
    problems: Vec<Problem>,
}

impl ConfigError {
    /// Orders the problems by their place; those of the file come before those of `--set`.
    pub(crate) fn new(sources: Vec<Source>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| {
            problem
                .place
                .map_or((0, usize::MAX), |place| (place.source, place.start))
        });
        Self { sources, problems }
    }

    /// The mistakes in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// `file:line:column` of a problem; the name of the file alone when the place is unknown.
    pub fn location(&self, problem: &Problem) -> String {
        location(&self.sources, problem.place)
    }

    /// All mistakes with their source lines, for the terminal.
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
            let drawn = drawn(problem, &self.sources);
            // Writing to a string fails only if `Display` of our own text fails, which it does not.
            if handler.render_report(&mut text, drawn.as_ref()).is_err() {
                text.push_str(&format!(
                    "{}: {}\n",
                    self.location(problem),
                    problem.message
                ));
            }
            text.push('\n');
        }
        text.push_str(&self.summary());
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
                format!("{count} mistakes in {name}, of which the first {MOST_DRAWN} are shown")
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

/// `file:line:column`, both counted from 1, the column in characters.
pub(crate) fn location(sources: &[Source], place: Option<SourceSpan>) -> String {
    let source = place.map_or(0, |place| place.source);
    let Some(Source { name, text }) = sources.get(source) else {
        return "config".to_owned();
    };
    let Some(place) = place else {
        return name.clone();
    };
    let before = text.get(..place.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("{name}:{line}:{column}")
}

fn line_length(text: &str, place: SourceSpan) -> usize {
    let before = text.get(..place.start).unwrap_or(text);
    let after = text.get(place.start..).unwrap_or("");
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    before.len() - start + after.find('\n').unwrap_or(after.len())
}

/// A source without what may be a secret, every character in its place: the user and the query
/// string of an address, and a key that stands where the name of a variable should.
fn masked(text: &str) -> String {
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
    let found = address.captures_iter(text).chain(key.captures_iter(text));
    for secret in found.filter_map(|found| found.get(1)) {
        // A byte of its own for each, so that the places of mistakes stay.
        bytes[secret.range()].fill(b'*');
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// A problem in the shape that miette draws.
fn drawn(problem: &Problem, sources: &[Source]) -> Report {
    let place = problem.place;
    let source = place.and_then(|place| {
        let source = sources.get(place.source)?;
        (line_length(&source.text, place) <= LONGEST_LINE).then_some(source)
    });
    let message = match source {
        Some(_) => problem.message.clone(),
        None => format!("{}: {}", location(sources, place), problem.message),
    };
    let label = place
        .map(|place| LabeledSpan::underline((place.start, place.end.saturating_sub(place.start))));
    let diagnostic = MietteDiagnostic::new(message)
        .with_help(problem.help.as_str())
        .with_labels(label);
    match source {
        Some(source) => Report::new(diagnostic)
            .with_source_code(NamedSource::new(&source.name, masked(&source.text))),
        None => Report::new(diagnostic),
    }
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn a_drawn_source_has_no_secrets() {
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
            let shown = masked(text);
            assert_eq!(shown, expected);
            assert!(!shown.contains("hunter2") && shown.len() == text.len());
        }
    }
}
