//! Paths of a config against what is there: files to read, and the folder of the run.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use tooltune_rows::regular_file;

use super::LoadedConfig;
use super::diagnostics::{ConfigError, Problem};
use super::named_files::named_files;

/// The longest name of a file or folder on the file systems of Linux, macOS and Windows, in bytes.
const LONGEST_NAME: usize = 255;

/// What every run makes in its folder; one of them says that a folder holds a run.
const MARKS: [&str; 6] = [
    ".lock",
    "config.resolved.toml",
    "run.lock.json",
    "metrics.jsonl",
    "LATEST",
    "BEST",
];

impl LoadedConfig {
    /// Checks that every file the config names is a file or a folder, and that the run's folder is
    /// none, empty or a run's, or can be made; relative paths begin at the working folder.
    ///
    /// # Errors
    ///
    /// All paths that do not exist or lead to a pipe or a device, and what is in the run's way,
    /// each with its line.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        let named = named_files(&self.config);
        let mut problems: Vec<Problem> = named
            .into_iter()
            .filter_map(|(setting, file)| self.unreadable_file(&setting, file))
            .collect();
        problems.extend(self.unusable_folder());
        if problems.is_empty() {
            return Ok(());
        }
        Err(ConfigError::new(self.sources.clone(), problems))
    }

    /// Checks that the run's folder is none, empty or a run's, or can be made.
    ///
    /// # Errors
    ///
    /// What is in its way, with the line that names the folder.
    pub fn check_output_dir(&self) -> Result<(), ConfigError> {
        match self.unusable_folder() {
            None => Ok(()),
            Some(problem) => Err(ConfigError::new(self.sources.clone(), vec![problem])),
        }
    }

    fn unreadable_file(&self, setting: &str, file: &Path) -> Option<Problem> {
        if file.is_dir() {
            return None;
        }
        let problem = match regular_file::is_there(file) {
            Ok(true) => return None,
            Ok(false) => return Some(self.missing_file(setting, file)),
            Err(error) => error,
        };
        let list = setting.split('[').next().unwrap_or(setting);
        Some(Problem {
            message: format!("`{list}` names {}, which cannot be read", shown(file)),
            help: problem.to_string(),
            place: self.place_of(setting),
        })
    }

    /// What keeps the run's folder from being made or used.
    fn unusable_folder(&self) -> Option<Problem> {
        let dir = &self.config.train.output_dir;
        let (found, help) = in_the_way(dir)?;
        Some(Problem {
            message: format!("`train.output_dir` names {}, and {found}", shown(dir)),
            help,
            place: self.place_of("train.output_dir"),
        })
    }

    /// The refusal of a config that leads to `file` by `setting`, where there is none.
    pub fn refuse_without(&self, setting: &str, file: &Path, help: &str) -> ConfigError {
        let problem = Problem {
            help: help.to_owned(),
            ..self.missing_file(setting, file)
        };
        ConfigError::new(self.sources.clone(), vec![problem])
    }

    fn missing_file(&self, setting: &str, file: &Path) -> Problem {
        let table = setting.split('.').next().unwrap_or(setting);
        let list = setting.split('[').next().unwrap_or(setting);
        let help = match table {
            "model" => "`scripts/fetch-models` fetches the models of the examples",
            "eval" => "`scripts/fetch-models` fetches the encoder",
            _ => "paths begin at the folder that tooltune runs in; check it for typing mistakes",
        };
        Problem {
            message: format!("`{list}` names {}, which does not exist", file.display()),
            help: help.to_owned(),
            place: self.place_of(setting),
        }
    }

    /// Where a setting, or the list that it is an item of, was written.
    fn place_of(&self, setting: &str) -> Option<super::Place> {
        let list = setting.split('[').next().unwrap_or(setting);
        let place = self.places.get(setting);
        place.or_else(|| self.places.get(list)).copied()
    }
}

/// A path without what a terminal would take for something else, and of bounded length.
fn shown(path: &Path) -> String {
    super::names::shorten(&path.display().to_string())
        .escape_debug()
        .to_string()
}

/// What is in the way of a run's folder, and what to do.
fn in_the_way(dir: &Path) -> Option<(String, String)> {
    let name_a_folder = "name a folder for the run; one that is not there is made".to_owned();
    let is_too_long = |part: &std::ffi::OsStr| part.len() > LONGEST_NAME;
    if let Some(part) = dir.iter().find(|part| is_too_long(part)) {
        let found = format!(
            "one of its names has {} bytes, where {LONGEST_NAME} are the most",
            part.len()
        );
        return Some((found, name_a_folder));
    }
    if dir.as_os_str().as_encoded_bytes().contains(&0) {
        return Some(("no name can hold NUL".to_owned(), name_a_folder));
    }
    for path in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let found = match fs::metadata(path) {
            Ok(found) if found.is_dir() && path == dir => return other_things(dir),
            Ok(found) if found.is_dir() => return None,
            Ok(found) if found.is_file() => format!("{} is a file", shown(path)),
            Ok(_) => format!("{} is neither a file nor a folder", shown(path)),
            Err(error) if error.kind() == ErrorKind::NotFound && is_link => {
                format!("{} is a link to what is not there", shown(path))
            }
            Err(error) if is_absence(&error) => continue,
            Err(error) => format!("{}: {error}", shown(path)),
        };
        return Some((found, name_a_folder));
    }
    None
}

fn is_absence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What a folder holds that is neither a run's nor hidden, if it holds no run.
fn other_things(dir: &Path) -> Option<(String, String)> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            let help = "name a folder that you may read and write".to_owned();
            return Some((format!("it cannot be listed: {error}"), help));
        }
    };
    let mut others = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if MARKS.contains(&&*name) || name.starts_with("checkpoint-") {
            return None;
        }
        // A file system of its own has the second; evaluations of the base model are often kept where
        // the run will be.
        if !name.starts_with('.') && name != "lost+found" && name != "eval" {
            others.push(name);
        }
    }
    others.sort();
    let first = others.first()?;
    let more = match others.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    Some((
        format!(
            "that folder holds {}{more}, and no run",
            shown(Path::new(first))
        ),
        "name a folder of its own for the run, one that is not there or is empty".to_owned(),
    ))
}
