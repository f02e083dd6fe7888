//! What can go wrong between a name and its files, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tooltune_endpoint::http::HttpFault;

use crate::name::{NameError, RepoName};

/// Why a name has not become files, or an export is not on the hub; no message holds a token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is no name.
    #[error(transparent)]
    Name(#[from] NameError),

    /// Nobody says where the cache is.
    #[error("{variable}: there is no home folder; set HF_HOME to the folder of the cache")]
    NoHome {
        /// The variable that needs one.
        variable: String,
    },

    /// `HF_ENDPOINT` is no address.
    #[error(
        "HF_ENDPOINT {given:?} is no address; give scheme and host, such as https://huggingface.co"
    )]
    BadEndpoint {
        /// What it says, without secrets.
        given: String,
    },

    /// The token cannot be sent.
    #[error("HF_TOKEN cannot be sent in a header; remove line breaks and what is not ASCII")]
    BadToken,

    /// The repository wants its conditions to be accepted.
    #[error(
        "{repo} is gated: {}accept its conditions at {page} with your account{}",
        if *.has_token { "the account of your token has no access; " } else { "" },
        if *.has_token { ", or use another token" } else {
            ", make a token at https://huggingface.co/settings/tokens, and set HF_TOKEN to it"
        }
    )]
    Gated {
        /// The repository.
        repo: RepoName,
        /// Where its conditions are.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },

    /// There is no such repository, or it is private.
    #[error(
        "{endpoint} has no {} {repo}, or it is private: check the spelling{}{}",
        .repo.kind.noun(),
        crate::error::suggested(.similar),
        if *.has_token { "; the account of your token may have no access" } else {
            "; for a private one set HF_TOKEN to a token that may read it"
        }
    )]
    NoRepo {
        /// The repository.
        repo: RepoName,
        /// Who was asked.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
        /// Repositories of the same owner with the nearest names.
        similar: Vec<String>,
    },

    /// The repository has no such revision.
    #[error(
        "{repo} has no revision {revision:?}{}; name a branch, a tag or a commit",
        crate::error::listed("it has", .known)
    )]
    NoRevision {
        /// The repository.
        repo: RepoName,
        /// What was asked for.
        revision: String,
        /// Its branches and tags.
        known: Vec<String>,
    },

    /// The repository has no such file.
    #[error("{repo} has no file {file:?}{}", crate::error::listed("it has", .known))]
    NoFile {
        /// The repository.
        repo: RepoName,
        /// What was asked for.
        file: String,
        /// Files with the nearest names.
        known: Vec<String>,
    },

    /// No file of a data set was named.
    #[error("{repo}: name a file of the data set{}", crate::error::listed("it has", .known))]
    NoFileNamed {
        /// The repository.
        repo: RepoName,
        /// Its files of rows.
        known: Vec<String>,
    },

    /// A quantisation that no file, or more than one, has.
    #[error(
        "{repo} has {} with {tag:?} in their names{}; name one as {repo}/FILE.gguf",
        if *.n == 0 { "no GGUF files" } else { "several GGUF files" },
        crate::error::listed("it has", .known)
    )]
    Quantisation {
        /// The repository.
        repo: RepoName,
        /// What was asked for.
        tag: String,
        /// How many files have it.
        n: usize,
        /// Its GGUF files.
        known: Vec<String>,
    },

    /// The repository holds no model that can be read.
    #[error("{repo} has {lacking}{}; {fix}", crate::error::listed("it has", .known))]
    NoModel {
        /// The repository.
        repo: RepoName,
        /// What it lacks.
        lacking: &'static str,
        /// What it has in that place.
        known: Vec<String>,
        /// What to do.
        fix: &'static str,
    },

    /// The token is not taken.
    #[error(
        "{endpoint} does not take your token: make a new one at \
         https://huggingface.co/settings/tokens, and set HF_TOKEN to it"
    )]
    TokenRefused {
        /// Who was asked.
        endpoint: String,
    },

    /// The token may not do it.
    #[error("{repo}: your token may not do this ({said}); use one with the right to {right}")]
    Forbidden {
        /// The repository.
        repo: RepoName,
        /// What the hub says.
        said: String,
        /// What right is missing.
        right: &'static str,
    },

    /// An upload without a token.
    #[error(
        "an upload needs a token: make one with the right to write at \
         https://huggingface.co/settings/tokens, and set HF_TOKEN to it"
    )]
    NoToken,

    /// An upload where nothing may be asked.
    #[error("an upload needs a network, and HF_HUB_OFFLINE is set; unset it, or upload elsewhere")]
    OfflineUpload,

    /// Too many requests, also after waiting.
    #[error(
        "{endpoint} answers that there are too many requests, also after {waited} s; try again \
         later{}",
        if *.has_token { "" } else { ", or set HF_TOKEN: an account may ask more" }
    )]
    TooMany {
        /// Who was asked.
        endpoint: String,
        /// How long was waited.
        waited: u64,
        /// Whether a token was sent.
        has_token: bool,
    },

    /// Another status, with what the server says.
    #[error("{url} answers {status}: {said}")]
    Status {
        /// What was asked, without secrets.
        url: String,
        /// The status.
        status: u16,
        /// The beginning of its text.
        said: String,
    },

    /// Nobody answers.
    #[error(
        "{url}: {fault}; check the network and HF_ENDPOINT, or fetch {what} elsewhere with `tooltune \
         fetch` and set HF_HUB_OFFLINE=1 here"
    )]
    Unreachable {
        /// What was asked, without secrets.
        url: String,
        /// What happened.
        fault: HttpFault,
        /// What was to be fetched.
        what: String,
    },

    /// What came back is no answer of a hub.
    #[error("{url}: {reason}; is HF_ENDPOINT the address of a hub?")]
    NoHub {
        /// What was asked, without secrets.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A redirect that must not be followed.
    #[error("{url} leads to {to}, which {reason}")]
    Redirect {
        /// What was asked, without secrets.
        url: String,
        /// Where it leads, without secrets.
        to: String,
        /// Why not.
        reason: &'static str,
    },

    /// A file whose name would lead out of its folder.
    #[error(
        "{repo} has a file {path:?}, which cannot lie in a folder; tell the owner to rename it"
    )]
    UnsafePath {
        /// The repository.
        repo: RepoName,
        /// The path.
        path: String,
    },

    /// The content is not what its hash says.
    #[error(
        "{repo}: {file} has {found} where the hub says {expected}; try again, and look for a proxy or \
         a mirror that changes files"
    )]
    Damaged {
        /// The repository.
        repo: RepoName,
        /// The file.
        file: String,
        /// What was expected.
        expected: String,
        /// What came.
        found: String,
    },

    /// The disk has no room.
    #[error(
        "{cache}: {repo} needs {needed} more, and {free} are free; make room, or set HF_HOME to a \
         folder on another disk"
    )]
    NoSpace {
        /// The cache.
        cache: PathBuf,
        /// The repository.
        repo: RepoName,
        /// How much is missing here.
        needed: String,
        /// How much there is.
        free: String,
    },

    /// Not in the cache, where nothing may be asked.
    #[error(
        "{name} is not in the cache {cache}{lacking}, and HF_HUB_OFFLINE is set; run `tooltune fetch \
         {name}` where there is a network, with the same HF_HOME or a copy of it"
    )]
    Offline {
        /// The name.
        name: String,
        /// The cache.
        cache: PathBuf,
        /// What of it is missing.
        lacking: String,
    },

    /// A file or folder of this machine.
    #[error("{path}: cannot {doing}: {source}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },

    /// The hub does not take an upload.
    #[error("{repo}: the hub takes no upload of {file}: {said}")]
    Upload {
        /// The repository.
        repo: RepoName,
        /// The file.
        file: String,
        /// Why.
        said: String,
    },
}

impl HubError {
    /// An error of a file or folder, for `map_err`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            doing,
            source,
        }
    }

    /// Whether what the cache holds may do in place of an answer: the hub was not reached, is not
    /// well, or wants to know who asks.
    pub(crate) fn may_be_passed_over(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::TooMany { .. }
            | Self::Gated { .. }
            | Self::NoRepo { .. }
            | Self::TokenRefused { .. }
            | Self::Forbidden { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

/// How many names a message lists.
const N_LISTED: usize = 5;

/// `: it has a, b and 3 more`, or nothing.
pub(crate) fn listed(verb: &str, names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = names
        .iter()
        .take(N_LISTED)
        .map(|name| name.chars().take(120).collect::<String>())
        .map(|name| name.escape_debug().to_string())
        .collect();
    let more = match names.len().saturating_sub(N_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!(": {verb} {}{more}", shown.join(", "))
}

pub(crate) fn suggested(similar: &[String]) -> String {
    if similar.is_empty() {
        return String::new();
    }
    format!(" (the owner has {})", similar.join(", "))
}
