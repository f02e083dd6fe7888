//! Contents that are lists of parts, as OpenAI's protocol has them.

use serde_json::Value;

use super::error::FormatError;
use crate::text::conversation::{as_object, text_field, wrong_type};
use crate::text::error::DataError;
use crate::text::message_fields::must_not_switch_part;

/// The text of the parts, a line break between two of them.
///
/// The line break is that of the servers which hand templates one text: vLLM joins parts so
/// (`vllm/entrypoints/chat_utils.py`, `_parse_chat_message_content_parts`), and so does llama.cpp
/// (`common/chat.cpp`, `common_chat_msg::to_json_oaicompat`).
///
/// # Errors
///
/// - a part is no object, has no type, or is of another type than `text`
/// - a part says whether it is learned
pub(in crate::text) fn joined(parts: &[Value], field: &str) -> Result<String, DataError> {
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
        must_not_switch_part(part, &field)?;
        match text_field(part, &field, "type", NEEDED)? {
            "text" => Ok(text_field(part, &field, "text", NEEDED)?),
            kind => Err(FormatError::NoTextPart {
                field,
                kind: kind.to_owned(),
            }
            .into()),
        }
    });
    Ok(texts.collect::<Result<Vec<&str>, DataError>>()?.join("\n"))
}
