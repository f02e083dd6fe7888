//! Records -> `metrics.jsonl` and `timing.jsonl`, one JSON object a line.
//!
//! `metrics.jsonl` holds only what config and seed decide. A checkpoint remembers the length of
//! the file; resuming cuts off what was written after it, so that the steps done again give the
//! same lines in the same place. `timing.jsonl` holds what the clock decides and is only ever
//! appended to; each attempt at the run begins with a line of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::{EvalRecord, MetricSink, MetricsError, Record, StepRecord};

/// Name of the file with losses and scores, in the run directory.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Name of the file with speeds and memory, in the run directory.
pub const TIMING_FILE: &str = "timing.jsonl";

/// What evaluations are marked with, in the file as in TensorBoard.
const EVAL_PREFIX: &str = "eval/";

/// The two files of a run.
#[derive(Debug)]
pub struct JsonlSink {
    metrics: Appended,
    timing: Appended,
    attempt: u32,
}

impl JsonlSink {
    /// Begins the files of a new run in an existing directory.
    ///
    /// # Errors
    ///
    /// - the directory has a `metrics.jsonl` already
    /// - a file cannot be created
    pub fn create(run_dir: &Path) -> Result<Self, MetricsError> {
        let path = run_dir.join(METRICS_FILE);
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Ok(file) => Self::start(Appended { file, path }, run_dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(MetricsError::Exists { path })
            }
            Err(source) => Err(MetricsError::Open { path, source }),
        }
    }

    /// Goes on at the `position` that a checkpoint remembers; what was written later is cut off.
    ///
    /// # Errors
    ///
    /// - `metrics.jsonl` is missing, or shorter than `position`
    /// - a file cannot be opened or cut
    pub fn resume(run_dir: &Path, position: u64) -> Result<Self, MetricsError> {
        let path = run_dir.join(METRICS_FILE);
        let open = |source| MetricsError::Open {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new().append(true).open(&path).map_err(open)?;
        let found = file.metadata().map_err(open)?.len();
        if found < position {
            return Err(MetricsError::Shortened {
                path,
                expected: position,
                found,
            });
        }
        file.set_len(position).map_err(open)?;
        Self::start(Appended { file, path }, run_dir)
    }

    fn start(metrics: Appended, run_dir: &Path) -> Result<Self, MetricsError> {
        let mut timing = Appended::open(run_dir.join(TIMING_FILE))?;
        let attempt = timing.mend_and_count_starts()? + 1;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        timing.append(&json!({ "attempt": attempt, "started_unix_secs": now }))?;
        Ok(Self {
            metrics,
            timing,
            attempt,
        })
    }

    /// How often the run was started, this time included.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Bytes of `metrics.jsonl`, all of them safely on disk: the position for a checkpoint.
    ///
    /// # Errors
    ///
    /// If the file cannot be synced.
    pub fn position(&self) -> Result<u64, MetricsError> {
        let Appended { file, path } = &self.metrics;
        let write = |source| MetricsError::Write {
            path: path.clone(),
            source,
        };
        file.sync_data().map_err(write)?;
        Ok(file.metadata().map_err(write)?.len())
    }
}

impl MetricSink for JsonlSink {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        match record {
            Record::Step(step) => {
                self.metrics.append(&step_metrics(step))?;
                self.timing.append(&step_timing(step))
            }
            Record::Eval(eval) => {
                self.metrics.append(&eval_metrics(eval))?;
                self.timing
                    .append(&json!({ "step": eval.step, "eval_secs": eval.elapsed_secs }))
            }
        }
    }
}

fn step_metrics(step: &StepRecord) -> Value {
    json!({
        "step": step.step,
        "epoch": step.epoch,
        "loss": step.loss,
        "grad_norm": step.grad_norm,
        "learning_rate": step.learning_rate,
        "tokens": step.tokens,
        "trained_tokens": step.trained_tokens,
    })
}

fn step_timing(step: &StepRecord) -> Value {
    json!({
        "step": step.step,
        "elapsed_secs": step.timing.elapsed_secs,
        "tokens_per_sec": step.timing.tokens_per_sec,
        "trained_tokens_per_sec": step.timing.trained_tokens_per_sec,
        "peak_rss_bytes": step.timing.peak_rss_bytes,
    })
}

fn eval_metrics(eval: &EvalRecord) -> Value {
    let mut line = Map::new();
    line.insert("step".to_owned(), eval.step.into());
    line.insert("epoch".to_owned(), eval.epoch.into());
    for (name, value) in &eval.metrics {
        line.insert(format!("{EVAL_PREFIX}{name}"), (*value).into());
    }
    Value::Object(line)
}

/// An evaluation as `metrics.jsonl` remembers it.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Optimizer steps before it.
    pub step: u64,
    /// Values by name, without those that were not finite.
    pub metrics: Vec<(String, f64)>,
}

/// The evaluations in the `metrics.jsonl` of a run directory, in their order.
///
/// # Errors
///
/// - the file cannot be read
/// - a line other than a cut-off last one is not a JSON object with a step
pub fn read_evaluations(run_dir: &Path) -> Result<Vec<Evaluation>, MetricsError> {
    let path = run_dir.join(METRICS_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(MetricsError::Open { path, source }),
    };
    let mut evaluations = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        // A process that was killed while writing leaves a line without its end.
        let Some(line) = line.strip_suffix('\n') else {
            break;
        };
        let evaluation = parse_evaluation(line).map_err(|message| MetricsError::BadLine {
            path: path.clone(),
            line: index + 1,
            message,
        })?;
        evaluations.extend(evaluation);
    }
    Ok(evaluations)
}

fn parse_evaluation(line: &str) -> Result<Option<Evaluation>, String> {
    let fields: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("no JSON object: {error}"))?;
    let Some(step) = fields.get("step").and_then(Value::as_u64) else {
        return Err("the object has no whole number \"step\"".to_owned());
    };
    let is_evaluation = fields.keys().any(|key| key.starts_with(EVAL_PREFIX));
    let metrics = fields.iter().filter_map(|(key, value)| {
        Some((key.strip_prefix(EVAL_PREFIX)?.to_owned(), value.as_f64()?))
    });
    Ok(is_evaluation.then(|| Evaluation {
        step,
        metrics: metrics.collect(),
    }))
}

/// A file that only grows.
#[derive(Debug)]
struct Appended {
    file: File,
    path: PathBuf,
}

impl Appended {
    fn open(path: PathBuf) -> Result<Self, MetricsError> {
        match OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
        {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(MetricsError::Open { path, source }),
        }
    }

    /// Writes the line at once, so that a killed process leaves at most one line unfinished.
    fn append(&mut self, line: &Value) -> Result<(), MetricsError> {
        self.write(format!("{line}\n").as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), MetricsError> {
        let Self { file, path } = self;
        file.write_all(bytes).map_err(|source| MetricsError::Write {
            path: path.clone(),
            source,
        })
    }

    /// Ends a line that was cut off, and counts the attempts so far.
    fn mend_and_count_starts(&mut self) -> Result<u32, MetricsError> {
        let mut bytes = Vec::new();
        let read = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.read_to_end(&mut bytes));
        read.map_err(|source| MetricsError::Open {
            path: self.path.clone(),
            source,
        })?;
        if bytes.last().is_some_and(|last| *last != b'\n') {
            self.write(b"\n")?;
        }
        let starts = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
            let fields: Value = serde_json::from_slice(line).ok()?;
            fields.get("attempt")?.as_u64()
        });
        Ok(starts
            .max()
            .and_then(|last| u32::try_from(last).ok())
            .unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Timing;
    use super::*;

    type TestResult = Result<(), Box<dyn std::error::Error>>;

    fn step(step: u64) -> Record {
        Record::Step(StepRecord {
            step,
            epoch: step as f64 / 3.0,
            loss: 1.0 / (step as f64 + 1.0),
            grad_norm: 0.1,
            learning_rate: 1e-3,
            tokens: step * 100,
            trained_tokens: step * 7,
            timing: Timing {
                elapsed_secs: step as f64,
                ..Timing::default()
            },
        })
    }

    fn eval(step: u64) -> Record {
        let metrics = vec![
            ("loss".to_owned(), 0.5),
            ("slot.mean".to_owned(), step as f64 / 10.0),
        ];
        Record::Eval(EvalRecord {
            step,
            epoch: 0.5,
            metrics,
            elapsed_secs: 2.0,
        })
    }

    #[test]
    fn lines_are_json_with_the_shortest_exact_numbers() -> TestResult {
        let run = tempfile::tempdir()?;
        let mut sink = JsonlSink::create(run.path())?;
        sink.record(&eval(0))?;
        sink.record(&step(1))?;
        let expected = "\
{\"step\":0,\"epoch\":0.5,\"eval/loss\":0.5,\"eval/slot.mean\":0.0}
{\"step\":1,\"epoch\":0.3333333333333333,\"loss\":0.5,\"grad_norm\":0.1,\
\"learning_rate\":0.001,\"tokens\":100,\"trained_tokens\":7}
";
        assert_eq!(fs::read_to_string(run.path().join(METRICS_FILE))?, expected);
        Ok(())
    }

    #[test]
    fn a_resumed_run_writes_the_bytes_of_an_uninterrupted_one() -> TestResult {
        let whole = tempfile::tempdir()?;
        let mut sink = JsonlSink::create(whole.path())?;
        for index in 1..=6 {
            sink.record(&step(index))?;
            sink.record(&eval(index))?;
        }

        let cut = tempfile::tempdir()?;
        let mut sink = JsonlSink::create(cut.path())?;
        sink.record(&step(1))?;
        sink.record(&eval(1))?;
        let position = sink.position()?;
        sink.record(&step(2))?;
        drop(sink);
        let path = cut.path().join(METRICS_FILE);
        OpenOptions::new()
            .append(true)
            .open(&path)?
            .write_all(b"{\"step\":3,\"lo")?;

        let mut sink = JsonlSink::resume(cut.path(), position)?;
        assert_eq!(sink.attempt(), 2);
        for index in 2..=6 {
            sink.record(&step(index))?;
            sink.record(&eval(index))?;
        }
        assert_eq!(fs::read(path)?, fs::read(whole.path().join(METRICS_FILE))?);
        Ok(())
    }

    #[test]
    fn timing_survives_a_cut_line_and_counts_attempts() -> TestResult {
        let run = tempfile::tempdir()?;
        let sink = JsonlSink::create(run.path())?;
        assert_eq!(sink.attempt(), 1);
        let path = run.path().join(TIMING_FILE);
        OpenOptions::new()
            .append(true)
            .open(&path)?
            .write_all(b"{\"step\":3,\"el")?;
        for attempt in 2..4 {
            let mut sink = JsonlSink::resume(run.path(), 0)?;
            sink.record(&step(1))?;
            assert_eq!(sink.attempt(), attempt);
        }
        let text = fs::read_to_string(path)?;
        let bad = text
            .lines()
            .filter(|line| serde_json::from_str::<Value>(line).is_err());
        assert_eq!(bad.count(), 1, "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
        Ok(())
    }

    #[test]
    fn nothing_is_written_over_and_nothing_lost_goes_unnoticed() -> TestResult {
        let run = tempfile::tempdir()?;
        let mut sink = JsonlSink::create(run.path())?;
        sink.record(&step(1))?;
        let position = sink.position()?;
        let create = JsonlSink::create(run.path());
        assert!(
            matches!(create, Err(MetricsError::Exists { .. })),
            "{create:?}"
        );
        let resume = JsonlSink::resume(run.path(), position + 1);
        assert!(
            matches!(resume, Err(MetricsError::Shortened { .. })),
            "{resume:?}"
        );
        assert_eq!(fs::metadata(run.path().join(METRICS_FILE))?.len(), position);
        let nowhere = JsonlSink::resume(&run.path().join("no"), 0);
        assert!(
            matches!(nowhere, Err(MetricsError::Open { .. })),
            "{nowhere:?}"
        );
        Ok(())
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null() -> TestResult {
        let run = tempfile::tempdir()?;
        let mut sink = JsonlSink::create(run.path())?;
        let Record::Step(mut bad) = step(1) else {
            return Ok(());
        };
        bad.loss = f64::NAN;
        sink.record(&Record::Step(bad))?;
        let text = fs::read_to_string(run.path().join(METRICS_FILE))?;
        assert!(text.contains("\"loss\":null"), "{text}");
        Ok(())
    }

    #[test]
    fn evaluations_are_read_back_without_the_steps_between() -> TestResult {
        let run = tempfile::tempdir()?;
        let mut sink = JsonlSink::create(run.path())?;
        for index in 0..3 {
            sink.record(&step(index))?;
            sink.record(&eval(index))?;
        }
        let path = run.path().join(METRICS_FILE);
        OpenOptions::new()
            .append(true)
            .open(&path)?
            .write_all(b"{\"step\":9,\"eval/lo")?;
        let evaluations = read_evaluations(run.path())?;
        assert_eq!(evaluations.len(), 3);
        assert_eq!(evaluations[2].step, 2);
        assert_eq!(evaluations[2].metrics[1], ("slot.mean".to_owned(), 0.2));
        fs::write(&path, "{\"step\":1}\nnonsense\n")?;
        let error = read_evaluations(run.path());
        assert!(
            matches!(error, Err(MetricsError::BadLine { line: 2, .. })),
            "{error:?}"
        );
        Ok(())
    }
}
