//! Where the hub and its cache are, as the environment says: the variables of `huggingface_hub`.

use std::fmt;
use std::path::PathBuf;

use tooltune_rows::regular_file;

use crate::budgets::TOKEN_BYTES;
use crate::error::HubError;

/// The value of an environment variable, by its name; absent where it is not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The hub itself.
const HUB: &str = "https://huggingface.co";

/// Where to ask, what to say who asks, and where files are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// The address before every path, without a slash at its end.
    pub endpoint: String,
    /// The folder of the cache, which holds one folder for each repository.
    pub cache: PathBuf,
    /// What says who asks.
    pub token: Option<String>,
    /// Whether nothing may be asked.
    pub is_offline: bool,
}

impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("has_token", &self.token.is_some())
            .field("is_offline", &self.is_offline)
            .finish()
    }
}

impl HubSettings {
    /// Reads the variables `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`,
    /// and the older ones that `huggingface_hub` still reads.
    ///
    /// # Errors
    ///
    /// No home folder is known and no variable says where the cache is; the file of the token cannot
    /// be read.
    pub fn from_environment(environment: Environment<'_>) -> Result<Self, HubError> {
        let set = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
        let is_true = |name: &str| {
            let value = set(name).map(|value| value.to_uppercase());
            value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str()))
        };
        let home = || -> Result<PathBuf, HubError> {
            if let Some(home) = set("HF_HOME") {
                return expanded("HF_HOME", &home, environment);
            }
            if let Some(cache) = set("XDG_CACHE_HOME") {
                return Ok(expanded("XDG_CACHE_HOME", &cache, environment)?.join("huggingface"));
            }
            Ok(expanded("HOME", "~/.cache", environment)?.join("huggingface"))
        };
        let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]
            .into_iter()
            .find_map(|name| Some((name, set(name)?)));
        let cache = match named {
            Some((name, cache)) => expanded(name, &cache, environment)?,
            None => home()?.join("hub"),
        };
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
        let token = match token {
            Some(token) => Some(token),
            None if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") => None,
            None => {
                let file = match set("HF_TOKEN_PATH") {
                    Some(file) => expanded("HF_TOKEN_PATH", &file, environment)?,
                    None => home()?.join("token"),
                };
                let bytes = regular_file::read_if_there(&file, TOKEN_BYTES);
                let bytes = bytes.map_err(HubError::io("read", &file))?;
                bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        let token = token.map(|token| token.trim().to_owned());
        Ok(Self {
            endpoint: set("HF_ENDPOINT")
                .unwrap_or_else(|| HUB.to_owned())
                .trim()
                .trim_end_matches('/')
                .to_owned(),
            cache,
            token: token.filter(|token| !token.is_empty()),
            is_offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
        })
    }
}

/// A path with `~`, `$NAME` and `${NAME}` replaced, as Python's `expanduser` and `expandvars` do.
fn expanded(variable: &str, text: &str, environment: Environment<'_>) -> Result<PathBuf, HubError> {
    let text = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home = environment("HOME").filter(|home| !home.is_empty());
            let home = home.ok_or_else(|| HubError::NoHome {
                variable: variable.to_owned(),
            })?;
            format!("{home}{rest}")
        }
        _ => text.to_owned(),
    };
    let mut path = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        path.push_str(before);
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, length) = match from[1..].strip_prefix('{') {
            Some(braced) => match braced.find('}') {
                Some(end) => (&braced[..end], end + 3),
                None => ("", 1),
            },
            None => {
                let end = from[1..].find(|c| !is_of_name(c)).unwrap_or(from.len() - 1);
                (&from[1..=end], end + 1)
            }
        };
        match environment(name).filter(|_| !name.is_empty()) {
            Some(value) => path.push_str(&value),
            // Python leaves what is not set.
            None => path.push_str(&from[..length]),
        }
        rest = &from[length..];
    }
    path.push_str(rest);
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<HubSettings, HubError> {
        HubSettings::from_environment(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_variables_of_huggingface_hub_say_where_things_are() {
        for (variables, cache) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/huggingface/hub",
            ),
            (&[("HOME", "/h"), ("HF_HOME", "~/hf")], "/h/hf/hub"),
            (
                &[("HOME", "/h"), ("HF_HUB_CACHE", "$HOME/a/${NO}")],
                "/h/a/${NO}",
            ),
            (
                &[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HOME", "/n")],
                "/old",
            ),
        ] {
            let settings = settings(variables).expect("reads");
            assert_eq!(settings.cache, Path::new(cache), "{variables:?}");
        }
        let found = settings(&[
            ("HF_HOME", "/n"),
            ("HF_ENDPOINT", "http://localhost:1/ "),
            ("HF_TOKEN", " hf_secret\n"),
            ("TRANSFORMERS_OFFLINE", "yes"),
        ]);
        let found = found.expect("reads");
        assert_eq!(found.endpoint, "http://localhost:1");
        assert_eq!(found.token.as_deref(), Some("hf_secret"));
        assert!(found.is_offline);
        assert!(!format!("{found:?}").contains("hf_secret"), "{found:?}");
        let error = settings(&[]).expect_err("no home").to_string();
        assert!(error.contains("HF_HOME"), "{error}");
    }

    #[test]
    fn a_token_is_read_from_its_file_unless_that_is_switched_off() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("token"), "hf_of_file\n").expect("written");
        let home = dir.path().to_str().expect("UTF-8");
        let token = |more: &[(&str, &str)]| {
            let variables = [&[("HF_HOME", home)], more].concat();
            settings(&variables).expect("reads").token
        };
        assert_eq!(token(&[]).as_deref(), Some("hf_of_file"));
        assert_eq!(
            token(&[("HF_TOKEN", "hf_of_variable")]).as_deref(),
            Some("hf_of_variable")
        );
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    }
}
