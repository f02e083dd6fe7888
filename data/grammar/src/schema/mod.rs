//! A lowered schema to the set of values that it allows, with everything that holds in one place
//! met: `allOf`, `$ref` beside other keywords, `enum` beside a type.
//!
//! llguidance has such a compiler of its own. This one writes numbers, constants and strings as
//! training targets spell them, and compares numbers as validators do; keys keep the order that
//! llguidance gives them.

mod formats;
mod meet;
mod patterns;
mod read;
mod short;

use indexmap::{IndexMap, IndexSet};
use llguidance::derivre::RegexAst;

pub(super) use patterns::{Patterns, compile, is_empty, runs_out};
pub(super) use read::read;
pub use short::{MOST_CHARACTERS, MOST_ENTRIES};

use super::error::GrammarError;
use super::ranges::Numbers;

/// A set of values.
#[derive(Debug, Clone)]
pub(super) enum Schema {
    Any,
    /// No value, and why.
    Never(String),
    Null,
    Boolean(Option<bool>),
    Number(Numbers),
    Text(Texts),
    Array(Arrays),
    Object(Objects),
    AnyOf(Vec<Schema>),
    OneOf(Vec<Schema>),
    /// A definition.
    Reference(usize),
}

/// A set of strings.
#[derive(Clone, Default)]
pub(super) struct Texts {
    pub(super) min_length: usize,
    pub(super) max_length: Option<usize>,
    /// The only one.
    pub(super) literal: Option<String>,
    /// What each of them matches.
    pub(super) expressions: Vec<RegexAst>,
}

/// A set of arrays.
#[derive(Debug, Clone)]
pub(super) struct Arrays {
    pub(super) min_items: usize,
    pub(super) max_items: Option<usize>,
    pub(super) prefix: Vec<Schema>,
    pub(super) rest: Box<Schema>,
}

/// A set of objects.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    pub(super) properties: IndexMap<String, Schema>,
    pub(super) by_pattern: IndexMap<String, Schema>,
    pub(super) rest: Box<Schema>,
    pub(super) required: IndexSet<String>,
    pub(super) min_properties: usize,
    pub(super) max_properties: Option<usize>,
}

/// A schema with the definitions that it refers to.
#[derive(Debug)]
pub(super) struct Schemas {
    pub(super) root: Schema,
    pub(super) definitions: Vec<Schema>,
    pub(super) patterns: Patterns,
}

impl Default for Arrays {
    fn default() -> Self {
        Self {
            min_items: 0,
            max_items: None,
            prefix: Vec::new(),
            rest: Box::new(Schema::Any),
        }
    }
}

impl Default for Objects {
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

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Texts")
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

fn refused(why: impl Into<String>) -> GrammarError {
    GrammarError::unsupported("", why)
}
