//! Computes the cache key from everything that prepared examples depend on.
//!
//! The key includes the hash of the program instead of a version number. Any change to the
//! preparation of rows therefore changes the key.

use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::{Value, json};
use tooltune_agents::Distractors;
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_json::refuse_a_folder;
use tooltune_rows::text::DataError;

use crate::base_model::BaseModel;
use crate::config::{Config, DataFormat, flat};
use crate::error::Error;
use crate::rows::RowFiles;
use crate::settings;

/// Tables with settings that may change examples.
const TABLES: [&str; 3] = ["data.", "mask.", "goat."];

/// Settings in these tables that do not change examples, or whose files are in the key.
const IGNORED: [&str; 4] = [
    "data.eval",
    "data.packing",
    "data.template_date",
    "data.chat_template",
];

/// The template function that returns the date.
const DATE_FUNCTION: &str = "strftime_now";

/// The key of a run's examples, and the state of the row files when it was computed.
#[derive(Debug)]
pub(super) struct Key {
    /// Key in hex.
    pub(super) name: String,
    files: Vec<FileState>,
}

/// State of a file: size and modification time.
type FileState = (u64, Option<SystemTime>);

/// Computes the key for a config; `None` if its examples depend on computations on a device, or if
/// the file of this program cannot be read.
///
/// # Errors
///
/// A file cannot be read.
pub(super) fn compute(
    config: &Config,
    base: &BaseModel,
    files: &RowFiles,
) -> Result<Option<Key>, Error> {
    let is_ranked = config.data.format == DataFormat::Goat
        && (config.goat.as_ref()).is_some_and(|goat| goat.distractors != Distractors::Random);
    let Some(program) = program() else {
        return Ok(None);
    };
    if is_ranked {
        return Ok(None);
    }
    let file_states = file_states(files)?;
    let settings = flat(config).into_iter();
    let settings: Vec<(String, String)> = settings
        .filter(|(path, _)| TABLES.iter().any(|table| path.starts_with(table)))
        .filter(|(path, _)| !IGNORED.contains(&path.as_str()))
        .collect();
    let template = &base.template;
    let reads_day = template.source().contains(DATE_FUNCTION);
    let special = template.special_tokens();
    let added = base.tokenizer.added_tokens();
    let mut content = Vec::new();
    for path in files.paths() {
        refuse_a_folder(path).map_err(DataError::from)?;
        content.push(json!([path.display().to_string(), sha256_file(path)?]));
    }
    if let Some(goat) = config
        .goat
        .as_ref()
        .filter(|_| config.data.format == DataFormat::Goat)
    {
        content.push(json!(["goat.documents", sha256_file(&goat.documents)?]));
    }
    let slot_prompt = match config.data.format {
        DataFormat::Slot => Some(settings::slot_prompt(&config.data)?.source().to_owned()),
        _ => None,
    };
    let key: Value = json!({
        "program": program,
        "files": content,
        "settings": settings,
        "seed": config.train.seed,
        "template": template.source(),
        "day": reads_day.then(|| config.data.template_date.map(|date| date.to_string())),
        "special": [&special.bos_token, &special.eos_token, &special.unk_token, &special.pad_token],
        "slot_prompt": slot_prompt,
        "tokenizer": sha256_bytes(base.tokenizer.to_json()?.as_bytes()),
        // The JSON of the tokenizer does not include the tokens that it adds around plain text.
        "added": [&added.before, &added.after],
        "stop_ids": base.stop_ids,
    });
    Ok(Some(Key {
        name: sha256_bytes(key.to_string().as_bytes()),
        files: file_states,
    }))
}

impl Key {
    /// Whether the files are unchanged since the key was computed.
    ///
    /// # Errors
    ///
    /// A file is missing.
    pub(super) fn is_current(&self, files: &RowFiles) -> Result<bool, Error> {
        Ok(file_states(files)? == self.files)
    }
}

fn file_states(files: &RowFiles) -> Result<Vec<FileState>, Error> {
    let file_states = files.paths().map(|path| {
        let metadata = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
        Ok((metadata.len(), metadata.modified().ok()))
    });
    file_states.collect()
}

/// SHA-256 of the running program; `None` if its file can no longer be read.
fn program() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let path = std::env::current_exe().ok()?;
        sha256_file(&path).ok()
    });
    program.as_deref()
}
