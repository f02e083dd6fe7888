//! Writes numbers, strings, arrays and objects.

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::earley::SymIdx;
use serde_json::Value;
use tooltune_json::{Style, dumps};

use super::{Fault, Writer};
use crate::error::GrammarError;
use crate::ranges::{NumberSchema, Wholeness};
use crate::schema::{
    ArraySchema, ObjectSchema, Patterns, Schema, StringSchema, compile, has_finite_prefix, is_empty,
};

/// A string character as Python's `json.dumps` writes it with `ensure_ascii=False`. Each character
/// has one spelling, so every key has exactly one spelling.
const CHARACTER: &str = r#"[^"\\\x00-\x1F]|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f])"#;
/// The escapes of strings with a pattern.
const ESCAPES: &str = "nrbtf\\\"";

/// A key with its value, or several of them.
struct Member {
    symbol: SymIdx,
    is_required: bool,
}

impl Writer<'_> {
    pub(super) fn value(&mut self, schema: &Schema) -> Result<SymIdx, Fault> {
        if let Some(expression) = self.scalar(schema)? {
            return Ok(self.lexeme(expression)?);
        }
        match schema {
            Schema::Any => Ok(self.any()?),
            Schema::Array(arrays) => self.array(arrays),
            Schema::Object(objects) => self.object(objects),
            Schema::AnyOf(options) => self.any_of(options),
            Schema::OneOf(_) => Err(Fault::Refused(GrammarError::unsupported(
                "",
                "has overlapping alternatives of oneOf, which is not enforced; make them \
                 exclude each other by type or by a required key, or use anyOf",
            ))),
            Schema::Reference(name) => Ok(self.reference(*name)),
            Schema::Never(why) => Err(Fault::Never(why.clone())),
            Schema::Null | Schema::Boolean(_) | Schema::Number(_) | Schema::Text(_) => {
                Err(Fault::Never("a scalar has no spelling".to_owned()))
            }
        }
    }

    /// The expression of a scalar; `None` for other schemas.
    fn scalar(&mut self, schema: &Schema) -> Result<Option<RegexAst>, Fault> {
        let literal = |text: &str| Ok(Some(RegexAst::Literal(text.to_owned())));
        match schema {
            Schema::Null => literal("null"),
            Schema::Boolean(None) => Ok(Some(RegexAst::Regex("true|false".to_owned()))),
            Schema::Boolean(Some(true)) => literal("true"),
            Schema::Boolean(Some(false)) => literal("false"),
            Schema::Number(numbers) => {
                let unsupported = |why: String| GrammarError::unsupported("", why);
                if let Some(why) = numbers.emptiness() {
                    return Err(Fault::Never(why));
                }
                Ok(Some(numbers.spellings().map_err(unsupported)?))
            }
            Schema::Text(texts) => string_expression(texts).map(Some),
            _ => Ok(None),
        }
    }

    fn reference(&mut self, name: usize) -> SymIdx {
        if let Some(symbol) = self.definitions.get(&name) {
            return *symbol;
        }
        let symbol = self.symbol(&format!("d{name}"));
        self.definitions.insert(name, symbol);
        self.pending.push(name);
        symbol
    }

    fn any(&mut self) -> Result<SymIdx, GrammarError> {
        if let Some(symbol) = self.any {
            return Ok(symbol);
        }
        let any = self.symbol("any");
        // Store the symbol first, because any value can contain any value in arrays and objects.
        self.any = Some(any);
        for schema in [
            Schema::Null,
            Schema::Boolean(None),
            Schema::Number(NumberSchema::any(Wholeness::Any)),
            Schema::Text(StringSchema::default()),
            Schema::Array(ArraySchema::default()),
            Schema::Object(ObjectSchema::default()),
        ] {
            let option = self.value(&schema)?;
            self.add_rule(any, vec![option])?;
        }
        Ok(any)
    }

    /// Writes alternatives. Empty alternatives are left out, and all scalars share one lexeme.
    fn any_of(&mut self, options: &[Schema]) -> Result<SymIdx, Fault> {
        let (mut scalars, mut others) = (Vec::new(), Vec::new());
        let mut never = None;
        for option in options {
            let option_symbol = match self.scalar(option) {
                Ok(Some(expression)) => {
                    scalars.push(expression);
                    continue;
                }
                Ok(None) => self.value(option),
                Err(fault) => Err(fault),
            };
            match option_symbol {
                Ok(symbol) => others.push(symbol),
                Err(Fault::Never(why)) => never = never.or(Some(why)),
                Err(refused) => return Err(refused),
            }
        }
        self.check_limits()?;
        if !scalars.is_empty() {
            others.push(self.lexeme(RegexAst::Or(scalars))?);
        }
        if others.is_empty() {
            Err(Fault::Never(
                never.unwrap_or_else(|| "it has no alternatives".to_owned()),
            ))
        } else {
            Ok(self.select(others)?)
        }
    }

    /// The symbol of an optional value; `None` if no value is allowed.
    fn optional_value(&mut self, schema: &Schema) -> Result<Option<SymIdx>, Fault> {
        match self.value(schema) {
            Ok(symbol) => Ok(Some(symbol)),
            Err(Fault::Never(_)) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    fn separator(&mut self) -> Result<SymIdx, GrammarError> {
        self.literal(self.layout.item_separator())
    }

    fn array(&mut self, arrays: &ArraySchema) -> Result<SymIdx, Fault> {
        let (min, mut max) = (arrays.min_items, arrays.max_items);
        if max.is_some_and(|max| min > max) {
            return Err(Fault::Never("minItems exceeds maxItems".to_owned()));
        }
        let rest = match self.value(&arrays.rest) {
            Ok(symbol) => Some(symbol),
            Err(Fault::Never(_)) if arrays.prefix.len() >= min => None,
            Err(fault) => return Err(fault),
        };
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        let n_prefix = max.map_or(arrays.prefix.len(), |max| max.min(arrays.prefix.len()));
        for (idx, item) in arrays.prefix.iter().take(n_prefix).enumerate() {
            match self.value(item) {
                Ok(symbol) if idx < min => required.push(symbol),
                Ok(symbol) => optional.push(symbol),
                Err(Fault::Never(_)) if idx >= min => {
                    max = Some(idx);
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        let n_written = required.len() + optional.len();
        let n_left = max.map(|max| max.saturating_sub(n_written));
        if let Some(rest) = rest.filter(|_| n_left != Some(0)) {
            let n_needed = min.saturating_sub(n_written);
            let tail = self.repeat_separated(rest, n_needed.max(1), n_left)?;
            match n_needed {
                0 => optional.push(tail),
                _ => required.push(tail),
            }
        }
        let separator = self.separator()?;
        // Each optional item requires the item before it.
        let mut further: Option<SymIdx> = None;
        for (idx, item) in optional.into_iter().enumerate().rev() {
            let mut parts = Vec::new();
            if idx > 0 || !required.is_empty() {
                parts.push(separator);
            }
            parts.push(item);
            parts.extend(further);
            let sequence = self.join(parts)?;
            further = Some(self.optional(sequence)?);
        }
        let mut parts = vec![self.literal("[")?];
        for (idx, item) in required.into_iter().enumerate() {
            if idx > 0 {
                parts.push(separator);
            }
            parts.push(item);
        }
        parts.extend(further);
        parts.push(self.literal("]")?);
        Ok(self.join(parts)?)
    }

    /// From `min` (at least 1) to `max` parts with separators between them.
    fn repeat_separated(
        &mut self,
        part: SymIdx,
        min: usize,
        max: Option<usize>,
    ) -> Result<SymIdx, GrammarError> {
        let separator = self.separator()?;
        let repeated = self.join(vec![part, separator])?;
        let max = max.map(|max| max.saturating_sub(1));
        let repeated = self.repeat(repeated, min.saturating_sub(1), max)?;
        self.join(vec![repeated, part])
    }

    fn object(&mut self, objects: &ObjectSchema) -> Result<SymIdx, Fault> {
        let colon = self.literal(self.layout.key_separator())?;
        let schemas = self.schemas;
        let (mut members, mut taken) = (Vec::new(), Vec::new());
        let undeclared = objects.required.iter();
        let undeclared = undeclared.filter(|key| !objects.properties.contains_key(*key));
        for key in objects.properties.keys().chain(undeclared) {
            let is_required = objects.required.contains(key);
            let schema = objects.property_schema(key, &schemas.patterns)?;
            let name = dumps(&Value::from(key.as_str()), Style::Python);
            taken.push((key, RegexAst::Literal(name.clone())));
            let value = match self.value(schema) {
                Ok(symbol) => symbol,
                Err(Fault::Never(_)) if !is_required => continue,
                Err(Fault::Never(why)) => {
                    return Err(Fault::Never(format!(
                        "the required property {key:?} has no valid value: {why}"
                    )));
                }
                Err(refused) => return Err(refused),
            };
            let name = self.literal(&name)?;
            members.push(Member {
                symbol: self.join(vec![name, colon, value])?,
                is_required,
            });
        }
        let n_required = members.iter().filter(|member| member.is_required).count();
        let min = objects.min_properties.saturating_sub(n_required);
        let max = objects.max_properties;
        let max = max.map(|max| max.saturating_sub(n_required));
        if members.len() > n_required && (min > 0 || max.is_some()) {
            return self.one_declared_key(objects, &members, min, max);
        }
        let others = self.other_keys(objects, taken, colon)?;
        if !others.is_empty() && max != Some(0) {
            let other = self.select(others)?;
            members.push(Member {
                symbol: self.repeat_separated(other, min, max)?,
                is_required: min > 0,
            });
        } else if min > 0 {
            return Err(Fault::Never(format!(
                "minProperties requires {min} more keys than the {n_required} that are possible"
            )));
        }
        Ok(self.fields(&members)?)
    }

    /// Undeclared keys with their values: keys that match a pattern, and all other keys.
    fn other_keys(
        &mut self,
        objects: &ObjectSchema,
        other_keys: Vec<(&String, RegexAst)>,
        colon: SymIdx,
    ) -> Result<Vec<SymIdx>, Fault> {
        let schemas = self.schemas;
        let mut names: Vec<RegexAst> = other_keys.iter().map(|(_, name)| name.clone()).collect();
        let mut options = Vec::new();
        for (pattern, schema) in &objects.by_pattern {
            let name = json_string_expression(Patterns::expression(pattern));
            names.push(name.clone());
            let Some(value) = self.optional_value(schema)? else {
                continue;
            };
            let mut declared = Vec::new();
            for (key, literal) in &other_keys {
                if schemas.patterns.is_match(pattern, key)? {
                    declared.push(literal.clone());
                }
            }
            options.push(self.other_key(except(name, declared), colon, value)?);
        }
        if let Some(value) = self.optional_value(&objects.rest)? {
            let name = except(any_text(0, None), names);
            if objects.by_pattern.is_empty() {
                // Infinitely many other names remain, so these keys cannot be used up.
                let name = self.lexeme(name)?;
                options.push(self.join(vec![name, colon, value])?);
            } else {
                options.push(self.other_key(name, colon, value)?)
            }
        }
        Ok(options)
    }

    fn other_key(
        &mut self,
        name: RegexAst,
        colon: SymIdx,
        value: SymIdx,
    ) -> Result<SymIdx, GrammarError> {
        self.has_finite_keys = self.has_finite_keys || has_finite_prefix(&name)?;
        let name = self.lexeme(name)?;
        self.join(vec![name, colon, value])
    }

    /// Writes an object with at least one or at most one property, if it only has declared keys.
    fn one_declared_key(
        &mut self,
        objects: &ObjectSchema,
        members: &[Member],
        min: usize,
        max: Option<usize>,
    ) -> Result<SymIdx, Fault> {
        if min > 1
            || max.is_some_and(|max| max != 1)
            || !objects.by_pattern.is_empty()
            || !objects.rest.is_never()
        {
            return Err(Fault::Refused(GrammarError::unsupported(
                "",
                "min/maxProperties only supported when all keys listed in \"properties\" are \
                 required",
            )));
        }
        let mut options = Vec::new();
        for (chosen, member) in members.iter().enumerate() {
            if member.is_required {
                continue;
            }
            let required_or_chosen = members.iter().enumerate();
            let required_or_chosen = required_or_chosen
                .filter(|(idx, one)| max.is_none() || one.is_required || *idx == chosen);
            let required_or_chosen: Vec<Member> = required_or_chosen
                .map(|(idx, one)| Member {
                    symbol: one.symbol,
                    is_required: one.is_required || idx == chosen,
                })
                .collect();
            options.push(self.fields(&required_or_chosen)?);
        }
        if min == 0 {
            let required_or_chosen = members.iter().filter(|member| member.is_required);
            let required_or_chosen: Vec<Member> = required_or_chosen
                .map(|one| Member {
                    symbol: one.symbol,
                    is_required: true,
                })
                .collect();
            options.push(self.fields(&required_or_chosen)?);
        }
        Ok(self.select(options)?)
    }

    /// An object with its members in order.
    fn fields(&mut self, members: &[Member]) -> Result<SymIdx, GrammarError> {
        let separator = self.separator()?;
        // The rest of an object from the current member on: `after` continues after another member,
        // and `first` begins the object. `None` means that the object ends.
        let (mut after, mut first): (Option<SymIdx>, Option<SymIdx>) = (None, None);
        for member in members.iter().rev() {
            let before_rest =
                |parts: &[SymIdx]| -> Vec<SymIdx> { parts.iter().copied().chain(after).collect() };
            let with_separator = before_rest(&[separator, member.symbol]);
            let without = before_rest(&[member.symbol]);
            let (next_after, next_first) = (self.symbol(""), self.symbol(""));
            self.add_rule(next_after, with_separator)?;
            self.add_rule(next_first, without)?;
            if !member.is_required {
                self.add_rule(next_after, after.into_iter().collect())?;
                self.add_rule(next_first, first.into_iter().collect())?;
            }
            (after, first) = (Some(next_after), Some(next_first));
        }
        let mut parts = vec![self.literal("{")?];
        parts.extend(first);
        parts.push(self.literal("}")?);
        self.join(parts)
    }
}

/// Converts an expression of strings to an expression of JSON strings.
fn json_string_expression(expression: RegexAst) -> RegexAst {
    let options = JsonQuoteOptions {
        allowed_escapes: ESCAPES.to_owned(),
        raw_mode: false,
    };
    RegexAst::JsonQuote(Box::new(expression), options)
}

/// JSON strings with a number of characters in this range.
fn any_text(min: usize, max: Option<usize>) -> RegexAst {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let character = RegexAst::Regex(CHARACTER.to_owned());
    RegexAst::Concat(vec![
        RegexAst::Literal("\"".to_owned()),
        RegexAst::Repeat(Box::new(character), count(min), max.map_or(u32::MAX, count)),
        RegexAst::Literal("\"".to_owned()),
    ])
}

fn except(expression: RegexAst, others: Vec<RegexAst>) -> RegexAst {
    if others.is_empty() {
        expression
    } else {
        RegexAst::And(vec![
            expression,
            RegexAst::Not(Box::new(RegexAst::Or(others))),
        ])
    }
}

fn string_expression(texts: &StringSchema) -> Result<RegexAst, Fault> {
    let (min, max) = (texts.min_length, texts.max_length);
    if let Some(literal) = &texts.literal {
        let n = literal.chars().count();
        let mut is_valid = n >= min && max.is_none_or(|max| n <= max);
        for expression in &texts.expressions {
            is_valid = is_valid && compile(expression)?.is_match(literal);
        }
        return if is_valid {
            let json = dumps(&Value::from(literal.as_str()), Style::Python);
            Ok(RegexAst::Literal(json))
        } else {
            Err(Fault::Never(format!(
                "the constant {literal:?} violates a condition on strings"
            )))
        };
    }
    if max.is_some_and(|max| min > max) {
        return Err(Fault::Never("minLength exceeds maxLength".to_owned()));
    }
    if texts.expressions.is_empty() {
        return Ok(any_text(min, max));
    }
    let mut all = texts.expressions.clone();
    if min > 0 || max.is_some() {
        let max = max.map_or_else(String::new, |max| max.to_string());
        all.push(RegexAst::Regex(format!("(?s:.{{{min},{max}}})")));
    }
    let expression = RegexAst::And(all);
    if is_empty(&expression)? {
        Err(Fault::Never("no string matches its patterns".to_owned()))
    } else {
        Ok(json_string_expression(expression))
    }
}
