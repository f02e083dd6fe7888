//! Replaces Hub names in a config with local paths, before other checks.
//!
//! A string is a path if that path exists. A resumed run uses the commits with which it started,
//! even if a branch has moved since; the lock in its directory records them.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tooltune_disk::regular_file;
use tooltune_hub::{Fetched, Hub, HubError, HubName, NamePart, WantedFiles};

use super::findings::Findings;
use super::hub_names::{HubOrigin, is_of_model, revision_of};
use super::paths::list_of;
use super::schema::{root, visit_paths};
use super::tables::Config;
use super::written::settings_of;
use crate::budgets::RUN_FILE_BYTES;
use tooltune_terminal::{self as terminal, Fetching};

/// Settings with files that only training reads.
const OF_TRAINING: [&str; 2] = ["data.train", "retriever.train"];

/// Which names are downloaded; cached names always become paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// None; no requests.
    Cached,
    /// The files that describe the shape of models.
    Shapes,
    /// Files for an evaluation.
    ForEvaluation,
    /// All files.
    All,
}

impl Names {
    /// Which files of a setting to download, if any.
    fn need(self, setting: &str) -> Option<WantedFiles> {
        match self {
            Self::Cached => None,
            Self::Shapes => is_of_model(setting).then_some(WantedFiles::Shape),
            Self::ForEvaluation => {
                (!OF_TRAINING.contains(&list_of(setting))).then_some(WantedFiles::All)
            }
            Self::All => Some(WantedFiles::All),
        }
    }
}

/// The Hub name in a setting; `None` if the text is a path. It is a path if it exists, or if its
/// folder exists and the rest is probably mistyped.
///
/// # Errors
///
/// The text begins with `hf://` but is not a valid name.
pub(crate) fn name_of(setting: &str, text: &str) -> Result<Option<HubName>, HubError> {
    let name = match is_of_model(setting) {
        true => HubName::parse_model(text)?,
        false => HubName::parse_rows(text)?,
    };
    let path = Path::new(text);
    let is_here = path.exists() || path.parent().is_some_and(Path::is_dir);
    Ok(name.filter(|_| text.starts_with("hf://") || !is_here))
}

/// Replaces names with paths.
pub(super) fn resolve(config: &mut Config, findings: &mut Findings, names: Names) {
    // Paths from a config file are UTF-8, so they can be serialized.
    let mut settings = settings_of(config).unwrap_or_default();
    let mut names_by_setting = Vec::new();
    visit_paths(
        &mut settings,
        root(),
        "",
        &mut |setting, text| match name_of(setting, text) {
            Ok(None) => path_with_revision(setting, findings),
            Ok(Some(name)) => names_by_setting.push((setting.to_owned(), name)),
            Err(error) => report(setting, text, &error, findings),
        },
    );
    if names_by_setting.is_empty() {
        return;
    }
    let hub = match Hub::from_process_environment() {
        Ok(hub) => hub,
        Err(error) => {
            let (setting, name) = &names_by_setting[0];
            return report(setting, &name.to_string(), &error, findings);
        }
    };
    let pinned = pinned_commits(&config.train.output_dir);
    for (setting, name) in names_by_setting {
        let Some(name) = with_revision(&setting, name, &settings, findings) else {
            continue;
        };
        let requested = name.revision.clone();
        let short = name.without_revision();
        let is_of_run = |origin: &&HubOrigin| {
            origin.name == short
                && (origin.revision == requested || requested.as_ref() == Some(&origin.commit))
        };
        let name = match pinned.iter().find(is_of_run) {
            Some(origin) => name.with_revision(&origin.commit),
            None => name,
        };
        match locate(&hub, &name, names.need(&setting)) {
            Ok(Some(fetched)) => {
                let origin = HubOrigin {
                    name: short,
                    revision: requested,
                    commit: fetched.commit.clone(),
                };
                set_path(&mut settings, &setting, &name, &fetched);
                config.hub.insert(fetched.path, origin);
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

/// Local path of a name; `None` if it is not cached and not to be downloaded.
fn locate(
    hub: &Hub,
    name: &HubName,
    need: Option<WantedFiles>,
) -> Result<Option<Fetched>, HubError> {
    let Some(need) = need else {
        // Damage is reported by the code that needs the file.
        return Ok(hub.cached_files(name, WantedFiles::All).unwrap_or_default());
    };
    fetch(hub, name, need).map(Some)
}

/// Downloads a name unless it is cached, and prints what was downloaded.
///
/// # Errors
///
/// The Hub does not have the name, refuses access, or cannot be reached.
pub fn fetch(hub: &Hub, name: &HubName, need: WantedFiles) -> Result<Fetched, HubError> {
    let view = Fetching::begin(name.to_string());
    let downloaded = hub.fetch(name, need, &|event| view.show_event(event))?;
    if let Some(fetched) = view.summary() {
        drop(view);
        terminal::print(&format!(
            "{name}: fetched {fetched}, commit {}",
            downloaded.commit
        ));
    }
    if let Some(reason) = &downloaded.instead {
        tracing::warn!(
            "{name}: {reason}; using commit {} from the cache",
            downloaded.commit
        );
    }
    Ok(downloaded)
}

/// The name with the revision from its setting.
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
            let message = format!("`{revision}` is {typed:?}, but `{setting}` has {own:?}");
            findings.report(revision, message, "set the revision in one of them");
            None
        }
        (None, Some(typed)) => Some(name.with_revision(typed)),
        _ => Some(name),
    }
}

/// Refuses a revision for a path.
fn path_with_revision(setting: &str, findings: &mut Findings) {
    if let Some(revision) =
        revision_of(setting).filter(|revision| findings.has_source_value(revision))
    {
        let message = format!("`{revision}` is set, but `{setting}` is a path");
        let help = "remove it, or set a Hub model, such as \"Qwen/Qwen3-0.6B\"";
        findings.report(revision, message, help);
    }
}

fn set_path(settings: &mut Map<String, Value>, setting: &str, name: &HubName, fetched: &Fetched) {
    visit_paths(settings, root(), "", &mut |visited, text| {
        if visited == setting {
            *text = fetched.path.display().to_string();
        }
    });
    if let Some((table, key)) = revision_of(setting).and_then(|path| path.split_once('.')) {
        settings[table][key] = fetched.commit.clone().into();
    }
    // Adapters name their base model by its Hub id.
    let is_base = setting == "model.model_name_or_path" && name.part == NamePart::Model;
    if is_base && settings["model"].get("hub_id").is_none_or(Value::is_null) {
        settings["model"]["hub_id"] = name.repo.id.clone().into();
    }
}

fn report(setting: &str, name: &str, error: &HubError, findings: &mut Findings) {
    let message = format!(
        "`{}` names {name}, which is not available",
        list_of(setting)
    );
    findings.report(setting, message, error.to_string());
}

/// Commits with which the run in a folder started; empty if there is no run. The code that reads
/// the whole lock reports an unreadable one.
fn pinned_commits(output_dir: &Path) -> Vec<HubOrigin> {
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

/// Lock of a run directory, written by `recipes/run_lock.rs`.
const LOCK: &str = "run.lock.json";
