//! Progress of reading rows.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tooltune_disk::regular_file;

use super::{Bar, SHOWN_AFTER, count_noun, print};

/// Time before the first line of progress without a terminal.
const ROWS_LINE_AFTER: Duration = Duration::from_secs(2);

/// Time between two lines of progress without a terminal.
const ROWS_LINE_EVERY: Duration = Duration::from_secs(10);

/// Maximum size of files whose lines are counted in advance, for a bar with a known end. Counting
/// takes less than a second.
const COUNTED_BYTES: u64 = 1 << 30;

/// Progress of reading and preparing rows.
#[derive(Debug)]
pub struct RowsProgress {
    doing: &'static str,
    done: &'static str,
    is_terminal: bool,
    files: Vec<PathBuf>,
    bar: Option<Bar>,
    n_rows: u64,
    started: Instant,
    next_line: Instant,
}

impl RowsProgress {
    /// Starts the progress of rows, one per line of `files`. Without files, the number of rows is
    /// unknown.
    pub fn begin<'f>(files: impl IntoIterator<Item = &'f PathBuf>) -> Self {
        Self::with_labels("preparing rows", "prepared", files)
    }

    /// Like [`Self::begin`], with other words instead of `preparing rows` (on a terminal) and
    /// `prepared` (otherwise).
    pub fn with_labels<'f>(
        doing: &'static str,
        done: &'static str,
        files: impl IntoIterator<Item = &'f PathBuf>,
    ) -> Self {
        let started = Instant::now();
        let is_terminal = io::stderr().is_terminal();
        let first_line = if is_terminal {
            SHOWN_AFTER
        } else {
            ROWS_LINE_AFTER
        };
        Self {
            doing,
            done,
            is_terminal,
            files: files.into_iter().cloned().collect(),
            bar: None,
            n_rows: 0,
            started,
            next_line: started + first_line,
        }
    }

    /// Counts a row.
    pub fn row(&mut self) {
        self.n_rows += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.n_rows);
            return;
        }
        let Some(line) = self.line_at(Instant::now()) else {
            return;
        };
        if !self.is_terminal {
            print(&line);
            return;
        }
        self.bar = match n_lines(&self.files) {
            Some(n) => Bar::begin(
                n,
                &format!("{} {{bar:30}} {{pos}}/{{len}}  eta {{eta}}", self.doing),
            ),
            None => Bar::begin(0, &format!("{} {{spinner}} {{pos}}", self.doing)),
        };
        if let Some(bar) = &self.bar {
            bar.set_position(self.n_rows);
        }
    }

    /// The line about the rows so far, if it is time to print one.
    fn line_at(&mut self, now: Instant) -> Option<String> {
        if now < self.next_line {
            return None;
        }
        self.next_line = now + ROWS_LINE_EVERY;
        let seconds = now.duration_since(self.started).as_secs();
        Some(format!(
            "{} {} in {seconds} s",
            count_noun(self.n_rows as usize, "row"),
            self.done
        ))
    }
}

/// Number of lines in the files; `None` if they are not JSON Lines, too large, or unreadable. The
/// code that reads the rows reports such errors.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_take_long_are_counted_every_ten_seconds() {
        let mut progress = RowsProgress::begin(&[]);
        progress.is_terminal = false;
        progress.next_line = progress.started + ROWS_LINE_EVERY;
        let started = progress.started;
        let mut lines = Vec::new();
        for second in 0..25 {
            progress.n_rows += 1_000;
            lines.extend(progress.line_at(started + Duration::from_secs(second)));
        }
        assert_eq!(
            lines,
            ["11000 rows prepared in 10 s", "21000 rows prepared in 20 s"]
        );
    }
}
