//! Describes the output of an API in words.
//!
//! A model needs the field names of an output, but the response description in a specification is
//! often just "OK". Descriptions list fields three levels deep and up to a length limit, because
//! responses of public APIs have hundreds of fields.

use serde_json::Value;

use super::document::ApiDocument;
use super::views::collapse_white_space;

/// Levels of nested fields in a description.
const LEVELS: usize = 3;
/// Fields listed per object.
const FIELDS: usize = 30;
/// Maximum characters of a field's description.
const DESCRIPTION_CHARS: usize = 100;
/// Maximum characters of all fields together; the number of omitted fields follows.
const ALL_CHARS: usize = 2_000;

/// Generic response descriptions that contain no information.
const GENERIC_DESCRIPTIONS: [&str; 20] = [
    "200",
    "200 ok",
    "201",
    "201 created",
    "a successful response",
    "accepted",
    "created",
    "default response",
    "no content",
    "ok",
    "okay",
    "response",
    "success",
    "success response",
    "successful",
    "successful operation",
    "successful response",
    "successfully",
    "the request succeeded",
    "the request was successful",
];

/// Describes the output of an API: the response description unless it is generic, then the fields
/// of the response schema. Empty if the document has neither.
pub(super) fn describe_output(document: &ApiDocument) -> String {
    let description = collapse_white_space(&document.output_description);
    let Some(schema) = &document.output_schema else {
        return description;
    };
    let fields = DescriptionWriter {
        n_chars_left: ALL_CHARS,
        with_details: true,
    }
    .describe_whole(schema);
    join_description(description, fields, schema)
}

/// Like [`describe_output`], for a retriever: lists only the names of fields.
pub(super) fn list_output_fields(document: &ApiDocument) -> String {
    let description = collapse_white_space(&document.output_description);
    let Some(schema) = &document.output_schema else {
        return description;
    };
    let names = DescriptionWriter {
        n_chars_left: ALL_CHARS,
        with_details: false,
    }
    .describe_whole(schema);
    join_description(description, names, schema)
}

fn join_description(description: String, fields: String, schema: &Value) -> String {
    let is_nothing = schema.get("type").is_some_and(|kind| kind == "null");
    let bare = description.trim_end_matches(['.', '!']).to_lowercase();
    let is_generic = description.is_empty() || GENERIC_DESCRIPTIONS.contains(&bare.as_str());
    match (is_generic, fields.is_empty()) {
        _ if is_nothing && is_generic => "nothing.".to_owned(),
        _ if is_nothing => description,
        (true, true) => description,
        (true, false) => format!("{fields}."),
        (false, true) => description,
        (false, false) => {
            let description = description.trim_end_matches(['.', '!', '?', ':']);
            format!("{description}: {fields}.")
        }
    }
}

struct DescriptionWriter {
    n_chars_left: usize,
    with_details: bool,
}

impl DescriptionWriter {
    /// Description of the whole output, such as `object with id (integer); name (string)`.
    fn describe_whole(&mut self, schema: &Value) -> String {
        let (kind, inner) = self.kind_and_fields(schema, 1);
        match (kind.as_str(), inner.is_empty()) {
            // Omit an unknown type.
            ("", true) => String::new(),
            (_, true) => kind,
            ("object", false) => format!("object with {inner}"),
            (_, false) => format!("{kind} with {inner}"),
        }
    }

    /// The type in words, and the fields of the object or of the list's elements.
    fn kind_and_fields(&mut self, schema: &Value, level: usize) -> (String, String) {
        let schema = branch(schema);
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let fields = match level <= LEVELS {
                true => self.fields(properties, level),
                false => String::new(),
            };
            return ("object".to_owned(), fields);
        }
        if let Some(items) = schema.get("items") {
            let (kind, fields) = self.kind_and_fields(items, level);
            let list_of = match kind.as_str() {
                "" => "list".to_owned(),
                kind if kind.starts_with("list") => format!("list of {}", plural(kind)),
                kind => format!("list of {kind}s"),
            };
            return (list_of, fields);
        }
        let kind = match schema.get("type") {
            Some(Value::String(kind)) if kind == "array" => "list",
            Some(Value::String(kind)) => kind.as_str(),
            Some(Value::Array(kinds)) => kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|kind| *kind != "null")
                .unwrap_or(""),
            _ => "",
        };
        (kind.to_owned(), String::new())
    }

    fn fields(&mut self, properties: &serde_json::Map<String, Value>, level: usize) -> String {
        let mut fields = Vec::new();
        for (name, schema) in properties.iter().take(FIELDS) {
            if self.n_chars_left == 0 {
                break;
            }
            // Nested fields are included in the limit.
            let field = self.field(name, schema, level);
            let n_own = name.chars().count() + 2;
            self.n_chars_left = self.n_chars_left.saturating_sub(n_own);
            fields.push(field);
        }
        let n_more = properties.len() - fields.len();
        if n_more > 0 {
            fields.push(format!("and {n_more} more"));
        }
        fields.join("; ")
    }

    fn field(&mut self, name: &str, schema: &Value, level: usize) -> String {
        let (kind, fields) = self.kind_and_fields(schema, level + 1);
        if !self.with_details {
            return match fields.is_empty() {
                true => name.to_owned(),
                false => format!("{name} ({fields})"),
            };
        }
        let mut words = match (kind.is_empty(), fields.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => format!("{name} ({kind})"),
            (false, false) => format!("{name} ({kind}: {fields})"),
        };
        let description = schema.get("description").and_then(Value::as_str);
        let description = collapse_white_space(description.unwrap_or_default());
        let mut short: String = description.chars().take(DESCRIPTION_CHARS).collect();
        if short.len() < description.len() {
            short.push_str("...");
        }
        let short = short.trim_end_matches('.');
        if !short.is_empty() {
            words.push(' ');
            words.push_str(short);
        }
        let n_chars = kind.chars().count() + short.chars().count() + 3;
        self.n_chars_left = self.n_chars_left.saturating_sub(n_chars);
        words
    }
}

/// The schema, or its first non-empty alternative.
fn branch(schema: &Value) -> &Value {
    const MAX_ALTERNATIVES: usize = 8;
    let mut current = schema;
    for _ in 0..MAX_ALTERNATIVES {
        let has_own = ["properties", "items", "type"]
            .iter()
            .any(|key| current.get(key).is_some_and(|own| !own.is_array()));
        let alternatives = ["oneOf", "anyOf", "allOf"].iter();
        let alternatives = alternatives.filter_map(|key| current.get(key)?.as_array());
        let is_something =
            |alternative: &&Value| alternative.get("type").is_none_or(|kind| kind != "null");
        match alternatives.flatten().find(is_something) {
            Some(alternative) if !has_own => current = alternative,
            _ => break,
        }
    }
    current
}

/// Plural of a type: `list of strings` gives `lists of strings`.
fn plural(kind: &str) -> String {
    kind.replacen("list", "lists", 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(description: &str, schema: Option<Value>) -> ApiDocument {
        ApiDocument {
            output_description: description.to_owned(),
            output_schema: schema,
            ..ApiDocument::new("", "GET /orders")
        }
    }

    #[test]
    fn response_fields_are_described_and_empty_descriptions_are_omitted() {
        let order = json!({"type": "object", "properties": {
            "id": {"type": "integer", "description": "Number of\n the order."},
            "state": {"type": ["string", "null"]},
            "lines": {"type": "array", "items": {"type": "object", "properties": {
                "sku": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}}},
            "owner": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"name": {"type": "string"}}}]},
            "extra": {}}});
        let fields = "id (integer) Number of the order; state (string); lines (list of objects: sku \
                      (string); tags (list of strings)); owner (object: name (string)); extra";
        for (description, expected) in [
            ("OK", format!("object with {fields}.")),
            ("Successful operation.", format!("object with {fields}.")),
            ("", format!("object with {fields}.")),
            ("An order.", format!("An order: object with {fields}.")),
        ] {
            assert_eq!(
                describe_output(&document(description, Some(order.clone()))),
                expected
            );
        }
        assert_eq!(
            list_output_fields(&document("OK", Some(order))),
            "object with id; state; lines (sku; tags); owner (name); extra."
        );
        for (description, schema, expected) in [
            ("OK", None, "OK"),
            ("", None, ""),
            ("OK", Some(json!({"type": "null"})), "nothing."),
            ("Cancelled", Some(json!({"type": "null"})), "Cancelled"),
            ("OK", Some(json!({})), "OK"),
            ("OK", Some(json!({"type": "string"})), "string."),
            (
                "All of them.",
                Some(
                    json!({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
                ),
                "All of them: list of lists of integers.",
            ),
            (
                "OK",
                Some(
                    json!({"type": "array", "items": {"properties": {"id": {"type": "integer"}}}}),
                ),
                "list of objects with id (integer).",
            ),
        ] {
            assert_eq!(describe_output(&document(description, schema)), expected);
        }
    }

    #[test]
    fn the_description_of_a_large_response_is_bounded() {
        let mut schema = json!({"type": "string", "description": "x ".repeat(200)});
        for _ in 0..3 {
            let field = |number: usize| (format!("field{number}"), schema.clone());
            let properties: serde_json::Map<String, Value> = (0..12).map(field).collect();
            schema = json!({"type": "object", "properties": properties});
        }
        let words = describe_output(&document("OK", Some(schema)));
        assert!(words.len() < 2 * ALL_CHARS, "{}", words.len());
        assert!(words.contains(" more"), "{words}");
        let many = (0..100).map(|number| (format!("f{number}"), json!({"type": "integer"})));
        let many = json!({"properties": many.collect::<serde_json::Map<_, _>>()});
        assert!(describe_output(&document("OK", Some(many))).ends_with("and 70 more."));
    }
}
