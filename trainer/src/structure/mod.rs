//! Converts a stream of texts to JSON that satisfies schemas.
//!
//! A thread reads a few rows ahead. All available rows are generated together, each constrained by
//! its schema. Answers are written in row order, as soon as possible. If a schema cannot be
//! enforced, the completion is unconstrained; it is then validated, and requested once more if it
//! is invalid. The result of a row does not depend on other rows.

mod answer;
mod counts;
mod feed;
mod output;
mod partial;
mod prepare;
mod rows;
mod upstream;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tooltune_pipelines::RETRY_PROMPT;
use tooltune_rows::text::{DataError, TokenizedPrompt};
use tooltune_template::TextTemplate;

pub use answer::{Answer, Violation};
pub use counts::Counts;
pub use feed::{Feed, FeedItem};
pub use output::Answers;
pub use partial::Earlier;
pub use prepare::Preparer;
pub use rows::{RowOptions, RowSource, TextRow};
pub use upstream::Upstream;

use self::answer::{CheckedCompletion, check_completion, short_limits};
use self::feed::MAX_WAIT;
use self::prepare::PreparedRow;
use crate::error::Error;
use crate::eval::generate::{FinishReason, GenerationProgress, Work};
use crate::eval::generator::{
    Completion, GenerationRequest, LocalGenerator, PromptText, TextConstraint,
};
use crate::eval::held::Rewritten;

/// Maximum number of batches generated together. Only the last batch is not full, so little is
/// wasted with 16 batches.
const MAX_BATCHES: usize = 16;
/// Maximum bytes of the prompts that are generated together, to limit memory.
const WINDOW_BYTES: usize = 32 << 20;
/// Interval for checking signals while no row arrives.
const TICK: Duration = Duration::from_millis(100);

/// A callback that receives the progress and returns whether to continue.
type Watch<'a> = &'a mut dyn FnMut(GenerationProgress) -> bool;

/// The model and its options.
#[derive(Debug)]
pub struct Structuring<'a> {
    local: LocalGenerator<'a>,
    /// Whether to skip rows that cannot be read instead of answering them.
    skips_broken: bool,
    retry_template: TextTemplate,
}

/// A row in progress.
struct Job {
    number: usize,
    row: PreparedRow,
    attempt: Attempt,
    /// Why the completion is unconstrained although constraints are on.
    unenforced: Option<String>,
}

/// How a completion is requested.
enum Attempt {
    /// Constrained by the schema.
    Constrained,
    /// Unconstrained.
    Free,
    /// A second, unconstrained attempt with this prompt.
    UnconstrainedRetry(String),
    /// A second, constrained attempt with this prompt, after a violation of a format that no
    /// grammar enforces.
    ConstrainedRetry(String),
}

impl Attempt {
    /// Whether this is a second attempt after a violation.
    fn is_retry(&self) -> bool {
        matches!(
            self,
            Self::UnconstrainedRetry(_) | Self::ConstrainedRetry(_)
        )
    }
}

/// The next step after a completion.
enum Next {
    Answer(Box<Answer>),
    Attempt(Attempt),
}

/// State of the stream.
struct Stream<'s> {
    fed: &'s Receiver<FeedItem>,
    answers: &'s mut Answers,
    counts: Counts,
    jobs: Vec<Job>,
    /// Index of the next row.
    next: usize,
    is_end: bool,
    failure: Option<Error>,
}

impl<'a> Structuring<'a> {
    /// Creates the converter for a model. The constraints are in the prepared rows.
    ///
    /// # Errors
    ///
    /// Does not fail in practice: the prompt for second attempts is built in.
    pub fn new(local: LocalGenerator<'a>, skips_broken: bool) -> Result<Self, Error> {
        let prompt = RETRY_PROMPT;
        Ok(Self {
            local,
            skips_broken,
            retry_template: TextTemplate::new(prompt.source, prompt.name, prompt.variables)?,
        })
    }

    /// Answers all rows in order. Returns `None` if `watch` stopped the work, or the output was
    /// closed.
    ///
    /// # Errors
    ///
    /// Rows or the first model fail, answers cannot be written, or logits are not finite. Answers
    /// to earlier rows are written first.
    pub fn run(
        &self,
        fed: &Receiver<FeedItem>,
        answers: &mut Answers,
        watch: Watch<'_>,
    ) -> Result<Option<Counts>, Error> {
        let mut stream = Stream {
            fed,
            answers,
            counts: Counts::default(),
            jobs: Vec::new(),
            next: 0,
            is_end: false,
            failure: None,
        };
        let most = MAX_BATCHES * self.local.options.batch_size.max(1);
        let started = Instant::now();
        while !(stream.is_end && stream.jobs.is_empty()) {
            if !self.gather(&mut stream, most, watch)? {
                return Ok(None);
            }
            if stream.jobs.is_empty() {
                continue;
            }
            if !self.write(&mut stream, watch)? {
                return Ok(None);
            }
            stream.counts.seconds = started.elapsed().as_secs_f64();
        }
        match stream.failure {
            Some(error) => Err(error),
            None => Ok(Some(stream.counts)),
        }
    }

    /// Waits for at least one row and receives all available ones. Returns whether to continue.
    fn gather(
        &self,
        stream: &mut Stream<'_>,
        most: usize,
        watch: Watch<'_>,
    ) -> Result<bool, Error> {
        let mut n_bytes = 0;
        while !stream.is_end && stream.jobs.len() < most && n_bytes < WINDOW_BYTES {
            let is_idle = stream.jobs.is_empty();
            let patience = if is_idle { TICK } else { MAX_WAIT };
            match stream.fed.recv_timeout(patience) {
                Ok(fed) => {
                    if let FeedItem::Row(row) = &fed {
                        n_bytes += row.prompt.len();
                    }
                    self.handle(stream, fed)?;
                }
                Err(RecvTimeoutError::Disconnected) => stream.is_end = true,
                Err(RecvTimeoutError::Timeout) if !is_idle => break,
                Err(RecvTimeoutError::Timeout) => {
                    if !watch(stream.progress(0, 0)) {
                        return Ok(false);
                    }
                }
            }
            if stream.answers.is_closed() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn handle(&self, stream: &mut Stream<'_>, fed: FeedItem) -> Result<(), Error> {
        let answer = match fed {
            FeedItem::CutText => {
                stream.counts.n_cut_texts += 1;
                return Ok(());
            }
            FeedItem::Notes(notes) => {
                stream.counts.notes.extend(notes);
                return Ok(());
            }
            FeedItem::Failed(error) => {
                stream.failure = Some(error);
                stream.is_end = true;
                return Ok(());
            }
            FeedItem::Earlier(answer) => {
                stream.counts.add_earlier(&answer);
                // The file already has this answer.
                None
            }
            FeedItem::Row(row) => {
                stream.jobs.push(Job::new(stream.next, *row));
                stream.next += 1;
                return Ok(());
            }
            FeedItem::Broken(broken) => {
                stream.counts.add_broken(&broken.reason);
                let id = Value::from(broken.place);
                (!self.skips_broken).then(|| Answer::broken(id, broken.reason))
            }
            FeedItem::Blank { id } => {
                stream.counts.add_blank();
                Some(Answer::blank_text(id))
            }
            FeedItem::Unanswered { id, reason } => {
                stream.counts.add_unanswered(&reason);
                Some(Answer::without_reply(id, reason))
            }
        };
        let number = stream.next;
        stream.next += 1;
        stream.answers.add(number, answer.as_ref())
    }

    /// Generates completions for all rows in progress. Rows that need another attempt stay in
    /// progress. Returns whether to continue.
    fn write(&self, stream: &mut Stream<'_>, watch: Watch<'_>) -> Result<bool, Error> {
        let jobs = std::mem::take(&mut stream.jobs);
        let ids: Vec<String> = jobs.iter().map(|job| job.row.place.clone()).collect();
        let requests = jobs.iter().zip(&ids);
        let requests = requests.map(|(job, id)| GenerationRequest {
            id,
            text: PromptText::Raw(job.prompt()),
            max_new_tokens: self.local.options.max_new_tokens,
            constraint: job.constraint(),
        });
        let requests: Vec<GenerationRequest<'_>> = requests.collect();
        let places: Vec<usize> = jobs.iter().map(|job| job.number).collect();
        let mut next: Vec<Option<Attempt>> = jobs.iter().map(|_| None).collect();
        let stream_cell = std::cell::RefCell::new(&mut *stream);
        let mut watch = |progress: GenerationProgress| {
            let stream = stream_cell.borrow();
            let continues = !stream.answers.is_closed();
            watch(stream.progress(jobs.len(), progress.n_tokens)) && continues
        };
        let mut finished = |idx: usize, completion: &Completion| {
            let mut stream = stream_cell.borrow_mut();
            let job = &jobs[idx];
            stream.counts.n_tokens += completion.n_tokens;
            match self.next(job, completion) {
                Next::Attempt(attempt) => {
                    stream.counts.n_retried += usize::from(attempt.is_retry());
                    next[idx] = Some(attempt);
                    Ok(())
                }
                Next::Answer(answer) => {
                    stream.counts.add(&answer, &job.row.place);
                    stream.answers.add(job.number, Some(&answer))
                }
            }
        };
        let completions = self
            .local
            .write(&requests, &places, &mut watch, &mut finished)?;
        let remaining = jobs.into_iter().zip(next);
        stream.jobs = remaining
            .filter_map(|(job, attempt)| Some(job.with_attempt(attempt?)))
            .collect();
        Ok(completions.is_some() && !stream.answers.is_closed())
    }

    /// Converts a completion to the answer, or to the next attempt.
    fn next(&self, job: &Job, completion: &Completion) -> Next {
        let row = &job.row;
        let (flat, validator) = (row.flat.as_ref(), &row.schema.validator);
        let checked = check_completion(completion, flat, validator, self.local.options);
        let is = |reason: FinishReason| completion.finish_reason == reason.name();
        let met_a_limit = completion.rewritten == Some(Rewritten::Free);
        let is_constrained = matches!(job.attempt, Attempt::Constrained) && !met_a_limit;
        if is_constrained
            && is(FinishReason::Stop)
            && checked.violates_only_formats()
            && let Ok(prompt) = self.retry_prompt(row, &checked)
        {
            return Next::Attempt(Attempt::ConstrainedRetry(prompt));
        }
        let is_free = met_a_limit || matches!(job.attempt, Attempt::Free);
        // If the context is full, the longer prompt of a retry does not fit either.
        if is_free
            && !checked.violations.is_empty()
            && !is(FinishReason::Context)
            && let Ok(prompt) = self.retry_prompt(row, &checked)
        {
            return Next::Attempt(Attempt::UnconstrainedRetry(prompt));
        }
        Next::Answer(Box::new(Answer {
            id: row.id.clone(),
            valid: checked.violations.is_empty(),
            json: checked.json,
            violations: checked.violations,
            written: checked.written,
            text: row.text.clone(),
            unenforced: job
                .unenforced
                .clone()
                .or_else(|| met_a_limit.then(limit_reached)),
            shortened: (completion.rewritten == Some(Rewritten::Short)).then(|| {
                format!(
                    "{}, because the first attempt did not end within eval.max_new_tokens",
                    short_limits()
                )
            }),
            error: None,
        }))
    }

    /// The prompt of a row with the violations of its answer.
    fn retry_prompt(
        &self,
        row: &PreparedRow,
        checked: &CheckedCompletion,
    ) -> Result<String, DataError> {
        let mut conversation = row.conversation.clone();
        if let Some(last) = conversation.messages.last_mut() {
            let prompt = last.content.take().unwrap_or_default();
            let values = [("prompt", prompt.as_str()), ("reason", &checked.reason())];
            last.content = Some(self.retry_template.render(&values)?);
        }
        let base = self.local.base;
        let rendered = TokenizedPrompt::from_messages(
            &row.place,
            &conversation,
            &base.template,
            &base.tokenizer,
        )?;
        Ok(rendered.text)
    }
}

impl Job {
    fn new(number: usize, row: PreparedRow) -> Self {
        let (attempt, unenforced) = match &row.schema.constraint {
            Some(Ok(_)) => (Attempt::Constrained, None),
            Some(Err(reason)) => (Attempt::Free, Some(reason.clone())),
            None => (Attempt::Free, None),
        };
        Self {
            number,
            row,
            attempt,
            unenforced,
        }
    }

    /// The same job with its next attempt.
    fn with_attempt(self, attempt: Attempt) -> Self {
        // After a constraint reached a limit, the local model itself generates again without the
        // constraint.
        let is_freed = matches!(self.attempt, Attempt::Constrained)
            && !matches!(attempt, Attempt::ConstrainedRetry(_));
        let limit = is_freed.then(limit_reached);
        Self {
            attempt,
            unenforced: self.unenforced.or(limit),
            ..self
        }
    }

    fn prompt(&self) -> &str {
        match &self.attempt {
            Attempt::UnconstrainedRetry(prompt) | Attempt::ConstrainedRetry(prompt) => prompt,
            Attempt::Constrained | Attempt::Free => &self.row.prompt,
        }
    }

    fn constraint(&self) -> Option<&TextConstraint> {
        let schema = &self.row.schema;
        match &self.attempt {
            Attempt::Constrained | Attempt::ConstrainedRetry(_) => {
                schema.constraint.as_ref()?.as_ref().ok()
            }
            Attempt::Free | Attempt::UnconstrainedRetry(_) => None,
        }
    }
}

/// The reason if a completion is unconstrained although its schema can be enforced.
fn limit_reached() -> String {
    "a completion reached a limit of its constraint".to_owned()
}

impl Stream<'_> {
    fn progress(&self, n_under_way: usize, n_tokens: usize) -> GenerationProgress {
        GenerationProgress {
            work: Work::Generating,
            n_done: self.counts.n_answers(),
            n_total: self.counts.n_answers() + n_under_way,
            n_tokens,
            waiting: None,
        }
    }
}

impl Answer {
    /// The answer for a row that cannot be read.
    fn broken(id: Value, reason: String) -> Self {
        Self {
            error: Some(reason),
            ..Self::empty(id)
        }
    }

    /// The answer for a blank text, which is not structured because the model would invent content.
    fn blank_text(id: Value) -> Self {
        let message = "the text is blank; give a text";
        Self {
            violations: vec![Violation::for_completion("text", message.to_owned())],
            ..Self::empty(id)
        }
    }

    /// The answer for a row for which the first model returned no text.
    fn without_reply(id: Value, reason: String) -> Self {
        Self {
            violations: vec![Violation::for_completion("upstream", reason)],
            ..Self::empty(id)
        }
    }

    fn empty(id: Value) -> Self {
        Self {
            id,
            json: Value::Null,
            valid: false,
            violations: Vec::new(),
            written: None,
            text: None,
            unenforced: None,
            shortened: None,
            error: None,
        }
    }
}
