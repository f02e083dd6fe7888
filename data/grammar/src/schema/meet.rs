//! Intersects two sets of values, and detects obviously disjoint sets.

use crate::budgets::ALTERNATIVE_PAIRS;
use indexmap::IndexMap;

use super::read::Reader;
use super::{ArraySchema, ObjectSchema, Patterns, Schema, StringSchema};
use crate::error::GrammarError;

fn min_limit<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl ObjectSchema {
    /// The schema itself, or no value if its counts contradict each other.
    pub(super) fn or_never(self) -> Schema {
        match self.max_properties {
            Some(most) if self.min_properties > most => {
                Schema::never("minProperties exceeds maxProperties")
            }
            Some(most) if self.required.len() > most => {
                Schema::never("more keys are required than maxProperties allows")
            }
            _ => Schema::Object(self),
        }
    }

    /// The schema of a key's value.
    ///
    /// # Errors
    ///
    /// A pattern is too large.
    pub(crate) fn property_schema(
        &self,
        key: &str,
        patterns: &Patterns,
    ) -> Result<&Schema, GrammarError> {
        if let Some(schema) = self.properties.get(key) {
            return Ok(schema);
        }
        for (pattern, schema) in &self.by_pattern {
            if patterns.is_match(pattern, key)? {
                return Ok(schema);
            }
        }
        Ok(&self.rest)
    }
}

impl StringSchema {
    fn meet(self, other: Self) -> Result<Schema, GrammarError> {
        let literal = match (self.literal, other.literal) {
            (Some(a), Some(b)) if a != b => {
                return Ok(Schema::never(format!(
                    "a string would have to be both {a:?} and {b:?}"
                )));
            }
            (a, b) => a.or(b),
        };
        let mut expressions = self.expressions;
        expressions.extend(other.expressions);
        Ok(Schema::Text(Self {
            min_length: self.min_length.max(other.min_length),
            max_length: min_limit(self.max_length, other.max_length),
            literal,
            expressions,
        }))
    }
}

impl Reader<'_> {
    /// The intersection of both schemas.
    ///
    /// # Errors
    ///
    /// There are too many alternatives, or recursive references intersect without end.
    pub(super) fn meet(
        &mut self,
        a: Schema,
        b: Schema,
        n_levels: usize,
    ) -> Result<Schema, GrammarError> {
        self.count_work(n_levels)?;
        let n_levels = n_levels + 1;
        let intersection = match (a, b) {
            (Schema::Any, other) | (other, Schema::Any) => other,
            (never @ Schema::Never(_), _) | (_, never @ Schema::Never(_)) => never,
            (Schema::Reference(name), other) => {
                let schema = self.resolve_definition(name)?;
                self.meet(schema, other, n_levels)?
            }
            (other, Schema::Reference(name)) => {
                let schema = self.resolve_definition(name)?;
                self.meet(other, schema, n_levels)?
            }
            (Schema::OneOf(options), other) => {
                let intersection = options.into_iter();
                let intersection =
                    intersection.map(|option| self.meet(option, other.clone(), n_levels));
                Schema::OneOf(intersection.collect::<Result<_, _>>()?)
            }
            (other, Schema::OneOf(options)) => {
                let intersection = options.into_iter();
                let intersection =
                    intersection.map(|option| self.meet(other.clone(), option, n_levels));
                Schema::OneOf(intersection.collect::<Result<_, _>>()?)
            }
            (Schema::AnyOf(options), other) => {
                let intersection = options.into_iter();
                let intersection =
                    intersection.map(|option| self.meet(option, other.clone(), n_levels));
                Schema::AnyOf(intersection.collect::<Result<_, _>>()?)
            }
            (other, Schema::AnyOf(options)) => {
                let intersection = options.into_iter();
                let intersection =
                    intersection.map(|option| self.meet(other.clone(), option, n_levels));
                Schema::AnyOf(intersection.collect::<Result<_, _>>()?)
            }
            (Schema::Null, Schema::Null) => Schema::Null,
            (Schema::Boolean(a), Schema::Boolean(b)) => match (a, b) {
                (Some(a), Some(b)) if a != b => {
                    Schema::never("a boolean would have to be both true and false")
                }
                (a, b) => Schema::Boolean(a.or(b)),
            },
            (Schema::Number(a), Schema::Number(b)) => Schema::Number(a.meet(b)),
            (Schema::Text(a), Schema::Text(b)) => a.meet(b)?,
            (Schema::Array(a), Schema::Array(b)) => {
                Schema::Array(self.meet_arrays(a, b, n_levels)?)
            }
            (Schema::Object(a), Schema::Object(b)) => self.meet_objects(a, b, n_levels)?,
            _ => Schema::never("its types exclude each other"),
        };
        self.simplify_choice(intersection)
    }

    fn meet_arrays(
        &mut self,
        mut a: ArraySchema,
        mut b: ArraySchema,
        n_levels: usize,
    ) -> Result<ArraySchema, GrammarError> {
        let n_prefix = a.prefix.len().max(b.prefix.len());
        for one in [&mut a, &mut b] {
            let rest = (*one.rest).clone();
            one.prefix.resize(n_prefix, rest);
        }
        let pairs = a.prefix.into_iter().zip(b.prefix);
        let prefix = pairs.map(|(a, b)| self.meet(a, b, n_levels));
        Ok(ArraySchema {
            prefix: prefix.collect::<Result<_, _>>()?,
            min_items: a.min_items.max(b.min_items),
            max_items: min_limit(a.max_items, b.max_items),
            rest: Box::new(self.meet(*a.rest, *b.rest, n_levels)?),
        })
    }

    fn meet_objects(
        &mut self,
        a: ObjectSchema,
        b: ObjectSchema,
        n_levels: usize,
    ) -> Result<Schema, GrammarError> {
        let mut properties = IndexMap::new();
        for key in a.properties.keys().chain(b.properties.keys()) {
            if properties.contains_key(key) {
                continue;
            }
            let schema_a = a.property_schema(key, &self.patterns)?.clone();
            let schema_b = b.property_schema(key, &self.patterns)?.clone();
            properties.insert(key.clone(), self.meet(schema_a, schema_b, n_levels)?);
        }
        // A key that matches a pattern of only one side is an undeclared key of the other side.
        let mut by_pattern = IndexMap::new();
        for pattern in a.by_pattern.keys().chain(b.by_pattern.keys()) {
            if by_pattern.contains_key(pattern) {
                continue;
            }
            let schema_a = a.by_pattern.get(pattern).unwrap_or(&a.rest).clone();
            let schema_b = b.by_pattern.get(pattern).unwrap_or(&b.rest).clone();
            by_pattern.insert(pattern.clone(), self.meet(schema_a, schema_b, n_levels)?);
        }
        self.patterns.check_disjoint(by_pattern.keys())?;
        let mut required = a.required;
        required.extend(b.required);
        let intersection = ObjectSchema {
            properties,
            by_pattern,
            rest: Box::new(self.meet(*a.rest, *b.rest, n_levels)?),
            required,
            min_properties: a.min_properties.max(b.min_properties),
            max_properties: min_limit(a.max_properties, b.max_properties),
        };
        Ok(intersection.or_never())
    }

    /// Returns the same set without empty alternatives. If only one alternative is left, returns
    /// that alternative. If alternatives of `oneOf` exclude each other, they become `anyOf`.
    pub(super) fn simplify_choice(&mut self, schema: Schema) -> Result<Schema, GrammarError> {
        let (options, is_one) = match schema {
            Schema::AnyOf(options) => (options, false),
            Schema::OneOf(options) => (options, true),
            other => return Ok(other),
        };
        let mut possible = Vec::with_capacity(options.len());
        let mut never = None;
        for option in options {
            match option {
                Schema::Any if !is_one => return Ok(Schema::Any),
                Schema::Never(_) => never = never.or(Some(option)),
                Schema::AnyOf(nested) if !is_one => possible.extend(nested),
                other => possible.push(other),
            }
        }
        if possible.len() > 1 && is_one {
            self.compare_alternatives(possible.len())?;
            let mut pairs = possible
                .iter()
                .enumerate()
                .flat_map(|(idx, a)| possible.iter().skip(idx + 1).map(move |b| (a, b)));
            return Ok(if pairs.all(|(a, b)| self.exclude(a, b)) {
                Schema::AnyOf(possible)
            } else {
                Schema::OneOf(possible)
            });
        }
        Ok(match (possible.len(), possible.pop()) {
            (1, Some(only)) => only,
            (_, Some(last)) => {
                possible.push(last);
                Schema::AnyOf(possible)
            }
            (_, None) => never.unwrap_or_else(|| Schema::never("it has no alternatives")),
        })
    }

    /// Counts the compared pairs of alternatives.
    ///
    /// # Errors
    ///
    /// The schema needs more than [`ALTERNATIVE_PAIRS`].
    fn compare_alternatives(&mut self, n: usize) -> Result<(), GrammarError> {
        self.n_pairs = self.n_pairs.saturating_add(n.saturating_mul(n - 1) / 2);
        if self.n_pairs > ALTERNATIVE_PAIRS {
            Err(GrammarError::TooLarge {
                reason: format!(
                    "checking that alternatives of oneOf exclude each other needs more than \
                     {ALTERNATIVE_PAIRS} comparisons; use anyOf, or enum for constants \
                     (ALTERNATIVE_PAIRS in docs/limits.md)"
                ),
            })
        } else {
            Ok(())
        }
    }

    /// Whether the two sets are obviously disjoint.
    fn exclude(&self, a: &Schema, b: &Schema) -> bool {
        match (a, b) {
            (Schema::Never(_), _) | (_, Schema::Never(_)) => true,
            (Schema::Any | Schema::Reference(_), _) | (_, Schema::Any | Schema::Reference(_)) => {
                false
            }
            (Schema::AnyOf(options) | Schema::OneOf(options), other)
            | (other, Schema::AnyOf(options) | Schema::OneOf(options)) => {
                options.iter().all(|option| self.exclude(option, other))
            }
            (Schema::Boolean(a), Schema::Boolean(b)) => a.is_some() && b.is_some() && a != b,
            (Schema::Number(a), Schema::Number(b)) => {
                a.clone().meet(b.clone()).emptiness().is_some()
            }
            (Schema::Text(a), Schema::Text(b)) => {
                a.literal.is_some() && b.literal.is_some() && a.literal != b.literal
            }
            (Schema::Object(a), Schema::Object(b)) => {
                let keys = a.required.iter().chain(&b.required);
                keys.into_iter().any(|key| {
                    let schema_a = a
                        .property_schema(key, &self.patterns)
                        .unwrap_or(&Schema::Any);
                    let schema_b = b
                        .property_schema(key, &self.patterns)
                        .unwrap_or(&Schema::Any);
                    self.exclude(schema_a, schema_b)
                })
            }
            (a, b) => std::mem::discriminant(a) != std::mem::discriminant(b),
        }
    }
}
