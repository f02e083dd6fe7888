//! Long outputs of calls, cut for a prompt so that they stay JSON.
//!
//! A model that reads broken JSON learns to write it, so a cut closes what it leaves open and
//! says in plain words how much is missing.

/// Characters of an output that a prompt shows unless told otherwise.
pub const OUTPUT_LIMIT: usize = 1_200;

/// Cuts the text of an output down to about `limit` characters.
///
/// A text of at most `limit` characters stays as it is. Of a longer one the longest beginning is
/// kept that, with its mark and the brackets that close it, is not longer than `limit`:
///
/// - within a text value, between two characters and never within an escape or a pair of
///   surrogate escapes, it ends in `... 812 characters left out"`
/// - after an element of a list, `, "... 812 characters left out"]` follows
/// - after a member of an object, `, "...": "812 characters left out"}` follows
///
/// The number counts what was dropped of the original text, in characters. Keys, numbers and
/// words such as `true` are never cut. If the text was JSON, the result is. A text that is not
/// JSON is cut between two characters and ends in the same words, without quotes. Where not even
/// the mark fits into `limit`, the result is the mark alone, though it is longer.
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

fn left_out(n: usize) -> String {
    format!("{n} characters left out")
}

fn cut_plain(text: &str, n_characters: usize, limit: usize) -> String {
    // The mark grows with the number, so the longest one it can have is set aside.
    let reserved = left_out(n_characters).len() + "... ".len();
    let kept: String = text.chars().take(limit.saturating_sub(reserved)).collect();
    let n_left_out = n_characters - kept.chars().count();
    format!("{kept}... {}", left_out(n_left_out))
}

/// What is open at a place of the text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Open {
    List,
    Object,
}

/// Where the reader stands within a text value or a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Text {
    Outside,
    Plain,
    /// After a backslash.
    Escape,
    /// Within `\uXXXX`, with this many digits to come and the code so far.
    Code(u8, u16),
}

/// How a kept beginning continues.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    Text,
    List { is_first: bool },
    Object { is_first: bool },
}

/// One pass over valid JSON that remembers the last place where it can be cut.
struct Scan {
    n_characters: usize,
    limit: usize,
    n_read: usize,
    open: Vec<Open>,
    text: Text,
    is_key: bool,
    /// Whether a high surrogate was escaped just before, whose other half must stay with it.
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
        // A scalar ends where a comma or a bracket stands, so the place before these is a cut.
        if matches!(character, ',' | ']' | '}') {
            self.offer_after_value();
        }
        self.n_read += 1;
        match character {
            '"' => {
                self.text = Text::Plain;
                self.offer_in_text();
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
            self.offer_in_text();
        }
    }

    fn enter(&mut self, open: Open, cut: Cut) {
        self.open.push(open);
        self.offer(cut);
    }

    fn offer_in_text(&mut self) {
        if !self.is_key {
            self.offer(Cut::Text);
        }
    }

    fn offer_after_value(&mut self) {
        // After an opening bracket there is no value, and that place has been offered.
        if self
            .best
            .as_ref()
            .is_some_and(|(n_kept, ..)| *n_kept == self.n_read)
        {
            return;
        }
        match self.open.last() {
            Some(Open::List) => self.offer(Cut::List { is_first: false }),
            Some(Open::Object) => self.offer(Cut::Object { is_first: false }),
            None => {}
        }
    }

    /// Remembers the present place if what it gives is short enough.
    fn offer(&mut self, cut: Cut) {
        let n_mark = mark(cut, self.n_characters - self.n_read).chars().count();
        if self.n_read + n_mark + self.open.len() <= self.limit {
            self.best = Some((self.n_read, cut, self.open.clone()));
        }
    }

    fn result(self, text: &str) -> String {
        let Some((n_kept, cut, open)) = self.best else {
            return format!("\"... {}\"", left_out(self.n_characters));
        };
        let mut result: String = text.chars().take(n_kept).collect();
        result.push_str(&mark(cut, self.n_characters - n_kept));
        let closers = open.iter().rev().map(|open| match open {
            Open::List => ']',
            Open::Object => '}',
        });
        result.extend(closers);
        result
    }
}

fn mark(cut: Cut, n_left_out: usize) -> String {
    let words = left_out(n_left_out);
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
    use crate::json;

    fn parsed(text: &str) -> Value {
        json::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_short_output_stays_as_it_is() {
        assert_eq!(cut_output("{\"a\":  1}", 9), "{\"a\":  1}");
        assert_eq!(cut_output("not json", 8), "not json");
    }

    #[test]
    fn a_list_is_cut_after_an_element() {
        let text = json!((1000..1050).collect::<Vec<_>>()).to_string();
        let cut = cut_output(&text, 50);
        assert_eq!(cut, "[1000,1001,1002, \"... 236 characters left out\"]");
        assert_eq!(parsed(&cut)[2], 1002);
    }

    #[test]
    fn an_object_is_cut_after_a_member_or_within_a_text() {
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
        let cut = cut_output(&text, 60);
        assert!(cut.ends_with(" characters left out\"}]}]}"), "{cut}");
        parsed(&cut);
    }

    #[test]
    fn escapes_and_pairs_of_surrogates_stay_whole() {
        let text = format!("[\"{}\"]", "\\ud83d\\ude00\\n\\u00e9\\\\\\\"".repeat(20));
        for limit in 34..text.len() {
            let cut = cut_output(&text, limit);
            let value = parsed(&cut);
            let kept = value[0].as_str().expect("a text");
            let kept = kept.split("...").next().expect("a beginning");
            let whole = parsed(&text);
            assert!(
                whole[0].as_str().expect("a text").starts_with(kept),
                "{limit}: {cut}"
            );
        }
    }

    #[test]
    fn what_is_no_json_is_cut_as_text() {
        let cut = cut_output(&"é".repeat(100), 40);
        assert_eq!(cut, "é".repeat(13) + "... 87 characters left out");
    }

    #[test]
    fn where_nothing_fits_the_mark_stands_alone() {
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
        fn what_is_said_to_be_left_out_is_left_out(value in any_json(), limit in 0_usize..200) {
            let text = json::dumps(&value, json::Style::Python);
            let cut = cut_output(&text, limit);
            if cut != text {
                let n_characters = text.chars().count();
                let n_kept = text.chars().zip(cut.chars()).take_while(|(a, b)| a == b).count();
                let end = cut.rfind(" characters left out").expect("a mark");
                let digits = cut[..end].chars().rev().take_while(char::is_ascii_digit).count();
                let n_left_out: usize = cut[end - digits..end].parse().expect("a number");
                // The mark may by chance go on as the text would.
                prop_assert!(n_characters - n_left_out <= n_kept, "{cut}");
            }
        }
    }
}
