//! Builds the prompt for a row and a setting, from our own templates or the published ones.
//!
//! Placeholders are replaced in one pass, so placeholders inside a response or question remain
//! unchanged. Settings with a schema always include it. The released answer prompts contained the
//! literal `<<json_schema>>` instead, so the results of Table 6 may have been measured without the
//! schema.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_agents::truncation::{FilterError, cut_text, shorten};
use tooltune_apis::read_json;
use tooltune_json::python::{PyValue, python_repr};
use tooltune_json::{Style, dumps};
use tooltune_template::{Message, Role};

use super::error::ToolQaError;
use super::prompt_texts::{CLASSIFIER, JUDGE, built_in_text};
use super::rows::ToolQaRow;
use super::schemas::Schemas;
use super::setting::Setting;
use crate::shortening::{Shortening, reduce};

const JUDGE_NAME: &str = "judge";
const CLASSIFIER_NAME: &str = "classifier";

/// The spellings of each placeholder.
const RESPONSE: &[&str] = &["{api_response}", "<<json_obj>>"];
const QUESTION: &[&str] = &["{question}", "<<task_prefix>>"];
const SCHEMA: &[&str] = &["<<json_schema>>", "{json_schema}"];
const CLASSIFIED_QUESTION: &[&str] = &["{nl_query}"];
const CLASSIFIED_SCHEMA: &[&str] = &["{schema}"];
const GOLD: &[&str] = &["{gold_answer}"];
const PREDICTION: &[&str] = &["{predicted_answer}"];

/// The prompts of the eight settings, the judge and the classifier; our own by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptSet {
    /// User-provided prompts by name; empty if our own prompts are used.
    given: BTreeMap<String, String>,
}

/// How a response is shown in code settings; answer settings show indented JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseText {
    /// `json.dumps(response, ensure_ascii=False)`.
    #[default]
    Json,
    /// `str(response)` of the Python object, as in the published runs.
    PythonRepr,
}

/// How a prompt shows a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromptOptions {
    /// Notation of the response in code settings.
    pub response_text: ResponseText,
    /// How [`Setting::CodeSchemaReduced`] shortens the response.
    pub reduction: Shortening,
    /// How all other settings shorten the response. It is not shortened in the published runs. Use
    /// this for models whose context is too short for the whole response, and report it with the
    /// results.
    pub reduce_all: Option<Shortening>,
}

impl PromptSet {
    /// Reads a prompt file: a JSON object of strings by name, or an object that contains it as
    /// `prompts`.
    ///
    /// The names are the names of the settings, `judge` and `classifier`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or is not JSON
    /// - a prompt is missing, is not a string, or lacks a required placeholder
    pub fn read(path: &Path) -> Result<Self, ToolQaError> {
        let file = read_json(path)?;
        let prompts = file.get("prompts").unwrap_or(&file);
        let mut texts = BTreeMap::new();
        for (name, placeholders) in needed_placeholders() {
            let prompt_error = |reason: String| ToolQaError::Prompts {
                place: path.display().to_string(),
                reason,
            };
            let Some(text) = prompts.get(name).and_then(Value::as_str) else {
                let all_names: Vec<&str> = needed_placeholders()
                    .iter()
                    .map(|(name, _)| *name)
                    .collect();
                let all_names = all_names.join(", ");
                return Err(prompt_error(format!(
                    "no string {name:?}; the file must contain {all_names}"
                )));
            };
            let absent = placeholders
                .iter()
                .find(|spellings| !spellings.iter().any(|spelling| text.contains(spelling)));
            if let Some(spellings) = absent {
                let spellings = spellings.join(" or ");
                return Err(prompt_error(format!(
                    "prompt {name:?} lacks {spellings}; add it"
                )));
            }
            texts.insert(name.to_owned(), text.to_owned());
        }
        Ok(Self { given: texts })
    }

    /// The prompt with a row's question.
    ///
    /// Answer prompts show the response as `json.dumps(response, indent=4)`. Code prompts show it
    /// as `options` specifies, and the question in lower case.
    ///
    /// # Errors
    ///
    /// - the setting shows a schema and `schemas` has none for the row
    /// - the JMESPath expression in `options` fails on the response
    ///
    /// # Source
    ///
    /// "How Good Are LLMs at Processing Tool Outputs?", appendix C.3, and the published code.
    pub fn prompt(
        &self,
        row: &ToolQaRow,
        setting: Setting,
        schemas: &Schemas,
        options: &PromptOptions,
    ) -> Result<String, ToolQaError> {
        let schema = if setting.shows_schema() {
            schemas.text(row)?
        } else {
            String::new()
        };
        let question = if setting.is_code() {
            row.question.to_lowercase()
        } else {
            row.question.clone()
        };
        let response = response_text(&row.response.response, setting, options);
        let response = response.map_err(|source| ToolQaError::Filter {
            uid: row.uid.clone(),
            source,
        })?;
        let values = [
            (RESPONSE, &*response),
            (QUESTION, &question),
            (SCHEMA, &schema),
        ];
        let text = self.text(setting.name(), || built_in_text(setting));
        Ok(fill_placeholders(&text, &values))
    }

    /// The prompt as a conversation of one message.
    ///
    /// # Errors
    ///
    /// As for [`PromptSet::prompt`].
    pub fn messages(
        &self,
        row: &ToolQaRow,
        setting: Setting,
        schemas: &Schemas,
        options: &PromptOptions,
    ) -> Result<Vec<Message>, ToolQaError> {
        let prompt = self.prompt(row, setting, schemas, options)?;
        Ok(vec![Message::new(Role::User, prompt)])
    }

    /// The prompt that asks for the type of a question.
    pub fn classifier(&self, question: &str, schema: &str) -> String {
        let values = [(CLASSIFIED_QUESTION, question), (CLASSIFIED_SCHEMA, schema)];
        fill_placeholders(
            &self.text(CLASSIFIER_NAME, || CLASSIFIER.to_owned()),
            &values,
        )
    }

    /// The prompt that asks whether an answer means the same as the gold answer.
    pub fn judge(&self, gold: &str, pred: &str) -> String {
        let text = self.text(JUDGE_NAME, || JUDGE.to_owned());
        fill_placeholders(&text, &[(GOLD, gold), (PREDICTION, pred)])
    }

    fn text(&self, name: &str, built_in: impl FnOnce() -> String) -> String {
        self.given.get(name).cloned().unwrap_or_else(built_in)
    }
}

fn needed_placeholders() -> Vec<(&'static str, Vec<&'static [&'static str]>)> {
    let of_setting = |setting: Setting| {
        let response = setting.shows_response().then_some(RESPONSE);
        let schema = setting.shows_schema().then_some(SCHEMA);
        let needed_groups = [Some(QUESTION), response, schema];
        (
            setting.name(),
            needed_groups.into_iter().flatten().collect(),
        )
    };
    let mut needed_groups: Vec<_> = Setting::ALL.into_iter().map(of_setting).collect();
    needed_groups.push((
        CLASSIFIER_NAME,
        vec![CLASSIFIED_QUESTION, CLASSIFIED_SCHEMA],
    ));
    needed_groups.push((JUDGE_NAME, vec![GOLD, PREDICTION]));
    needed_groups
}

fn response_text(
    response: &Value,
    setting: Setting,
    options: &PromptOptions,
) -> Result<String, FilterError> {
    let shortening = match setting {
        Setting::CodeSchemaNoResponse => return Ok(String::new()),
        Setting::CodeSchemaReduced => Some(&options.reduction),
        _ => options.reduce_all.as_ref(),
    };
    let (shortened, max_chars) = match shortening {
        None => (None, None),
        Some(Shortening::Reduce(reduction)) => (Some(reduce(response, *reduction)), None),
        Some(Shortening::Truncate(options)) => {
            let short = shorten(response, &options.shape)?;
            (Some(short), Some(options.max_chars))
        }
    };
    let shortened_response = shortened.as_ref().unwrap_or(response);
    let text = match (setting.is_code(), options.response_text) {
        (false, _) => dumps(shortened_response, Style::IndentedAscii(4)),
        (true, ResponseText::Json) => dumps(shortened_response, Style::Python),
        (true, ResponseText::PythonRepr) => python_repr(&PyValue::from(shortened_response)),
    };
    Ok(match max_chars {
        Some(max_chars) => cut_text(text, max_chars),
        None => text,
    })
}

/// Replaces placeholders by their values; inserted values are not searched again.
fn fill_placeholders(template: &str, values: &[(&[&str], &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, value, after)) = first_placeholder(rest, values) {
        text.push_str(before);
        text.push_str(value);
        rest = after;
    }
    text + rest
}

fn first_placeholder<'t>(
    text: &'t str,
    values: &[(&[&str], &'t str)],
) -> Option<(&'t str, &'t str, &'t str)> {
    let placeholder_parts = values.iter().flat_map(|(spellings, value)| {
        let parts = spellings
            .iter()
            .filter_map(|spelling| text.split_once(spelling));
        parts.map(|(before, after)| (before, *value, after))
    });
    placeholder_parts.min_by_key(|(before, _, _)| before.len())
}

#[cfg(test)]
mod tests;
