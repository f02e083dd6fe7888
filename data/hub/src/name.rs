//! Parses hub names of repositories and their parts.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use thiserror::Error;

/// First path components that are never an owner on the hub.
const NEVER_AN_OWNER: [&str; 6] = [
    "models",
    "datasets",
    "spaces",
    "kernels",
    "buckets",
    "collections",
];

/// Endings of file names, which repository names do not have.
const FILE_ENDINGS: [&str; 8] = [
    ".gguf",
    ".safetensors",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".jsonl",
    ".gz",
];

/// Maximum length of a part of a repository name.
const MAX_PART_LENGTH: usize = 96;

/// Characters that the hub leaves unescaped in a path.
const IN_A_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// Characters that the hub leaves unescaped within one path component.
const IN_A_PART: &AsciiSet = &IN_A_PATH.add(b'/');

/// Escapes a path inside a repository for a URL.
pub(crate) fn quoted_path(path: &str) -> String {
    utf8_percent_encode(path, IN_A_PATH).to_string()
}

/// Escapes a revision, including its slashes, for a URL.
pub(crate) fn quoted_part(text: &str) -> String {
    utf8_percent_encode(text, IN_A_PART).to_string()
}

/// The type of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// A model, an encoder or an adapter.
    Model,
    /// A data set.
    Dataset,
}

impl RepoKind {
    /// The noun used in messages.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        }
    }

    /// The plural in API paths and cache folders.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// The prefix of the name in URLs of files and pages.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
        }
    }
}

/// A repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepoName {
    /// The type.
    pub kind: RepoKind,
    /// `owner/name`.
    pub id: String,
}

impl RepoName {
    /// A repository of this type with this ID.
    ///
    /// # Errors
    ///
    /// The ID is not `owner/name`, or breaks the hub's naming rules.
    pub fn new(kind: RepoKind, id: &str) -> Result<Self, NameError> {
        let name_error = |reason| NameError::new(id, reason);
        let (owner, name) = id
            .split_once('/')
            .ok_or_else(|| name_error("has no owner; write owner/name"))?;
        if !is_part(owner) || !is_part(name) {
            return Err(name_error(
                "is not owner/name: each must have 1 to 96 letters, digits, hyphens, dots and underscores, \
                 and must begin and end with a letter, a digit or an underscore",
            ));
        }
        if id.contains("--") || id.contains("..") {
            return Err(name_error(
                "contains -- or .., which hub names must not contain",
            ));
        }
        if id.ends_with(".git") {
            return Err(name_error("ends with .git; remove the ending"));
        }
        if NEVER_AN_OWNER.contains(&owner) {
            return Err(name_error(
                "begins with a repository type; write owner/name after it",
            ));
        }
        Ok(Self {
            kind,
            id: id.to_owned(),
        })
    }

    /// The part before the slash.
    pub(crate) fn owner(&self) -> &str {
        self.id.split('/').next().unwrap_or_default()
    }

    /// The path of the repository in an API, such as `api/models/owner/name`.
    pub(crate) fn api_path(&self) -> String {
        format!("api/{}/{}", self.kind.plural(), self.id)
    }

    /// The path of the repository in URLs of pages and files.
    pub(crate) fn page_path(&self) -> String {
        format!("{}{}", self.kind.prefix(), self.id)
    }

    /// The folder of the repository in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

fn is_part(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_character = |c: char| is_letter(c) || matches!(c, '-' | '.');
    text.len() <= MAX_PART_LENGTH
        && text.chars().all(is_character)
        && text.starts_with(is_letter)
        && text.ends_with(is_letter)
}

/// The requested part of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NamePart {
    /// A folder of a model, an encoder or an adapter: all its required files.
    Model,
    /// One file, by its path.
    File(String),
    /// The one GGUF file whose name has this quantisation, such as `Q4_K_M`.
    Quantisation(String),
}

/// A parsed hub name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HubName {
    /// The repository.
    pub repo: RepoName,
    /// A branch, a tag or a commit; `main` if absent.
    pub revision: Option<String>,
    /// The requested part.
    pub part: NamePart,
}

/// A string that looks like a hub name but is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{given:?} {reason}")]
pub struct NameError {
    given: String,
    reason: &'static str,
}

impl NameError {
    fn new(id: &str, reason: &'static str) -> Self {
        Self {
            given: id.chars().take(200).collect(),
            reason,
        }
    }
}

/// The prefix that marks a hub name unambiguously.
const SCHEME: &str = "hf://";

impl HubName {
    /// Parses the name of a model: `owner/name`, `owner/name@revision`, `owner/name/file.gguf`,
    /// `owner/name:Q4_K_M`, each optionally prefixed by `hf://` or `hf://models/`. `None` if the
    /// string can only be a path.
    ///
    /// # Errors
    ///
    /// The string begins with `hf://` but is not a model name.
    pub fn parse_model(text: &str) -> Result<Option<Self>, NameError> {
        if let Some(after_scheme) = text.strip_prefix(SCHEME) {
            let after_scheme = after_scheme.strip_prefix("models/").unwrap_or(after_scheme);
            if after_scheme.starts_with("datasets/") {
                return Err(NameError::new(
                    text,
                    "is a data set, but a model is expected",
                ));
            }
            return Self::parse_model_name(after_scheme)
                .map(Some)
                .map_err(|error| NameError::new(text, error.reason));
        }
        let first_part = text.split('/').next().unwrap_or_default();
        let end = text.to_lowercase();
        let is_file = FILE_ENDINGS.iter().any(|suffix| end.ends_with(suffix));
        let is_file_of_repo = end.ends_with(".gguf") && text.matches('/').count() >= 2;
        if NEVER_AN_OWNER.contains(&first_part) || (is_file && !is_file_of_repo) {
            return Ok(None);
        }
        // The caller treats an invalid name as a path, and reports the path's own error.
        Ok(Self::parse_model_name(text).ok())
    }

    fn parse_model_name(text: &str) -> Result<Self, NameError> {
        let (repo, revision, path) = split_name(RepoKind::Model, text)?;
        let (repo, tag) = match repo.split_once(':') {
            Some((repo, tag)) => (repo, Some(tag)),
            None => (repo, None),
        };
        let (revision, tag) = match revision.as_deref().and_then(|r| r.split_once(':')) {
            Some((revision, tag)) => (Some(revision.to_owned()), Some(tag.to_owned())),
            None => (revision, tag.map(str::to_owned)),
        };
        let part = match (path, tag) {
            (None, None) => NamePart::Model,
            (None, Some(tag)) if is_part(&tag) => NamePart::Quantisation(tag),
            (None, Some(_)) => {
                return Err(NameError::new(
                    text,
                    "has no quantisation after its colon; write one, such as owner/name:Q4_K_M",
                ));
            }
            (Some(path), None) if path.to_lowercase().ends_with(".gguf") => {
                NamePart::File(safe_path(text, &path)?)
            }
            (Some(_), None) => {
                return Err(NameError::new(
                    text,
                    "is a path inside a model; name the model itself, or one of its GGUF files",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(NameError::new(
                    text,
                    "names a file and a quantisation; give one of them",
                ));
            }
        };
        Ok(Self {
            repo: RepoName::new(RepoKind::Model, repo)?,
            revision,
            part,
        })
    }

    /// Parses the name of a row file: `hf://datasets/owner/name/path`, optionally with `@revision`
    /// after the name. `None` if the string does not begin with `hf://`.
    ///
    /// # Errors
    ///
    /// The string begins with `hf://` but is not a file of a data set.
    pub fn parse_rows(text: &str) -> Result<Option<Self>, NameError> {
        let Some(after_scheme) = text.strip_prefix(SCHEME) else {
            return Ok(None);
        };
        let name_error = |reason| NameError::new(text, reason);
        let after_scheme = after_scheme.strip_prefix("datasets/").ok_or_else(|| {
            name_error("is not a data set; write hf://datasets/owner/name/file.jsonl")
        })?;
        let (repo, revision, path) =
            split_name(RepoKind::Dataset, after_scheme).map_err(|e| name_error(e.reason))?;
        let repo = RepoName::new(RepoKind::Dataset, repo).map_err(|e| name_error(e.reason))?;
        // An empty path is accepted here, because the hub's error lists the files that exist.
        let path = path.unwrap_or_default();
        Ok(Some(Self {
            repo,
            revision,
            part: NamePart::File(match path.is_empty() {
                true => path,
                false => safe_path(text, &path)?,
            }),
        }))
    }

    /// The same name with this revision.
    #[must_use]
    pub fn with_revision(&self, revision: &str) -> Self {
        Self {
            revision: Some(revision.to_owned()),
            ..self.clone()
        }
    }

    /// The name without its revision.
    pub fn without_revision(&self) -> String {
        let id = &self.repo.id;
        match (self.repo.kind, &self.part) {
            (RepoKind::Model, NamePart::Model) => id.clone(),
            (RepoKind::Model, NamePart::File(path)) => format!("{id}/{path}"),
            (_, NamePart::Quantisation(tag)) => format!("{id}:{tag}"),
            (RepoKind::Dataset, NamePart::File(path)) => format!("{SCHEME}datasets/{id}/{path}"),
            (RepoKind::Dataset, NamePart::Model) => format!("{SCHEME}datasets/{id}"),
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(revision) = &self.revision else {
            return f.write_str(&self.without_revision());
        };
        let id = &self.repo.id;
        let revision_part = match is_special(revision) {
            true => format!("{id}@{revision}"),
            false => format!("{id}@{}", quoted_part(revision)),
        };
        f.write_str(
            &self
                .without_revision()
                .replacen(id.as_str(), &revision_part, 1),
        )
    }
}

/// Whether a revision keeps its slashes unescaped.
fn is_special(revision: &str) -> bool {
    let name = ["refs/pr/", "refs/convert/"]
        .iter()
        .find_map(|start| revision.strip_prefix(start));
    name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

type NameParts<'t> = (&'t str, Option<String>, Option<String>);

/// Splits a string without scheme and type into name, revision and path.
fn split_name(kind: RepoKind, text: &str) -> Result<NameParts<'_>, NameError> {
    let name_error = |reason| NameError::new(text, reason);
    let missing = match kind {
        RepoKind::Model => "has no owner; write owner/name",
        RepoKind::Dataset => "has no owner; write hf://datasets/owner/name/file.jsonl",
    };
    let slash = text.find('/').ok_or_else(|| name_error(missing))?;
    let end = text[slash + 1..]
        .find(['/', '@'])
        .map(|position| slash + 1 + position);
    let Some(end) = end else {
        return Ok((text, None, None));
    };
    let (repo, after_repo) = text.split_at(end);
    let Some(after_repo) = after_repo.strip_prefix('@') else {
        return Ok((repo, None, Some(after_repo[1..].to_owned())));
    };
    let parts: Vec<&str> = after_repo.splitn(4, '/').collect();
    let (revision, path) = match parts.as_slice() {
        ["refs", "pr" | "convert", name, path @ ..] => (
            format!("refs/{}/{name}", parts[1]),
            path.first().map(|p| (*p).to_owned()),
        ),
        [revision, path @ ..] => {
            let revision = percent_decode_str(revision).decode_utf8();
            let revision = revision.map_err(|_| name_error("has a revision that is not UTF-8"))?;
            let path = (!path.is_empty()).then(|| path.join("/"));
            (revision.into_owned(), path)
        }
        [] => (String::new(), None),
    };
    let revision = checked_revision(&revision).ok_or_else(|| {
        name_error("has no valid revision after its @; write a branch, a tag or a commit")
    })?;
    Ok((repo, Some(revision), path))
}

/// The revision, if git allows it and it is safe as a relative path.
pub(crate) fn checked_revision(text: &str) -> Option<String> {
    let is_good =
        |c: char| !c.is_control() && !matches!(c, ' ' | '~' | '^' | '?' | '*' | '[' | '\\');
    let has_parts = text
        .split('/')
        .all(|part| !part.is_empty() && !part.starts_with('.'));
    let is_revision = has_parts && text.len() <= 250 && text.chars().all(is_good);
    (is_revision && !text.contains("..")).then(|| text.to_owned())
}

/// Checks that a path stays inside the repository.
fn safe_path(name: &str, path: &str) -> Result<String, NameError> {
    match is_safe(path) {
        true => Ok(path.to_owned()),
        false => Err(NameError::new(
            name,
            "has a path outside the repository; name a file inside it",
        )),
    }
}

/// Whether a repository file with this path can be created safely below a folder on any system.
pub(crate) fn is_safe(path: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= 255
            && !part.contains(['\\', '\0'])
            && !part.chars().any(char::is_control)
            && part.as_bytes().get(1) != Some(&b':')
    };
    path.len() <= 1024 && path.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Option<HubName> {
        HubName::parse_model(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_model_name_is_owner_slash_name_and_a_path_stays_a_path() {
        for (text, id, revision, part) in [
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, NamePart::Model),
            ("hf://a/b", "a/b", None, NamePart::Model),
            ("hf://models/a/b@v1.0", "a/b", Some("v1.0"), NamePart::Model),
            ("a/b@refs/pr/3", "a/b", Some("refs/pr/3"), NamePart::Model),
            ("a/b@my%2Fbranch", "a/b", Some("my/branch"), NamePart::Model),
            (
                "a/b:Q4_K_M",
                "a/b",
                None,
                NamePart::Quantisation("Q4_K_M".into()),
            ),
            (
                "a/b@x:Q8_0",
                "a/b",
                Some("x"),
                NamePart::Quantisation("Q8_0".into()),
            ),
            ("a/b/c.gguf", "a/b", None, NamePart::File("c.gguf".into())),
            (
                "a/b@x/d/c.gguf",
                "a/b",
                Some("x"),
                NamePart::File("d/c.gguf".into()),
            ),
        ] {
            let name = model(text).unwrap_or_else(|| panic!("{text} is a name"));
            assert_eq!(name.repo.id, id, "{text}");
            assert_eq!(name.revision.as_deref(), revision, "{text}");
            assert_eq!(name.part, part, "{text}");
            let parsed_again = model(&name.to_string()).expect("a name");
            assert_eq!(parsed_again, name, "{text}");
        }
        for path in [
            "models/smollm2-135m",
            "/a/b",
            "./a/b",
            "../b",
            "~/b",
            "gpt2",
            "a/b/c",
            "a/b.gguf",
            "a/model.safetensors",
            "a/x.toml",
            "a//b",
            "a/b--c",
            "a/-b",
            "a/b.git",
            "a/é",
            "",
            "-",
            "C:/b",
            "a/b/../c.gguf",
        ] {
            assert_eq!(model(path), None, "{path}");
        }
    }

    #[test]
    fn rows_are_named_by_their_file() {
        let rows = |text| HubName::parse_rows(text).expect(text);
        assert_eq!(rows("data/train.jsonl"), None);
        let name = rows("hf://datasets/a/b/d/train.jsonl").expect("a name");
        assert_eq!(name.part, NamePart::File("d/train.jsonl".into()));
        assert_eq!(
            name.with_revision("main").to_string(),
            "hf://datasets/a/b@main/d/train.jsonl"
        );
        let name = rows("hf://datasets/a/b@refs/convert/parquet/default/x.jsonl").expect("a name");
        assert_eq!(name.revision.as_deref(), Some("refs/convert/parquet"));
        assert_eq!(name.part, NamePart::File("default/x.jsonl".into()));
    }

    #[test]
    fn an_invalid_name_with_the_scheme_is_an_error() {
        for (text, expected) in [
            ("hf://b", "has no owner; write owner/name"),
            ("hf://datasets/a/b", "is a data set"),
            ("hf://a/b@", "no valid revision after its @"),
            ("hf://a/b@../x", "no valid revision after its @"),
            ("hf://a/b/x.bin", "is a path inside a model"),
            ("hf://a/b:", "no quantisation after its colon"),
            ("hf://a/b--c", "contains -- or .."),
            ("hf://spaces/b", "begins with a repository type"),
            ("hf://a/b/../x.gguf", "has a path outside the repository"),
        ] {
            let message = HubName::parse_model(text).expect_err(expected).to_string();
            assert!(
                message.contains(expected) && message.contains(text),
                "{message}"
            );
        }
        for (text, expected) in [
            ("hf://a/b", "is not a data set"),
            ("hf://datasets/b", "has no owner"),
            (
                "hf://datasets/a/b/../../x",
                "has a path outside the repository",
            ),
        ] {
            let message = HubName::parse_rows(text).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
