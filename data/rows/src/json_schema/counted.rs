//! JSON values that count how often a validator looks at them, and that end it when it looks too
//! often.
//!
//! A validator of the crate jsonschema has no bound of work, and no way to stop it: but it sees a
//! value only through [`Node`], which here takes a step for each look. Where the steps are spent,
//! the walk is left by unwinding, the one way out of a recursion that is not ours; no panic hook
//! sees it, and [`within`] turns it into a result.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use jsonschema::JsonType;
use jsonschema::json::{Array, Json, Node, NodeIdentity, Object, cmp};
use serde_json::{Map, Number, Value};

use super::unique::canonical;

/// Bytes of a text that count as one look.
const BYTES_PER_STEP: usize = 64;

/// What one walk may take, and what it is charged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// Looks at the value.
    pub(super) n_steps: u64,
    /// Bytes of the errors that are made.
    pub(super) error_bytes: u64,
    /// Bytes of an error beside the value that it is about.
    pub(super) per_error: u64,
    /// Looks that a step down into the value counts as: a schema may go many ways at the place
    /// below without looking.
    pub(super) per_descent: u64,
    /// Looks that a text counts as beside its length: patterns may go back and forth over it.
    pub(super) per_text: u64,
}

/// What the walk of a thread may still take, each part by itself so that a look costs little.
struct Left {
    n_steps: Cell<u64>,
    error_bytes: Cell<u64>,
    per_error: Cell<u64>,
    per_descent: Cell<u64>,
    per_text: Cell<u64>,
}

thread_local! {
    static LEFT: Left = const {
        Left {
            n_steps: Cell::new(u64::MAX),
            error_bytes: Cell::new(u64::MAX),
            per_error: Cell::new(0),
            per_descent: Cell::new(0),
            per_text: Cell::new(0),
        }
    };
}

/// Of a thread that is in no walk.
const ENDLESS: Allowance = Allowance {
    n_steps: u64::MAX,
    error_bytes: u64::MAX,
    per_error: 0,
    per_descent: 0,
    per_text: 0,
};

fn allow(allowance: Allowance) {
    LEFT.with(|left| {
        left.n_steps.set(allowance.n_steps);
        left.error_bytes.set(allowance.error_bytes);
        left.per_error.set(allowance.per_error);
        left.per_descent.set(allowance.per_descent);
        left.per_text.set(allowance.per_text);
    });
}

/// The payload of the unwinding, which tells it from a panic.
struct Spent;

/// What `walk` returns; `None` if it takes more than it may.
pub(super) fn within<T>(allowance: Allowance, walk: impl FnOnce() -> T) -> Option<T> {
    allow(allowance);
    // What the walk leaves half done are a context and lists that nobody sees afterwards.
    let outcome = catch_unwind(AssertUnwindSafe(walk));
    allow(ENDLESS);
    match outcome {
        Ok(outcome) => Some(outcome),
        Err(payload) if payload.is::<Spent>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

fn take(left: &Cell<u64>, n: u64) {
    match left.get().checked_sub(n) {
        Some(rest) => left.set(rest),
        None => resume_unwind(Box::new(Spent)),
    }
}

fn look(n: u64) {
    LEFT.with(|left| take(&left.n_steps, n));
}

fn descend() {
    LEFT.with(|left| take(&left.n_steps, left.per_descent.get()));
}

fn read(text: &str) {
    let n = (text.len() / BYTES_PER_STEP) as u64;
    LEFT.with(|left| take(&left.n_steps, n.saturating_add(left.per_text.get())));
}

/// The representation for [`jsonschema::options_for`].
pub(super) struct Counted;

/// A value that counts.
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
        descend();
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
        look(1);
        self.0.as_object().map(CountedMap)
    }

    fn as_array(&self) -> Option<CountedItems<'a>> {
        look(1);
        self.0.as_array().map(|items| CountedItems(items))
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        look(1);
        let text = self.0.as_str()?;
        read(text);
        Some(Cow::Borrowed(text))
    }

    fn as_number(&self) -> Option<&'a Number> {
        look(1);
        self.0.as_number()
    }

    fn as_boolean(&self) -> Option<bool> {
        look(1);
        self.0.as_bool()
    }

    fn is_null(&self) -> bool {
        look(1);
        self.0.is_null()
    }

    fn json_type(&self) -> JsonType {
        look(1);
        Node::json_type(&self.0)
    }

    fn string_length(&self) -> Option<u64> {
        look(1);
        let text = self.0.as_str()?;
        look((text.len() / BYTES_PER_STEP) as u64);
        Node::string_length(&self.0)
    }

    fn equals_value(&self, expected: &Value) -> bool {
        look(1);
        let may_be_equal = match (self.0, expected) {
            (Value::Array(own), Value::Array(other)) => own.len() == other.len(),
            (Value::Object(own), Value::Object(other)) => own.len() == other.len(),
            (Value::String(own), Value::String(other)) => own.len() == other.len(),
            (Value::Array(_) | Value::Object(_) | Value::String(_), _) => false,
            _ => true,
        };
        may_be_equal && {
            look_through(self.0);
            cmp::equal(self.0, expected)
        }
    }

    /// An error keeps the value that it is about, one inside of a branch as its own copy.
    fn to_value(&self) -> Cow<'a, Value> {
        let n_bytes = n_bytes(self.0);
        look(n_bytes / 64);
        LEFT.with(|left| take(&left.error_bytes, n_bytes + left.per_error.get()));
        Cow::Borrowed(self.0)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        look(1);
        Node::identity(&self.0)
    }
}

/// About the bytes that a value takes in memory.
pub(super) fn n_bytes(value: &Value) -> u64 {
    /// Of an object with one field, as its allocator gives them.
    const PER_OBJECT: usize = 160;
    let (mut n_bytes, mut left) = (0_usize, vec![value]);
    while let Some(value) = left.pop() {
        n_bytes += size_of::<Value>();
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                left.extend(fields.values());
                n_bytes += PER_OBJECT + fields.keys().map(|key| key.len() + 64).sum::<usize>();
            }
            Value::String(text) => n_bytes += text.len(),
            _ => {}
        }
    }
    n_bytes as u64
}

/// Charges for reading all of a value.
fn look_through(value: &Value) {
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        look(1);
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => left.extend(fields.values()),
            Value::String(text) => look((text.len() / BYTES_PER_STEP) as u64),
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
        look(1);
        self.0.len()
    }

    fn get(&self, key: &String) -> Option<CountedValue<'a>> {
        descend();
        self.0.get(key).map(CountedValue)
    }

    fn members(&self) -> Members<'a> {
        look(1);
        Members(self.0.iter())
    }
}

pub(super) struct Members<'a>(serde_json::map::Iter<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, CountedValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.0.next()?;
        descend();
        read(key);
        Some((key.as_str(), CountedValue(value)))
    }
}

/// The items of an array.
pub(super) struct CountedItems<'a>(&'a [Value]);

impl<'a> Array<'a, Counted> for CountedItems<'a> {
    type Node = CountedValue<'a>;
    type ElementsIter = Items<'a>;

    fn len(&self) -> usize {
        look(1);
        self.0.len()
    }

    fn elements(&self) -> Items<'a> {
        look(1);
        Items(self.0.iter())
    }

    fn is_unique(&self) -> bool {
        self.0.iter().for_each(look_through);
        let mut seen = HashSet::new();
        self.0.iter().all(|item| seen.insert(canonical(item)))
    }
}

pub(super) struct Items<'a>(std::slice::Iter<'a, Value>);

impl<'a> Iterator for Items<'a> {
    type Item = CountedValue<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.0.next()?;
        descend();
        Some(CountedValue(item))
    }
}
