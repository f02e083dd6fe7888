//! The second stage, SLOT's first validation: pairs whose form is wrong are dropped, and those that
//! stand there already.

use std::collections::HashSet;

use serde_json::Value;
use tooltune_rows::json;
use tooltune_rows::json_schema::{BoundedValidator, declared_keys};

use super::rows::{CheckedRow, Demonstration, WrittenPair};
use crate::prompts::digest;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::Made;

/// Checks all pairs in their order: the first of two that are alike is kept.
pub(super) fn check(pairs: Vec<WrittenPair>, demonstrations: &[Demonstration]) -> Made<CheckedRow> {
    let shown = demonstrations
        .iter()
        .map(|shown| text_key(&shown.input_text));
    let mut seen = Seen {
        shown: shown.collect(),
        texts: HashSet::new(),
        golds: HashSet::new(),
    };
    Made::of(pairs.into_iter().map(|pair| {
        let id = pair.id.clone();
        let row = formed(pair).and_then(|row| seen.is_new(row));
        row.map_err(|Fault { reason, detail }| Dropped::new(&id, reason, excerpt(&detail)))
    }))
}

/// Why a pair is dropped.
struct Fault {
    reason: &'static str,
    detail: String,
}

fn fault<T>(reason: &'static str, detail: impl ToString) -> Result<T, Fault> {
    let detail = detail.to_string();
    Err(Fault { reason, detail })
}

/// The pair as a row, if its text, schema and gold are what they should be.
fn formed(pair: WrittenPair) -> Result<CheckedRow, Fault> {
    let input_text = match pair.input_text {
        Value::String(text) if !text.trim().is_empty() => text.trim().to_owned(),
        other => return fault("the pair has no text", other),
    };
    let json_schema = parsed(pair.json_schema);
    if !json_schema.is_object() {
        return fault("the pair has no schema", json_schema);
    }
    let validator = match BoundedValidator::new(&json_schema) {
        Ok(validator) => validator,
        Err(bad) => {
            let detail = format!("{}: {}", bad.pointer, bad.reason);
            return fault("the schema is no JSON Schema that can be used", detail);
        }
    };
    let properties = json_schema.get("properties").and_then(Value::as_object);
    let has_properties = properties.is_some_and(|properties| !properties.is_empty());
    if json_schema.get("type").and_then(Value::as_str) != Some("object") || !has_properties {
        return fault(
            "the schema describes no object with properties",
            json_schema,
        );
    }
    let gold = parsed(pair.gold);
    match &gold {
        Value::Object(fields) if !fields.is_empty() => {}
        other => return fault("the gold is no object, or an empty one", other),
    }
    if let Some(broken) = validator.first_fault(&gold) {
        let detail = format!("{}: {}", broken.place, broken.reason);
        return fault("the gold does not fit the schema", detail);
    }
    // Closed where the schema does not say otherwise: what training would ask for without a name.
    let closed = BoundedValidator::new(&declared_keys(&json_schema));
    if let Some(broken) = closed.ok().and_then(|closed| closed.first_fault(&gold)) {
        let detail = format!("{}: {}", broken.place, broken.reason);
        return fault("the gold has keys that the schema does not declare", detail);
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

/// A value that a model wrote as a text of JSON is that JSON.
fn parsed(value: Value) -> Value {
    match &value {
        Value::String(text) => json::parse(text).unwrap_or(value),
        _ => value,
    }
}

/// What stands there already, by digests.
struct Seen {
    shown: HashSet<String>,
    texts: HashSet<String>,
    golds: HashSet<String>,
}

impl Seen {
    fn is_new(&mut self, row: CheckedRow) -> Result<CheckedRow, Fault> {
        let text = text_key(&row.input_text);
        if self.shown.contains(&text) {
            return fault("the text is one of the demonstrations", row.input_text);
        }
        if self.texts.contains(&text) {
            return fault("the text stands in an earlier row", row.input_text);
        }
        let gold = digest(format!("{}\n{}", row.json_schema, row.gold).as_bytes());
        if self.golds.contains(&gold) {
            return fault("schema and gold stand in an earlier row", row.gold);
        }
        self.texts.insert(text);
        self.golds.insert(gold);
        Ok(row)
    }
}

/// Texts that differ in blanks and capitals alone are alike.
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
    fn each_fault_of_a_pair_has_its_reason() {
        let schema = json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}, "at": {
                "type": "object", "properties": {"town": {"type": "string"}},
            }},
            "required": ["n"],
        });
        let good = json!({"n": 3, "at": {"town": "Bern"}});
        let text = json!("3 in Bern");
        let cases = [
            (pair(text.clone(), schema.clone(), good.clone()), None),
            (
                pair(json!("Two"), json!(schema.to_string()), json!("{\"n\": 2}")),
                None,
            ),
            (
                pair(json!(" "), schema.clone(), good.clone()),
                Some("no text"),
            ),
            (
                pair(Value::Null, schema.clone(), good.clone()),
                Some("no text"),
            ),
            (
                pair(text.clone(), json!("an object"), good.clone()),
                Some("no schema"),
            ),
            (
                pair(text.clone(), json!({"type": "number or so"}), good.clone()),
                Some("no JSON Schema"),
            ),
            (
                pair(
                    text.clone(),
                    json!({"type": "array", "items": {}}),
                    good.clone(),
                ),
                Some("no object with properties"),
            ),
            (
                pair(text.clone(), schema.clone(), json!([1])),
                Some("no object"),
            ),
            (
                pair(text.clone(), schema.clone(), json!({})),
                Some("an empty one"),
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
                Some("the text stands in an earlier row"),
            ),
            (
                pair(json!("Bern: 3"), schema.clone(), good.clone()),
                Some("schema and gold stand in an earlier row"),
            ),
            (
                pair(json!("shown"), schema.clone(), json!({"n": 5})),
                Some("demonstrations"),
            ),
        ];
        let shown = [Demonstration {
            input_text: "Shown".to_owned(),
            shown: String::new(),
        }];
        let n_kept = cases.iter().filter(|(_, reason)| reason.is_none()).count();
        let (pairs, reasons): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        let made = check(pairs, &shown);
        assert_eq!(made.kept.len(), n_kept);
        let expected: Vec<&str> = reasons.into_iter().flatten().collect();
        assert_eq!(made.dropped.len(), expected.len());
        for (dropped, expected) in made.dropped.iter().zip(expected) {
            assert!(dropped.reason.contains(expected), "{dropped:?} {expected}");
        }
        assert_eq!(made.kept[1].gold, json!({"n": 2}));
    }
}
