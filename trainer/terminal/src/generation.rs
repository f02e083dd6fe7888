//! Progress of evaluations and generations.

use std::time::Instant;

use crate::bar::{Bar, print};
use crate::text::duration_text;
use crate::{LINE_EVERY, SHOWN_AFTER};

/// A slow part of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Generating completions.
    Generating,
    /// Measuring the held-out loss.
    MeasuringLoss,
    /// Judging answers.
    Judging,
    /// Running model-written code.
    RunningCode,
}

impl Work {
    fn present_participle(self) -> &'static str {
        match self {
            Self::Generating => "generating",
            Self::MeasuringLoss => "measuring the loss",
            Self::Judging => "judging",
            Self::RunningCode => "running code",
        }
    }

    fn past_participle(self) -> &'static str {
        match self {
            Self::Generating => "generated",
            Self::MeasuringLoss => "measured the loss of",
            Self::Judging => "judged",
            Self::RunningCode => "ran",
        }
    }
}

/// Progress of a generation, reported after each token.
#[derive(Debug, Clone, Copy)]
pub struct GenerationProgress {
    /// Current work.
    pub work: Work,
    /// Finished completions.
    pub n_done: usize,
    /// All completions.
    pub n_total: usize,
    /// Tokens generated so far.
    pub n_tokens: usize,
    /// Work that is pending outside this process.
    pub waiting: Option<Waiting>,
}

/// Work that is pending outside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Description, such as `requests to the server`.
    pub what: &'static str,
    /// Largest number of pending items.
    pub n: usize,
    /// Seconds since the last item finished.
    pub seconds: u64,
}

/// Progress of an evaluation or a generation, with a bar for each kind of work.
#[derive(Debug)]
pub struct Progress {
    running: Option<Shown>,
    waiting: Option<Waiting>,
}

/// The current kind of work.
#[derive(Debug)]
struct Shown {
    work: Work,
    n_total: usize,
    bar: Option<Bar>,
    started: Instant,
    last_line: Instant,
    /// Number of tokens when this work started, which its rate excludes.
    n_tokens_before: usize,
}

impl Shown {
    fn begin(state: GenerationProgress) -> Self {
        let GenerationProgress {
            work,
            n_total,
            n_tokens,
            ..
        } = state;
        let template = format!(
            "{} {{bar:20}} {{pos}}/{{len}}  {{wide_msg}}",
            work.present_participle()
        );
        let now = Instant::now();
        Self {
            work,
            n_total,
            bar: Bar::begin(n_total as u64, &template),
            started: now,
            last_line: now,
            n_tokens_before: n_tokens,
        }
    }

    /// Tokens per second, as soon as they can be measured.
    fn rate(&self, n_tokens: usize, seconds: f64) -> Option<f64> {
        let n_tokens = n_tokens.saturating_sub(self.n_tokens_before);
        (n_tokens > 0 && seconds >= SHOWN_AFTER.as_secs_f64()).then(|| n_tokens as f64 / seconds)
    }
}

impl Progress {
    /// Starts the display.
    pub fn begin() -> Self {
        Self {
            running: None,
            waiting: None,
        }
    }

    /// Displays the progress.
    pub fn show(&mut self, state: GenerationProgress) {
        self.waiting = state.waiting;
        let waiting = self.waiting();
        let is_shown = |last: &Shown| (last.work, last.n_total) == (state.work, state.n_total);
        if !self.running.as_ref().is_some_and(is_shown) {
            // End the earlier bar before the next one starts.
            self.running = None;
        }
        let shown = self.running.get_or_insert_with(|| Shown::begin(state));
        let seconds = shown.started.elapsed().as_secs_f64().max(1e-9);
        let rate = shown.rate(state.n_tokens, seconds);
        let rate = rate.map_or_else(String::new, |rate| format!("{rate:.0} tokens/s"));
        // The length of completions is unknown before the first one is done.
        let eta = match (state.n_done, state.n_total.saturating_sub(state.n_done)) {
            (0, _) => String::new(),
            (n_done, n_remaining) => {
                let eta = duration_text(seconds * n_remaining as f64 / n_done as f64);
                format!("eta {eta}  ")
            }
        };
        match &shown.bar {
            Some(bar) => {
                bar.set_position(state.n_done as u64);
                bar.set_message(match waiting {
                    Some(waiting) => format!("{waiting} under way"),
                    None => eta + &rate,
                });
            }
            None if shown.last_line.elapsed() >= LINE_EVERY => {
                shown.last_line = Instant::now();
                let (n_done, n_total) = (state.n_done, state.n_total);
                let done = state.work.past_participle();
                print(&match (waiting, rate.is_empty()) {
                    (Some(waiting), _) => format!("{done} {n_done}/{n_total}; {waiting} under way"),
                    (None, false) => format!("{done} {n_done}/{n_total} at {rate}"),
                    (None, true) => format!("{done} {n_done}/{n_total}"),
                });
            }
            None => {}
        }
    }

    /// Describes the work that is pending outside this process.
    pub fn waiting(&self) -> Option<String> {
        let Waiting { what, n, seconds } = self.waiting?;
        (n > 0).then(|| format!("{n} {what}, silent for {seconds} s,"))
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        self.running = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_excludes_tokens_before_the_start() {
        let now = Instant::now();
        let shown = Shown {
            work: Work::Generating,
            n_total: 1,
            bar: None,
            started: now,
            last_line: now,
            n_tokens_before: 1,
        };
        assert_eq!(
            shown.rate(1, 0.00007),
            None,
            "one token in no time has no rate"
        );
        assert_eq!(shown.rate(9, 0.1), None);
        assert_eq!(shown.rate(21, 2.0), Some(10.0));
    }
}
