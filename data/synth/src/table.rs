//! Parses table files.
//!
//! Tables are TOML files next to the module that uses them. They are embedded in the program and
//! parsed once, on first use. An error in a table is a bug in the program: it panics with file,
//! line and rule, and tests parse every file.

use serde::de::DeserializeOwned;
use thiserror::Error;

/// A table file.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableFile {
    /// Path relative to the folder of this module.
    pub(super) path: &'static str,
    pub(super) text: &'static str,
}

/// An error in a table file.
#[derive(Debug, Error)]
#[error("data/synth/src/{path}: {problem}")]
pub(super) struct TableError {
    path: &'static str,
    /// The error with line and column, and the line itself.
    problem: toml::de::Error,
}

/// A file and its content from `include_str!`.
pub(super) const fn file(path: &'static str, text: &'static str) -> TableFile {
    TableFile { path, text }
}

impl TableFile {
    /// Parses the file.
    ///
    /// # Errors
    ///
    /// The text is not TOML, or a key is missing, unknown or has the wrong type.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, TableError> {
        toml::from_str(self.text).map_err(|problem| TableError {
            path: self.path,
            problem,
        })
    }

    /// Parses the file; tests check that this succeeds.
    pub(super) fn read<T: DeserializeOwned>(&self) -> T {
        self.parse().unwrap_or_else(|problem| panic!("{problem}"))
    }
}

/// The problems with the table files in `folder`: files that do not parse as `T`, and files that
/// are not in `files`.
#[cfg(test)]
pub(super) fn table_errors<T: DeserializeOwned>(folder: &str, files: &[TableFile]) -> Vec<String> {
    let unparsed = files.iter().filter_map(|file| file.parse::<T>().err());
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let file_names = std::fs::read_dir(sources.join(folder)).unwrap();
    let file_names = file_names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let paths = file_names.map(|name| format!("{folder}/{name}"));
    let unread =
        paths.filter(|path| path.ends_with(".toml") && !files.iter().any(|file| file.path == path));
    unparsed
        .map(|problem| problem.to_string())
        .chain(
            unread.map(|path| format!("data/synth/src/{path} is missing from the list of files")),
        )
        .collect()
}

/// The example of the table format in a module's documentation.
#[cfg(test)]
pub(super) fn example(module: &str) -> String {
    let lines = module.lines().skip_while(|line| *line != "//! ```toml");
    let lines = lines.skip(1).take_while(|line| *line != "//! ```");
    lines
        .map(|line| format!("{}\n", line.trim_start_matches("//!")))
        .collect()
}
