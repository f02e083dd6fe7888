//! JSON layout and strictness of a grammar.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json::json_schema::{declared_keys, strict_keys};

use super::lower::UNENFORCED_FORMATS;

/// The whitespace between JSON tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Layout {
    /// `{"a": 1, "b": []}`, as in Python's `json.dumps` and in training targets.
    #[default]
    Python,
    /// `{"a":1,"b":[]}`.
    Compact,
    /// Up to 100 spaces, tabs and line breaks between any two tokens.
    Flexible,
}

/// Which keys an object can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Keys {
    /// The keys that the schema allows, which are all keys if there is no `additionalProperties`.
    #[default]
    AsWritten,
    /// An object that declares properties but not `additionalProperties` forbids other keys.
    Declared,
    /// As [`Keys::Declared`], with every declared property required.
    Strict,
}

/// The meaning of `format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Formats {
    /// An annotation, as in the validation of SLOT gold values.
    #[default]
    Annotated,
    /// A condition on strings. Formats that JSON Schema does not define remain annotations.
    Asserted,
    /// A condition on strings if the grammar can enforce it. All other formats remain annotations
    /// (see [`Formats::unenforced_formats`]), so the generated text must be validated.
    Enforceable,
}

impl Formats {
    /// The formats that JSON Schema defines but the grammar cannot enforce.
    pub fn unenforced_formats() -> &'static [&'static str] {
        &UNENFORCED_FORMATS
    }
}

/// Length limits of lists and strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Lengths {
    /// Only the schema's limits.
    #[default]
    AsWritten,
    /// At most [`MAX_ENTRIES`](super::MAX_ENTRIES) entries per list and
    /// [`MAX_CHARACTERS`](super::MAX_CHARACTERS) characters per string if the schema sets no
    /// limit.
    Short,
}

/// Compilation options of a grammar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrammarOptions {
    /// Whitespace of the JSON.
    pub layout: Layout,
    /// Which keys an object can have.
    pub keys: Keys,
    /// The meaning of `format`.
    pub formats: Formats,
    /// Length limits of lists and strings.
    pub lengths: Lengths,
    /// Substrings that must not occur in a JSON string, because parsers of the reply would
    /// interpret them as markers. [`CallFormat`](super::CallFormat) adds the markers of the format.
    pub forbidden_substrings: Vec<String>,
    /// Whether a reply can contain several calls, if its format supports this.
    pub parallel_tool_calls: bool,
    /// Time limit of compilation.
    pub max_compile_time: Duration,
}

impl Default for GrammarOptions {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            keys: Keys::default(),
            formats: Formats::default(),
            lengths: Lengths::default(),
            forbidden_substrings: Vec::new(),
            parallel_tool_calls: false,
            max_compile_time: Duration::from_secs(10),
        }
    }
}

impl Keys {
    pub(super) fn apply_to(self, schema: &Value) -> Value {
        match self {
            Self::AsWritten => schema.clone(),
            Self::Declared => declared_keys(schema),
            Self::Strict => strict_keys(schema),
        }
    }
}

impl Layout {
    /// The separator between items and between members.
    pub(super) fn item_separator(self) -> &'static str {
        match self {
            Self::Python => ", ",
            Self::Compact | Self::Flexible => ",",
        }
    }

    /// The separator between a key and its value.
    pub(super) fn key_separator(self) -> &'static str {
        match self {
            Self::Python => ": ",
            Self::Compact | Self::Flexible => ":",
        }
    }

    /// The whitespace that may occur once between any two JSON tokens.
    pub(super) fn white_space(self) -> Option<&'static str> {
        (self == Self::Flexible).then_some(r"[\x20\x0A\x0D\x09]{1,100}")
    }
}
