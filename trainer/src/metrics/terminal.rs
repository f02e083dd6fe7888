//! Displays records as a progress bar on a terminal, and otherwise as plain lines.
//!
//! Batch systems write the output to a file, where a bar would be one endless line of carriage
//! returns, so each record is one line there.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use super::{
    EvalRecord, MetricSink, ProgressUpdate, Record, ResumeRecord, RetrieverRecord, StepMetrics,
    StepRecord, Timing,
};
use tooltune_terminal::{Bar, columns, duration_text, write_between_bars};

/// Number of parts of a step that the bar distinguishes.
const PARTS: f64 = 1000.0;

/// Width of the bar in columns.
const BAR_COLUMNS: usize = 12;

/// Line width without a terminal: the width of the narrowest common terminals.
const LINE_COLUMNS: usize = 80;

/// Minimum time between two redraws of the bar within a step.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Without a terminal, seconds until the estimated duration is printed.
const FIRST_LINE_AFTER: f64 = 10.0;

/// Displays the progress of a run.
pub struct TerminalSink {
    total_steps: u64,
    output: Output,
    /// Metrics that select the best checkpoint; they are displayed first.
    chosen: Vec<String>,
    /// The previous evaluation, which is displayed next to the new one.
    evaluated: Option<Evaluated>,
    /// Fields of the last record, except the loss.
    details: Vec<String>,
    /// Whether any step has been displayed.
    has_begun: bool,
    /// Time of the last redraw.
    drawn: Option<Instant>,
}

/// The values of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    /// Step of the evaluation.
    pub step: u64,
    /// Values by name.
    pub metrics: Vec<(String, f64)>,
}

enum Output {
    Bar(Bar),
    Lines(Box<dyn Write + Send>),
}

impl TerminalSink {
    /// Displays progress on standard error: as a bar on a terminal, otherwise as lines.
    pub fn stderr(total_steps: u64) -> Self {
        let length = (total_steps as f64 * PARTS) as u64;
        let template = format!("{{prefix}}  {{bar:{BAR_COLUMNS}}}  {{msg}}");
        match Bar::begin(length, &template) {
            Some(bar) => {
                bar.set_prefix(prefix_text(&ProgressUpdate::default(), total_steps));
                Self::new(total_steps, Output::Bar(bar.kept_on_screen()))
            }
            None => Self::lines(total_steps, Box::new(std::io::stderr())),
        }
    }

    /// Writes one line for each record, and a table for each evaluation.
    pub fn lines(total_steps: u64, output: Box<dyn Write + Send>) -> Self {
        Self::new(total_steps, Output::Lines(output))
    }

    fn new(total_steps: u64, output: Output) -> Self {
        Self {
            total_steps,
            output,
            chosen: Vec::new(),
            evaluated: None,
            details: Vec::new(),
            has_begun: false,
            drawn: None,
        }
    }

    /// Displays these metrics before the others.
    #[must_use]
    pub fn with_chosen<'a>(mut self, metrics: impl Iterator<Item = &'a str>) -> Self {
        self.chosen = metrics.map(str::to_owned).collect();
        self
    }

    /// Sets the evaluation of an earlier process as the previous one.
    pub fn remember(&mut self, evaluated: Evaluated) {
        self.evaluated = Some(evaluated);
    }

    /// Updates the bar, also within a step. Without a terminal, only prints the estimated duration
    /// once.
    pub fn update_progress(&mut self, update: &ProgressUpdate) {
        let is_within = update.step.fract() > 0.0;
        if is_within
            && self
                .drawn
                .is_some_and(|last| last.elapsed() < REDRAW_INTERVAL)
        {
            return;
        }
        self.drawn = Some(Instant::now());
        let prefix = prefix_text(update, self.total_steps);
        match &mut self.output {
            Output::Bar(bar) => {
                bar.set_position((update.step * PARTS) as u64);
                let used = prefix.chars().count() + BAR_COLUMNS + 4;
                bar.set_message(fit_fields(
                    &self.details,
                    columns().saturating_sub(used + 1),
                ));
                bar.set_prefix(prefix);
            }
            Output::Lines(output) => {
                let is_due = update.elapsed_secs >= FIRST_LINE_AFTER && !self.has_begun;
                if is_due && update.remaining_secs.is_some() {
                    self.has_begun = true;
                    let _ = writeln!(output, "{prefix}");
                    let _ = output.flush();
                }
            }
        }
    }

    fn write(&mut self, text: &str) {
        match &mut self.output {
            Output::Bar(_) => write_between_bars(|| {
                let _ = writeln!(std::io::stderr(), "{text}");
            }),
            // Ignore a closed output, because the metric files are complete without it.
            Output::Lines(output) => {
                let _ = writeln!(output, "{text}");
                let _ = output.flush();
            }
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

impl MetricSink for TerminalSink {
    fn record(&mut self, record: &Record) {
        let total = self.total_steps;
        let (step, loss, timing) = match record {
            Record::Resumed(record) => {
                // The bar starts at the resumed step.
                self.update_progress(&ProgressUpdate {
                    step: record.step as f64,
                    ..ProgressUpdate::default()
                });
                return self.write(&resume_text(record, total));
            }
            Record::Eval(record) => {
                let text = eval_text(record, total, &self.chosen, self.evaluated.as_ref());
                self.evaluated = Some(Evaluated {
                    step: record.step,
                    metrics: record.metrics.clone(),
                });
                return self.write(&text);
            }
            Record::Step(record) => {
                self.details = step_details(record);
                let metrics = record.metrics;
                (metrics.step, metrics.loss, Some(&record.timing))
            }
            Record::Retriever(record) => match &record.timing {
                Some(timing) => {
                    self.details = retriever_details(record);
                    self.details.extend(memory(timing));
                    (record.step, record.loss, Some(timing))
                }
                // In a run with a language model, the bar shows the language model.
                None if matches!(self.output, Output::Bar(_)) => return,
                None => {
                    let fields = retriever_details(record);
                    let text = format!("retriever  loss {:.4}", record.loss);
                    let prefix = format!("step {}/{total}  {text}", record.step);
                    return self.write(&with_details(prefix, &fields));
                }
            },
        };
        let update = ProgressUpdate {
            step: step as f64,
            loss: Some(loss),
            elapsed_secs: timing.map_or(0.0, |timing| timing.elapsed_secs),
            remaining_secs: timing.and_then(|timing| timing.remaining_secs),
        };
        self.has_begun = true;
        match self.output {
            Output::Bar(_) => self.update_progress(&update),
            Output::Lines(_) => {
                let line = with_details(prefix_text(&update, total), &self.details);
                self.write(&line);
            }
        }
    }
}

/// The most important values: step, loss, and remaining time.
fn prefix_text(update: &ProgressUpdate, total_steps: u64) -> String {
    let mut text = format!("step {}/{total_steps}", update.step as u64);
    if let Some(loss) = update.loss {
        text += &format!("  loss {loss:.4}");
    }
    if let Some(secs) = update.remaining_secs {
        text += &format!("  eta {}", duration_text(secs));
    }
    text
}

/// Joins the fields that fit, in order of importance.
fn fit_fields(fields: &[String], columns: usize) -> String {
    let mut text = String::new();
    for field in fields {
        let gap = if text.is_empty() { "" } else { "  " };
        if text.chars().count() + gap.len() + field.chars().count() > columns {
            break;
        }
        text += gap;
        text += field;
    }
    text
}

fn with_details(prefix: String, fields: &[String]) -> String {
    let room = LINE_COLUMNS.saturating_sub(prefix.chars().count() + 2);
    match fit_fields(fields, room) {
        details if details.is_empty() => prefix,
        details => format!("{prefix}  {details}"),
    }
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
        true if total_steps == 1 => "nothing to do: its one step is done".to_owned(),
        true => format!("nothing to do: all {total_steps} steps are done"),
    }
}

fn step_details(record: &StepRecord) -> Vec<String> {
    let StepMetrics {
        grad_norm,
        learning_rate,
        ..
    } = record.metrics;
    let timing = &record.timing;
    let mut fields = vec![
        format!("lr {learning_rate:.2e}"),
        format!("grad {grad_norm:.3}"),
        format!("{:.0} tok/s", timing.tokens_per_sec),
    ];
    fields.extend(memory(timing));
    fields
}

fn memory(timing: &Timing) -> Option<String> {
    let bytes = timing.peak_rss_bytes?;
    Some(format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)))
}

fn retriever_details(record: &RetrieverRecord) -> Vec<String> {
    let mut fields = vec![
        format!("lr {:.2e}", record.learning_rate),
        format!("grad {:.3}", record.grad_norm),
        format!("{:.1} pairs/s", record.pairs_per_sec),
    ];
    if record.timing.is_none() {
        fields.insert(0, format!("retriever step {}", record.retriever_step));
    }
    fields
}

/// Table of an evaluation, with the previous evaluation next to it. Metrics that select the best
/// checkpoint come first.
fn eval_text(
    record: &EvalRecord,
    total_steps: u64,
    chosen: &[String],
    before: Option<&Evaluated>,
) -> String {
    let (mut first, rest): (Vec<_>, Vec<_>) = record
        .metrics
        .iter()
        .partition(|(name, _)| chosen.contains(name));
    first.sort_by_key(|(name, _)| chosen.iter().position(|chosen| chosen == name));
    let n_first = first.len();
    let rows: Vec<&(String, f64)> = first.into_iter().chain(rest).collect();
    // Metric names are truncated so that the values fit into the terminal.
    let widest = rows.iter().map(|(name, _)| name.chars().count()).max();
    let width = widest.unwrap_or(0).clamp(20, LINE_COLUMNS - 33);
    let step = format!("step {}/{total_steps}", record.step);
    let mut text = format!(
        "{step}  evaluated in {}",
        duration_text(record.elapsed_secs)
    );
    if let Some(before) = before {
        let [now, before] = [record.step, before.step].map(|step| format!("step {step}"));
        text += &format!("\n  {:<width$}{now:>10}{before:>12}", "metric");
    }
    for (i, (name, value)) in rows.iter().enumerate() {
        text += &format!("\n  {name:<width$}{value:>10.4}");
        let earlier = before.and_then(|before| {
            let mut metrics = before.metrics.iter();
            metrics.find(|(known, _)| known == name)
        });
        if let Some((_, earlier)) = earlier {
            text += &format!("{earlier:>12.4}");
        }
        if i < n_first {
            text += "  selects BEST";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::shared_writer::SharedWriter;
    use super::*;

    fn step() -> Record {
        Record::Step(StepRecord {
            metrics: StepMetrics {
                step: 40,
                epoch: 0.5,
                loss: 0.432_14,
                grad_norm: 0.8123,
                learning_rate: 9.5e-4,
                tokens: 1,
                trained_tokens: 1,
            },
            timing: Timing {
                elapsed_secs: 10.0,
                tokens_per_sec: 812.3,
                trained_tokens_per_sec: 96.4,
                peak_rss_bytes: Some(3 << 29),
                remaining_secs: Some(185.0),
            },
        })
    }

    fn eval(step: u64, values: [f64; 3]) -> Record {
        let names = ["loss", "slot.exact_match_f", "slot.mean"];
        let metrics = names.map(str::to_owned).into_iter().zip(values);
        Record::Eval(EvalRecord {
            step,
            epoch: 0.5,
            metrics: metrics.collect(),
            elapsed_secs: 3720.0,
        })
    }

    #[test]
    fn without_a_terminal_each_record_is_lines_of_at_most_80_columns() {
        let shared = SharedWriter::default();
        let mut sink = TerminalSink::lines(400, Box::new(shared.clone()))
            .with_chosen(["slot.mean"].into_iter());
        for record in [
            eval(0, [1.5, 0.0, 0.25]),
            step(),
            eval(40, [0.75, 0.5, 0.625]),
        ] {
            sink.record(&record);
        }
        let expected = "\
step 0/400  evaluated in 1h02m
  slot.mean               0.2500  selects BEST
  loss                    1.5000
  slot.exact_match_f      0.0000
step 40/400  loss 0.4321  eta 3m05s  lr 9.50e-4  grad 0.812  812 tok/s  1.50 GiB
step 40/400  evaluated in 1h02m
  metric                 step 40      step 0
  slot.mean               0.6250      0.2500  selects BEST
  loss                    0.7500      1.5000
  slot.exact_match_f      0.5000      0.0000
";
        assert_eq!(shared.text(), expected);
        assert!(expected.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn the_least_important_fields_are_dropped_first() {
        let fields = ["lr 9.50e-4", "grad 0.812", "8120 tok/s"].map(str::to_owned);
        let prefix = "step 40000/100000  loss 0.4321  eta 12h05m".to_owned();
        assert_eq!(
            with_details(prefix.clone(), &fields),
            "step 40000/100000  loss 0.4321  eta 12h05m  lr 9.50e-4  grad 0.812  8120 tok/s"
        );
        let wider = fields.map(|field| field + " and more");
        assert_eq!(
            with_details(prefix, &wider),
            "step 40000/100000  loss 0.4321  eta 12h05m  lr 9.50e-4 and more"
        );
    }

    #[test]
    fn without_a_terminal_a_slow_run_prints_its_duration_once() {
        let shared = SharedWriter::default();
        let mut sink = TerminalSink::lines(400, Box::new(shared.clone()));
        for (seconds, remaining_secs) in [(1.0, None), (9.0, Some(4e3)), (11.0, Some(3e3))] {
            sink.drawn = None;
            sink.update_progress(&ProgressUpdate {
                step: 0.5,
                loss: None,
                elapsed_secs: seconds,
                remaining_secs,
            });
        }
        sink.update_progress(&ProgressUpdate {
            step: 1.5,
            loss: Some(0.5),
            elapsed_secs: 20.0,
            remaining_secs: Some(2e3),
        });
        assert_eq!(shared.text(), "step 0/400  eta 50m00s\n");
    }

    #[test]
    fn a_resumed_run_reports_its_start_and_whether_steps_are_left() {
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
            let shared = SharedWriter::default();
            let mut sink = TerminalSink::lines(4000, Box::new(shared.clone()));
            sink.record(&Record::Resumed(ResumeRecord {
                checkpoint: format!("runs/x/checkpoint-{step}").into(),
                step,
                is_over,
            }));
            assert_eq!(shared.text(), format!("{expected}\n"));
        }
    }

    /// Invariant: A failing log writer or closed pipe never stops a run.
    #[test]
    fn a_closed_output_does_not_stop_the_run() {
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
