//! Texts that name a repository of the hub, and what of it.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use thiserror::Error;

/// First parts of a path that no user and no organisation of the hub is called.
const NEVER_AN_OWNER: [&str; 6] = [
    "models",
    "datasets",
    "spaces",
    "kernels",
    "buckets",
    "collections",
];

/// Ends of names that are files and no repositories.
const ENDS_OF_FILES: [&str; 8] = [
    ".gguf",
    ".safetensors",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".jsonl",
    ".gz",
];

/// The longest part of a repository's name.
const LONGEST: usize = 96;

/// What a hub leaves as it is in a path.
const IN_A_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// The same within one part of a path.
const IN_A_PART: &AsciiSet = &IN_A_PATH.add(b'/');

/// A path of a repository as an address has it.
pub(crate) fn quoted_path(path: &str) -> String {
    utf8_percent_encode(path, IN_A_PATH).to_string()
}

/// A revision as an address has it: one part, whatever slashes it has.
pub(crate) fn quoted_part(text: &str) -> String {
    utf8_percent_encode(text, IN_A_PART).to_string()
}

/// What a repository holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// A model, an encoder or an adapter.
    Model,
    /// Rows.
    Dataset,
}

impl RepoKind {
    /// As messages call it.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        }
    }

    /// As paths of the API and folders of the cache have it.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// What stands before the name in addresses of files and pages.
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
    /// What it holds.
    pub kind: RepoKind,
    /// `owner/name`.
    pub id: String,
}

impl RepoName {
    /// The repository of a kind with this id.
    ///
    /// # Errors
    ///
    /// It is no `owner/name`, or breaks the hub's rules of names.
    pub fn new(kind: RepoKind, id: &str) -> Result<Self, NameError> {
        let bad = |reason| NameError::new(id, reason);
        let (owner, name) = id
            .split_once('/')
            .ok_or_else(|| bad("has no owner; write owner/name"))?;
        if !is_part(owner) || !is_part(name) {
            return Err(bad(
                "is no owner/name: each has 1 to 96 letters, digits, hyphens, dots and underscores, \
                 and begins and ends with none of the marks",
            ));
        }
        if id.contains("--") || id.contains("..") {
            return Err(bad("holds -- or .., which no name of the hub has"));
        }
        if id.ends_with(".git") {
            return Err(bad(
                "ends with .git, which is no part of the name; leave it out",
            ));
        }
        if NEVER_AN_OWNER.contains(&owner) {
            return Err(bad(
                "begins with the name of a kind; write owner/name behind it",
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

    /// Its path in an API, such as `api/models/owner/name`.
    pub(crate) fn api_path(&self) -> String {
        format!("api/{}/{}", self.kind.plural(), self.id)
    }

    /// Its path in addresses of pages and files.
    pub(crate) fn page_path(&self) -> String {
        format!("{}{}", self.kind.prefix(), self.id)
    }

    /// Its folder in the cache.
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
    text.len() <= LONGEST
        && text.chars().all(is_character)
        && text.starts_with(is_letter)
        && text.ends_with(is_letter)
}

/// What of a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Part {
    /// A folder of a model, an encoder or an adapter: the files of it that are read.
    Model,
    /// One file, by its path.
    File(String),
    /// The one GGUF file whose name has this quantisation, such as `Q4_K_M`.
    Quantisation(String),
}

/// A text that names something of the hub, read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HubName {
    /// The repository.
    pub repo: RepoName,
    /// A branch, a tag or a commit; `main` where there is none.
    pub revision: Option<String>,
    /// What of it.
    pub part: Part,
}

/// A text that would name something of the hub and does not.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{given:?} {reason}")]
pub struct NameError {
    given: String,
    reason: &'static str,
}

impl NameError {
    fn new(given: &str, reason: &'static str) -> Self {
        Self {
            given: given.chars().take(200).collect(),
            reason,
        }
    }
}

/// The mark of a text that names something of the hub and can be nothing else.
const SCHEME: &str = "hf://";

impl HubName {
    /// Reads the name of a model: `owner/name`, `owner/name@revision`, `owner/name/file.gguf`,
    /// `owner/name:Q4_K_M`, each perhaps behind `hf://` or `hf://models/`. Nothing where the text can
    /// only be a path.
    ///
    /// # Errors
    ///
    /// It begins with `hf://` and names no model.
    pub fn of_model(text: &str) -> Result<Option<Self>, NameError> {
        if let Some(rest) = text.strip_prefix(SCHEME) {
            let rest = rest.strip_prefix("models/").unwrap_or(rest);
            if rest.starts_with("datasets/") {
                return Err(NameError::new(
                    text,
                    "is a data set, where a model is wanted",
                ));
            }
            return Self::model_in(rest)
                .map(Some)
                .map_err(|error| NameError::new(text, error.reason));
        }
        let first = text.split('/').next().unwrap_or_default();
        let end = text.to_lowercase();
        let is_file = ENDS_OF_FILES.iter().any(|of| end.ends_with(of));
        let is_file_of_repo = end.ends_with(".gguf") && text.matches('/').count() >= 2;
        if NEVER_AN_OWNER.contains(&first) || (is_file && !is_file_of_repo) {
            return Ok(None);
        }
        // Whatever is no good name is a path, and its own error says so.
        Ok(Self::model_in(text).ok())
    }

    fn model_in(text: &str) -> Result<Self, NameError> {
        let (repo, revision, path) = split(RepoKind::Model, text)?;
        let (repo, tag) = match repo.split_once(':') {
            Some((repo, tag)) => (repo, Some(tag)),
            None => (repo, None),
        };
        let (revision, tag) = match revision.as_deref().and_then(|r| r.split_once(':')) {
            Some((revision, tag)) => (Some(revision.to_owned()), Some(tag.to_owned())),
            None => (revision, tag.map(str::to_owned)),
        };
        let part = match (path, tag) {
            (None, None) => Part::Model,
            (None, Some(tag)) if is_part(&tag) => Part::Quantisation(tag),
            (None, Some(_)) => {
                return Err(NameError::new(
                    text,
                    "has no quantisation behind its colon, such as owner/name:Q4_K_M",
                ));
            }
            (Some(path), None) if path.to_lowercase().ends_with(".gguf") => {
                Part::File(safe_path(text, &path)?)
            }
            (Some(_), None) => {
                return Err(NameError::new(
                    text,
                    "names something below a model; name the model itself, or a GGUF file of it",
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

    /// Reads the name of a file of rows: `hf://datasets/owner/name/path`, or with
    /// `@revision` behind the name. Nothing where the text does not begin with `hf://`.
    ///
    /// # Errors
    ///
    /// It begins with `hf://` and names no file of a data set.
    pub fn of_rows(text: &str) -> Result<Option<Self>, NameError> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Ok(None);
        };
        let bad = |reason| NameError::new(text, reason);
        let rest = rest
            .strip_prefix("datasets/")
            .ok_or_else(|| bad("is no data set; write hf://datasets/owner/name/file.jsonl"))?;
        let (repo, revision, path) = split(RepoKind::Dataset, rest).map_err(|e| bad(e.reason))?;
        let repo = RepoName::new(RepoKind::Dataset, repo).map_err(|e| bad(e.reason))?;
        // Which files there are, the hub says.
        let path = path.unwrap_or_default();
        Ok(Some(Self {
            repo,
            revision,
            part: Part::File(match path.is_empty() {
                true => path,
                false => safe_path(text, &path)?,
            }),
        }))
    }

    /// The same at this revision.
    #[must_use]
    pub fn at(&self, revision: &str) -> Self {
        Self {
            revision: Some(revision.to_owned()),
            ..self.clone()
        }
    }

    /// The text without its revision, as people write it.
    pub fn without_revision(&self) -> String {
        let id = &self.repo.id;
        match (self.repo.kind, &self.part) {
            (RepoKind::Model, Part::Model) => id.clone(),
            (RepoKind::Model, Part::File(path)) => format!("{id}/{path}"),
            (_, Part::Quantisation(tag)) => format!("{id}:{tag}"),
            (RepoKind::Dataset, Part::File(path)) => format!("{SCHEME}datasets/{id}/{path}"),
            (RepoKind::Dataset, Part::Model) => format!("{SCHEME}datasets/{id}"),
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(revision) = &self.revision else {
            return f.write_str(&self.without_revision());
        };
        let id = &self.repo.id;
        let at = match is_special(revision) {
            true => format!("{id}@{revision}"),
            false => format!("{id}@{}", quoted_part(revision)),
        };
        f.write_str(&self.without_revision().replacen(id.as_str(), &at, 1))
    }
}

/// Whether a revision keeps its slashes where others are quoted.
fn is_special(revision: &str) -> bool {
    let name = ["refs/pr/", "refs/convert/"]
        .iter()
        .find_map(|start| revision.strip_prefix(start));
    name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

type Split<'t> = (&'t str, Option<String>, Option<String>);

/// Name, revision and path of a text without scheme and kind.
fn split(kind: RepoKind, text: &str) -> Result<Split<'_>, NameError> {
    let bad = |reason| NameError::new(text, reason);
    let missing = match kind {
        RepoKind::Model => "has no owner; write owner/name",
        RepoKind::Dataset => "has no owner; write hf://datasets/owner/name/file.jsonl",
    };
    let slash = text.find('/').ok_or_else(|| bad(missing))?;
    let end = text[slash + 1..].find(['/', '@']).map(|at| slash + 1 + at);
    let Some(end) = end else {
        return Ok((text, None, None));
    };
    let (repo, rest) = text.split_at(end);
    let Some(rest) = rest.strip_prefix('@') else {
        return Ok((repo, None, Some(rest[1..].to_owned())));
    };
    let parts: Vec<&str> = rest.splitn(4, '/').collect();
    let (revision, path) = match parts.as_slice() {
        ["refs", "pr" | "convert", name, path @ ..] => (
            format!("refs/{}/{name}", parts[1]),
            path.first().map(|p| (*p).to_owned()),
        ),
        [revision, path @ ..] => {
            let revision = percent_decode_str(revision).decode_utf8();
            let revision = revision.map_err(|_| bad("has a revision that is no UTF-8"))?;
            let path = (!path.is_empty()).then(|| path.join("/"));
            (revision.into_owned(), path)
        }
        [] => (String::new(), None),
    };
    let revision = checked_revision(&revision)
        .ok_or_else(|| bad("has no revision behind its @; write a branch, a tag or a commit"))?;
    Ok((repo, Some(revision), path))
}

/// A revision that git takes for one, and that stays below a folder.
pub(crate) fn checked_revision(text: &str) -> Option<String> {
    let is_good =
        |c: char| !c.is_control() && !matches!(c, ' ' | '~' | '^' | '?' | '*' | '[' | '\\');
    let has_parts = text
        .split('/')
        .all(|part| !part.is_empty() && !part.starts_with('.'));
    let is_revision = has_parts && text.len() <= 250 && text.chars().all(is_good);
    (is_revision && !text.contains("..")).then(|| text.to_owned())
}

/// A path that stays below the repository.
fn safe_path(given: &str, path: &str) -> Result<String, NameError> {
    match is_safe(path) {
        true => Ok(path.to_owned()),
        false => Err(NameError::new(
            given,
            "has a path that leads out of the repository; name a file within it",
        )),
    }
}

/// Whether a file of a repository may lie under this path below a folder, on any system.
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
        HubName::of_model(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_model_is_named_by_owner_and_name_and_a_path_stays_a_path() {
        for (text, id, revision, part) in [
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, Part::Model),
            ("hf://a/b", "a/b", None, Part::Model),
            ("hf://models/a/b@v1.0", "a/b", Some("v1.0"), Part::Model),
            ("a/b@refs/pr/3", "a/b", Some("refs/pr/3"), Part::Model),
            ("a/b@my%2Fbranch", "a/b", Some("my/branch"), Part::Model),
            (
                "a/b:Q4_K_M",
                "a/b",
                None,
                Part::Quantisation("Q4_K_M".into()),
            ),
            (
                "a/b@x:Q8_0",
                "a/b",
                Some("x"),
                Part::Quantisation("Q8_0".into()),
            ),
            ("a/b/c.gguf", "a/b", None, Part::File("c.gguf".into())),
            (
                "a/b@x/d/c.gguf",
                "a/b",
                Some("x"),
                Part::File("d/c.gguf".into()),
            ),
        ] {
            let name = model(text).unwrap_or_else(|| panic!("{text} is a name"));
            assert_eq!(name.repo.id, id, "{text}");
            assert_eq!(name.revision.as_deref(), revision, "{text}");
            assert_eq!(name.part, part, "{text}");
            let again = model(&name.to_string()).expect("a name");
            assert_eq!(again, name, "{text}");
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
        let rows = |text| HubName::of_rows(text).expect(text);
        assert_eq!(rows("data/train.jsonl"), None);
        let name = rows("hf://datasets/a/b/d/train.jsonl").expect("a name");
        assert_eq!(name.part, Part::File("d/train.jsonl".into()));
        assert_eq!(
            name.at("main").to_string(),
            "hf://datasets/a/b@main/d/train.jsonl"
        );
        let name = rows("hf://datasets/a/b@refs/convert/parquet/default/x.jsonl").expect("a name");
        assert_eq!(name.revision.as_deref(), Some("refs/convert/parquet"));
        assert_eq!(name.part, Part::File("default/x.jsonl".into()));
    }

    #[test]
    fn what_begins_with_the_scheme_and_names_nothing_says_why() {
        for (text, expected) in [
            ("hf://b", "has no owner; write owner/name"),
            ("hf://datasets/a/b", "is a data set"),
            ("hf://a/b@", "no revision behind its @"),
            ("hf://a/b@../x", "no revision behind its @"),
            ("hf://a/b/x.bin", "names something below a model"),
            ("hf://a/b:", "no quantisation behind its colon"),
            ("hf://a/b--c", "holds -- or .."),
            ("hf://spaces/b", "the name of a kind"),
            ("hf://a/b/../x.gguf", "leads out of the repository"),
        ] {
            let message = HubName::of_model(text).expect_err(expected).to_string();
            assert!(
                message.contains(expected) && message.contains(text),
                "{message}"
            );
        }
        for (text, expected) in [
            ("hf://a/b", "is no data set"),
            ("hf://datasets/b", "has no owner"),
            ("hf://datasets/a/b/../../x", "leads out of the repository"),
        ] {
            let message = HubName::of_rows(text).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
