//! Says whether a value is valid under a JSON Schema and which rules it breaks, in bounded work.
//!
//! Everything in this crate that validates goes through [`BoundedValidator`], which asks the crate
//! jsonschema. Draft 2020-12 unless `$schema` names another known draft; an unknown `$schema`
//! counts as 2020-12. `format` and the content keywords are annotations, as in the specification.
//! References outside the schema are never fetched: such a schema is an error.
//!
//! Few lines of schema can ask for endless work: two branches that lead to the same child double at
//! each level of the value. So a walk over a value has a budget of looks at it; whether a value is
//! valid is asked before what it breaks, because that has a memory; and errors, which the crate
//! gathers whole for each branch, have a budget of bytes.

mod compile;
mod counted;
mod kept;
mod memory;
mod places;
mod strict_keys;
mod unique;
mod ways;

#[cfg(test)]
mod tests;

use std::fmt::{self, Write};
use std::thread;

use jsonschema::paths::Location;
use jsonschema::{Draft, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::Value;

use self::compile::{PATTERN_BYTES, compiled, pattern_cost};
use self::counted::{Allowance, Counted, CountedValue, within};
pub use self::kept::KeptBySchema;
use self::places::must_have_short_places;
pub use self::strict_keys::{declared_keys, strict_keys};
use self::ways::{Ways, ways};
use crate::budgets::{
    BACKTRACK_STEPS, LISTED_FAULTS, SCHEMA_STACK_LEVELS, VALIDATION_ERROR_BYTES, VALIDATION_STEPS,
};

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// JSON pointer into the schema; empty for the whole.
    pub pointer: String,
    /// What is wrong there.
    pub reason: String,
}

/// Whether a value is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It keeps every rule.
    Valid,
    /// It breaks one.
    Invalid,
    /// Finding out takes more than [`VALIDATION_STEPS`].
    TooMuchWork,
}

/// A rule that a value breaks.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The keyword; [`BUDGET`] where the budget ended before the rule was found.
    pub rule: String,
    /// Where in the value.
    pub place: Location,
    /// What the rule wants, with the value that breaks it.
    pub reason: String,
    /// What the rule wants, without the value.
    pub masked: String,
}

/// The rule of a [`Fault`] that says that looking for it took too long.
pub const BUDGET: &str = "budget";

/// Levels of schema and value for which the stack of any thread has room.
const EVERY_STACK_LEVELS: usize = 400;
/// Bytes of stack that a level takes at most; measured 1.1 KiB for gathering errors.
const BYTES_PER_LEVEL: usize = 8 << 10;
/// Bytes of an error beside its place and value.
const BYTES_PER_ERROR: u64 = 512;
/// Bytes of a keyword on the way through the schema to a rule, which an error keeps whole.
const BYTES_PER_KEYWORD: usize = 16;
/// Bytes of a reason; more of it helps nobody.
const MAX_REASON_BYTES: usize = 2_000;

/// A compiled schema.
pub struct BoundedValidator {
    validator: Validator<Counted>,
    schema: Value,
    draft: Draft,
    ways: Ways,
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
    /// - a reference leads nowhere or outside the schema, or a pattern is no regular expression
    /// - its branches multiply so that validating would not come to an end, its resources so that
    ///   compiling would not, its patterns are too many, or its places too long
    pub fn new(schema: &Value) -> Result<Self, SchemaFault> {
        must_have_short_places(schema)?;
        let ways = ways(schema).map_err(|reason| SchemaFault {
            pointer: String::new(),
            reason,
        })?;
        let cost = pattern_cost(schema)?;
        let (schema, draft) = with_known_draft(schema.clone());
        Ok(Self {
            validator: compiled(&schema, options(draft))?,
            per_text: cost.per_text,
            schema,
            draft,
            ways,
        })
    }

    /// Whether the value is valid.
    pub fn verdict(&self, value: &Value) -> Verdict {
        self.on_a_deep_stack(value, || self.decide(value))
            .unwrap_or(Verdict::TooMuchWork)
    }

    /// The first rule that the value breaks.
    pub fn first_fault(&self, value: &Value) -> Option<Fault> {
        let first = self.on_a_deep_stack(value, || match self.decide(value) {
            Verdict::Valid => None,
            Verdict::TooMuchWork => Some(undecided()),
            Verdict::Invalid => Some(self.first_broken(value)),
        });
        first.unwrap_or_else(|| Some(too_deep()))
    }

    /// The rules that the value breaks, in the order in which they are met: at most
    /// [`LISTED_FAULTS`], and the first of each rule; the last one says how many more there are.
    pub fn faults(&self, value: &Value) -> Vec<Fault> {
        let faults = self.on_a_deep_stack(value, || match self.decide(value) {
            Verdict::Valid => Vec::new(),
            Verdict::TooMuchWork => vec![undecided()],
            Verdict::Invalid => {
                let found = within(self.allowance(value), || {
                    listed(self.validator.iter_errors(CountedValue(value)))
                });
                let found = found.filter(|found| !found.is_empty());
                found.unwrap_or_else(|| vec![unlisted()])
            }
        });
        faults.unwrap_or_else(|| vec![too_deep()])
    }

    fn decide(&self, value: &Value) -> Verdict {
        let whole = self.allowance(value);
        // Most values take a thousandth of it; where definitions are walked again and again, the
        // memory is asked before all of it is spent.
        let tenth = Allowance {
            n_steps: whole.n_steps / 10,
            ..whole
        };
        let plain = |allowance| within(allowance, || self.validator.is_valid(CountedValue(value)));
        let is_valid = plain(tenth)
            .or_else(|| self.remember(value, whole))
            .or_else(|| plain(whole));
        match is_valid {
            Some(true) => Verdict::Valid,
            Some(false) => Verdict::Invalid,
            None => Verdict::TooMuchWork,
        }
    }

    /// Stopping at the first error takes less than gathering all, but finds another one first.
    fn first_broken(&self, value: &Value) -> Fault {
        let allowance = self.allowance(value);
        let all = within(allowance, || {
            let mut errors = self.validator.iter_errors(CountedValue(value));
            errors.next().as_ref().map(fault)
        });
        let stopping = || {
            let error = self.validator.validate(CountedValue(value)).err();
            error.as_ref().map(fault)
        };
        let first = all.or_else(|| within(allowance, stopping));
        first.flatten().unwrap_or_else(unlisted)
    }

    /// Whether the value is valid, each definition asked once of each place.
    fn remember(&self, value: &Value, allowance: Allowance) -> Option<bool> {
        if self.ways.has_circle {
            None
        } else {
            memory::is_valid(&self.schema, self.draft, value, allowance)
        }
    }

    fn allowance(&self, value: &Value) -> Allowance {
        let extent = extent(value);
        let n_levels = extent.n_levels * (self.ways.n_levels + 2);
        let places = extent.longest_place + n_levels * BYTES_PER_KEYWORD;
        Allowance {
            n_steps: VALIDATION_STEPS,
            error_bytes: VALIDATION_ERROR_BYTES,
            per_error: BYTES_PER_ERROR + places as u64,
            per_descent: 1 + self.ways.most / 16,
            per_text: self.per_text,
        }
    }

    /// Validators recurse over value and schema at once: a walk that may go deep gets a stack of
    /// its own. `None` if no stack is deep enough.
    fn on_a_deep_stack<T: Send>(
        &self,
        value: &Value,
        walk: impl FnOnce() -> T + Send,
    ) -> Option<T> {
        let n_levels = extent(value).n_levels * (self.ways.n_levels + 2);
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

/// What fetches what a reference names outside of its schema: here nothing does.
type Retriever = std::sync::Arc<dyn jsonschema::Retrieve>;

fn options(draft: Draft) -> ValidationOptions<'static, Retriever, Counted> {
    let patterns = PatternOptions::fancy_regex()
        .backtrack_limit(BACKTRACK_STEPS)
        .size_limit(PATTERN_BYTES);
    jsonschema::options_for::<Counted>()
        .with_draft(draft)
        .offline()
        .should_validate_formats(false)
        .without_content_media_type_support("application/json")
        .without_content_encoding_support("base64")
        .with_pattern_options(patterns)
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

/// How far a value goes.
struct Extent {
    /// Its levels; a scalar has one.
    n_levels: usize,
    /// Bytes of the longest pointer into it.
    longest_place: usize,
}

fn extent(value: &Value) -> Extent {
    let mut extent = Extent {
        n_levels: 0,
        longest_place: 0,
    };
    let mut left = vec![(value, 1, 0)];
    while let Some((value, level, place)) = left.pop() {
        extent.n_levels = extent.n_levels.max(level);
        extent.longest_place = extent.longest_place.max(place);
        match value {
            // An index has at most twenty digits.
            Value::Array(items) => {
                left.extend(items.iter().map(|item| (item, level + 1, place + 20)))
            }
            Value::Object(fields) => {
                let below = fields.iter();
                left.extend(below.map(|(key, field)| (field, level + 1, place + 1 + key.len())));
            }
            _ => {}
        }
    }
    extent
}

/// Of `errors` the first [`LISTED_FAULTS`], and the first of each rule.
fn listed<'i>(errors: impl Iterator<Item = ValidationError<'i>>) -> Vec<Fault> {
    let (mut faults, mut n_left_out) = (Vec::<Fault>::new(), 0_usize);
    for error in errors {
        let rule = error.kind().keyword();
        if faults.len() < LISTED_FAULTS || faults.iter().all(|known| known.rule != rule) {
            faults.push(fault(&error));
        } else {
            n_left_out += 1;
        }
    }
    if let Some(last) = faults.last_mut().filter(|_| n_left_out > 0) {
        let more = format!(
            " (and {n_left_out} more broken rules, which are not listed; LISTED_FAULTS in \
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
        reason: bounded(format_args!("{error}")),
        masked: bounded(format_args!("{}", error.masked())),
    }
}

fn undecided() -> Fault {
    let reason = format!(
        "finding out whether it is valid takes more than {VALIDATION_STEPS} steps (VALIDATION_STEPS \
         in docs/limits.md), so that it counts as invalid; branches of the schema that lead to the \
         same place multiply with each level of the value: say each once"
    );
    budget_fault(reason)
}

fn too_deep() -> Fault {
    let reason = format!(
        "finding out whether it is valid goes through the levels of its schema at each of its own, \
         more than {SCHEMA_STACK_LEVELS} of them (SCHEMA_STACK_LEVELS in docs/limits.md), so that it \
         counts as invalid; shorten the chain of schemas"
    );
    budget_fault(reason)
}

fn unlisted() -> Fault {
    let reason = format!(
        "it is not valid; finding out where takes more than {VALIDATION_STEPS} steps or {} MiB \
         (VALIDATION_STEPS and VALIDATION_ERROR_BYTES in docs/limits.md), because branches of the \
         schema lead to the same place and multiply with each level of the value",
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

/// The beginning of a text that may be as long as the schema or the value.
fn bounded(text: fmt::Arguments<'_>) -> String {
    let mut beginning = Beginning(String::new());
    match beginning.write_fmt(text) {
        Ok(()) => beginning.0,
        Err(_) => beginning.0 + "...",
    }
}

struct Beginning(String);

impl Write for Beginning {
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
