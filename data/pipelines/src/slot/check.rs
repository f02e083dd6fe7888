//! Stage 2, SLOT's first validation: drops malformed and duplicate pairs.

use std::collections::HashSet;

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::json_schema::{BoundedValidator, declared_keys};

use super::rows::{CheckedRow, Demonstration, WrittenPair};
use crate::prompts::digest;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::StageResult;

/// Checks all pairs in order; duplicates of an earlier row are dropped.
pub(super) fn check(
    pairs: Vec<WrittenPair>,
    demonstrations: &[Demonstration],
) -> StageResult<CheckedRow> {
    let demonstration_texts = demonstrations
        .iter()
        .map(|demonstration_texts| text_key(&demonstration_texts.input_text));
    let mut seen = SeenRows {
        shown: demonstration_texts.collect(),
        texts: HashSet::new(),
        golds: HashSet::new(),
    };
    StageResult::from_results(pairs.into_iter().map(|pair| {
        let id = pair.id.clone();
        let row = validate(pair).and_then(|row| seen.check_new(row));
        row.map_err(|PairFault { reason, detail }| Dropped::new(&id, reason, excerpt(&detail)))
    }))
}

/// Why a pair is dropped.
struct PairFault {
    reason: &'static str,
    detail: String,
}

fn drop_with<T>(reason: &'static str, detail: impl ToString) -> Result<T, PairFault> {
    let detail = detail.to_string();
    Err(PairFault { reason, detail })
}

/// Converts a pair to a row, if its text, schema and gold are valid.
fn validate(pair: WrittenPair) -> Result<CheckedRow, PairFault> {
    let input_text = match pair.input_text {
        Value::String(text) if !text.trim().is_empty() => text.trim().to_owned(),
        other => return drop_with("the pair has no text", other),
    };
    let json_schema = parse_written(pair.json_schema);
    if !json_schema.is_object() {
        return drop_with("the pair has no schema", json_schema);
    }
    let validator = match BoundedValidator::asserting_formats(&json_schema) {
        Ok(validator) => validator,
        Err(schema_error) => {
            let detail = format!("{}: {}", schema_error.pointer, schema_error.reason);
            return drop_with("the schema is not a usable JSON Schema", detail);
        }
    };
    let properties = json_schema.get("properties").and_then(Value::as_object);
    let has_properties = properties.is_some_and(|properties| !properties.is_empty());
    if json_schema.get("type").and_then(Value::as_str) != Some("object") || !has_properties {
        return drop_with(
            "the schema does not describe an object with properties",
            json_schema,
        );
    }
    let gold = parse_written(pair.gold);
    match &gold {
        Value::Object(fields) if !fields.is_empty() => {}
        other => return drop_with("the gold is not an object, or is empty", other),
    }
    if let Some(gold_fault) = validator.first_fault(&gold) {
        let detail = format!("{}: {}", gold_fault.place, gold_fault.reason);
        return match gold_fault.rule.as_str() {
            "format" => drop_with("the gold does not fit a format of the schema", detail),
            _ => drop_with("the gold does not fit the schema", detail),
        };
    }
    // Undeclared keys are rejected unless the schema allows them, because training would require
    // keys that the schema does not name.
    let closed = BoundedValidator::new(&declared_keys(&json_schema));
    if let Some(gold_fault) = closed.ok().and_then(|closed| closed.first_fault(&gold)) {
        let detail = format!("{}: {}", gold_fault.place, gold_fault.reason);
        return drop_with("the gold has keys that the schema does not declare", detail);
    }
    Ok(CheckedRow {
        id: pair.id,
        input_text,
        json_schema,
        gold,
        target: pair.target,
        temperature: pair.temperature,
    })
}

/// Parses a value that a model wrote as a JSON string.
fn parse_written(value: Value) -> Value {
    match &value {
        Value::String(text) => json::parse(text).unwrap_or(value),
        _ => value,
    }
}

/// Digests of earlier rows.
struct SeenRows {
    shown: HashSet<String>,
    texts: HashSet<String>,
    golds: HashSet<String>,
}

impl SeenRows {
    fn check_new(&mut self, row: CheckedRow) -> Result<CheckedRow, PairFault> {
        let text = text_key(&row.input_text);
        if self.shown.contains(&text) {
            return drop_with("the text is one of the demonstrations", row.input_text);
        }
        if self.texts.contains(&text) {
            return drop_with("same text as an earlier row", row.input_text);
        }
        let gold = digest(format!("{}\n{}", row.json_schema, row.gold).as_bytes());
        if self.golds.contains(&gold) {
            return drop_with("same schema and gold as an earlier row", row.gold);
        }
        self.texts.insert(text);
        self.golds.insert(gold);
        Ok(row)
    }
}

/// Key of a text, ignoring whitespace and case.
fn text_key(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    digest(words.join(" ").as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(input_text: Value, json_schema: Value, gold: Value) -> WrittenPair {
        WrittenPair {
            id: "a".to_owned(),
            input_text,
            json_schema,
            gold,
            target: None,
            temperature: None,
        }
    }

    #[test]
    fn each_invalid_pair_is_dropped_with_a_reason() {
        let schema = json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "at": {
                "type": "object", "properties": {"town": {"type": "string"}},
            }},
            "required": ["n"],
        });
        let valid_gold = json!({"n": 3, "at": {"town": "Bern"}});
        let text = json!("3 in Bern");
        let cases = [
            (pair(text.clone(), schema.clone(), valid_gold.clone()), None),
            (
                pair(json!("Two"), json!(schema.to_string()), json!("{\"n\": 2}")),
                None,
            ),
            (
                pair(json!(" "), schema.clone(), valid_gold.clone()),
                Some("no text"),
            ),
            (
                pair(Value::Null, schema.clone(), valid_gold.clone()),
                Some("no text"),
            ),
            (
                pair(text.clone(), json!("an object"), valid_gold.clone()),
                Some("no schema"),
            ),
            (
                pair(
                    text.clone(),
                    json!({"type": "number or so"}),
                    valid_gold.clone(),
                ),
                Some("not a usable JSON Schema"),
            ),
            (
                pair(
                    text.clone(),
                    json!({"type": "array", "items": {}}),
                    valid_gold.clone(),
                ),
                Some("not describe an object with properties"),
            ),
            (
                pair(
                    text.clone(),
                    json!({"type": "object", "properties": {"day": {"format": "date"}}}),
                    json!({"day": "20 July 2026"}),
                ),
                Some("not fit a format of the schema"),
            ),
            (
                pair(text.clone(), schema.clone(), json!([1])),
                Some("not an object"),
            ),
            (
                pair(text.clone(), schema.clone(), json!({})),
                Some("or is empty"),
            ),
            (
                pair(text.clone(), schema.clone(), json!({"n": "3"})),
                Some("does not fit"),
            ),
            (
                pair(text.clone(), schema.clone(), json!({"at": {}})),
                Some("does not fit"),
            ),
            (
                pair(
                    text.clone(),
                    schema.clone(),
                    json!({"n": 3, "at": {"city": "Bern"}}),
                ),
                Some("does not declare"),
            ),
            (
                pair(json!("3  IN bern"), schema.clone(), json!({"n": 4})),
                Some("same text as an earlier row"),
            ),
            (
                pair(json!("Bern: 3"), schema.clone(), valid_gold.clone()),
                Some("same schema and gold as an earlier row"),
            ),
            (
                pair(json!("shown"), schema.clone(), json!({"n": 5})),
                Some("demonstrations"),
            ),
        ];
        let demonstrations = [Demonstration {
            input_text: "Shown".to_owned(),
            shown: String::new(),
        }];
        let n_kept = cases.iter().filter(|(_, reason)| reason.is_none()).count();
        let (pairs, reasons): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        let result = check(pairs, &demonstrations);
        assert_eq!(result.kept.len(), n_kept);
        let expected: Vec<&str> = reasons.into_iter().flatten().collect();
        assert_eq!(result.dropped.len(), expected.len());
        for (dropped, expected) in result.dropped.iter().zip(expected) {
            assert!(dropped.reason.contains(expected), "{dropped:?} {expected}");
        }
        assert_eq!(result.kept[1].gold, json!({"n": 2}));
    }
}
