//! A config file and its overrides -> checked settings, or every mistake in them at once.
//!
//! ```text
//! text ─document, yaml─▶ tree with places ─overrides─▶ tree ─read─▶ RawConfig ─check─▶ Config
//! ```
//!
//! The tree, not serde, drives the reading, because serde stops at the first mistake and loses the
//! place of values that are wrong only together. `Config ─resolved─▶ config.resolved.toml` closes
//! the circle.

mod agent_suites;
mod check;
mod check_eval;
mod check_flatten;
mod check_format;
mod check_goat;
mod check_paths;
mod check_retriever;
mod choices;
mod defaults;
mod diagnostics;
mod document;
mod metric;
mod named_files;
mod names;
mod overrides;
mod patterns;
mod presets;
mod raw;
mod raw_goat;
mod raw_retriever;
mod raw_tool_suites;
mod read;
mod resolved;
mod rules;
mod schema;
mod services;
mod settings;
mod template_kwargs;
#[cfg(test)]
mod tests;
mod tool_suites;
mod truncation;
mod yaml;

use std::collections::BTreeSet;
use std::path::Path;

pub use agent_suites::{AgentSuiteConfig, RawAgentSuite};
pub use choices::{
    ArgumentMask, CheckpointingMode, ComputeDtype, DataFormat, Distractors, EvalStrategy,
    ExecutorKind, Flatten, FlattenCollisions, GoatMethod, GradientCheckpointing, LrSchedulerType,
    ModulePattern, OnEmpty, OnLostReasoning, OnOverflow, Optim, Packing, RecordedSet, ReportTo,
    ResponseReduction, RetrieverData, Span, Straddle, Suite, TrainOn,
};
pub(crate) use defaults::SCALE;
pub use diagnostics::{Colors, ConfigError, Place, Problem, Source};
pub use metric::MetricExpression;
pub(crate) use named_files::named_files;
pub use patterns::Patterns;
pub use presets::Preset;
pub use raw::{
    RawCheckpoint, RawConfig, RawData, RawEval, RawExecutor, RawGoat, RawJudge, RawKindWeights,
    RawLog, RawLoopLimits, RawLora, RawMask, RawModel, RawNestful, RawRetriever, RawRetrieverLora,
    RawSandbox, RawSpanWeight, RawToolQa, RawTrain, RawTruncate,
};
pub use resolved::{Change, OnResume, diff};
pub use schema::json_schema;
pub use settings::{
    CheckpointConfig, Config, DataConfig, Device, EvalConfig, ExecutorConfig, FlattenConfig,
    GoatConfig, HttpExecutorConfig, JudgeConfig, KindWeights, LogConfig, LoraConfig, MaskConfig,
    ModelConfig, NestfulConfig, NoLanguageModel, RetrieverConfig, RetrieverLora, RetrieverTraining,
    RunLength, Sampling, SandboxConfig, SpanWeight, TargetModules, ToolQaConfig, TrainConfig,
    Warmup,
};
pub(crate) use tool_suites::nestful_family;

pub use template_kwargs::TemplateKwargs;

use crate::budgets::CONFIG_BYTES;
use document::Table;
use read::{Findings, Places};
use tooltune_rows::regular_file;
use tooltune_rows::text::Recognised;

/// A checked config that remembers where each setting came from.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    sources: Vec<Source>,
    places: Places,
    recognised: Option<Recognised>,
}

impl LoadedConfig {
    /// Reads a TOML file (YAML if its name ends in `.yaml` or `.yml`) and applies `--set`
    /// overrides in their order.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, in one error: an unreadable file, syntax, unknown keys, wrong
    /// types, values out of range, settings that contradict each other.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        match regular_file::read(path, CONFIG_BYTES).map(String::from_utf8) {
            Ok(Ok(text)) => Self::parse(Source { name, text }, overrides),
            Ok(Err(error)) => Err(not_utf8(name, &error)),
            Err(error) => Err(unreadable(name, &error)),
        }
    }

    /// The same from a text whose name decides on the format.
    ///
    /// # Errors
    ///
    /// As [`LoadedConfig::load`], except that the file is read already.
    pub fn parse(file: Source, overrides: &[String]) -> Result<Self, ConfigError> {
        let (mut document, mut syntax) = parse_document(&file);
        let mut sources = vec![file];
        sources.extend(overrides::sources(overrides));
        for (index, text) in overrides.iter().enumerate() {
            if let Err(problem) = overrides::apply(&mut document, text, index + 1) {
                syntax.push(problem);
            }
        }

        let mut findings = Findings::default();
        let raw: RawConfig = read::read_document(&document, &mut findings);
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
        let config = check::check(raw, &mut findings);
        if findings.problems.is_empty() {
            Ok(Self {
                config,
                sources,
                places: findings.places,
                recognised: findings.recognised,
            })
        } else {
            Err(ConfigError::new(sources, findings.problems))
        }
    }

    /// The format that the rows were recognised as, where the config leaves it to them, and the row
    /// that tells it.
    pub fn recognised(&self) -> Option<&Recognised> {
        self.recognised.as_ref()
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

fn unreadable(name: String, error: &std::io::Error) -> ConfigError {
    let problem = Problem {
        message: format!("the config cannot be read: {error}"),
        help: "check the path; `tooltune init` writes a config to begin with".to_owned(),
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
        place: Some(Place::new(0, start..start + '\u{fffd}'.len_utf8())),
    };
    ConfigError::new(vec![Source { name, text }], vec![problem])
}
