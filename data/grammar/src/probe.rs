//! Tests before generation whether the parser can process a pattern.
//!
//! The automaton of a pattern is built lazily while text is generated, and some automata exceed
//! every limit. For patterns with long repetitions, this module generates a few tokens, so that the
//! schema is refused before generation instead of a completion being cut off.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::{Map, Value, json};

use super::constraint::{CompiledGrammar, Constraint};
use super::error::GrammarError;
use super::forbidden_substrings::ForbiddenSubstrings;
use super::vocabulary::Vocabulary;

/// In tests, patterns with repetition counts up to this number never grew too much.
const N_SAFE_REPETITIONS: u64 = 64;
/// Number of tokens that are generated for a pattern.
const N_TOKENS: usize = 32;

/// Generates a few tokens for each pattern of a lowered schema that has a long repetition.
///
/// `build` compiles the schema of a string with this pattern.
///
/// # Errors
///
/// A step exceeds a limit of the parser.
pub(super) fn patterns(
    vocabulary: &Vocabulary,
    schema: &Map<String, Value>,
    build: impl Fn(&Map<String, Value>) -> Result<CompiledGrammar, GrammarError>,
) -> Result<(), GrammarError> {
    let mut patterns = BTreeSet::new();
    collect_fields(schema, &mut patterns);
    for pattern in patterns {
        // If a pattern cannot be compiled on its own, the whole schema is compiled and reports the
        // error.
        let string = Map::from_iter([
            ("type".to_owned(), json!(["string"])),
            ("pattern".to_owned(), json!(pattern)),
        ]);
        let Ok(built) = build(&string) else {
            continue;
        };
        let forbidden_substrings = Arc::new(ForbiddenSubstrings::default());
        let mut constraint = Constraint::new(vocabulary.clone(), built, forbidden_substrings);
        walk_pattern(&mut constraint).map_err(|error| GrammarError::TooLarge {
            reason: format!("the pattern {pattern:?} outgrows the parser ({error})"),
        })?;
    }
    Ok(())
}

fn collect<'s>(schema: &'s Value, patterns: &mut BTreeSet<&'s str>) {
    match schema {
        Value::Object(fields) => collect_fields(fields, patterns),
        Value::Array(items) => items.iter().for_each(|item| collect(item, patterns)),
        _ => {}
    }
}

fn collect_fields<'s>(fields: &'s Map<String, Value>, patterns: &mut BTreeSet<&'s str>) {
    for (key, part) in fields {
        match (key.as_str(), part) {
            ("pattern", Value::String(pattern)) if repeats_often(pattern) => {
                patterns.insert(pattern);
            }
            ("patternProperties", Value::Object(by_pattern)) => {
                let keys = by_pattern.keys().map(String::as_str);
                patterns.extend(keys.filter(|pattern| repeats_often(pattern)));
            }
            _ => {}
        }
        collect(part, patterns);
    }
}

fn repeats_often(pattern: &str) -> bool {
    static COUNTS: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\{(?:[0-9]+,)?([0-9]+)").ok());
    let Some(counts) = COUNTS.as_ref() else {
        return true;
    };
    counts.captures_iter(pattern).any(|count| {
        let count = count.get(1).map_or("", |digits| digits.as_str());
        count.parse().unwrap_or(u64::MAX) > N_SAFE_REPETITIONS
    })
}

/// Chooses varied tokens among the allowed ones, so that the text remains a match of the pattern.
fn walk_pattern(constraint: &mut Constraint) -> Result<(), GrammarError> {
    for step in 0..N_TOKENS {
        let mask = constraint.mask()?;
        let choice = step * 7919 % mask.n_allowed().max(1);
        let Some(token) = mask.allowed().nth(choice) else {
            return Ok(());
        };
        constraint.consume(token)?;
        if constraint.is_ended() {
            return Ok(());
        }
    }
    Ok(())
}
