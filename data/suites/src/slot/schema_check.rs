//! Checks a value against a JSON Schema and lists the broken rules.
//!
//! [`tooltune_json::json_schema`] defines the supported keywords and the work limit.

use serde::Serialize;
use serde_json::Value;
use tooltune_json::json_schema::strict_keys;
use tooltune_json::json_schema::{BoundedValidator, Verdict};

use super::error::ScoreError;

/// The variant of the schema that a value is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaMode {
    /// The schema as written.
    Schema,
    /// Every object that declares `properties` requires all of them and allows no others. This does
    /// not apply to objects that specify additional, pattern or unevaluated properties.
    StrictKeys,
    /// The schema as written, with `format` as a constraint on strings.
    Formats,
}

/// A rule that a value breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The JSON Schema keyword, such as `required`; `json` if the text did not parse.
    pub rule: String,
    /// JSON pointer to the offending value; empty for the root.
    pub path: String,
    /// The requirement of the rule, without the value itself.
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
    /// - the schema is neither an object nor a boolean, or violates its draft's meta-schema
    /// - a reference is unresolvable or external, or a pattern is not a regular expression
    /// - its branches multiply, so that validation would not terminate
    pub fn new(schema: &Value, mode: SchemaMode) -> Result<Self, ScoreError> {
        let compiled = match mode {
            SchemaMode::Schema => BoundedValidator::new(schema),
            SchemaMode::StrictKeys => BoundedValidator::new(&strict_keys(schema)),
            SchemaMode::Formats => BoundedValidator::asserting_formats(schema),
        };
        match compiled {
            Ok(validator) => Ok(Self { validator }),
            Err(fault) if fault.pointer.is_empty() => Err(ScoreError::Schema {
                reason: fault.reason,
            }),
            Err(fault) => Err(ScoreError::Schema {
                reason: format!("at {}: {}", fault.pointer, fault.reason),
            }),
        }
    }

    /// Whether the value is valid under the schema. False if validation takes more than
    /// [`VALIDATION_STEPS`](tooltune_json::budgets::VALIDATION_STEPS).
    pub fn is_valid(&self, value: &Value) -> bool {
        self.validator.verdict(value) == Verdict::Valid
    }

    /// Lists the rules that the value breaks, in validation order. The list contains at most
    /// [`LISTED_FAULTS`](tooltune_json::budgets::LISTED_FAULTS) violations, and also the first
    /// violation of each further rule. A violation of the rule `budget` means that validation
    /// exceeds the work limit.
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
    fn types_are_checked_and_a_whole_number_is_an_integer() {
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
    fn strict_keys_requires_exactly_the_declared_keys() {
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
    fn every_violation_is_listed_with_its_path() {
        let checker = SchemaChecker::new(&ticket(), SchemaMode::StrictKeys).expect("a schema");
        let value = json!({"priority": 0, "labels": ["bug", "ui"], "owner": "me"});
        let violations = checker.errors(&value);
        let mut rules: Vec<(&str, &str)> = violations
            .iter()
            .map(|violation| (violation.rule.as_str(), violation.path.as_str()))
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
    fn the_declared_draft_is_used_and_an_unknown_one_means_2020_12() {
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
        let unknown_draft =
            json!({"$schema": "https://example.org/ours", "prefixItems": [{"type": "null"}]});
        assert!(!is_valid(&unknown_draft, &json!([1])));
    }

    #[test]
    fn an_unusable_schema_is_an_error_with_its_path() {
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
