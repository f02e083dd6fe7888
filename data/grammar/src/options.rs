//! How the JSON of a grammar is laid out and how much of a schema is enforced.

use std::time::Duration;

use serde_json::Value;
use tooltune_rows::json_schema::{declared_keys, strict_keys};

/// The white space between tokens of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// `{"a": 1, "b": []}`, as Python's `json.dumps` writes and as training targets are written.
    #[default]
    Python,
    /// `{"a":1,"b":[]}`.
    Compact,
    /// Blanks, tabs and line breaks between any two tokens, up to 100 in one place.
    Flexible,
}

/// Which keys an object may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keys {
    /// Those that the schema allows: a schema without `additionalProperties` allows any.
    #[default]
    AsWritten,
    /// Where an object declares properties and says nothing of others, others are forbidden.
    Declared,
    /// As [`Keys::Declared`], and every declared property is required.
    Strict,
}

/// What `format` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Formats {
    /// An annotation, as the gold values of SLOT rows are checked.
    #[default]
    Annotated,
    /// A condition on strings. Formats that JSON Schema does not define stay annotations.
    Asserted,
}

/// How long lists and texts may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lengths {
    /// As long as the schema allows.
    #[default]
    AsWritten,
    /// At most [`MOST_ENTRIES`](super::MOST_ENTRIES) entries in a list and
    /// [`MOST_CHARACTERS`](super::MOST_CHARACTERS) characters in a text where the schema sets no limit.
    Short,
}

/// What a grammar is compiled with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarOptions {
    /// The white space of the JSON.
    pub layout: Layout,
    /// Which keys an object may have.
    pub keys: Keys,
    /// What `format` means.
    pub formats: Formats,
    /// How long lists and texts may be.
    pub lengths: Lengths,
    /// Texts that no string may hold, because the reader of the whole text takes them for marks.
    /// [`CallFormat`](super::CallFormat) adds those of its own.
    pub unwritten: Vec<String>,
    /// Whether a text of calls may have several, where its format has a way to write them.
    pub parallel_tool_calls: bool,
    /// Time after which a schema that is still being compiled is refused.
    pub max_compile_time: Duration,
}

impl Default for GrammarOptions {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            keys: Keys::default(),
            formats: Formats::default(),
            lengths: Lengths::default(),
            unwritten: Vec::new(),
            parallel_tool_calls: false,
            max_compile_time: Duration::from_secs(10),
        }
    }
}

impl Keys {
    pub(super) fn of(self, schema: &Value) -> Value {
        match self {
            Self::AsWritten => schema.clone(),
            Self::Declared => declared_keys(schema),
            Self::Strict => strict_keys(schema),
        }
    }
}

impl Layout {
    /// What stands between items and between members.
    pub(super) fn item_separator(self) -> &'static str {
        match self {
            Self::Python => ", ",
            Self::Compact | Self::Flexible => ",",
        }
    }

    /// What stands between a key and its value.
    pub(super) fn key_separator(self) -> &'static str {
        match self {
            Self::Python => ": ",
            Self::Compact | Self::Flexible => ":",
        }
    }

    /// What may stand once between any two tokens of JSON.
    pub(super) fn white_space(self) -> Option<&'static str> {
        (self == Self::Flexible).then_some(r"[\x20\x0A\x0D\x09]{1,100}")
    }
}
