//! Checks whether, and by which rule, a value fails a JSON Schema.
//!
//! What of JSON Schema is asserted, and in how much work, says [`tooltune_rows::json_schema`].

use serde::Serialize;
use serde_json::Value;
use tooltune_rows::json_schema::strict_keys;
use tooltune_rows::json_schema::{BoundedValidator, Verdict};

use super::error::ScoreError;

/// Which form of the schema a value is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaMode {
    /// The schema as it is written.
    Schema,
    /// Every object that declares `properties` requires all of them and allows no others,
    /// unless it says something about additional, pattern or unevaluated properties.
    StrictKeys,
}

/// One rule that a value broke.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The JSON Schema keyword, such as `required`; `json` if the text did not parse at all.
    pub rule: String,
    /// JSON pointer to the offending value; empty for the root.
    pub path: String,
    /// What the rule wanted; the value itself is not repeated.
    pub message: String,
}

/// A compiled schema.
#[derive(Debug)]
pub struct SchemaChecker {
    validator: BoundedValidator,
}

impl SchemaChecker {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// - the schema is neither an object nor a boolean, or breaks its draft's meta-schema
    /// - a reference leads nowhere or outside the schema, or a pattern is no regular expression
    /// - its branches multiply so that validating would not come to an end
    pub fn new(schema: &Value, mode: SchemaMode) -> Result<Self, ScoreError> {
        let schema = match mode {
            SchemaMode::Schema => schema.clone(),
            SchemaMode::StrictKeys => strict_keys(schema),
        };
        match BoundedValidator::new(&schema) {
            Ok(validator) => Ok(Self { validator }),
            Err(fault) if fault.pointer.is_empty() => Err(ScoreError::Schema {
                reason: fault.reason,
            }),
            Err(fault) => Err(ScoreError::Schema {
                reason: format!("at {}: {}", fault.pointer, fault.reason),
            }),
        }
    }

    /// Whether the value is valid under the schema; not if finding out takes more than
    /// [`VALIDATION_STEPS`](tooltune_rows::budgets::VALIDATION_STEPS).
    pub fn is_valid(&self, value: &Value) -> bool {
        self.validator.verdict(value) == Verdict::Valid
    }

    /// Lists the rules that the value breaks, in the order in which they are met: at most
    /// [`LISTED_FAULTS`](tooltune_rows::budgets::LISTED_FAULTS), and the first of each rule. One of rule
    /// `budget` says that finding them out takes more work than a value may.
    pub fn errors(&self, value: &Value) -> Vec<Violation> {
        let faults = self.validator.faults(value).into_iter();
        let violations = faults.map(|fault| Violation {
            rule: fault.rule,
            path: fault.place.to_string(),
            message: fault.masked,
        });
        violations.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn is_valid(schema: &Value, value: &Value) -> bool {
        SchemaChecker::new(schema, SchemaMode::Schema)
            .expect("a schema")
            .is_valid(value)
    }

    fn ticket() -> Value {
        json!({
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "priority": {"type": "integer", "minimum": 1},
                "labels": {"type": "array", "items": {"enum": ["bug", "docs"]}},
            },
            "required": ["title"],
        })
    }

    #[test]
    fn types_are_real_and_a_whole_number_is_an_integer() {
        for (value, expected) in [
            (json!({"title": "x", "priority": 2}), true),
            (json!({"title": "x", "priority": 2.0}), true),
            (json!({"title": "x", "priority": 2.5}), false),
            (json!({"title": "x", "priority": "2"}), false),
            (json!({"title": "x", "priority": true}), false),
            (json!({"title": 7}), false),
            (json!(null), false),
        ] {
            assert_eq!(is_valid(&ticket(), &value), expected, "{value}");
        }
    }

    #[test]
    fn strict_keys_asks_for_exactly_the_declared_keys() {
        let strict = SchemaChecker::new(&ticket(), SchemaMode::StrictKeys).expect("a schema");
        let full = json!({"title": "x", "priority": 1, "labels": []});
        assert!(strict.is_valid(&full));
        assert!(!strict.is_valid(&json!({"title": "x"})));
        let mut wider = full;
        wider["owner"] = json!("me");
        assert!(is_valid(&ticket(), &wider));
        assert!(!strict.is_valid(&wider));
    }

    #[test]
    fn every_broken_rule_is_listed_with_its_place() {
        let checker = SchemaChecker::new(&ticket(), SchemaMode::StrictKeys).expect("a schema");
        let value = json!({"priority": 0, "labels": ["bug", "ui"], "owner": "me"});
        let found = checker.errors(&value);
        let mut rules: Vec<(&str, &str)> = found
            .iter()
            .map(|one| (one.rule.as_str(), one.path.as_str()))
            .collect();
        rules.sort_unstable();
        let expected = [
            ("additionalProperties", ""),
            ("enum", "/labels/1"),
            ("minimum", "/priority"),
            ("required", ""),
        ];
        assert_eq!(rules, expected);
        assert!(
            checker
                .errors(&json!({"title": "x", "priority": 1, "labels": []}))
                .is_empty()
        );
    }

    #[test]
    fn formats_and_content_keywords_are_not_asserted() {
        assert!(is_valid(&json!({"format": "date"}), &json!("yesterday")));
        let draft_7 = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "format": "email",
            "contentEncoding": "base64",
            "contentMediaType": "application/json",
        });
        assert!(is_valid(&draft_7, &json!("not any of these")));
    }

    #[test]
    fn the_named_draft_is_used_and_an_unknown_one_counts_as_2020_12() {
        let exclusive =
            |draft: &str| json!({"$schema": draft, "minimum": 3, "exclusiveMinimum": true});
        let draft_4 = exclusive("http://json-schema.org/draft-04/schema#");
        assert!(!is_valid(&draft_4, &json!(3)));
        assert!(
            SchemaChecker::new(
                &exclusive("https://json-schema.org/draft/2020-12/schema"),
                SchemaMode::Schema
            )
            .is_err()
        );
        let own = json!({"$schema": "https://example.org/ours", "prefixItems": [{"type": "null"}]});
        assert!(!is_valid(&own, &json!([1])));
    }

    #[test]
    fn an_unusable_schema_is_an_error_that_says_where() {
        for (schema, part) in [
            (
                json!({"properties": {"a": {"type": "text"}}}),
                "/properties/a/type",
            ),
            (json!({"$ref": "#/$defs/none"}), "none"),
            (
                json!({"$ref": "https://example.org/other.json"}),
                "example.org",
            ),
            (json!({"pattern": "(["}), "pattern"),
            (json!("object"), "object"),
        ] {
            let error = SchemaChecker::new(&schema, SchemaMode::Schema).expect_err("unusable");
            assert!(error.to_string().contains(part), "{schema}: {error}");
        }
    }
}
