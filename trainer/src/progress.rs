//! How far a long piece of work is: a bar on a terminal, now and then a line elsewhere.

use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(20);

/// Time before the first sign of rows that are read: most files are done by then.
const ROWS_SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Time between two lines about rows where there is no terminal.
const ROWS_LINE_EVERY: Duration = Duration::from_secs(10);

/// Prints a line; where none can be printed, on a full disk for one, the work continues.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Where a generation stands, told after each token.
#[derive(Debug, Clone, Copy)]
pub struct GenerationProgress {
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

/// The view of rows that are read and prepared, whose number nobody knows before.
#[derive(Debug)]
pub struct RowsProgress {
    is_terminal: bool,
    bar: Option<ProgressBar>,
    n_rows: u64,
    started: Instant,
    next_sign: Instant,
}

impl RowsProgress {
    /// Begins the view.
    pub fn begin() -> Self {
        let started = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            is_terminal,
            bar: None,
            n_rows: 0,
            started,
            next_sign: started
                + if is_terminal {
                    ROWS_SHOWN_AFTER
                } else {
                    ROWS_LINE_EVERY
                },
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
        if self.is_terminal {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} rows read") {
                bar.set_style(style);
            }
            bar.set_position(self.n_rows);
            self.bar = Some(bar);
        } else {
            print(&line);
        }
    }

    /// What is said of the rows so far, if it is time.
    fn sign_at(&mut self, now: Instant) -> Option<String> {
        if now < self.next_sign {
            return None;
        }
        self.next_sign = now + ROWS_LINE_EVERY;
        let seconds = now.duration_since(self.started).as_secs();
        Some(format!("{} rows read in {seconds} s", self.n_rows))
    }
}

impl Drop for RowsProgress {
    /// Takes the bar away.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The view of one generation.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    waiting: Option<Waiting>,
}

impl Progress {
    /// Begins the view of `n_total` completions.
    pub fn generation(n_total: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(n_total as u64);
            let template = "generating {bar:30} {pos}/{len} {msg} ETA {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        Self {
            bar,
            started: now,
            last_line: now,
            waiting: None,
        }
    }

    /// Shows where the generation stands.
    pub fn generated(&mut self, state: GenerationProgress) {
        self.waiting = state.waiting;
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let rate = state.n_tokens as f64 / seconds;
        match &self.bar {
            Some(bar) => {
                bar.set_position(state.n_done as u64);
                bar.set_message(match self.waiting() {
                    Some(waiting) => format!("{waiting} under way"),
                    None => format!("{rate:.0} tokens/s"),
                });
            }
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                let (n_done, n_total) = (state.n_done, state.n_total);
                print(&match self.waiting() {
                    Some(waiting) => format!("generated {n_done}/{n_total}; {waiting} under way"),
                    None => format!("generated {n_done}/{n_total} at {rate:.0} tokens/s"),
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
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_take_long_are_counted_every_ten_seconds() {
        let mut progress = RowsProgress::begin();
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
            ["11000 rows read in 10 s", "21000 rows read in 20 s"]
        );
    }
}
