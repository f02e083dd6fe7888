//! Stores the results of another executor in a file that [`ReplayExecutor`](super::ReplayExecutor)
//! reads.
//!
//! Each line is appended with a single write, so a killed process leaves at most one truncated
//! line, which the next process removes. Unanswered calls are not stored, because they may succeed
//! later. If two calls are equivalent, only the first result is stored, because a replay would
//! return it for both. This applies even if the state of the API has changed in between.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tooltune_apis::{ApiCatalogue, JsonLines, ToolsError};
use tooltune_disk::regular_file;
use tooltune_json::budgets::LINE_BYTES;
use tooltune_json::lines::{BoundedRead, TooLong, read_line};

use super::known::KnownApis;
use super::replay::{RecordedCall, call_key};
use super::{CallResult, Executor};

/// Magic bytes of gzip files.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Passes calls to another executor and records the results.
pub struct RecordingExecutor {
    inner: Box<dyn Executor>,
    apis: KnownApis,
    path: PathBuf,
    file: File,
    /// Names and canonical arguments of the recorded calls.
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
    /// Opens or creates the recording at `path`; calls in it are not recorded again.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or written, is compressed, or is a link or not a regular file
    /// - a line is not a recorded call, or names an API that is not in `catalogue`
    pub fn open(
        path: &Path,
        catalogue: ApiCatalogue,
        inner: Box<dyn Executor>,
    ) -> Result<Self, ToolsError> {
        let apis = KnownApis::new(catalogue);
        let record_error = |reason: String| ToolsError::NotRecordable {
            path: path.to_owned(),
            reason,
        };
        let file = open_for_append(path).map_err(|error| record_error(error.to_string()))?;
        let mut recorded = HashSet::new();
        for line in JsonLines::open(path)? {
            let (location, row) = line?;
            let call = RecordedCall::read(&row).and_then(|row| row.resolve_parameters(&apis));
            recorded.insert(call.map_err(|error| error.at(location))?);
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

    /// Number of distinct recorded calls.
    pub fn n_calls(&self) -> usize {
        self.recorded.len()
    }

    fn record(&mut self, name: &str, arguments: &Map<String, Value>, result: &CallResult) {
        // A replay detects unknown names itself.
        let Some((document, arguments)) = self.apis.resolve(name, arguments) else {
            return;
        };
        let (name, key) = (document.call_name(), call_key(document, &arguments));
        if result.is_unanswered || !self.recorded.insert((name.clone(), key)) {
            return;
        }
        let line = format!(
            "{}\n",
            RecordedCall::recording_line(&name, &arguments, result)
        );
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            self.fault = Some(format!(
                "{}: cannot record a call: {error}; free disk space, and run the same command again",
                self.path.display()
            ));
        }
    }
}

impl Executor for RecordingExecutor {
    fn refusal(&self, name: &str) -> Option<String> {
        self.inner.refusal(name)
    }

    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        // A refused call has no result to record.
        if let Some(reason) = self.refusal(name) {
            return CallResult::failure(reason);
        }
        let result = self.inner.call(name, arguments);
        self.record(name, arguments, &result);
        result
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone().or_else(|| self.inner.fault())
    }
}

/// Opens the file for appending after its last complete line.
fn open_for_append(path: &Path) -> io::Result<File> {
    if let (false, Some(folder)) = (regular_file::own_file_exists(path)?, path.parent()) {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    let mut file = regular_file::open_own(path, options.read(true).append(true).create(true))?;
    match find_end(&mut BufReader::new(&file), LINE_BYTES)? {
        FileEnd::Whole => {}
        FileEnd::WithoutNewline => file.write_all(b"\n")?,
        FileEnd::CutOff { at } => file.set_len(at)?,
    }
    Ok(file)
}

/// How a recording ends.
enum FileEnd {
    Whole,
    /// The last line is complete but has no line break; some editors write files like this.
    WithoutNewline,
    /// A partial line that starts at this byte.
    CutOff {
        at: u64,
    },
}

/// Finds the end of a recording whose lines have at most `max_line_bytes`.
fn find_end(reader: &mut impl BufRead, max_line_bytes: usize) -> io::Result<FileEnd> {
    if reader.fill_buf()?.starts_with(&GZIP) {
        return Err(io::Error::other("it is compressed"));
    }
    let mut n_complete = 0;
    let mut line = Vec::new();
    loop {
        match read_line(reader, &mut line, max_line_bytes)? {
            BoundedRead::End => return Ok(FileEnd::Whole),
            BoundedRead::TooLong => return Err(io::Error::other(TooLong::line(max_line_bytes))),
            BoundedRead::Whole => {}
        }
        if line.last() != Some(&b'\n') {
            // The line is only checked for validity here. The reader of the lines limits the values
            // that it builds.
            let is_complete = serde_json::from_slice::<IgnoredAny>(&line).is_ok();
            return Ok(if is_complete {
                FileEnd::WithoutNewline
            } else {
                FileEnd::CutOff { at: n_complete }
            });
        }
        n_complete += line.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use serde_json::json;
    use tooltune_apis::{ApiBankSet, ApiDocument};

    use super::*;
    use crate::executors::ReplayExecutor;

    /// An executor that counts its calls.
    struct CountingExecutor(Rc<RefCell<usize>>);

    impl Executor for CountingExecutor {
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

    fn open_recording(path: &Path) -> Result<RecordingExecutor, ToolsError> {
        let inner = CountingExecutor(Rc::default());
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

    /// Invariant: A recording replays the original answers after any interruption and contains no
    /// secret.
    #[test]
    fn a_replayed_recording_returns_the_original_results() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kept/replay.jsonl");
        let calls = [
            ("Town", json!({"id": "007"})),
            ("Town", json!({"id": 8, "name": "Ærø\n"})),
            ("Fail", json!({})),
            ("GET /film/597?x=1", json!({})),
        ];
        let mut recorder = open_recording(&path).expect("opens");
        let results: Vec<CallResult> = calls
            .iter()
            .map(|(name, arguments)| call(&mut recorder, name, arguments.clone()))
            .collect();
        // None of these is recorded: equivalent calls, an unanswered call, and an unknown name.
        call(&mut recorder, "Town", json!({"id": 7}));
        call(
            &mut recorder,
            "GET /film/{id}",
            json!({"id": 597, "x": "1"}),
        );
        call(&mut recorder, "Busy", json!({}));
        call(&mut recorder, "Village", json!({}));
        assert_eq!(recorder.fault(), None);
        assert_eq!((recorder.n_calls(), n_lines(&path)), (4, 4));
        let mut replay = ReplayExecutor::read(&path, ApiBankSet::All, catalogue()).expect("reads");
        for ((name, arguments), answer) in calls.iter().zip(&results) {
            let repeated = call(&mut replay, name, arguments.clone());
            assert_eq!(&repeated, answer, "{name}");
        }
        let film = call(&mut replay, "get /film/597", json!({"x": 1}));
        assert_eq!(film, results[3]);
        assert!(call(&mut replay, "Busy", json!({})).is_failure());
    }

    /// Invariant: A recording replays the original answers after any interruption and contains no
    /// secret.
    #[test]
    fn a_recording_continues_after_its_last_complete_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let mut recorder = open_recording(&path).expect("opens");
        for id in 0..3 {
            call(&mut recorder, "Town", json!({"id": id}));
        }
        drop(recorder);
        let complete_bytes = std::fs::read(&path).expect("written");
        let line_ends: Vec<usize> = (0..complete_bytes.len())
            .filter(|&at| complete_bytes[at] == b'\n')
            .collect();
        for length in 0..=complete_bytes.len() {
            std::fs::write(&path, &complete_bytes[..length]).expect("written");
            let mut continued = open_recording(&path).expect("opens");
            // A line without its line break is complete.
            let n_complete_lines = line_ends.iter().filter(|end| **end <= length).count();
            assert_eq!(continued.n_calls(), n_complete_lines, "{length}");
            for id in 0..3 {
                call(&mut continued, "Town", json!({"id": id}));
            }
            assert_eq!(n_lines(&path), 3, "{length}");
            assert_eq!(
                open_recording(&path).expect("opens").n_calls(),
                3,
                "{length}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_a_recording_is_refused_and_unchanged() {
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
            let message = open_recording(&path).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(std::fs::read(&path).expect("there"), bytes);
        }
        let message = open_recording(folder.path())
            .expect_err("a folder")
            .to_string();
        assert!(message.contains("found a directory"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn a_recording_is_never_written_through_a_link_or_to_a_pipe() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, pipe, victim] = ["link", "pipe", "victim"].map(|name| folder.path().join(name));
        std::fs::write(&victim, "").expect("written");
        std::os::unix::fs::symlink(&victim, &path).expect("a link");
        let created = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(created.expect("mkfifo").success());
        for (path, expected) in [
            (
                &path,
                "link: cannot record calls: expected a regular file, found a symbolic link",
            ),
            (
                &pipe,
                "pipe: cannot record calls: expected a regular file, found a named pipe",
            ),
        ] {
            let message = open_recording(path).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(std::fs::read(&victim).expect("there"), b"");
    }

    #[test]
    fn the_lines_of_a_recording_are_read_up_to_their_limit() {
        let mut text = b"{\"a\": 1}\n{\"b\": 2}\n".as_slice();
        assert!(matches!(find_end(&mut text, 9), Ok(FileEnd::Whole)));
        let mut endless = BufReader::new(io::repeat(b'0'));
        let message = match find_end(&mut endless, 9) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("the line never ends"),
        };
        assert!(message.contains("more than 9 bytes"), "{message}");
        assert!(
            message.contains("LINE_BYTES in docs/limits.md"),
            "{message}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_reported_as_an_executor_fault() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let mut executor = open_recording(&path).expect("opens");
        executor.file = OpenOptions::new()
            .append(true)
            .open("/dev/full")
            .expect("Linux has it");
        assert!(!call(&mut executor, "Town", json!({})).is_failure());
        let message = executor.fault().expect("a fault");
        assert!(
            message.contains("cannot record a call: No space left"),
            "{message}"
        );
    }
}
