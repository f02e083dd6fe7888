//! The keywords of each draft, and the keywords that are not enforced.

use serde_json::{Map, Value};

use super::SchemaLocation;
use crate::error::GrammarError;

/// Drafts of JSON Schema, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Draft {
    Draft4,
    Draft6,
    Draft7,
    Draft201909,
    Draft202012,
}

/// Keywords that are refused, each with the type that it applies to (empty for any) and the first
/// draft that has it.
const UNENFORCED: [(&str, &str, Draft); 15] = [
    ("not", "", Draft::Draft4),
    ("uniqueItems", "array", Draft::Draft4),
    ("dependencies", "object", Draft::Draft4),
    ("contains", "array", Draft::Draft6),
    ("propertyNames", "object", Draft::Draft6),
    ("if", "", Draft::Draft7),
    ("dependentRequired", "object", Draft::Draft201909),
    ("dependentSchemas", "object", Draft::Draft201909),
    ("unevaluatedItems", "array", Draft::Draft201909),
    ("unevaluatedProperties", "object", Draft::Draft201909),
    ("$recursiveRef", "", Draft::Draft201909),
    ("$dynamicRef", "", Draft::Draft202012),
    // Keywords of draft 3 that later drafts define differently or not at all.
    ("extends", "", Draft::Draft4),
    ("disallow", "", Draft::Draft4),
    ("divisibleBy", "number", Draft::Draft4),
];

/// Keywords that apply other schemas to the same value.
const IN_PLACE: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];

/// The name of draft 4's integer type in a lowered schema; it excludes 2.0.
pub(crate) const WHOLE_TYPE: &str = "whole";

const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

impl Draft {
    /// The draft that `$schema` names; 2020-12 by default.
    pub(super) fn from_schema(root: &Value) -> Result<Self, GrammarError> {
        let Some(name) = root.get("$schema") else {
            return Ok(Self::Draft202012);
        };
        let name = name.as_str().unwrap_or_default();
        let short = name.trim_end_matches('#').trim_end_matches('/');
        let short = short.strip_prefix("http").unwrap_or(short);
        let short = short.strip_prefix('s').unwrap_or(short);
        match short {
            "://json-schema.org/draft-04/schema" => Ok(Self::Draft4),
            "://json-schema.org/draft-06/schema" => Ok(Self::Draft6),
            "://json-schema.org/draft-07/schema" => Ok(Self::Draft7),
            "://json-schema.org/draft/2019-09/schema" => Ok(Self::Draft201909),
            "://json-schema.org/draft/2020-12/schema" => Ok(Self::Draft202012),
            _ => Err(GrammarError::unsupported(
                "/$schema",
                format!("{name:?} is not a draft from 4 to 2020-12; name one, or remove it"),
            )),
        }
    }

    /// Up to draft 7, keywords next to `$ref` are ignored.
    pub(super) fn ignores_siblings_of_references(self) -> bool {
        self <= Self::Draft7
    }

    /// The identifier to which references below this schema are relative.
    pub(super) fn identifier(self, fields: &Map<String, Value>) -> Option<&str> {
        let keyword = match self {
            Self::Draft4 => "id",
            _ => "$id",
        };
        let id = fields.get(keyword)?.as_str()?;
        (!id.starts_with('#')).then_some(id)
    }

    /// Whether a reference to `#name` resolves to this schema.
    pub(super) fn has_anchor(self, fields: &Map<String, Value>, name: &str) -> bool {
        let text = |keyword: &str| fields.get(keyword).and_then(Value::as_str);
        match self {
            Self::Draft4 => text("id").and_then(|id| id.strip_prefix('#')) == Some(name),
            Self::Draft6 | Self::Draft7 => {
                text("$id").and_then(|id| id.strip_prefix('#')) == Some(name)
            }
            Self::Draft201909 | Self::Draft202012 => text("$anchor") == Some(name),
        }
    }
}

/// The types that a schema allows by `type`; `None` means all.
pub(super) struct Types<'s>(Option<Vec<&'s str>>);

impl<'s> Types<'s> {
    pub(super) fn names(&self) -> Option<&[&'s str]> {
        self.0.as_deref()
    }

    pub(super) fn allow(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(&name))
    }
}

pub(super) fn types<'s>(
    location: &SchemaLocation<'s>,
    fields: &'s Map<String, Value>,
) -> Result<Types<'s>, GrammarError> {
    let Some(types) = fields.get("type") else {
        return Ok(Types(None));
    };
    let type_name = |name: &'s Value| name.as_str().filter(|name| TYPES.contains(name));
    let names: Option<Vec<&str>> = match types {
        Value::Array(names) => names.iter().map(type_name).collect(),
        name => type_name(name).map(|name| vec![name]),
    };
    match names {
        Some(names) if !names.is_empty() => Ok(Types(Some(names))),
        _ => Err(location.unsupported(
            "type",
            format!("is {types}; use one or more of {}", TYPES.join(", ")),
        )),
    }
}

/// Refuses keywords that would be ignored although they restrict values.
pub(super) fn refuse_unenforced(
    draft: Draft,
    location: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    types: &Types<'_>,
) -> Result<(), GrammarError> {
    for (keyword, of_type, since) in UNENFORCED {
        let Some(value) = fields.get(keyword) else {
            continue;
        };
        let speaks = draft >= since
            && (of_type.is_empty() || types.allow(of_type))
            && !has_no_effect(keyword, value, fields);
        if speaks {
            return Err(
                location.unsupported(keyword, "is not enforced; remove it or use another keyword")
            );
        }
    }
    Ok(())
}

fn has_no_effect(keyword: &str, value: &Value, fields: &Map<String, Value>) -> bool {
    let is_any = *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty);
    match keyword {
        "uniqueItems" => {
            let max_items = fields.get("maxItems").and_then(Value::as_f64);
            *value == Value::Bool(false) || max_items.is_some_and(|max_items| max_items <= 1.0)
        }
        "not" => *value == Value::Bool(false),
        "if" => !fields.contains_key("then") && !fields.contains_key("else"),
        "dependencies" | "dependentRequired" | "dependentSchemas" | "propertyNames" => is_any,
        // These keywords are lowered to the keyword without the prefix.
        "unevaluatedItems" | "unevaluatedProperties" => {
            is_any || !IN_PLACE.iter().any(|keyword| fields.contains_key(*keyword))
        }
        _ => false,
    }
}
