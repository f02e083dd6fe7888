//! Converts rows to prompts while the model generates. One thread reads rows; another one sends
//! requests to the first model and prepares prompts. Both are only a few rows ahead, so memory does
//! not grow with the number of rows.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value;
use tooltune_rows::text::is_blank;

use super::partial::{Earlier, EarlierAnswer};
use super::prepare::{PreparedRow, Preparer};
use super::rows::{BrokenRow, Line, RowSource};
use super::upstream::{Upstream, UpstreamReply};
use crate::error::Error;

/// Rows to read ahead.
const ROWS_AHEAD: usize = 16;
/// Rows to prepare ahead.
const PREPARED_AHEAD: usize = 32;
/// How long to wait for another row before starting with the received ones.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(50);
/// The option that limits the tokens of the first model.
const UPSTREAM_LIMIT: &str = "--upstream-max-tokens";
/// Stack size of the threads: the default size of a main thread.
const STACK_BYTES: usize = 8 << 20;

/// An item for the model, in row order.
#[derive(Debug)]
pub enum FeedItem {
    /// A row ready for the model.
    Row(Box<PreparedRow>),
    /// A row for which the first model returned no text.
    Unanswered {
        /// Id of the row, or its location.
        id: Value,
        /// The reason.
        reason: String,
    },
    /// A row whose text, or prompt for the first model, is blank.
    Blank {
        /// Id of the row, or its location.
        id: Value,
    },
    /// A row that cannot be read.
    Broken(BrokenRow),
    /// A row that an earlier process answered.
    Earlier(EarlierAnswer),
    /// The first model's text for the next row was cut off at its token limit.
    CutText,
    /// Notes for the final report.
    Notes(Vec<String>),
    /// The feed ended with an error.
    Failed(Error),
}

/// Reads and prepares rows for the model.
#[derive(Debug)]
pub struct Feed {
    /// The rows.
    pub source: RowSource,
    /// The answers of an earlier process.
    pub earlier: Option<Earlier>,
    /// Whether to skip rows that cannot be read instead of answering them.
    pub skips_broken: bool,
    /// The first model, if there is one.
    pub upstream: Option<Upstream>,
    /// Builds prompts.
    pub preparer: Preparer,
}

/// An item that the reading thread sends.
enum ReadItem {
    Line(Line),
    Done(FeedItem),
}

impl Feed {
    /// Starts the threads. They end at the next row after the receiver is dropped. A thread that
    /// waits for standard input ends with the process.
    ///
    /// # Errors
    ///
    /// The system cannot start more threads.
    pub fn start(self) -> Result<Receiver<FeedItem>, Error> {
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
            next_row: 0,
        };
        start("rows", move || {
            // The receiver was dropped.
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
            "cannot start a thread to read rows: {error}; raise the process limit (ulimit -u)"
        ))
    })
}

struct Reading {
    source: RowSource,
    earlier: Option<Earlier>,
    skips_broken: bool,
    /// Number of the next row.
    next_row: usize,
}

impl Reading {
    /// Sends the rows. Returns `None` when the receiver was dropped.
    fn run(&mut self, to: &SyncSender<ReadItem>) -> Option<()> {
        loop {
            let next = match self.source.next_line() {
                Ok(Some(line)) => self.item_of(line),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            match next {
                Ok(read) => to.send(read).ok()?,
                Err(error) => return to.send(ReadItem::Done(FeedItem::Failed(error))).ok(),
            }
        }
        if let Some(earlier) = self.earlier.take().filter(|earlier| !earlier.is_empty()) {
            let beyond = earlier.too_many_answers();
            return to.send(ReadItem::Done(FeedItem::Failed(beyond))).ok();
        }
        let notes = self.source.unused_fields().into_iter().collect();
        to.send(ReadItem::Done(FeedItem::Notes(notes))).ok()
    }

    /// Converts a line to the answer of an earlier process, or to a new row.
    fn item_of(&mut self, line: Line) -> Result<ReadItem, Error> {
        let row = self.next_row;
        self.next_row += 1;
        let id = match &line {
            Ok(row) => row.id.clone(),
            Err(_) if self.skips_broken => return Ok(ReadItem::Line(line)),
            Err(broken) => Value::from(broken.place.as_str()),
        };
        let earlier = self.earlier.as_mut();
        let answer = earlier.map(|earlier| earlier.take(row, &id)).transpose()?;
        Ok(match answer.flatten() {
            Some(answer) => ReadItem::Done(FeedItem::Earlier(answer)),
            None if line.as_ref().is_ok_and(|row| is_blank(&row.text)) => {
                ReadItem::Done(FeedItem::Blank { id })
            }
            None => ReadItem::Line(line),
        })
    }
}

struct Preparing {
    preparer: Preparer,
    upstream: Option<Upstream>,
}

impl Preparing {
    #[expect(
        clippy::result_large_err,
        reason = "the channel returns the value that it could not send"
    )]
    fn run(
        &mut self,
        from: &Receiver<ReadItem>,
        to: &SyncSender<FeedItem>,
    ) -> Result<(), SendError<FeedItem>> {
        let max_items = self
            .upstream
            .as_ref()
            .map_or(1, |upstream| upstream.concurrency);
        loop {
            let (read, is_end) = receive_up_to(from, max_items);
            if !self.send_prepared(read, to)? {
                return Ok(());
            }
            if is_end {
                return to.send(FeedItem::Notes(self.notes()));
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

    /// Prepares rows after the first model has answered their prompts. Returns whether to continue.
    #[expect(
        clippy::result_large_err,
        reason = "the channel returns the value that it could not send"
    )]
    fn send_prepared(
        &mut self,
        read: Vec<ReadItem>,
        to: &SyncSender<FeedItem>,
    ) -> Result<bool, SendError<FeedItem>> {
        let mut replies = match self.upstream_replies(&read) {
            Ok(Some(received)) => received.into_iter(),
            Ok(None) => return Ok(false),
            Err(error) => {
                to.send(FeedItem::Failed(error))?;
                return Ok(false);
            }
        };
        for one in read {
            let mut row = match one {
                ReadItem::Done(fed) => {
                    let continues = !matches!(fed, FeedItem::Failed(_));
                    to.send(fed)?;
                    if continues {
                        continue;
                    }
                    return Ok(false);
                }
                ReadItem::Line(Err(broken)) => {
                    to.send(FeedItem::Broken(broken))?;
                    continue;
                }
                ReadItem::Line(Ok(row)) => row,
            };
            let is_answer = self.upstream.is_some();
            match replies.next().filter(|_| is_answer) {
                None => {}
                Some(UpstreamReply::Nothing(reason)) => {
                    to.send(FeedItem::Unanswered { id: row.id, reason })?;
                    continue;
                }
                Some(UpstreamReply::Text { text, .. }) if is_blank(&text) => {
                    let reason = "the first model returned a blank text".to_owned();
                    to.send(FeedItem::Unanswered { id: row.id, reason })?;
                    continue;
                }
                Some(UpstreamReply::Text { text, is_cut }) => {
                    row.text = text;
                    if is_cut {
                        to.send(FeedItem::CutText)?;
                    }
                }
            }
            to.send(match self.preparer.prepare(row, is_answer) {
                Ok(row) => FeedItem::Row(Box::new(row)),
                Err(broken) => FeedItem::Broken(broken),
            })?;
        }
        Ok(true)
    }

    /// The replies of the first model for the readable rows; empty without a first model. Returns
    /// `None` if the work was stopped.
    fn upstream_replies(&self, read: &[ReadItem]) -> Result<Option<Vec<UpstreamReply>>, Error> {
        let Some(upstream) = &self.upstream else {
            return Ok(Some(Vec::new()));
        };
        let rows = read.iter().filter_map(|one| match one {
            ReadItem::Line(Ok(row)) => Some(row),
            _ => None,
        });
        match rows.collect::<Vec<_>>().as_slice() {
            [] => Ok(Some(Vec::new())),
            rows => upstream.ask(rows),
        }
    }
}

/// Receives at least one and at most `max_items` items. Also returns whether the channel is closed.
fn receive_up_to<T>(from: &Receiver<T>, max_items: usize) -> (Vec<T>, bool) {
    let Ok(first) = from.recv() else {
        return (Vec::new(), true);
    };
    let mut all = vec![first];
    while all.len() < max_items {
        match from.recv_timeout(MAX_WAIT) {
            Ok(next) => all.push(next),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return (all, true),
        }
    }
    (all, false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::rows::TextRow;
    use super::*;

    #[test]
    fn blank_text_is_not_sent_to_the_model() {
        let row = |text: &str| TextRow {
            id: json!("a"),
            place: "texts.jsonl:1".to_owned(),
            text: text.to_owned(),
            json_schema: json!({}),
        };
        let mut reading = Reading {
            source: RowSource::single_row(row("one")),
            earlier: None,
            skips_broken: false,
            next_row: 0,
        };
        for blank in ["", " \n\t", "\u{200b}\u{feff}"] {
            let read = reading.item_of(Ok(row(blank))).expect("a row");
            assert!(
                matches!(&read, ReadItem::Done(FeedItem::Blank { id }) if *id == json!("a")),
                "{blank:?}"
            );
        }
        let read = reading.item_of(Ok(row("\u{200b}x"))).expect("a row");
        assert!(matches!(read, ReadItem::Line(Ok(_))));
    }
}
