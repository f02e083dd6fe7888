//! The third stage, SLOT's second validation: a model says whether the text supports the gold.

use serde_json::{Value, json};
use tooltune_rows::json::{Style, dumps};

use super::rows::CheckedRow;
use super::{JUDGE, SlotOptions};
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::generator::Prompt;
use crate::prompts::Prompts;
use crate::reply;
use crate::report::Dropped;
use crate::run::{Made, Run};

/// Why a row is dropped.
pub(super) const UNSUPPORTED: &str = "the text does not support the gold";

/// What a judge says of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdict {
    is_supported: bool,
    /// What the judge does not find in the text.
    unsupported: String,
}

/// A question for each row.
pub(super) fn questions(
    options: &SlotOptions,
    rows: &[CheckedRow],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
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
        Ok(Asked {
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

/// Keeps the rows that the judge finds supported.
pub(super) fn judge(
    run: &mut Run<'_>,
    rows: Vec<CheckedRow>,
    asked: &[Asked],
) -> Result<Made<CheckedRow>, PipelineError> {
    let verdicts = run.ask(JUDGE, asked, &|_, text| verdict(text))?;
    Ok(Made::of(rows.into_iter().zip(verdicts).map(
        |(row, verdict)| {
            let verdict = verdict?;
            if verdict.is_supported {
                return Ok(row);
            }
            Err(Dropped::new(&row.id, UNSUPPORTED, verdict.unsupported))
        },
    )))
}

/// Reads a verdict as it was asked for, and in the forms that the paper's prompt leads to.
fn verdict(text: &str) -> Result<Verdict, String> {
    let words = match reply::json_value(text) {
        Ok(Value::Bool(is_supported)) => {
            return Ok(Verdict {
                is_supported,
                unsupported: String::new(),
            });
        }
        Ok(value) => {
            let unsupported = match value.get("unsupported") {
                Some(Value::Array(items)) => {
                    let shown: Vec<String> = items.iter().map(shown).collect();
                    reply::excerpt(&shown.join("; "))
                }
                _ => String::new(),
            };
            let said = value.get("supported");
            let said = said.ok_or("the reply has no \"supported\"")?;
            return reply::truth(said)
                .map(|is_supported| Verdict {
                    is_supported,
                    unsupported,
                })
                .ok_or_else(|| format!("\"supported\" is {said}; say true or false"));
        }
        Err(reason) => reason,
    };
    let tagged = text.rsplit_once("<validity>").map(|(_, rest)| rest);
    let tagged = tagged.map(|rest| rest.split("</validity>").next().unwrap_or(rest));
    let said = Value::from(tagged.unwrap_or(text));
    let is_supported = reply::truth(&said).ok_or(words)?;
    Ok(Verdict {
        is_supported,
        unsupported: String::new(),
    })
}

fn shown(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_in_every_form_or_refused() {
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
            let found = verdict(text).ok().map(|verdict| verdict.is_supported);
            assert_eq!(found, expected, "{text}");
        }
        let found = verdict(r#"{"unsupported": ["age", "town"], "supported": false}"#).unwrap();
        assert_eq!(found.unsupported, "age; town");
    }
}
