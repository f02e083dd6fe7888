//! Errors that end an import.

use std::io;
use std::path::PathBuf;

use tooltune_json::ReadError;

use crate::budgets::{REDACTION_RULES, TRACE_ANSWERS, TRACE_BYTES};

/// An error in the files or options of an import. Entries that cannot be used are counted instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A file cannot be read.
    #[error("{}{error}", location_prefix(location, error))]
    Read {
        /// The location as `file:line`.
        location: String,
        /// What is wrong.
        error: ReadError,
    },
    /// No entry of any file has a known layout.
    #[error(
        "no entry has a known layout{}; name the layout with --source, or pass files of OTLP spans, \
         logged requests, or sessions of Claude Code, Codex or LangChain",
        first.as_ref().map_or_else(String::new, |first| format!(" (first: {first})"))
    )]
    NothingRecognised {
        /// The location of the first entry.
        first: Option<String>,
    },
    /// The entries that must be held in memory exceed their limit.
    #[error(
        "{location}: the entries that wait for others have more than {TRACE_BYTES} bytes, the limit \
         (TRACE_BYTES in docs/limits.md); import fewer files at once, with all spans of a trace in \
         the same import"
    )]
    TooMuch {
        /// The location of the entry that exceeds it.
        location: String,
    },
    /// There are more distinct answers than the limit.
    #[error(
        "{location}: the conversations have more than {TRACE_ANSWERS} answers, the limit \
         (TRACE_ANSWERS in docs/limits.md); import fewer files at once"
    )]
    TooManyAnswers {
        /// The location of the conversation that exceeds it.
        location: String,
    },
    /// The temporary file for rows cannot be written or read.
    #[error(
        "cannot use a temporary file for the rows: {0}; check the free space of the folder in TMPDIR"
    )]
    Temporary(io::Error),
    /// The file of redaction rules cannot be read.
    #[error("{}: cannot read the redaction rules: {error}; check the path and the file permissions", path.display())]
    RuleFile {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A redaction rule is invalid.
    #[error("{place}: {reason}; {remedy}")]
    Rule {
        /// The file, or the file and the rule.
        place: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// There are too many redaction rules.
    #[error(
        "{n} redaction rules, but the limit is {REDACTION_RULES} (REDACTION_RULES in \
         docs/limits.md); join patterns with `|`"
    )]
    TooManyRules {
        /// The number of rules.
        n: usize,
    },
    /// An option names an unknown rule.
    #[error("{option} {name:?}: no redaction rule has this name; use one of {known}")]
    UnknownRule {
        /// `--keep` or `--also`.
        option: &'static str,
        /// The unknown name.
        name: String,
        /// All names.
        known: String,
    },
    /// A JSON pointer is invalid.
    #[error(
        "--outcome {pointer:?} is not a JSON pointer; begin it with `/`, such as \
         /metadata/score, and write `/` in a key as ~1"
    )]
    Pointer {
        /// The pointer.
        pointer: String,
    },
}

impl TraceError {
    /// Whether the error is about reading or writing a file and not about its content.
    pub fn is_system_error(&self) -> bool {
        match self {
            Self::Read { error, .. } => error.is_system_error(),
            Self::Temporary(_) | Self::RuleFile { .. } => true,
            _ => false,
        }
    }

    /// Whether an option or a file of rules is wrong, and not the traces.
    pub fn is_about_options(&self) -> bool {
        matches!(
            self,
            Self::Rule { .. }
                | Self::TooManyRules { .. }
                | Self::UnknownRule { .. }
                | Self::Pointer { .. }
        )
    }
}

fn location_prefix(location: &str, error: &ReadError) -> String {
    match error.has_file_path() {
        true => String::new(),
        false => format!("{location}: "),
    }
}
