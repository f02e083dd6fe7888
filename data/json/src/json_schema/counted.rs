//! JSON values that count each access by a validator and stop it at a limit.
//!
//! A validator of the jsonschema crate has no work limit and cannot be cancelled. But it accesses a
//! value only through [`Node`], and this implementation charges a step per access. When the budget
//! is spent, it unwinds the stack, which is the only way to leave the crate's recursion. No panic
//! hook runs, and [`run_with_budget`] turns the unwinding into a result.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use jsonschema::JsonType;
use jsonschema::json::{Array, Json, Node, NodeIdentity, Object, cmp};
use serde_json::{Map, Number, Value};

use super::unique::canonical;

/// Bytes of a string that cost one step.
const BYTES_PER_STEP: usize = 64;

/// The budget of one walk and its costs per operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// Maximum steps.
    pub(super) n_steps: u64,
    /// Maximum bytes of errors.
    pub(super) error_bytes: u64,
    /// Bytes charged per error, in addition to the value that the error contains.
    pub(super) per_error: u64,
    /// Steps charged for descending into the value, because a schema may try many branches at the
    /// new location without accessing the value.
    pub(super) per_descent: u64,
    /// Steps charged per string in addition to its length, because patterns may backtrack over it.
    pub(super) per_text: u64,
}

/// The remaining budget of a thread's walk, in separate cells so that a step is cheap.
struct RemainingBudget {
    n_steps: Cell<u64>,
    error_bytes: Cell<u64>,
    per_error: Cell<u64>,
    per_descent: Cell<u64>,
    per_text: Cell<u64>,
}

thread_local! {
    static REMAINING: RemainingBudget = const {
        RemainingBudget {
            n_steps: Cell::new(u64::MAX),
            error_bytes: Cell::new(u64::MAX),
            per_error: Cell::new(0),
            per_descent: Cell::new(0),
            per_text: Cell::new(0),
        }
    };
}

/// The budget of a thread that is not inside a walk.
const UNLIMITED: Allowance = Allowance {
    n_steps: u64::MAX,
    error_bytes: u64::MAX,
    per_error: 0,
    per_descent: 0,
    per_text: 0,
};

fn set_budget(allowance: Allowance) {
    REMAINING.with(|remaining| {
        remaining.n_steps.set(allowance.n_steps);
        remaining.error_bytes.set(allowance.error_bytes);
        remaining.per_error.set(allowance.per_error);
        remaining.per_descent.set(allowance.per_descent);
        remaining.per_text.set(allowance.per_text);
    });
}

/// The payload of the unwinding, which distinguishes it from a panic.
struct BudgetExceeded;

/// Runs `walk` and returns its result, or `None` if it exceeds the budget.
pub(super) fn run_with_budget<T>(allowance: Allowance, walk: impl FnOnce() -> T) -> Option<T> {
    set_budget(allowance);
    // An interrupted walk leaves only its own context and lists unfinished, and these are not used
    // again.
    let outcome = catch_unwind(AssertUnwindSafe(walk));
    set_budget(UNLIMITED);
    match outcome {
        Ok(outcome) => Some(outcome),
        Err(payload) if payload.is::<BudgetExceeded>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

fn subtract(counter: &Cell<u64>, n: u64) {
    match counter.get().checked_sub(n) {
        Some(rest) => counter.set(rest),
        None => resume_unwind(Box::new(BudgetExceeded)),
    }
}

fn charge_steps(n: u64) {
    REMAINING.with(|remaining| subtract(&remaining.n_steps, n));
}

fn charge_descent() {
    REMAINING.with(|remaining| subtract(&remaining.n_steps, remaining.per_descent.get()));
}

fn charge_string(text: &str) {
    let n = (text.len() / BYTES_PER_STEP) as u64;
    REMAINING.with(|remaining| {
        subtract(
            &remaining.n_steps,
            n.saturating_add(remaining.per_text.get()),
        )
    });
}

/// The value representation that [`jsonschema::options_for`] uses.
pub(super) struct Counted;

/// A JSON value that counts accesses.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountedValue<'a>(pub(super) &'a Value);

impl Json for Counted {
    type Node<'a> = CountedValue<'a>;
    type PreparedKey = String;
    type StringBuffer = Value;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(
        buffer: &mut Value,
        string: &str,
        f: impl FnOnce(CountedValue<'_>) -> T,
    ) -> T {
        charge_descent();
        if let Value::String(existing) = buffer {
            existing.clear();
            existing.push_str(string);
        } else {
            *buffer = Value::String(string.to_owned());
        }
        f(CountedValue(buffer))
    }
}

impl<'a> Node<'a, Counted> for CountedValue<'a> {
    type Object = CountedMap<'a>;
    type Array = CountedItems<'a>;
    type Number = &'a Number;

    fn as_object(&self) -> Option<CountedMap<'a>> {
        charge_steps(1);
        self.0.as_object().map(CountedMap)
    }

    fn as_array(&self) -> Option<CountedItems<'a>> {
        charge_steps(1);
        self.0.as_array().map(|items| CountedItems(items))
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        charge_steps(1);
        let text = self.0.as_str()?;
        charge_string(text);
        Some(Cow::Borrowed(text))
    }

    fn as_number(&self) -> Option<&'a Number> {
        charge_steps(1);
        self.0.as_number()
    }

    fn as_boolean(&self) -> Option<bool> {
        charge_steps(1);
        self.0.as_bool()
    }

    fn is_null(&self) -> bool {
        charge_steps(1);
        self.0.is_null()
    }

    fn json_type(&self) -> JsonType {
        charge_steps(1);
        Node::json_type(&self.0)
    }

    fn string_length(&self) -> Option<u64> {
        charge_steps(1);
        let text = self.0.as_str()?;
        charge_steps((text.len() / BYTES_PER_STEP) as u64);
        Node::string_length(&self.0)
    }

    fn equals_value(&self, expected: &Value) -> bool {
        charge_steps(1);
        let may_be_equal = match (self.0, expected) {
            (Value::Array(own), Value::Array(other)) => own.len() == other.len(),
            (Value::Object(own), Value::Object(other)) => own.len() == other.len(),
            (Value::String(own), Value::String(other)) => own.len() == other.len(),
            (Value::Array(_) | Value::Object(_) | Value::String(_), _) => false,
            _ => true,
        };
        may_be_equal && {
            charge_value(self.0);
            cmp::equal(self.0, expected)
        }
    }

    /// Charges for an error. An error inside a branch copies its value.
    fn to_value(&self) -> Cow<'a, Value> {
        let n_bytes = n_bytes(self.0);
        charge_steps(n_bytes / 64);
        REMAINING.with(|remaining| {
            subtract(&remaining.error_bytes, n_bytes + remaining.per_error.get())
        });
        Cow::Borrowed(self.0)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        charge_steps(1);
        Node::identity(&self.0)
    }
}

/// Approximate memory of a value in bytes.
pub(super) fn n_bytes(value: &Value) -> u64 {
    /// Allocation of an object with one field.
    const PER_OBJECT: usize = 160;
    let (mut n_bytes, mut pending) = (0_usize, vec![value]);
    while let Some(value) = pending.pop() {
        n_bytes += size_of::<Value>();
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => {
                pending.extend(fields.values());
                n_bytes += PER_OBJECT + fields.keys().map(|key| key.len() + 64).sum::<usize>();
            }
            Value::String(text) => n_bytes += text.len(),
            _ => {}
        }
    }
    n_bytes as u64
}

/// Charges for reading a whole value.
fn charge_value(value: &Value) {
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        charge_steps(1);
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => pending.extend(fields.values()),
            Value::String(text) => charge_steps((text.len() / BYTES_PER_STEP) as u64),
            _ => {}
        }
    }
}

/// The fields of an object.
pub(super) struct CountedMap<'a>(&'a Map<String, Value>);

impl<'a> Object<'a, Counted> for CountedMap<'a> {
    type Node = CountedValue<'a>;
    type MemberName = &'a str;
    type MembersIter = Members<'a>;

    fn len(&self) -> usize {
        charge_steps(1);
        self.0.len()
    }

    fn get(&self, key: &String) -> Option<CountedValue<'a>> {
        charge_descent();
        self.0.get(key).map(CountedValue)
    }

    fn members(&self) -> Members<'a> {
        charge_steps(1);
        Members(self.0.iter())
    }
}

pub(super) struct Members<'a>(serde_json::map::Iter<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, CountedValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.0.next()?;
        charge_descent();
        charge_string(key);
        Some((key.as_str(), CountedValue(value)))
    }
}

/// The items of an array.
pub(super) struct CountedItems<'a>(&'a [Value]);

impl<'a> Array<'a, Counted> for CountedItems<'a> {
    type Node = CountedValue<'a>;
    type ElementsIter = Items<'a>;

    fn len(&self) -> usize {
        charge_steps(1);
        self.0.len()
    }

    fn elements(&self) -> Items<'a> {
        charge_steps(1);
        Items(self.0.iter())
    }

    fn is_unique(&self) -> bool {
        self.0.iter().for_each(charge_value);
        let mut seen = HashSet::new();
        self.0.iter().all(|item| seen.insert(canonical(item)))
    }
}

pub(super) struct Items<'a>(std::slice::Iter<'a, Value>);

impl<'a> Iterator for Items<'a> {
    type Item = CountedValue<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.0.next()?;
        charge_descent();
        Some(CountedValue(item))
    }
}
