//! What a run directory says about itself: the resolved config and what it was made from.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_data::flat::FlattenReport;
use tooltune_data::regular_file;
use tooltune_data::text::TemplateDate;

use super::preparation::{Flattened, Preparation};
use crate::budgets::RUN_FILE_BYTES;
use crate::config::{Change, Config, LoadedConfig, OnResume, RetrieverData, diff};
use crate::error::Error;

const CONFIG_FILE: &str = "config.resolved.toml";
const LOCK_FILE: &str = "run.lock.json";
const FLATTEN_FILE: &str = "flatten.json";

/// Writes `config.resolved.toml` and `run.lock.json`, if this is the run's beginning.
///
/// # Errors
///
/// A file that cannot be read or written, or inputs other than those that the run began with.
pub fn write(config: &Config, lock: Value, run_dir: &Path) -> Result<(), Error> {
    let text = config
        .to_toml()
        .map_err(|error| Error::Usage(format!("the config cannot be written: {error}")))?;
    let lock_path = run_dir.join(LOCK_FILE);
    if is_there(&lock_path)? {
        check_same_inputs(&lock_path, &lock)?;
    } else {
        let bytes = serde_json::to_vec_pretty(&lock).expect("a JSON value serialises");
        write_atomic(&lock_path, &bytes)?;
    }
    Ok(write_atomic(&run_dir.join(CONFIG_FILE), text.as_bytes())?)
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

/// Hashes of everything that a run of a language model is made from.
///
/// # Errors
///
/// A file that cannot be read.
pub fn lock(config: &Config, preparation: &Preparation) -> Result<Value, Error> {
    let mut lock = retriever_lock(config)?;
    lock["base_weights_sha256"] = json!(preparation.base.files.fingerprint()?);
    lock["tokenizer_sha256"] = json!(sha256_bytes(
        preparation.base.tokenizer.to_json()?.as_bytes()
    ));
    lock["chat_template_sha256"] = json!(preparation.base.template.sha256());
    Ok(lock)
}

/// The same of a run that has no language model.
///
/// # Errors
///
/// A file that cannot be read.
pub fn retriever_lock(config: &Config) -> Result<Value, Error> {
    let files = |paths: &mut dyn Iterator<Item = &PathBuf>| -> Result<Value, Error> {
        let mut hashes = serde_json::Map::new();
        for path in paths {
            hashes.insert(path.display().to_string(), json!(sha256_file(path)?));
        }
        Ok(Value::Object(hashes))
    };
    let mut lock = json!({
        "tooltune": env!("CARGO_PKG_VERSION"),
        "device": config.device.to_string(),
        "train_sha256": files(&mut config.data.train.iter())?,
        "eval_sha256": files(&mut config.data.eval.iter())?,
        "resume_digest": config.resume_digest(),
    });
    let goat = config.goat.iter().map(|goat| &goat.documents);
    lock["documents_sha256"] = files(&mut goat.into_iter())?;
    if let Some(retriever) = &config.retriever {
        let weights = retriever.model_name_or_path.join("model.safetensors");
        lock["retriever_weights_sha256"] = files(&mut [weights].iter())?;
        if let Some(RetrieverData::Pairs(pairs)) = retriever.training.as_ref().map(|t| &t.data) {
            lock["retriever_train_sha256"] = files(&mut pairs.iter())?;
        }
    }
    Ok(lock)
}

/// The hash of the weights that the run of a directory trains an adapter for, if it holds one.
///
/// # Errors
///
/// `run.lock.json` cannot be read.
pub fn base_weights_sha256(run_dir: &Path) -> Result<Option<String>, Error> {
    let path = run_dir.join(LOCK_FILE);
    if !is_there(&path)? {
        return Ok(None);
    }
    let lock = read_lock(&path)?;
    Ok(lock["base_weights_sha256"].as_str().map(str::to_owned))
}

/// Whether a file of a run is there; what is no file is an error.
fn is_there(path: &Path) -> Result<bool, Error> {
    regular_file::is_there(path).map_err(Error::io(path, "read"))
}

fn read_lock(path: &Path) -> Result<Value, Error> {
    let bytes = regular_file::read(path, RUN_FILE_BYTES).map_err(Error::io(path, "read"))?;
    Ok(serde_json::from_slice(&bytes).map_err(CheckpointError::json(path))?)
}

fn check_same_inputs(path: &Path, now: &Value) -> Result<(), Error> {
    let then = read_lock(path)?;
    let keys = [
        "base_weights_sha256",
        "tokenizer_sha256",
        "chat_template_sha256",
        "train_sha256",
        "eval_sha256",
        "documents_sha256",
        "retriever_weights_sha256",
        "retriever_train_sha256",
    ];
    let changed: Vec<&str> = keys
        .into_iter()
        .filter(|key| then[*key] != now[*key])
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{}: the run began with other inputs ({}); \
         bring them back, or set train.output_dir to another folder",
        path.display(),
        changed.join(", ")
    )))
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
pub fn settle(config: &mut Config) -> Result<Option<u64>, Error> {
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
    if config.model.is_some() {
        let kept = earlier
            .as_ref()
            .and_then(|earlier| earlier.data.template_date);
        let date = &mut config.data.template_date;
        *date = Some(date.or(kept).unwrap_or_else(TemplateDate::today));
    }
    let Some(earlier) = earlier else {
        return Ok(None);
    };
    check_same(earlier, config, &dir)?;
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
    match is_there(&path)? {
        true => Ok(Some(LoadedConfig::load(&path, &[])?.config)),
        false => Ok(None),
    }
}

/// Checks that a run directory, if it holds a run, holds one of this config.
///
/// # Errors
///
/// A setting that must not change on resume differs; all of them are listed.
pub fn check_same_run(config: &Config, run_dir: &Path) -> Result<(), Error> {
    match kept_config(run_dir)? {
        Some(earlier) => check_same(earlier, config, run_dir),
        None => Ok(()),
    }
}

fn check_same(mut earlier: Config, config: &Config, run_dir: &Path) -> Result<(), Error> {
    // A run that kept no day has rendered with each day's own.
    let date = &mut earlier.data.template_date;
    *date = date.or(config.data.template_date);
    let refused: Vec<String> = diff(&earlier, config)
        .into_iter()
        .filter(|change| change.on_resume == OnResume::Refused)
        .map(|change| line(&change))
        .collect();
    if refused.is_empty() {
        return Ok(());
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
