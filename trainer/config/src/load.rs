//! Loads a config file and its overrides into checked settings with their origins.

use std::collections::BTreeSet;
use std::path::Path;

use tooltune_disk::regular_file;
use tooltune_rows::text::RecognisedFile;

use super::diagnostics::{self, ConfigError, Problem, Source, SourceSpan};
use super::document::{self, Table};
use super::findings::{Findings, Spans};
use super::foreign::Origin;
use super::names::Names;
use super::overrides::{self, Dropped};
use super::read::read_document;
use super::tables::Config;
use super::written::RESOLVED;
use super::{derived, names, paths, schema, validate, yaml};
use crate::budgets::CONFIG_BYTES;

/// A checked config with the origin of each setting.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    sources: Vec<Source>,
    spans: Spans,
    recognised: Option<RecognisedFile>,
    dropped: Vec<Dropped>,
}

impl LoadedConfig {
    /// Reads a TOML file (YAML if its name ends in `.yaml` or `.yml`), or the config in a run
    /// directory, and applies `--set` overrides in order.
    ///
    /// # Errors
    ///
    /// All mistakes in one error: an unreadable file, syntax, unknown keys, wrong types, values out
    /// of range, conflicting settings.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        Self::load_with(path, overrides, Names::Cached)
    }

    /// As [`LoadedConfig::load`], with Hub names downloaded.
    ///
    /// # Errors
    ///
    /// As for [`LoadedConfig::load`], or a name cannot be downloaded.
    pub fn load_with(path: &Path, overrides: &[String], names: Names) -> Result<Self, ConfigError> {
        // A run directory contains the config that reproduces the run.
        let run_config = path.join(RESOLVED);
        let path = if run_config.exists() {
            &run_config
        } else {
            path
        };
        Self::parse_with(read(path)?, overrides, names)
    }

    /// As [`LoadedConfig::load_with`] with all names downloaded, then
    /// [`LoadedConfig::check_files`], so that wrong paths are reported with the other mistakes.
    ///
    /// # Errors
    ///
    /// As for [`LoadedConfig::load_with`] and [`LoadedConfig::check_files`].
    pub fn load_with_files(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let loaded = Self::load_with(path, overrides, Names::All)?;
        loaded.check_files()?;
        Ok(loaded)
    }

    /// Like [`LoadedConfig::load`], but parses the text of `file`. The name of `file` selects the
    /// format.
    ///
    /// # Errors
    ///
    /// As for [`LoadedConfig::load`], except for reading the file.
    pub fn parse(file: Source, overrides: &[String]) -> Result<Self, ConfigError> {
        Self::parse_with(file, overrides, Names::Cached)
    }

    /// As [`LoadedConfig::parse`], with Hub names downloaded.
    ///
    /// # Errors
    ///
    /// As for [`LoadedConfig::load_with`], except for reading the file.
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

        // A text that is not TOML may be a file of another program.
        if let Some(problem) = foreign_text_problem(&sources[0], &syntax) {
            return Err(ConfigError::new(sources, vec![problem]));
        }
        if let Some(origin) = Origin::detect_in_document(&document, &schema::keys(schema::root())) {
            return Err(ConfigError::new(
                sources,
                vec![other_trainer_problem(origin)],
            ));
        }
        let (mut config, mut findings) = read_document(&document);
        if !syntax.is_empty() {
            // The parser guesses the content of a line with a syntax error, so ignore other
            // mistakes on such lines, and missing settings.
            let line_ends: Vec<Vec<usize>> = sources
                .iter()
                .map(|source| {
                    source
                        .text
                        .match_indices('\n')
                        .map(|(position, _)| position)
                        .collect()
                })
                .collect();
            let broken: BTreeSet<_> = syntax
                .iter()
                .map(|problem| line_of(problem, &line_ends))
                .collect();
            let read = findings.problems.into_iter();
            let elsewhere = read.filter(|problem| !broken.contains(&line_of(problem, &line_ends)));
            let problems = syntax.iter().cloned().chain(elsewhere).collect();
            return Err(ConfigError::new(sources, problems));
        }
        let is_of_a_run = Path::new(&sources[0].name).ends_with(RESOLVED);
        // Nothing is downloaded for a config with other mistakes.
        let unresolved = (config.clone(), findings.clone());
        let is_for_evaluation = names == Names::ForEvaluation;
        let reading = Reading {
            is_of_a_run,
            is_for_evaluation,
        };
        let mut recognised = complete(&mut config, &mut findings, reading, Names::Cached);
        if names != Names::Cached && findings.problems.is_empty() {
            (config, findings) = unresolved;
            recognised = complete(&mut config, &mut findings, reading, names);
        }
        if !findings.problems.is_empty() && names == Names::All {
            // Paths that could not be read are reported already.
            let unreadable = paths::unreadable_files(&config, &findings.spans);
            // Names that cannot be downloaded are reported already.
            let reported: Vec<_> = findings.problems.iter().map(|found| found.span).collect();
            let is_new =
                |problem: &Problem| problem.span.is_some() && !reported.contains(&problem.span);
            findings
                .problems
                .extend(unreadable.into_iter().filter(is_new));
        }
        if findings.problems.is_empty() {
            Ok(Self {
                config,
                sources,
                spans: findings.spans,
                recognised,
                dropped,
            })
        } else {
            Err(ConfigError::new(sources, findings.problems))
        }
    }

    /// Checks that every path in the config is a file or a folder. Also checks that the run
    /// directory can be created or written, and that it is missing, empty or contains a run.
    /// Relative paths start at the working directory.
    ///
    /// # Errors
    ///
    /// All paths that are missing or lead to a pipe or a device, and a problem with the run
    /// directory, each with its line.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        let mut problems = paths::unreadable_files(&self.config, &self.spans);
        problems.extend(paths::unusable_folder(&self.config, &self.spans));
        self.refuse(problems)
    }

    /// Checks that the run directory can be created or written, and that it is missing, empty or
    /// contains a run.
    ///
    /// # Errors
    ///
    /// The problem, with the line of the setting.
    pub fn check_output_dir(&self) -> Result<(), ConfigError> {
        let problem = paths::unusable_folder(&self.config, &self.spans);
        self.refuse(problem.into_iter().collect())
    }

    /// Error for a missing `file` in `setting`.
    pub fn refuse_without(&self, setting: &str, file: &Path, help: &str) -> ConfigError {
        let problem = Problem {
            help: help.to_owned(),
            ..paths::missing_file(setting, file, &self.spans)
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

    /// Detected format of the rows, with the row that determined it; `None` if the config sets the
    /// format.
    pub fn recognised(&self) -> Option<&RecognisedFile> {
        self.recognised.as_ref()
    }

    /// One line per setting in the file that was dropped because an override excludes it.
    pub fn contradictions(&self) -> impl Iterator<Item = String> {
        self.dropped.iter().map(|dropped| {
            let Source { name, text } = &self.sources[dropped.by];
            format!(
                "{name} {text} overrides `{}` at {}",
                dropped.setting,
                diagnostics::location(&self.sources, Some(dropped.span))
            )
        })
    }

    /// Origin of a setting: `file:line:column`, the override, or `default`.
    pub fn origin(&self, setting: &str) -> String {
        match self.spans.get(setting) {
            None => "default".to_owned(),
            Some(span) if span.source == 0 => diagnostics::location(&self.sources, Some(*span)),
            Some(span) => {
                let Source { name, text } = &self.sources[span.source];
                format!("{name} {text}")
            }
        }
    }
}

/// Purpose of reading a config.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Whether a run wrote the config.
    is_of_a_run: bool,
    /// Whether the command line may name the evaluation files, so that the config need not.
    is_for_evaluation: bool,
}

/// Completes the settings: replaces Hub names with paths, sets derived defaults, and checks the
/// rules.
fn complete(
    config: &mut Config,
    findings: &mut Findings,
    reading: Reading,
    fetched: Names,
) -> Option<RecognisedFile> {
    names::resolve(config, findings, fetched);
    let recognised = derived::complete(config, findings, reading.is_of_a_run);
    validate::validate(config, findings, reading.is_for_evaluation);
    recognised
}

/// Recognises a text that is not TOML: a config of another trainer, JSON, or rows.
fn foreign_text_problem(file: &Source, syntax: &[Problem]) -> Option<Problem> {
    let is_of_file = |problem: &Problem| problem.span.is_none_or(|span| span.source == 0);
    if !syntax.iter().any(is_of_file) {
        return None;
    }
    if let Some(origin) = Origin::detect_in_text(&file.text) {
        return Some(other_trainer_problem(origin));
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
            "these are rows in JSON Lines, not a config",
            "give a config or a run here, and rows with --data, or in data.train and data.eval",
        )
    } else if serde_json::from_str::<serde_json::Value>(&file.text).is_ok() {
        (
            "this is JSON; a config is written in TOML or YAML",
            "`tooltune init` writes a config to start from",
        )
    } else {
        return None;
    };
    Some(Problem {
        message: message.to_owned(),
        help: help.to_owned(),
        span: None,
    })
}

fn other_trainer_problem(origin: &Origin) -> Problem {
    Problem {
        message: format!("this is a config of {}, according to its keys", origin.name),
        help: "`tooltune init --from FILE --output my.toml` translates it, and lists what it could not \
               carry over"
            .to_owned(),
        span: None,
    }
}

fn read(path: &Path) -> Result<Source, ConfigError> {
    let name = path.display().to_string();
    match regular_file::read(path, CONFIG_BYTES).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(Source { name, text }),
        Ok(Err(error)) => Err(not_utf8(name, &error)),
        Err(_) if path.is_dir() => Err(not_a_config(
            name,
            "this is a folder without a run".to_owned(),
            "give the file of a config, or a run directory; `tooltune init` writes a config to start from",
        )),
        Err(error) => Err(not_a_config(
            name,
            format!("cannot read the config: {error}"),
            "check the path; `tooltune init` writes a config to start from",
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

/// Source and line of a problem, counted from 0.
fn line_of(problem: &Problem, line_ends: &[Vec<usize>]) -> Option<(usize, usize)> {
    let span = problem.span?;
    let before = line_ends[span.source].partition_point(|end| *end < span.start);
    Some((span.source, before))
}

/// Error for a file that is not a config.
fn not_a_config(name: String, message: String, help: &str) -> ConfigError {
    let problem = Problem {
        message,
        help: help.to_owned(),
        span: None,
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
    // Lossy conversion keeps all positions before the invalid byte.
    let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
    let problem = Problem {
        message: "the config is not valid UTF-8 from here on".to_owned(),
        help: "save the file as UTF-8 text".to_owned(),
        span: Some(SourceSpan::new(0, start..start + '\u{fffd}'.len_utf8())),
    };
    ConfigError::new(vec![Source { name, text }], vec![problem])
}
