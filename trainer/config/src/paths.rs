//! Checks the files and folders in a config, and the run directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tooltune_disk::regular_file;
use tooltune_hub::RepoKind;

use super::diagnostics::{Problem, SourceSpan};
use super::did_you_mean::{nearest, shorten};
use super::fetch_hint::fetch_hint;
use super::findings::Spans;
use super::schema::{built_in, root, setting_of, visit_paths};
use super::tables::Config;
use super::written::settings_of;

/// Longest file or folder name in bytes on the file systems of Linux, macOS and Windows.
const LONGEST_NAME: usize = 255;

/// Files that mark a folder as a run directory. `.lock` is not one of them, because other programs
/// also use this name.
const MARKS: [&str; 5] = [
    "config.resolved.toml",
    "run.lock.json",
    "metrics.jsonl",
    "LATEST",
    "BEST",
];

/// Paths in a config that must exist before the run, with their settings; built-in names are
/// excluded.
pub fn named_files(config: &Config) -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    // Paths from a config file are UTF-8, so they can be serialized.
    let mut settings = settings_of(config).unwrap_or_default();
    visit_paths(&mut settings, root(), "", &mut |setting, file| {
        files.push((setting.to_owned(), PathBuf::from(&*file)));
    });
    files
}

/// Reports paths that are missing or lead to a pipe or a device.
pub(crate) fn unreadable_files(config: &Config, spans: &Spans) -> Vec<Problem> {
    let files = named_files(config).into_iter();
    files
        .filter_map(|(setting, file)| unreadable_file(&setting, &file, spans))
        .collect()
}

fn unreadable_file(setting: &str, file: &Path, spans: &Spans) -> Option<Problem> {
    if file.is_dir() {
        return None;
    }
    let problem = match regular_file::is_there(file) {
        Ok(true) => return None,
        Ok(false) => return Some(missing_file(setting, file, spans)),
        Err(error) => error,
    };
    Some(Problem {
        message: format!(
            "`{}` names {}, which cannot be read",
            list_of(setting),
            escape_path(file)
        ),
        help: problem.to_string(),
        span: span_of(setting, spans),
    })
}

/// Reports why the run directory cannot be created or used.
pub(crate) fn unusable_folder(config: &Config, spans: &Spans) -> Option<Problem> {
    let dir = &config.train.output_dir;
    let (message, help) = output_dir_problem(dir)?;
    Some(Problem {
        message: format!(
            "`train.output_dir` names {}, and {message}",
            escape_path(dir)
        ),
        help,
        span: span_of("train.output_dir", spans),
    })
}

/// Error for a setting whose file is missing.
pub(crate) fn missing_file(setting: &str, file: &Path, spans: &Spans) -> Problem {
    let names = built_in(setting_of(setting));
    let kind = match list_of(setting).rsplit('.').next() {
        Some("model_name_or_path" | "encoder") => Some(RepoKind::Model),
        Some("train" | "eval" | "data") => Some(RepoKind::Dataset),
        _ => None,
    };
    if let Some(help) = kind.and_then(|kind| fetch_hint(kind, file)) {
        return missing_problem(setting, file, &help, spans);
    }
    let help = match setting.split('.').next() {
        _ if !names.is_empty() => {
            let suggestion = file.to_str().and_then(|file| nearest(file, &names));
            let suggestion = suggestion.map(|name| format!("did you mean {name:?}? "));
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            let help = format!(
                "{}use {} or a Jinja file",
                suggestion.unwrap_or_default(),
                names.join(", ")
            );
            return missing_problem(setting, file, &help, spans);
        }
        Some("model") => {
            "`scripts/fetch-models` downloads the models of the examples; give a Hub model as \
             owner/name, or as hf://owner/name if a folder named owner exists"
        }
        Some("eval") => "`scripts/fetch-models` downloads the encoder",
        _ => "paths are relative to the current working directory; check the spelling",
    };
    missing_problem(setting, file, help, spans)
}

fn missing_problem(setting: &str, file: &Path, help: &str, spans: &Spans) -> Problem {
    Problem {
        message: format!(
            "`{}` names {}, which does not exist",
            list_of(setting),
            file.display()
        ),
        help: help.to_owned(),
        span: span_of(setting, spans),
    }
}

/// The setting, or the list that contains it.
pub(super) fn list_of(setting: &str) -> &str {
    setting.split('[').next().unwrap_or(setting)
}

/// Position of a setting, or of the list that contains it.
fn span_of(setting: &str, spans: &Spans) -> Option<SourceSpan> {
    let span = spans.get(setting);
    span.or_else(|| spans.get(list_of(setting))).copied()
}

/// A path with control characters escaped and a limited length.
fn escape_path(path: &Path) -> String {
    shorten(&path.display().to_string())
        .escape_debug()
        .to_string()
}

/// Problem with a run directory, and advice.
fn output_dir_problem(dir: &Path) -> Option<(String, String)> {
    let name_a_folder = "name a folder for the run; it is created if it is missing".to_owned();
    let is_too_long = |part: &std::ffi::OsStr| part.len() > LONGEST_NAME;
    if let Some(part) = dir.iter().find(|part| is_too_long(part)) {
        let message = format!(
            "one of its names has {} bytes; the limit is {LONGEST_NAME}",
            part.len()
        );
        return Some((message, name_a_folder));
    }
    if dir.as_os_str().as_encoded_bytes().contains(&0) {
        return Some(("a path cannot contain NUL".to_owned(), name_a_folder));
    }
    for path in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let message = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() && path == dir => return foreign_contents(dir),
            Ok(metadata) if metadata.is_dir() => return None,
            Ok(metadata) if metadata.is_file() => format!("{} is a file", escape_path(path)),
            Ok(_) => format!("{} is neither a file nor a folder", escape_path(path)),
            Err(error) if error.kind() == ErrorKind::NotFound && is_link => {
                format!("{} is a link to a missing file", escape_path(path))
            }
            Err(error) if is_absence(&error) => continue,
            Err(error) => format!("{}: {error}", escape_path(path)),
        };
        return Some((message, name_a_folder));
    }
    None
}

fn is_absence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The problem, and advice, if a folder has visible entries but is not a run directory.
fn foreign_contents(dir: &Path) -> Option<(String, String)> {
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
    // Evaluations of the base model are often written to the run directory before the run starts.
    let others = names_beside(&names, &["eval"])?;
    Some((
        format!("that folder contains {others}, but no run"),
        "name a separate folder for the run, either new or empty".to_owned(),
    ))
}

/// Lists visible entries in a folder other than `known` ones, as text; `None` if there are none.
///
/// # Errors
///
/// - the folder cannot be listed
pub fn things_beside(dir: &Path, known: &[&str]) -> std::io::Result<Option<String>> {
    match visible_names(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        names => Ok(names_beside(&names?, known)),
    }
}

/// Visible names in a folder, sorted.
fn visible_names(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // The root of a file system contains `lost+found`.
        if !name.starts_with('.') && name != "lost+found" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The first unknown name, and the number of others.
fn names_beside(names: &[String], known: &[&str]) -> Option<String> {
    let mut others = names.iter().filter(|name| !known.contains(&&***name));
    let first = escape_path(Path::new(others.next()?));
    Some(match others.count() {
        0 => first,
        n => format!("{first} and {n} more"),
    })
}
