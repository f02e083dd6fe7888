//! Stage 3, SLOT's second validation: a model decides whether the text supports the gold value.

use serde_json::{Value, json};
use tooltune_json::{Style, dumps};

use super::rows::CheckedRow;
use super::{JUDGE, SlotOptions};
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::generator::Prompt;
use crate::prompts::Prompts;
use crate::reply;
use crate::report::Dropped;
use crate::run::{Run, StageResult};

/// The drop reason.
pub(super) const UNSUPPORTED: &str = "the text does not support the gold";

/// A judge's verdict on a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdict {
    is_supported: bool,
    /// Facts that the judge does not find in the text.
    unsupported: String,
}

/// One question per row.
pub(super) fn questions(
    options: &SlotOptions,
    rows: &[CheckedRow],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let schema = json!({
        "type": "object",
        "properties": {
            "unsupported": {"type": "array", "items": {"type": "string"}},
            "supported": {"type": "boolean"},
        },
        "required": ["unsupported", "supported"],
        "additionalProperties": false,
    });
    let question = |row: &CheckedRow| {
        let gold = dumps(&row.gold, Style::Python);
        let values = [
            ("input_text", row.input_text.as_str()),
            ("gold", gold.as_str()),
        ];
        Ok(ItemPrompt {
            id: row.id.clone(),
            prompt: Prompt {
                text: prompts.render(JUDGE, &values)?,
                schema: Some(schema.clone()),
                max_tokens: options.verdict_tokens,
                temperature: 0.0,
                seed: options.seed,
            },
        })
    };
    rows.iter().map(question).collect()
}

/// Keeps the rows that the judge accepts.
pub(super) fn judge(
    run: &mut Run<'_>,
    rows: Vec<CheckedRow>,
    item_prompts: &[ItemPrompt],
) -> Result<StageResult<CheckedRow>, PipelineError> {
    let verdicts = run.ask(JUDGE, item_prompts, &|_, text| parse_verdict(text))?;
    Ok(StageResult::from_results(
        rows.into_iter().zip(verdicts).map(|(row, verdict)| {
            let verdict = verdict?;
            if verdict.is_supported {
                return Ok(row);
            }
            Err(Dropped::new(&row.id, UNSUPPORTED, verdict.unsupported))
        }),
    ))
}

/// Parses a verdict in the requested format, or in a format that the paper's prompt produces.
fn parse_verdict(text: &str) -> Result<Verdict, String> {
    let answer = match reply::json_value(text) {
        Ok(Value::Bool(is_supported)) => {
            return Ok(Verdict {
                is_supported,
                unsupported: String::new(),
            });
        }
        Ok(value) => {
            let unsupported = match value.get("unsupported") {
                Some(Value::Array(items)) => {
                    let texts: Vec<String> = items.iter().map(value_text).collect();
                    reply::excerpt(&texts.join("; "))
                }
                _ => String::new(),
            };
            let supported = value.get("supported");
            let supported = supported.ok_or("the reply has no \"supported\"")?;
            return reply::parse_bool(supported)
                .map(|is_supported| Verdict {
                    is_supported,
                    unsupported,
                })
                .ok_or_else(|| format!("\"supported\" is {supported}; say true or false"));
        }
        Err(reason) => reason,
    };
    let tagged = text.rsplit_once("<validity>").map(|(_, tail)| tail);
    let tagged = tagged.map(|tail| tail.split("</validity>").next().unwrap_or(tail));
    let supported = Value::from(tagged.unwrap_or(text));
    let is_supported = reply::parse_bool(&supported).ok_or(answer)?;
    Ok(Verdict {
        is_supported,
        unsupported: String::new(),
    })
}

fn value_text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_parsed_from_every_format_or_refused() {
        for (text, expected) in [
            (r#"{"unsupported": [], "supported": true}"#, Some(true)),
            (
                r#"{"unsupported": ["age"], "supported": false}"#,
                Some(false),
            ),
            ("```json\n{\"supported\": \"False\"}\n```", Some(false)),
            ("The year is there. <validity>True</validity>", Some(true)),
            ("<validity> False </validity>", Some(false)),
            ("True.", Some(true)),
            ("false", Some(false)),
            ("It may be true or false", None),
            (r#"{"supported": "in part"}"#, None),
            (r#"{"verdict": true}"#, None),
            ("", None),
        ] {
            let is_supported = parse_verdict(text).ok().map(|verdict| verdict.is_supported);
            assert_eq!(is_supported, expected, "{text}");
        }
        let is_supported =
            parse_verdict(r#"{"unsupported": ["age", "town"], "supported": false}"#).unwrap();
        assert_eq!(is_supported.unsupported, "age; town");
    }
}
