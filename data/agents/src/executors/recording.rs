//! What another executor answers, kept in a file that [`ReplayExecutor`](super::ReplayExecutor)
//! reads.
//!
//! A line is written whole and at once behind what is there, so that a process that is killed leaves
//! at most one line cut off, which the next one takes away. What nothing answered is not kept: it
//! may go well another time. The decision to question: of two calls that mean the same the first
//! answer is kept, as a replay would give it, also where the API has another state by then.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_rows::regular_file;
use tooltune_rows::tools::{ApiCatalogue, JsonLines, ToolsError};

use super::known::KnownApis;
use super::replay::{RecordedCall, call_key};
use super::{CallResult, Executor};

/// How a compressed file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Hands calls to another executor and records its answers.
pub struct RecordingExecutor {
    inner: Box<dyn Executor>,
    apis: KnownApis,
    path: PathBuf,
    file: File,
    /// Names and canonical arguments of the calls that the file has.
    recorded: HashSet<(String, String)>,
    fault: Option<String>,
}

impl fmt::Debug for RecordingExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingExecutor")
            .field("path", &self.path)
            .field("n_calls", &self.recorded.len())
            .finish_non_exhaustive()
    }
}

impl RecordingExecutor {
    /// Opens the recording at `path`, or begins one with its folder; calls that it has are not
    /// recorded again.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or written, or is compressed
    /// - a line of it is no recorded call, or names an API that is not in `catalogue`
    pub fn open(
        path: &Path,
        catalogue: ApiCatalogue,
        inner: Box<dyn Executor>,
    ) -> Result<Self, ToolsError> {
        let apis = KnownApis::new(catalogue);
        let refused = |reason: String| ToolsError::NotRecordable {
            path: path.to_owned(),
            reason,
        };
        let file = opened(path).map_err(|error| refused(error.to_string()))?;
        let mut recorded = HashSet::new();
        for line in JsonLines::open(path)? {
            let (place, row) = line?;
            let call = RecordedCall::read(&row).and_then(|row| row.place(&apis));
            recorded.insert(call.map_err(|error| error.at(place))?);
        }
        Ok(Self {
            inner,
            apis,
            path: path.to_owned(),
            file,
            recorded,
            fault: None,
        })
    }

    /// How many different calls are recorded.
    pub fn n_calls(&self) -> usize {
        self.recorded.len()
    }

    fn record(&mut self, name: &str, arguments: &Map<String, Value>, result: &CallResult) {
        // A replay says by itself of an unknown name that it is unknown.
        let Some((document, arguments)) = self.apis.called(name, arguments) else {
            return;
        };
        let (name, key) = (document.call_name(), call_key(document, &arguments));
        if result.is_unanswered || !self.recorded.insert((name.clone(), key)) {
            return;
        }
        let line = format!("{}\n", RecordedCall::line(&name, &arguments, result));
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            self.fault = Some(format!(
                "{}: cannot record a call: {error}; make room, and give the same command again",
                self.path.display()
            ));
        }
    }
}

impl Executor for RecordingExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let result = self.inner.call(name, arguments);
        self.record(name, arguments, &result);
        result
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone().or_else(|| self.inner.fault())
    }
}

/// The file, to be written behind its last whole line.
fn opened(path: &Path) -> io::Result<File> {
    let is_there = regular_file::is_there(path)?;
    if let (false, Some(folder)) = (is_there, path.parent()) {
        std::fs::create_dir_all(folder)?;
    }
    let end = if is_there { end_of(path)? } else { End::Whole };
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    match end {
        End::Whole => {}
        End::WithoutNewline => file.write_all(b"\n")?,
        End::CutOff { at } => file.set_len(at)?,
    }
    Ok(file)
}

/// How a recording ends.
enum End {
    Whole,
    /// With a whole line, as some editors write files.
    WithoutNewline,
    /// With a part of a line, which begins at this byte.
    CutOff {
        at: u64,
    },
}

fn end_of(path: &Path) -> io::Result<End> {
    let mut reader = BufReader::new(regular_file::open(path)?);
    if reader.fill_buf()?.starts_with(&GZIP) {
        return Err(io::Error::other("it is compressed"));
    }
    let mut at = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let n_bytes = reader.read_until(b'\n', &mut line)?;
        if n_bytes == 0 {
            return Ok(End::Whole);
        }
        if line.last() != Some(&b'\n') {
            let is_whole = serde_json::from_slice::<Value>(&line).is_ok();
            return Ok(if is_whole {
                End::WithoutNewline
            } else {
                End::CutOff { at }
            });
        }
        at += n_bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use serde_json::json;
    use tooltune_rows::tools::{ApiBankSet, ApiDocument};

    use super::*;
    use crate::executors::ReplayExecutor;

    /// Says how often it was asked.
    struct Counting(Rc<RefCell<usize>>);

    impl Executor for Counting {
        fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
            *self.0.borrow_mut() += 1;
            let n = *self.0.borrow();
            match name {
                "Busy" => CallResult::unanswered("503"),
                "Fail" => CallResult::failure("no such town"),
                _ => CallResult::success(json!({"n": n, "given": arguments})),
            }
        }
    }

    fn catalogue() -> ApiCatalogue {
        let api = |name: &str| {
            let parameters = json!([{"name": "id", "type": "integer"}]);
            let document = json!({"api_name": name, "optional_parameters": parameters});
            ApiDocument::try_from(document).expect("a document")
        };
        let names = ["Town", "Fail", "Busy", "GET /film/{id}"];
        ApiCatalogue::new(names.map(api).to_vec()).expect("four names")
    }

    fn recording(path: &Path) -> Result<RecordingExecutor, ToolsError> {
        let inner = Counting(Rc::default());
        RecordingExecutor::open(path, catalogue(), Box::new(inner))
    }

    fn call(executor: &mut dyn Executor, name: &str, arguments: Value) -> CallResult {
        executor.call(name, arguments.as_object().expect("an object"))
    }

    fn n_lines(path: &Path) -> usize {
        std::fs::read_to_string(path)
            .expect("written")
            .lines()
            .count()
    }

    #[test]
    fn a_replay_of_a_recording_answers_as_the_first_executor_did() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kept/replay.jsonl");
        let calls = [
            ("Town", json!({"id": "007"})),
            ("Town", json!({"id": 8, "name": "Ærø\n"})),
            ("Fail", json!({})),
            ("GET /film/597?x=1", json!({})),
        ];
        let mut first = recording(&path).expect("opens");
        let answers: Vec<CallResult> = calls
            .iter()
            .map(|(name, arguments)| call(&mut first, name, arguments.clone()))
            .collect();
        // The same in other words, what nothing answers, and what no document has.
        call(&mut first, "Town", json!({"id": 7}));
        call(&mut first, "GET /film/{id}", json!({"id": 597, "x": "1"}));
        call(&mut first, "Busy", json!({}));
        call(&mut first, "Village", json!({}));
        assert_eq!(first.fault(), None);
        assert_eq!((first.n_calls(), n_lines(&path)), (4, 4));
        let mut replay = ReplayExecutor::read(&path, ApiBankSet::All, catalogue()).expect("reads");
        for ((name, arguments), answer) in calls.iter().zip(&answers) {
            let again = call(&mut replay, name, arguments.clone());
            assert_eq!(&again, answer, "{name}");
        }
        let film = call(&mut replay, "get /film/597", json!({"x": 1}));
        assert_eq!(film, answers[3]);
        assert!(call(&mut replay, "Busy", json!({})).is_failure());
    }

    #[test]
    fn a_recording_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let mut first = recording(&path).expect("opens");
        for id in 0..3 {
            call(&mut first, "Town", json!({"id": id}));
        }
        drop(first);
        let whole = std::fs::read(&path).expect("written");
        let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).expect("written");
            let mut next = recording(&path).expect("opens");
            // A line that lacks nothing but its end is whole.
            let n_whole = ends.iter().filter(|end| **end <= length).count();
            assert_eq!(next.n_calls(), n_whole, "{length}");
            for id in 0..3 {
                call(&mut next, "Town", json!({"id": id}));
            }
            assert_eq!(n_lines(&path), 3, "{length}");
            assert_eq!(recording(&path).expect("opens").n_calls(), 3, "{length}");
        }
    }

    #[test]
    fn a_file_that_is_no_recording_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        for (bytes, expected) in [
            (
                b"{\"query\": 1}\n".as_slice(),
                "replay.jsonl:1: field \"output\" is missing",
            ),
            (
                b"{\"api_name\": \"Village\", \"input\": {}, \"output\": 1}\n",
                "replay.jsonl:1: api_name: no API is called \"Village\"",
            ),
            (&[0x1f, 0x8b, 1, 2], "cannot record calls: it is compressed"),
        ] {
            std::fs::write(&path, bytes).expect("written");
            let message = recording(&path).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(std::fs::read(&path).expect("there"), bytes);
        }
        let message = recording(folder.path()).expect_err("a folder").to_string();
        assert!(message.contains("it is a directory"), "{message}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_a_fault_of_the_executor() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let mut executor = recording(&path).expect("opens");
        executor.file = OpenOptions::new()
            .append(true)
            .open("/dev/full")
            .expect("Linux has it");
        assert!(!call(&mut executor, "Town", json!({})).is_failure());
        let fault = executor.fault().expect("a fault");
        assert!(
            fault.contains("cannot record a call: No space left"),
            "{fault}"
        );
    }
}
