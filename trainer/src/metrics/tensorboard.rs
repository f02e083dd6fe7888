//! Writes TensorBoard event files, in a thread whose failure nobody has to notice.
//!
//! Of tensorboard-rs only the record framing and the scalar summaries are used. Its
//! `SummaryWriter` panics in its constructor, in its methods and while it is dropped, and a panic
//! while another one unwinds ends the process; so the file is opened and written here, and an
//! error or a panic costs the curves and nothing else. Train and evaluation write to directories
//! of their own, new for each attempt, and never append to an event file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use protobuf::{Message, RepeatedField};
use tensorboard_proto::event::Event;
use tensorboard_proto::summary::{
    Summary, Summary_Value, SummaryMetadata, SummaryMetadata_PluginData,
};
use tensorboard_proto::tensor::TensorProto;
use tensorboard_proto::tensor_shape::{TensorShapeProto, TensorShapeProto_Dim};
use tensorboard_proto::types::DataType;
use tensorboard_rs::record_writer::RecordWriter;
use tensorboard_rs::summary::scalar;

use super::{MetricSink, Record};

/// Curves under `tb/` in the run directory.
#[derive(Debug)]
pub struct TensorBoardSink {
    writer: Option<WriterThread>,
}

#[derive(Debug)]
struct WriterThread {
    sender: Sender<Record>,
    thread: JoinHandle<Result<(), String>>,
}

impl TensorBoardSink {
    /// Starts the writer for the `attempt`-th start of the run, in `tb/train-<attempt>` and
    /// `tb/eval-<attempt>`; `config` is shown under TEXT.
    ///
    /// This does not fail: what goes wrong is logged once, as a warning, and ends the curves.
    pub fn start(run_dir: &Path, attempt: u32, config: &str) -> Self {
        let folder = run_dir.join("tb");
        let config = config.to_owned();
        Self::start_with(move || {
            let mut train = EventFile::create(&folder.join(format!("train-{attempt}")))?;
            train.write(0, text("config", &config))?;
            let eval = EventFile::create(&folder.join(format!("eval-{attempt}")))?;
            Ok(EventFiles { train, eval })
        })
    }

    fn start_with<W: Write>(
        open: impl FnOnce() -> io::Result<EventFiles<W>> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = channel();
        let spawned = std::thread::Builder::new()
            .name("tensorboard".to_owned())
            .spawn(move || {
                let writing = || open().and_then(|files| write_all(files, &receiver));
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

    /// Ends the thread, after it has written what it was sent, and tells how it went.
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
        let sent = self
            .writer
            .as_ref()
            .map(|writer| writer.sender.send(record.clone()));
        if matches!(sent, Some(Err(_))) {
            self.stop();
        }
    }
}

impl Drop for TensorBoardSink {
    fn drop(&mut self) {
        self.stop();
    }
}

struct EventFiles<W: Write> {
    train: EventFile<W>,
    eval: EventFile<W>,
}

/// Writes until the sender is dropped.
fn write_all<W: Write>(mut files: EventFiles<W>, records: &Receiver<Record>) -> io::Result<()> {
    for record in records {
        match record {
            // Its curves begin where the earlier ones end.
            Record::Resumed(_) => {}
            Record::Step(record) => {
                let scalars = [
                    ("train/loss", record.loss),
                    ("train/grad_norm", record.grad_norm),
                    ("train/learning_rate", record.learning_rate),
                    ("train/epoch", record.epoch),
                ];
                files.train.write_scalars(record.step, &scalars)?;
            }
            Record::Retriever(record) => {
                let scalars = [
                    ("train/retriever_loss", record.loss),
                    ("train/retriever_grad_norm", record.grad_norm),
                    ("train/retriever_learning_rate", record.learning_rate),
                ];
                files.train.write_scalars(record.step, &scalars)?;
            }
            Record::Eval(record) => {
                let tags: Vec<(String, f64)> = record
                    .metrics
                    .iter()
                    .map(|(name, value)| (format!("eval/{name}"), *value))
                    .collect();
                files.eval.write_scalars(record.step, &tags)?;
            }
        }
    }
    Ok(())
}

/// One event file.
struct EventFile<W: Write> {
    records: RecordWriter<W>,
}

impl EventFile<BufWriter<File>> {
    /// Creates a file whose name no other has, in a folder that is made if need be.
    fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let secs = now().floor();
        let pid = std::process::id();
        let mut number = 0;
        let file = loop {
            let name = format!("events.out.tfevents.{secs:010}.tooltune.{pid}.{number}");
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(folder.join(name))
            {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                opened => break opened?,
            }
        };
        Self::begin(BufWriter::new(file))
    }
}

impl<W: Write> EventFile<W> {
    /// Writes the record that every event file begins with.
    fn begin(output: W) -> io::Result<Self> {
        let mut file = Self {
            records: RecordWriter::new(output),
        };
        let mut version = Event::new();
        version.set_file_version("brain.Event:2".to_owned());
        file.write_event(version)?;
        Ok(file)
    }

    fn write_scalars(&mut self, step: u64, values: &[(impl AsRef<str>, f64)]) -> io::Result<()> {
        let mut summary = Summary::new();
        for (tag, value) in values.iter().filter(|(_, value)| value.is_finite()) {
            // TensorBoard's simple values are 32 bits wide.
            let mut one = scalar(tag.as_ref(), *value as f32);
            summary.mut_value().extend(one.take_value());
        }
        self.write(step, summary)
    }

    fn write(&mut self, step: u64, summary: Summary) -> io::Result<()> {
        let mut event = Event::new();
        event.set_step(i64::try_from(step).unwrap_or(i64::MAX));
        event.set_summary(summary);
        self.write_event(event)
    }

    /// Frames the event and passes it on to the system, so that TensorBoard sees whole records.
    fn write_event(&mut self, mut event: Event) -> io::Result<()> {
        event.set_wall_time(now());
        self.records.write(&event.write_to_bytes()?)?;
        self.records.flush()
    }
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

/// A summary for the text plugin, which reads Markdown: an indented block stays as it is.
fn text(tag: &str, content: &str) -> Summary {
    let block: String = content
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect();
    let mut dimension = TensorShapeProto_Dim::new();
    dimension.set_size(1);
    let mut shape = TensorShapeProto::new();
    shape.set_dim(RepeatedField::from_vec(vec![dimension]));
    let mut tensor = TensorProto::new();
    tensor.set_dtype(DataType::DT_STRING);
    tensor.set_tensor_shape(shape);
    tensor.set_string_val(RepeatedField::from_vec(vec![block.into_bytes()]));

    let mut plugin = SummaryMetadata_PluginData::new();
    plugin.set_plugin_name("text".to_owned());
    let mut metadata = SummaryMetadata::new();
    metadata.set_plugin_data(plugin);

    let mut value = Summary_Value::new();
    value.set_tag(format!("{tag}/text_summary"));
    value.set_metadata(metadata);
    value.set_tensor(tensor);
    let mut summary = Summary::new();
    summary.set_value(RepeatedField::from_vec(vec![value]));
    summary
}

#[cfg(test)]
mod tests;
