//! A config file and its overrides to checked settings that remember where they came from.

use std::collections::BTreeSet;
use std::path::Path;

use tooltune_rows::regular_file;
use tooltune_rows::text::Recognised;

use super::diagnostics::{self, ConfigError, Problem, Source, SourceSpan};
use super::document::{self, Table};
use super::findings::{Findings, Places};
use super::foreign::Origin;
use super::names::Names;
use super::overrides::{self, Dropped};
use super::read::read_document;
use super::tables::Config;
use super::written::RESOLVED;
use super::{derived, names, paths, schema, validate, yaml};
use crate::budgets::CONFIG_BYTES;

/// A checked config that remembers where each setting came from.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    sources: Vec<Source>,
    places: Places,
    recognised: Option<Recognised>,
    dropped: Vec<Dropped>,
}

impl LoadedConfig {
    /// Reads a TOML file (YAML if its name ends in `.yaml` or `.yml`), or that of a run's folder, and
    /// applies `--set` overrides in their order.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, in one error: an unreadable file, syntax, unknown keys, wrong
    /// types, values out of range, settings that contradict each other.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        Self::load_with(path, overrides, Names::Cached)
    }

    /// The same, with names of the hub fetched.
    ///
    /// # Errors
    ///
    /// As [`LoadedConfig::load`]; a name that cannot be fetched.
    pub fn load_with(path: &Path, overrides: &[String], names: Names) -> Result<Self, ConfigError> {
        // A run keeps the config that repeats it.
        let of_run = path.join(RESOLVED);
        let path = if of_run.exists() { &of_run } else { path };
        Self::parse_with(read(path)?, overrides, names)
    }

    /// The same with all names fetched and [`LoadedConfig::check_files`]: a wrong path is among the
    /// mistakes of the first pass.
    ///
    /// # Errors
    ///
    /// As those of both.
    pub fn load_with_files(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let loaded = Self::load_with(path, overrides, Names::All)?;
        loaded.check_files()?;
        Ok(loaded)
    }

    /// The same from a text whose name decides on the format.
    ///
    /// # Errors
    ///
    /// As [`LoadedConfig::load`], except that the file is read already.
    pub fn parse(file: Source, overrides: &[String]) -> Result<Self, ConfigError> {
        Self::parse_with(file, overrides, Names::Cached)
    }

    /// The same, with names of the hub fetched.
    ///
    /// # Errors
    ///
    /// As [`LoadedConfig::load_with`], except that the file is read already.
    pub fn parse_with(
        file: Source,
        overrides: &[String],
        names: Names,
    ) -> Result<Self, ConfigError> {
        let (mut document, mut syntax) = parse_document(&file);
        let mut sources = vec![file];
        sources.extend(overrides::sources(overrides));
        let mut dropped = Vec::new();
        for (index, text) in overrides.iter().enumerate() {
            match overrides::apply(&mut document, text, index + 1) {
                Ok(found) => dropped.extend(found),
                Err(problem) => syntax.push(problem),
            }
        }

        // What is no TOML may be the text of another program, whole.
        if let Some(problem) = of_another_kind(&sources[0], &syntax) {
            return Err(ConfigError::new(sources, vec![problem]));
        }
        if let Some(origin) = Origin::of_document(&document, &schema::keys(schema::root())) {
            return Err(ConfigError::new(sources, vec![of_another_trainer(origin)]));
        }
        let (mut config, mut findings) = read_document(&document);
        if !syntax.is_empty() {
            // What stands on a line with a syntax error was guessed, and so is what is missing.
            let line_ends: Vec<Vec<usize>> = sources
                .iter()
                .map(|source| source.text.match_indices('\n').map(|(at, _)| at).collect())
                .collect();
            let broken: BTreeSet<_> = syntax.iter().map(|found| line(found, &line_ends)).collect();
            let read = findings.problems.into_iter();
            let elsewhere = read.filter(|problem| !broken.contains(&line(problem, &line_ends)));
            let problems = syntax.iter().cloned().chain(elsewhere).collect();
            return Err(ConfigError::new(sources, problems));
        }
        let is_of_a_run = Path::new(&sources[0].name).ends_with(RESOLVED);
        // Nothing is fetched for a config that is wrong in what is here.
        let looked_at = (config.clone(), findings.clone());
        let mut recognised = complete(&mut config, &mut findings, is_of_a_run, Names::Cached);
        if names != Names::Cached && findings.problems.is_empty() {
            (config, findings) = looked_at;
            recognised = complete(&mut config, &mut findings, is_of_a_run, names);
        }
        if !findings.problems.is_empty() && names == Names::All {
            // A path that was not read is told already.
            let unreadable = paths::unreadable_files(&config, &findings.places);
            // So is a name that cannot be fetched.
            let told: Vec<_> = findings.problems.iter().map(|found| found.place).collect();
            let is_new = |found: &Problem| found.place.is_some() && !told.contains(&found.place);
            findings
                .problems
                .extend(unreadable.into_iter().filter(is_new));
        }
        if findings.problems.is_empty() {
            Ok(Self {
                config,
                sources,
                places: findings.places,
                recognised,
                dropped,
            })
        } else {
            Err(ConfigError::new(sources, findings.problems))
        }
    }

    /// Checks that every file the config names is a file or a folder, and that the run's folder is
    /// none, empty or a run's, or can be made; relative paths begin at the working folder.
    ///
    /// # Errors
    ///
    /// All paths that do not exist or lead to a pipe or a device, and what is in the run's way,
    /// each with its line.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        let mut problems = paths::unreadable_files(&self.config, &self.places);
        problems.extend(paths::unusable_folder(&self.config, &self.places));
        self.refuse(problems)
    }

    /// Checks that the run's folder is none, empty or a run's, or can be made.
    ///
    /// # Errors
    ///
    /// What is in its way, with the line that names the folder.
    pub fn check_output_dir(&self) -> Result<(), ConfigError> {
        let problem = paths::unusable_folder(&self.config, &self.places);
        self.refuse(problem.into_iter().collect())
    }

    /// The refusal of a config that leads to `file` by `setting`, where there is none.
    pub fn refuse_without(&self, setting: &str, file: &Path, help: &str) -> ConfigError {
        let problem = Problem {
            help: help.to_owned(),
            ..paths::missing_file(setting, file, &self.places)
        };
        ConfigError::new(self.sources.clone(), vec![problem])
    }

    fn refuse(&self, problems: Vec<Problem>) -> Result<(), ConfigError> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::new(self.sources.clone(), problems))
        }
    }

    /// The format that the rows were recognised as, where the config leaves it to them, and the row
    /// that tells it.
    pub fn recognised(&self) -> Option<&Recognised> {
        self.recognised.as_ref()
    }

    /// A line for each setting of the file that does not count, because an override excludes it.
    pub fn contradictions(&self) -> impl Iterator<Item = String> {
        self.dropped.iter().map(|dropped| {
            let Source { name, text } = &self.sources[dropped.by];
            format!(
                "{name} {text} counts; `{}` at {} does not",
                dropped.setting,
                diagnostics::location(&self.sources, Some(dropped.place))
            )
        })
    }

    /// Where a setting came from: `file:line:column`, the override, or `default`.
    pub fn origin(&self, setting: &str) -> String {
        match self.places.get(setting) {
            None => "default".to_owned(),
            Some(place) if place.source == 0 => diagnostics::location(&self.sources, Some(*place)),
            Some(place) => {
                let Source { name, text } = &self.sources[place.source];
                format!("{name} {text}")
            }
        }
    }
}

/// Makes of what was read what is used: paths of names, then the rest.
fn complete(
    config: &mut Config,
    findings: &mut Findings,
    is_of_a_run: bool,
    fetched: Names,
) -> Option<Recognised> {
    names::resolve(config, findings, fetched);
    let recognised = derived::complete(config, findings, is_of_a_run);
    validate::validate(config, findings);
    recognised
}

/// What a text is of which nothing is TOML: a config of another trainer, JSON, or rows.
fn of_another_kind(file: &Source, syntax: &[Problem]) -> Option<Problem> {
    let is_of_file = |problem: &Problem| problem.place.is_none_or(|place| place.source == 0);
    if !syntax.iter().any(is_of_file) {
        return None;
    }
    if let Some(origin) = Origin::of_text(&file.text) {
        return Some(of_another_trainer(origin));
    }
    let is_object = |text: &str| {
        let parsed = serde_json::from_str::<serde_json::Value>(text);
        parsed.is_ok_and(|value| value.is_object())
    };
    let mut lines = file.text.lines().filter(|line| !line.trim().is_empty());
    let is_of_rows = lines.next().is_some_and(is_object);
    let (message, help) = if is_of_rows && (lines.next().is_some() || file.name.ends_with("jsonl"))
    {
        (
            "these are rows in JSON Lines, and no config",
            "name a config or a run here, and rows with --data, or in data.train and data.eval",
        )
    } else if serde_json::from_str::<serde_json::Value>(&file.text).is_ok() {
        (
            "this is JSON, and a config is written in TOML or YAML",
            "`tooltune init` writes a config to begin with",
        )
    } else {
        return None;
    };
    Some(Problem {
        message: message.to_owned(),
        help: help.to_owned(),
        place: None,
    })
}

fn of_another_trainer(origin: &Origin) -> Problem {
    Problem {
        message: format!("this is a config of {}, as its keys say", origin.name),
        help: "`tooltune init --from FILE --output my.toml` translates it, and says what it could not \
               carry over"
            .to_owned(),
        place: None,
    }
}

fn read(path: &Path) -> Result<Source, ConfigError> {
    let name = path.display().to_string();
    match regular_file::read(path, CONFIG_BYTES).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(Source { name, text }),
        Ok(Err(error)) => Err(not_utf8(name, &error)),
        Err(_) if path.is_dir() => Err(refused(
            name,
            "this is a folder, and it holds no run".to_owned(),
            "name the file of a config, or the folder of a run; `tooltune init` writes a config to begin with",
        )),
        Err(error) => Err(refused(
            name,
            format!("the config cannot be read: {error}"),
            "check the path; `tooltune init` writes a config to begin with",
        )),
    }
}

fn parse_document(file: &Source) -> (Table, Vec<Problem>) {
    let extension = Path::new(&file.name)
        .extension()
        .and_then(|extension| extension.to_str());
    match extension {
        Some("yaml" | "yml") => yaml::parse_yaml(&file.text, 0),
        _ => document::parse_toml(&file.text, 0),
    }
}

/// The source and line of a problem, counted from 0.
fn line(problem: &Problem, line_ends: &[Vec<usize>]) -> Option<(usize, usize)> {
    let place = problem.place?;
    let before = line_ends[place.source].partition_point(|end| *end < place.start);
    Some((place.source, before))
}

/// The refusal of what is read as a config and is none.
fn refused(name: String, message: String, help: &str) -> ConfigError {
    let problem = Problem {
        message,
        help: help.to_owned(),
        place: None,
    };
    ConfigError::new(
        vec![Source {
            name,
            text: String::new(),
        }],
        vec![problem],
    )
}

fn not_utf8(name: String, error: &std::string::FromUtf8Error) -> ConfigError {
    let start = error.utf8_error().valid_up_to();
    // Lossy text keeps everything before the bad byte in place.
    let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
    let problem = Problem {
        message: "the config is not UTF-8 from here on".to_owned(),
        help: "save the file as UTF-8 text".to_owned(),
        place: Some(SourceSpan::new(0, start..start + '\u{fffd}'.len_utf8())),
    };
    ConfigError::new(vec![Source { name, text }], vec![problem])
}
