//! The run lock, computed in the background while the run starts.
//!
//! Hashing a large model takes at least as long as loading it, and no step needs the hash. A thread
//! computes it during the first steps; code that needs the lock waits for the thread.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use tooltune_files::SplitRecord;

use super::run_lock::{InputTimes, LOCK_FILE, RunLock};
use crate::config::Config;
use crate::error::Error;

/// `run.lock.json` of a run. It is written before the first checkpoint, or at the latest when this
/// value is dropped.
#[derive(Debug)]
pub struct PendingLock {
    run_dir: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    Reading(JoinHandle<Result<RunLock, Error>>),
    /// Copy of the lock for every checkpoint.
    Written(Vec<u8>),
    /// The lock could not be created. The error was already returned; this is its message.
    Failed(String),
}

impl PendingLock {
    /// Wraps a lock that is already in the run directory.
    pub(super) fn already_written(run_dir: &Path, lock: &RunLock) -> Self {
        Self {
            run_dir: run_dir.to_owned(),
            state: State::Written(lock.for_checkpoint()),
        }
    }

    /// Starts reading the inputs of a new run. The thread warns about files that changed since
    /// `before` was listed.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn read(
        run_dir: &Path,
        config: &Config,
        split: Option<&SplitRecord>,
        before: &InputTimes,
    ) -> Result<Self, Error> {
        let (config, validation) = (config.clone(), split.cloned());
        let before = before.clone();
        let reading = std::thread::Builder::new().name("inputs".to_owned());
        let reading = reading.spawn(move || {
            let lock = RunLock {
                validation,
                ..RunLock::read_inputs(&config, None)?
            };
            for file in before.changed_files(&InputTimes::list(&config)) {
                tracing::warn!(
                    "{}: the file changed while the run started; {LOCK_FILE} records its new content, \
                     but the run may have read the old content",
                    file.display()
                );
            }
            Ok(lock)
        });
        Ok(Self {
            run_dir: run_dir.to_owned(),
            state: State::Reading(reading.map_err(Error::io(run_dir, "start a thread for"))?),
        })
    }

    /// Writes the lock if the thread is done. Called once per step.
    ///
    /// # Errors
    ///
    /// An input cannot be read, or the lock cannot be written.
    pub fn write_if_read(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Reading(reading) if reading.is_finished() => self.write(),
            _ => Ok(()),
        }
    }

    /// Waits for the lock and returns the copy for a checkpoint.
    ///
    /// # Errors
    ///
    /// As for [`Self::write_if_read`]. Later calls return only the message of that error.
    pub fn for_checkpoint(&mut self) -> Result<Vec<u8>, Error> {
        self.write()?;
        match &self.state {
            State::Written(bytes) => Ok(bytes.clone()),
            State::Failed(reason) => Err(Error::Usage(format!(
                "{}: {LOCK_FILE} was not written: {reason}",
                self.run_dir.display()
            ))),
            State::Reading(_) => unreachable!("the thread was joined"),
        }
    }

    fn write(&mut self) -> Result<(), Error> {
        if !matches!(self.state, State::Reading(_)) {
            return Ok(());
        }
        let panicked = State::Failed("a thread panicked".to_owned());
        if let State::Reading(reading) = std::mem::replace(&mut self.state, panicked) {
            let read = reading.join();
            let read = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let result = read.and_then(|lock| {
                lock.write(&self.run_dir)?;
                Ok(lock.for_checkpoint())
            });
            match result {
                Ok(bytes) => self.state = State::Written(bytes),
                Err(error) => {
                    self.state = State::Failed(error.to_string());
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Drop for PendingLock {
    /// Writes the lock even if the run ends early.
    fn drop(&mut self) {
        if let State::Reading(_) = self.state
            && !std::thread::panicking()
            && let Err(error) = self.write()
        {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::LoadedConfig;

    /// A config with one data file and the model folder `model`.
    fn config(dir: &Path, model: &Path) -> Config {
        let (path, rows) = (dir.join("run.toml"), dir.join("rows.jsonl"));
        std::fs::write(&rows, "{}\n").expect("written");
        let text = format!(
            "[model]\nmodel_name_or_path = {model:?}\n[lora]\n[data]\ntrain = [{rows:?}]\nformat = \"messages\"\n\
             [train]\noutput_dir = {dir:?}\n"
        );
        std::fs::write(&path, text).expect("written");
        LoadedConfig::load(&path, &[]).expect("a config").config
    }

    fn begin(run_dir: &Path, config: &Config) -> PendingLock {
        PendingLock::read(run_dir, config, None, &InputTimes::list(config)).expect("a thread")
    }

    #[test]
    fn a_lock_is_written_on_request_and_on_drop() {
        let dir = tempfile::tempdir().expect("a folder");
        // A missing path is not an input.
        let config = config(dir.path(), Path::new("nowhere"));
        let begin = || begin(dir.path(), &config);
        let read_lock = || RunLock::read_for_run(dir.path()).expect("readable");
        let expected = RunLock::read_inputs(&config, None).expect("inputs");
        assert_eq!(expected.inputs.len(), 1);

        let mut pending = begin();
        let bytes = pending.for_checkpoint().expect("inputs");
        assert_eq!(bytes, expected.for_checkpoint());
        assert_eq!(read_lock().as_ref(), Some(&expected));
        pending.write_if_read().expect("nothing to do");
        assert_eq!(pending.for_checkpoint().expect("kept"), bytes);

        std::fs::remove_file(dir.path().join(LOCK_FILE)).expect("removed");
        drop(pending);
        assert_eq!(read_lock(), None);
        drop(begin());
        assert_eq!(read_lock(), Some(expected));
    }

    #[test]
    fn an_input_that_cannot_be_read_is_named_and_nothing_is_written() {
        let (dir, model) = (tempfile::tempdir(), tempfile::tempdir());
        let (dir, model) = (dir.expect("a folder"), model.expect("a folder"));
        // A model without weights.
        let config = config(dir.path(), model.path());
        let begin = || begin(dir.path(), &config);
        let mut pending = begin();
        let error = pending
            .for_checkpoint()
            .expect_err("no weights")
            .to_string();
        assert!(
            error.contains(&model.path().display().to_string()),
            "{error}"
        );
        let error = pending
            .for_checkpoint()
            .expect_err("no weights")
            .to_string();
        assert!(error.contains("run.lock.json was not written"), "{error}");
        assert!(error.contains(&model.path().display().to_string()));
        drop(begin());
        assert!(!dir.path().join(LOCK_FILE).exists());
    }

    #[test]
    fn a_lock_write_error_names_the_lock_not_an_input() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = config(dir.path(), Path::new("nowhere"));
        let no_dir = dir.path().join("rows.jsonl");
        let mut pending = begin(&no_dir, &config);
        for _ in 0..2 {
            let error = pending.for_checkpoint().expect_err("no folder").to_string();
            assert!(error.contains(LOCK_FILE), "{error}");
            assert!(!error.contains("inputs"), "{error}");
        }
    }

    #[test]
    fn files_changed_while_reading_are_detected() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = config(dir.path(), Path::new("nowhere"));
        let rows = dir.path().join("rows.jsonl");
        let before = InputTimes::list(&config);
        assert_eq!(
            before.changed_files(&InputTimes::list(&config)),
            BTreeSet::new()
        );
        std::fs::write(&rows, "{}\n{}\n").expect("written");
        let now = InputTimes::list(&config);
        assert_eq!(before.changed_files(&now), BTreeSet::from([rows.clone()]));
        let none = InputTimes::default();
        assert_eq!(before.changed_files(&none), BTreeSet::from([rows.clone()]));
        assert_eq!(none.changed_files(&before), BTreeSet::from([rows]));
    }
}
