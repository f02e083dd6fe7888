//! Converts a lowered schema to the set of values that it allows. All conditions on a value are
//! intersected: `allOf`, `$ref` next to other keywords, and `enum` next to a type.
//!
//! llguidance also has a compiler for this. This one spells numbers, constants and strings as
//! training targets do, and compares numbers as validators do. Keys keep llguidance's order.

mod formats;
mod meet;
mod patterns;
mod read;
mod short;

use indexmap::{IndexMap, IndexSet};
use llguidance::derivre::RegexAst;

pub(super) use patterns::{Patterns, compile, has_finite_prefix, is_empty};
pub(super) use read::read;
pub use short::{MAX_CHARACTERS, MAX_ENTRIES};

use super::error::GrammarError;
use super::ranges::NumberSchema;

/// A set of values.
#[derive(Debug, Clone)]
pub(super) enum Schema {
    Any,
    /// The empty set, with the reason why it is empty.
    Never(String),
    Null,
    Boolean(Option<bool>),
    Number(NumberSchema),
    Text(StringSchema),
    Array(ArraySchema),
    Object(ObjectSchema),
    AnyOf(Vec<Schema>),
    OneOf(Vec<Schema>),
    /// A definition.
    Reference(usize),
}

/// A set of strings.
#[derive(Clone, Default)]
pub(super) struct StringSchema {
    pub(super) min_length: usize,
    pub(super) max_length: Option<usize>,
    /// The only string in the set, if there is only one.
    pub(super) literal: Option<String>,
    /// Expressions that every string must match.
    pub(super) expressions: Vec<RegexAst>,
}

/// A set of arrays.
#[derive(Debug, Clone)]
pub(super) struct ArraySchema {
    pub(super) min_items: usize,
    pub(super) max_items: Option<usize>,
    pub(super) prefix: Vec<Schema>,
    pub(super) rest: Box<Schema>,
}

/// A set of objects.
#[derive(Debug, Clone)]
pub(super) struct ObjectSchema {
    pub(super) properties: IndexMap<String, Schema>,
    pub(super) by_pattern: IndexMap<String, Schema>,
    pub(super) rest: Box<Schema>,
    pub(super) required: IndexSet<String>,
    pub(super) min_properties: usize,
    pub(super) max_properties: Option<usize>,
}

/// A schema and the definitions that it refers to.
#[derive(Debug)]
pub(super) struct Schemas {
    pub(super) root: Schema,
    pub(super) definitions: Vec<Schema>,
    pub(super) patterns: Patterns,
}

impl Default for ArraySchema {
    fn default() -> Self {
        Self {
            min_items: 0,
            max_items: None,
            prefix: Vec::new(),
            rest: Box::new(Schema::Any),
        }
    }
}

impl Default for ObjectSchema {
    fn default() -> Self {
        Self {
            properties: IndexMap::new(),
            by_pattern: IndexMap::new(),
            rest: Box::new(Schema::Any),
            required: IndexSet::new(),
            min_properties: 0,
            max_properties: None,
        }
    }
}

impl std::fmt::Debug for StringSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StringSchema")
            .field("min_length", &self.min_length)
            .field("max_length", &self.max_length)
            .field("literal", &self.literal)
            .field("n_expressions", &self.expressions.len())
            .finish()
    }
}

impl Schema {
    pub(super) fn never(why: impl Into<String>) -> Self {
        Self::Never(why.into())
    }

    pub(super) fn is_never(&self) -> bool {
        matches!(self, Self::Never(_))
    }
}

fn schema_error(why: impl Into<String>) -> GrammarError {
    GrammarError::unsupported("", why)
}
