//! Checks the formats that JSON Schema defines, in all drafts.
//!
//! The jsonschema crate checks a format only from the draft that introduced it, so it would not
//! check `uuid` in a draft 7 schema. Here all drafts check the same formats, with the rules of
//! draft 2020-12.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use jsonschema::{ValidationOptions, Validator};
use serde_json::{Value, json};

use super::Retriever;
use super::counted::Counted;

/// How a validator interprets `format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FormatRule {
    /// As an annotation, the default of the specification.
    #[default]
    Annotated,
    /// As a condition on strings, for the formats of [`CHECKED_FORMATS`].
    Asserted,
}

/// The formats that are checked if formats are asserted.
pub const CHECKED_FORMATS: [&str; 17] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// One check per format, compiled under draft 2020-12, which defines all of them.
static CHECKS: LazyLock<Vec<(&'static str, Arc<Validator>)>> = LazyLock::new(|| {
    let check = |name: &&'static str| {
        let options = jsonschema::draft202012::options().should_validate_formats(true);
        let validator = options.build(&json!({"format": *name})).ok()?;
        Some((*name, Arc::new(validator)))
    };
    CHECKED_FORMATS.iter().filter_map(check).collect()
});

/// Returns options that check every format of [`CHECKED_FORMATS`].
pub(super) fn with_asserted_formats(
    options: ValidationOptions<'static, Retriever, Counted>,
) -> ValidationOptions<'static, Retriever, Counted> {
    let options = options.should_validate_formats(true);
    CHECKS.iter().fold(options, |options, (name, check)| {
        let check = Arc::clone(check);
        options.with_format(*name, move |text: &str| check.is_valid(&Value::from(text)))
    })
}

/// Returns the formats in a schema that are checked if formats are asserted, in alphabetical order.
pub fn checked_formats(schema: &Value) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    collect(schema, &mut names);
    names.retain(|name| CHECKED_FORMATS.contains(name));
    names
}

/// Returns the formats in a schema that are never checked, in alphabetical order.
pub fn unchecked_formats(schema: &Value) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    collect(schema, &mut names);
    names.retain(|name| !CHECKED_FORMATS.contains(name));
    names
}

/// Returns the values of `format` in a schema, outside the values of data keywords.
fn collect<'s>(schema: &'s Value, names: &mut BTreeSet<&'s str>) {
    const DATA: [&str; 4] = ["const", "default", "enum", "examples"];
    const NAMED: [&str; 5] = [
        "properties",
        "patternProperties",
        "$defs",
        "definitions",
        "dependentSchemas",
    ];
    let mut pending = vec![schema];
    while let Some(schema) = pending.pop() {
        match schema {
            Value::Array(schemas) => pending.extend(schemas),
            Value::Object(keywords) => {
                names.extend(keywords.get("format").and_then(Value::as_str));
                for (keyword, value) in keywords {
                    match value {
                        // The keys are names, for example of a property called `default`.
                        Value::Object(schemas_by_name) if NAMED.contains(&keyword.as_str()) => {
                            pending.extend(schemas_by_name.values());
                        }
                        _ if DATA.contains(&keyword.as_str()) => {}
                        value => pending.push(value),
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{BoundedValidator, Verdict};
    use super::*;

    #[test]
    fn every_checked_format_has_a_check() {
        assert_eq!(CHECKS.len(), CHECKED_FORMATS.len());
        let wrong = "\u{0} [ { %zz \\";
        for (name, check) in CHECKS.iter() {
            assert!(!check.is_valid(&json!(wrong)), "{name} accepts anything");
            assert!(check.is_valid(&json!(7)), "{name} must ignore numbers");
        }
    }

    #[test]
    fn formats_are_asserted_in_every_draft_or_in_none() {
        let cases = [
            ("date", "2026-08-02", "20 July 2026"),
            ("date", "2024-02-29", "2026-02-29"),
            ("date", "2026-08-02", "2026-08-2"),
            ("time", "10:05:00Z", "10:05"),
            ("date-time", "2026-08-02T10:05:00+02:00", "2026-08-02 10:05"),
            ("duration", "P1DT2H", "1 day"),
            ("email", "ada@example.org", "ada at example.org"),
            ("hostname", "example.org", "-example-.org"),
            ("uuid", "0f8fad5b-d9cb-469f-a165-70867728950e", "0f8fad5b"),
            ("ipv4", "192.0.2.1", "192.0.2.256"),
            ("ipv6", "2001:db8::1", "2001:db8:::1"),
            ("uri", "https://example.org/a", "/a"),
            ("uri-reference", "/a?b#c", "\\a"),
            ("uri-template", "/a/{b}", "/a/{b"),
            ("iri", "https://example.org/ä", "ä"),
            ("json-pointer", "/a/~0b", "a"),
            ("relative-json-pointer", "1/a", "/a"),
            ("regex", "^a+$", "(a"),
        ];
        let drafts = [
            "http://json-schema.org/draft-04/schema#",
            "http://json-schema.org/draft-06/schema#",
            "http://json-schema.org/draft-07/schema#",
            "https://json-schema.org/draft/2019-09/schema",
            "https://json-schema.org/draft/2020-12/schema",
        ];
        for (format, right, wrong) in cases {
            for draft in drafts {
                let schema = json!({"$schema": draft, "properties": {"a": {"format": format}}});
                let asserted = BoundedValidator::asserting_formats(&schema).expect("a schema");
                let of = |text: &str| asserted.verdict(&json!({"a": text}));
                assert_eq!(of(right), Verdict::Valid, "{format} {right} {draft}");
                assert_eq!(of(wrong), Verdict::Invalid, "{format} {wrong} {draft}");
                let faults = asserted.faults(&json!({"a": wrong}));
                assert_eq!(faults[0].rule, "format");
                assert_eq!(faults[0].place.to_string(), "/a");
                let annotated = BoundedValidator::new(&schema).expect("a schema");
                assert_eq!(annotated.verdict(&json!({"a": wrong})), Verdict::Valid);
            }
        }
    }

    #[test]
    fn a_memoized_definition_asserts_its_formats() {
        // Enough paths lead to the same location that the memoized validator runs.
        let mut definitions = json!({"d0": {"type": "string", "format": "date"}});
        for i in 1..=24 {
            let previous = json!({"$ref": format!("#/$defs/d{}", i - 1)});
            definitions[format!("d{i}")] = json!({"allOf": [previous, previous]});
        }
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d24"});
        let Ok(validator) = BoundedValidator::asserting_formats(&schema) else {
            return;
        };
        assert_eq!(validator.verdict(&json!("2026-08-02")), Verdict::Valid);
        assert_eq!(validator.verdict(&json!("2 August")), Verdict::Invalid);
    }

    #[test]
    fn unchecked_formats_are_named_and_data_is_ignored() {
        let schema = json!({
            "properties": {
                "format": {"type": "string", "format": "int32"},
                "default": {"format": "date"},
                "a": {"enum": [{"format": "no format"}], "items": {"anyOf": [{"format": "phone"}]}},
            },
            "default": {"format": "none"},
        });
        let unchecked: Vec<&str> = unchecked_formats(&schema).into_iter().collect();
        assert_eq!(unchecked, ["int32", "phone"]);
        assert!(checked_formats(&schema).contains("date"));
        assert!(checked_formats(&json!({"format": "phone"})).is_empty());
    }
}
