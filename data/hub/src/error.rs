//! Errors of downloads and uploads, with advice.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tooltune_endpoint::http::HttpFault;
use tooltune_json::printable;

use crate::name::{NameError, RepoName};

/// Why a download or an upload failed. No message contains a token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// The string is not a hub name.
    #[error(transparent)]
    Name(#[from] NameError),

    /// The location of the cache is unknown.
    #[error("{variable}: there is no home folder; set HF_HOME to the cache folder")]
    NoHome {
        /// The variable that needs a home folder.
        variable: String,
    },

    /// `HF_ENDPOINT` is not an address.
    #[error(
        "HF_ENDPOINT {given:?} is not an address; set it to scheme and host, such as https://huggingface.co"
    )]
    BadEndpoint {
        /// The value of the variable, without secrets.
        given: String,
    },

    /// The token cannot be sent.
    #[error("HF_TOKEN cannot be sent in a header; remove line breaks and characters outside ASCII")]
    BadToken,

    /// The repository requires accepting its conditions.
    #[error(
        "{repo} is gated: {}accept its conditions at {page} with your account{}",
        if *.has_token { "your HF_TOKEN has no access; " } else { "" },
        if *.has_token { ", or use another token" } else {
            ", create a token at https://huggingface.co/settings/tokens, and set HF_TOKEN to it"
        }
    )]
    Gated {
        /// The repository.
        repo: RepoName,
        /// The page with its conditions.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },

    /// There is no such repository, or it is private.
    #[error(
        "{endpoint} has no {} {repo}, or it is private: check the spelling{}{}",
        .repo.kind.noun(),
        crate::error::suggestion(.similar),
        if *.has_token { "; your HF_TOKEN may not have access" } else {
            "; if it is private, set HF_TOKEN to a token with access"
        }
    )]
    NoRepo {
        /// The repository.
        repo: RepoName,
        /// The hub's address.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
        /// Repositories of the same owner with the nearest names.
        similar: Vec<String>,
    },

    /// The repository has no such revision.
    #[error(
        "{repo} has no revision {revision:?}{}; name a branch, a tag or a commit",
        crate::error::name_list("it has", .known)
    )]
    NoRevision {
        /// The repository.
        repo: RepoName,
        /// The requested revision.
        revision: String,
        /// The branches and tags of the repository.
        known: Vec<String>,
    },

    /// The repository has no such file.
    #[error("{repo} has no file {file:?}{}", crate::error::name_list("it has", .known))]
    NoFile {
        /// The repository.
        repo: RepoName,
        /// The requested file.
        file: String,
        /// Files with the nearest names.
        known: Vec<String>,
    },

    /// The name of a data set does not include a file.
    #[error("{repo}: name a file of the data set{}", crate::error::name_list("it has", .known))]
    NoFileNamed {
        /// The repository.
        repo: RepoName,
        /// The row files of the data set.
        known: Vec<String>,
    },

    /// No file, or several files, match a quantisation.
    #[error(
        "{repo} has {} with {tag:?} in their names{}; name one as {repo}/FILE.gguf",
        if *.n == 0 { "no GGUF files" } else { "several GGUF files" },
        crate::error::name_list("it has", .known)
    )]
    Quantisation {
        /// The repository.
        repo: RepoName,
        /// The requested quantisation.
        tag: String,
        /// Number of matching files.
        n: usize,
        /// The GGUF files of the repository.
        known: Vec<String>,
    },

    /// The repository contains no supported model.
    #[error("{repo} has {lacking}{}; {fix}", crate::error::name_list("it has", .known))]
    NoModel {
        /// The repository.
        repo: RepoName,
        /// What is missing.
        lacking: &'static str,
        /// The files that it has instead.
        known: Vec<String>,
        /// What to do.
        fix: &'static str,
    },

    /// The hub refuses the token.
    #[error(
        "{endpoint} refuses your token: create a new one at \
         https://huggingface.co/settings/tokens, and set HF_TOKEN to it"
    )]
    TokenRefused {
        /// The hub's address.
        endpoint: String,
    },

    /// The token lacks a permission.
    #[error(
        "{repo}: your token does not permit this ({reason}); use one with permission to {permission}"
    )]
    Forbidden {
        /// The repository.
        repo: RepoName,
        /// The hub's message.
        reason: String,
        /// The missing permission.
        permission: &'static str,
    },

    /// An upload without a token.
    #[error(
        "an upload needs a token: create one with permission to write at \
         https://huggingface.co/settings/tokens, and set HF_TOKEN to it"
    )]
    NoToken,

    /// An upload in offline mode.
    #[error(
        "an upload needs a network, but HF_HUB_OFFLINE is set; unset it, or upload from another machine"
    )]
    OfflineUpload,

    /// Too many requests, even after waiting.
    #[error(
        "{endpoint} reports too many requests, even after waiting {waited} s; try again \
         later{}",
        if *.has_token { "" } else { ", or set HF_TOKEN: accounts have a higher limit" }
    )]
    TooMany {
        /// The hub's address.
        endpoint: String,
        /// Total wait in seconds.
        waited: u64,
        /// Whether a token was sent.
        has_token: bool,
    },

    /// Another error status, with the server's message.
    #[error("{url} returns status {status}: {reason}")]
    Status {
        /// The requested URL, without secrets.
        url: String,
        /// The status.
        status: u16,
        /// The beginning of the reply.
        reason: String,
    },

    /// No server replies.
    #[error(
        "{url}: {fault}; check the network and HF_ENDPOINT, or run `tooltune fetch {what}` on another \
         machine, copy its cache and set HF_HUB_OFFLINE=1 here"
    )]
    Unreachable {
        /// The requested URL, without secrets.
        url: String,
        /// What happened.
        fault: HttpFault,
        /// The name to be fetched.
        what: String,
    },

    /// The reply does not come from a hub.
    #[error("{url} {reason}; check that HF_ENDPOINT is the address of a hub")]
    NoHub {
        /// The requested URL, without secrets.
        url: String,
        /// What is wrong with the reply.
        reason: String,
    },

    /// A redirect that must not be followed.
    #[error("{url} redirects to {to}, which {reason}; check HF_ENDPOINT and the proxy")]
    Redirect {
        /// The requested URL, without secrets.
        url: String,
        /// The redirect target, without secrets.
        to: String,
        /// Why it is not followed.
        reason: &'static str,
    },

    /// A file name that leads outside its folder.
    #[error(
        "{repo} has a file {path:?}, whose path is not safe to create; ask the owner to rename it"
    )]
    UnsafePath {
        /// The repository.
        repo: RepoName,
        /// The path.
        path: String,
    },

    /// The content does not match its hash.
    #[error(
        "{repo}: {} has {found}, but the hub lists {expected}; try again, and check whether a proxy or \
         mirror changes files",
        printable::name(.file)
    )]
    Damaged {
        /// The repository.
        repo: RepoName,
        /// The file.
        file: String,
        /// The expected content.
        expected: String,
        /// The received content.
        found: String,
    },

    /// A header identifies different content, or a different commit, than requested.
    #[error(
        "{repo}: {}: the header {header} contains {found}, but the listing has {expected}; try \
         again, and check whether a proxy or mirror changes headers",
        printable::name(.file)
    )]
    HeaderDiffers {
        /// The repository.
        repo: RepoName,
        /// The file.
        file: String,
        /// The header.
        header: &'static str,
        /// The hash in the header.
        found: String,
        /// The hash in the listing.
        expected: String,
    },

    /// A link of a snapshot does not point to a blob of its repository.
    #[error(
        "{path}: the link points outside the blobs of its repository, to {target}; remove the link",
        path = .path.display(),
        target = .target.display()
    )]
    LinkOutside {
        /// The link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },

    /// The value of a variable is not UTF-8.
    #[error(
        "{name}: the value of this environment variable is not UTF-8; set it again or unset it"
    )]
    VariableNotUtf8 {
        /// The variable.
        name: String,
    },

    /// The disk has too little free space.
    #[error(
        "{cache}: {repo} needs {needed} more, but only {free} are free; free some space, or set HF_HOME \
         to a folder on another disk"
    )]
    NoSpace {
        /// The cache folder.
        cache: PathBuf,
        /// The repository.
        repo: RepoName,
        /// Size of the missing files.
        needed: String,
        /// Free space.
        free: String,
    },

    /// A file is not in the cache, and offline mode is on.
    #[error(
        "{name} is not in the cache {cache}{lacking}, and HF_HUB_OFFLINE is set; run `tooltune fetch \
         {name}` on a machine with a network, with the same HF_HOME or a copy of it"
    )]
    Offline {
        /// The name.
        name: String,
        /// The cache folder.
        cache: PathBuf,
        /// What is missing.
        lacking: String,
    },

    /// A file or folder of this machine cannot be read or written.
    #[error("{path}: cannot {doing}: {source}", path = path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },

    /// Another commit was made while an upload was prepared.
    #[error("{repo}: the repository was changed since the upload began; upload again")]
    ChangedMeanwhile {
        /// The repository.
        repo: RepoName,
    },

    /// The hub refuses an upload.
    #[error(
        "{repo}: the hub refuses the upload of {}: {}",
        printable::name(.file),
        printable::name(.reason)
    )]
    Upload {
        /// The repository.
        repo: RepoName,
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
}

impl HubError {
    /// Creates an error of a file or folder, for `map_err`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            doing,
            source,
        }
    }

    /// Whether cached files may be used instead: the hub cannot be reached, has an internal error,
    /// or requires authentication.
    pub(crate) fn allows_cached(&self) -> bool {
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

/// Maximum names in a message.
const N_LISTED: usize = 5;

/// Formats names as `: it has a, b and 3 more`; empty without names.
pub(crate) fn name_list(verb: &str, names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = (names.iter().take(N_LISTED))
        .map(|name| printable::name(name))
        .collect();
    let suffix = match names.len().saturating_sub(N_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!(": {verb} {}{suffix}", quoted.join(", "))
}

pub(crate) fn suggestion(similar: &[String]) -> String {
    if similar.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = similar.iter().map(|name| printable::name(name)).collect();
    format!(" (the owner has {})", quoted.join(", "))
}
