//! What a refusal of the hub means, and what its user is told to do.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::client::{Client, Failure, Outgoing, Refused};
use crate::error::HubError;
use crate::fetch::Listener;
use crate::name::{RepoName, quoted_part};

/// The most names that a message suggests.
const N_SUGGESTED: usize = 3;

/// What a request was about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// The repository.
    pub(crate) repo: &'a RepoName,
    /// What was asked for.
    pub(crate) revision: &'a str,
    /// The file, if it is about one.
    pub(crate) file: Option<&'a str>,
    /// The right of a token that it takes.
    pub(crate) right: &'static str,
    /// What users fetch, as they name it.
    pub(crate) what: &'a str,
}

impl Client {
    /// The error that a failure is; asks the hub once more for what the repository has.
    pub(crate) fn explained(
        &self,
        failure: Failure,
        about: About<'_>,
        told: Listener<'_>,
    ) -> HubError {
        match failure {
            Failure::Final(error) => error,
            Failure::Fault(fault) => HubError::Unreachable {
                url: self.endpoint(),
                fault,
                what: about.what.to_owned(),
            },
            Failure::Refused(refused) => self.refusal(&refused, about, told),
        }
    }

    fn refusal(&self, refused: &Refused, about: About<'_>, told: Listener<'_>) -> HubError {
        let repo = about.repo.clone();
        let has_token = self.has_token();
        let code = refused.header("x-error-code").unwrap_or_default();
        let is_token_bad = refused.said.contains("Invalid credentials")
            || refused.said.contains("Invalid username or password") && has_token;
        match (code, refused.status) {
            ("GatedRepo", _) => HubError::Gated {
                page: self.page(about.repo),
                repo,
                has_token,
            },
            ("RevisionNotFound", _) => HubError::NoRevision {
                known: self.revisions(about.repo, told),
                repo,
                revision: about.revision.to_owned(),
            },
            ("EntryNotFound", _) => HubError::NoFile {
                repo,
                file: about.file.unwrap_or_default().to_owned(),
                known: Vec::new(),
            },
            (_, 401) if is_token_bad => HubError::TokenRefused {
                endpoint: self.endpoint(),
            },
            ("RepoNotFound", _) | (_, 401 | 404) => HubError::NoRepo {
                similar: self.similar(about.repo, told),
                repo,
                endpoint: self.endpoint(),
                has_token,
            },
            (_, 403) => HubError::Forbidden {
                repo,
                said: refused.said.clone(),
                right: about.right,
            },
            (_, 429) => HubError::TooMany {
                endpoint: self.endpoint(),
                waited: self.patience.longest.as_secs(),
                has_token,
            },
            (_, status) => HubError::Status {
                url: refused.url.clone(),
                status,
                said: refused.said.clone(),
            },
        }
    }

    /// The page of a repository, where its conditions are.
    fn page(&self, repo: &RepoName) -> String {
        format!("{}/{}", self.endpoint(), repo.page_path())
    }

    /// The branches and tags of a repository; none where the hub does not say.
    fn revisions(&self, repo: &RepoName, told: Listener<'_>) -> Vec<String> {
        let url = self.url(&format!("{}/refs", repo.api_path()));
        let Ok((refs, _)) = self.json(&Outgoing::get(url), told) else {
            return Vec::new();
        };
        let of_kind = |kind: &str| refs[kind].as_array().cloned().unwrap_or_default();
        let all = of_kind("branches").into_iter().chain(of_kind("tags"));
        all.filter_map(|found| Some(found["name"].as_str()?.to_owned()))
            .collect()
    }

    /// Repositories of the same owner with the nearest names; none where the hub does not say.
    fn similar(&self, repo: &RepoName, told: Listener<'_>) -> Vec<String> {
        let path = format!(
            "api/{}?author={}&limit=1000",
            repo.kind.plural(),
            quoted_part(repo.owner())
        );
        let Ok((found, _)) = self.json(&Outgoing::get(self.url(&path)), told) else {
            return Vec::new();
        };
        let names = found.as_array().into_iter().flatten();
        let names = names.filter_map(|found| found["id"].as_str().map(str::to_owned));
        nearest(&repo.id, names)
    }
}

/// The names that differ least from a wanted one, and not by much.
pub(crate) fn nearest(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let lower = wanted.to_lowercase();
    let mut by_distance: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for name in names {
        let distance = strsim::damerau_levenshtein(&lower, &name.to_lowercase());
        if distance <= (wanted.chars().count() / 3).max(2) {
            by_distance.entry(distance).or_default().push(name);
        }
    }
    let sorted = by_distance.into_values().flatten();
    sorted.take(N_SUGGESTED).collect()
}

/// The text of a field, or nothing.
pub(crate) fn text(value: &Value, field: &str) -> Option<String> {
    value[field].as_str().map(str::to_owned)
}
