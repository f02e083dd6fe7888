//! Records -> a progress bar on a terminal, plain lines everywhere else.
//!
//! Batch systems keep the output in a file, where a bar would be one endless line of carriage
//! returns; there every record is one line.

use std::fmt;
use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::{EvalRecord, MetricSink, Record, ResumeRecord, RetrieverRecord, StepRecord, Timing};

/// The progress of a run, for a person.
pub struct TerminalSink {
    total_steps: u64,
    output: Output,
}

enum Output {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

impl TerminalSink {
    /// Shows progress on standard error: a bar if it is a terminal, lines if not.
    pub fn stderr(total_steps: u64) -> Self {
        let stderr = std::io::stderr();
        if stderr.is_terminal() {
            Self {
                total_steps,
                output: Output::Bar(bar(total_steps)),
            }
        } else {
            Self::lines(total_steps, Box::new(stderr))
        }
    }

    /// Writes one line for each record.
    pub fn lines(total_steps: u64, output: Box<dyn Write + Send>) -> Self {
        Self {
            total_steps,
            output: Output::Lines(output),
        }
    }

    /// Moves the bar, for steps without a record of their own.
    pub fn advance(&self, step: u64) {
        if let Output::Bar(bar) = &self.output {
            bar.set_position(step);
        }
    }

    /// Runs `write` while the bar is out of the way, for other output to the terminal.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.output {
            Output::Bar(bar) => bar.suspend(write),
            Output::Lines(_) => write(),
        }
    }
}

impl fmt::Debug for TerminalSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let output = match self.output {
            Output::Bar(_) => "bar",
            Output::Lines(_) => "lines",
        };
        let mut debug = formatter.debug_struct("TerminalSink");
        debug
            .field("total_steps", &self.total_steps)
            .field("output", &output)
            .finish()
    }
}

impl Drop for TerminalSink {
    fn drop(&mut self) {
        if let Output::Bar(bar) = &self.output {
            bar.abandon();
        }
    }
}

impl MetricSink for TerminalSink {
    fn record(&mut self, record: &Record) {
        let step = match record {
            Record::Resumed(resumed) => resumed.step,
            Record::Step(step) => step.step,
            Record::Retriever(retriever) => retriever.step,
            Record::Eval(eval) => eval.step,
        };
        match (&mut self.output, record) {
            (Output::Bar(bar), Record::Resumed(record)) => {
                bar.set_position(step);
                bar.println(resume_text(record, self.total_steps));
            }
            (Output::Lines(output), Record::Resumed(record)) => {
                let _ = writeln!(output, "{}", resume_text(record, self.total_steps));
            }
            (Output::Bar(bar), Record::Step(record)) => {
                bar.set_position(step);
                bar.set_message(step_text(record));
            }
            (Output::Bar(bar), Record::Retriever(record)) if record.timing.is_some() => {
                bar.set_position(step);
                bar.set_message(retriever_text(record));
            }
            // Beside a language model the bar's message is that model's.
            (Output::Bar(_), Record::Retriever(_)) => {}
            (Output::Bar(bar), Record::Eval(record)) => {
                bar.println(format!("step {step}  {}", eval_text(record)));
            }
            (Output::Lines(output), record) => {
                let text = match record {
                    Record::Resumed(_) => return,
                    Record::Step(record) => step_text(record),
                    Record::Retriever(record) => retriever_text(record),
                    Record::Eval(record) => eval_text(record),
                };
                // Nobody may be reading any more; the metrics are in the files all the same.
                let _ = writeln!(output, "step {step}/{}  {text}", self.total_steps);
                let _ = output.flush();
            }
        }
    }
}

fn bar(total_steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:20} {pos}/{len}  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total_steps).with_style(style)
}

fn resume_text(record: &ResumeRecord, total_steps: u64) -> String {
    let ResumeRecord {
        checkpoint,
        step,
        is_over,
    } = record;
    match is_over {
        false => {
            let checkpoint = checkpoint.display();
            format!("resuming from {checkpoint} (step {step} of {total_steps})")
        }
        true if *step < total_steps => {
            format!("nothing to do: the run stopped early at step {step} of {total_steps}")
        }
        true => format!("nothing to do: all {total_steps} steps are done"),
    }
}

fn step_text(record: &StepRecord) -> String {
    let StepRecord {
        loss,
        grad_norm,
        learning_rate,
        timing,
        ..
    } = record;
    let text = format!(
        "loss {loss:.4}  lr {learning_rate:.2e}  grad {grad_norm:.3}  tok/s {:.0} (trained {:.0})",
        timing.tokens_per_sec, timing.trained_tokens_per_sec
    );
    text + &timing_text(timing)
}

fn timing_text(timing: &Timing) -> String {
    let mut text = String::new();
    if let Some(bytes) = timing.peak_rss_bytes {
        text += &format!("  rss {:.2} GiB", bytes as f64 / f64::from(1 << 30));
    }
    if let Some(secs) = timing.remaining_secs {
        text += &format!("  eta {}", duration_text(secs));
    }
    text
}

fn retriever_text(record: &RetrieverRecord) -> String {
    let text = format!(
        "retriever step {}  loss {:.4}  lr {:.2e}  grad {:.3}  pairs/s {:.1}",
        record.retriever_step,
        record.loss,
        record.learning_rate,
        record.grad_norm,
        record.pairs_per_sec
    );
    text + &record.timing.as_ref().map_or_else(String::new, timing_text)
}

fn eval_text(record: &EvalRecord) -> String {
    let metrics = record
        .metrics
        .iter()
        .map(|(name, value)| format!("{name} {value:.4}"));
    let metrics = metrics.collect::<Vec<_>>().join("  ");
    format!("eval  {metrics}  ({})", duration_text(record.elapsed_secs))
}

/// Seconds as `1h02m`, `3m05s` or `7s`.
fn duration_text(secs: f64) -> String {
    let secs = secs.max(0.0).round() as u64;
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, secs) => format!("{secs}s"),
        (0, minutes, secs) => format!("{minutes}m{secs:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn step() -> Record {
        Record::Step(StepRecord {
            step: 40,
            epoch: 0.5,
            loss: 0.432_14,
            grad_norm: 0.8123,
            learning_rate: 9.5e-4,
            tokens: 1,
            trained_tokens: 1,
            timing: Timing {
                elapsed_secs: 10.0,
                tokens_per_sec: 812.3,
                trained_tokens_per_sec: 96.4,
                peak_rss_bytes: Some(3 << 29),
                remaining_secs: Some(185.0),
            },
        })
    }

    #[test]
    fn without_a_terminal_each_record_is_one_plain_line() {
        let shared = Shared::default();
        let mut sink = TerminalSink::lines(400, Box::new(shared.clone()));
        let metrics = vec![("slot.mean".to_owned(), 0.5)];
        let eval = EvalRecord {
            step: 40,
            epoch: 0.5,
            metrics,
            elapsed_secs: 3720.0,
        };
        for record in [step(), Record::Eval(eval)] {
            sink.record(&record);
            sink.advance(41);
        }
        let written = shared
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let text = String::from_utf8_lossy(&written);
        let expected = "step 40/400  loss 0.4321  lr 9.50e-4  grad 0.812  tok/s 812 (trained 96)  \
                        rss 1.50 GiB  eta 3m05s\nstep 40/400  eval  slot.mean 0.5000  (1h02m)\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_run_that_goes_on_says_from_where_and_whether_anything_is_left() {
        for (step, is_over, expected) in [
            (
                719,
                false,
                "resuming from runs/x/checkpoint-719 (step 719 of 4000)",
            ),
            (4000, true, "nothing to do: all 4000 steps are done"),
            (
                719,
                true,
                "nothing to do: the run stopped early at step 719 of 4000",
            ),
        ] {
            let shared = Shared::default();
            let mut sink = TerminalSink::lines(4000, Box::new(shared.clone()));
            sink.record(&Record::Resumed(ResumeRecord {
                checkpoint: format!("runs/x/checkpoint-{step}").into(),
                step,
                is_over,
            }));
            let written = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(String::from_utf8_lossy(&written), format!("{expected}\n"));
        }
    }

    #[test]
    fn a_reader_that_went_away_does_not_stop_the_run() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let mut sink = TerminalSink::lines(400, Box::new(Closed));
        sink.record(&step());
        sink.record(&step());
    }
}
