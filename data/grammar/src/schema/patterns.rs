//! Regular expressions of schemas, asked what they match.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use tooltune_rows::budgets::PATTERN_PAIRS;

use super::refused;
use crate::error::GrammarError;

/// Steps after which an expression is given up.
const MAX_FUEL: u64 = 10_000;

/// Patterns of keys and strings, each compiled once, and each pair of keys' patterns compared once.
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
    /// A pattern that may be found anywhere in a text, as llguidance reads it.
    pub(crate) fn expression(pattern: &str) -> RegexAst {
        RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
    }

    /// Whether a pattern is found in a text.
    ///
    /// # Errors
    ///
    /// - the pattern cannot be compiled, or is too large
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

    /// # Errors
    ///
    /// - two of the patterns may match one text
    /// - more than [`PATTERN_PAIRS`] pairs would have to be compared
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
                    "whether a key has two patterns of patternProperties takes comparing more than \
                     {PATTERN_PAIRS} pairs of them; begin each with ^ and a text of its own (PATTERN_PAIRS \
                     in docs/limits.md)"
                ),
            });
        }
        let both = [first, second].map(Self::expression);
        let mut both = compile(&RegexAst::And(both.to_vec())).map_err(|_| {
            refused(format!(
                "can't determine if patternProperty regexes /{first}/ and /{second}/ are disjoint"
            ))
        })?;
        if !both.always_empty() {
            return Err(refused(format!(
                "patternProperty regexes /{first}/ and /{second}/ are not disjoint"
            )));
        }
        self.disjoint.borrow_mut().insert(pair);
        Ok(())
    }
}

/// The text with which all that a pattern finds begins, where it visibly says so: two patterns of
/// which neither's is the other's beginning find no text in common.
fn literal_beginning(pattern: &str) -> Option<String> {
    let rest = pattern.strip_prefix('^')?;
    // An alternative may begin with anything.
    if rest.contains('|') {
        return None;
    }
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | ' ' | '@');
    let mut beginning: String = rest.chars().take_while(is_plain).collect();
    // The last one may be there any number of times, or not at all.
    if rest[beginning.len()..].starts_with(['?', '*', '+', '{']) {
        beginning.pop();
    }
    Some(beginning)
}

/// An automaton of an expression.
///
/// # Errors
///
/// - it cannot be compiled, or is too large
pub(crate) fn compile(expression: &RegexAst) -> Result<Regex, GrammarError> {
    let mut builder = RegexBuilder::new();
    let made = builder
        .mk(expression)
        .map_err(|error| refused(error.to_string()))?;
    builder
        .to_regex_limited(made, MAX_FUEL)
        .map_err(|error| GrammarError::TooLarge {
            reason: format!("a pattern: {error}"),
        })
}

/// Whether an expression matches nothing.
///
/// # Errors
///
/// - as [`compile`]
pub(crate) fn is_empty(expression: &RegexAst) -> Result<bool, GrammarError> {
    let mut builder = RegexBuilder::new();
    let made = builder
        .mk(expression)
        .map_err(|error| refused(error.to_string()))?;
    if builder.exprset().is_positive(made) {
        return Ok(false);
    }
    let regex = builder.to_regex_limited(made, MAX_FUEL);
    let mut regex = regex.map_err(|error| GrammarError::TooLarge {
        reason: format!("whether a pattern matches anything: {error}"),
    })?;
    Ok(regex.always_empty())
}

/// Whether some beginning of a match can be ended in finitely many ways only; so may be what is
/// too large to tell.
///
/// # Errors
///
/// - the expression cannot be compiled
pub(crate) fn runs_out(expression: &RegexAst) -> Result<bool, GrammarError> {
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
    // A state whose ways all end is one from which every way leads to such a state.
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
    // The closing quote ends every key.
    let closed = |idx: usize| next[idx].is_empty();
    Ok((0..next.len()).any(|idx| ends[idx] && !closed(idx)))
}
