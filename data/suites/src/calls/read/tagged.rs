//! Calls between tags: JSON, `<function=name>`, or `<arg_key>`.

use serde_json::{Map, Value};
use tooltune_rows::json;

use super::CallDialect;
use super::json_text::{add_all, no_json};
use crate::calls::answer::{CallsAnswer, WrittenCall};
use crate::calls::tools::{Schema, ToolSet};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const FUNCTION: &str = "<function=";
const CLOSE: &str = "</tool_call>";
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");

/// Reads what stands in each pair of `<tool_call>` tags. The last may lack its end, as where that
/// is what stops a server; what it holds must be whole.
pub(super) fn in_tags(text: &str, tools: &ToolSet) -> CallsAnswer {
    let mut answer = CallsAnswer::default();
    let mut rest = text;
    while let Some((_, inside)) = rest.split_once(OPEN) {
        let (block, after) = inside.split_once(CLOSE).unwrap_or((inside, ""));
        add_block(block.trim(), tools, &mut answer);
        rest = after;
    }
    answer
}

/// Reads `<function=name>...</function>` without tags around it.
pub(super) fn functions(text: &str, tools: &ToolSet) -> CallsAnswer {
    let mut answer = CallsAnswer::in_dialect(CallDialect::Function);
    add_functions(text, tools, &mut answer);
    answer
}

fn add_block(block: &str, tools: &ToolSet, answer: &mut CallsAnswer) {
    let dialect = if block.contains(FUNCTION) {
        add_functions(block, tools, answer);
        CallDialect::Function
    } else if block.starts_with(['{', '[']) {
        match json::parse(block) {
            Ok(value) => add_all(&value, answer),
            Err(error) => answer.refuse(format!("a call is no JSON: {error}")),
        }
        CallDialect::Hermes
    } else if block.contains(KEY.0) || tools.named(block).is_some() {
        answer.add(with_keys(block, tools));
        CallDialect::Glm
    } else if block.is_empty() {
        answer.refuse("a call is empty".to_owned());
        CallDialect::Hermes
    } else {
        answer.refuse(no_json(block));
        CallDialect::Hermes
    };
    answer.dialect = answer.dialect.or(Some(dialect));
}

fn add_functions(text: &str, tools: &ToolSet, answer: &mut CallsAnswer) {
    for part in text.split(FUNCTION).skip(1) {
        answer.add(function(part, tools));
    }
}

/// Reads `name>...</function>`.
fn function(part: &str, tools: &ToolSet) -> Result<WrittenCall, String> {
    const PARAMETER: &str = "<parameter=";
    let (name, inside) = part
        .split_once('>')
        .ok_or_else(|| "the name of a call does not end".to_owned())?;
    let name = name.trim();
    let (inside, _) = inside
        .split_once("</function>")
        .ok_or_else(|| format!("the call of {name} does not end"))?;
    let inside = inside.trim();
    if inside.starts_with('{') {
        return match json::parse(inside) {
            Ok(Value::Object(arguments)) => Ok(WrittenCall {
                name: name.to_owned(),
                arguments,
            }),
            Ok(_) => Err(format!(
                "the arguments of the call of {name} are not a JSON object"
            )),
            Err(error) => Err(format!(
                "the arguments of the call of {name} are no JSON: {error}"
            )),
        };
    }
    let mut arguments = Map::new();
    for part in inside.split(PARAMETER).skip(1) {
        let (key, value) = part
            .split_once('>')
            .ok_or_else(|| format!("the name of an argument of {name} does not end"))?;
        let (value, _) = value.split_once("</parameter>").ok_or_else(|| {
            format!(
                "the argument {} of the call of {name} does not end",
                key.trim()
            )
        })?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        add_argument(name, key.trim(), value, tools, &mut arguments);
    }
    Ok(WrittenCall {
        name: name.to_owned(),
        arguments,
    })
}

/// Reads a name, and keys and values after it.
fn with_keys(block: &str, tools: &ToolSet) -> Result<WrittenCall, String> {
    let end = block.find(KEY.0).unwrap_or(block.len());
    let name = block[..end].trim();
    let mut arguments = Map::new();
    for part in block[end..].split(KEY.0).skip(1) {
        let argument = part.split_once(KEY.1).and_then(|(key, after)| {
            let (_, value) = after.split_once(VALUE.0)?;
            let (value, _) = value.split_once(VALUE.1)?;
            Some((key.trim(), value))
        });
        let (key, value) =
            argument.ok_or_else(|| format!("an argument of the call of {name} does not end"))?;
        add_argument(name, key, value, tools, &mut arguments);
    }
    Ok(WrittenCall {
        name: name.to_owned(),
        arguments,
    })
}

/// Adds an argument that is written as text, by the type that its tool declares.
fn add_argument(
    tool: &str,
    key: &str,
    text: &str,
    tools: &ToolSet,
    arguments: &mut Map<String, Value>,
) {
    let parameters = tools.named(tool).and_then(|tool| tool.parameters.as_ref());
    let schema = parameters.and_then(|all| Schema::whole(all).property(key));
    arguments.insert(key.to_owned(), typed(schema, text));
}

/// A text as the value that it stands for: where the schema allows texts it is one, else it is JSON,
/// or one of Python's words for true, false and none, and a text if it is neither.
fn typed(schema: Option<Schema<'_>>, text: &str) -> Value {
    let allows = |word: &str| schema.is_some_and(|schema| schema.has_type(word));
    match text.trim() {
        "null" | "None" if allows("null") => Value::Null,
        "True" if allows("boolean") => Value::Bool(true),
        "False" if allows("boolean") => Value::Bool(false),
        _ if allows("string") => Value::from(text),
        trimmed => json::parse(trimmed).unwrap_or_else(|_| Value::from(text)),
    }
}
