//! Message contents given as lists of parts, as in OpenAI's protocol.

use serde_json::Value;

use crate::conversation::{as_object, text_field, wrong_type};
use crate::error::TemplateError;
use crate::message_fields::{MessageFieldError, refuse_part_switches};

/// Joins the text parts with line breaks.
///
/// Servers that pass a single string to templates join parts in the same way: vLLM
/// (`vllm/entrypoints/chat_utils.py`, `_parse_chat_message_content_parts`) and llama.cpp
/// (`common/chat.cpp`, `common_chat_msg::to_json_oaicompat`).
///
/// # Errors
///
/// - a part is not an object, has no type, or has a type other than `text`
/// - a part has a field that controls training
pub(crate) fn join_text_parts(parts: &[Value], field: &str) -> Result<String, TemplateError> {
    const NEEDED: &str = "a part of a content needs type and text";
    let texts = parts.iter().enumerate().map(|(part_idx, part)| {
        let field = format!("{field}[{part_idx}]");
        if let Value::String(_) = part {
            return Err(wrong_type(
                &field,
                part,
                "a part, {\"type\": \"text\", \"text\": ...}",
            ));
        }
        let part = as_object(part, &field)?;
        refuse_part_switches(part, &field)?;
        match text_field(part, &field, "type", NEEDED)? {
            "text" => Ok(text_field(part, &field, "text", NEEDED)?),
            kind => Err(MessageFieldError::NoTextPart {
                field,
                kind: kind.to_owned(),
            }
            .into()),
        }
    });
    Ok(texts
        .collect::<Result<Vec<&str>, TemplateError>>()?
        .join("\n"))
}
