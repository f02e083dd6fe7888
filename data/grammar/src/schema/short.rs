//! Limits the lengths of lists and strings.
//!
//! A small model may repeat an entry of a list without end. A schema without `maxItems` does not
//! stop it, so the completion would be truncated and would not be valid JSON.

use super::{ArraySchema, Schema, Schemas, StringSchema};

/// Maximum entries of a list without its own limit.
pub const MAX_ENTRIES: usize = 16;

/// Maximum characters of a string without its own limit.
pub const MAX_CHARACTERS: usize = 256;

impl Schemas {
    /// Limits each list and each string that has no limit, except strings with a pattern and values
    /// without a schema. Returns whether it changed any. The result allows a subset of the values.
    pub(crate) fn shorten(&mut self) -> bool {
        let mut is_shortened = false;
        for schema in std::iter::once(&mut self.root).chain(&mut self.definitions) {
            schema.shorten(&mut is_shortened);
        }
        is_shortened
    }
}

impl Schema {
    fn shorten(&mut self, is_shortened: &mut bool) {
        match self {
            Self::Text(StringSchema {
                literal: None,
                expressions,
                min_length,
                max_length: most @ None,
            }) if expressions.is_empty() => {
                *most = Some(MAX_CHARACTERS.max(*min_length));
                *is_shortened = true;
            }
            Self::Array(ArraySchema {
                min_items,
                max_items,
                prefix,
                rest,
            }) => {
                for item in prefix.iter_mut() {
                    item.shorten(is_shortened);
                }
                rest.shorten(is_shortened);
                if max_items.is_none() && !rest.is_never() {
                    *max_items = Some(MAX_ENTRIES.max(*min_items).max(prefix.len()));
                    *is_shortened = true;
                }
            }
            Self::Object(objects) => {
                let properties = objects.properties.values_mut();
                for value in properties.chain(objects.by_pattern.values_mut()) {
                    value.shorten(is_shortened);
                }
                objects.rest.shorten(is_shortened);
            }
            Self::AnyOf(options) | Self::OneOf(options) => {
                for option in options {
                    option.shorten(is_shortened);
                }
            }
            _ => {}
        }
    }
}
