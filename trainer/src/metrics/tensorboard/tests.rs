//! Event files are read back by a parser that shares no code with what wrote them: framing,
//! checksums and protobuf fields by hand, from the format's description.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::{EvalRecord, StepRecord, Timing};
use super::*;

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn step(step: u64) -> Record {
    Record::Step(StepRecord {
        step,
        epoch: 0.25,
        loss: 1.0 / (step as f64 + 1.0),
        grad_norm: 2.5,
        learning_rate: 1e-3,
        tokens: 1,
        trained_tokens: 1,
        timing: Timing::default(),
    })
}

fn eval(step: u64) -> Record {
    let metrics = vec![("loss".to_owned(), 0.5), ("slot.mean".to_owned(), f64::NAN)];
    Record::Eval(EvalRecord {
        step,
        epoch: 0.5,
        metrics,
        elapsed_secs: 2.0,
    })
}

/// The payloads of a file of framed records.
fn unframe(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at(8);
        assert_eq!(le32(rest), masked_crc(length), "checksum of a length");
        let length = usize::try_from(le64(length)).unwrap_or(usize::MAX);
        let (payload, rest) = rest[4..].split_at(length);
        assert_eq!(le32(rest), masked_crc(payload), "checksum of a payload");
        payloads.push(payload.to_vec());
        bytes = &rest[4..];
    }
    payloads
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

fn le32(bytes: &[u8]) -> u32 {
    bytes[..4]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn le64(bytes: &[u8]) -> u64 {
    bytes[..8]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A protobuf field: its number and its bytes; numbers are given as eight little-endian bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                let value = varint(&mut bytes);
                fields.push((key >> 3, value.to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes),
            5 => 4,
            kind => panic!("wire type {kind}"),
        };
        let (value, rest) = bytes.split_at(usize::try_from(length).unwrap_or(usize::MAX));
        fields.push((key >> 3, value.to_vec()));
        bytes = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_at(1);
        *bytes = rest;
        value |= u64::from(first[0] & 0x7f) << shift;
        if first[0] < 0x80 {
            break;
        }
    }
    value
}

fn field(message: &[u8], number: u64) -> Option<Vec<u8>> {
    fields(message)
        .into_iter()
        .find(|(found, _)| *found == number)
        .map(|(_, value)| value)
}

/// A step, a tag and its simple value.
type Scalar = (u64, String, f32);

/// The version in the first record, and the scalars of all others.
fn read(folder: &Path) -> Result<(String, Vec<Scalar>), Box<dyn std::error::Error>> {
    let files: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    assert_eq!(files.len(), 1, "{files:?}");
    let events = unframe(&fs::read(&files[0])?);
    let version = String::from_utf8(field(&events[0], 3).unwrap_or_default())?;
    let mut scalars = Vec::new();
    for event in &events[1..] {
        let wall_time = f64::from_bits(le64(&field(event, 1).unwrap_or_default()));
        assert!(wall_time > 1.6e9, "{wall_time}");
        let step = field(event, 2).map_or(0, |step| le64(&step));
        let summary = field(event, 5).unwrap_or_default();
        for (_, value) in fields(&summary) {
            let tag = String::from_utf8(field(&value, 1).unwrap_or_default())?;
            if let Some(simple) = field(&value, 2) {
                scalars.push((step, tag, f32::from_bits(le32(&simple))));
            }
        }
    }
    Ok((version, scalars))
}

#[test]
fn event_files_are_read_back_by_an_independent_parser() -> TestResult {
    let run = tempfile::tempdir()?;
    let mut sink = TensorBoardSink::start(run.path(), 1, "a = 1\nb = 2\n");
    sink.record(&eval(0));
    for index in 1..=300 {
        sink.record(&step(index));
    }
    drop(sink);

    let (version, scalars) = read(&run.path().join("tb/train-1"))?;
    assert_eq!(version, "brain.Event:2");
    assert_eq!(scalars.len(), 4 * 300);
    let losses = scalars.iter().filter(|(_, tag, _)| tag == "train/loss");
    for (index, (step, _, value)) in losses.enumerate() {
        assert_eq!(*step, index as u64 + 1);
        assert_eq!(*value, (1.0 / (index as f64 + 2.0)) as f32);
    }
    let tags: Vec<&str> = scalars[..4]
        .iter()
        .map(|(_, tag, _)| tag.as_str())
        .collect();
    assert_eq!(
        tags,
        [
            "train/loss",
            "train/grad_norm",
            "train/learning_rate",
            "train/epoch"
        ]
    );

    let (_, scalars) = read(&run.path().join("tb/eval-1"))?;
    assert_eq!(scalars, [(0, "eval/loss".to_owned(), 0.5)]);
    Ok(())
}

#[test]
fn the_config_is_shown_as_text() -> TestResult {
    let run = tempfile::tempdir()?;
    drop(TensorBoardSink::start(run.path(), 1, "a = 1\n"));
    let entry = fs::read_dir(run.path().join("tb/train-1"))?
        .next()
        .ok_or("no file")??;
    let events = unframe(&fs::read(entry.path())?);
    let value = field(&field(&events[1], 5).ok_or("no summary")?, 1).ok_or("no value")?;
    assert_eq!(field(&value, 1).ok_or("no tag")?, b"config/text_summary");
    let plugin = field(&field(&value, 9).ok_or("no metadata")?, 1).ok_or("no plugin")?;
    assert_eq!(field(&plugin, 1).ok_or("no name")?, b"text");
    let tensor = field(&value, 8).ok_or("no tensor")?;
    assert_eq!(
        field(&tensor, 1).map(|kind| le64(&kind)),
        Some(7),
        "DT_STRING"
    );
    assert_eq!(field(&tensor, 8).ok_or("no text")?, b"    a = 1\n");
    Ok(())
}

#[test]
fn attempts_in_the_same_second_never_share_a_file() -> TestResult {
    let run = tempfile::tempdir()?;
    for attempt in [1, 2] {
        let mut sink = TensorBoardSink::start(run.path(), attempt, "");
        sink.record(&step(attempt.into()));
    }
    for attempt in [1, 2] {
        let (_, scalars) = read(&run.path().join(format!("tb/train-{attempt}")))?;
        assert_eq!(scalars.len(), 4);
    }
    let folder = run.path().join("same");
    drop([EventFile::create(&folder)?, EventFile::create(&folder)?]);
    assert_eq!(fs::read_dir(folder)?.count(), 2);
    Ok(())
}

/// Collects what is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
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

/// Runs a sink through many records and counts its warnings.
fn warnings(start: impl FnOnce() -> TensorBoardSink) -> usize {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut sink = start();
        for index in 0..50 {
            sink.record(&step(index));
        }
    });
    let written = log.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    String::from_utf8_lossy(&written)
        .matches("TensorBoard is off")
        .count()
}

/// Takes some bytes, then fails in one of two ways.
struct Failing {
    bytes_left: usize,
    panics: bool,
}

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes_left >= bytes.len() {
            self.bytes_left -= bytes.len();
            return Ok(bytes.len());
        }
        assert!(!self.panics, "a writer that panics");
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_failing_writer_is_dropped_with_one_warning() -> TestResult {
    let run = tempfile::tempdir()?;
    fs::write(run.path().join("tb"), "a file where the folder should be")?;
    assert_eq!(warnings(|| TensorBoardSink::start(run.path(), 1, "")), 1);
    for panics in [false, true] {
        let open = move || {
            let file = |bytes_left| EventFile::begin(Failing { bytes_left, panics });
            Ok(EventFiles {
                train: file(500)?,
                eval: file(100)?,
            })
        };
        assert_eq!(warnings(|| TensorBoardSink::start_with(open)), 1);
    }
    Ok(())
}

#[test]
fn a_working_writer_warns_of_nothing() -> TestResult {
    let run = tempfile::tempdir()?;
    assert_eq!(warnings(|| TensorBoardSink::start(run.path(), 1, "")), 0);
    Ok(())
}
