//! The table `[eval.toolqa]`.

use std::path::PathBuf;

use schemars::{Schema, SchemaGenerator, json_schema};
use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS, TruncationOptions};
use tooltune_suites::Shortening;
use tooltune_suites::toolqa::{Routes, Setting, SettingChoice};

use super::SuiteTable;
use crate::enums::ResponseReduction;
use crate::rules::Rules;
use crate::suite::Suite;
use crate::tables::goat::TruncateConfig;
use crate::tables::services::JudgeConfig;
use crate::tables::settings::settings;

settings! {
    /// The suite toolqa: questions about tool outputs.
    pub struct ToolQaConfig {
        /// Files of questions; required if `suites` contains "toolqa".
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// JSON Lines file of the responses that the questions are about.
        #[schemars(extend("x-kind" = "path"))]
        pub responses: Option<PathBuf>,
        /// Contents of the prompt. With "routed", the model first names the type of each question, and
        /// the next three settings choose its prompt.
        #[schemars(schema_with = "choices_of_setting")]
        pub setting: SettingChoice = SettingChoice::All(Setting::Answer),
        /// Setting for extractive questions.
        #[schemars(schema_with = "settings_of_toolqa", extend("x-only-with" = {"setting": ["routed"]}))]
        pub route_extractive: Setting = Setting::AnswerSchema,
        /// Setting for filtering questions.
        #[schemars(schema_with = "settings_of_toolqa", extend("x-only-with" = {"setting": ["routed"]}))]
        pub route_filtering: Setting = Setting::CodeSchema,
        /// Setting for aggregation questions, and for those whose type the model did not name.
        #[schemars(schema_with = "settings_of_toolqa", extend("x-only-with" = {"setting": ["routed"]}))]
        pub route_aggregation: Setting = Setting::CodeSchema,
        /// Maximum number of tokens of an answer with its reasoning, or of a function; 1,000 in the
        /// paper. The suite ignores `eval.max_new_tokens`.
        #[schemars(range(min = 1))]
        pub max_new_tokens: usize = 1_000,
        /// Folder of published schemas, one per endpoint. By default the schema is inferred from
        /// each response.
        #[schemars(extend("x-kind" = "path"))]
        pub schemas: Option<PathBuf>,
        /// How responses are shortened in every setting: "official" and "paths" keep only list
        /// items with new keys, and "truncate" uses the next four settings.
        pub reduce: Option<ResponseReduction>,
        /// For reduce = "truncate": number of list items to keep; a note states the total.
        pub max_items: Option<usize> = Some(MAX_ITEMS),
        /// For reduce = "truncate": number of levels to keep; deeper objects become a summary.
        pub max_depth: Option<usize> = Some(MAX_DEPTH),
        /// For reduce = "truncate": number of characters to keep.
        pub max_chars: Option<usize> = Some(MAX_CHARS),
        /// For reduce = "truncate": [JMESPath](https://jmespath.org) expression that selects parts
        /// of the response first.
        pub jmespath: Option<String>,
        /// Whether prompts show only the keys in `read_keys` of a row. Code runs on the whole response.
        pub oracle_projection: bool = false,
        /// Whether prompts of code settings show responses as Python literals, as in the published
        /// runs.
        pub python_repr: bool = false,
        /// File of prompts instead of the built-in ones.
        #[schemars(extend("x-kind" = "path"))]
        pub prompts: Option<PathBuf>,
        /// Whether to run model-written functions, each in the sandbox. Required for code settings.
        pub run_code: bool = false,
        /// Whether the model classifies the questions by type instead of answering them.
        pub classify: bool = false,
        /// LLM judge that decides which answers are equivalent to the reference: a table with the
        /// keys of `goat.judge`.
        pub judge: Option<JudgeConfig>,
    }
}

fn choices_of_setting(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": SettingChoice::names().collect::<Vec<_>>() })
}

fn settings_of_toolqa(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": Setting::ALL.map(Setting::name) })
}

impl ToolQaConfig {
    /// The setting for each type of question, if it is chosen by type.
    pub fn routes(&self) -> Option<Routes> {
        (self.setting == SettingChoice::Routed).then_some(Routes {
            extractive: self.route_extractive,
            filtering: self.route_filtering,
            aggregation: self.route_aggregation,
        })
    }

    /// The first setting in use that runs code, if any.
    pub fn code_setting(&self) -> Option<Setting> {
        let settings = match self.setting {
            SettingChoice::All(setting) => vec![setting],
            SettingChoice::Routed => self
                .routes()
                .map_or_else(Vec::new, |routes| routes.all().into()),
        };
        settings.into_iter().find(|setting| setting.is_code())
    }

    /// How responses are shortened in all settings, if at all.
    pub fn shortening(&self) -> Option<Shortening> {
        let truncate = TruncateConfig {
            max_items: self.max_items.unwrap_or(MAX_ITEMS),
            max_depth: self.max_depth.unwrap_or(MAX_DEPTH),
            jmespath: self.jmespath.clone(),
        };
        let options = TruncationOptions {
            shape: truncate.shape(),
            max_chars: self.max_chars.unwrap_or(MAX_CHARS),
        };
        self.reduce.map(|word| word.shortening(options))
    }
}

impl SuiteTable for ToolQaConfig {
    fn data(&self) -> &[PathBuf] {
        &self.data
    }

    fn data_help(&self, _: Suite) -> String {
        "set the questions: [eval.toolqa] data = [\"qa.jsonl\"]".to_owned()
    }

    fn metrics(&self) -> Option<&'static [&'static str]> {
        self.classify.then_some(&["accuracy"])
    }

    fn longest_answer(&self) -> Option<usize> {
        Some(self.max_new_tokens)
    }

    fn clear_unused(&mut self) {
        if self.reduce != Some(ResponseReduction::Truncate) {
            self.max_items = None;
            self.max_depth = None;
            self.max_chars = None;
        }
    }

    fn check(&self, table: &str, rules: &mut Rules<'_>) {
        rules.jmespath(&format!("{table}.jmespath"), self.jmespath.as_deref());
        if let Some(judge) = &self.judge {
            judge.check(&format!("{table}.judge"), rules);
        }
        let reduce = format!("{table}.reduce");
        let is_unreadable =
            rules.is_in_source(&reduce) && !rules.findings.has_source_value(&reduce);
        if self.reduce == Some(ResponseReduction::Truncate) || is_unreadable {
            return;
        }
        for key in ["max_items", "max_depth", "max_chars", "jmespath"] {
            let path = format!("{table}.{key}");
            if rules.is_in_source(&path) {
                let message = format!("`{path}` is for `{reduce}` = \"truncate\"");
                let help = "write reduce = \"truncate\", or delete this line";
                rules.report(&path, message, help);
            }
        }
    }

    fn check_needs(&self, table: &str, rules: &mut Rules<'_>) {
        if self.responses.is_none() {
            let help = "set the responses: [eval.toolqa] responses = \"responses.jsonl\"";
            rules.missing(&format!("{table}.responses"), help);
        }
        if self.oracle_projection && self.schemas.is_some() {
            let path = format!("{table}.oracle_projection");
            let message =
                format!("`{path}` infers schemas from the shown keys, but `schemas` is set");
            rules.report(&path, message, "delete one of the two lines");
        }
        if let Some(setting) = self.code_setting().filter(|_| !self.run_code) {
            let setting = setting.name();
            let message = format!("the setting {setting} runs model-written functions");
            let help = "set run_code = true to run each of them in the sandbox";
            rules.report(&format!("{table}.setting"), message, help);
        }
    }
}
