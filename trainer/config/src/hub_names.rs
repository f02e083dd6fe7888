//! Hub names of paths in a config.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_hub::HubName;

/// Hub location of a local path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubOrigin {
    /// Name as in the config, without a revision.
    pub name: String,
    /// Requested branch, tag or commit, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Resolved commit.
    pub commit: String,
}

/// Settings that name models, with the setting of their revision, if any.
pub(super) const MODELS: [(&str, Option<&str>); 3] = [
    ("model.model_name_or_path", Some("model.revision")),
    ("retriever.model_name_or_path", Some("retriever.revision")),
    ("eval.encoder", None),
];

/// Whether a setting names a model instead of files.
pub(super) fn is_of_model(setting: &str) -> bool {
    MODELS.iter().any(|(model, _)| *model == setting)
}

/// The setting of a model's revision, as table and key.
pub(super) fn revision_of(setting: &str) -> Option<&'static str> {
    let entry = MODELS.iter().find(|(model, _)| *model == setting);
    entry.and_then(|(_, revision)| *revision)
}

impl HubOrigin {
    /// The name with its commit, for settings without a revision setting.
    pub fn at_commit(&self) -> String {
        let rows = HubName::parse_rows(&self.name).ok().flatten();
        let name = rows.or_else(|| HubName::parse_model(&self.name).ok().flatten());
        name.map_or_else(
            || self.name.clone(),
            |name| name.with_revision(&self.commit).to_string(),
        )
    }
}

/// Hub names of the paths in a config. Code that reads files uses the paths; files for other
/// machines contain the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubNames(BTreeMap<PathBuf, HubOrigin>);

impl HubNames {
    /// Hub location of a path.
    pub fn origin_of(&self, path: &Path) -> Option<&HubOrigin> {
        self.0.get(path)
    }

    pub(super) fn insert(&mut self, path: PathBuf, origin: HubOrigin) {
        self.0.insert(path, origin);
    }
}
