//! Decides properties of a schema's regular expressions.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use crate::budgets::PATTERN_PAIRS;
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

use super::schema_error;
use crate::error::GrammarError;

/// Maximum steps for one expression.
const MAX_FUEL: u64 = 10_000;

/// Compiles each key and string pattern once, and compares each pair of key patterns once.
#[derive(Default)]
pub(crate) struct Patterns {
    compiled: RefCell<HashMap<String, Regex>>,
    disjoint: RefCell<HashSet<(String, String)>>,
    n_compared: Cell<usize>,
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patterns").finish_non_exhaustive()
    }
}

impl Patterns {
    /// A pattern that can match anywhere in a string, as llguidance parses it.
    pub(crate) fn expression(pattern: &str) -> RegexAst {
        RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
    }

    /// Whether a pattern matches somewhere in a string.
    ///
    /// # Errors
    ///
    /// The pattern cannot be compiled, or is too large.
    pub(crate) fn is_match(&self, pattern: &str, text: &str) -> Result<bool, GrammarError> {
        let mut compiled = self.compiled.borrow_mut();
        if let Some(regex) = compiled.get_mut(pattern) {
            return Ok(regex.is_match(text));
        }
        let mut regex = compile(&Self::expression(pattern))?;
        let is_match = regex.is_match(text);
        compiled.insert(pattern.to_owned(), regex);
        Ok(is_match)
    }

    /// Checks that no two patterns match the same key.
    ///
    /// # Errors
    ///
    /// - Two of the patterns can match the same key.
    /// - More than [`PATTERN_PAIRS`] pairs would have to be compared.
    pub(super) fn check_disjoint<'p>(
        &self,
        patterns: impl Iterator<Item = &'p String>,
    ) -> Result<(), GrammarError> {
        let patterns: Vec<(&String, Option<String>)> = patterns
            .map(|pattern| (pattern, literal_beginning(pattern)))
            .collect();
        for (idx, (first, begins)) in patterns.iter().enumerate() {
            for (second, other_begins) in &patterns[idx + 1..] {
                let is_apart = match (begins, other_begins) {
                    (Some(a), Some(b)) => !a.starts_with(b.as_str()) && !b.starts_with(a.as_str()),
                    _ => false,
                };
                if !is_apart {
                    self.compare(first, second)?;
                }
            }
        }
        Ok(())
    }

    fn compare(&self, first: &str, second: &str) -> Result<(), GrammarError> {
        let pair = (first.to_owned(), second.to_owned());
        if self.disjoint.borrow().contains(&pair) {
            return Ok(());
        }
        self.n_compared.set(self.n_compared.get() + 1);
        if self.n_compared.get() > PATTERN_PAIRS {
            return Err(GrammarError::TooLarge {
                reason: format!(
                    "checking whether keys match two patterns of patternProperties needs more than \
                     {PATTERN_PAIRS} comparisons; begin each pattern with ^ and a distinct literal (PATTERN_PAIRS \
                     in docs/limits.md)"
                ),
            });
        }
        let both = [first, second].map(Self::expression);
        let mut both = compile(&RegexAst::And(both.to_vec())).map_err(|_| {
            schema_error(format!(
                "can't determine if patternProperty regexes /{first}/ and /{second}/ are disjoint"
            ))
        })?;
        if !both.always_empty() {
            return Err(schema_error(format!(
                "patternProperty regexes /{first}/ and /{second}/ are not disjoint"
            )));
        }
        self.disjoint.borrow_mut().insert(pair);
        Ok(())
    }
}

/// The literal prefix that all matches share, if it is evident from the pattern. Two patterns are
/// disjoint if neither prefix is a prefix of the other.
fn literal_beginning(pattern: &str) -> Option<String> {
    let rest = pattern.strip_prefix('^')?;
    // Another alternative can have a different prefix.
    if rest.contains('|') {
        return None;
    }
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | ' ' | '@');
    let mut beginning: String = rest.chars().take_while(is_plain).collect();
    // The last character of the prefix may repeat or be absent.
    if rest[beginning.len()..].starts_with(['?', '*', '+', '{']) {
        beginning.pop();
    }
    Some(beginning)
}

/// Compiles an expression to an automaton.
///
/// # Errors
///
/// The expression cannot be compiled, or is too large.
pub(crate) fn compile(expression: &RegexAst) -> Result<Regex, GrammarError> {
    let mut builder = RegexBuilder::new();
    let regex = builder
        .mk(expression)
        .map_err(|error| schema_error(error.to_string()))?;
    builder
        .to_regex_limited(regex, MAX_FUEL)
        .map_err(|error| GrammarError::TooLarge {
            reason: format!("a pattern: {error}"),
        })
}

/// Whether an expression matches nothing.
///
/// # Errors
///
/// As for [`compile`].
pub(crate) fn is_empty(expression: &RegexAst) -> Result<bool, GrammarError> {
    let mut builder = RegexBuilder::new();
    let compiled = builder
        .mk(expression)
        .map_err(|error| schema_error(error.to_string()))?;
    if builder.exprset().is_positive(compiled) {
        return Ok(false);
    }
    let regex = builder.to_regex_limited(compiled, MAX_FUEL);
    let mut regex = regex.map_err(|error| GrammarError::TooLarge {
        reason: format!("whether a pattern matches anything: {error}"),
    })?;
    Ok(regex.always_empty())
}

/// Whether some prefix of a match has only finitely many completions. Also returns true if the
/// expression is too large to find this out.
///
/// # Errors
///
/// The expression cannot be compiled.
pub(crate) fn has_finite_prefix(expression: &RegexAst) -> Result<bool, GrammarError> {
    const MAX_STATES: usize = 300;
    let Ok(mut regex) = compile(expression) else {
        return Ok(true);
    };
    let mut states = vec![regex.initial_state()];
    let mut next: Vec<Vec<usize>> = Vec::new();
    while let Some(&state) = states.get(next.len()) {
        let mut reached = Vec::new();
        for byte in 0..=u8::MAX {
            let after = regex.transition(state, byte);
            if after.is_dead() {
                continue;
            }
            let idx = states.iter().position(|known| *known == after);
            let idx = idx.unwrap_or_else(|| {
                states.push(after);
                states.len() - 1
            });
            if !reached.contains(&idx) {
                reached.push(idx);
            }
        }
        next.push(reached);
        if states.len() > MAX_STATES {
            return Ok(true);
        }
    }
    // A state has finitely many completions if all its transitions lead to such states.
    let mut ends = vec![false; next.len()];
    loop {
        let mut has_changed = false;
        for (idx, reached) in next.iter().enumerate() {
            if !ends[idx] && reached.iter().all(|after| ends[*after]) {
                ends[idx] = true;
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    // The closing quote ends every key, so the state after it does not count.
    let closed = |idx: usize| next[idx].is_empty();
    Ok((0..next.len()).any(|idx| ends[idx] && !closed(idx)))
}
