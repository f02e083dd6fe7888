//! Writes a translated config: settings with a serializer, everything else in escaped comments.

use serde_json::{Map, Value};

/// Writes TOML: the comment lines, then the tables in the order of `tables`.
///
/// # Errors
///
/// TOML cannot represent a value.
pub fn to_toml(
    comments: &[String],
    settings: &Map<String, Value>,
    tables: &[&str],
) -> Result<String, toml::ser::Error> {
    let mut text = comment_lines(comments);
    for key in ordered_keys(settings, tables) {
        let one =
            toml::Table::from_iter([(key.to_owned(), toml::Value::try_from(&settings[key])?)]);
        text.push('\n');
        text.push_str(&toml::to_string(&one)?);
    }
    Ok(text)
}

/// Writes YAML, with values as JSON.
pub fn to_yaml(comments: &[String], settings: &Map<String, Value>, tables: &[&str]) -> String {
    let mut text = comment_lines(comments);
    for key in ordered_keys(settings, tables) {
        text.push('\n');
        let name = yaml_key(key);
        match &settings[key] {
            Value::Object(fields) if !fields.is_empty() => {
                text.push_str(&format!("{name}:\n"));
                for (key, value) in fields {
                    text.push_str(&format!("  {}: {}\n", yaml_key(key), ascii_json(value)));
                }
            }
            value => text.push_str(&format!("{name}: {}\n", ascii_json(value))),
        }
    }
    text
}

/// Keys of the settings: first those outside tables, then the tables in order.
fn ordered_keys<'s>(settings: &'s Map<String, Value>, tables: &[&str]) -> Vec<&'s str> {
    let position = |key: &str| tables.iter().position(|table| *table == key);
    let mut keys: Vec<&str> = settings.keys().map(String::as_str).collect();
    keys.sort_by_key(|key| {
        (
            settings[*key].is_object(),
            position(key).unwrap_or(tables.len()),
        )
    });
    keys
}

fn comment_lines(comments: &[String]) -> String {
    comments
        .iter()
        .map(|line| format!("# {}\n", one_line(line)))
        .collect()
}

fn yaml_key(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c.is_ascii_lowercase())
        && key
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    // Some YAML readers parse these as values.
    if is_plain && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&key) {
        key.to_owned()
    } else {
        ascii_json(&Value::from(key))
    }
}

/// JSON with escapes that are valid in JSON and YAML.
fn ascii_json(value: &Value) -> String {
    let mut text = String::new();
    for letter in value.to_string().chars() {
        if is_hidden(letter) || letter == '\u{feff}' {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            text.push(letter);
        }
    }
    text
}

/// Escapes line ends and invisible characters.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

/// Whether a character affects how text is parsed or displayed: controls, line separators,
/// direction marks.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'
                ..='\u{2069}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Texts that would be syntax if they were not escaped.
    fn syntax_like_text() -> impl Strategy<Value = String> {
        const PARTS: &[&str] = &[
            "\n",
            "\r",
            "\r\n",
            "\u{85}",
            "\u{2028}",
            "\0",
            "\u{1b}[2J",
            "[goat.executor]\n",
            "kind = \"mcp\"",
            "\"\"\"",
            "'''",
            "\\",
            "\"",
            "'",
            "#",
            ": ",
            "- ",
            "{",
            "}",
            "]",
            "---\n",
            "...\n",
            "&a *a",
            "!!",
            "\t",
            " ",
            "\u{7f}",
            "\u{feff}",
            "x",
            "é",
            "🙂",
            "~",
            "null",
            "= 1",
            ",",
            "%",
            "|\n",
            ">\n",
        ];
        proptest::collection::vec(proptest::sample::select(PARTS), 0..8)
            .prop_map(|parts| parts.concat())
    }

    fn value() -> impl Strategy<Value = Value> {
        let one = prop_oneof![
            syntax_like_text().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            (-1e9..1e9).prop_map(|number: f64| Value::from(number)),
        ];
        one.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::vec((syntax_like_text(), inner), 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// For any text in comments, keys and values, reading the file returns exactly the
        /// settings.
        #[test]
        fn no_text_becomes_structure(
            comments in proptest::collection::vec(syntax_like_text(), 0..4),
            fields in proptest::collection::vec((syntax_like_text(), value()), 0..4),
            device in syntax_like_text(),
        ) {
            let data = Value::Object(fields.into_iter().collect());
            let settings = json!({"data": data, "device": device, "lora": {}});
            let settings = settings.as_object().unwrap().clone();
            let toml = to_toml(&comments, &settings, &["data", "lora"]).unwrap();
            let read: Value = toml::from_str(&toml).unwrap();
            prop_assert_eq!(read, Value::Object(settings.clone()), "{}", toml);
            let yaml = to_yaml(&comments, &settings, &["data", "lora"]);
            let options = serde_saphyr::options! { strict_booleans: true };
            let read: Value = serde_saphyr::from_str_with_options(&yaml, options).unwrap();
            // YAML block style has no empty mapping, so an empty table is written as `{}`.
            prop_assert_eq!(read, Value::Object(settings), "{}", yaml);
        }

        #[test]
        fn a_comment_is_one_line(text in "\\PC*|[\\x00-\\x20\u{80}-\u{a0}\u{2020}-\u{2070}]*") {
            let line = one_line(&text);
            prop_assert!(!line.chars().any(is_hidden), "{:?}", line);
        }
    }
}
