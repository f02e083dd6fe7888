//! How far a long piece of work is: a bar on a terminal, now and then a line elsewhere.
//!
//! One bar is seen at a time: a bar that begins covers those before it until it ends, and other
//! output is written between bars, never into one.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tooltune_hub::Event;
use tooltune_rows::regular_file;

use crate::terminal_table::laid_out;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(20);

/// Time before the first sign of work that is often done by then.
const SHOWN_AFTER: Duration = Duration::from_millis(500);

/// Time between two lines about rows where there is no terminal.
const ROWS_LINE_EVERY: Duration = Duration::from_secs(10);

/// Bytes of files whose lines are counted before they are read, so that a bar knows its end: less
/// than a second's work.
const COUNTED_BYTES: u64 = 1 << 30;

/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

/// Takes the line of a bar away, which ends where the cursor stands.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// The bars on the terminal, of which the last one is seen.
static BARS: Mutex<Vec<ProgressBar>> = Mutex::new(Vec::new());

fn bars() -> MutexGuard<'static, Vec<ProgressBar>> {
    BARS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Columns of the terminal.
pub fn columns() -> usize {
    let size = terminal_size::terminal_size_of(io::stderr());
    let width = size.map(|(width, _)| usize::from(width.0));
    // One without a size says 0.
    width.filter(|width| *width > 0).unwrap_or(COLUMNS)
}

/// A text for `output`: on a terminal in lines that fit, broken between words, and with its Markdown
/// tables laid out; else as it is.
pub fn fitting_text<'a>(text: &'a str, output: &impl IsTerminal) -> Cow<'a, str> {
    if !output.is_terminal() {
        return text.into();
    }
    let options = textwrap::Options::new(columns())
        .subsequent_indent("  ")
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    laid_out(text, columns(), |line| textwrap::fill(line, &options)).into()
}

/// Runs `write`, which writes to the terminal, while no bar is in its way.
pub fn between_bars<T>(write: impl FnOnce() -> T) -> T {
    match bars().last() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Prints a line; where none can be printed, on a full disk for one, the work continues.
pub fn print(line: &str) {
    between_bars(|| {
        let mut stderr = io::stderr();
        let line = fitting_text(line, &stderr);
        let _ = writeln!(stderr, "{line}");
    });
}

/// So many of something, whose name takes an s where there are several.
pub(crate) fn counted(n: usize, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{n} {one}s"),
    }
}

/// Standard error between the bars, for what writes whole lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct BetweenBars;

impl Write for BetweenBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr();
        // Each write is one event, with its end of line.
        let text = String::from_utf8_lossy(bytes);
        let text = fitting_text(&text, &stderr);
        between_bars(|| stderr.write_all(text.as_bytes()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Seconds as `1h02m`, `3m05s` or `7s`.
pub fn duration_text(secs: f64) -> String {
    let secs = secs.max(0.0).round() as u64;
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, secs) => format!("{secs}s"),
        (0, minutes, secs) => format!("{minutes}m{secs:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// A bar on the terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    stays: bool,
}

impl Bar {
    /// Shows a bar over the others, as an indicatif template says; `None` without a terminal.
    pub fn begin(length: u64, template: &str) -> Option<Self> {
        if !io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let mut bars = bars();
        if let Some(covered) = bars.last() {
            covered.set_draw_target(ProgressDrawTarget::hidden());
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bars.push(bar.clone());
        Some(Self { bar, stays: false })
    }

    /// Leaves what it shows on the terminal at its end.
    #[must_use]
    pub fn that_stays(mut self) -> Self {
        self.stays = true;
        self
    }
}

impl std::ops::Deref for Bar {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        match self.stays {
            true => {
                self.bar.abandon();
                // The cursor stands behind what it shows.
                let _ = writeln!(io::stderr());
            }
            false => self.bar.finish_and_clear(),
        }
        let mut bars = bars();
        // A bar that is finished and one that is not differ; those that are not are still shown.
        bars.retain(|bar| !bar.is_finished());
        if let Some(seen) = bars.last() {
            seen.set_draw_target(ProgressDrawTarget::stderr());
            seen.tick();
        }
    }
}

/// The view of work whose amount is known, such as reading weights.
#[derive(Debug)]
pub struct Counted {
    what: &'static str,
    total: usize,
    started: Instant,
    last_line: Instant,
    bar: Option<Bar>,
}

impl Counted {
    /// Begins the view of `total` parts of what is named.
    pub fn begin(what: &'static str, total: usize) -> Self {
        let started = Instant::now();
        Self {
            what,
            total,
            started,
            last_line: started,
            bar: None,
        }
    }

    /// Shows that so many parts are done.
    pub fn done(&mut self, n: usize) {
        if let Some(bar) = &self.bar {
            return bar.set_position(n as u64);
        }
        if self.started.elapsed() < SHOWN_AFTER || n == 0 {
            return;
        }
        let template = format!("{} {{bar:30}} {{pos}}/{{len}}  eta {{eta}}", self.what);
        self.bar = Bar::begin(self.total as u64, &template);
        match &self.bar {
            Some(bar) => bar.set_position(n as u64),
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                print(&format!("{} {n}/{}", self.what, self.total));
            }
            None => {}
        }
    }
}

/// The view of files that come from the hub or go there, which several threads tell of.
#[derive(Debug)]
pub struct Fetching {
    what: String,
    state: Mutex<Transfer>,
}

/// Where a transfer stands.
#[derive(Debug)]
struct Transfer {
    n_files: usize,
    bytes: u64,
    done: u64,
    started: Instant,
    last_line: Instant,
    bar: Option<Bar>,
}

impl Fetching {
    /// Begins the view of what a name means.
    pub fn begin(what: String) -> Self {
        let now = Instant::now();
        let state = Mutex::new(Transfer {
            n_files: 0,
            bytes: 0,
            done: 0,
            started: now,
            last_line: now,
            bar: None,
        });
        Self { what, state }
    }

    /// Shows what has happened.
    pub fn hear(&self, event: Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Begun { bytes, n_files } => {
                state.bytes += bytes;
                state.n_files += n_files;
            }
            Event::Bytes(n) => state.done += n,
            Event::Lost(n) => state.done = state.done.saturating_sub(n),
            Event::Waiting { seconds, why } => {
                let what = &self.what;
                print(&format!("{what}: {why}; the next try is in {seconds} s"));
            }
        }
        let (done, bytes) = (state.done, state.bytes);
        if state.bar.is_none() && bytes > 0 && state.started.elapsed() >= SHOWN_AFTER {
            let template = format!(
                "{} {{bar:20}} {{bytes}}/{{total_bytes}} {{bytes_per_sec}}  eta {{eta}}",
                self.what
            );
            state.bar = Bar::begin(bytes, &template);
        }
        match &state.bar {
            Some(bar) => {
                bar.set_length(bytes);
                bar.set_position(done);
            }
            None if state.last_line.elapsed() >= LINE_EVERY => {
                state.last_line = Instant::now();
                let [done, bytes] = [done, bytes].map(|n| n as f64 / 1e6);
                print(&format!("{}: {done:.0} of {bytes:.0} MB", self.what));
            }
            None => {}
        }
    }

    /// What there was to do, in words; nothing where there was nothing.
    pub fn summary(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (n, megabytes) = (state.n_files, state.bytes as f64 / 1e6);
        (n > 0).then(|| format!("{}, {megabytes:.1} MB", counted(n, "file")))
    }
}

/// What takes long in an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Texts are written.
    Generating,
    /// The loss of rows is measured.
    MeasuringLoss,
    /// A judge reads answers.
    Judging,
    /// Programs run that a model wrote.
    RunningCode,
}

impl Work {
    fn doing(self) -> &'static str {
        match self {
            Self::Generating => "generating",
            Self::MeasuringLoss => "measuring the loss",
            Self::Judging => "judging",
            Self::RunningCode => "running code",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Generating => "generated",
            Self::MeasuringLoss => "measured the loss of",
            Self::Judging => "judged",
            Self::RunningCode => "ran",
        }
    }
}

/// Where a generation stands, told after each token.
#[derive(Debug, Clone, Copy)]
pub struct GenerationProgress {
    /// What is done.
    pub work: Work,
    /// Completions that are done.
    pub n_done: usize,
    /// All completions.
    pub n_total: usize,
    /// Tokens so far.
    pub n_tokens: usize,
    /// What is waited for outside of this process.
    pub waiting: Option<Waiting>,
}

/// What work waits for outside of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// In words, such as `requests to the server`.
    pub what: &'static str,
    /// How many of them there are at most.
    pub n: usize,
    /// Seconds since the last of them came to its end.
    pub seconds: u64,
}

/// The view of rows that are read and prepared.
#[derive(Debug)]
pub struct RowsProgress {
    is_terminal: bool,
    files: Vec<PathBuf>,
    bar: Option<Bar>,
    n_rows: u64,
    started: Instant,
    next_sign: Instant,
}

impl RowsProgress {
    /// Begins the view of rows, one on each line of `files`; without files their number is not known.
    pub fn begin<'f>(files: impl IntoIterator<Item = &'f PathBuf>) -> Self {
        let started = Instant::now();
        let is_terminal = io::stderr().is_terminal();
        let first_sign = if is_terminal {
            SHOWN_AFTER
        } else {
            ROWS_LINE_EVERY
        };
        Self {
            is_terminal,
            files: files.into_iter().cloned().collect(),
            bar: None,
            n_rows: 0,
            started,
            next_sign: started + first_sign,
        }
    }

    /// Counts a row.
    pub fn row(&mut self) {
        self.n_rows += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.n_rows);
            return;
        }
        let Some(line) = self.sign_at(Instant::now()) else {
            return;
        };
        if !self.is_terminal {
            print(&line);
            return;
        }
        self.bar = match n_lines(&self.files) {
            Some(n) => Bar::begin(n, "preparing rows {bar:30} {pos}/{len}  eta {eta}"),
            None => Bar::begin(0, "preparing rows {spinner} {pos}"),
        };
        if let Some(bar) = &self.bar {
            bar.set_position(self.n_rows);
        }
    }

    /// What is said of the rows so far, if it is time.
    fn sign_at(&mut self, now: Instant) -> Option<String> {
        if now < self.next_sign {
            return None;
        }
        self.next_sign = now + ROWS_LINE_EVERY;
        let seconds = now.duration_since(self.started).as_secs();
        Some(format!(
            "{} prepared in {seconds} s",
            counted(self.n_rows as usize, "row")
        ))
    }
}

/// The lines of files, unless they are no JSON Lines, too large or cannot be read, which their reader
/// says.
fn n_lines(files: &[PathBuf]) -> Option<u64> {
    let mut n = 0;
    let mut n_bytes = 0;
    for path in files {
        let mut file = regular_file::open(path).ok()?;
        n_bytes += file.metadata().ok()?.len();
        if n_bytes > COUNTED_BYTES {
            return None;
        }
        let mut buffer = [0; 1 << 16];
        let mut is_first = true;
        loop {
            let length = io::Read::read(&mut file, &mut buffer).ok()?;
            if length == 0 {
                break;
            }
            if is_first && buffer[0] != b'{' {
                return None;
            }
            is_first = false;
            n += buffer[..length]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count() as u64;
        }
    }
    (n > 0).then_some(n)
}

/// The view of an evaluation or a generation: a bar for each kind of work that it does.
#[derive(Debug)]
pub struct Progress {
    shown: Option<Shown>,
    waiting: Option<Waiting>,
}

/// The present kind of work.
#[derive(Debug)]
struct Shown {
    work: Work,
    n_total: usize,
    bar: Option<Bar>,
    started: Instant,
    last_line: Instant,
}

impl Shown {
    fn begin(state: GenerationProgress) -> Self {
        let GenerationProgress { work, n_total, .. } = state;
        let template = format!("{} {{bar:20}} {{pos}}/{{len}}  {{wide_msg}}", work.doing());
        let now = Instant::now();
        Self {
            work,
            n_total,
            bar: Bar::begin(n_total as u64, &template),
            started: now,
            last_line: now,
        }
    }
}

impl Progress {
    /// Begins the view.
    pub fn begin() -> Self {
        Self {
            shown: None,
            waiting: None,
        }
    }

    /// Shows where the work stands.
    pub fn generated(&mut self, state: GenerationProgress) {
        self.waiting = state.waiting;
        let waiting = self.waiting();
        let is_shown = |shown: &Shown| (shown.work, shown.n_total) == (state.work, state.n_total);
        if !self.shown.as_ref().is_some_and(is_shown) {
            // The earlier bar goes before the next one comes.
            self.shown = None;
        }
        let shown = self.shown.get_or_insert_with(|| Shown::begin(state));
        let seconds = shown.started.elapsed().as_secs_f64().max(1e-9);
        let rate = match state.n_tokens {
            0 => String::new(),
            n_tokens => format!("{:.0} tokens/s", n_tokens as f64 / seconds),
        };
        // Nobody knows how long texts get before the first one is done.
        let left = match (state.n_done, state.n_total.saturating_sub(state.n_done)) {
            (0, _) => String::new(),
            (n_done, n_left) => {
                let left = duration_text(seconds * n_left as f64 / n_done as f64);
                format!("eta {left}  ")
            }
        };
        match &shown.bar {
            Some(bar) => {
                bar.set_position(state.n_done as u64);
                bar.set_message(match waiting {
                    Some(waiting) => format!("{waiting} under way"),
                    None => left + &rate,
                });
            }
            None if shown.last_line.elapsed() >= LINE_EVERY => {
                shown.last_line = Instant::now();
                let (n_done, n_total) = (state.n_done, state.n_total);
                let done = state.work.done();
                print(&match (waiting, rate.is_empty()) {
                    (Some(waiting), _) => format!("{done} {n_done}/{n_total}; {waiting} under way"),
                    (None, false) => format!("{done} {n_done}/{n_total} at {rate}"),
                    (None, true) => format!("{done} {n_done}/{n_total}"),
                });
            }
            None => {}
        }
    }

    /// What the work waits for outside of this process, in words.
    pub fn waiting(&self) -> Option<String> {
        let Waiting { what, n, seconds } = self.waiting?;
        (n > 0).then(|| format!("{n} {what}, silent for {seconds} s,"))
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        self.shown = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_take_long_are_counted_every_ten_seconds() {
        let mut progress = RowsProgress::begin(&[]);
        progress.is_terminal = false;
        progress.next_sign = progress.started + ROWS_LINE_EVERY;
        let begun = progress.started;
        let mut lines = Vec::new();
        for second in 0..25 {
            progress.n_rows += 1_000;
            lines.extend(progress.sign_at(begun + Duration::from_secs(second)));
        }
        assert_eq!(
            lines,
            ["11000 rows prepared in 10 s", "21000 rows prepared in 20 s"]
        );
    }
}
