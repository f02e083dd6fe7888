//! Names as StableToolBench writes them in requests and in the paths of its cache.

use serde_json::{Map, Value};
use tooltune_rows::tools::ApiDocument;

/// Names that would be words of Python.
const RESERVED: [&str; 7] = ["from", "class", "return", "false", "true", "id", "and"];

/// The names of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolBenchNames {
    /// The category, which is a folder of the cache.
    pub(super) category: String,
    /// The tool.
    pub(super) tool: String,
    /// The API.
    pub(super) api: String,
}

impl ToolBenchNames {
    pub(super) fn of(document: &ApiDocument) -> Self {
        Self {
            category: category(&document.category_name),
            tool: standard(&document.tool_name),
            api: unreserved(standard(&document.api_name)),
        }
    }
}

/// Arguments under the names that the functions of the benchmark give their parameters, without
/// nulls.
pub(super) fn input(arguments: &Map<String, Value>) -> Map<String, Value> {
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    given
        .map(|(name, value)| (unreserved(standard(name)), value.clone()))
        .collect()
}

fn category(name: &str) -> String {
    name.replace([' ', ',', '/'], "_").replace("__", "_")
}

/// Letters of English and Chinese, digits, `_` and `^`, in lower case; everything else is `_`, which
/// never stands twice or at an end, and a digit is not the first.
fn standard(name: &str) -> String {
    let kept = |c: char| {
        let is_kept = c.is_ascii_alphanumeric()
            || matches!(c, '_' | '^')
            || ('\u{4e00}'..='\u{9fa5}').contains(&c);
        if is_kept { c.to_ascii_lowercase() } else { '_' }
    };
    let mapped: String = name.chars().map(kept).collect();
    let words: Vec<&str> = mapped.split('_').filter(|word| !word.is_empty()).collect();
    let name = words.join("_");
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("get_{name}")
    } else {
        name
    }
}

fn unreserved(name: String) -> String {
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
    fn names_are_those_of_the_benchmark() {
        // The right sides are what its `standardize` and `change_name` give.
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
            assert_eq!(standard(name), expected, "{name}");
        }
        assert_eq!(unreserved(standard("ID")), "is_id");
        assert_eq!(category("News, Media"), "News_Media");
        assert_eq!(
            category("Artificial Intelligence/Machine Learning"),
            "Artificial_Intelligence_Machine_Learning"
        );
    }
}
