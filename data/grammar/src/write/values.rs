//! Values: numbers, strings, arrays and objects.

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::earley::SymIdx;
use serde_json::Value;
use tooltune_rows::json::{Style, dumps};

use super::{Fault, Writer};
use crate::error::GrammarError;
use crate::ranges::{Numbers, Wholeness};
use crate::schema::{Arrays, Objects, Patterns, Schema, Texts, compile, is_empty, runs_out};

/// A character of a string as Python's `json.dumps` writes it, without `ensure_ascii`: each has
/// one spelling, so that no key has two.
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
                "has alternatives of oneOf that may hold at once, which is not enforced; let them \
                 exclude each other by type or by a required key, or use anyOf",
            ))),
            Schema::Reference(name) => Ok(self.reference(*name)),
            Schema::Never(why) => Err(Fault::Never(why.clone())),
            Schema::Null | Schema::Boolean(_) | Schema::Number(_) | Schema::Text(_) => {
                Err(Fault::Never("a scalar without a text".to_owned()))
            }
        }
    }

    /// What a scalar looks like; none for other schemas.
    fn scalar(&mut self, schema: &Schema) -> Result<Option<RegexAst>, Fault> {
        let literal = |text: &str| Ok(Some(RegexAst::Literal(text.to_owned())));
        match schema {
            Schema::Null => literal("null"),
            Schema::Boolean(None) => Ok(Some(RegexAst::Regex("true|false".to_owned()))),
            Schema::Boolean(Some(true)) => literal("true"),
            Schema::Boolean(Some(false)) => literal("false"),
            Schema::Number(numbers) => {
                let refused = |why: String| GrammarError::unsupported("", why);
                if let Some(why) = numbers.emptiness() {
                    return Err(Fault::Never(why));
                }
                Ok(Some(numbers.texts().map_err(refused)?))
            }
            Schema::Text(texts) => text(texts).map(Some),
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
        // It stands in its own arrays and objects.
        self.any = Some(any);
        for schema in [
            Schema::Null,
            Schema::Boolean(None),
            Schema::Number(Numbers::any(Wholeness::Any)),
            Schema::Text(Texts::default()),
            Schema::Array(Arrays::default()),
            Schema::Object(Objects::default()),
        ] {
            let option = self.value(&schema)?;
            self.rule(any, vec![option])?;
        }
        Ok(any)
    }

    /// Alternatives; those without a value are left out, and scalars are one lexeme.
    fn any_of(&mut self, options: &[Schema]) -> Result<SymIdx, Fault> {
        let (mut scalars, mut others) = (Vec::new(), Vec::new());
        let mut never = None;
        for option in options {
            let written = match self.scalar(option) {
                Ok(Some(expression)) => {
                    scalars.push(expression);
                    continue;
                }
                Ok(None) => self.value(option),
                Err(fault) => Err(fault),
            };
            match written {
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
                never.unwrap_or_else(|| "there is no alternative".to_owned()),
            ))
        } else {
            Ok(self.select(others)?)
        }
    }

    /// The symbol of a value that may be missing; none where no value is allowed.
    fn if_possible(&mut self, schema: &Schema) -> Result<Option<SymIdx>, Fault> {
        match self.value(schema) {
            Ok(symbol) => Ok(Some(symbol)),
            Err(Fault::Never(_)) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    fn separator(&mut self) -> Result<SymIdx, GrammarError> {
        self.literal(self.layout.item_separator())
    }

    fn array(&mut self, arrays: &Arrays) -> Result<SymIdx, Fault> {
        let (least, mut most) = (arrays.min_items, arrays.max_items);
        if most.is_some_and(|most| least > most) {
            return Err(Fault::Never("minItems is above maxItems".to_owned()));
        }
        let rest = match self.value(&arrays.rest) {
            Ok(symbol) => Some(symbol),
            Err(Fault::Never(_)) if arrays.prefix.len() >= least => None,
            Err(fault) => return Err(fault),
        };
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        let n_prefix = most.map_or(arrays.prefix.len(), |most| most.min(arrays.prefix.len()));
        for (idx, item) in arrays.prefix.iter().take(n_prefix).enumerate() {
            match self.value(item) {
                Ok(symbol) if idx < least => required.push(symbol),
                Ok(symbol) => optional.push(symbol),
                Err(Fault::Never(_)) if idx >= least => {
                    most = Some(idx);
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        let n_written = required.len() + optional.len();
        let left = most.map(|most| most.saturating_sub(n_written));
        if let Some(rest) = rest.filter(|_| left != Some(0)) {
            let n_needed = least.saturating_sub(n_written);
            let tail = self.several(rest, n_needed.max(1), left)?;
            match n_needed {
                0 => optional.push(tail),
                _ => required.push(tail),
            }
        }
        let separator = self.separator()?;
        // Each item may come only after the one before it.
        let mut further: Option<SymIdx> = None;
        for (idx, item) in optional.into_iter().enumerate().rev() {
            let mut parts = Vec::new();
            if idx > 0 || !required.is_empty() {
                parts.push(separator);
            }
            parts.push(item);
            parts.extend(further);
            let joined = self.join(parts)?;
            further = Some(self.optional(joined)?);
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

    /// From `least`, at least 1, to `most` parts with separators between them.
    fn several(
        &mut self,
        part: SymIdx,
        least: usize,
        most: Option<usize>,
    ) -> Result<SymIdx, GrammarError> {
        let separator = self.separator()?;
        let before = self.join(vec![part, separator])?;
        let most = most.map(|most| most.saturating_sub(1));
        let before = self.repeated(before, least.saturating_sub(1), most)?;
        self.join(vec![before, part])
    }

    fn object(&mut self, objects: &Objects) -> Result<SymIdx, Fault> {
        let colon = self.literal(self.layout.key_separator())?;
        let schemas = self.schemas;
        let (mut members, mut taken) = (Vec::new(), Vec::new());
        let undeclared = objects.required.iter();
        let undeclared = undeclared.filter(|key| !objects.properties.contains_key(*key));
        for key in objects.properties.keys().chain(undeclared) {
            let is_required = objects.required.contains(key);
            let schema = objects.property(key, &schemas.patterns)?;
            let name = dumps(&Value::from(key.as_str()), Style::Python);
            taken.push((key, RegexAst::Literal(name.clone())));
            let value = match self.value(schema) {
                Ok(symbol) => symbol,
                Err(Fault::Never(_)) if !is_required => continue,
                Err(Fault::Never(why)) => {
                    return Err(Fault::Never(format!(
                        "the required property {key:?} cannot be: {why}"
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
        let least = objects.min_properties.saturating_sub(n_required);
        let most = objects.max_properties;
        let most = most.map(|most| most.saturating_sub(n_required));
        if members.len() > n_required && (least > 0 || most.is_some()) {
            return self.one_of_the_declared(objects, &members, least, most);
        }
        let others = self.other_keys(objects, taken, colon)?;
        if !others.is_empty() && most != Some(0) {
            let other = self.select(others)?;
            members.push(Member {
                symbol: self.several(other, least, most)?,
                is_required: least > 0,
            });
        } else if least > 0 {
            return Err(Fault::Never(format!(
                "minProperties asks for {least} keys beyond the {n_required} that there may be"
            )));
        }
        Ok(self.fields(&members)?)
    }

    /// Keys that are not declared, by pattern and otherwise, with their values.
    fn other_keys(
        &mut self,
        objects: &Objects,
        taken: Vec<(&String, RegexAst)>,
        colon: SymIdx,
    ) -> Result<Vec<SymIdx>, Fault> {
        let schemas = self.schemas;
        let mut names: Vec<RegexAst> = taken.iter().map(|(_, name)| name.clone()).collect();
        let mut options = Vec::new();
        for (pattern, schema) in &objects.by_pattern {
            let name = quoted(Patterns::expression(pattern));
            names.push(name.clone());
            let Some(value) = self.if_possible(schema)? else {
                continue;
            };
            let mut declared = Vec::new();
            for (key, literal) in &taken {
                if schemas.patterns.is_match(pattern, key)? {
                    declared.push(literal.clone());
                }
            }
            options.push(self.other_key(but_for(name, declared), colon, value)?);
        }
        if let Some(value) = self.if_possible(&objects.rest)? {
            let name = but_for(any_text(0, None), names);
            if objects.by_pattern.is_empty() {
                // There is no end of other names than some.
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
        self.keys_run_out = self.keys_run_out || runs_out(&name)?;
        let name = self.lexeme(name)?;
        self.join(vec![name, colon, value])
    }

    /// "At least one" and "at most one" of the declared keys alone.
    fn one_of_the_declared(
        &mut self,
        objects: &Objects,
        members: &[Member],
        least: usize,
        most: Option<usize>,
    ) -> Result<SymIdx, Fault> {
        if least > 1
            || most.is_some_and(|most| most != 1)
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
            let kept = members.iter().enumerate();
            let kept =
                kept.filter(|(idx, one)| most.is_none() || one.is_required || *idx == chosen);
            let kept: Vec<Member> = kept
                .map(|(idx, one)| Member {
                    symbol: one.symbol,
                    is_required: one.is_required || idx == chosen,
                })
                .collect();
            options.push(self.fields(&kept)?);
        }
        if least == 0 {
            let kept = members.iter().filter(|member| member.is_required);
            let kept: Vec<Member> = kept
                .map(|one| Member {
                    symbol: one.symbol,
                    is_required: true,
                })
                .collect();
            options.push(self.fields(&kept)?);
        }
        Ok(self.select(options)?)
    }

    /// An object with its members in order.
    fn fields(&mut self, members: &[Member]) -> Result<SymIdx, GrammarError> {
        let separator = self.separator()?;
        // What may come from a member on, after another member and as the first; nothing at the
        // end.
        let (mut after, mut first): (Option<SymIdx>, Option<SymIdx>) = (None, None);
        for member in members.iter().rev() {
            let chained =
                |parts: &[SymIdx]| -> Vec<SymIdx> { parts.iter().copied().chain(after).collect() };
            let with_separator = chained(&[separator, member.symbol]);
            let without = chained(&[member.symbol]);
            let (next_after, next_first) = (self.symbol(""), self.symbol(""));
            self.rule(next_after, with_separator)?;
            self.rule(next_first, without)?;
            if !member.is_required {
                self.rule(next_after, after.into_iter().collect())?;
                self.rule(next_first, first.into_iter().collect())?;
            }
            (after, first) = (Some(next_after), Some(next_first));
        }
        let mut parts = vec![self.literal("{")?];
        parts.extend(first);
        parts.push(self.literal("}")?);
        self.join(parts)
    }
}

/// An expression of texts as one of JSON strings.
fn quoted(expression: RegexAst) -> RegexAst {
    let options = JsonQuoteOptions {
        allowed_escapes: ESCAPES.to_owned(),
        raw_mode: false,
    };
    RegexAst::JsonQuote(Box::new(expression), options)
}

/// JSON strings with so many characters.
fn any_text(least: usize, most: Option<usize>) -> RegexAst {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let character = RegexAst::Regex(CHARACTER.to_owned());
    RegexAst::Concat(vec![
        RegexAst::Literal("\"".to_owned()),
        RegexAst::Repeat(
            Box::new(character),
            count(least),
            most.map_or(u32::MAX, count),
        ),
        RegexAst::Literal("\"".to_owned()),
    ])
}

fn but_for(expression: RegexAst, others: Vec<RegexAst>) -> RegexAst {
    if others.is_empty() {
        expression
    } else {
        RegexAst::And(vec![
            expression,
            RegexAst::Not(Box::new(RegexAst::Or(others))),
        ])
    }
}

fn text(texts: &Texts) -> Result<RegexAst, Fault> {
    let (least, most) = (texts.min_length, texts.max_length);
    if let Some(literal) = &texts.literal {
        let n = literal.chars().count();
        let mut is_valid = n >= least && most.is_none_or(|most| n <= most);
        for expression in &texts.expressions {
            is_valid = is_valid && compile(expression)?.is_match(literal);
        }
        return if is_valid {
            let written = dumps(&Value::from(literal.as_str()), Style::Python);
            Ok(RegexAst::Literal(written))
        } else {
            Err(Fault::Never(format!(
                "the constant {literal:?} breaks a condition on strings"
            )))
        };
    }
    if most.is_some_and(|most| least > most) {
        return Err(Fault::Never("minLength is above maxLength".to_owned()));
    }
    if texts.expressions.is_empty() {
        return Ok(any_text(least, most));
    }
    let mut all = texts.expressions.clone();
    if least > 0 || most.is_some() {
        let most = most.map_or_else(String::new, |most| most.to_string());
        all.push(RegexAst::Regex(format!("(?s:.{{{least},{most}}})")));
    }
    let expression = RegexAst::And(all);
    if is_empty(&expression)? {
        Err(Fault::Never("no string has its patterns".to_owned()))
    } else {
        Ok(quoted(expression))
    }
}
