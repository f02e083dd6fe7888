//! The files and folders that a config names, and the folder of its run, against what is there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tooltune_hub::RepoKind;
use tooltune_rows::regular_file;

use super::diagnostics::{Problem, SourceSpan};
use super::did_you_mean::{nearest, shorten};
use super::fetch_hint::fetch_hint;
use super::findings::Places;
use super::schema::{built_in, root, setting_of, visit_paths};
use super::tables::Config;
use super::written::settings_of;

/// The longest name of a file or folder on the file systems of Linux, macOS and Windows, in bytes.
const LONGEST_NAME: usize = 255;

/// What every run makes in its folder; one of them says that a folder holds a run. Its `.lock` is none
/// of them: other programs call a file so, too.
const MARKS: [&str; 5] = [
    "config.resolved.toml",
    "run.lock.json",
    "metrics.jsonl",
    "LATEST",
    "BEST",
];

/// Every path that a config names and that must exist before the run, with its setting; names of
/// what is built in are none.
pub(crate) fn named_files(config: &Config) -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    // The paths of a config that was read are UTF-8, and can be written.
    let mut settings = settings_of(config).unwrap_or_default();
    visit_paths(&mut settings, root(), "", &mut |setting, file| {
        files.push((setting.to_owned(), PathBuf::from(&*file)));
    });
    files
}

/// The paths that do not exist or lead to a pipe or a device.
pub(crate) fn unreadable_files(config: &Config, places: &Places) -> Vec<Problem> {
    let files = named_files(config).into_iter();
    files
        .filter_map(|(setting, file)| unreadable_file(&setting, &file, places))
        .collect()
}

fn unreadable_file(setting: &str, file: &Path, places: &Places) -> Option<Problem> {
    if file.is_dir() {
        return None;
    }
    let problem = match regular_file::is_there(file) {
        Ok(true) => return None,
        Ok(false) => return Some(missing_file(setting, file, places)),
        Err(error) => error,
    };
    Some(Problem {
        message: format!(
            "`{}` names {}, which cannot be read",
            list_of(setting),
            shown(file)
        ),
        help: problem.to_string(),
        place: place_of(setting, places),
    })
}

/// What keeps the run's folder from being made or used.
pub(crate) fn unusable_folder(config: &Config, places: &Places) -> Option<Problem> {
    let dir = &config.train.output_dir;
    let (found, help) = in_the_way(dir)?;
    Some(Problem {
        message: format!("`train.output_dir` names {}, and {found}", shown(dir)),
        help,
        place: place_of("train.output_dir", places),
    })
}

/// The refusal of a setting that leads to no file.
pub(crate) fn missing_file(setting: &str, file: &Path, places: &Places) -> Problem {
    let names = built_in(setting_of(setting));
    let kind = match list_of(setting).rsplit('.').next() {
        Some("model_name_or_path" | "encoder") => Some(RepoKind::Model),
        Some("train" | "eval" | "data") => Some(RepoKind::Dataset),
        _ => None,
    };
    if let Some(help) = kind.and_then(|kind| fetch_hint(kind, file)) {
        return missing(setting, file, &help, places);
    }
    let help = match setting.split('.').next() {
        _ if !names.is_empty() => {
            let meant = file.to_str().and_then(|file| nearest(file, &names));
            let meant = meant.map(|name| format!("did you mean {name:?}? "));
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            let help = format!(
                "{}it can be {} or a Jinja file",
                meant.unwrap_or_default(),
                names.join(", ")
            );
            return missing(setting, file, &help, places);
        }
        Some("model") => {
            "`scripts/fetch-models` fetches the models of the examples; a model of the hub is named \
             owner/name, or hf://owner/name where there is a folder called owner"
        }
        Some("eval") => "`scripts/fetch-models` fetches the encoder",
        _ => "paths are relative to the current working directory; check it for typing mistakes",
    };
    missing(setting, file, help, places)
}

fn missing(setting: &str, file: &Path, help: &str, places: &Places) -> Problem {
    Problem {
        message: format!(
            "`{}` names {}, which does not exist",
            list_of(setting),
            file.display()
        ),
        help: help.to_owned(),
        place: place_of(setting, places),
    }
}

/// The setting, or the list that it is an item of.
pub(super) fn list_of(setting: &str) -> &str {
    setting.split('[').next().unwrap_or(setting)
}

/// Where a setting, or the list that it is an item of, was written.
fn place_of(setting: &str, places: &Places) -> Option<SourceSpan> {
    let place = places.get(setting);
    place.or_else(|| places.get(list_of(setting))).copied()
}

/// A path without what a terminal would take for something else, and of bounded length.
fn shown(path: &Path) -> String {
    shorten(&path.display().to_string())
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
    let names = match visible_names(dir) {
        Ok(names) => names,
        Err(error) => {
            let help = "name a folder that you may read and write".to_owned();
            return Some((format!("it cannot be listed: {error}"), help));
        }
    };
    let is_of_a_run = |name: &String| MARKS.contains(&&**name) || name.starts_with("checkpoint-");
    if names.iter().any(is_of_a_run) {
        return None;
    }
    // Evaluations of the base model are often kept where the run will be.
    let others = names_beside(&names, &["eval"])?;
    Some((
        format!("that folder holds {others}, and no run"),
        "name a folder of its own for the run, one that is not there or is empty".to_owned(),
    ))
}

/// What a folder holds beside hidden names and `known` ones, as words; nothing where it is not there.
///
/// # Errors
///
/// - the folder cannot be listed
pub(crate) fn things_beside(dir: &Path, known: &[&str]) -> std::io::Result<Option<String>> {
    match visible_names(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        names => Ok(names_beside(&names?, known)),
    }
}

/// The names in a folder that are not hidden, in their order.
fn visible_names(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A file system of its own has the second.
        if !name.starts_with('.') && name != "lost+found" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The first name that is not known, and how many more there are.
fn names_beside(names: &[String], known: &[&str]) -> Option<String> {
    let mut others = names.iter().filter(|name| !known.contains(&&***name));
    let first = shown(Path::new(others.next()?));
    Some(match others.count() {
        0 => first,
        n => format!("{first} and {n} more"),
    })
}
