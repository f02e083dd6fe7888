//! Reads event files with an independent parser for framing, checksums and protobuf fields, which
//! follows the format's specification.

use std::path::PathBuf;

use super::super::shared_writer::SharedWriter;
use super::super::{EvalRecord, StepMetrics, StepRecord, Timing};
use super::*;

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn step(step: u64) -> Record {
    Record::Step(StepRecord {
        metrics: StepMetrics {
            step,
            epoch: 0.25,
            loss: 1.0 / (step as f64 + 1.0),
            grad_norm: 2.5,
            learning_rate: 1e-3,
            tokens: 1,
            trained_tokens: 1,
        },
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

/// Payloads of a file of framed records.
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

/// Protobuf fields as number and bytes. Numeric values have eight little-endian bytes.
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
        .find(|(field_number, _)| *field_number == number)
        .map(|(_, value)| value)
}

/// A step, a tag and a value.
type Scalar = (u64, String, f32);

/// Event files of a run, earliest first.
fn files(run: &Path) -> Result<Vec<PathBuf>, Box<dyn std::error::Error>> {
    let files = fs::read_dir(run.join("tb"))?.map(|entry| entry.map(|e| e.path()));
    let mut files: Vec<PathBuf> = files.collect::<Result<_, _>>()?;
    files.sort();
    Ok(files)
}

/// The events of a run's only file.
fn events(run: &Path) -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let files = files(run)?;
    assert_eq!(files.len(), 1, "{files:?}");
    Ok(unframe(&fs::read(&files[0])?))
}

/// The version in the first record, and the scalars of all others.
fn read(file: &Path) -> Result<(String, Vec<Scalar>), Box<dyn std::error::Error>> {
    let events = unframe(&fs::read(file)?);
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

/// Plugin name and content of the summary with tag `tag`.
fn plugin(events: &[Vec<u8>], tag: &str) -> Option<(String, Vec<u8>)> {
    let mut values = events
        .iter()
        .filter_map(|event| field(&field(event, 5)?, 1));
    let value = values.rfind(|value| field(value, 1).as_deref() == Some(tag.as_bytes()))?;
    let plugin = field(&field(&value, 9)?, 1)?;
    let name = String::from_utf8(field(&plugin, 1)?).ok()?;
    Some((name, field(&plugin, 2).unwrap_or_default()))
}

#[test]
fn event_files_are_read_back_by_an_independent_parser() -> TestResult {
    let run = tempfile::tempdir()?;
    let header = RunHeader {
        config: "a = 1\nb = 2\n".to_owned(),
        ..RunHeader::default()
    };
    let mut sink = TensorBoardSink::start(run.path(), header);
    sink.record(&eval(0));
    for index in 1..=300 {
        sink.record(&step(index));
    }
    drop(sink);

    let files = files(run.path())?;
    assert_eq!(files.len(), 1, "a run is one entry: {files:?}");
    let (version, scalars) = read(&files[0])?;
    assert_eq!(version, "brain.Event:2");
    assert_eq!(scalars.len(), 4 * 300 + 1);
    assert_eq!(scalars[0], (0, "eval/loss".to_owned(), 0.5));
    let losses = scalars.iter().filter(|(_, tag, _)| tag == "train/loss");
    for (index, (step, _, value)) in losses.enumerate() {
        assert_eq!(*step, index as u64 + 1);
        assert_eq!(*value, (1.0 / (index as f64 + 2.0)) as f32);
    }
    let tags: Vec<&str> = scalars[1..5]
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
    Ok(())
}

#[test]
fn the_config_is_shown_as_text() -> TestResult {
    let run = tempfile::tempdir()?;
    let header = RunHeader {
        config: "a = 1\n".to_owned(),
        ..RunHeader::default()
    };
    drop(TensorBoardSink::start(run.path(), header));
    let events = events(run.path())?;
    let value = field(&field(&events[2], 5).ok_or("no summary")?, 1).ok_or("no value")?;
    assert_eq!(field(&value, 1).ok_or("no tag")?, b"config/text_summary");
    let (name, _) = plugin(&events, "config/text_summary").ok_or("no plugin")?;
    assert_eq!(name, "text");
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
fn settings_are_typed_hyperparameters_and_finished_runs_are_marked() -> TestResult {
    let run = tempfile::tempdir()?;
    let settings = [
        ("lora.r", "8"),
        ("eval.constrained", "false"),
        ("train.optim", "\"adamw_torch\""),
        ("data.train", "[\"a.jsonl\"]"),
    ];
    let settings = settings.map(|(path, json)| (path.to_owned(), json.to_owned()));
    let header = RunHeader {
        settings: settings.into(),
        total_steps: 2,
        ..RunHeader::default()
    };
    let mut sink = TensorBoardSink::start(run.path(), header.clone());
    sink.record(&step(1));
    drop(sink);
    let events_read = events(run.path())?;
    let (name, content) = plugin(&events_read, "_hparams_/session_start_info").ok_or("no start")?;
    assert_eq!(name, "hparams");
    let start = field(&content, 3).ok_or("no session")?;
    let mut hyperparameters: Vec<(String, u64)> = Vec::new();
    for (_, entry) in fields(&start).into_iter().filter(|(n, _)| *n == 1) {
        let path = String::from_utf8(field(&entry, 1).ok_or("no path")?)?;
        let value = field(&entry, 2).ok_or("no value")?;
        hyperparameters.push((path, fields(&value)[0].0));
    }
    hyperparameters.sort();
    // Fields of google.protobuf.Value: 2 is a number, 3 a string, 4 a boolean.
    let kinds = [
        ("data.train", 3),
        ("eval.constrained", 4),
        ("lora.r", 2),
        ("train.optim", 3),
    ];
    assert_eq!(hyperparameters, kinds.map(|(path, n)| (path.to_owned(), n)));
    assert!(
        plugin(&events_read, "_hparams_/session_end_info").is_none(),
        "one of two steps is done"
    );

    let mut sink = TensorBoardSink::start(
        run.path(),
        RunHeader {
            first_step: 2,
            ..header
        },
    );
    sink.record(&step(2));
    drop(sink);
    let second = files(run.path())?.pop().ok_or("no second file")?;
    let records = unframe(&fs::read(second)?);
    let session = field(&records[1], 7).ok_or("no session log")?;
    let step = field(&records[1], 2).map(|step| le64(&step));
    assert_eq!(
        (step, field(&session, 1).map(|status| le64(&status))),
        (Some(2), Some(1)),
        "START at the first repeated step"
    );
    let (_, content) = plugin(&records, "_hparams_/session_end_info").ok_or("no end")?;
    let end = field(&content, 4).ok_or("no session")?;
    assert_eq!(field(&end, 1).map(|status| le64(&status)), Some(1));
    Ok(())
}

#[test]
fn starts_in_the_same_second_never_share_a_file() -> TestResult {
    let run = tempfile::tempdir()?;
    for attempt in [1, 2] {
        let mut sink = TensorBoardSink::start(run.path(), RunHeader::default());
        sink.record(&step(attempt));
    }
    let files = files(run.path())?;
    assert_eq!(files.len(), 2);
    for file in files {
        assert_eq!(read(&file)?.1.len(), 4);
    }
    let folder = run.path().join("same");
    drop([EventFile::create(&folder)?, EventFile::create(&folder)?]);
    assert_eq!(fs::read_dir(folder)?.count(), 2);
    Ok(())
}

#[test]
fn a_removed_file_is_written_again_and_another_change_ends_the_curves() -> TestResult {
    let run = tempfile::tempdir()?;
    let folder = run.path().join("tb");
    let mut file = EventFile::create(&folder)?;
    file.write_scalars(1, &[("loss", 0.5)])?;
    fs::remove_dir_all(&folder)?;
    file.write_scalars(2, &[("loss", 0.25)])?;
    let path = files(run.path())?.remove(0);
    let scalars = read(&path)?.1;
    let steps: Vec<u64> = scalars.iter().map(|(step, ..)| *step).collect();
    assert_eq!(steps, [1, 2]);
    fs::write(&path, "")?;
    let error = file.write_scalars(3, &[("loss", 0.125)]);
    let error = error.expect_err("truncated").to_string();
    assert!(
        error.contains("another program truncated the file"),
        "{error}"
    );
    Ok(())
}

/// Sends many records to a sink and counts its warnings.
fn warnings(start: impl FnOnce() -> TensorBoardSink) -> usize {
    let log = SharedWriter::default();
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
    log.text().matches("TensorBoard is off").count()
}

/// A writer that accepts some bytes, then fails or panics.
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

/// Invariant: A failing log writer or closed pipe never stops a run.
#[test]
fn a_failing_writer_is_dropped_with_one_warning() -> TestResult {
    let run = tempfile::tempdir()?;
    fs::write(run.path().join("tb"), "a file where the folder should be")?;
    assert_eq!(
        warnings(|| TensorBoardSink::start(run.path(), RunHeader::default())),
        1
    );
    for panics in [false, true] {
        let open = move || {
            EventFile::begin(Failing {
                bytes_left: 500,
                panics,
            })
        };
        assert_eq!(warnings(|| TensorBoardSink::start_with(50, open)), 1);
    }
    Ok(())
}

#[test]
fn a_working_writer_has_no_warnings() -> TestResult {
    let run = tempfile::tempdir()?;
    assert_eq!(
        warnings(|| TensorBoardSink::start(run.path(), RunHeader::default())),
        0
    );
    Ok(())
}
