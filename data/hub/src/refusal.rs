//! Interprets refusals of the hub and gives advice.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::client::{Client, Failure, Outgoing, RefusedReply};
use crate::error::HubError;
use crate::event::Listener;
use crate::name::{RepoName, quoted_part};

/// Maximum names that a message suggests.
const N_SUGGESTED: usize = 3;

/// The subject of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSubject<'a> {
    /// The repository.
    pub(crate) repo: &'a RepoName,
    /// The requested revision.
    pub(crate) revision: &'a str,
    /// The file, if the request concerns one.
    pub(crate) file: Option<&'a str>,
    /// The token permission that the request needs.
    pub(crate) permission: &'static str,
    /// The name that the user fetches.
    pub(crate) what: &'a str,
}

impl Client {
    /// Converts a failure to an error; may send another request to list available alternatives.
    pub(crate) fn explain(
        &self,
        failure: Failure,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> HubError {
        match failure {
            Failure::Final(error) => error,
            Failure::Fault(fault) => HubError::Unreachable {
                url: self.endpoint(),
                fault,
                what: subject.what.to_owned(),
            },
            Failure::RefusedReply(refused) => self.refusal(&refused, subject, report),
        }
    }

    fn refusal(
        &self,
        refused_reply: &RefusedReply,
        subject: RequestSubject<'_>,
        report: Listener<'_>,
    ) -> HubError {
        let repo = subject.repo.clone();
        let has_token = self.has_token();
        let code = refused_reply.header("x-error-code").unwrap_or_default();
        let is_token_bad = refused_reply.reason.contains("Invalid credentials")
            || refused_reply
                .reason
                .contains("Invalid username or password")
                && has_token;
        if !refused_reply.is_of_hub {
            return HubError::Status {
                url: refused_reply.url.clone(),
                status: refused_reply.status,
                reason: refused_reply.reason.clone(),
            };
        }
        match (code, refused_reply.status) {
            ("GatedRepo", _) => HubError::Gated {
                page: self.page(subject.repo),
                repo,
                has_token,
            },
            ("RevisionNotFound", _) => HubError::NoRevision {
                known: self.revisions(subject.repo, report),
                repo,
                revision: subject.revision.to_owned(),
            },
            ("EntryNotFound", _) => HubError::NoFile {
                repo,
                file: subject.file.unwrap_or_default().to_owned(),
                known: Vec::new(),
            },
            (_, 401) if is_token_bad => HubError::TokenRefused {
                endpoint: self.endpoint(),
            },
            ("RepoNotFound", _) | (_, 401 | 404) => HubError::NoRepo {
                similar: self.similar(subject.repo, report),
                repo,
                endpoint: self.endpoint(),
                has_token,
            },
            (_, 403) => HubError::Forbidden {
                repo,
                reason: refused_reply.reason.clone(),
                permission: subject.permission,
            },
            (_, 412) if subject.permission == "write" => HubError::ChangedMeanwhile { repo },
            (_, 429) => HubError::TooMany {
                endpoint: self.endpoint(),
                waited: self.policy.longest.as_secs(),
                has_token,
            },
            (_, status) => HubError::Status {
                url: refused_reply.url.clone(),
                status,
                reason: refused_reply.reason.clone(),
            },
        }
    }

    /// The page of a repository, which shows its conditions.
    fn page(&self, repo: &RepoName) -> String {
        format!("{}/{}", self.endpoint(), repo.page_path())
    }

    /// The branches and tags of a repository; empty if the hub does not list them.
    fn revisions(&self, repo: &RepoName, report: Listener<'_>) -> Vec<String> {
        let url = self.url(&format!("{}/refs", repo.api_path()));
        let Ok((refs, _)) = self.json(&Outgoing::get(url), report) else {
            return Vec::new();
        };
        let references_of_kind = |kind: &str| refs[kind].as_array().cloned().unwrap_or_default();
        let references = references_of_kind("branches")
            .into_iter()
            .chain(references_of_kind("tags"));
        references
            .filter_map(|reference| Some(reference["name"].as_str()?.to_owned()))
            .collect()
    }

    /// Repositories of the same owner with the most similar names; empty if the hub does not list
    /// them.
    fn similar(&self, repo: &RepoName, report: Listener<'_>) -> Vec<String> {
        let path = format!(
            "api/{}?author={}&limit=1000",
            repo.kind.plural(),
            quoted_part(repo.owner())
        );
        let Ok((search_result, _)) = self.json(&Outgoing::get(self.url(&path)), report) else {
            return Vec::new();
        };
        let names = search_result.as_array().into_iter().flatten();
        let names =
            names.filter_map(|search_result| search_result["id"].as_str().map(str::to_owned));
        nearest_names(&repo.id, names)
    }
}

/// The names most similar to a requested one.
pub(crate) fn nearest_names(wanted_name: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let lower = wanted_name.to_lowercase();
    let mut by_distance: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for name in names {
        let distance = strsim::damerau_levenshtein(&lower, &name.to_lowercase());
        if distance <= (wanted_name.chars().count() / 3).max(2) {
            by_distance.entry(distance).or_default().push(name);
        }
    }
    let sorted = by_distance.into_values().flatten();
    sorted.take(N_SUGGESTED).collect()
}

/// The string value of a field, if any.
pub(crate) fn text(value: &Value, field: &str) -> Option<String> {
    value[field].as_str().map(str::to_owned)
}
