//! What the prompts of all stages have in common: how they are put, shown and read.

use serde_json::{Map, Value, json};
use tooltune_agents::executors::CallResult;
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::tools::{ApiCatalogue, ApiDocument, cut_output};

use super::GoatOptions;
use super::earlier::Earlier;
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::generator::Prompt;
use crate::prompts::{Prompts, digest};
use crate::reply;

/// Characters of a digest that a sampler's seed is made of: servers take seeds of 31 bits.
const SEED_CHARS: usize = 8;

/// Characters of some sentences, where a server or our own decoder keeps to a schema.
const SENTENCES_CHARS: usize = 400;

/// What every stage is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) options: &'a GoatOptions,
    pub(super) catalogue: &'a ApiCatalogue,
    /// The run whose rows are made anew, if there is one.
    pub(super) earlier: Option<&'a Earlier>,
}

/// How free a reply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freedom {
    /// The likeliest text: a judgement, or words for what is there.
    None,
    /// Values that are made up, which differ from one item to the next.
    Invents,
}

/// A question before it has its text.
pub(super) struct Question<'q> {
    pub(super) id: String,
    pub(super) prompt: &'static str,
    pub(super) values: &'q [(&'q str, &'q str)],
    pub(super) schema: Value,
    pub(super) freedom: Freedom,
}

impl Given<'_> {
    /// The document of an API.
    ///
    /// # Errors
    ///
    /// There is none, since a file of a stage was changed by hand.
    pub(super) fn document(&self, name: &str) -> Result<&ApiDocument, PipelineError> {
        self.catalogue.get(name).ok_or_else(|| {
            let hint = self.catalogue.hint(name);
            PipelineError::Usage(format!(
                "no document is named {name:?}{hint}; a file of a stage names it, fix it there"
            ))
        })
    }

    /// A question with its text.
    pub(super) fn ask(
        &self,
        prompts: &Prompts,
        question: Question<'_>,
    ) -> Result<Asked, PipelineError> {
        let options = self.options;
        let (temperature, seed) = match question.freedom {
            Freedom::None => (0.0, options.seed),
            Freedom::Invents => (
                options.temperature,
                sampler_seed(options.seed, &question.id),
            ),
        };
        Ok(Asked {
            prompt: Prompt {
                text: prompts.render(question.prompt, question.values)?,
                schema: Some(question.schema),
                max_tokens: options.reply_tokens,
                temperature,
                seed,
            },
            id: question.id,
        })
    }

    /// What a call gave, as a prompt shows it.
    pub(super) fn shown(&self, output: &Value) -> String {
        let text = match output {
            Value::String(text) => text.clone(),
            other => dumps(other, Style::Python),
        };
        cut_output(&text, self.options.output_limit)
    }

    /// The same, as a value within another.
    pub(super) fn shown_value(&self, output: &Value) -> Value {
        let text = self.shown(output);
        serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text))
    }
}

fn sampler_seed(seed: u64, id: &str) -> u64 {
    let mut text = digest(format!("{seed}/{id}").as_bytes());
    text.truncate(SEED_CHARS);
    u64::from_str_radix(&text, 16).unwrap_or_default() >> 1
}

/// A document as prompts show it.
pub(super) fn shown_document(document: &ApiDocument) -> String {
    dumps(&document.prompt_value(), Style::Indented(2))
}

/// A JSON value as prompts show it.
pub(super) fn shown_json(value: &Value) -> String {
    dumps(value, Style::Indented(2))
}

/// The schema of some sentences. A small model that is held to it ends, where it would repeat itself
/// until its reply is cut off.
pub(super) fn sentences_schema() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": SENTENCES_CHARS})
}

/// The schema of an object of texts, all of which are there.
pub(super) fn texts_schema(names: &[&str]) -> Value {
    let properties: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), sentences_schema()))
        .collect();
    object_schema(properties, names)
}

/// The schema of an object with these properties and no others.
pub(super) fn object_schema(properties: Map<String, Value>, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// The schema of the arguments of a call.
pub(super) fn arguments_schema(document: &ApiDocument) -> Value {
    let mut schema = document.call_schema();
    schema["properties"]["arguments"].take()
}

/// The schema of some of the arguments of a call, all of which are there.
pub(super) fn some_arguments_schema(document: &ApiDocument, names: &[&str]) -> Value {
    let all = arguments_schema(document);
    let properties = names.iter().map(|name| {
        let schema = all["properties"].get(*name).cloned();
        ((*name).to_owned(), schema.unwrap_or_else(|| json!({})))
    });
    object_schema(properties.collect(), names)
}

/// The object of a reply.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, String> {
    match reply::json_value(text)? {
        Value::Object(fields) => Ok(fields),
        _ => Err("the reply is no JSON object".to_owned()),
    }
}

/// A text of a reply.
pub(super) fn text_of(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.get(name).map(Value::as_str) {
        Some(Some(text)) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Some(_) => Err(format!("\"{name}\" is no text, or an empty one")),
        None => Err(format!("the reply has no \"{name}\"")),
    }
}

/// The arguments of a reply as they stand there; those that are null are absent.
pub(super) fn written_arguments(
    text: &str,
    document: &ApiDocument,
) -> Result<Map<String, Value>, String> {
    let mut arguments = object(text)?;
    // Some models write the whole call.
    if document.parameter("arguments").is_none()
        && let Some(Value::Object(inner)) = arguments.get("arguments")
    {
        arguments = inner.clone();
    }
    arguments.retain(|_, value| !value.is_null());
    Ok(arguments)
}

/// The arguments of a reply, if the API takes them.
pub(super) fn arguments(text: &str, document: &ApiDocument) -> Result<Map<String, Value>, String> {
    let arguments = written_arguments(text, document)?;
    checked(&arguments, document)?;
    Ok(arguments)
}

/// Whether the API takes the arguments, and has all that it requires.
pub(super) fn checked(
    arguments: &Map<String, Value>,
    document: &ApiDocument,
) -> Result<(), String> {
    let names = document.check_arguments(arguments, "arguments");
    let checked = names.and_then(|()| document.check_values(arguments, "arguments"));
    checked.map_err(|error| error.to_string())
}

/// What a model says of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) is_connectable: bool,
    pub(super) reason: String,
}

/// The schema of a verdict.
pub(super) fn verdict_schema() -> Value {
    let properties = json!({"reason": sentences_schema(), "connectable": {"type": "boolean"}});
    let properties = properties.as_object().cloned().unwrap_or_default();
    object_schema(properties, &["reason", "connectable"])
}

/// Reads a verdict; one that is true has a reason.
pub(super) fn verdict(text: &str) -> Result<Verdict, String> {
    let fields = object(text)?;
    let said = fields.get("connectable");
    let said = said.ok_or("the reply has no \"connectable\"")?;
    let is_connectable = reply::truth(said)
        .ok_or_else(|| format!("\"connectable\" is {said}; say true or false"))?;
    let reason = text_of(&fields, "reason");
    let reason = if is_connectable {
        reason?
    } else {
        reason.unwrap_or_default()
    };
    Ok(Verdict {
        is_connectable,
        reason,
    })
}

/// Why a call is of no use, if it is.
pub(super) fn useless(result: &CallResult) -> Option<(&'static str, String)> {
    match &result.exception {
        Some(exception) => Some(("failed", exception.clone())),
        None if result.output.is_null() => Some(("gave nothing", String::new())),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> ApiDocument {
        let document = json!({"tool_name": "Tide", "api_name": "At", "required_parameters": [
            {"name": "port", "type": "STRING"}], "optional_parameters": [
            {"name": "box", "type": "object", "schema": {"type": "object", "properties": {
                "north": {"type": "number"}}, "required": ["north"]}}]});
        ApiDocument::try_from(document).expect("a document")
    }

    #[test]
    fn arguments_are_read_in_the_forms_that_models_write_and_checked_nested() {
        let document = document();
        for text in [
            r#"{"port": "Aldmouth", "box": null}"#,
            r#"{"name": "Tide/At", "arguments": {"port": "Aldmouth"}}"#,
            "```json\n{\"port\": \"Aldmouth\"}\n```",
        ] {
            let found = arguments(text, &document).expect(text);
            assert_eq!(Value::Object(found), json!({"port": "Aldmouth"}), "{text}");
        }
        for (text, expected) in [
            ("{}", "requires \"port\""),
            (r#"{"port": "a", "prot": 1}"#, "no such parameter"),
            (r#"{"port": "a", "box": {"north": "far"}}"#, "north"),
            ("[]", "no JSON"),
            ("[{\"port\": 1}]", "no JSON object"),
        ] {
            let message = arguments(text, &document).expect_err(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
        let schema = some_arguments_schema(&document, &["box"]);
        assert_eq!(
            schema["properties"]["box"]["properties"]["north"]["type"],
            "number"
        );
        assert_eq!(schema["required"], json!(["box"]));
    }

    #[test]
    fn a_verdict_that_is_true_has_a_reason() {
        let read = |text: &str| verdict(text).map(|verdict| verdict.is_connectable);
        assert_eq!(read(r#"{"reason": "id", "connectable": true}"#), Ok(true));
        assert_eq!(read(r#"{"reason": "", "connectable": "False"}"#), Ok(false));
        assert!(read(r#"{"reason": " ", "connectable": true}"#).is_err());
        assert!(read(r#"{"reason": "x", "connectable": 2}"#).is_err());
        assert!(read(r#"{"reason": "x"}"#).is_err());
    }
}
