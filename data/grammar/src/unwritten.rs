//! Finds the tokens that might complete a text that no string of the JSON may hold.
//!
//! A reader of tagged calls ends a call at the first `</tool_call>`, in a string too. No grammar
//! of JSON can leave such a text out, so a token that would complete one is held back, and schemas
//! that ask for one are refused.

use serde_json::Value;

use super::error::GrammarError;
use super::vocabulary::Vocabulary;

/// The texts, and the tokens that end one or hold one.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    texts: Vec<Vec<u8>>,
    n_longest: usize,
    suspects: Vec<u32>,
}

impl Unwritten {
    /// Empty texts, which every string holds, are passed over.
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
        let may_end = |id: &u32| vocabulary.bytes(*id).iter().any(|byte| last.contains(byte));
        Self {
            n_longest: texts.iter().map(Vec::len).max().unwrap_or(0),
            suspects: if texts.is_empty() {
                Vec::new()
            } else {
                ids.filter(may_end).collect()
            },
            texts,
        }
    }

    /// Tokens that may complete a text.
    pub(super) fn suspects(&self) -> &[u32] {
        &self.suspects
    }

    /// Adds a byte to the end of a string so far; `false` if the string then holds a text.
    pub(super) fn goes_on(&self, tail: &mut Vec<u8>, byte: u8) -> bool {
        if self.texts.is_empty() {
            return true;
        }
        if tail.len() == self.n_longest {
            tail.remove(0);
        }
        tail.push(byte);
        !self.texts.iter().any(|text| tail.ends_with(text))
    }

    /// Refuses a lowered schema with a key, a value or a pattern that holds one of the texts.
    pub(super) fn check(&self, schema: &Value) -> Result<(), GrammarError> {
        let holds = |text: &str| {
            let found = |unwritten: &&Vec<u8>| {
                let unwritten = String::from_utf8_lossy(unwritten);
                text.contains(unwritten.as_ref())
            };
            match self.texts.iter().find(found) {
                None => Ok(()),
                Some(unwritten) => Err(GrammarError::unsupported(
                    "",
                    format!(
                        "asks for {text:?}, but {:?} in a string would be read as a mark of the \
                         format; spell it otherwise",
                        String::from_utf8_lossy(unwritten)
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
