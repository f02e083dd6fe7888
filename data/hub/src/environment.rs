//! Settings of the hub and its cache from the environment variables of `huggingface_hub`.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use tooltune_disk::regular_file;
use tooltune_endpoint::http::PROXY_VARIABLES;

use crate::budgets::TOKEN_BYTES;
use crate::error::HubError;

/// Looks up an environment variable by name; `None` if it is not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The public hub.
const HUB: &str = "https://huggingface.co";

/// Address, credentials and cache folder of a hub.
#[derive(Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// The base address, without a slash at its end.
    pub endpoint: String,
    /// The cache folder, with one folder per repository.
    pub cache: PathBuf,
    /// The access token.
    pub token: Option<String>,
    /// Whether network requests are forbidden.
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
    /// The settings of this process's environment, see [`HubSettings::from_environment`].
    ///
    /// # Errors
    ///
    /// As for [`HubSettings::from_environment`], or a variable that it reads, or a proxy variable,
    /// is not UTF-8.
    pub fn from_process_environment() -> Result<Self, HubError> {
        Self::from_os_environment(&|name| std::env::var_os(name))
    }

    fn from_os_environment(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let unreadable = RefCell::new(None);
        let settings = Self::from_environment(&|name| {
            let value = variable(name)?.into_string();
            if value.is_err() {
                unreadable
                    .borrow_mut()
                    .get_or_insert_with(|| name.to_owned());
            }
            value.ok()
        });
        let is_unreadable =
            |name: &&&str| variable(name).is_some_and(|value| value.into_string().is_err());
        let proxy = PROXY_VARIABLES.iter().find(is_unreadable);
        let unreadable = unreadable.into_inner();
        match unreadable.or_else(|| proxy.map(|name| (*name).to_owned())) {
            Some(name) => Err(HubError::VariableNotUtf8 { name }),
            None => settings,
        }
    }

    /// Reads the variables `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`,
    /// and the older ones that `huggingface_hub` still reads.
    ///
    /// # Errors
    ///
    /// There is no home folder and no variable sets the cache folder, or the token file cannot be
    /// read.
    pub fn from_environment(environment: Environment<'_>) -> Result<Self, HubError> {
        let set = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
        let is_true = |name: &str| {
            let value = set(name).map(|value| value.to_uppercase());
            value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str()))
        };
        let default_home = || -> Result<PathBuf, HubError> {
            if let Some(default_home) = set("HF_HOME") {
                return expand_path("HF_HOME", &default_home, environment);
            }
            if let Some(cache) = set("XDG_CACHE_HOME") {
                return Ok(expand_path("XDG_CACHE_HOME", &cache, environment)?.join("huggingface"));
            }
            Ok(expand_path("HOME", "~/.cache", environment)?.join("huggingface"))
        };
        let cache_variable = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]
            .into_iter()
            .find_map(|name| Some((name, set(name)?)));
        let cache = match cache_variable {
            Some((name, cache)) => expand_path(name, &cache, environment)?,
            None => default_home()?.join("hub"),
        };
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
        let token = match token {
            Some(token) => Some(token),
            None if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") => None,
            None => {
                let file = match set("HF_TOKEN_PATH") {
                    Some(file) => expand_path("HF_TOKEN_PATH", &file, environment)?,
                    None => default_home()?.join("token"),
                };
                let bytes = regular_file::read_if_there(&file, TOKEN_BYTES);
                let bytes = bytes.map_err(HubError::io("read", &file))?;
                match bytes.map(String::from_utf8).transpose() {
                    Ok(token) => token,
                    Err(_) => return Err(HubError::BadToken),
                }
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

/// Expands `~`, `$NAME` and `${NAME}` in a path, like Python's `expanduser` and `expandvars`.
fn expand_path(
    variable: &str,
    text: &str,
    environment: Environment<'_>,
) -> Result<PathBuf, HubError> {
    let text = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home_folder = environment("HOME").filter(|home_folder| !home_folder.is_empty());
            let home_folder = home_folder.ok_or_else(|| HubError::NoHome {
                variable: variable.to_owned(),
            })?;
            format!("{home_folder}{rest}")
        }
        _ => text.to_owned(),
    };
    let mut path = String::new();
    let mut rest = text.as_str();
    while let Some(dollar) = rest.find('$') {
        let (literal, from) = rest.split_at(dollar);
        path.push_str(literal);
        let is_name_character = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, length) = match from[1..].strip_prefix('{') {
            Some(braced) => match braced.find('}') {
                Some(end) => (&braced[..end], end + 3),
                None => ("", 1),
            },
            None => {
                let end = from[1..]
                    .find(|c| !is_name_character(c))
                    .unwrap_or(from.len() - 1);
                (&from[1..=end], end + 1)
            }
        };
        match environment(name).filter(|_| !name.is_empty()) {
            Some(value) => path.push_str(&value),
            // As in Python, a variable that is not set remains in the path.
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
            let variable = variables.iter().find(|(known_name, _)| *known_name == name);
            variable.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_variables_of_huggingface_hub_set_the_locations() {
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
        let settings_found = settings(&[
            ("HF_HOME", "/n"),
            ("HF_ENDPOINT", "http://localhost:1/ "),
            ("HF_TOKEN", " hf_secret\n"),
            ("TRANSFORMERS_OFFLINE", "yes"),
        ]);
        let settings_found = settings_found.expect("reads");
        assert_eq!(settings_found.endpoint, "http://localhost:1");
        assert_eq!(settings_found.token.as_deref(), Some("hf_secret"));
        assert!(settings_found.is_offline);
        assert!(
            !format!("{settings_found:?}").contains("hf_secret"),
            "{settings_found:?}"
        );
        let error = settings(&[]).expect_err("no home").to_string();
        assert!(error.contains("HF_HOME"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_not_utf8_is_an_error() {
        use std::os::unix::ffi::OsStringExt as _;
        let read_with = |invalid: &'static str| {
            HubSettings::from_os_environment(&move |name| match name {
                name if name == invalid => Some(OsString::from_vec(b"/x\xff".to_vec())),
                "HOME" => Some("/h".into()),
                _ => None,
            })
        };
        for name in [
            "HF_HOME",
            "HF_HUB_CACHE",
            "HF_TOKEN",
            "HF_ENDPOINT",
            "HF_HUB_OFFLINE",
            "HOME",
            "https_proxy",
        ] {
            let error = read_with(name).expect_err(name).to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
        }
        assert!(read_with("HF_UNKNOWN").is_ok());
    }

    #[test]
    fn the_token_file_is_read_unless_disabled() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("token"), "hf_of_file\n").expect("written");
        let home_path = dir.path().to_str().expect("UTF-8");
        let token = |extra: &[(&str, &str)]| {
            let variables = [&[("HF_HOME", home_path)], extra].concat();
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
