//! The files that describe a run in its directory: the resolved config and the lock.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tooltune_agents::flat::FlattenReport;
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;
use tooltune_files::SplitRecord;
use tooltune_template::TemplateDate;

use super::pending_lock::PendingLock;
use super::preparation::Flattened;
use super::run_lock::{Extension, InputTimes, LOCK_FILE, RunLock};
use crate::config::{Change, Config, LoadedConfig, LrSchedulerType, OnResume, RunLength, diff};
use crate::error::Error;

const CONFIG_FILE: &str = "config.resolved.toml";
const FLATTEN_FILE: &str = "flatten.json";

/// Progress of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunSteps {
    /// Steps done.
    pub n_done: u64,
    /// Steps of the whole run.
    pub total: u64,
    /// Average number of steps per epoch.
    pub in_epoch: f64,
}

/// Writes `config.resolved.toml` and `run.lock.json` when a run starts or resumes. A resumed run
/// compares its inputs with the recorded ones first; a new run computes the returned lock in the
/// background. Reports an extension of the run, and inputs that changed since `inputs` was listed.
///
/// # Errors
///
/// A file cannot be read or written, the inputs differ from the recorded ones, or the run would
/// have fewer steps than are already done.
pub fn begin(
    config: &Config,
    run_dir: &Path,
    steps: RunSteps,
    split: Option<&SplitRecord>,
    inputs: &InputTimes,
) -> Result<PendingLock, Error> {
    let extension = extension(config, run_dir, steps)?;
    let text = config
        .to_toml()
        .map_err(|error| Error::Usage(format!("cannot write the config: {error}")))?;
    let lock = match RunLock::read_for_run(run_dir)? {
        None => PendingLock::read(run_dir, config, split, inputs)?,
        Some(earlier) => {
            let now = RunLock::read_inputs(config, Some(&earlier))?;
            earlier.check_same(&now, &run_dir.join(LOCK_FILE))?;
            let mut extended = earlier.extended.clone();
            extended.extend(extension);
            let lock = RunLock {
                inputs: now.inputs,
                built_in: now.built_in,
                resume_digest: now.resume_digest,
                extended,
                ..earlier.clone()
            };
            if earlier != lock || !run_dir.join(LOCK_FILE).exists() {
                lock.write(run_dir)?;
            }
            PendingLock::already_written(run_dir, &lock)
        }
    };
    write_atomic(&run_dir.join(CONFIG_FILE), text.as_bytes())?;
    Ok(lock)
}

/// Detects settings that extend an existing run, and reports them in one line; `None` if there are
/// none.
fn extension(config: &Config, run_dir: &Path, steps: RunSteps) -> Result<Option<Extension>, Error> {
    let Some(earlier) = read_config(run_dir)? else {
        return Ok(None);
    };
    let changes = diff(&earlier, config).into_iter();
    let changes = changes.filter(|change| change.on_resume == OnResume::Extends);
    let changes: Vec<String> = changes
        .map(|change| line(&change).trim().to_owned())
        .collect();
    if changes.is_empty() {
        return Ok(None);
    }
    let listed = changes.join(", ");
    let RunSteps {
        n_done,
        total,
        in_epoch,
    } = steps;
    let before = match earlier.train.length() {
        RunLength::Steps(steps) => steps,
        RunLength::Epochs(epochs) => (epochs * in_epoch).ceil() as u64,
    };
    // A smaller value in the same unit was refused earlier; different units are compared in steps.
    if total < n_done || total < before {
        return Err(Error::Usage(format!(
            "{} contains a longer run of {before} steps, {n_done} of them done; with {listed} it would \
             have {total}\na run can be extended but not shortened: restore these settings, or set \
             train.output_dir to another folder",
            run_dir.display()
        )));
    }
    let schedule = match config.train.lr_scheduler_type {
        LrSchedulerType::Constant | LrSchedulerType::ConstantWithWarmup => {
            "the learning rate does not change".to_owned()
        }
        decaying if total == before => {
            format!("lr_scheduler_type = \"{decaying}\" does not change")
        }
        decaying => format!(
            "lr_scheduler_type = \"{decaying}\" now spans {total} steps, so the learning rate jumps back \
             up from its current value"
        ),
    };
    let change = if total == before {
        "has the same length in another unit"
    } else {
        "is extended"
    };
    tracing::warn!(
        "{} {change} at step {n_done} of {total} ({listed}): {schedule}",
        run_dir.display()
    );
    Ok(Some(Extension {
        at_step: n_done,
        changes,
    }))
}

/// Writes `flatten.json`: the number of flattened schemas, and each schema that is still nested.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_flattened(flattened: &Flattened, run_dir: &Path) -> Result<(), Error> {
    let part = |flattened: &FlattenReport| -> Value {
        json!({"schemas": flattened, "nested": flattened.kept_schemas})
    };
    let parts = json!({"train": part(&flattened.train), "eval": part(&flattened.eval)});
    let mut bytes = serde_json::to_vec_pretty(&parts).expect("a JSON value serialises");
    bytes.push(b'\n');
    Ok(write_atomic(&run_dir.join(FLATTEN_FILE), &bytes)?)
}

/// Checks that a run with this config can start or resume in its directory. Sets the template date
/// to the first that exists: the date in the config, the date of the existing run, or today.
/// Returns the step of the newest checkpoint, if any.
///
/// Commands call this before they read any input. The run checks again after it has locked its
/// directory ([`check_same_run`]).
///
/// # Errors
///
/// The directory is not writable, its config cannot be read, or it belongs to a different run.
pub fn pin_run_settings(config: &mut Config) -> Result<Option<u64>, Error> {
    let dir = config.train.output_dir.clone();
    check_writable(&dir).map_err(|(path, error)| {
        Error::Usage(format!(
            "train.output_dir is {}, but no file can be created in {}: {error}; set it to a \
             writable folder",
            dir.display(),
            path.display()
        ))
    })?;
    let earlier = read_config(&dir)?;
    let lock = match &earlier {
        Some(_) => None,
        None => RunLock::read_for_run(&dir)?,
    };
    if config.model.is_some() {
        let start_date = earlier
            .as_ref()
            .and_then(|earlier| earlier.data.template_date);
        let locked = lock.as_ref().and_then(|lock| lock.template_date.as_ref());
        let start_date = start_date.or_else(|| locked.and_then(|date| date.parse().ok()));
        let date = &mut config.data.template_date;
        *date = Some(date.or(start_date).unwrap_or_else(TemplateDate::today));
    }
    match (earlier, lock) {
        (Some(earlier), _) => check_same(earlier, config, &dir)?,
        (None, Some(lock)) => check_same_digest(&lock, config, &dir)?,
        (None, None) => return Ok(None),
    }
    let newest = RunDir::open_to_read(&dir)?.list()?.pop();
    Ok(newest.map(|checkpoint| checkpoint.step))
}

/// Creates and removes a file in a folder, or in its nearest existing parent, and returns that
/// folder.
///
/// # Errors
///
/// No file can be created; the error has the folder and the reason.
pub fn check_writable(dir: &Path) -> Result<PathBuf, (PathBuf, std::io::Error)> {
    let existing = nearest_folder(dir);
    match tempfile::tempfile_in(&existing) {
        Ok(_) => Ok(existing),
        Err(error) => Err((existing, error)),
    }
}

/// Returns `dir` if it exists, otherwise its nearest existing parent.
pub fn nearest_folder(dir: &Path) -> PathBuf {
    match dir.ancestors().find(|path| path.is_dir()) {
        Some(path) if !path.as_os_str().is_empty() => path.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Reads the config of the run in a directory, if any.
fn read_config(run_dir: &Path) -> Result<Option<Config>, Error> {
    let path = run_dir.join(CONFIG_FILE);
    if regular_file::is_there(&path).map_err(Error::io(&path, "read"))? {
        Ok(Some(LoadedConfig::load(&path, &[])?.config))
    } else {
        Ok(None)
    }
}

/// Checks that an existing run in the directory has this config.
///
/// # Errors
///
/// Settings that must not change on resume differ; all of them are listed.
pub fn check_same_run(config: &Config, run_dir: &Path) -> Result<(), Error> {
    if let Some(earlier) = read_config(run_dir)? {
        return check_same(earlier, config, run_dir);
    }
    match RunLock::read_for_run(run_dir)? {
        Some(lock) => check_same_digest(&lock, config, run_dir),
        None => Ok(()),
    }
}

/// Like [`check_same_run`], for a run whose config file is missing.
fn check_same_digest(lock: &RunLock, config: &Config, run_dir: &Path) -> Result<(), Error> {
    if lock.resume_digest == config.resume_digest() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} contains a run with a different config: its {CONFIG_FILE} is missing, and the settings do not \
         match resume_digest in {LOCK_FILE}; restore the settings, restore the file to see which \
         settings differ, or set train.output_dir to another folder",
        run_dir.display()
    )))
}

fn check_same(mut earlier: Config, config: &Config, run_dir: &Path) -> Result<(), Error> {
    // A run without a recorded date used the current date each time it was resumed.
    let date = &mut earlier.data.template_date;
    *date = date.or(config.data.template_date);
    let changes = diff(&earlier, config).into_iter();
    let changes: Vec<Change> = changes
        .filter(|change| matches!(change.on_resume, OnResume::Refused | OnResume::Shortens))
        .collect();
    let refused: Vec<String> = changes.iter().map(line).collect();
    if refused.is_empty() {
        return Ok(());
    }
    if changes
        .iter()
        .all(|change| change.on_resume == OnResume::Shortens)
    {
        return Err(Error::Usage(format!(
            "{} contains a longer run:\n{}\na run can be extended but not shortened: restore these \
             settings, or set train.output_dir to another folder",
            run_dir.display(),
            refused.join("\n")
        )));
    }
    Err(Error::Usage(format!(
        "{} contains a run with a different config:\n{}\nset train.output_dir to another folder, or \
         restore these settings",
        run_dir.display(),
        refused.join("\n")
    )))
}

fn line(change: &Change) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or("(not set)".to_string());
    format!(
        "  {}: {} -> {}",
        change.path,
        text(&change.old),
        text(&change.new)
    )
}
