//! Asks, before anything is generated, whether the parser can follow patterns.
//!
//! A pattern becomes an automaton step by step, while a text is written, and some grow beyond
//! every limit. Those with long repetitions are followed for a few tokens here, each alone, so
//! that a schema is refused rather than a completion cut.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::{Map, Value, json};

use super::constraint::{Built, Constraint};
use super::error::GrammarError;
use super::unwritten::Unwritten;
use super::vocabulary::Vocabulary;

/// Repetitions up to this count are never found to grow too much.
const N_SAFE_REPETITIONS: u64 = 64;
/// Tokens for which a pattern is followed.
const N_TOKENS: usize = 32;

/// Follows each pattern of a lowered schema that repeats something often.
///
/// `build` compiles a schema of a string.
///
/// # Errors
///
/// - a step of one meets a limit of the parser
pub(super) fn patterns(
    vocabulary: &Vocabulary,
    schema: &Map<String, Value>,
    build: impl Fn(&Map<String, Value>) -> Result<Built, GrammarError>,
) -> Result<(), GrammarError> {
    let mut found = BTreeSet::new();
    collect_fields(schema, &mut found);
    for pattern in found {
        // A pattern that cannot stand alone is judged with the rest of its schema.
        let string = Map::from_iter([
            ("type".to_owned(), json!(["string"])),
            ("pattern".to_owned(), json!(pattern)),
        ]);
        let Ok(built) = build(&string) else {
            continue;
        };
        let unwritten = Arc::new(Unwritten::default());
        let mut constraint = Constraint::new(vocabulary.clone(), built, unwritten);
        follow(&mut constraint).map_err(|error| GrammarError::TooLarge {
            reason: format!("the pattern {pattern:?} outgrows the parser ({error})"),
        })?;
    }
    Ok(())
}

fn collect<'s>(schema: &'s Value, found: &mut BTreeSet<&'s str>) {
    match schema {
        Value::Object(fields) => collect_fields(fields, found),
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}

fn collect_fields<'s>(fields: &'s Map<String, Value>, found: &mut BTreeSet<&'s str>) {
    for (key, part) in fields {
        match (key.as_str(), part) {
            ("pattern", Value::String(pattern)) if repeats_often(pattern) => {
                found.insert(pattern);
            }
            ("patternProperties", Value::Object(by_pattern)) => {
                let keys = by_pattern.keys().map(String::as_str);
                found.extend(keys.filter(|pattern| repeats_often(pattern)));
            }
            _ => {}
        }
        collect(part, found);
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

/// Chooses here and there among the allowed tokens, so that the text stays in the pattern.
fn follow(constraint: &mut Constraint) -> Result<(), GrammarError> {
    for step in 0..N_TOKENS {
        let mask = constraint.mask()?;
        let wanted = step * 7919 % mask.n_allowed().max(1);
        let Some(token) = mask.allowed().nth(wanted) else {
            return Ok(());
        };
        constraint.consume(token)?;
        if constraint.is_ended() {
            return Ok(());
        }
    }
    Ok(())
}
