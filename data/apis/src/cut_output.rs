//! Truncates long API outputs for prompts and keeps them valid JSON. Models that read broken JSON
//! learn to write it, so truncation closes open brackets and strings and states how many characters
//! are missing.

/// Default maximum length of an output in a prompt, in characters.
pub const OUTPUT_LIMIT: usize = 1_200;

/// Truncates `text` to about `limit` characters.
///
/// Shorter text is unchanged. Otherwise the result is the longest prefix that fits into `limit`
/// together with its marker and closing brackets. The cut has one of three positions:
///
/// - inside a string value, between two characters but never inside an escape or a pair of
///   surrogate escapes; the string ends with `... 812 characters left out"`
/// - after a list element; `, "... 812 characters left out"]` follows
/// - after an object member; `, "...": "812 characters left out"}` follows
///
/// The number is the count of dropped characters of the original text. Keys, numbers and literals
/// such as `true` are never cut. The result of valid JSON is valid JSON. Other text is cut between
/// two characters and ends with the same words without quotes. If even the marker exceeds `limit`,
/// the result is only the marker.
pub fn cut_output(text: &str, limit: usize) -> String {
    let n_characters = text.chars().count();
    if n_characters <= limit {
        return text.to_owned();
    }
    if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
        return cut_plain(text, n_characters, limit);
    }
    let mut scan = Scan::new(n_characters, limit);
    for character in text.chars() {
        if scan.n_read > limit {
            break;
        }
        scan.read(character);
    }
    scan.result(text)
}

fn truncation_note(n: usize) -> String {
    format!("{n} characters left out")
}

fn cut_plain(text: &str, n_characters: usize, limit: usize) -> String {
    // Reserve space for the longest marker, because its length depends on the number.
    let reserved = truncation_note(n_characters).len() + "... ".len();
    let prefix: String = text.chars().take(limit.saturating_sub(reserved)).collect();
    let n_left_out = n_characters - prefix.chars().count();
    format!("{prefix}... {}", truncation_note(n_left_out))
}

/// Kind of container open at a position.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Open {
    List,
    Object,
}

/// Position inside a string value or key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Text {
    Outside,
    Plain,
    /// After a backslash.
    Escape,
    /// Inside `\uXXXX`: remaining digits and the code so far.
    Code(u8, u16),
}

/// How a kept prefix continues.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    Text,
    List { is_first: bool },
    Object { is_first: bool },
}

/// One pass over valid JSON that records the last position where it can be cut.
struct Scan {
    n_characters: usize,
    limit: usize,
    n_read: usize,
    open: Vec<Open>,
    text: Text,
    is_key: bool,
    /// Whether a high surrogate was just escaped; its low surrogate must be kept with it.
    is_half_pair: bool,
    best: Option<(usize, Cut, Vec<Open>)>,
}

impl Scan {
    fn new(n_characters: usize, limit: usize) -> Self {
        Self {
            n_characters,
            limit,
            n_read: 0,
            open: Vec::new(),
            text: Text::Outside,
            is_key: false,
            is_half_pair: false,
            best: None,
        }
    }

    fn read(&mut self, character: char) {
        if self.text == Text::Outside {
            self.read_structure(character);
        } else {
            self.read_text(character);
        }
    }

    fn read_structure(&mut self, character: char) {
        // A scalar ends at a comma or bracket, so the text can be cut before that character.
        if matches!(character, ',' | ']' | '}') {
            self.record_cut_after_value();
        }
        self.n_read += 1;
        match character {
            '"' => {
                self.text = Text::Plain;
                self.record_cut_in_text();
            }
            '[' => self.enter(Open::List, Cut::List { is_first: true }),
            '{' => {
                self.enter(Open::Object, Cut::Object { is_first: true });
                self.is_key = true;
            }
            ']' | '}' => {
                self.open.pop();
                self.is_key = false;
            }
            ',' => self.is_key = self.open.last() == Some(&Open::Object),
            ':' => self.is_key = false,
            _ => {}
        }
    }

    fn read_text(&mut self, character: char) {
        self.n_read += 1;
        let was_half_pair = self.is_half_pair;
        self.text = match (self.text, character) {
            (Text::Plain, '"') => Text::Outside,
            (Text::Plain, '\\') => Text::Escape,
            (Text::Plain, _) => Text::Plain,
            (Text::Escape, 'u') => Text::Code(4, 0),
            (Text::Code(n_left, code), digit) => {
                let digit = digit.to_digit(16).unwrap_or(0);
                let code = (code << 4) | u16::try_from(digit).unwrap_or(0);
                self.is_half_pair = n_left == 1 && (0xd800..0xdc00).contains(&code);
                if n_left == 1 {
                    Text::Plain
                } else {
                    Text::Code(n_left - 1, code)
                }
            }
            (Text::Escape | Text::Outside, _) => Text::Plain,
        };
        if matches!(self.text, Text::Escape | Text::Code(..)) && was_half_pair {
            self.is_half_pair = true;
        }
        if self.text == Text::Plain && !self.is_half_pair {
            self.record_cut_in_text();
        }
    }

    fn enter(&mut self, open: Open, cut: Cut) {
        self.open.push(open);
        self.record_cut(cut);
    }

    fn record_cut_in_text(&mut self) {
        if !self.is_key {
            self.record_cut(Cut::Text);
        }
    }

    fn record_cut_after_value(&mut self) {
        // The position after an opening bracket has no value before it and was already tried.
        if self
            .best
            .as_ref()
            .is_some_and(|(n_kept, ..)| *n_kept == self.n_read)
        {
            return;
        }
        match self.open.last() {
            Some(Open::List) => self.record_cut(Cut::List { is_first: false }),
            Some(Open::Object) => self.record_cut(Cut::Object { is_first: false }),
            None => {}
        }
    }

    /// Records the current position if the resulting text is short enough.
    fn record_cut(&mut self, cut: Cut) {
        let n_mark = cut_marker(cut, self.n_characters - self.n_read)
            .chars()
            .count();
        if self.n_read + n_mark + self.open.len() <= self.limit {
            self.best = Some((self.n_read, cut, self.open.clone()));
        }
    }

    fn result(self, text: &str) -> String {
        let Some((n_kept, cut, open)) = self.best else {
            return format!("\"... {}\"", truncation_note(self.n_characters));
        };
        let mut result: String = text.chars().take(n_kept).collect();
        result.push_str(&cut_marker(cut, self.n_characters - n_kept));
        let closers = open.iter().rev().map(|open| match open {
            Open::List => ']',
            Open::Object => '}',
        });
        result.extend(closers);
        result
    }
}

fn cut_marker(cut: Cut, n_left_out: usize) -> String {
    let words = truncation_note(n_left_out);
    match cut {
        Cut::Text => format!("... {words}\""),
        Cut::List { is_first: true } => format!("\"... {words}\""),
        Cut::List { is_first: false } => format!(", \"... {words}\""),
        Cut::Object { is_first: true } => format!("\"...\": \"{words}\""),
        Cut::Object { is_first: false } => format!(", \"...\": \"{words}\""),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use tooltune_json as json;

    fn parsed(text: &str) -> Value {
        json::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_short_output_is_unchanged() {
        assert_eq!(cut_output("{\"a\":  1}", 9), "{\"a\":  1}");
        assert_eq!(cut_output("not json", 8), "not json");
    }

    #[test]
    fn a_list_is_cut_after_an_element() {
        let text = json!((1000..1050).collect::<Vec<_>>()).to_string();
        let output = cut_output(&text, 50);
        assert_eq!(output, "[1000,1001,1002, \"... 236 characters left out\"]");
        assert_eq!(parsed(&output)[2], 1002);
    }

    #[test]
    fn an_object_is_cut_after_a_member_or_within_a_string() {
        let text = json!({"a": 1, "text": "x".repeat(100), "z": 1}).to_string();
        assert_eq!(
            cut_output(&text, 42),
            "{\"a\":1, \"...\": \"117 characters left out\"}"
        );
        assert_eq!(
            cut_output(&text, 50),
            "{\"a\":1,\"text\":\"xxxxxx... 102 characters left out\"}"
        );
    }

    #[test]
    fn nested_brackets_are_closed_from_the_inside() {
        let text = json!({"a": [{"b": [1, 2, {"c": "y".repeat(60)}]}]}).to_string();
        let output = cut_output(&text, 60);
        assert!(output.ends_with(" characters left out\"}]}]}"), "{output}");
        parsed(&output);
    }

    #[test]
    fn escapes_and_pairs_of_surrogates_stay_whole() {
        let text = format!("[\"{}\"]", "\\ud83d\\ude00\\n\\u00e9\\\\\\\"".repeat(20));
        for limit in 34..text.len() {
            let output = cut_output(&text, limit);
            let value = parsed(&output);
            let prefix = value[0].as_str().expect("a text");
            let prefix = prefix.split("...").next().expect("a beginning");
            let full = parsed(&text);
            assert!(
                full[0].as_str().expect("a text").starts_with(prefix),
                "{limit}: {output}"
            );
        }
    }

    #[test]
    fn invalid_json_is_cut_as_text() {
        let cut = cut_output(&"é".repeat(100), 40);
        assert_eq!(cut, "é".repeat(13) + "... 87 characters left out");
    }

    #[test]
    fn the_marker_is_used_alone_if_nothing_fits() {
        assert_eq!(
            cut_output(&"1".repeat(40), 20),
            "\"... 40 characters left out\""
        );
        assert_eq!(cut_output("[1, 2, 3]", 0), "\"... 9 characters left out\"");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,40}".prop_map(Value::from),
            "[\\\\\"\u{0}-\u{1f}\u{10000}-\u{10fff}]{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 80, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec(("[a-z\\\\\"é😀]{0,6}", inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    const LONGEST_MARK: usize = "\"... 999999 characters left out\"".len();

    proptest! {
        #[test]
        fn a_cut_output_is_json_and_within_its_limit(
            value in any_json(),
            limit in 0_usize..400,
            style in prop_oneof![
                Just(json::Style::Python),
                Just(json::Style::PythonAscii),
                Just(json::Style::Compact),
                Just(json::Style::Indented(2)),
            ],
        ) {
            let text = json::dumps(&value, style);
            let cut = cut_output(&text, limit);
            prop_assert!(json::parse(&cut).is_ok(), "{cut}");
            prop_assert!(cut.chars().count() <= limit.max(LONGEST_MARK), "{limit}: {cut}");
            if text.chars().count() <= limit {
                prop_assert_eq!(cut, text);
            }
        }

        #[test]
        fn the_marker_reports_the_number_of_dropped_characters(value in any_json(), limit in 0_usize..200) {
            let text = json::dumps(&value, json::Style::Python);
            let cut = cut_output(&text, limit);
            if cut != text {
                let n_characters = text.chars().count();
                let n_kept = text.chars().zip(cut.chars()).take_while(|(a, b)| a == b).count();
                let end = cut.rfind(" characters left out").expect("a mark");
                let digits = cut[..end].chars().rev().take_while(char::is_ascii_digit).count();
                let n_left_out: usize = cut[end - digits..end].parse().expect("a number");
                // The marker may happen to start like the dropped text.
                prop_assert!(n_characters - n_left_out <= n_kept, "{cut}");
            }
        }
    }
}
