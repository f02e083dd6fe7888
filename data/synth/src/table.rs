//! A table file in, its values out.
//!
//! Tables are TOML files beside the module that reads them. They are part of the program and are
//! parsed once, when first asked for. A mistake in one is a mistake of the program: it panics with
//! file, line and rule, and tests parse every file.

use serde::de::DeserializeOwned;
use thiserror::Error;

/// One file of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableFile {
    /// From the folder of this module on.
    pub(super) path: &'static str,
    pub(super) text: &'static str,
}

/// What is wrong in a file.
#[derive(Debug, Error)]
#[error("data/synth/src/{path}: {problem}")]
pub(super) struct TableError {
    path: &'static str,
    /// Says line and column and shows the line.
    problem: toml::de::Error,
}

/// A file and its text, which `include_str!` gives.
pub(super) const fn file(path: &'static str, text: &'static str) -> TableFile {
    TableFile { path, text }
}

impl TableFile {
    /// Parses the file.
    ///
    /// # Errors
    ///
    /// - the text is no TOML, or a key is absent, unknown or of another type
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, TableError> {
        toml::from_str(self.text).map_err(|problem| TableError {
            path: self.path,
            problem,
        })
    }

    /// Parses the file, which tests have parsed before.
    pub(super) fn read<T: DeserializeOwned>(&self) -> T {
        self.parse().unwrap_or_else(|problem| panic!("{problem}"))
    }
}

/// What is wrong with the table files of `folder`: those that do not parse as `T`, and those that
/// lie there and are not in `files`.
#[cfg(test)]
pub(super) fn mistakes<T: DeserializeOwned>(folder: &str, files: &[TableFile]) -> Vec<String> {
    let unparsed = files.iter().filter_map(|file| file.parse::<T>().err());
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let found = std::fs::read_dir(sources.join(folder)).unwrap();
    let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let paths = found.map(|name| format!("{folder}/{name}"));
    let unread =
        paths.filter(|path| path.ends_with(".toml") && !files.iter().any(|file| file.path == path));
    unparsed
        .map(|problem| problem.to_string())
        .chain(unread.map(|path| format!("data/synth/src/{path} is in no list of files")))
        .collect()
}

/// The example in the head of a module that says how to write its tables.
#[cfg(test)]
pub(super) fn example(module: &str) -> String {
    let lines = module.lines().skip_while(|line| *line != "//! ```toml");
    let lines = lines.skip(1).take_while(|line| *line != "//! ```");
    lines
        .map(|line| format!("{}\n", line.trim_start_matches("//!")))
        .collect()
}
