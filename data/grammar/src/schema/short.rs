//! Lists and texts that end.
//!
//! A small model may repeat one entry of a list without end. Nothing in a schema without `maxItems`
//! says that it must stop, so that the text is cut and is no JSON.

use super::{Arrays, Schema, Schemas, Texts};

/// Entries of a list that says no number of its own.
pub const MOST_ENTRIES: usize = 16;

/// Characters of a text that says no number of its own.
pub const MOST_CHARACTERS: usize = 256;

impl Schemas {
    /// Sets a limit to each list and each text that has none, but for those with a pattern and those
    /// within any value; whether there were some. What is allowed then was allowed before.
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
            Self::Text(Texts {
                literal: None,
                expressions,
                min_length,
                max_length: most @ None,
            }) if expressions.is_empty() => {
                *most = Some(MOST_CHARACTERS.max(*min_length));
                *is_shortened = true;
            }
            Self::Array(Arrays {
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
                    *max_items = Some(MOST_ENTRIES.max(*min_items).max(prefix.len()));
                    *is_shortened = true;
                }
            }
            Self::Object(objects) => {
                let named = objects.properties.values_mut();
                for value in named.chain(objects.by_pattern.values_mut()) {
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
