//! Reads one YAML 1.2 document as a JSON value.
//!
//! Plain scalars follow the core schema: `yes` and `no` are strings, `007` is the integer 7, `0o17`
//! is 15, `1e3` is a float. The source text of a plain scalar is kept, because a specification may
//! declare elsewhere that the value is a string (`default: 007` of a `type: string`). Values are
//! counted while they are built, including aliases, so a short file cannot fill the memory.
//! Merge keys (`<<`) are supported, although they belong to YAML 1.1, because specifications use
//! them.

mod error;
mod reader;
mod scalar;

use std::collections::HashMap;

use serde_json::Value;

pub use error::YamlError;

/// A document, with the source text of the scalars that JSON writes differently.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct YamlDocument {
    /// The value.
    pub value: Value,
    /// The source text of plain non-string scalars that JSON writes differently, such as `007`, by
    /// JSON pointer.
    pub source_texts: HashMap<String, String>,
}

/// Reads a string that contains one document.
///
/// # Errors
///
/// - the text is not YAML, or contains more than one document
/// - a mapping has a duplicate key, or a key that is a list or a mapping
/// - a tag is outside the core schema, or an anchor contains itself
/// - a number is not valid JSON, such as `.inf`
/// - the document exceeds the limit for values, for text repeated by aliases, or for levels
pub fn parse(text: &str) -> Result<Value, YamlError> {
    reader::read(text).map(|document| document.value)
}

/// Like [`parse`], and also returns the source text of scalars.
///
/// # Errors
///
/// - as [`parse`]
pub fn parse_document(text: &str) -> Result<YamlDocument, YamlError> {
    reader::read(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reason(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn plain_scalars_follow_the_core_schema_of_yaml_1_2() {
        for (text, expected) in [
            ("yes", json!("yes")),
            ("No", json!("No")),
            ("on", json!("on")),
            ("true", json!(true)),
            ("FALSE", json!(false)),
            ("tRue", json!("tRue")),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("", json!(null)),
            ("007", json!(7)),
            ("-7", json!(-7)),
            ("+7", json!(7)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("0b11", json!("0b11")),
            ("1_000", json!("1_000")),
            ("12:30:45", json!("12:30:45")),
            ("2026-01-31", json!("2026-01-31")),
            ("1e3", json!(1000.0)),
            ("1.10", json!(1.1)),
            (".5", json!(0.5)),
            ("5.", json!(5.0)),
            ("1.2.3", json!("1.2.3")),
            ("18446744073709551615", json!(u64::MAX)),
            ("'007'", json!("007")),
            ("\"true\"", json!("true")),
            ("!!str 007", json!("007")),
            ("!!int '7'", json!(7)),
            ("!!float 7", json!(7.0)),
            ("=", json!("=")),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        // As in JSON, integers beyond 64 bits are stored as floats.
        assert_eq!(
            parse("18446744073709551616"),
            Ok(json!(18_446_744_073_709_551_616.0))
        );
    }

    #[test]
    fn collections_aliases_and_merge_keys_become_json() {
        let text = "
# A comment.
base: &base {a: 1, b: [x, y]}
copy: *base
merged:
  <<: *base
  b: 2
list:
  - <<: [{c: 3}, {c: 4, d: 5}]
  - |
    two
    lines
200: ok
null: none
'<<': quoted
";
        let value = parse(text).expect("reads");
        assert_eq!(
            value,
            json!({
                "base": {"a": 1, "b": ["x", "y"]},
                "copy": {"a": 1, "b": ["x", "y"]},
                "merged": {"b": 2, "a": 1},
                "list": [{"c": 3, "d": 5}, "two\nlines\n"],
                "200": "ok", "null": "none", "<<": "quoted",
            })
        );
        assert_eq!(parse("# nothing\n"), Ok(Value::Null));
    }

    #[test]
    fn the_source_of_a_scalar_is_kept_if_json_writes_it_differently() {
        let text = "a/b: [007, 7, 1e3, \"007\", true, TRUE]\nc: &c {d: 1.10}\ne: *c\n";
        let source_texts = parse_document(text).expect("reads").source_texts;
        let mut source_texts: Vec<(&str, &str)> = source_texts
            .iter()
            .map(|(pointer, text)| (pointer.as_str(), text.as_str()))
            .collect();
        source_texts.sort_unstable();
        assert_eq!(
            source_texts,
            [
                ("/a~1b/0", "007"),
                ("/a~1b/2", "1e3"),
                ("/a~1b/5", "TRUE"),
                ("/c/d", "1.10"),
                ("/e/d", "1.10"),
            ]
        );
    }

    #[test]
    fn syntax_errors_have_a_line_and_our_own_message() {
        for (text, expected) in [
            ("a: [1", "closing bracket"),
            ("a: 1\nb: {c: 2]\n", "line 2"),
            ("a: \"x\n", "the quote is not closed"),
            (
                "a: 1\n\tb: 2\n",
                "line 2, column 1: a tab cannot indent here",
            ),
            (
                "a:\n  - b: 1\n\n  \tc: 2\n",
                "line 4, column 3: a tab cannot indent here",
            ),
            ("a: 1\n b: 2\n", "line 2"),
            (
                "a: 1\nb: 2\na: 3\n",
                "line 3, column 1: the key \"a\" occurs twice",
            ),
            ("? [1]\n: x\n", "line 1, column 3: a key must be a string"),
            ("a: !include x\n", "the tag !include"),
            ("a: !!python/object:x {}\n", "the tag"),
            ("!!int x", "!!int does not fit \"x\""),
            (
                "a: &a [*a]\n",
                "line 1, column 8: the anchor contains itself",
            ),
            ("a: *b\n", "no anchor of this name is defined above"),
            ("a: 1\n---\nb: 2\n", "line 2, column 1: a second document"),
            (
                "a: .inf\n",
                "line 1, column 4: JSON has no number for \".inf\"",
            ),
            (
                "a: -1e400\n",
                "line 1, column 4: JSON has no number for \"-1e400\"",
            ),
            (
                "<<: 3\n",
                "a merge key needs a mapping or a list of mappings",
            ),
        ] {
            let message = reason(text);
            assert!(message.contains(expected), "{text:?}: {message}");
            for advice in ["serde", "Options", "DuplicateKeyPolicy", "while parsing"] {
                assert!(!message.contains(advice), "{message}");
            }
        }
    }

    #[test]
    fn levels_and_values_are_bounded_before_they_are_built() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(&nested(127)).is_ok());
        assert!(reason(&nested(128)).contains("more than 127 levels"));
        assert!(reason(&nested(100_000)).contains("more than 127 levels"));
        let block: String = (0..3_000)
            .map(|level| format!("{}a:\n", " ".repeat(level)))
            .collect();
        assert!(reason(&block).contains("more than 127 levels"));
        let mut doubled = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let previous = format!("*a{}, ", level - 1).repeat(10);
            doubled.push_str(&format!("a{level}: &a{level} [{previous}]\n"));
        }
        assert!(reason(&doubled).contains("JSON_VALUES in docs/limits.md"));
        let mut merged = "m0: &m0 {k: v}\n".to_owned();
        for level in 1..60 {
            let previous = level - 1;
            merged.push_str(&format!(
                "m{level}: &m{level}\n  <<: [*m{previous}, *m{previous}]\n  k{level}: [*m{previous}, *m{previous}]\n"
            ));
        }
        let message = reason(&merged);
        assert!(message.contains("limit"), "{message}");
        let long = "x".repeat(1 << 20);
        let aliases = "- *d\n".repeat(300);
        let message = reason(&format!("- &d {long}\n{aliases}"));
        assert!(
            message.contains("YAML_ALIAS_BYTES in docs/limits.md"),
            "{message}"
        );
    }
}
