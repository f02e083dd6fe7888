//! Names as StableToolBench writes them in requests and cache paths.

use serde_json::{Map, Value};
use tooltune_apis::ApiDocument;

/// Names that are Python keywords.
const RESERVED: [&str; 7] = ["from", "class", "return", "false", "true", "id", "and"];

/// The names of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolBenchNames {
    /// The category, also a folder of the cache.
    pub(super) category: String,
    /// The tool.
    pub(super) tool: String,
    /// The API.
    pub(super) api: String,
}

impl ToolBenchNames {
    pub(super) fn from_document(document: &ApiDocument) -> Self {
        Self {
            category: category_name(&document.category_name),
            tool: standard_name(&document.tool_name),
            api: avoid_reserved(standard_name(&document.api_name)),
        }
    }
}

/// Arguments under the parameter names of the benchmark's functions, without nulls.
pub(super) fn request_input(arguments: &Map<String, Value>) -> Map<String, Value> {
    let non_null = arguments.iter().filter(|(_, value)| !value.is_null());
    non_null
        .map(|(name, value)| (avoid_reserved(standard_name(name)), value.clone()))
        .collect()
}

fn category_name(name: &str) -> String {
    name.replace([' ', ',', '/'], "_").replace("__", "_")
}

/// Normalises a name to lower-case letters of English and Chinese, digits, `_` and `^`. Every other
/// character becomes `_`. The result has no repeated `_`, no `_` at either end, and `get_` before a
/// digit at its start.
fn standard_name(name: &str) -> String {
    let is_allowed = |c: char| {
        let is_kept = c.is_ascii_alphanumeric()
            || matches!(c, '_' | '^')
            || ('\u{4e00}'..='\u{9fa5}').contains(&c);
        if is_kept { c.to_ascii_lowercase() } else { '_' }
    };
    let mapped: String = name.chars().map(is_allowed).collect();
    let parts: Vec<&str> = mapped.split('_').filter(|part| !part.is_empty()).collect();
    let name = parts.join("_");
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("get_{name}")
    } else {
        name
    }
}

fn avoid_reserved(name: String) -> String {
    if RESERVED.contains(&name.as_str()) {
        format!("is_{name}")
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_benchmark() {
        // The expected values are the output of its `standardize` and `change_name`.
        for (name, expected) in [
            ("TTSKraken", "ttskraken"),
            ("List Languages", "list_languages"),
            ("/v1/{id}/Items--All/", "v1_id_items_all"),
            ("24 Sata", "get_24_sata"),
            ("__a___b__", "a_b"),
            ("天气 Weather!", "天气_weather"),
            ("É", ""),
            ("a^b", "a^b"),
        ] {
            assert_eq!(standard_name(name), expected, "{name}");
        }
        assert_eq!(avoid_reserved(standard_name("ID")), "is_id");
        assert_eq!(category_name("News, Media"), "News_Media");
        assert_eq!(
            category_name("Artificial Intelligence/Machine Learning"),
            "Artificial_Intelligence_Machine_Learning"
        );
    }
}
