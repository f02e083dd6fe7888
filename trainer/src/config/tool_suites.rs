//! The suites nestful and toolqa and their sandbox: from what was typed to what it means, and back.

use std::path::PathBuf;

use tooltune_suites::nestful::{NestfulReport, ReactReport, own_families};
use tooltune_suites::toolqa::{Setting, Shortening};

use super::choices::Suite;
use super::defaults;
use super::names;
use super::raw_tool_suites::{RawNestful, RawSandbox, RawToolQa};
use super::rules::Checker;
use super::settings::{EvalConfig, JudgeConfig};
use super::truncation::{raw_shortening, shortening};

/// The suite nestful.
#[derive(Debug, Clone, PartialEq)]
pub struct NestfulConfig {
    /// Files in the benchmark's format.
    pub data: Vec<PathBuf>,
    /// The model family of prompt and parser.
    pub family: String,
    /// Examples in the prompt.
    pub n_examples: usize,
    /// Whether the tools are a JSON string that holds JSON.
    pub tools_twice: bool,
    /// A file of prompts.
    pub prompts: Option<PathBuf>,
    /// Whether the model sees the result of each call before the next.
    pub react: bool,
    /// Texts of such a loop, at least 1.
    pub max_steps: usize,
    /// The benchmark's Python functions.
    pub exec_dir: Option<PathBuf>,
}

/// The suite toolqa.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolQaConfig {
    /// Files of questions.
    pub data: Vec<PathBuf>,
    /// The responses that they are about.
    pub responses: Option<PathBuf>,
    /// What the prompt shows and asks for.
    pub setting: Setting,
    /// Tokens of an answer or a function, at least 1.
    pub max_new_tokens: usize,
    /// A folder of released schemas.
    pub schemas: Option<PathBuf>,
    /// How responses are shortened in every setting.
    pub reduce: Option<Shortening>,
    /// Whether settings for code show responses as Python writes them.
    pub python_repr: bool,
    /// A file of prompts.
    pub prompts: Option<PathBuf>,
    /// Whether functions that the model writes are run.
    pub run_code: bool,
    /// Says which answers mean the same as the gold.
    pub judge: Option<JudgeConfig>,
}

/// What runs functions in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxConfig {
    /// The Python, a path or a name in `PATH`.
    pub python: String,
    /// Whether they run where the machine cannot isolate them.
    pub allow_unisolated: bool,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        sandbox(RawSandbox::default())
    }
}

impl Default for NestfulConfig {
    fn default() -> Self {
        nestful(RawNestful::default())
    }
}

impl Default for ToolQaConfig {
    fn default() -> Self {
        toolqa(RawToolQa::default(), defaults::TOOLQA_SETTING, None)
    }
}

/// What says of a setting that it names a family of the suite nestful; `prompts` is the file that
/// may have more of them.
pub(crate) fn nestful_family(prompts: &str) -> String {
    let known: Vec<&str> = own_families().collect();
    format!(
        "The prompt and the parser of this model family, {} by default: {}, or a name in {prompts}.",
        defaults::NESTFUL_FAMILY,
        known.join(", ")
    )
}

fn toolqa(raw: RawToolQa, setting: Setting, judge: Option<JudgeConfig>) -> ToolQaConfig {
    ToolQaConfig {
        reduce: shortening(&raw),
        data: raw.data.unwrap_or_default(),
        responses: raw.responses,
        setting,
        max_new_tokens: raw
            .max_new_tokens
            .unwrap_or(defaults::TOOLQA_MAX_NEW_TOKENS),
        schemas: raw.schemas,
        python_repr: raw.python_repr.unwrap_or(false),
        prompts: raw.prompts,
        run_code: raw.run_code.unwrap_or(false),
        judge,
    }
}

fn nestful(raw: RawNestful) -> NestfulConfig {
    NestfulConfig {
        data: raw.data.unwrap_or_default(),
        family: raw
            .family
            .unwrap_or_else(|| defaults::NESTFUL_FAMILY.to_owned()),
        n_examples: raw.n_examples.unwrap_or(defaults::NESTFUL_EXAMPLES),
        tools_twice: raw.tools_twice.unwrap_or(false),
        prompts: raw.prompts,
        react: raw.react.unwrap_or(false),
        max_steps: raw.max_steps.unwrap_or(defaults::NESTFUL_STEPS),
        exec_dir: raw.exec_dir,
    }
}

pub(super) fn sandbox(raw: RawSandbox) -> SandboxConfig {
    SandboxConfig {
        python: raw.python.unwrap_or_else(|| defaults::PYTHON.to_owned()),
        allow_unisolated: raw.allow_unisolated.unwrap_or(false),
    }
}

impl Checker<'_> {
    pub(super) fn nestful(&mut self, raw: RawNestful) -> NestfulConfig {
        let config = nestful(raw);
        self.at_least("eval.nestful.max_steps", config.max_steps as u64, 1);
        let (path, family) = ("eval.nestful.family", config.family.as_str());
        let known: Vec<&str> = own_families().collect();
        if config.prompts.is_none() && !known.contains(&family) {
            let help = match names::nearest(family, &known) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!(
                    "it can be {}, or a name in a file of prompts: eval.nestful.prompts",
                    names::list(&known)
                ),
            };
            self.report(path, format!("`{path}` cannot be {family:?}"), help);
        }
        config
    }

    pub(super) fn toolqa(&mut self, mut raw: RawToolQa) -> ToolQaConfig {
        let setting = match raw.setting.take() {
            None => defaults::TOOLQA_SETTING,
            Some(name) => Setting::named(&name).unwrap_or_else(|| {
                let known = Setting::ALL.map(Setting::name);
                let help = match names::nearest(&name, &known) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("it can be {}", names::list(&known)),
                };
                let message = format!("`eval.toolqa.setting` cannot be {name:?}");
                self.report("eval.toolqa.setting", message, help);
                defaults::TOOLQA_SETTING
            }),
        };
        self.toolqa_truncation(&raw);
        let judge = raw.judge.take();
        let judge = judge.map(|judge| self.judge("eval.toolqa.judge", judge));
        let config = toolqa(raw, setting, judge);
        let most = config.max_new_tokens as u64;
        self.at_least("eval.toolqa.max_new_tokens", most, 1);
        config
    }

    /// The rows of a suite, which its table must name.
    pub(super) fn rows_of_suite(&mut self, path: &str, data: &[PathBuf], help: &str) {
        if !data.is_empty() {
            return;
        }
        match self.is_typed(path) {
            true => self.report(path, format!("`{path}` is an empty list"), help),
            false => self.missing(path, help),
        }
    }

    /// What a run needs that evaluates these suites.
    pub(super) fn tool_suites_need(&mut self, eval: &EvalConfig) {
        let asks = |suite: Suite| eval.suites.contains(&suite);
        if asks(Suite::Nestful) {
            let help = "name the benchmark's rows: [eval.nestful] data = [\"nestful_data.jsonl\"]";
            let nestful = eval.nestful.clone().unwrap_or_default();
            self.rows_of_suite("eval.nestful.data", &nestful.data, help);
        }
        if !asks(Suite::Toolqa) {
            return;
        }
        let toolqa = eval.toolqa.clone().unwrap_or_default();
        let help = "name the questions: [eval.toolqa] data = [\"qa.jsonl\"]";
        self.rows_of_suite("eval.toolqa.data", &toolqa.data, help);
        if toolqa.responses.is_none() {
            let help = "name the responses: [eval.toolqa] responses = \"responses.jsonl\"";
            self.missing("eval.toolqa.responses", help);
        }
        if toolqa.setting.is_code() && !toolqa.run_code {
            let setting = toolqa.setting.name();
            let message = format!("the setting {setting} runs functions that the model writes");
            let help = "allow that with run_code = true, which runs each in a sandbox";
            self.report("eval.toolqa.setting", message, help);
        }
    }
}

impl EvalConfig {
    /// Most tokens of a text that the suites of a run have written.
    pub fn longest_answer(&self) -> usize {
        let toolqa = self.toolqa.as_ref();
        let toolqa = toolqa.filter(|_| self.suites.contains(&Suite::Toolqa));
        let longest = toolqa.map_or(0, |toolqa| toolqa.max_new_tokens);
        self.max_new_tokens.max(longest)
    }
}

impl NestfulConfig {
    /// The metrics of the suite: a loop of calls has wins and steps, but no matches with the gold.
    pub(super) fn metrics(&self) -> &'static [&'static str] {
        match self.react {
            true => &ReactReport::NAMES,
            false => &NestfulReport::NAMES,
        }
    }

    pub(super) fn raw(&self) -> RawNestful {
        RawNestful {
            data: Some(self.data.clone()),
            family: Some(self.family.clone()),
            n_examples: Some(self.n_examples),
            tools_twice: Some(self.tools_twice),
            prompts: self.prompts.clone(),
            react: Some(self.react),
            max_steps: Some(self.max_steps),
            exec_dir: self.exec_dir.clone(),
        }
    }

    /// The files that it reads, with their settings.
    pub(super) fn files(&self) -> Vec<(String, &PathBuf)> {
        let data = listed("eval.nestful.data", &self.data);
        let others = [("prompts", &self.prompts), ("exec_dir", &self.exec_dir)];
        data.chain(named("eval.nestful", others)).collect()
    }
}

impl ToolQaConfig {
    pub(super) fn raw(&self) -> RawToolQa {
        RawToolQa {
            data: Some(self.data.clone()),
            responses: self.responses.clone(),
            setting: Some(self.setting.name().to_owned()),
            max_new_tokens: Some(self.max_new_tokens),
            schemas: self.schemas.clone(),
            python_repr: Some(self.python_repr),
            prompts: self.prompts.clone(),
            run_code: Some(self.run_code),
            judge: self.judge.as_ref().map(JudgeConfig::raw),
            ..raw_shortening(self.reduce.as_ref())
        }
    }

    /// The files that it reads, with their settings.
    pub(super) fn files(&self) -> Vec<(String, &PathBuf)> {
        let data = listed("eval.toolqa.data", &self.data);
        let others = [
            ("responses", &self.responses),
            ("schemas", &self.schemas),
            ("prompts", &self.prompts),
        ];
        data.chain(named("eval.toolqa", others)).collect()
    }
}

impl SandboxConfig {
    pub(super) fn raw(&self) -> RawSandbox {
        RawSandbox {
            python: Some(self.python.clone()),
            allow_unisolated: Some(self.allow_unisolated),
        }
    }
}

pub(super) fn listed<'a>(
    setting: &str,
    files: &'a [PathBuf],
) -> impl Iterator<Item = (String, &'a PathBuf)> + use<'a> {
    let setting = setting.to_owned();
    let named = move |(i, file)| (format!("{setting}[{i}]"), file);
    files.iter().enumerate().map(named)
}

pub(super) fn named<'a, const N: usize>(
    table: &str,
    files: [(&str, &'a Option<PathBuf>); N],
) -> impl Iterator<Item = (String, &'a PathBuf)> {
    let named = files.map(|(key, file)| Some((format!("{table}.{key}"), file.as_ref()?)));
    named.into_iter().flatten()
}
