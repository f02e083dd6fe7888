//! Reads the redaction rules.

use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use tooltune_disk::regular_file;

use super::checks::Check;
use crate::budgets::{PATTERN_BYTES, REDACTION_RULES, RULE_FILE_BYTES};
use crate::error::TraceError;

/// The rules of this program.
const BUILT_IN: &str = include_str!("rules.toml");

/// A rule as written in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    pattern: Option<String>,
    key: Option<String>,
    replacement: String,
    check: Option<Check>,
    #[serde(default)]
    everywhere: bool,
    #[serde(default = "enabled")]
    enabled: bool,
}

fn enabled() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    rule: Vec<Written>,
}

/// What a rule looks for.
#[derive(Debug)]
pub(super) enum Target {
    /// Text.
    Pattern(Regex),
    /// The value of a field of JSON.
    Key(Regex),
}

/// A compiled rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) target: Target,
    pub(super) replacement: String,
    pub(super) check: Option<Check>,
    pub(super) everywhere: bool,
}

/// Reads the built-in rules and the rules of a file, which run first or replace a rule of the same name.
///
/// # Errors
///
/// - the file cannot be read, or is not TOML with rules
/// - a pattern is invalid or too large, or there are too many rules
/// - `keep` or `also` names an unknown rule
pub(super) fn read(
    file: Option<&Path>,
    keep: &[String],
    also: &[String],
) -> Result<Vec<Rule>, TraceError> {
    let mut rules = parse(BUILT_IN, "the built-in rules")?;
    if let Some(file) = file {
        let unreadable = |error| TraceError::RuleFile {
            path: file.to_owned(),
            error,
        };
        let text = regular_file::read_text(file, RULE_FILE_BYTES).map_err(unreadable)?;
        let mut own = parse(&text, &file.display().to_string())?;
        for rule in &mut rules {
            if let Some(idx) = own.iter().position(|(_, one)| one.name == rule.1.name) {
                *rule = own.remove(idx);
            }
        }
        own.append(&mut rules);
        rules = own;
    }
    let n = rules.len();
    if n > REDACTION_RULES {
        return Err(TraceError::TooManyRules { n });
    }
    for (option, names) in [("--keep", keep), ("--also", also)] {
        let is_unknown = |name: &&String| !rules.iter().any(|(_, rule)| rule.name == **name);
        if let Some(name) = names.iter().find(is_unknown) {
            let known: Vec<&str> = rules.iter().map(|(_, rule)| rule.name.as_str()).collect();
            return Err(TraceError::UnknownRule {
                option,
                name: name.clone(),
                known: known.join(", "),
            });
        }
    }
    let is_on =
        |rule: &Written| (rule.enabled || also.contains(&rule.name)) && !keep.contains(&rule.name);
    rules.retain(|(_, rule)| is_on(rule));
    let compiled = rules.into_iter().map(|(place, rule)| compile(&place, rule));
    compiled.collect()
}

/// The rules of a file with their place for messages.
fn parse(text: &str, file: &str) -> Result<Vec<(String, Written)>, TraceError> {
    let rules: RuleFile = toml::from_str(text).map_err(|error| TraceError::Rule {
        place: file.to_owned(),
        reason: error.to_string().trim_end().to_owned(),
        remedy: "write [[rule]] with name, pattern or key, and replacement".to_owned(),
    })?;
    let placed = |rule: Written| (format!("{file}, rule {:?}", rule.name), rule);
    let placed: Vec<(String, Written)> = rules.rule.into_iter().map(placed).collect();
    let mut names: Vec<&str> = placed.iter().map(|(_, rule)| rule.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(TraceError::Rule {
            place: file.to_owned(),
            reason: format!("two rules have the name {:?}", pair[0]),
            remedy: "rename one of them".to_owned(),
        });
    }
    Ok(placed)
}

fn compile(place: &str, rule: Written) -> Result<Rule, TraceError> {
    let invalid = |reason: String, remedy: &str| TraceError::Rule {
        place: place.to_owned(),
        reason,
        remedy: remedy.to_owned(),
    };
    let regex = |pattern: &str| {
        let mut builder = RegexBuilder::new(pattern);
        let regex = builder.size_limit(PATTERN_BYTES).build().map_err(|error| {
            let remedy = "use the syntax of the Rust crate regex, without lookaround, and at most \
                          PATTERN_BYTES of docs/limits.md";
            invalid(error.to_string(), remedy)
        })?;
        match regex.is_match("") {
            true => Err(invalid(
                "the pattern matches the empty string".to_owned(),
                "write a pattern that needs at least one character",
            )),
            false => Ok(regex),
        }
    };
    let target = match (&rule.pattern, &rule.key) {
        (Some(pattern), None) => Target::Pattern(regex(pattern)?),
        (None, Some(key)) => Target::Key(regex(key)?),
        _ => {
            let reason = "a rule needs either pattern or key".to_owned();
            return Err(invalid(reason, "write one of them"));
        }
    };
    if rule.replacement.is_empty() {
        let reason = "the replacement is empty".to_owned();
        return Err(invalid(reason, "write a replacement such as \"[NAME]\""));
    }
    Ok(Rule {
        name: rule.name,
        target,
        replacement: rule.replacement,
        check: rule.check,
        everywhere: rule.everywhere,
    })
}
