//! Texts to JSON that satisfies their schemas, as a stream.
//!
//! Rows come from a thread that is a few ahead; those that are there are written together,
//! each held to its schema, and answers go out in the order of the rows as soon as they can. A schema
//! that cannot be enforced leaves its text free; it is validated, and asked for once more where it is
//! not valid. One that does not end is written once more with short lists and texts. What a row
//! becomes does not depend on those beside it.

mod answer;
mod counts;
mod feed;
mod output;
mod prepare;
mod rows;
mod upstream;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tooltune_pipelines::AGAIN_PROMPT;
use tooltune_rows::text::{AskedPrompt, DataError, TextTemplate};

pub use answer::{Answer, Violation};
pub use counts::Counts;
pub use feed::{Fed, Feed};
pub use output::{Answers, Earlier};
pub use prepare::Preparer;
pub use rows::{RowOptions, RowSource, TextRow};
pub use upstream::Upstream;

use self::answer::{Judged, judged, short_limits};
use self::feed::PATIENCE;
use self::prepare::PreparedRow;
use crate::error::Error;
use crate::eval::generate::{FinishReason, GenerationProgress, Work};
use crate::eval::generator::{
    Completion, Constrainer, GenerationRequest, LocalGenerator, PromptText, TextConstraint,
};

/// Batches that are asked together: what is left of the last one, which is not full, is a small part
/// of the work.
const BATCHES: usize = 16;
/// Bytes of prompts that are asked together at most, so that long ones do not fill the memory.
const WINDOW_BYTES: usize = 32 << 20;
/// Time after which signals are looked at while no row comes.
const TICK: Duration = Duration::from_millis(100);

/// Is shown how far the work is; whether it goes on.
type Watch<'a> = &'a mut dyn FnMut(GenerationProgress) -> bool;

/// The model and how it is asked.
#[derive(Debug)]
pub struct Structuring<'a> {
    local: LocalGenerator<'a>,
    /// Enforces schemas, unless texts are free.
    constrainer: Option<Arc<Constrainer>>,
    /// Whether rows that cannot be read have no answer.
    skips_broken: bool,
    again: TextTemplate,
}

/// A row that is under way.
struct Job {
    number: usize,
    row: PreparedRow,
    attempt: Attempt,
    /// Why its text is not held to its schema, though it was to be.
    unenforced: Option<String>,
}

/// How a row is asked.
enum Attempt {
    /// Held to its schema.
    Held,
    /// Held to its schema with short lists and texts, because it did not end.
    Short,
    /// Freely.
    Free,
    /// Freely, once more, by this prompt.
    Again(String),
}

/// What a text makes of its row.
enum Next {
    Answer(Box<Answer>),
    Attempt(Attempt),
}

/// The rows so far.
struct Stream<'s> {
    fed: &'s Receiver<Fed>,
    answers: &'s mut Answers,
    counts: Counts,
    jobs: Vec<Job>,
    /// The number of the next row.
    next: usize,
    is_end: bool,
    failure: Option<Error>,
}

impl<'a> Structuring<'a> {
    /// With a model, and what enforces schemas with it; without, texts are free.
    ///
    /// # Errors
    ///
    /// Never: the prompt that asks once more is built in.
    pub fn new(
        local: LocalGenerator<'a>,
        constrainer: Option<Arc<Constrainer>>,
        skips_broken: bool,
    ) -> Result<Self, Error> {
        let prompt = AGAIN_PROMPT;
        Ok(Self {
            local,
            constrainer,
            skips_broken,
            again: TextTemplate::new(prompt.source, prompt.name, prompt.variables)?,
        })
    }

    /// Answers all rows, in their order; `None` if `watch` ended the work, or nobody reads the
    /// answers any more.
    ///
    /// # Errors
    ///
    /// Rows or a first model that fail, answers that cannot be written, or logits that are not
    /// finite. Answers to the rows before are written then.
    pub fn run(
        &self,
        fed: &Receiver<Fed>,
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
        let most = BATCHES * self.local.options.batch_size.max(1);
        let begun = Instant::now();
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
            stream.counts.seconds = begun.elapsed().as_secs_f64();
        }
        match stream.failure {
            Some(error) => Err(error),
            None => Ok(Some(stream.counts)),
        }
    }

    /// Takes the rows that are there, at least one unless none is left; whether the work goes on.
    fn gather(
        &self,
        stream: &mut Stream<'_>,
        most: usize,
        watch: Watch<'_>,
    ) -> Result<bool, Error> {
        let mut n_bytes = 0;
        while !stream.is_end && stream.jobs.len() < most && n_bytes < WINDOW_BYTES {
            let is_idle = stream.jobs.is_empty();
            let patience = if is_idle { TICK } else { PATIENCE };
            match stream.fed.recv_timeout(patience) {
                Ok(fed) => {
                    if let Fed::Row(row) = &fed {
                        n_bytes += row.prompt.len();
                    }
                    self.take(stream, fed)?;
                }
                Err(RecvTimeoutError::Disconnected) => stream.is_end = true,
                Err(RecvTimeoutError::Timeout) if !is_idle => break,
                Err(RecvTimeoutError::Timeout) => {
                    if !watch(stream.progress(0, 0)) {
                        return Ok(false);
                    }
                }
            }
            if stream.answers.is_gone() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&self, stream: &mut Stream<'_>, fed: Fed) -> Result<(), Error> {
        let answer = match fed {
            Fed::CutText => {
                stream.counts.n_cut_texts += 1;
                return Ok(());
            }
            Fed::Notes(notes) => {
                stream.counts.notes.extend(notes);
                return Ok(());
            }
            Fed::Failed(error) => {
                stream.failure = Some(error);
                stream.is_end = true;
                return Ok(());
            }
            Fed::Earlier(answer) => {
                stream.counts.add_earlier(&answer);
                // It stands in the file already.
                None
            }
            Fed::Row(row) => {
                stream.jobs.push(Job::new(stream.next, *row));
                stream.next += 1;
                return Ok(());
            }
            Fed::Broken(broken) => {
                stream.counts.add_broken(&broken.reason);
                let id = Value::from(broken.place);
                (!self.skips_broken).then(|| Answer::broken(id, broken.reason))
            }
            Fed::Unanswered { id, reason } => {
                stream.counts.add_unanswered(&reason);
                Some(Answer::unanswered(id, reason))
            }
        };
        let number = stream.next;
        stream.next += 1;
        stream.answers.put(number, answer.as_ref())
    }

    /// Writes a text for each row that is under way; those that are asked again stay. Whether the work
    /// goes on.
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
            let goes_on = !stream.answers.is_gone();
            watch(stream.progress(jobs.len(), progress.n_tokens)) && goes_on
        };
        let mut finished = |place: usize, written: &Completion| {
            let mut stream = stream_cell.borrow_mut();
            let job = &jobs[place];
            stream.counts.n_tokens += written.n_tokens;
            match self.next(job, written) {
                Next::Attempt(attempt) => {
                    stream.counts.n_again += usize::from(matches!(attempt, Attempt::Again(_)));
                    next[place] = Some(attempt);
                    Ok(())
                }
                Next::Answer(answer) => {
                    stream.counts.add(&answer, &job.row.place);
                    stream.answers.put(job.number, Some(&answer))
                }
            }
        };
        let written = self
            .local
            .write(&requests, &places, &mut watch, &mut finished)?;
        let left = jobs.into_iter().zip(next);
        stream.jobs = left
            .filter_map(|(job, attempt)| Some(job.with(attempt?)))
            .collect();
        Ok(written.is_some() && !stream.answers.is_gone())
    }

    /// The answer that a text is, or how its row is asked next.
    fn next(&self, job: &Job, written: &Completion) -> Next {
        let row = &job.row;
        let (flat, validator) = (row.flat.as_ref(), &row.schema.validator);
        let judged = judged(written, flat, validator, self.local.options);
        let is = |reason: FinishReason| written.finish_reason == reason.name();
        match &job.attempt {
            Attempt::Held if is(FinishReason::Constraint) => return Next::Attempt(Attempt::Free),
            Attempt::Held
                if judged.is_cut_by_tokens()
                    && row.schema.is_shortened(self.constrainer.as_deref()) =>
            {
                return Next::Attempt(Attempt::Short);
            }
            // A longer prompt has no more room.
            Attempt::Free if !judged.violations.is_empty() && !is(FinishReason::Context) => {
                if let Ok(prompt) = self.asking_again(row, &judged) {
                    return Next::Attempt(Attempt::Again(prompt));
                }
            }
            _ => {}
        }
        Next::Answer(Box::new(Answer {
            id: row.id.clone(),
            valid: judged.violations.is_empty(),
            json: judged.json,
            violations: judged.violations,
            written: judged.written,
            text: row.text.clone(),
            unenforced: job.unenforced.clone(),
            shortened: matches!(job.attempt, Attempt::Short).then(|| {
                format!(
                    "{}, because the first text did not end within eval.max_new_tokens",
                    short_limits()
                )
            }),
            error: None,
        }))
    }

    /// The prompt of a row with what is wrong with its answer.
    fn asking_again(&self, row: &PreparedRow, judged: &Judged) -> Result<String, DataError> {
        let mut conversation = row.conversation.clone();
        if let Some(last) = conversation.messages.last_mut() {
            let prompt = last.content.take().unwrap_or_default();
            let values = [("prompt", prompt.as_str()), ("reason", &judged.reason())];
            last.content = Some(self.again.render(&values)?);
        }
        let base = self.local.base;
        let asked =
            AskedPrompt::of_messages(&row.place, &conversation, &base.template, &base.tokenizer)?;
        Ok(asked.text)
    }
}

impl Job {
    fn new(number: usize, row: PreparedRow) -> Self {
        let (attempt, unenforced) = match &row.schema.constraint {
            Some(Ok(_)) => (Attempt::Held, None),
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

    /// The same row for the next attempt.
    fn with(self, attempt: Attempt) -> Self {
        let met_a_limit = matches!((&self.attempt, &attempt), (Attempt::Held, Attempt::Free));
        let limit = met_a_limit.then(|| "a text met a limit of its constraint".to_owned());
        Self {
            attempt,
            unenforced: self.unenforced.or(limit),
            ..self
        }
    }

    fn prompt(&self) -> &str {
        match &self.attempt {
            Attempt::Again(prompt) => prompt,
            Attempt::Held | Attempt::Short | Attempt::Free => &self.row.prompt,
        }
    }

    fn constraint(&self) -> Option<&TextConstraint> {
        let schema = &self.row.schema;
        match &self.attempt {
            Attempt::Held => schema.constraint.as_ref()?.as_ref().ok(),
            Attempt::Short => schema.short(),
            Attempt::Free | Attempt::Again(_) => None,
        }
    }
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
    /// Of a row that cannot be read.
    fn broken(id: Value, reason: String) -> Self {
        Self {
            error: Some(reason),
            ..Self::without_json(id)
        }
    }

    /// Of a row that the first model gave no text for.
    fn unanswered(id: Value, reason: String) -> Self {
        Self {
            violations: vec![Violation::whole("upstream", reason)],
            ..Self::without_json(id)
        }
    }

    fn without_json(id: Value) -> Self {
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
