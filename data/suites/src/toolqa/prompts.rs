//! Writes the prompt of a row and a setting, from our own texts or from the published ones.
//!
//! Placeholders are filled in one pass, so that a response or question that looks like a
//! placeholder stays what it is. Settings with a schema always send it: the released answer prompts
//! sent the words `<<json_schema>>` instead, so results of Table 6 may lack it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_agents::truncation::{FilterError, cut_text, shorten};
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::python::{PyValue, python_repr};
use tooltune_rows::text::{Message, Role};
use tooltune_rows::tools::read_json;

use super::error::ToolQaError;
use super::prompt_texts::{CLASSIFIER, JUDGE, own_text};
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

/// The prompts of the eight settings, the judge and the classifier; by default our own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptSet {
    /// By name; empty for our own.
    given: BTreeMap<String, String>,
}

/// How a response is shown to a model that writes code; one that answers sees indented JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseText {
    /// `json.dumps(response, ensure_ascii=False)`.
    #[default]
    Json,
    /// `str(response)` of the Python object, as in the published runs.
    PythonRepr,
}

/// What a prompt shows of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromptOptions {
    /// How code settings show it.
    pub response_text: ResponseText,
    /// How [`Setting::CodeSchemaReduced`] shortens it.
    pub reduction: Shortening,
    /// How every other setting shortens it; not at all in the published runs. For models whose
    /// context does not hold the whole, and to be stated beside the numbers.
    pub reduce_all: Option<Shortening>,
}

impl PromptSet {
    /// Reads a file of prompts: a JSON object of texts by name, or one that holds it as `prompts`.
    ///
    /// The names are those of the settings, `judge` and `classifier`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or is not JSON
    /// - a prompt is absent or no text, or lacks a placeholder that it needs
    pub fn read(path: &Path) -> Result<Self, ToolQaError> {
        let file = read_json(path)?;
        let prompts = file.get("prompts").unwrap_or(&file);
        let mut given = BTreeMap::new();
        for (name, needed) in needed_placeholders() {
            let fault = |reason: String| ToolQaError::Prompts {
                place: path.display().to_string(),
                reason,
            };
            let Some(text) = prompts.get(name).and_then(Value::as_str) else {
                let all: Vec<&str> = needed_placeholders()
                    .iter()
                    .map(|(name, _)| *name)
                    .collect();
                let all = all.join(", ");
                return Err(fault(format!("no text {name:?}; the file must hold {all}")));
            };
            let absent = needed
                .iter()
                .find(|spellings| !spellings.iter().any(|one| text.contains(one)));
            if let Some(spellings) = absent {
                let spellings = spellings.join(" or ");
                return Err(fault(format!("prompt {name:?} lacks {spellings}; add it")));
            }
            given.insert(name.to_owned(), text.to_owned());
        }
        Ok(Self { given })
    }

    /// The prompt that asks a row's question.
    ///
    /// Prompts for answers show the response as `json.dumps(response, indent=4)`; those for code
    /// show it as `options` says, and the question in lower case.
    ///
    /// # Errors
    ///
    /// - the setting shows a schema and `schemas` has none for the row
    /// - the JMESPath expression of `options` fails on the response
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
        let text = self.text(setting.name(), || own_text(setting));
        Ok(filled(&text, &values))
    }

    /// The prompt as the one turn of a conversation.
    ///
    /// # Errors
    ///
    /// - those of [`PromptSet::prompt`]
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

    /// The prompt that asks which kind of question it is.
    pub fn classifier(&self, question: &str, schema: &str) -> String {
        let values = [(CLASSIFIED_QUESTION, question), (CLASSIFIED_SCHEMA, schema)];
        filled(
            &self.text(CLASSIFIER_NAME, || CLASSIFIER.to_owned()),
            &values,
        )
    }

    /// The prompt that asks whether an answer means the same as the gold.
    pub fn judge(&self, gold: &str, pred: &str) -> String {
        let text = self.text(JUDGE_NAME, || JUDGE.to_owned());
        filled(&text, &[(GOLD, gold), (PREDICTION, pred)])
    }

    fn text(&self, name: &str, own: impl FnOnce() -> String) -> String {
        self.given.get(name).cloned().unwrap_or_else(own)
    }
}

fn needed_placeholders() -> Vec<(&'static str, Vec<&'static [&'static str]>)> {
    let of_setting = |setting: Setting| {
        let response = setting.shows_response().then_some(RESPONSE);
        let schema = setting.shows_schema().then_some(SCHEMA);
        let needed = [Some(QUESTION), response, schema];
        (setting.name(), needed.into_iter().flatten().collect())
    };
    let mut needed: Vec<_> = Setting::ALL.into_iter().map(of_setting).collect();
    needed.push((
        CLASSIFIER_NAME,
        vec![CLASSIFIED_QUESTION, CLASSIFIED_SCHEMA],
    ));
    needed.push((JUDGE_NAME, vec![GOLD, PREDICTION]));
    needed
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
    let shown = shortened.as_ref().unwrap_or(response);
    let text = match (setting.is_code(), options.response_text) {
        (false, _) => dumps(shown, Style::IndentedAscii(4)),
        (true, ResponseText::Json) => dumps(shown, Style::Python),
        (true, ResponseText::PythonRepr) => python_repr(&PyValue::from(shown)),
    };
    Ok(match max_chars {
        Some(max_chars) => cut_text(text, max_chars),
        None => text,
    })
}

/// Puts each value in the place of its placeholders; what is filled in is not searched again.
fn filled(template: &str, values: &[(&[&str], &str)]) -> String {
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
    let found = values.iter().flat_map(|(spellings, value)| {
        let parts = spellings.iter().filter_map(|one| text.split_once(one));
        parts.map(|(before, after)| (before, *value, after))
    });
    found.min_by_key(|(before, _, _)| before.len())
}

#[cfg(test)]
mod tests;
