//! Prevents forbidden substrings in JSON strings.
//!
//! Server parsers of tagged calls end a call at the first `</tool_call>`, even inside a string. A
//! JSON grammar cannot exclude such a substring. Instead, a token that would complete a forbidden
//! substring is masked, and a schema that requires one is refused.

use serde_json::Value;

use super::error::GrammarError;
use super::vocabulary::Vocabulary;

/// The substrings, and the tokens that can complete a substring.
#[derive(Debug, Default)]
pub(super) struct ForbiddenSubstrings {
    texts: Vec<Vec<u8>>,
    n_longest: usize,
    candidate_tokens: Vec<u32>,
}

impl ForbiddenSubstrings {
    /// Ignores empty substrings, which every string contains.
    pub(super) fn new(vocabulary: &Vocabulary, texts: &[String]) -> Self {
        let texts: Vec<Vec<u8>> = texts
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| text.as_bytes().to_vec())
            .collect();
        let last: Vec<u8> = texts
            .iter()
            .filter_map(|text| text.last().copied())
            .collect();
        let ids = (0..).take(vocabulary.n_logits());
        let can_complete = |id: &u32| vocabulary.bytes(*id).iter().any(|byte| last.contains(byte));
        Self {
            n_longest: texts.iter().map(Vec::len).max().unwrap_or(0),
            candidate_tokens: if texts.is_empty() {
                Vec::new()
            } else {
                ids.filter(can_complete).collect()
            },
            texts,
        }
    }

    /// Tokens that can complete a substring.
    pub(super) fn candidate_tokens(&self) -> &[u32] {
        &self.candidate_tokens
    }

    /// Appends a byte to the string's tail; returns `false` if a forbidden substring is now
    /// complete.
    pub(super) fn push_byte(&self, tail: &mut Vec<u8>, byte: u8) -> bool {
        if self.texts.is_empty() {
            return true;
        }
        if tail.len() == self.n_longest {
            tail.remove(0);
        }
        tail.push(byte);
        !self.texts.iter().any(|text| tail.ends_with(text))
    }

    /// Refuses a lowered schema with a key, value or pattern that contains one of the substrings.
    pub(super) fn check(&self, schema: &Value) -> Result<(), GrammarError> {
        let holds = |text: &str| {
            let is_contained = |forbidden_substrings: &&Vec<u8>| {
                let forbidden_substrings = String::from_utf8_lossy(forbidden_substrings);
                text.contains(forbidden_substrings.as_ref())
            };
            match self.texts.iter().find(is_contained) {
                None => Ok(()),
                Some(forbidden_substrings) => Err(GrammarError::unsupported(
                    "",
                    format!(
                        "requires {text:?}, but {:?} in a string would be parsed as a marker of the \
                         format; use another spelling",
                        String::from_utf8_lossy(forbidden_substrings)
                    ),
                )),
            }
        };
        match schema {
            Value::String(text) => holds(text),
            Value::Array(items) => items.iter().try_for_each(|item| self.check(item)),
            Value::Object(fields) => fields.iter().try_for_each(|(key, field)| {
                holds(key)?;
                self.check(field)
            }),
            _ => Ok(()),
        }
    }
}
