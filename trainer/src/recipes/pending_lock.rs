//! The lock of a run that has begun while its inputs are still being read.
//!
//! To name a large model by its content takes as long as to load it, or longer, and no step needs the
//! name. A thread reads beside the first steps; what needs the lock waits for it.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use tooltune_files::SplitRecord;

use super::run_lock::{InputTimes, LOCK_FILE, RunLock};
use crate::config::Config;
use crate::error::Error;

/// `run.lock.json` of a run, written at the latest when the first checkpoint asks for it or when this
/// value goes.
#[derive(Debug)]
pub struct PendingLock {
    run_dir: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    Reading(JoinHandle<Result<RunLock, Error>>),
    /// What every checkpoint keeps of it.
    Written(Vec<u8>),
    /// There is none, for this reason, which was answered as an error.
    Failed(String),
}

impl PendingLock {
    /// Of a lock that its run directory holds.
    pub(super) fn written(run_dir: &Path, lock: &RunLock) -> Self {
        Self {
            run_dir: run_dir.to_owned(),
            state: State::Written(lock.for_checkpoint()),
        }
    }

    /// Begins to read what a new run is made from, and says which files are no longer as they were `before`.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
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
                ..RunLock::of(&config, None)?
            };
            for file in before.changed(&InputTimes::of(&config)) {
                tracing::warn!(
                    "{}: the file was changed while the run began; {LOCK_FILE} names what it holds now, and \
                     the run may have read what it held before",
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

    /// Writes the lock where everything is read by now; asked for once a step.
    ///
    /// # Errors
    ///
    /// An input cannot be read, or the lock not be written.
    pub fn write_if_read(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Reading(reading) if reading.is_finished() => self.write(),
            _ => Ok(()),
        }
    }

    /// What every checkpoint keeps of the lock, waited for.
    ///
    /// # Errors
    ///
    /// As [`Self::write_if_read`], once.
    pub fn for_checkpoint(&mut self) -> Result<Vec<u8>, Error> {
        self.write()?;
        match &self.state {
            State::Written(bytes) => Ok(bytes.clone()),
            State::Failed(reason) => Err(Error::Usage(format!(
                "{}: {LOCK_FILE} was not written: {reason}",
                self.run_dir.display()
            ))),
            State::Reading(_) => unreachable!("it was waited for"),
        }
    }

    fn write(&mut self) -> Result<(), Error> {
        if !matches!(self.state, State::Reading(_)) {
            return Ok(());
        }
        let gone = State::Failed("a thread panicked".to_owned());
        if let State::Reading(reading) = std::mem::replace(&mut self.state, gone) {
            let read = reading.join();
            let read = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let written = read.and_then(|lock| {
                lock.write(&self.run_dir)?;
                Ok(lock.for_checkpoint())
            });
            match written {
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
    /// A run that ends early says what it was made from, too.
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

    /// A config with one file of rows and this model.
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
        PendingLock::read(run_dir, config, None, &InputTimes::of(config)).expect("a thread")
    }

    #[test]
    fn a_lock_is_written_when_it_is_asked_for_and_when_its_run_goes() {
        let dir = tempfile::tempdir().expect("a folder");
        // What is not there is no input.
        let config = config(dir.path(), Path::new("nowhere"));
        let begin = || begin(dir.path(), &config);
        let of_run = || RunLock::of_run(dir.path()).expect("readable");
        let expected = RunLock::of(&config, None).expect("inputs");
        assert_eq!(expected.inputs.len(), 1);

        let mut pending = begin();
        let bytes = pending.for_checkpoint().expect("inputs");
        assert_eq!(bytes, expected.for_checkpoint());
        assert_eq!(of_run().as_ref(), Some(&expected));
        pending.write_if_read().expect("nothing to do");
        assert_eq!(pending.for_checkpoint().expect("kept"), bytes);

        std::fs::remove_file(dir.path().join(LOCK_FILE)).expect("removed");
        drop(pending);
        assert_eq!(of_run(), None);
        drop(begin());
        assert_eq!(of_run(), Some(expected));
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
    fn a_lock_that_cannot_be_written_blames_no_input() {
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
    fn files_that_are_changed_while_they_are_read_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = config(dir.path(), Path::new("nowhere"));
        let rows = dir.path().join("rows.jsonl");
        let before = InputTimes::of(&config);
        assert_eq!(before.changed(&InputTimes::of(&config)), BTreeSet::new());
        std::fs::write(&rows, "{}\n{}\n").expect("written");
        let now = InputTimes::of(&config);
        assert_eq!(before.changed(&now), BTreeSet::from([rows.clone()]));
        let none = InputTimes::default();
        assert_eq!(before.changed(&none), BTreeSet::from([rows.clone()]));
        assert_eq!(none.changed(&before), BTreeSet::from([rows]));
    }
}
