//! Writes TensorBoard event files in a separate thread, so that an error or a panic affects only
//! the curves.
//!
//! Each start of a run adds a file to the same folder. Its first record makes TensorBoard discard
//! the records of earlier files that have the same or later steps.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use protobuf::well_known_types;
use protobuf::{Message, RepeatedField};
use serde_json::Value;
use tensorboard_proto::api::Status;
use tensorboard_proto::event::{Event, SessionLog, SessionLog_SessionStatus};
use tensorboard_proto::plugin_hparams::{HParamsPluginData, SessionEndInfo, SessionStartInfo};
use tensorboard_proto::summary::{
    Summary, Summary_Value, SummaryMetadata, SummaryMetadata_PluginData,
};
use tensorboard_proto::tensor::TensorProto;
use tensorboard_proto::tensor_shape::{TensorShapeProto, TensorShapeProto_Dim};
use tensorboard_proto::types::DataType;
use tooltune_disk::appended::{Loss, detect_loss, write_again};

use super::{MetricSink, Record, StepRecord};

/// Writes curves to `tb/` in the run directory.
#[derive(Debug)]
pub struct TensorBoardSink {
    writer: Option<WriterThread>,
}

#[derive(Debug)]
struct WriterThread {
    sender: Sender<Record>,
    thread: JoinHandle<Result<(), String>>,
}

/// Information about a run, written before its first record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunHeader {
    /// The config, displayed under TEXT.
    pub config: String,
    /// Settings by path, each as JSON, displayed under HPARAMS.
    pub settings: BTreeMap<String, String>,
    /// First step of this start of the run. Earlier records with this or a later step are hidden.
    pub first_step: u64,
    /// Last step of the run.
    pub total_steps: u64,
}

impl TensorBoardSink {
    /// Starts the writer of a new event file in `tb/`.
    ///
    /// Never fails: an error is logged once as a warning and ends the curves.
    pub fn start(run_dir: &Path, run: RunHeader) -> Self {
        let folder = run_dir.join("tb");
        let total_steps = run.total_steps;
        Self::start_with(total_steps, move || {
            let mut file = EventFile::create(&folder)?;
            file.write_header(&run)?;
            Ok(file)
        })
    }

    fn start_with<W: Write>(
        total_steps: u64,
        open: impl FnOnce() -> io::Result<EventFile<W>> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = channel();
        let spawned = std::thread::Builder::new()
            .name("tensorboard".to_owned())
            .spawn(move || {
                let writing = || open().and_then(|file| write_all(file, &receiver, total_steps));
                match catch_unwind(AssertUnwindSafe(writing)) {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("its writer panicked".to_owned()),
                }
            });
        match spawned {
            Ok(thread) => Self {
                writer: Some(WriterThread { sender, thread }),
            },
            Err(error) => {
                warn(&error.to_string());
                Self { writer: None }
            }
        }
    }

    /// Ends the thread after it has written all records, and logs its error, if any.
    fn stop(&mut self) {
        let Some(WriterThread { sender, thread }) = self.writer.take() else {
            return;
        };
        drop(sender);
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => warn(&reason),
            Err(_) => warn("its thread panicked"),
        }
    }
}

fn warn(reason: &str) {
    tracing::warn!(
        "TensorBoard is off for the rest of this run: {reason}; metrics.jsonl continues"
    );
}

impl MetricSink for TensorBoardSink {
    fn record(&mut self, record: &Record) {
        let result = self
            .writer
            .as_ref()
            .map(|writer| writer.sender.send(record.clone()));
        if matches!(result, Some(Err(_))) {
            self.stop();
        }
    }
}

impl Drop for TensorBoardSink {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Writes records until the sender is dropped. Then marks the run as finished if its last step was
/// done.
fn write_all<W: Write>(
    mut file: EventFile<W>,
    records: &Receiver<Record>,
    total_steps: u64,
) -> io::Result<()> {
    let mut is_over = false;
    for record in records {
        match record {
            // The header of the file already hides older records from this step on.
            Record::Resumed(record) => is_over = record.is_over,
            Record::Step(StepRecord { metrics, .. }) => {
                is_over = metrics.step >= total_steps;
                let scalars = [
                    ("train/loss", metrics.loss),
                    ("train/grad_norm", metrics.grad_norm),
                    ("train/learning_rate", metrics.learning_rate),
                    ("train/epoch", metrics.epoch),
                ];
                file.write_scalars(metrics.step, &scalars)?;
            }
            Record::Retriever(record) => {
                is_over |= record.timing.is_some() && record.step >= total_steps;
                let scalars = [
                    ("train/retriever_loss", record.loss),
                    ("train/retriever_grad_norm", record.grad_norm),
                    ("train/retriever_learning_rate", record.learning_rate),
                ];
                file.write_scalars(record.step, &scalars)?;
            }
            Record::Eval(record) => {
                let tags: Vec<(String, f64)> = record
                    .metrics
                    .iter()
                    .map(|(name, value)| (format!("eval/{name}"), *value))
                    .collect();
                file.write_scalars(record.step, &tags)?;
            }
        }
    }
    match is_over {
        true => file.write(total_steps, session_end()?),
        false => Ok(()),
    }
}

/// One event file.
struct EventFile<W: Write> {
    output: W,
}

/// An event file that is written again if another program removes it during the run.
struct CurveFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
}

impl CurveFile {
    fn restore(&mut self) -> io::Result<()> {
        let path = self.path.display();
        let changed = match detect_loss(&self.file, &self.path, self.n_bytes)? {
            None => return Ok(()),
            Some(Loss::Removed) => {
                // Create only `tb` itself, because the run is responsible for the run directory.
                if let Some(folder) = self.path.parent() {
                    let _ = fs::create_dir(folder);
                }
                let again = write_again(&mut self.file, &self.path);
                self.file = again.map_err(io::Error::other)?;
                tracing::warn!(
                    "{path}: the file was removed during the run; wrote it again with all its \
                     curves"
                );
                return Ok(());
            }
            Some(Loss::Replaced) => "replaced",
            Some(Loss::Truncated) => "truncated",
        };
        let reason = format!("{path}: another program {changed} the file");
        Err(io::Error::other(reason))
    }
}

impl Write for CurveFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.restore()?;
        let n_written = self.file.write(bytes)?;
        self.n_bytes += n_written as u64;
        Ok(n_written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl EventFile<BufWriter<CurveFile>> {
    /// Creates a file with a unique name, and its folder if necessary.
    fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let secs = now().floor();
        let pid = std::process::id();
        let mut number = 0;
        let file = loop {
            let name = format!("events.out.tfevents.{secs:010}.tooltune.{pid}.{number}");
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            options.read(true).append(true).create_new(true);
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                opened => {
                    let file = opened?;
                    break CurveFile {
                        path,
                        file,
                        n_bytes: 0,
                    };
                }
            }
        };
        Self::begin(BufWriter::new(file))
    }
}

impl<W: Write> EventFile<W> {
    /// Writes the record that every event file begins with.
    fn begin(output: W) -> io::Result<Self> {
        let mut file = Self { output };
        let mut version = Event::new();
        version.set_file_version("brain.Event:2".to_owned());
        file.write_event(version)?;
        Ok(file)
    }

    fn write_header(&mut self, run: &RunHeader) -> io::Result<()> {
        let mut start = SessionLog::new();
        start.set_status(SessionLog_SessionStatus::START);
        let mut event = Event::new();
        event.set_step(to_i64(run.first_step));
        event.set_session_log(start);
        self.write_event(event)?;
        self.write(run.first_step, text("config", &run.config))?;
        self.write(run.first_step, session_start(&run.settings)?)
    }

    fn write_scalars(&mut self, step: u64, values: &[(impl AsRef<str>, f64)]) -> io::Result<()> {
        let mut summary = Summary::new();
        for (tag, value) in values.iter().filter(|(_, value)| value.is_finite()) {
            // TensorBoard's simple values have 32 bits.
            let mut scalar = Summary_Value::new();
            scalar.set_tag(tag.as_ref().to_owned());
            scalar.set_simple_value(*value as f32);
            summary.mut_value().push(scalar);
        }
        self.write(step, summary)
    }

    fn write(&mut self, step: u64, summary: Summary) -> io::Result<()> {
        let mut event = Event::new();
        event.set_step(to_i64(step));
        event.set_summary(summary);
        self.write_event(event)
    }

    /// Writes a framed event with one system call, so that TensorBoard reads complete records.
    fn write_event(&mut self, mut event: Event) -> io::Result<()> {
        event.set_wall_time(now());
        self.output
            .write_all(&frame_record(&event.write_to_bytes()?))?;
        self.output.flush()
    }
}

/// A record of a TFRecord file: the length, its checksum, the payload, and its checksum.
///
/// # Source
///
/// TensorFlow's `tensorflow/core/lib/io/record_writer.h`.
fn frame_record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(payload.len() + 16);
    record.extend(length);
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(payload);
    record.extend(masked_checksum(payload).to_le_bytes());
    record
}

/// CRC-32C, rotated and offset, so that checksums of data that contains checksums remain useful.
fn masked_checksum(bytes: &[u8]) -> u32 {
    const MASK_DELTA: u32 = 0xa282_ead8;
    let checksum = crc32c::crc32c(bytes);
    checksum.rotate_right(15).wrapping_add(MASK_DELTA)
}

fn to_i64(step: u64) -> i64 {
    i64::try_from(step).unwrap_or(i64::MAX)
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

/// A summary for the text plugin. It renders Markdown, so indented text becomes a code block.
fn text(tag: &str, content: &str) -> Summary {
    let block: String = content
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect();
    let mut tensor = single_value(DataType::DT_STRING);
    tensor.set_string_val(RepeatedField::from_vec(vec![block.into_bytes()]));
    let mut plugin = SummaryMetadata_PluginData::new();
    plugin.set_plugin_name("text".to_owned());
    plugin_summary(format!("{tag}/text_summary"), plugin, tensor)
}

/// Settings of a run for TensorBoard's HParams tab.
fn session_start(settings: &BTreeMap<String, String>) -> io::Result<Summary> {
    let mut start = SessionStartInfo::new();
    start.set_start_time_secs(now());
    for (path, json) in settings {
        start
            .mut_hparams()
            .insert(path.clone(), hyperparameter(json));
    }
    let mut data = HParamsPluginData::new();
    data.set_session_start_info(start);
    hparams("_hparams_/session_start_info", &data)
}

/// Marks the run as finished. Without it, the HParams tab shows the run as running.
fn session_end() -> io::Result<Summary> {
    let mut end = SessionEndInfo::new();
    end.set_status(Status::STATUS_SUCCESS);
    end.set_end_time_secs(now());
    let mut data = HParamsPluginData::new();
    data.set_session_end_info(end);
    hparams("_hparams_/session_end_info", &data)
}

/// Converts numbers, booleans and strings unchanged, and other values to JSON text, because the
/// HParams tab has no lists.
fn hyperparameter(json: &str) -> well_known_types::Value {
    let mut value = well_known_types::Value::new();
    match serde_json::from_str(json) {
        Ok(Value::Bool(is_set)) => value.set_bool_value(is_set),
        Ok(Value::Number(number)) => value.set_number_value(number.as_f64().unwrap_or(f64::NAN)),
        Ok(Value::String(text)) => value.set_string_value(text),
        _ => value.set_string_value(json.to_owned()),
    }
    value
}

fn hparams(tag: &str, data: &HParamsPluginData) -> io::Result<Summary> {
    let mut plugin = SummaryMetadata_PluginData::new();
    plugin.set_plugin_name("hparams".to_owned());
    plugin.set_content(data.write_to_bytes()?);
    // The content is in the plugin data, but TensorBoard ignores a summary without a tensor.
    let mut nothing = single_value(DataType::DT_FLOAT);
    nothing.set_float_val(vec![0.0]);
    Ok(plugin_summary(tag.to_owned(), plugin, nothing))
}

fn single_value(dtype: DataType) -> TensorProto {
    let mut dimension = TensorShapeProto_Dim::new();
    dimension.set_size(1);
    let mut shape = TensorShapeProto::new();
    shape.set_dim(RepeatedField::from_vec(vec![dimension]));
    let mut tensor = TensorProto::new();
    tensor.set_dtype(dtype);
    tensor.set_tensor_shape(shape);
    tensor
}

fn plugin_summary(tag: String, plugin: SummaryMetadata_PluginData, tensor: TensorProto) -> Summary {
    let mut metadata = SummaryMetadata::new();
    metadata.set_plugin_data(plugin);
    let mut value = Summary_Value::new();
    value.set_tag(tag);
    value.set_metadata(metadata);
    value.set_tensor(tensor);
    let mut summary = Summary::new();
    summary.set_value(RepeatedField::from_vec(vec![value]));
    summary
}

#[cfg(test)]
mod tests;
