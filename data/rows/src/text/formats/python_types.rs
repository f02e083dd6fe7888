//! Converts Python type hints in strings to JSON Schema.
//!
//! The schemas match `get_json_schema` of transformers (5.23, `chat_template_utils.py`,
//! `_parse_type_hint`), except for null: `Optional[int]` allows null in JSON Schema's own syntax,
//! whereas transformers writes OpenAPI's `nullable`, which validators ignore.

use serde_json::{Map, Value, json};
use tooltune_apis::json_type;

/// Maximum nesting of brackets in a hint.
const MAX_DEPTH: usize = 16;

/// A parsed parameter type.
#[derive(Debug, PartialEq)]
pub(super) struct ParsedType {
    /// JSON Schema; empty if any value is allowed.
    pub(super) schema: Map<String, Value>,
    /// Whether the type marks the parameter as optional.
    pub(super) is_optional: bool,
    /// The type name, if it is unknown.
    pub(super) unknown: Option<String>,
}

/// Parses a type such as `str`, `List[int], optional` or `Dict[str, float]`.
pub(super) fn parse_type(type_name: &str) -> ParsedType {
    let pieces = split(type_name, ',');
    let (hint, flags) = pieces
        .split_first()
        .map_or(("", &[][..]), |(hint, flags)| (*hint, flags));
    let is_flag = |flag: &str| {
        let flag = flag.to_ascii_lowercase();
        flag == "optional" || flag == "required" || flag.starts_with("default")
    };
    let is_known = flags.iter().all(|flag| is_flag(flag));
    let schema = parse(hint, 0).filter(|_| is_known);
    let is_optional = hint.starts_with("Optional[")
        || flags
            .iter()
            .any(|flag| !flag.eq_ignore_ascii_case("required") && is_flag(flag));
    ParsedType {
        unknown: schema.is_none().then(|| type_name.to_owned()),
        schema: schema.unwrap_or_default(),
        is_optional,
    }
}

/// The schema of a hint; `None` if a part of it is unknown.
fn parse(hint: &str, depth: usize) -> Option<Map<String, Value>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let parse = |hint: &str| parse(hint, depth + 1);
    let hint = hint.trim();
    let alternatives = split(hint, '|');
    if alternatives.len() > 1 {
        return union(&alternatives, parse);
    }
    let Some((name, arguments)) = hint.split_once('[') else {
        return plain_type(hint);
    };
    let arguments = split(arguments.strip_suffix(']')?, ',');
    match (
        name.trim().trim_start_matches("typing."),
        arguments.as_slice(),
    ) {
        ("List" | "list" | "Sequence" | "Iterable" | "Set" | "set", [item]) => {
            Some(with_nested_schema("array", "items", parse(item)?))
        }
        ("Tuple" | "tuple", [item, "..."]) => {
            Some(with_nested_schema("array", "items", parse(item)?))
        }
        ("Tuple" | "tuple", items) => {
            let items: Option<Vec<_>> = items.iter().map(|item| parse(item)).collect();
            Some(object(json!({"type": "array", "prefixItems": items?})))
        }
        ("Dict" | "dict" | "Mapping", [_, value]) => Some(with_nested_schema(
            "object",
            "additionalProperties",
            parse(value)?,
        )),
        ("Optional", [inner]) => union(&[inner, "None"], parse),
        ("Union", several) => union(several, parse),
        ("Literal", values) => literal(values),
        _ => None,
    }
}

fn plain_type(type_name: &str) -> Option<Map<String, Value>> {
    let name = match type_name.trim_start_matches("typing.") {
        "Any" | "any" => return Some(Map::new()),
        "None" | "NoneType" | "null" => "null",
        "Tuple" | "tuple" | "Set" | "set" | "Sequence" | "Iterable" => "array",
        "Mapping" => "object",
        type_name => json_type(type_name)?,
    };
    Some(object(json!({"type": name})))
}

/// A union; plain types are merged into one list without duplicates.
fn union(
    hints: &[&str],
    parse: impl Fn(&str) -> Option<Map<String, Value>>,
) -> Option<Map<String, Value>> {
    let mut all: Vec<Map<String, Value>> = Vec::new();
    for hint in hints {
        let schema = parse(hint)?;
        if !all.contains(&schema) {
            all.push(schema);
        }
    }
    if all.iter().any(Map::is_empty) {
        return Some(Map::new());
    }
    if all.len() == 1 {
        return all.pop();
    }
    let is_plain = |schema: &Map<String, Value>| {
        schema.len() == 1 && schema.get("type").is_some_and(Value::is_string)
    };
    if all.iter().all(is_plain) {
        let types: Vec<&Value> = all.iter().filter_map(|schema| schema.get("type")).collect();
        return Some(object(json!({"type": types})));
    }
    Some(object(json!({"anyOf": all})))
}

/// `Literal["a", "b"]`: strings in either kind of quotes, numbers, True, False and None.
fn literal(values: &[&str]) -> Option<Map<String, Value>> {
    let value = |text: &&str| match *text {
        "True" => Some(json!(true)),
        "False" => Some(json!(false)),
        "None" => Some(Value::Null),
        text => match text.strip_prefix(['\'', '"']) {
            Some(rest) => rest.strip_suffix(['\'', '"']).map(|text| json!(text)),
            None => tooltune_json::parse(text).ok().filter(Value::is_number),
        },
    };
    let values: Option<Vec<Value>> = values.iter().map(value).collect();
    let values = values.filter(|values| !values.is_empty())?;
    let mut types: Vec<&str> = Vec::new();
    for value in &values {
        let name = match value {
            Value::String(_) => "string",
            Value::Bool(_) => "boolean",
            Value::Null => "null",
            Value::Number(number) if number.is_f64() => "number",
            _ => "integer",
        };
        if !types.contains(&name) {
            types.push(name);
        }
    }
    Some(object(match types.as_slice() {
        [one] => json!({"type": one, "enum": values}),
        several => json!({"type": several, "enum": values}),
    }))
}

/// A type with a nested schema.
fn with_nested_schema(name: &str, keyword: &str, part: Map<String, Value>) -> Map<String, Value> {
    let mut schema = object(json!({"type": name}));
    schema.insert(keyword.to_owned(), Value::Object(part));
    schema
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Splits at separators outside brackets and quotes, and trims the pieces.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut depth, mut quote, mut start) = (0_usize, None, 0);
    for (position, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') => depth = depth.saturating_sub(1),
            (None, _) if character == separator && depth == 0 => {
                pieces.push(text[start..position].trim());
                start = position + character.len_utf8();
            }
            _ => {}
        }
    }
    pieces.push(text[start..].trim());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_after_a_type_hint_mark_optional_parameters() {
        for (word, kind, is_optional) in [
            ("str", "string", false),
            ("str, optional", "string", true),
            ("int, Optional", "integer", true),
            ("float, default=1.0", "number", true),
            ("bool, required", "boolean", false),
        ] {
            let read = parse_type(word);
            assert_eq!(Value::Object(read.schema), json!({"type": kind}), "{word}");
            assert_eq!(
                (read.is_optional, read.unknown),
                (is_optional, None),
                "{word}"
            );
        }
    }

    #[test]
    fn unknown_types_allow_any_value_and_are_reported() {
        let deep = "List[".repeat(100_000);
        for type_name in [
            "Callable[[float], float]",
            "List[Callable[[float], float]]",
            "datetime",
            "str, in metres",
            "List[int",
            "",
            &deep,
        ] {
            let read = parse_type(type_name);
            assert!(read.schema.is_empty(), "{type_name}");
            assert_eq!(read.unknown.as_deref(), Some(type_name));
        }
        assert_eq!(parse_type("Any").unknown, None);
    }
}
