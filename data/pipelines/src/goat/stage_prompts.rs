//! Builds the prompts of all stages, shows values in prompts, and parses replies.

use serde_json::{Map, Value, json};
use tooltune_agents::executors::CallResult;
use tooltune_apis::{ApiCatalogue, ApiDocument, ApiParameter, cut_output};
use tooltune_json::json_schema::FormatRule;
use tooltune_json::{Style, dumps};

use super::GoatOptions;
use super::earlier::EarlierRun;
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::generator::Prompt;
use crate::prompts::{Prompts, digest};
use crate::reply;

/// Number of hexadecimal digits in a sampler seed, because servers accept 31-bit seeds.
const SEED_CHARS: usize = 8;

/// Maximum length of a free-text field in a constrained reply.
const SENTENCES_CHARS: usize = 400;

/// The input of every stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageInput<'a> {
    pub(super) options: &'a GoatOptions,
    pub(super) catalogue: &'a ApiCatalogue,
    /// The earlier run whose rows are generated again, if there is one.
    pub(super) earlier: Option<&'a EarlierRun>,
}

/// How the reply to a prompt is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sampling {
    /// Greedy decoding, for judgements and for descriptions of given values.
    Greedy,
    /// Sampled at the temperature of the options, for made-up values that should differ between
    /// items.
    Sampled,
}

/// A question before its prompt is rendered.
pub(super) struct Question<'q> {
    pub(super) id: String,
    pub(super) prompt: &'static str,
    pub(super) values: &'q [(&'q str, &'q str)],
    pub(super) schema: Value,
    pub(super) sampling: Sampling,
}

impl StageInput<'_> {
    /// The API document with this name.
    ///
    /// # Errors
    ///
    /// No document has this name. This happens if a stage file was edited.
    pub(super) fn document(&self, name: &str) -> Result<&ApiDocument, PipelineError> {
        self.catalogue.get(name).ok_or_else(|| {
            let hint = self.catalogue.hint(name);
            PipelineError::Usage(format!(
                "no document is named {name:?}; correct the name in the stage file that contains it{hint}"
            ))
        })
    }

    /// Renders the prompt of a question.
    pub(super) fn ask(
        &self,
        prompts: &Prompts,
        question: Question<'_>,
    ) -> Result<ItemPrompt, PipelineError> {
        let options = self.options;
        let (temperature, seed) = match question.sampling {
            Sampling::Greedy => (0.0, options.seed),
            Sampling::Sampled => (
                options.temperature,
                sampler_seed(options.seed, &question.id),
            ),
        };
        Ok(ItemPrompt {
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

    /// The result of a call, as shown in prompts.
    pub(super) fn shown_result(&self, output: &Value) -> String {
        let text = match output {
            Value::String(text) => text.clone(),
            other => dumps(other, Style::Python),
        };
        cut_output(&text, self.options.output_limit)
    }

    /// The result of a call, as a value nested in a prompt.
    pub(super) fn shown_value(&self, output: &Value) -> Value {
        let text = self.shown_result(output);
        serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text))
    }
}

fn sampler_seed(seed: u64, id: &str) -> u64 {
    let mut text = digest(format!("{seed}/{id}").as_bytes());
    text.truncate(SEED_CHARS);
    u64::from_str_radix(&text, 16).unwrap_or_default() >> 1
}

/// A document, as shown in prompts.
pub(super) fn shown_document(document: &ApiDocument) -> String {
    dumps(&document.prompt_value(), Style::Indented(2))
}

/// A JSON value, as shown in prompts.
pub(super) fn shown_json(value: &Value) -> String {
    dumps(value, Style::Indented(2))
}

/// The schema of a free-text field. Its length limit stops small models that would otherwise repeat
/// themselves until the token limit.
pub(super) fn sentences_schema() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": SENTENCES_CHARS})
}

/// The schema of an object of strings, all of them required.
pub(super) fn string_object_schema(names: &[&str]) -> Value {
    let properties: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), sentences_schema()))
        .collect();
    object_schema(properties, names)
}

/// The schema of an object with exactly these properties.
pub(super) fn object_schema(properties: Map<String, Value>, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// The schema of a call's arguments.
pub(super) fn arguments_schema(document: &ApiDocument) -> Value {
    let mut schema = document.call_schema();
    schema["properties"]["arguments"].take()
}

/// The schema of the given arguments of a call, all of them required.
pub(super) fn some_arguments_schema(document: &ApiDocument, names: &[&str]) -> Value {
    let full_schema = arguments_schema(document);
    let properties = names.iter().map(|name| {
        let schema = full_schema["properties"].get(*name).cloned();
        ((*name).to_owned(), schema.unwrap_or_else(|| json!({})))
    });
    object_schema(properties.collect(), names)
}

/// The JSON object in a reply.
pub(super) fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    match reply::json_value(text)? {
        Value::Object(fields) => Ok(fields),
        _ => Err("the reply is not a JSON object".to_owned()),
    }
}

/// The string in a field of a reply.
pub(super) fn string_field(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.get(name).map(Value::as_str) {
        Some(Some(text)) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Some(_) => Err(format!("\"{name}\" is not a string, or is empty")),
        None => Err(format!("the reply has no \"{name}\"")),
    }
}

/// The arguments of a reply as written; a null that is not valid for its parameter is treated as
/// missing.
pub(super) fn parse_written_arguments(
    text: &str,
    document: &ApiDocument,
) -> Result<Map<String, Value>, String> {
    let mut arguments = parse_object(text)?;
    // Some models write the whole call.
    if document.parameter("arguments").is_none()
        && let Some(Value::Object(inner)) = arguments.get("arguments")
    {
        arguments = inner.clone();
    }
    let takes_null = |name: &str| {
        let parameter = document.parameter(name);
        parameter.is_some_and(ApiParameter::accepts_null)
    };
    arguments.retain(|name, value| !value.is_null() || takes_null(name));
    Ok(arguments)
}

/// The arguments of a reply, if they are valid for the API.
pub(super) fn parse_arguments(
    text: &str,
    document: &ApiDocument,
) -> Result<Map<String, Value>, String> {
    let arguments = parse_written_arguments(text, document)?;
    check_arguments(&arguments, document)?;
    Ok(arguments)
}

/// Checks that arguments are valid for the API and complete.
pub(super) fn check_arguments(
    arguments: &Map<String, Value>,
    document: &ApiDocument,
) -> Result<(), String> {
    let names = document.check_arguments(arguments, "arguments");
    let checked =
        names.and_then(|()| document.check_values(arguments, "arguments", FormatRule::Asserted));
    checked.map_err(|error| error.to_string())
}

/// A model's verdict on an edge.
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

/// Parses a verdict; a positive one must have a reason.
pub(super) fn parse_verdict(text: &str) -> Result<Verdict, String> {
    let fields = parse_object(text)?;
    let connectable = fields.get("connectable");
    let connectable = connectable.ok_or("the reply has no \"connectable\"")?;
    let is_connectable = reply::parse_bool(connectable)
        .ok_or_else(|| format!("\"connectable\" is {connectable}; say true or false"))?;
    let reason = string_field(&fields, "reason");
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

/// The reason why a call's result is unusable; `None` if it is usable.
pub(super) fn unusable_reason(result: &CallResult) -> Option<(&'static str, String)> {
    match &result.exception {
        Some(exception) => Some(("failed", exception.clone())),
        None if result.output.is_null() => Some(("returned null", String::new())),
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
    fn arguments_are_parsed_from_every_format_that_models_write_and_nested_values_are_checked() {
        let document = document();
        for text in [
            r#"{"port": "Aldmouth", "box": null}"#,
            r#"{"name": "Tide/At", "arguments": {"port": "Aldmouth"}}"#,
            "```json\n{\"port\": \"Aldmouth\"}\n```",
        ] {
            let parsed = parse_arguments(text, &document).expect(text);
            assert_eq!(Value::Object(parsed), json!({"port": "Aldmouth"}), "{text}");
        }
        for (text, expected) in [
            ("{}", "requires \"port\""),
            (r#"{"port": "a", "prot": 1}"#, "no such parameter"),
            (r#"{"port": "a", "box": {"north": "far"}}"#, "north"),
            ("[]", "not a JSON object"),
            ("[{\"port\": 1}]", "not a JSON object"),
        ] {
            let message = parse_arguments(text, &document).expect_err(text);
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
    fn a_null_argument_remains_if_its_schema_accepts_null() {
        let nullable = json!({"type": ["string", "null"]});
        let document = json!({"api_name": "POST /notes", "required_parameters": [
            {"name": "note", "type": "string", "in": "body", "schema": nullable}],
            "optional_parameters": [
                {"name": "page", "type": "string", "in": "query", "schema": nullable},
                {"name": "n", "type": "integer", "in": "body"}]});
        let document = ApiDocument::try_from(document).expect("a document");
        let parsed = parse_arguments(r#"{"note": null, "page": null, "n": null}"#, &document);
        assert_eq!(parsed.map(Value::Object), Ok(json!({"note": null})));
        let message = parse_arguments(r#"{"n": 3}"#, &document).expect_err("no note");
        assert!(message.contains("requires \"note\""), "{message}");
    }

    #[test]
    fn a_true_verdict_needs_a_reason() {
        let parse_verdict = |text: &str| parse_verdict(text).map(|verdict| verdict.is_connectable);
        assert_eq!(
            parse_verdict(r#"{"reason": "id", "connectable": true}"#),
            Ok(true)
        );
        assert_eq!(
            parse_verdict(r#"{"reason": "", "connectable": "False"}"#),
            Ok(false)
        );
        assert!(parse_verdict(r#"{"reason": " ", "connectable": true}"#).is_err());
        assert!(parse_verdict(r#"{"reason": "x", "connectable": 2}"#).is_err());
        assert!(parse_verdict(r#"{"reason": "x"}"#).is_err());
    }
}
