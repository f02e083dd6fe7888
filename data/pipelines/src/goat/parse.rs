//! The first stage: what each API takes and returns, in words (Figure 13).

use serde_json::{Map, Value};
use tooltune_rows::tools::ApiDocument;

use super::asking::{
    Freedom, Given, Question, object, object_schema, sentences_schema, shown_document, text_of,
    texts_schema,
};
use super::items::ParsedApi;
use super::{PARSE, prompts};
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::run::{Made, Run};

/// A question for each document.
pub(super) fn questions(given: Given<'_>, prompts: &Prompts) -> Result<Vec<Asked>, PipelineError> {
    let question = |document: &ApiDocument| {
        given.ask(
            prompts,
            Question {
                id: document.call_name(),
                prompt: prompts::PARSE,
                values: &[("document", &shown_document(document))],
                schema: schema(document),
                freedom: Freedom::None,
            },
        )
    };
    given.catalogue.iter().map(question).collect()
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
        ("input_params".to_owned(), texts_schema(&names(document))),
        ("output".to_owned(), sentences_schema()),
    ];
    let properties = properties.into_iter().collect();
    object_schema(properties, &["input_params", "output"])
}

/// Asks for the words of all documents.
pub(super) fn parse(run: &mut Run<'_>, given: Given<'_>) -> Result<Made<ParsedApi>, PipelineError> {
    let asked = questions(given, run.prompts())?;
    let documents = given.catalogue.documents();
    let read = |idx: usize, text: &str| parsed(&documents[idx], text);
    Ok(Made::of(run.ask(PARSE, &asked, &read)?))
}

/// Reads the words of an API: by the names of its parameters, or in their order, as the paper's
/// prompt asks for them.
fn parsed(document: &ApiDocument, text: &str) -> Result<ParsedApi, String> {
    let fields = object(text)?;
    let names = names(document);
    let said: Map<String, Value> = match fields.get("input_params") {
        Some(Value::Object(texts)) => texts.clone(),
        Some(Value::Array(texts)) if texts.len() == names.len() => {
            let named = names.iter().map(|name| (*name).to_owned());
            named.zip(texts.iter().cloned()).collect()
        }
        None if names.is_empty() => Map::new(),
        Some(Value::Array(texts)) => {
            let (n, wanted) = (texts.len(), names.len());
            return Err(format!(
                "\"input_params\" has {n} texts for {wanted} parameters"
            ));
        }
        _ => return Err("\"input_params\" is no object of texts".to_owned()),
    };
    let text_for = |name: &&str| {
        let text = text_of(&said, name).map_err(|reason| format!("\"input_params\": {reason}"))?;
        Ok(((*name).to_owned(), Value::from(text)))
    };
    Ok(ParsedApi {
        api: document.call_name(),
        input_params: names.iter().map(text_for).collect::<Result<_, String>>()?,
        output: text_of(&fields, "output")?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_are_read_by_name_or_in_order_and_each_parameter_has_some() {
        let document = json!({"api_name": "At", "required_parameters": [{"name": "port"}],
            "optional_parameters": [{"name": "day"}, {"name": "port"}]});
        let document = ApiDocument::try_from(document).expect("a document");
        let read = |text: &str| parsed(&document, text);
        for text in [
            r#"{"input_params": {"port": "a port", "day": "a day"}, "output": "a tide"}"#,
            r#"{"input_params": ["a port", "a day"], "output": "a tide"}"#,
        ] {
            let found = read(text).expect(text);
            assert_eq!(found.meaning("day"), "a day", "{text}");
            assert_eq!(found.output, "a tide");
        }
        for (text, expected) in [
            (
                r#"{"input_params": {"port": "a port"}, "output": "x"}"#,
                "no \"day\"",
            ),
            (
                r#"{"input_params": ["a port"], "output": "x"}"#,
                "1 texts for 2",
            ),
            (
                r#"{"input_params": {"port": "a", "day": "b"}, "output": ""}"#,
                "\"output\"",
            ),
            (r#"{"output": "x"}"#, "no object of texts"),
        ] {
            let message = read(text).expect_err(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
        let bare = ApiDocument::new("", "Now");
        assert!(parsed(&bare, r#"{"output": "the time"}"#).is_ok());
    }
}
