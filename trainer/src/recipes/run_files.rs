//! What a run directory says about itself: the resolved config and what it was made from.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tooltune_agents::flat::FlattenReport;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_files::SplitRecord;
use tooltune_rows::regular_file;
use tooltune_rows::text::TemplateDate;

use super::pending_lock::PendingLock;
use super::preparation::Flattened;
use super::run_lock::{Extension, InputTimes, LOCK_FILE, RunLock};
use crate::config::{Change, Config, LoadedConfig, LrSchedulerType, OnResume, diff};
use crate::error::Error;

const CONFIG_FILE: &str = "config.resolved.toml";
const FLATTEN_FILE: &str = "flatten.json";

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub struct RunSteps {
    /// Steps that it has taken.
    pub taken: u64,
    /// Steps that it has when it is over.
    pub total: u64,
}

/// Writes `config.resolved.toml` and `run.lock.json` of a run that starts or resumes, after comparing
/// its inputs with those that it began with; answers the lock, which is still being made of a run that
/// starts. A run that is longer now says so, and one whose `inputs` have changed since they were listed.
///
/// # Errors
///
/// A file that cannot be read or written, inputs other than those that the run began with, or fewer
/// steps than it has taken.
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
        .map_err(|error| Error::Usage(format!("the config cannot be written: {error}")))?;
    let lock = match RunLock::of_run(run_dir)? {
        None => PendingLock::read(run_dir, config, split, inputs)?,
        Some(earlier) => {
            let now = RunLock::of(config, Some(&earlier))?;
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
            PendingLock::written(run_dir, &lock)
        }
    };
    write_atomic(&run_dir.join(CONFIG_FILE), text.as_bytes())?;
    Ok(lock)
}

/// What makes the run of a directory longer, said in a line; none where nothing does.
fn extension(config: &Config, run_dir: &Path, steps: RunSteps) -> Result<Option<Extension>, Error> {
    let Some(earlier) = kept_config(run_dir)? else {
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
    let (RunSteps { taken, total }, listed) = (steps, changes.join(", "));
    if total < taken {
        return Err(Error::Usage(format!(
            "{} has {taken} steps, and with {listed} it would have {total}; a run can be made longer, \
             not shorter",
            run_dir.display()
        )));
    }
    let schedule = match config.train.lr_scheduler_type {
        LrSchedulerType::Constant | LrSchedulerType::ConstantWithWarmup => {
            "the learning rate stays as it is".to_owned()
        }
        decaying => format!(
            "lr_scheduler_type = \"{decaying}\" comes down over all {total} steps now, so that the \
             learning rate goes up again from where it had come to"
        ),
    };
    tracing::warn!(
        "{} is made longer at step {taken} of {total} ({listed}): {schedule}",
        run_dir.display()
    );
    Ok(Some(Extension {
        at_step: taken,
        changes,
    }))
}

/// Writes `flatten.json`: how many schemas the model sees flat, and each that stayed nested.
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

/// Checks that the run of a config can begin or go on in its directory, and gives it the day that its
/// templates read: the config's, that of the run which the directory holds, or today. Answers the step
/// of the newest checkpoint there, if there is one.
///
/// For the beginning of a command, before anything is read; a run checks once more when it has locked
/// its directory ([`check_same_run`]).
///
/// # Errors
///
/// No file can be made there, the directory's config cannot be read, or it is another run's.
pub fn pin_run_settings(config: &mut Config) -> Result<Option<u64>, Error> {
    let dir = config.train.output_dir.clone();
    check_writable(&dir).map_err(|(place, error)| {
        Error::Usage(format!(
            "train.output_dir names {}, and no file can be made in {}: {error}; set it to a folder \
             that you may write to",
            dir.display(),
            place.display()
        ))
    })?;
    let earlier = kept_config(&dir)?;
    let lock = match &earlier {
        Some(_) => None,
        None => RunLock::of_run(&dir)?,
    };
    if config.model.is_some() {
        let kept = earlier
            .as_ref()
            .and_then(|earlier| earlier.data.template_date);
        let locked = lock.as_ref().and_then(|lock| lock.template_date.as_ref());
        let kept = kept.or_else(|| locked.and_then(|date| date.parse().ok()));
        let date = &mut config.data.template_date;
        *date = Some(date.or(kept).unwrap_or_else(TemplateDate::today));
    }
    match (earlier, lock) {
        (Some(earlier), _) => check_same(earlier, config, &dir)?,
        (None, Some(lock)) => check_same_digest(&lock, config, &dir)?,
        (None, None) => return Ok(None),
    }
    let newest = RunDir::open_to_read(&dir)?.list()?.pop();
    Ok(newest.map(|checkpoint| checkpoint.step))
}

/// Makes a file in a folder, or in the nearest one above it that is there, which is answered.
///
/// # Errors
///
/// That folder, and why no file can be made in it.
pub fn check_writable(dir: &Path) -> Result<PathBuf, (PathBuf, std::io::Error)> {
    let place = nearest_folder(dir);
    match tempfile::tempfile_in(&place) {
        Ok(_) => Ok(place),
        Err(error) => Err((place, error)),
    }
}

/// A folder, or the nearest one above it that is there.
pub fn nearest_folder(dir: &Path) -> PathBuf {
    match dir.ancestors().find(|path| path.is_dir()) {
        Some(path) if !path.as_os_str().is_empty() => path.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The config of the run that a directory holds, if it holds one.
fn kept_config(run_dir: &Path) -> Result<Option<Config>, Error> {
    let path = run_dir.join(CONFIG_FILE);
    if regular_file::is_there(&path).map_err(Error::io(&path, "read"))? {
        Ok(Some(LoadedConfig::load(&path, &[])?.config))
    } else {
        Ok(None)
    }
}

/// Checks that a run directory, if it holds a run, holds one of this config.
///
/// # Errors
///
/// A setting that must not change on resume differs; all of them are listed.
pub fn check_same_run(config: &Config, run_dir: &Path) -> Result<(), Error> {
    if let Some(earlier) = kept_config(run_dir)? {
        return check_same(earlier, config, run_dir);
    }
    match RunLock::of_run(run_dir)? {
        Some(lock) => check_same_digest(&lock, config, run_dir),
        None => Ok(()),
    }
}

/// The same where the run's config is gone.
fn check_same_digest(lock: &RunLock, config: &Config, run_dir: &Path) -> Result<(), Error> {
    if lock.resume_digest == config.resume_digest() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} holds a run of another config: its {CONFIG_FILE} is gone, and the settings are not those \
         whose digest {LOCK_FILE} keeps (resume_digest); bring them back, or that file, which names \
         them, or set train.output_dir to another folder",
        run_dir.display()
    )))
}

fn check_same(mut earlier: Config, config: &Config, run_dir: &Path) -> Result<(), Error> {
    // A run that kept no day has rendered with each day's own.
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
            "{} holds a run that is longer:\n{}\na run can be made longer, not shorter: bring this back, \
             or set train.output_dir to another folder",
            run_dir.display(),
            refused.join("\n")
        )));
    }
    Err(Error::Usage(format!(
        "{} holds a run of another config:\n{}\nset train.output_dir to another folder, or bring \
         these settings back",
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
