//! Validates values against a JSON Schema and lists the broken rules, in bounded work.
//!
//! All validation in this crate uses [`BoundedValidator`], which wraps the jsonschema crate. The
//! draft is 2020-12 unless `$schema` names a different known draft. `format` is an annotation, as
//! in the specification, unless the caller asserts it; the content keywords are always
//! annotations. References outside the schema are never fetched: such a schema is an error.
//!
//! A few lines of schema can require endless work: two branches that lead to the same child double
//! the work at each level of the value. A walk over a value therefore has a step budget. Validity
//! is decided before the broken rules are collected, because only the validity check is memoized.
//! The crate collects all errors of each branch, so errors have a byte budget.

mod compile;
mod counted;
mod formats;
mod memory;
mod path_counts;
mod path_sizes;
mod schema_cache;
mod strict_keys;
mod unique;

#[cfg(test)]
mod tests;

use std::fmt::{self, Write};
use std::thread;

use jsonschema::paths::Location;
use jsonschema::{Draft, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::Value;

use self::compile::{PATTERN_BYTES, compile, pattern_cost};
use self::counted::{Allowance, Counted, CountedValue, run_with_budget};
pub use self::formats::{CHECKED_FORMATS, FormatRule, checked_formats, unchecked_formats};
use self::path_counts::{PathCounts, count_paths};
use self::path_sizes::check_path_sizes;
pub use self::schema_cache::SchemaCache;
pub use self::strict_keys::{declared_keys, strict_keys};
use crate::budgets::{
    BACKTRACK_STEPS, LISTED_FAULTS, SCHEMA_STACK_LEVELS, VALIDATION_ERROR_BYTES, VALIDATION_STEPS,
};

/// The reason that a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// JSON pointer into the schema; empty for the whole.
    pub pointer: String,
    /// Description of the error.
    pub reason: String,
}

/// Result of a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The value satisfies every rule.
    Valid,
    /// The value breaks a rule.
    Invalid,
    /// The validation exceeds [`VALIDATION_STEPS`].
    TooMuchWork,
}

/// A rule that a value breaks.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The keyword of the rule; [`BUDGET`] if the budget was spent before the rule was found.
    pub rule: String,
    /// JSON pointer into the value.
    pub place: Location,
    /// The violated condition, including the value that breaks it.
    pub reason: String,
    /// The violated condition, without the value.
    pub masked: String,
}

impl Fault {
    /// The remedy, as the end of an error message; empty for most rules.
    pub fn remedy(&self) -> &'static str {
        match self.rule.as_str() {
            "format" => {
                " (formats are checked: write the value in this format, or remove \"format\" from \
                 the schema)"
            }
            _ => "",
        }
    }
}

/// The rule of a [`Fault`] that reports a spent budget.
pub const BUDGET: &str = "budget";

/// Product of schema levels and value levels that fits on the stack of any thread.
const EVERY_STACK_LEVELS: usize = 400;
/// Maximum stack bytes per level; collecting errors was measured at 1.1 KiB.
const BYTES_PER_LEVEL: usize = 8 << 10;
/// Bytes of an error, apart from its location and value.
const BYTES_PER_ERROR: u64 = 512;
/// Bytes of a keyword in the schema path of a rule, which an error stores whole.
const BYTES_PER_KEYWORD: usize = 16;
/// Maximum bytes of a reason; a longer one would not help.
const MAX_REASON_BYTES: usize = 2_000;

/// The rules of a schema's keywords.
#[derive(Debug, Clone, Copy)]
struct Dialect {
    draft: Draft,
    formats: FormatRule,
}

/// A compiled schema.
pub struct BoundedValidator {
    validator: Validator<Counted>,
    schema: Value,
    dialect: Dialect,
    paths: PathCounts,
    per_text: u64,
}

impl fmt::Debug for BoundedValidator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedValidator")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl BoundedValidator {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// - the schema is neither an object nor a boolean, or breaks its draft's meta-schema
    /// - a reference is unresolvable or external, or a pattern is not a regular expression
    /// - its branches or resources multiply so much that validation or compilation would not end
    /// - it has too many patterns, or its paths are too long
    pub fn new(schema: &Value) -> Result<Self, SchemaFault> {
        Self::with_formats(schema, FormatRule::Annotated)
    }

    /// Compiles a schema and asserts its formats.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn asserting_formats(schema: &Value) -> Result<Self, SchemaFault> {
        Self::with_formats(schema, FormatRule::Asserted)
    }

    /// Compiles a schema and treats its formats as `formats` specifies.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_formats(schema: &Value, formats: FormatRule) -> Result<Self, SchemaFault> {
        check_path_sizes(schema)?;
        let paths = count_paths(schema).map_err(|reason| SchemaFault {
            pointer: String::new(),
            reason,
        })?;
        let cost = pattern_cost(schema)?;
        let (schema, draft) = with_known_draft(schema.clone());
        let dialect = Dialect { draft, formats };
        Ok(Self {
            validator: compile(&schema, options(dialect))?,
            per_text: cost.per_text,
            schema,
            dialect,
            paths,
        })
    }

    /// Validates the value within the step budget.
    pub fn verdict(&self, value: &Value) -> Verdict {
        self.run_on_large_stack(value, || self.evaluate(value))
            .unwrap_or(Verdict::TooMuchWork)
    }

    /// Returns the first rule that the value breaks.
    pub fn first_fault(&self, value: &Value) -> Option<Fault> {
        let first = self.run_on_large_stack(value, || match self.evaluate(value) {
            Verdict::Valid => None,
            Verdict::TooMuchWork => Some(undecided_fault()),
            Verdict::Invalid => Some(self.find_first_fault(value)),
        });
        first.unwrap_or_else(|| Some(too_deep_fault()))
    }

    /// Returns the rules that the value breaks, in the order found. The result contains the first
    /// [`LISTED_FAULTS`] faults and the first fault of each further rule. The last one reports the
    /// number of omitted faults.
    pub fn faults(&self, value: &Value) -> Vec<Fault> {
        let faults = self.run_on_large_stack(value, || match self.evaluate(value) {
            Verdict::Valid => Vec::new(),
            Verdict::TooMuchWork => vec![undecided_fault()],
            Verdict::Invalid => {
                let collected = run_with_budget(self.allowance(value), || {
                    select_faults(self.validator.iter_errors(CountedValue(value)))
                });
                let collected = collected.filter(|collected| !collected.is_empty());
                collected.unwrap_or_else(|| vec![unknown_rule_fault()])
            }
        });
        faults.unwrap_or_else(|| vec![too_deep_fault()])
    }

    fn evaluate(&self, value: &Value) -> Verdict {
        let full_allowance = self.allowance(value);
        // Most values use a thousandth of the budget. Try a tenth first: if definitions are walked
        // repeatedly, the memoized validator is faster than the rest of a plain walk.
        let tenth = Allowance {
            n_steps: full_allowance.n_steps / 10,
            ..full_allowance
        };
        let validate =
            |allowance| run_with_budget(allowance, || self.validator.is_valid(CountedValue(value)));
        let is_valid = validate(tenth)
            .or_else(|| self.is_valid_memoized(value, full_allowance))
            .or_else(|| validate(full_allowance));
        match is_valid {
            Some(true) => Verdict::Valid,
            Some(false) => Verdict::Invalid,
            None => Verdict::TooMuchWork,
        }
    }

    /// A walk that stops at the first error is cheaper than a walk that collects all errors, but
    /// may find a different first error.
    fn find_first_fault(&self, value: &Value) -> Fault {
        let allowance = self.allowance(value);
        let all = run_with_budget(allowance, || {
            let mut errors = self.validator.iter_errors(CountedValue(value));
            errors.next().as_ref().map(fault)
        });
        let stopping = || {
            let error = self.validator.validate(CountedValue(value)).err();
            error.as_ref().map(fault)
        };
        let first = all.or_else(|| run_with_budget(allowance, stopping));
        first.flatten().unwrap_or_else(unknown_rule_fault)
    }

    /// Whether the value is valid, evaluating each definition once per location.
    fn is_valid_memoized(&self, value: &Value, allowance: Allowance) -> Option<bool> {
        if self.paths.has_cycle {
            None
        } else {
            memory::is_valid(&self.schema, self.dialect, value, allowance)
        }
    }

    fn allowance(&self, value: &Value) -> Allowance {
        let extent = extent(value);
        let n_levels = extent.n_levels * (self.paths.n_levels + 2);
        let path_bytes = extent.max_pointer_bytes + n_levels * BYTES_PER_KEYWORD;
        Allowance {
            n_steps: VALIDATION_STEPS,
            error_bytes: VALIDATION_ERROR_BYTES,
            per_error: BYTES_PER_ERROR + path_bytes as u64,
            per_descent: 1 + self.paths.max_paths / 16,
            per_text: self.per_text,
        }
    }

    /// Runs a walk on a separate stack if it may recurse deeply, because validators recurse over
    /// value and schema at the same time. Returns `None` if no stack is large enough.
    fn run_on_large_stack<T: Send>(
        &self,
        value: &Value,
        walk: impl FnOnce() -> T + Send,
    ) -> Option<T> {
        let n_levels = extent(value).n_levels * (self.paths.n_levels + 2);
        if n_levels <= EVERY_STACK_LEVELS {
            return Some(walk());
        }
        if n_levels > SCHEMA_STACK_LEVELS {
            return None;
        }
        thread::scope(|scope| {
            let stack = thread::Builder::new().stack_size(n_levels * BYTES_PER_LEVEL);
            let walking = stack.spawn_scoped(scope, walk).ok()?;
            match walking.join() {
                Ok(outcome) => Some(outcome),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// Retriever for external references; it always fails.
type Retriever = std::sync::Arc<dyn jsonschema::Retrieve>;

fn options(dialect: Dialect) -> ValidationOptions<'static, Retriever, Counted> {
    let patterns = PatternOptions::fancy_regex()
        .backtrack_limit(BACKTRACK_STEPS)
        .size_limit(PATTERN_BYTES);
    let options = jsonschema::options_for::<Counted>()
        .with_draft(dialect.draft)
        .offline()
        .should_validate_formats(false)
        .without_content_media_type_support("application/json")
        .without_content_encoding_support("base64")
        .with_pattern_options(patterns);
    match dialect.formats {
        FormatRule::Annotated => options,
        FormatRule::Asserted => formats::with_asserted_formats(options),
    }
}

fn with_known_draft(mut schema: Value) -> (Value, Draft) {
    let draft = Draft::default().detect(&schema);
    if draft != Draft::Unknown {
        return (schema, draft);
    }
    if let Some(keywords) = schema.as_object_mut() {
        keywords.shift_remove("$schema");
    }
    (schema, Draft::Draft202012)
}

/// Depth of a value.
struct Extent {
    /// Number of levels; a scalar has one.
    n_levels: usize,
    /// Bytes of the longest JSON pointer into it.
    max_pointer_bytes: usize,
}

fn extent(value: &Value) -> Extent {
    let mut extent = Extent {
        n_levels: 0,
        max_pointer_bytes: 0,
    };
    let mut pending = vec![(value, 1, 0)];
    while let Some((value, level, pointer_bytes)) = pending.pop() {
        extent.n_levels = extent.n_levels.max(level);
        extent.max_pointer_bytes = extent.max_pointer_bytes.max(pointer_bytes);
        match value {
            // An index has at most twenty digits.
            Value::Array(items) => pending.extend(
                items
                    .iter()
                    .map(|item| (item, level + 1, pointer_bytes + 20)),
            ),
            Value::Object(fields) => {
                let children = fields.iter();
                pending.extend(
                    children.map(|(key, field)| (field, level + 1, pointer_bytes + 1 + key.len())),
                );
            }
            _ => {}
        }
    }
    extent
}

/// Returns the first [`LISTED_FAULTS`] of `errors`, and the first error of each further rule.
fn select_faults<'i>(errors: impl Iterator<Item = ValidationError<'i>>) -> Vec<Fault> {
    let (mut faults, mut n_left_out) = (Vec::<Fault>::new(), 0_usize);
    for error in errors {
        let rule = error.kind().keyword();
        if faults.len() < LISTED_FAULTS || faults.iter().all(|listed| listed.rule != rule) {
            faults.push(fault(&error));
        } else {
            n_left_out += 1;
        }
    }
    if let Some(last) = faults.last_mut().filter(|_| n_left_out > 0) {
        let more = format!(
            " (and {n_left_out} more broken rules that are not listed; LISTED_FAULTS in \
             docs/limits.md)"
        );
        last.reason.push_str(&more);
        last.masked.push_str(&more);
    }
    faults
}

fn fault(error: &ValidationError<'_>) -> Fault {
    Fault {
        rule: error.kind().keyword().to_owned(),
        place: error.instance_path().clone(),
        reason: truncate_message(format_args!("{error}")),
        masked: truncate_message(format_args!("{}", error.masked())),
    }
}

fn undecided_fault() -> Fault {
    let reason = format!(
        "validation takes more than {VALIDATION_STEPS} steps (VALIDATION_STEPS in docs/limits.md), \
         so the value is treated as invalid; schema branches that lead to the same location \
         multiply at each level of the value: remove duplicate branches"
    );
    budget_fault(reason)
}

fn too_deep_fault() -> Fault {
    let reason = format!(
        "validation needs more than {SCHEMA_STACK_LEVELS} levels of schema times value \
         (SCHEMA_STACK_LEVELS in docs/limits.md), so the value is treated as invalid; shorten the \
         chain of schemas"
    );
    budget_fault(reason)
}

fn unknown_rule_fault() -> Fault {
    let reason = format!(
        "the value is not valid; finding the broken rule takes more than {VALIDATION_STEPS} steps \
         or {} MiB (VALIDATION_STEPS and VALIDATION_ERROR_BYTES in docs/limits.md), because schema \
         branches that lead to the same location multiply at each level of the value",
        VALIDATION_ERROR_BYTES >> 20
    );
    budget_fault(reason)
}

fn budget_fault(reason: String) -> Fault {
    Fault {
        rule: BUDGET.to_owned(),
        place: Location::new(),
        masked: reason.clone(),
        reason,
    }
}

/// Shortens a string that may be as long as the schema or the value.
fn truncate_message(text: fmt::Arguments<'_>) -> String {
    let mut beginning = TruncatedText(String::new());
    match beginning.write_fmt(text) {
        Ok(()) => beginning.0,
        Err(_) => beginning.0 + "...",
    }
}

struct TruncatedText(String);

impl Write for TruncatedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_REASON_BYTES.saturating_sub(self.0.len());
        let end = text.floor_char_boundary(room);
        self.0.push_str(&text[..end]);
        if end == text.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}
