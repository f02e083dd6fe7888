//! Names of the hub -> paths of this machine, before anything else is done with a config.
//!
//! A text that exists as a path is one. A run keeps the commits that it began with: they stand in
//! the lock of its folder, and count in place of what a branch has become since.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tooltune_hub::{Fetched, Hub, HubError, HubName, Need, Part};
use tooltune_rows::regular_file;

use super::findings::Findings;
use super::hub_names::{HubOrigin, is_of_model, revision_of};
use super::paths::list_of;
use super::schema::{root, visit_paths};
use super::tables::Config;
use super::written::settings_of;
use crate::budgets::RUN_FILE_BYTES;
use crate::progress::{self, Fetching};

/// Settings whose files only training reads.
const OF_TRAINING: [&str; 2] = ["data.train", "retriever.train"];

/// Which names are fetched; what the cache has becomes a path in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// None: nothing is asked.
    Cached,
    /// Of models what tells their shape.
    Shapes,
    /// All that an evaluation reads.
    ForEvaluation,
    /// All of them.
    All,
}

impl Names {
    /// What of a setting is fetched, if anything is.
    fn need(self, setting: &str) -> Option<Need> {
        match self {
            Self::Cached => None,
            Self::Shapes => is_of_model(setting).then_some(Need::Shape),
            Self::ForEvaluation => (!OF_TRAINING.contains(&list_of(setting))).then_some(Need::All),
            Self::All => Some(Need::All),
        }
    }
}

/// The name of the hub that a text is in a setting, unless it is a path: one that exists, or one whose
/// folder does, which is a path with a typing mistake.
///
/// # Errors
///
/// It begins with `hf://` and names nothing.
pub(crate) fn name_of(setting: &str, text: &str) -> Result<Option<HubName>, HubError> {
    let name = match is_of_model(setting) {
        true => HubName::of_model(text)?,
        false => HubName::of_rows(text)?,
    };
    let path = Path::new(text);
    let is_here = path.exists() || path.parent().is_some_and(Path::is_dir);
    Ok(name.filter(|_| text.starts_with("hf://") || !is_here))
}

/// Puts paths in the place of names.
pub(super) fn resolve(config: &mut Config, findings: &mut Findings, names: Names) {
    // The paths of a config that was read are UTF-8, and can be written.
    let mut settings = settings_of(config).unwrap_or_default();
    let mut named = Vec::new();
    visit_paths(
        &mut settings,
        root(),
        "",
        &mut |setting, text| match name_of(setting, text) {
            Ok(None) => path_with_revision(setting, findings),
            Ok(Some(name)) => named.push((setting.to_owned(), name)),
            Err(error) => report(setting, text, &error, findings),
        },
    );
    if named.is_empty() {
        return;
    }
    let hub = match Hub::of_process() {
        Ok(hub) => hub,
        Err(error) => {
            let (setting, name) = &named[0];
            return report(setting, &name.to_string(), &error, findings);
        }
    };
    let pinned = pinned(&config.train.output_dir);
    for (setting, name) in named {
        let Some(name) = with_revision(&setting, name, &settings, findings) else {
            continue;
        };
        let asked = name.revision.clone();
        let short = name.without_revision();
        let is_of_run = |origin: &&HubOrigin| {
            origin.name == short
                && (origin.revision == asked || asked.as_ref() == Some(&origin.commit))
        };
        let name = match pinned.iter().find(is_of_run) {
            Some(origin) => name.at(&origin.commit),
            None => name,
        };
        match located(&hub, &name, names.need(&setting)) {
            Ok(Some(found)) => {
                let origin = HubOrigin {
                    name: short,
                    revision: asked,
                    commit: found.commit.clone(),
                };
                put(&mut settings, &setting, &name, &found);
                config.hub.insert(found.path, origin);
            }
            Ok(None) => {}
            Err(error) => report(&setting, &name.to_string(), &error, findings),
        }
    }
    let hub = std::mem::take(&mut config.hub);
    if let Ok(resolved) = serde_json::from_value(Value::Object(settings)) {
        *config = resolved;
    }
    config.hub = hub;
}

/// A name as a path of this machine; nothing where it is not here and not to be fetched.
fn located(hub: &Hub, name: &HubName, need: Option<Need>) -> Result<Option<Fetched>, HubError> {
    let Some(need) = need else {
        // What is wrong with it is said by whoever needs it.
        return Ok(hub.cached(name, Need::All).unwrap_or_default());
    };
    fetch(hub, name, need).map(Some)
}

/// Fetches what a name means, unless the cache has it, and says what was fetched.
///
/// # Errors
///
/// A name that the hub does not know or does not give, or a hub that cannot be reached.
pub(crate) fn fetch(hub: &Hub, name: &HubName, need: Need) -> Result<Fetched, HubError> {
    let view = Fetching::begin(name.to_string());
    let found = hub.fetch(name, need, &|event| view.hear(event))?;
    if let Some(fetched) = view.summary() {
        drop(view);
        progress::print(&format!(
            "{name}: fetched {fetched}, commit {}",
            found.commit
        ));
    }
    if let Some(reason) = &found.instead {
        tracing::warn!(
            "{name}: {reason}; its commit {} in the cache is taken",
            found.commit
        );
    }
    Ok(found)
}

/// The name with the revision of its setting.
fn with_revision(
    setting: &str,
    name: HubName,
    settings: &Map<String, Value>,
    findings: &mut Findings,
) -> Option<HubName> {
    let Some(revision) = revision_of(setting) else {
        return Some(name);
    };
    let (table, key) = revision.split_once('.').unwrap_or_default();
    let typed = settings[table][key].as_str();
    match (&name.revision, typed) {
        (Some(own), Some(typed)) if own != typed => {
            let message = format!("`{revision}` is {typed:?}, and `{setting}` names {own:?}");
            findings.report(revision, message, "give the revision in one of them");
            None
        }
        (None, Some(typed)) => Some(name.at(typed)),
        _ => Some(name),
    }
}

/// Refuses a revision of what has none.
fn path_with_revision(setting: &str, findings: &mut Findings) {
    if let Some(revision) = revision_of(setting).filter(|revision| findings.is_read(revision)) {
        let message = format!("`{revision}` is set, and `{setting}` names a path");
        let help = "take it out, or name a model of the hub, such as \"Qwen/Qwen3-0.6B\"";
        findings.report(revision, message, help);
    }
}

fn put(settings: &mut Map<String, Value>, setting: &str, name: &HubName, found: &Fetched) {
    visit_paths(settings, root(), "", &mut |visited, text| {
        if visited == setting {
            *text = found.path.display().to_string();
        }
    });
    if let Some((table, key)) = revision_of(setting).and_then(|path| path.split_once('.')) {
        settings[table][key] = found.commit.clone().into();
    }
    // An adapter names its base as others find it.
    let is_base = setting == "model.model_name_or_path" && name.part == Part::Model;
    if is_base && settings["model"].get("hub_id").is_none_or(Value::is_null) {
        settings["model"]["hub_id"] = name.repo.id.clone().into();
    }
}

fn report(setting: &str, name: &str, error: &HubError, findings: &mut Findings) {
    let message = format!("`{}` names {name}, which is not here", list_of(setting));
    findings.report(setting, message, error.to_string());
}

/// The commits that the run in a folder began with; none where there is no run. A lock that cannot be
/// read is refused by whoever reads all of it.
fn pinned(output_dir: &Path) -> Vec<HubOrigin> {
    #[derive(Default, Deserialize)]
    struct Lock {
        inputs: Vec<Input>,
    }
    #[derive(Deserialize)]
    struct Input {
        hub: Option<HubOrigin>,
    }
    let bytes = regular_file::read_if_there(&output_dir.join(LOCK), RUN_FILE_BYTES);
    let bytes = bytes.ok().flatten().unwrap_or_default();
    let lock: Lock = serde_json::from_slice(&bytes).unwrap_or_default();
    lock.inputs
        .into_iter()
        .filter_map(|input| input.hub)
        .collect()
}

/// The lock in the folder of a run, which `recipes/run_lock.rs` writes.
const LOCK: &str = "run.lock.json";
