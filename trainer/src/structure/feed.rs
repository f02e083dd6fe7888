//! Rows to prompts beside the work of the model: one thread reads, one asks the first model and
//! prepares, and both are a few rows ahead, so that memory does not grow with the rows.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value;

use super::output::{Earlier, EarlierAnswer};
use super::prepare::{PreparedRow, Preparer};
use super::rows::{BrokenRow, Line, RowSource};
use super::upstream::{Said, Upstream};
use crate::error::Error;

/// Rows that are read ahead.
const ROWS_AHEAD: usize = 16;
/// Rows that are prepared ahead.
const PREPARED_AHEAD: usize = 32;
/// Time without a further row after which those that are there are worked on.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// What limits the tokens of the first model.
const UPSTREAM_LIMIT: &str = "--upstream-max-tokens";
/// Stack of the threads: what the first thread of a program has.
const STACK_BYTES: usize = 8 << 20;

/// What becomes of rows on their way to the model, in their order.
#[derive(Debug)]
pub enum Fed {
    /// A row to be asked.
    Row(Box<PreparedRow>),
    /// A row that the first model gave no text for.
    Unanswered {
        /// The row's own name, or its place.
        id: Value,
        /// Why not.
        reason: String,
    },
    /// A row that cannot be read.
    Broken(BrokenRow),
    /// A row whose answer an earlier process has written.
    Earlier(EarlierAnswer),
    /// The first model's answer, of the row that comes next, was cut at its limit of tokens.
    CutText,
    /// What there is to say at the end.
    Notes(Vec<String>),
    /// There are no further rows, because something failed.
    Failed(Error),
}

/// What feeds the model.
#[derive(Debug)]
pub struct Feed {
    /// The rows.
    pub source: RowSource,
    /// Answers of an earlier process.
    pub earlier: Option<Earlier>,
    /// Whether rows that cannot be read have no answer.
    pub skips_broken: bool,
    /// A first model.
    pub upstream: Option<Upstream>,
    /// What makes prompts.
    pub preparer: Preparer,
}

/// What the reading thread hands on.
enum Read {
    Line(Line),
    Done(Fed),
}

impl Feed {
    /// Begins to read. Where the receiver goes away, the threads end with the next row, or, where
    /// they wait for one on the standard input, with the process.
    ///
    /// # Errors
    ///
    /// The system has no further threads.
    pub fn begin(self) -> Result<Receiver<Fed>, Error> {
        let Self {
            source,
            earlier,
            skips_broken,
            upstream,
            preparer,
        } = self;
        let (to_prepare, read) = sync_channel(ROWS_AHEAD);
        let (to_ask, fed) = sync_channel(PREPARED_AHEAD);
        let mut reading = Reading {
            source,
            earlier,
            skips_broken,
        };
        start("rows", move || {
            // Nobody listens any more.
            let _ = reading.run(&to_prepare);
        })?;
        let mut preparing = Preparing { preparer, upstream };
        start("prompts", move || {
            let _ = preparing.run(&read, &to_ask);
        })?;
        Ok(fed)
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES);
    let started = thread.spawn(work);
    started.map(drop).map_err(|error| {
        Error::Usage(format!(
            "no thread can be started to read rows: {error}; raise the limit of processes"
        ))
    })
}

struct Reading {
    source: RowSource,
    earlier: Option<Earlier>,
    skips_broken: bool,
}

impl Reading {
    /// Hands on what is read; none where nobody takes it any more.
    fn run(&mut self, to: &SyncSender<Read>) -> Option<()> {
        loop {
            let next = match self.source.next_line() {
                Ok(Some(line)) => self.line(line),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            match next {
                Ok(read) => to.send(read).ok()?,
                Err(error) => return to.send(Read::Done(Fed::Failed(error))).ok(),
            }
        }
        if let Some(earlier) = self.earlier.take().filter(|earlier| !earlier.is_empty()) {
            let beyond = earlier.beyond_the_rows();
            return to.send(Read::Done(Fed::Failed(beyond))).ok();
        }
        let notes = self.source.unread().into_iter().collect();
        to.send(Read::Done(Fed::Notes(notes))).ok()
    }

    /// The answer that an earlier process has given, or the line itself.
    fn line(&mut self, line: Line) -> Result<Read, Error> {
        let id = match &line {
            Ok(row) => row.id.clone(),
            Err(_) if self.skips_broken => return Ok(Read::Line(line)),
            Err(broken) => Value::from(broken.place.as_str()),
        };
        let earlier = self.earlier.as_mut();
        let answer = earlier.map(|earlier| earlier.take(&id)).transpose()?;
        Ok(match answer.flatten() {
            Some(answer) => Read::Done(Fed::Earlier(answer)),
            None => Read::Line(line),
        })
    }
}

struct Preparing {
    preparer: Preparer,
    upstream: Option<Upstream>,
}

impl Preparing {
    fn run(&mut self, from: &Receiver<Read>, to: &SyncSender<Fed>) -> Result<(), SendError<Fed>> {
        let most = self
            .upstream
            .as_ref()
            .map_or(1, |upstream| upstream.concurrency);
        loop {
            let (read, is_end) = gathered(from, most);
            if !self.hand_on(read, to)? {
                return Ok(());
            }
            if is_end {
                return to.send(Fed::Notes(self.notes()));
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.preparer.lines();
        notes.extend(
            self.upstream
                .iter()
                .flat_map(|first| first.generator.lines(&[UPSTREAM_LIMIT.to_owned()])),
        );
        notes
    }

    /// Prepares some rows, after the first model has answered their prompts; whether the work goes
    /// on.
    fn hand_on(&mut self, read: Vec<Read>, to: &SyncSender<Fed>) -> Result<bool, SendError<Fed>> {
        let mut said = match self.said(&read) {
            Ok(Some(said)) => said.into_iter(),
            Ok(None) => return Ok(false),
            Err(error) => {
                to.send(Fed::Failed(error))?;
                return Ok(false);
            }
        };
        for one in read {
            let mut row = match one {
                Read::Done(fed) => {
                    let goes_on = !matches!(fed, Fed::Failed(_));
                    to.send(fed)?;
                    if goes_on {
                        continue;
                    }
                    return Ok(false);
                }
                Read::Line(Err(broken)) => {
                    to.send(Fed::Broken(broken))?;
                    continue;
                }
                Read::Line(Ok(row)) => row,
            };
            let is_answer = self.upstream.is_some();
            match said.next().filter(|_| is_answer) {
                None => {}
                Some(Said::Nothing(reason)) => {
                    to.send(Fed::Unanswered { id: row.id, reason })?;
                    continue;
                }
                Some(Said::Text { text, is_cut }) => {
                    row.text = text;
                    if is_cut {
                        to.send(Fed::CutText)?;
                    }
                }
            }
            to.send(match self.preparer.prepare(row, is_answer) {
                Ok(row) => Fed::Row(Box::new(row)),
                Err(broken) => Fed::Broken(broken),
            })?;
        }
        Ok(true)
    }

    /// What the first model says to the rows that can be read; nothing without one, and `None` where
    /// the work is given up.
    fn said(&self, read: &[Read]) -> Result<Option<Vec<Said>>, Error> {
        let Some(upstream) = &self.upstream else {
            return Ok(Some(Vec::new()));
        };
        let rows = read.iter().filter_map(|one| match one {
            Read::Line(Ok(row)) => Some(row),
            _ => None,
        });
        match rows.collect::<Vec<_>>().as_slice() {
            [] => Ok(Some(Vec::new())),
            rows => upstream.ask(rows),
        }
    }
}

/// What is there, at least one and at most so many, and whether nothing more comes.
fn gathered<T>(from: &Receiver<T>, most: usize) -> (Vec<T>, bool) {
    let Ok(first) = from.recv() else {
        return (Vec::new(), true);
    };
    let mut all = vec![first];
    while all.len() < most {
        match from.recv_timeout(PATIENCE) {
            Ok(next) => all.push(next),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return (all, true),
        }
    }
    (all, false)
}
