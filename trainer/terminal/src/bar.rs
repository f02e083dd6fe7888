//! Progress bars; only one is visible at a time.
//!
//! A new bar hides earlier ones until it ends. While other output is written, the bar is hidden.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tooltune_json::printable;

use crate::{LINE_EVERY, SHOWN_AFTER, fitting_text, with_colors_only};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Escape sequence that erases the current line.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Bars on the terminal; the last one is visible.
static BARS: Mutex<Vec<ProgressBar>> = Mutex::new(Vec::new());

/// Whether this process prints no progress.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// From now on, this process prints no progress lines and shows no bars; errors and the log are
/// still printed. For processes that do the same work as another one.
pub fn hide_progress() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

fn bars() -> MutexGuard<'static, Vec<ProgressBar>> {
    BARS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `write`, which writes to the terminal, while no bar is drawn.
pub fn write_between_bars<T>(write: impl FnOnce() -> T) -> T {
    match bars().last() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Prints a line. An error, for example on a full disk, is ignored so that the work continues.
pub fn print(line: &str) {
    if IS_QUIET.load(Ordering::Relaxed) {
        return;
    }
    write_between_bars(|| {
        let mut stderr = io::stderr();
        let line = printable::lines(line);
        let line = fitting_text(&line, &stderr);
        let _ = writeln!(stderr, "{line}");
    });
}

/// A writer to standard error that hides the bar. Each write must be a whole line.
#[derive(Debug, Clone, Copy, Default)]
pub struct BetweenBars;

impl Write for BetweenBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr();
        // Each write is one log event with its line end.
        let text = String::from_utf8_lossy(bytes);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // An event is one line. Line breaks inside it come from names or other untrusted text.
        let line = with_colors_only(line).replace('\n', "\\n");
        let text = format!("{}\n", fitting_text(&line, &stderr));
        write_between_bars(|| stderr.write_all(text.as_bytes()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A bar on the terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    stays: bool,
}

impl Bar {
    /// Shows a bar in place of the others, with an indicatif template; `None` without a terminal.
    pub fn begin(length: u64, template: &str) -> Option<Self> {
        if !io::stderr().is_terminal() || IS_QUIET.load(Ordering::Relaxed) {
            return None;
        }
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let mut bars = bars();
        if let Some(hidden) = bars.last() {
            hidden.set_draw_target(ProgressDrawTarget::hidden());
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bars.push(bar.clone());
        Some(Self { bar, stays: false })
    }

    /// Leaves the bar on the terminal when it ends.
    #[must_use]
    pub fn kept_on_screen(mut self) -> Self {
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
                // The cursor is at the end of the bar's line.
                let _ = writeln!(io::stderr());
            }
            false => self.bar.finish_and_clear(),
        }
        let mut bars = bars();
        // Bars are identified by state: only unfinished ones are still displayed.
        bars.retain(|bar| !bar.is_finished());
        if let Some(seen) = bars.last() {
            seen.set_draw_target(ProgressDrawTarget::stderr());
            seen.tick();
        }
    }
}

/// Progress of work with a known size, such as loading weights.
#[derive(Debug)]
pub struct Counted {
    what: &'static str,
    total: usize,
    started: Instant,
    last_line: Instant,
    bar: Option<Bar>,
}

impl Counted {
    /// Starts the progress of `total` parts of the work `what`.
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

    /// Shows that `n` parts are done in total.
    pub fn advance(&mut self, n: usize) {
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
