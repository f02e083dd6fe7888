//! How far a long piece of work is: a bar on a terminal, now and then a line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::eval::generate::{GenerationProgress, Waiting};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(20);

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
    #[allow(clippy::print_stderr, reason = "progress is what this type prints")]
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
                match self.waiting() {
                    Some(waiting) => eprintln!("generated {n_done}/{n_total}; {waiting} under way"),
                    None => eprintln!("generated {n_done}/{n_total} at {rate:.0} tokens/s"),
                }
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
