//! Imports files of traces.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tooltune_rows::text::{DataFormat, RowParser};

use crate::budgets::TRACE_BYTES;
use crate::claude_code;
use crate::codex;
use crate::counts::Counts;
use crate::duplicates::{Duplicates, Relation};
use crate::entries::{Entries, Entry};
use crate::error::TraceError;
use crate::langchain;
use crate::otlp::Spans;
use crate::outcome::{LARGE_OUTCOME, OutcomeRule, Verdict};
use crate::redact::Redactor;
use crate::repair::{add_tools, repair};
use crate::requests::{self, Drops, Requests};
use crate::row;
use crate::source::TraceSource;
use crate::trace::Trace;

/// An entry without messages of a known layout.
const UNKNOWN_ENTRY: &str = "an entry without messages";

/// Options of an import.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// The layout of all files; otherwise the entries reveal it.
    pub source: Option<TraceSource>,
    /// A TOML file with more redaction rules; one with a known name replaces that rule.
    pub rules: Option<PathBuf>,
    /// Names of redaction rules to switch off.
    pub keep: Vec<String>,
    /// Names of redaction rules to switch on.
    pub also: Vec<String>,
    /// A JSON pointer to the outcome in an entry, or in a span with its attributes as an object.
    pub outcome: Option<String>,
    /// The smallest outcome of a row; a trace without one is dropped.
    pub min_outcome: Option<f64>,
    /// Tools for traces without tool definitions; otherwise they are derived from the calls.
    pub tools: Option<Vec<Value>>,
}

/// What an import read, dropped and changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceReport {
    /// Entries of all files: lines, items of an array, or documents.
    pub n_entries: usize,
    /// Conversations in them.
    pub n_conversations: usize,
    /// Rows.
    pub n_rows: usize,
    /// Conversations equal to another one.
    pub n_equal: usize,
    /// Conversations that are the beginning of another one.
    pub n_beginnings: usize,
    /// Entries and conversations without a row, by reason.
    pub dropped: Counts,
    /// Changed conversations, by reason. They include those that are dropped as duplicates.
    pub repaired: Counts,
    /// Parts of entries that are not in a row, by reason.
    pub left_out: Counts,
    /// Replaced strings, by redaction rule. They include those in rows dropped as duplicates.
    pub redacted: Counts,
}

/// Rows in a temporary file.
#[derive(Debug)]
pub struct ImportedTraces {
    /// The counts.
    pub report: TraceReport,
    rows: File,
    /// Length of each row in the file, with its line end.
    lengths: Vec<usize>,
    replaced: HashSet<usize>,
}

impl ImportedTraces {
    /// Writes the rows, one per line.
    ///
    /// # Errors
    ///
    /// - the temporary file cannot be read, or `output` cannot be written
    pub fn write_to(&mut self, output: &mut dyn Write) -> io::Result<()> {
        self.rows.rewind()?;
        let mut rows = BufReader::new(&self.rows);
        for (number, &length) in self.lengths.iter().enumerate() {
            let mut row = (&mut rows).take(length as u64);
            match self.replaced.contains(&number) {
                true => io::copy(&mut row, &mut io::sink())?,
                false => io::copy(&mut row, output)?,
            };
        }
        Ok(())
    }
}

/// Imports files of traces.
///
/// # Errors
///
/// - a file cannot be read, or no entry has a known layout
/// - a redaction rule or an option is invalid
/// - the entries that must be held in memory exceed their limit
/// - the temporary file cannot be written
pub fn import_traces(
    files: &[PathBuf],
    options: &TraceOptions,
) -> Result<ImportedTraces, TraceError> {
    let mut import = Import::new(options)?;
    for file in files {
        import.read(file)?;
    }
    import.finish()
}

/// A session that is read from one file.
enum Session {
    ClaudeCode(claude_code::Session),
    Codex(codex::Session),
    /// A list whose items are entries.
    Langchain(Option<Trace>),
    /// A list of OpenAI's messages whose items are entries.
    Messages(Option<Trace>),
}

struct Import<'o> {
    options: &'o TraceOptions,
    outcome: OutcomeRule,
    redactor: Redactor,
    parser: RowParser,
    report: TraceReport,
    first_unknown: Option<String>,
    n_known: usize,
    spans: Spans,
    requests: Requests,
    duplicates: Duplicates,
    rows: BufWriter<File>,
    lengths: Vec<usize>,
}

impl<'o> Import<'o> {
    fn new(options: &'o TraceOptions) -> Result<Self, TraceError> {
        let redactor = Redactor::new(options.rules.as_deref(), &options.keep, &options.also)?;
        let rows = tempfile::tempfile().map_err(TraceError::Temporary)?;
        Ok(Self {
            options,
            outcome: OutcomeRule::new(options.outcome.as_deref(), options.min_outcome)?,
            redactor,
            parser: RowParser::new(DataFormat::Messages),
            report: TraceReport::default(),
            first_unknown: None,
            n_known: 0,
            spans: Spans::default(),
            requests: Requests::default(),
            duplicates: Duplicates::default(),
            rows: BufWriter::new(rows),
            lengths: Vec::new(),
        })
    }

    fn read(&mut self, file: &Path) -> Result<(), TraceError> {
        let mut entries = Entries::open(file)?;
        let mut session = None;
        let mut n_bytes = 0;
        while let Some(entry) = entries.next()? {
            self.report.n_entries += 1;
            let Entry {
                location,
                n_bytes: length,
                value,
            } = entry;
            let value = match value {
                Ok(value) => value,
                Err(reason) => {
                    self.report.dropped.add(reason, &location);
                    continue;
                }
            };
            let source = self
                .options
                .source
                .or_else(|| TraceSource::recognise(&value));
            let Some(source) = source else {
                self.report.left_out.add(UNKNOWN_ENTRY, &location);
                self.first_unknown.get_or_insert(location);
                continue;
            };
            self.n_known += 1;
            self.add(source, &value, &location, &mut session)?;
            n_bytes += if session.is_some() { length } else { 0 };
            if n_bytes > TRACE_BYTES {
                return Err(TraceError::TooMuch { location });
            }
        }
        self.end_session(session)
    }

    fn add(
        &mut self,
        source: TraceSource,
        entry: &Value,
        location: &str,
        session: &mut Option<Session>,
    ) -> Result<(), TraceError> {
        match source {
            TraceSource::Otlp => {
                let left_out = &mut self.report.left_out;
                return self.spans.add(entry, location, &self.outcome, left_out);
            }
            TraceSource::Requests if !requests::is_message(entry) => {
                let mut drops = Drops {
                    dropped: &mut self.report.dropped,
                    left_out: &mut self.report.left_out,
                };
                let traces = self
                    .requests
                    .add(entry, location, &self.outcome, &mut drops)?;
                for trace in traces {
                    self.emit(trace)?;
                }
                return Ok(());
            }
            TraceSource::Langchain => {
                if let Some(mut trace) = langchain::conversation(entry, location) {
                    trace.outcome = self.outcome.of_entry(entry);
                    return self.emit(trace);
                }
            }
            _ => {}
        }
        let is_same = matches!(
            (&session, source),
            (Some(Session::ClaudeCode(_)), TraceSource::ClaudeCode)
                | (Some(Session::Codex(_)), TraceSource::Codex)
                | (Some(Session::Langchain(_)), TraceSource::Langchain)
                | (Some(Session::Messages(_)), TraceSource::Requests)
        );
        if !is_same {
            self.end_session(session.take())?;
        }
        let outcome = self.outcome.of_entry(entry);
        let left_out = &mut self.report.left_out;
        let session = session.get_or_insert_with(|| match source {
            TraceSource::ClaudeCode => Session::ClaudeCode(claude_code::Session::default()),
            TraceSource::Codex => Session::Codex(codex::Session::default()),
            TraceSource::Langchain => Session::Langchain(None),
            _ => Session::Messages(None),
        });
        match session {
            Session::ClaudeCode(session) => {
                if !session.add(entry, location) {
                    left_out.add(UNKNOWN_ENTRY, location);
                }
                if let Some(outcome) = outcome {
                    session.set_outcome(outcome);
                }
            }
            Session::Codex(session) => {
                let ended = session.add(entry, location, left_out);
                if let Some(outcome) = outcome {
                    session.set_outcome(outcome);
                }
                if let Some(trace) = ended {
                    self.emit(trace)?;
                }
            }
            Session::Langchain(trace) | Session::Messages(trace) => {
                let turns = match source {
                    TraceSource::Langchain => langchain::turns(entry),
                    _ => crate::chat::turns(entry),
                };
                let trace = trace.get_or_insert_with(|| Trace::new(source, location));
                location.clone_into(&mut trace.location);
                trace.outcome = outcome.or(trace.outcome);
                trace.push(turns);
            }
        }
        Ok(())
    }

    fn end_session(&mut self, session: Option<Session>) -> Result<(), TraceError> {
        match session {
            None => Ok(()),
            Some(Session::ClaudeCode(session)) => {
                let traces = session.finish(&mut self.report.left_out);
                for trace in traces {
                    self.emit(trace)?;
                }
                Ok(())
            }
            Some(Session::Codex(mut session)) => session.end().map_or(Ok(()), |one| self.emit(one)),
            Some(Session::Langchain(trace) | Session::Messages(trace)) => {
                trace.map_or(Ok(()), |one| self.emit(one))
            }
        }
    }

    /// Repairs, redacts and checks a conversation, and writes its row.
    fn emit(&mut self, trace: Trace) -> Result<(), TraceError> {
        self.report.n_conversations += 1;
        let location = trace.location.clone();
        let repaired = match repair(trace) {
            Ok(repaired) => repaired,
            Err(reason) => {
                self.report.dropped.add(reason, &location);
                return Ok(());
            }
        };
        let mut trace = repaired.trace;
        for repair in repaired.repairs {
            self.report.repaired.add(repair, &location);
        }
        let has_new_arguments = self.redactor.redact(&mut trace, &mut self.report.redacted);
        let hash = match self.duplicates.add(&trace) {
            Relation::New(hash) => hash,
            Relation::Equal => {
                self.report.n_equal += 1;
                return Ok(());
            }
            Relation::Beginning => {
                self.report.n_beginnings += 1;
                return Ok(());
            }
        };
        if self.duplicates.is_full() {
            return Err(TraceError::TooManyAnswers { location });
        }
        let weight = match self.outcome.verdict(trace.outcome) {
            Verdict::Keep(weight) => weight,
            Verdict::KeepUnweighted => {
                self.report.repaired.add(LARGE_OUTCOME, &location);
                None
            }
            Verdict::Drop(reason) => {
                self.report.dropped.add(reason, &location);
                return Ok(());
            }
        };
        if let Some(repair) = add_tools(&mut trace, self.options.tools.as_deref()) {
            self.report.repaired.add(repair, &location);
        }
        let mut line = row::line(&trace, weight);
        let record = Ok((location.clone(), line.clone().into_bytes()));
        if let Err(error) = self.parser.parse(record) {
            let error = error.to_string();
            let error = error
                .strip_prefix(&format!("{location}: "))
                .unwrap_or(&error);
            let why = match has_new_arguments {
                true => "training refuses the redacted row",
                false => "training refuses the row",
            };
            self.report.refused(why, error, &location);
            return Ok(());
        }
        line.push('\n');
        self.duplicates.keep(hash, self.lengths.len());
        self.lengths.push(line.len());
        self.rows
            .write_all(line.as_bytes())
            .map_err(TraceError::Temporary)
    }

    fn finish(mut self) -> Result<ImportedTraces, TraceError> {
        let mut drops = Drops {
            dropped: &mut self.report.dropped,
            left_out: &mut self.report.left_out,
        };
        for trace in std::mem::take(&mut self.requests).finish(&mut drops) {
            self.emit(trace)?;
        }
        let traces = std::mem::take(&mut self.spans).finish(&mut self.report.left_out);
        for trace in traces {
            self.emit(trace)?;
        }
        if self.n_known == 0 && self.report.dropped.total() == 0 {
            return Err(TraceError::NothingRecognised {
                first: self.first_unknown,
            });
        }
        let replaced = self.duplicates.replaced();
        self.report.n_beginnings += replaced.len();
        self.report.n_rows = self.lengths.len() - replaced.len();
        let rows = self.rows.into_inner();
        Ok(ImportedTraces {
            report: self.report,
            rows: rows.map_err(|error| TraceError::Temporary(error.into_error()))?,
            lengths: self.lengths,
            replaced,
        })
    }
}

impl TraceReport {
    /// Counts a row that the row reader refuses, under its whole message for the first of a kind.
    fn refused(&mut self, why: &'static str, error: &str, location: &str) {
        let known = self
            .dropped
            .iter()
            .find(|(reason, _)| reason.starts_with(&format!("{why}: ")));
        let reason = match known {
            Some((reason, _)) => reason.to_owned(),
            None => format!("{why}: {}", tooltune_json::faults::excerpt(error)),
        };
        self.dropped.add(reason, location);
    }
}
