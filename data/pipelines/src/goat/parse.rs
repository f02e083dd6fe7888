//! Stage 1: descriptions of each API's inputs and outputs (Figure 13).

use serde_json::{Map, Value};
use tooltune_apis::ApiDocument;

use super::items::ParsedApi;
use super::stage_prompts::{
    Question, Sampling, StageInput, object_schema, parse_object, sentences_schema, shown_document,
    string_field, string_object_schema,
};
use super::{PARSE, prompts};
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::run::{Run, StageResult};

/// One question per document.
pub(super) fn item_prompts(
    input: StageInput<'_>,
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let question = |document: &ApiDocument| {
        input.ask(
            prompts,
            Question {
                id: document.call_name(),
                prompt: prompts::PARSE,
                values: &[("document", &shown_document(document))],
                schema: schema(document),
                sampling: Sampling::Greedy,
            },
        )
    };
    input.catalogue.iter().map(question).collect()
}

fn names(document: &ApiDocument) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for parameter in document.parameters() {
        if !names.contains(&parameter.name.as_str()) {
            names.push(&parameter.name);
        }
    }
    names
}

fn schema(document: &ApiDocument) -> Value {
    let properties = [
        (
            "input_params".to_owned(),
            string_object_schema(&names(document)),
        ),
        ("output".to_owned(), sentences_schema()),
    ];
    let properties = properties.into_iter().collect();
    object_schema(properties, &["input_params", "output"])
}

/// Requests the descriptions of all documents.
pub(super) fn parse(
    run: &mut Run<'_>,
    input: StageInput<'_>,
) -> Result<StageResult<ParsedApi>, PipelineError> {
    let item_prompts = item_prompts(input, run.prompts())?;
    let documents = input.catalogue.documents();
    let parse_reply = |idx: usize, text: &str| parse_description(&documents[idx], text);
    Ok(StageResult::from_results(run.ask(
        PARSE,
        &item_prompts,
        &parse_reply,
    )?))
}

/// Parses the descriptions of an API: by parameter name, or in parameter order, as in the paper's
/// prompt.
fn parse_description(document: &ApiDocument, text: &str) -> Result<ParsedApi, String> {
    let fields = parse_object(text)?;
    let names = names(document);
    let input_params: Map<String, Value> = match fields.get("input_params") {
        Some(Value::Object(texts)) => texts.clone(),
        Some(Value::Array(texts)) if texts.len() == names.len() => {
            let named = names.iter().map(|name| (*name).to_owned());
            named.zip(texts.iter().cloned()).collect()
        }
        None if names.is_empty() => Map::new(),
        Some(Value::Array(texts)) => {
            let (n, n_parameters) = (texts.len(), names.len());
            return Err(format!(
                "\"input_params\" has {n} descriptions for {n_parameters} parameters"
            ));
        }
        _ => return Err("\"input_params\" is not an object of strings".to_owned()),
    };
    let text_for = |name: &&str| {
        let text = string_field(&input_params, name)
            .map_err(|reason| format!("\"input_params\": {reason}"))?;
        Ok(((*name).to_owned(), Value::from(text)))
    };
    Ok(ParsedApi {
        api: document.call_name(),
        input_params: names.iter().map(text_for).collect::<Result<_, String>>()?,
        output: string_field(&fields, "output")?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn descriptions_are_parsed_by_name_or_in_order_and_cover_each_parameter() {
        let document = json!({"api_name": "At", "required_parameters": [{"name": "port"}],
            "optional_parameters": [{"name": "day"}, {"name": "port"}]});
        let document = ApiDocument::try_from(document).expect("a document");
        let parse_reply = |text: &str| parse_description(&document, text);
        for text in [
            r#"{"input_params": {"port": "a port", "day": "a day"}, "output": "a tide"}"#,
            r#"{"input_params": ["a port", "a day"], "output": "a tide"}"#,
        ] {
            let parsed = parse_reply(text).expect(text);
            assert_eq!(parsed.meaning("day"), "a day", "{text}");
            assert_eq!(parsed.output, "a tide");
        }
        for (text, expected) in [
            (
                r#"{"input_params": {"port": "a port"}, "output": "x"}"#,
                "no \"day\"",
            ),
            (
                r#"{"input_params": ["a port"], "output": "x"}"#,
                "1 descriptions for 2",
            ),
            (
                r#"{"input_params": {"port": "a", "day": "b"}, "output": ""}"#,
                "\"output\"",
            ),
            (r#"{"output": "x"}"#, "not an object of strings"),
        ] {
            let message = parse_reply(text).expect_err(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
        let without_parameters = ApiDocument::new("", "Now");
        assert!(parse_description(&without_parameters, r#"{"output": "the time"}"#).is_ok());
    }
}
