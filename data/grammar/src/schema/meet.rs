//! Intersects two sets of values, and says whether they visibly exclude each other.

use indexmap::IndexMap;
use tooltune_rows::budgets::ALTERNATIVE_PAIRS;

use super::read::Reader;
use super::{Arrays, Objects, Patterns, Schema, Texts};
use crate::error::GrammarError;

fn smaller<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Objects {
    /// Itself, or no value where its counts contradict each other.
    pub(super) fn checked(self) -> Schema {
        match self.max_properties {
            Some(most) if self.min_properties > most => {
                Schema::never("minProperties is above maxProperties")
            }
            Some(most) if self.required.len() > most => {
                Schema::never("more keys are required than maxProperties allows")
            }
            _ => Schema::Object(self),
        }
    }

    /// What the value of a key keeps to.
    ///
    /// # Errors
    ///
    /// - a pattern is too large
    pub(crate) fn property(&self, key: &str, patterns: &Patterns) -> Result<&Schema, GrammarError> {
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

impl Texts {
    fn meet(self, other: Self) -> Result<Schema, GrammarError> {
        let literal = match (self.literal, other.literal) {
            (Some(a), Some(b)) if a != b => {
                return Ok(Schema::never(format!("a text is {a:?} and {b:?} at once")));
            }
            (a, b) => a.or(b),
        };
        let mut expressions = self.expressions;
        expressions.extend(other.expressions);
        Ok(Schema::Text(Self {
            min_length: self.min_length.max(other.min_length),
            max_length: smaller(self.max_length, other.max_length),
            literal,
            expressions,
        }))
    }
}

impl Reader<'_> {
    /// What both schemas allow.
    ///
    /// # Errors
    ///
    /// - there are too many alternatives, or references that meet without end
    pub(super) fn meet(
        &mut self,
        a: Schema,
        b: Schema,
        n_levels: usize,
    ) -> Result<Schema, GrammarError> {
        self.work(n_levels)?;
        let n_levels = n_levels + 1;
        let met = match (a, b) {
            (Schema::Any, other) | (other, Schema::Any) => other,
            (never @ Schema::Never(_), _) | (_, never @ Schema::Never(_)) => never,
            (Schema::Reference(name), other) => {
                let schema = self.resolved(name)?;
                self.meet(schema, other, n_levels)?
            }
            (other, Schema::Reference(name)) => {
                let schema = self.resolved(name)?;
                self.meet(other, schema, n_levels)?
            }
            (Schema::OneOf(options), other) => {
                let met = options.into_iter();
                let met = met.map(|option| self.meet(option, other.clone(), n_levels));
                Schema::OneOf(met.collect::<Result<_, _>>()?)
            }
            (other, Schema::OneOf(options)) => {
                let met = options.into_iter();
                let met = met.map(|option| self.meet(other.clone(), option, n_levels));
                Schema::OneOf(met.collect::<Result<_, _>>()?)
            }
            (Schema::AnyOf(options), other) => {
                let met = options.into_iter();
                let met = met.map(|option| self.meet(option, other.clone(), n_levels));
                Schema::AnyOf(met.collect::<Result<_, _>>()?)
            }
            (other, Schema::AnyOf(options)) => {
                let met = options.into_iter();
                let met = met.map(|option| self.meet(other.clone(), option, n_levels));
                Schema::AnyOf(met.collect::<Result<_, _>>()?)
            }
            (Schema::Null, Schema::Null) => Schema::Null,
            (Schema::Boolean(a), Schema::Boolean(b)) => match (a, b) {
                (Some(a), Some(b)) if a != b => Schema::never("true and false at once"),
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
        self.plain(met)
    }

    fn meet_arrays(
        &mut self,
        mut a: Arrays,
        mut b: Arrays,
        n_levels: usize,
    ) -> Result<Arrays, GrammarError> {
        let n_prefix = a.prefix.len().max(b.prefix.len());
        for one in [&mut a, &mut b] {
            let rest = (*one.rest).clone();
            one.prefix.resize(n_prefix, rest);
        }
        let pairs = a.prefix.into_iter().zip(b.prefix);
        let prefix = pairs.map(|(a, b)| self.meet(a, b, n_levels));
        Ok(Arrays {
            prefix: prefix.collect::<Result<_, _>>()?,
            min_items: a.min_items.max(b.min_items),
            max_items: smaller(a.max_items, b.max_items),
            rest: Box::new(self.meet(*a.rest, *b.rest, n_levels)?),
        })
    }

    fn meet_objects(
        &mut self,
        a: Objects,
        b: Objects,
        n_levels: usize,
    ) -> Result<Schema, GrammarError> {
        let mut properties = IndexMap::new();
        for key in a.properties.keys().chain(b.properties.keys()) {
            if properties.contains_key(key) {
                continue;
            }
            let of_a = a.property(key, &self.patterns)?.clone();
            let of_b = b.property(key, &self.patterns)?.clone();
            properties.insert(key.clone(), self.meet(of_a, of_b, n_levels)?);
        }
        // A key that matches a pattern of one side alone is any other key to the other side.
        let mut by_pattern = IndexMap::new();
        for pattern in a.by_pattern.keys().chain(b.by_pattern.keys()) {
            if by_pattern.contains_key(pattern) {
                continue;
            }
            let of_a = a.by_pattern.get(pattern).unwrap_or(&a.rest).clone();
            let of_b = b.by_pattern.get(pattern).unwrap_or(&b.rest).clone();
            by_pattern.insert(pattern.clone(), self.meet(of_a, of_b, n_levels)?);
        }
        self.patterns.check_disjoint(by_pattern.keys())?;
        let mut required = a.required;
        required.extend(b.required);
        let met = Objects {
            properties,
            by_pattern,
            rest: Box::new(self.meet(*a.rest, *b.rest, n_levels)?),
            required,
            min_properties: a.min_properties.max(b.min_properties),
            max_properties: smaller(a.max_properties, b.max_properties),
        };
        Ok(met.checked())
    }

    /// The same set without alternatives that allow nothing, and without a choice of one;
    /// alternatives of `oneOf` that exclude each other become those of `anyOf`.
    pub(super) fn plain(&mut self, schema: Schema) -> Result<Schema, GrammarError> {
        let (options, is_one) = match schema {
            Schema::AnyOf(options) => (options, false),
            Schema::OneOf(options) => (options, true),
            other => return Ok(other),
        };
        let mut kept = Vec::with_capacity(options.len());
        let mut never = None;
        for option in options {
            match option {
                Schema::Any if !is_one => return Ok(Schema::Any),
                Schema::Never(_) => never = never.or(Some(option)),
                Schema::AnyOf(nested) if !is_one => kept.extend(nested),
                other => kept.push(other),
            }
        }
        if kept.len() > 1 && is_one {
            self.compare_alternatives(kept.len())?;
            let mut pairs = kept
                .iter()
                .enumerate()
                .flat_map(|(idx, a)| kept.iter().skip(idx + 1).map(move |b| (a, b)));
            return Ok(if pairs.all(|(a, b)| self.exclude(a, b)) {
                Schema::AnyOf(kept)
            } else {
                Schema::OneOf(kept)
            });
        }
        Ok(match (kept.len(), kept.pop()) {
            (1, Some(only)) => only,
            (_, Some(last)) => {
                kept.push(last);
                Schema::AnyOf(kept)
            }
            (_, None) => never.unwrap_or_else(|| Schema::never("there is no alternative")),
        })
    }

    /// Counts the pairs of alternatives that are compared.
    ///
    /// # Errors
    ///
    /// - there are more than [`ALTERNATIVE_PAIRS`] in the schema
    fn compare_alternatives(&mut self, n: usize) -> Result<(), GrammarError> {
        self.n_pairs = self.n_pairs.saturating_add(n.saturating_mul(n - 1) / 2);
        if self.n_pairs > ALTERNATIVE_PAIRS {
            Err(GrammarError::TooLarge {
                reason: format!(
                    "whether a value fits two alternatives of oneOf takes comparing more than \
                     {ALTERNATIVE_PAIRS} pairs of them; write anyOf, or enum for constants \
                     (ALTERNATIVE_PAIRS in docs/limits.md)"
                ),
            })
        } else {
            Ok(())
        }
    }

    /// Whether no value visibly is in both sets.
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
                    let of_a = a.property(key, &self.patterns).unwrap_or(&Schema::Any);
                    let of_b = b.property(key, &self.patterns).unwrap_or(&Schema::Any);
                    self.exclude(of_a, of_b)
                })
            }
            (a, b) => std::mem::discriminant(a) != std::mem::discriminant(b),
        }
    }
}
