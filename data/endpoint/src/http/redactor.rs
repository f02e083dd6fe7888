//! Removes secrets from server replies, in every encoding that reveals the secret: JSON and percent
//! escapes, HTML entities, base64 and hexadecimal, whole or split over several fields.
//!
//! Values, and words of values, are removed if they have at least eight characters. Shorter ones
//! are not secret, and removing `3` everywhere would make replies useless.

mod layers;

use std::fmt;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memmem::Finder;
use serde_json::{Map, Value};

use layers::Layers;

const MASK: &str = "***";
const MIN_SECRET_BYTES: usize = 8;

/// Strings that must not occur in any reply, message or result.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Longest first, so that no part of a value remains.
    encodings: Vec<Encoding>,
}

/// A byte sequence to mask wherever a string contains it, escaped or not.
#[derive(Clone)]
struct Encoding {
    finder: Finder<'static>,
    is_base64: bool,
}

impl Encoding {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            finder: Finder::new(bytes).into_owned(),
            is_base64: false,
        }
    }

    fn from_base64(text: &str) -> Self {
        Self {
            is_base64: true,
            ..Self::from_bytes(text.as_bytes())
        }
    }
}

impl Redactor {
    /// Hides these values and their words, in any encoding.
    pub fn new(values: &[&str]) -> Self {
        let mut secrets: Vec<String> = values
            .iter()
            .flat_map(|value| secret_parts(value))
            .collect();
        secrets.retain(|text| text.len() >= MIN_SECRET_BYTES);
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self {
            encodings: secrets.iter().flat_map(|text| encodings(text)).collect(),
        }
    }

    /// The text with `***` in place of each secret.
    pub fn redact(&self, text: String) -> String {
        if self.encodings.is_empty() {
            return text;
        }
        let mut texts = TextsToRedact::default();
        texts.add(&text);
        match texts.find_hits(&self.encodings).first() {
            Some(ranges) if !ranges.is_empty() => replace_ranges(&text, ranges),
            _ => text,
        }
    }

    /// The value with `***` in place of each secret in its strings and keys, including secrets that
    /// are split over several items.
    pub fn redact_value(&self, mut value: Value) -> Value {
        if self.encodings.is_empty() {
            return value;
        }
        for with_keys in [false, true] {
            let mut texts = TextsToRedact::default();
            collect_texts(&value, with_keys, &mut texts);
            let hits = texts.find_hits(&self.encodings);
            if hits.iter().any(|ranges| !ranges.is_empty()) {
                value = rewrite_value(value, with_keys, &mut hits.into_iter());
            }
        }
        value
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({})", self.encodings.len())
    }
}

/// A value, its words, and the credentials contained in it.
fn secret_parts(value: &str) -> Vec<String> {
    let mut parts = vec![value.to_owned()];
    parts.extend(value.split_whitespace().map(str::to_owned));
    let mut credentials = Vec::new();
    for part in &parts {
        // A part may be base64 credentials, as in `Basic dXNlcjpwYXNz`.
        let decoded = STANDARD
            .decode(part)
            .or_else(|_| STANDARD_NO_PAD.decode(part))
            .or_else(|_| URL_SAFE_NO_PAD.decode(part));
        let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some((_, password)) = decoded.as_deref().and_then(|text| text.split_once(':')) {
            credentials.push(password.to_owned());
        }
        credentials.extend(decoded.filter(|text| text.contains(':')));
        // A part may be an address, as in `postgres://user:password@host/name`.
        let authority = part.split_once("://").map(|(_, after_scheme)| after_scheme);
        let user = authority.and_then(|after_scheme| after_scheme.rsplit_once('@'));
        let password = user.and_then(|(user, _)| user.split_once(':'));
        credentials.extend(password.map(|(_, password)| password.to_owned()));
    }
    parts.extend(credentials);
    parts
}

/// A secret in plain text and in encodings of its bytes.
fn encodings(secret: &str) -> Vec<Encoding> {
    let mut encodings = vec![Encoding::from_bytes(secret.as_bytes())];
    if secret.contains(' ') {
        encodings.push(Encoding::from_bytes(secret.replace(' ', "+").as_bytes()));
    }
    // If the secret itself contains escapes, decoding a reply also decodes those.
    let plain = layers::without_layers(secret);
    if plain != secret.as_bytes() && plain.len() >= MIN_SECRET_BYTES {
        encodings.push(Encoding::from_bytes(&plain));
    }
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    encodings.push(Encoding::from_bytes(hex.to_uppercase().as_bytes()));
    encodings.push(Encoding::from_bytes(hex.as_bytes()));
    // A prefix of the secret, such as `user:`, shifts its base64 bits by one of three offsets.
    for n_before in 0..3 {
        let mut bytes = vec![0_u8; n_before];
        bytes.extend(secret.bytes());
        let n_whole = bytes.len() * 8 / 6;
        let n_shared = [0, 2, 3][n_before];
        let encoded = STANDARD_NO_PAD.encode(&bytes);
        let url_safe = URL_SAFE_NO_PAD.encode(&bytes);
        if url_safe != encoded {
            encodings.push(Encoding::from_base64(&url_safe[n_shared..n_whole]));
        }
        encodings.push(Encoding::from_base64(&encoded[n_shared..n_whole]));
    }
    encodings
}

/// Strings that are searched as one, so that a secret may begin in one and end in another.
#[derive(Default)]
struct TextsToRedact {
    whole: String,
    /// The range of each string in the concatenation.
    ranges: Vec<Range<usize>>,
}

impl TextsToRedact {
    fn add(&mut self, text: &str) {
        let start = self.whole.len();
        self.whole.push_str(text);
        self.ranges.push(start..self.whole.len());
    }

    /// Adds a string that is searched separately from the others.
    fn add_separately(&mut self, text: &str) {
        self.whole.push('\0');
        self.add(text);
        self.whole.push('\0');
    }

    /// The parts of each string that belong to a secret, sorted and disjoint.
    fn find_hits(&self, encodings: &[Encoding]) -> Vec<Vec<Range<usize>>> {
        let mut hits: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.ranges.len()];
        for layer in Layers::new(self.whole.as_bytes()) {
            for encoding in encodings {
                let n_bytes = encoding.finder.needle().len();
                for start in encoding.finder.find_iter(&layer.bytes) {
                    let hit = layer.source_range(start..start + n_bytes);
                    self.add_hit(encoding, hit, &mut hits);
                }
            }
        }
        for ranges in &mut hits {
            merge_ranges(ranges);
        }
        hits
    }

    /// Splits a hit over the strings that it spans.
    fn add_hit(&self, encoding: &Encoding, hit: Range<usize>, hits: &mut [Vec<Range<usize>>]) {
        let first_text = self
            .ranges
            .partition_point(|text_range| text_range.end <= hit.start);
        let ranges = self.ranges[first_text..].iter().enumerate();
        for (idx, text_range) in ranges.take_while(|(_, text_range)| text_range.start < hit.end) {
            let start = hit.start.max(text_range.start);
            let end = hit.end.min(text_range.end);
            let text = &self.whole[text_range.clone()];
            let mut part = start - text_range.start..end - text_range.start;
            let ranges = &mut hits[first_text + idx];
            // The previous hit already masked this one, together with the base64 around it.
            let is_in_last =
                (ranges.last()).is_some_and(|l| l.start <= part.start && part.end <= l.end);
            if part.is_empty() || is_in_last {
                continue;
            }
            if encoding.is_base64 {
                part = widen_hit(text, part);
            }
            ranges.push(text.floor_char_boundary(part.start)..text.ceil_char_boundary(part.end));
        }
    }
}

/// Extends a hit over the adjacent base64 characters, which share bits with the secret.
fn widen_hit(text: &str, hit: Range<usize>) -> Range<usize> {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    let (before, after) = (&text.as_bytes()[..hit.start], &text.as_bytes()[hit.end..]);
    let n_before = before
        .iter()
        .rev()
        .take_while(|byte| is_base64(byte))
        .count();
    let n_after = after.iter().take_while(|byte| is_base64(byte)).count();
    hit.start - n_before..hit.end + n_after
}

/// Sorts ranges and merges adjacent ones.
fn merge_ranges(ranges: &mut Vec<Range<usize>>) {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    *ranges = merged;
}

fn replace_ranges(text: &str, ranges: &[Range<usize>]) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut copied_to = 0;
    for range in ranges {
        redacted.push_str(&text[copied_to..range.start]);
        redacted.push_str(MASK);
        copied_to = range.end;
    }
    redacted.push_str(&text[copied_to..]);
    redacted
}

/// Whether a number is long enough to contain a secret.
fn is_searched(number: &str) -> bool {
    number.len() >= MIN_SECRET_BYTES
}

/// Strings, long numbers and, if `with_keys`, keys, in the order in which [`rewrite_value`] visits them.
fn collect_texts(value: &Value, with_keys: bool, texts: &mut TextsToRedact) {
    match value {
        Value::String(text) => texts.add(text),
        Value::Number(number) => match number.to_string() {
            long if is_searched(&long) => texts.add_separately(&long),
            _ => texts.whole.push('\0'),
        },
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_texts(item, with_keys, texts)),
        Value::Object(fields) => {
            for (key, field) in fields {
                if with_keys {
                    texts.add(key);
                }
                collect_texts(field, with_keys, texts);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn rewrite_value(
    value: Value,
    with_keys: bool,
    hits: &mut impl Iterator<Item = Vec<Range<usize>>>,
) -> Value {
    let mut next_text = |text: String| {
        let ranges = hits.next().unwrap_or_default();
        if ranges.is_empty() {
            None
        } else {
            Some(replace_ranges(&text, &ranges))
        }
    };
    match value {
        Value::String(text) => match next_text(text.clone()) {
            Some(blotted) => Value::String(blotted),
            None => Value::String(text),
        },
        Value::Number(number) => {
            let number_text = number.to_string();
            match is_searched(&number_text)
                .then(|| next_text(number_text))
                .flatten()
            {
                Some(blotted) => Value::String(blotted),
                None => Value::Number(number),
            }
        }
        Value::Array(items) => {
            let items = items.into_iter();
            items
                .map(|item| rewrite_value(item, with_keys, hits))
                .collect()
        }
        Value::Object(fields) => {
            let mut redacted_fields = Map::with_capacity(fields.len());
            for (key, field) in fields {
                let ranges = match with_keys {
                    true => hits.next().unwrap_or_default(),
                    false => Vec::new(),
                };
                let mut key = replace_ranges(&key, &ranges);
                while !ranges.is_empty() && redacted_fields.contains_key(&key) {
                    key.push('*');
                }
                let field = rewrite_value(field, with_keys, hits);
                redacted_fields.insert(key, field);
            }
            Value::Object(redacted_fields)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "tok/SECRET\"77é";

    fn percent_encode(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    fn json_escape(text: &str) -> String {
        let units = text.encode_utf16();
        units.map(|unit| format!("\\u{unit:04x}")).collect()
    }

    #[test]
    fn every_encoding_of_a_secret_is_redacted() {
        let redactor = Redactor::new(&[SECRET]);
        let quoted = Value::from(SECRET).to_string();
        let quoted = &quoted[1..quoted.len() - 1];
        let twice_encoded = Value::from(quoted).to_string();
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        let entities: String = SECRET
            .chars()
            .map(|character| format!("&#{};", u32::from(character)))
            .collect();
        for spelled in [
            SECRET.to_owned(),
            quoted.to_owned(),
            quoted.replace('/', "\\/"),
            twice_encoded[1..twice_encoded.len() - 1].to_owned(),
            json_escape(SECRET),
            json_escape(SECRET).to_uppercase().replace("\\U", "\\u"),
            json_escape(SECRET).replace('\\', "\\\\"),
            percent_encode(SECRET),
            percent_encode(SECRET).to_lowercase(),
            percent_encode(SECRET).replace('%', "%25"),
            SECRET.replace('/', "%2F").replace('"', "%22"),
            percent_encode(&SECRET[..4]) + &SECRET[4..],
            SECRET.replace('"', "&quot;"),
            entities,
            hex.to_uppercase(),
            hex,
        ] {
            let redacted = redactor.redact(format!("a {spelled} b"));
            assert_eq!(redacted, "a *** b", "{spelled}");
        }
        for before in ["", "u", "us", "user:", "\"Authorization\": \"Bearer "] {
            for after in ["", "x", "\"}"] {
                let text = format!("{before}{SECRET}{after}");
                for engine in [&STANDARD, &base64::engine::general_purpose::URL_SAFE] {
                    let redacted = redactor.redact(format!("a {} b", engine.encode(&text)));
                    assert!(
                        ["a *** b", "a ***= b", "a ***== b"].contains(&redacted.as_str()),
                        "{before}{after}: {redacted}"
                    );
                }
            }
        }
        assert_eq!(redactor.redact("tok/SECRET\"7".to_owned()), "tok/SECRET\"7");
    }

    #[test]
    fn credentials_within_a_value_are_also_secrets() {
        let basic = STANDARD.encode("ada:lovelace1815");
        let redactor = Redactor::new(&[
            format!("Basic {basic}").as_str(),
            "postgres://me:hunter2hunter2@db/x",
        ]);
        for credential in [
            basic.as_str(),
            "ada:lovelace1815",
            "lovelace1815",
            "hunter2hunter2",
        ] {
            assert_eq!(
                redactor.redact(credential.to_owned()),
                "***",
                "{credential}"
            );
        }
        let short = Redactor::new(&["3", "v1 beta"]);
        assert_eq!(short.redact("3 of v1 beta".to_owned()), "3 of v1 beta");
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }

    #[test]
    fn a_secret_split_over_several_fields_is_redacted() {
        let redactor = Redactor::new(&["tokSECRET77", "12345678"]);
        for (value, expected) in [
            (
                json!({"key": "tokSECRET77", "n": [1, "tok"]}),
                json!({"key": "***", "n": [1, "tok"]}),
            ),
            (
                json!({"a": "my tokSE", "b": [true, "CRET77!"], "c": 1}),
                json!({"a": "my ***", "b": [true, "***!"], "c": 1}),
            ),
            (
                json!(["t", "o", "k", "S", "E", "C", "R", "E", "T", "7", "7", "x"]),
                json!([
                    "***", "***", "***", "***", "***", "***", "***", "***", "***", "***", "***",
                    "x"
                ]),
            ),
            (json!({"tokSECRET77": 1}), json!({"***": 1})),
            (
                json!({"tokSEC": {"RET77": "x"}}),
                json!({"***": {"***": "x"}}),
            ),
            (json!({"tokSEC": "RET77"}), json!({"***": "***"})),
            (json!({"pin": 12_345_678}), json!({"pin": "***"})),
            (json!([1234, 5678]), json!([1234, 5678])),
            (
                json!({"text": "{\"k\": \"\\u0074okSECRET77\"}"}),
                json!({"text": "{\"k\": \"***\"}"}),
            ),
            (json!([null, "other", 7]), json!([null, "other", 7])),
        ] {
            assert_eq!(redactor.redact_value(value.clone()), expected, "{value}");
        }
        let empty = Redactor::default();
        assert_eq!(empty.redact_value(json!({"a": "b"})), json!({"a": "b"}));
    }

    #[test]
    fn escapes_of_other_languages_are_also_decoded() {
        let redactor = Redactor::new(&[SECRET, "pass%41\\nword", "correct horse battery"]);
        for (spelled, expected) in [
            (r#"b'tok/SECRET"77\xc3\xa9'"#, "b'***'"),
            (r#"'tok/SECRET"77\xe9'"#, "'***'"),
            (r#"tok/SECRET\u{22}77\u{e9}"#, "***"),
            (r#"tok\U0000002fSECRET"77\U000000e9"#, "***"),
            (r"tok\057SECRET\04277\303\251", "***"),
            ("tok&sol;SECRET&quot;77&#xE9;", "***"),
            (r"a pass%41\nword", "a ***"),
            (r#"{\"k\":\"pass\u002541\\nword\"}"#, r#"{\"k\":\"***\"}"#),
            ("q=correct+horse+battery&r", "q=***&r"),
            ("q=correct%20horse%20battery&r", "q=***&r"),
        ] {
            assert_eq!(redactor.redact(spelled.to_owned()), expected, "{spelled}");
        }
        // The decoded secret begins with a byte that is the second half of a character here.
        let odd = Redactor::new(&["%A9%A9%A9%A9%A9%A9%A9%A9abcdefgh"]);
        let text = format!("é{}abcdefgh", "%A9".repeat(8));
        assert_eq!(odd.redact(text), "é***");
        assert_eq!(
            odd.redact(format!("%A9é{}abcdefgh", "%A9".repeat(7))),
            "%A9***"
        );
    }

    #[test]
    fn a_long_reply_without_a_secret_is_unchanged() {
        let redactor = Redactor::new(&["%%%%%%%%%%%%%%%%a", "\\\\\\\\b", "tokSECRET77"]);
        for unit in ["%", "\\", "%25", "t", "\\u0074", "&#", "tokSECRET7"] {
            let text = unit.repeat((1 << 14) / unit.len());
            assert_eq!(redactor.redact(text.clone()), text);
        }
    }

    /// The time per byte must not depend on how many offsets look like the start of a secret: work
    /// that grows with the square of the length would take hours.
    #[test]
    fn replies_full_of_secret_prefixes_are_redacted_in_linear_time() {
        let secret = format!("{}x", "\\".repeat(64));
        let text = "\\".repeat(1 << 22);
        assert_eq!(Redactor::new(&[&secret]).redact(text.clone()), text);
        let redactor = Redactor::new(&["tokSECRET77"]);
        let encoded_often = STANDARD.encode("tokSECRET77\0".repeat(1 << 14));
        assert_eq!(redactor.redact(encoded_often), "***");
    }
}
