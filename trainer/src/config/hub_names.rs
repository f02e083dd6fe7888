//! Paths of a config that came from names of the hub, and the names that they came from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_hub::HubName;

/// What a path of this machine is on the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubOrigin {
    /// As the config names it, without a revision.
    pub name: String,
    /// The branch, tag or commit that was asked for, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The commit that it was.
    pub commit: String,
}

/// Settings that name models, each with the one that says its revision, if there is one.
pub(super) const MODELS: [(&str, Option<&str>); 3] = [
    ("model.model_name_or_path", Some("model.revision")),
    ("retriever.model_name_or_path", Some("retriever.revision")),
    ("eval.encoder", None),
];

/// Whether a setting names a model; others name files.
pub(super) fn is_of_model(setting: &str) -> bool {
    MODELS.iter().any(|(model, _)| *model == setting)
}

/// The setting of the revision of a model, as its table and key.
pub(super) fn revision_of(setting: &str) -> Option<&'static str> {
    let found = MODELS.iter().find(|(model, _)| *model == setting);
    found.and_then(|(_, revision)| *revision)
}

impl HubOrigin {
    /// The name with its commit, as a setting has it that has no revision beside it.
    pub(super) fn at_commit(&self) -> String {
        let rows = HubName::of_rows(&self.name).ok().flatten();
        let name = rows.or_else(|| HubName::of_model(&self.name).ok().flatten());
        name.map_or_else(
            || self.name.clone(),
            |name| name.at(&self.commit).to_string(),
        )
    }
}

/// The names behind the paths of a config: everything that reads files sees paths alone, and
/// everything that is written for another machine says the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubNames(BTreeMap<PathBuf, HubOrigin>);

impl HubNames {
    /// What a path came from.
    pub fn of(&self, path: &Path) -> Option<&HubOrigin> {
        self.0.get(path)
    }

    pub(super) fn insert(&mut self, path: PathBuf, origin: HubOrigin) {
        self.0.insert(path, origin);
    }
}
