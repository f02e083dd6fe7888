//! Operators, attributes, slices and loops with Python's semantics, which `program` substitutes for
//! the engine's own.
//!
//! Each function charges for the values that it creates and reads (`budget`) before it does so.

use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::super::budget::{self, ITEM, Level};
use super::compare::{contains, is_equal, ordering};
use super::methods::DictMethod;
use super::namespace;
use super::texts::str_of;

/// Adds the functions that rewritten templates call.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(":+", add);
    environment.add_filter(":-", |v: Value, w: Value| arithmetic("-", &v, &w));
    environment.add_filter(":*", multiply);
    environment.add_filter(":==", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_filter(":!=", |v: Value, w: Value| {
        is_equal(&v, &w).map(|same| !same)
    });
    environment.add_filter(":<", |v: Value, w: Value| {
        ordering(&v, &w).map(|o| o.is_lt())
    });
    environment.add_filter(":<=", |v: Value, w: Value| {
        ordering(&v, &w).map(|o| o.is_le())
    });
    environment.add_filter(":>", |v: Value, w: Value| {
        ordering(&v, &w).map(|o| o.is_gt())
    });
    environment.add_filter(":>=", |v: Value, w: Value| {
        ordering(&v, &w).map(|o| o.is_ge())
    });
    environment.add_filter(":in", |item: Value, container: Value| {
        contains(&container, &item)
    });
    environment.add_filter(":~", |v: Value, w: Value| -> Result<String, Error> {
        if let (Some(v), Some(w)) = (v.as_str(), w.as_str()) {
            budget::charge_created(v.len() + w.len())?;
            return Ok([v, w].concat());
        }
        let (v, w) = (str_of(&v)?, str_of(&w)?);
        budget::charge_created(v.len() + w.len())?;
        Ok(v + &w)
    });
    environment.add_filter(":chained", chained_comparison);
    environment.add_filter(":neg", negate);
    environment.add_filter(":slice", slice);
    environment.add_filter(":item", item);
    environment.add_filter(":attribute", attribute);
    environment.add_filter(":iterator", iterator);
    add_counted(environment);
    // Filters such as `select` look up these tests by name.
    environment.add_test("eq", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_test("equalto", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_test("==", |v: Value, w: Value| is_equal(&v, &w));
    for name in ["ne", "!="] {
        environment.add_test(name, |v: Value, w: Value| {
            is_equal(&v, &w).map(|same| !same)
        });
    }
    for (names, holds) in [
        (
            ["lt", "lessthan", "<"],
            std::cmp::Ordering::is_lt as fn(_) -> bool,
        ),
        (["le", "<=", "<="], std::cmp::Ordering::is_le),
        (["gt", "greaterthan", ">"], std::cmp::Ordering::is_gt),
        (["ge", ">=", ">="], std::cmp::Ordering::is_ge),
    ] {
        for name in names {
            environment.add_test(name, move |v: Value, w: Value| ordering(&v, &w).map(holds));
        }
    }
    environment.add_function("range", range);
    environment.add_test("in", |item: Value, container: Value| {
        contains(&container, &item)
    });
}

/// Adds replacements for instructions whose cost the engine's steps do not reflect.
fn add_counted(environment: &mut Environment<'static>) {
    environment.add_filter(":made", |value: Value| match value.kind() {
        ValueKind::Seq => {
            let items = items(&value)?;
            budget::charge_container(value, &items)
        }
        _ => Ok(value),
    });
    environment.add_filter(":map", map);
    environment.add_filter(":large_map", || {
        Err::<Value, _>(Error::new(
            ErrorKind::InvalidOperation,
            "a map literal has more than 1000 pairs",
        ))
    });
    environment.add_filter(":merged", |merged: ValueOrKwargs| {
        let merged = merged.into_value();
        budget::charge_created_items(2 * merged.len().unwrap_or(0))?;
        Ok::<_, Error>(merged)
    });
    environment.add_filter(":unpacked", |n_items: usize| {
        budget::charge_created_items(n_items)?;
        Ok::<_, Error>(n_items)
    });
    environment.add_filter(":searched", |n_bytes: usize| budget::charge_read(n_bytes));
    environment.add_filter(":set", |value: Value, target: &Value, name: &str| {
        namespace::set(value, target, name)
    });
    environment.add_filter(":changed", loop_changed);
    environment.add_filter(":cycle", loop_cycle);
    environment.add_filter(":no_other_template", |_: Value| {
        Err::<Value, _>(Error::new(
            ErrorKind::InvalidOperation,
            "a chat template cannot extend, include or import another template",
        ))
    });
}

/// Builds a map literal from alternating keys and values.
fn map(parts: Rest<Value>) -> Result<Value, Error> {
    for key in parts.iter().step_by(2) {
        check_hashable(key, Level::default())?;
    }
    budget::charge_created_items(2 * parts.len())?;
    let pairs = parts.chunks_exact(2);
    let dict = Value::from_pairs(pairs.map(|pair| (pair[0].clone(), pair[1].clone())));
    budget::charge_container(dict, &parts)
}

/// Rejects keys that are unhashable in Python: lists and dictionaries, at any depth in a tuple.
pub(super) fn check_hashable(key: &Value, level: Level) -> Result<(), Error> {
    match key.kind() {
        ValueKind::Seq if key.is_tuple() => {
            let level = level.descend()?;
            let items = items(key)?;
            items
                .iter()
                .try_for_each(|item| check_hashable(item, level))
        }
        ValueKind::Seq | ValueKind::Map => Err(undefined_operation("use as a key", &[key])),
        _ => budget::charge_read(key.as_str().map_or(0, str::len)),
    }
}

/// `loop.changed(...)`. The engine keeps the last values, which may be nested, until the end of the
/// loop. It receives an index instead of lists and maps, so that only `budget` keeps and drops
/// them.
fn loop_changed(state: &mut State<'_, '_>, arguments: Rest<Value>) -> Result<Value, Error> {
    let Some((loop_object, values)) = arguments.split_first() else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    if values.iter().any(|value| value.as_object().is_some()) {
        let number = budget::index_of_values(values.to_vec())?;
        loop_object.call_method(state, "changed", &[Value::from(number)])
    } else {
        let n_bytes = values
            .iter()
            .filter_map(|value| Some(value.as_str()?.len()));
        budget::charge_read(n_bytes.sum())?;
        loop_object.call_method(state, "changed", values)
    }
}

/// `loop.cycle(...)`. Without arguments the engine would divide by zero.
fn loop_cycle(state: &mut State<'_, '_>, arguments: Rest<Value>) -> Result<Value, Error> {
    match arguments.split_first() {
        Some((loop_object, values)) if !values.is_empty() => {
            loop_object.call_method(state, "cycle", values)
        }
        _ => Err(Error::new(
            ErrorKind::MissingArgument,
            "cycle() needs at least one argument",
        )),
    }
}

pub(super) fn undefined_operation(operation: &str, values: &[&Value]) -> Error {
    let kind = |value: &&Value| match value.downcast_object_ref::<DictMethod>() {
        Some(method) => method.to_string(),
        None => value.kind().to_string(),
    };
    let kinds: Vec<String> = values.iter().map(kind).collect();
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{operation} is not defined for {}", kinds.join(" and ")),
    )
}

pub(super) fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// Whether the value is a list or a tuple; strings, the third kind of sequence, are excluded.
pub(super) fn is_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq
}

pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    for item in value.try_iter()?.checked() {
        budget::charge_read(ITEM / 4)?;
        all.push(item?);
    }
    Ok(all)
}

/// Creates a list of these items.
pub(super) fn new_list(items: Vec<Value>) -> Result<Value, Error> {
    let holds = items.iter().any(|item| item.as_object().is_some());
    budget::charge_created_items(items.len() + 1)?;
    let list = Value::from(items);
    if holds {
        budget::keep_until_end(list.clone());
    }
    Ok(list)
}

/// Creates a tuple of these items.
pub(super) fn new_tuple(items: Vec<Value>) -> Result<Value, Error> {
    let tuple = Value::from(Tuple::from(items.as_slice()));
    budget::charge_container(tuple, &items)
}

fn new_sequence(like: &Value, items: Vec<Value>) -> Result<Value, Error> {
    if like.is_tuple() {
        new_tuple(items)
    } else {
        new_list(items)
    }
}

pub(super) enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

pub(super) fn numbers(v: &Value, w: &Value) -> Option<Numbers> {
    if !is_number(v) || !is_number(w) {
        return None;
    }
    let integer = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    let float = |value: &Value| match integer(value) {
        Some(integer) => Some(integer as f64),
        None => f64::try_from(value.clone()).ok(),
    };
    match (integer(v), integer(w)) {
        (Some(v), Some(w)) => Some(Numbers::Integers(v, w)),
        _ => Some(Numbers::Floats(float(v)?, float(w)?)),
    }
}

/// Returns an integer in its smallest representation, because the engine stores integers this way.
fn integer(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

fn arithmetic(operation: &str, v: &Value, w: &Value) -> Result<Value, Error> {
    let too_large = || Error::new(ErrorKind::InvalidOperation, "an integer is too large");
    match (numbers(v, w), operation) {
        (Some(Numbers::Integers(v, w)), "+") => v.checked_add(w).map(integer).ok_or_else(too_large),
        (Some(Numbers::Integers(v, w)), "-") => v.checked_sub(w).map(integer).ok_or_else(too_large),
        (Some(Numbers::Integers(v, w)), "*") => v.checked_mul(w).map(integer).ok_or_else(too_large),
        (Some(Numbers::Floats(v, w)), "+") => Ok(Value::from(v + w)),
        (Some(Numbers::Floats(v, w)), "-") => Ok(Value::from(v - w)),
        (Some(Numbers::Floats(v, w)), "*") => Ok(Value::from(v * w)),
        _ => Err(undefined_operation(operation, &[v, w])),
    }
}

pub(super) fn add(v: Value, w: Value) -> Result<Value, Error> {
    if let (Some(v), Some(w)) = (v.as_str(), w.as_str()) {
        budget::charge_created(v.len() + w.len())?;
        return Ok(Value::from([v, w].concat()));
    }
    if is_list(&v) && is_list(&w) && v.is_tuple() == w.is_tuple() {
        let mut all = items(&v)?;
        all.extend(items(&w)?);
        return new_sequence(&v, all);
    }
    arithmetic("+", &v, &w)
}

fn multiply(v: Value, w: Value) -> Result<Value, Error> {
    let is_row = |value: &Value| value.as_str().is_some() || is_list(value);
    let (row, times) = match (is_row(&v), is_row(&w)) {
        (true, false) => (&v, &w),
        (false, true) => (&w, &v),
        _ => return arithmetic("*", &v, &w),
    };
    let Some(Numbers::Integers(times, _)) = numbers(times, &Value::from(0)) else {
        return Err(undefined_operation("*", &[&v, &w]));
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let length = row
        .as_str()
        .map_or_else(|| row.len().unwrap_or(0), str::len);
    let length = length.saturating_mul(times);
    match row.as_str() {
        Some(text) => {
            budget::charge_created(length)?;
            Ok(Value::from(text.repeat(times)))
        }
        None => {
            budget::charge_created_items(length)?;
            let once = items(row)?;
            // Repeating an empty list gives no items.
            let times = if once.is_empty() { 0 } else { times };
            let all = (0..times).flat_map(|_| once.iter().cloned()).collect();
            new_sequence(row, all)
        }
    }
}

fn negate(value: Value) -> Result<Value, Error> {
    match is_number(&value) {
        true if !value.is_integer() && value.kind() == ValueKind::Number => {
            Ok(Value::from(-f64::try_from(value)?))
        }
        true => arithmetic("-", &Value::from(0), &value),
        false => Err(undefined_operation("-", &[&value])),
    }
}

/// Returns the values of a chained comparison such as `1 < v < 3`, if the engine compares them as
/// Python does. The first item of the tuple becomes the top of the stack.
fn chained_comparison(v: Value, w: Value) -> Result<Value, Error> {
    let are_texts = v.as_str().is_some() && w.as_str().is_some();
    budget::charge_read(w.as_str().map_or(0, str::len))?;
    if are_texts || (is_number(&v) && is_number(&w)) {
        Ok(Value::from(Tuple::from([w, v])))
    } else {
        Err(undefined_operation("a chained comparison", &[&v, &w]))
    }
}

fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let bound = |bound: &Value| -> Result<Option<i64>, Error> {
        if bound.is_none() {
            Ok(None)
        } else {
            match numbers(bound, &Value::from(0)) {
                Some(Numbers::Integers(number, _)) => Ok(i64::try_from(number).ok()),
                _ => Err(undefined_operation("slicing", &[bound])),
            }
        }
    };
    let (start, stop, step) = (bound(&start)?, bound(&stop)?, bound(&step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a slice step cannot be 0",
        ));
    }
    if let Some(text) = value.as_str() {
        // Charges one character for the searched string and one for the result.
        budget::charge_created(text.len().saturating_mul(5))?;
        let characters: Vec<char> = text.chars().collect();
        let indices = slice_indices(characters.len(), start, stop, step);
        let text: String = indices.into_iter().map(|at| characters[at]).collect();
        return Ok(Value::from(text));
    }
    if !is_list(&value) {
        return Err(undefined_operation("slicing", &[&value]));
    }
    let all = items(&value)?;
    let indices = slice_indices(all.len(), start, stop, step);
    let selected = indices.into_iter().map(|at| all[at].clone()).collect();
    new_sequence(&value, selected)
}

/// The indices of `range(*slice(start, stop, step).indices(length))`.
fn slice_indices(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let clamp = |bound: i64| {
        if bound < 0 {
            (bound.saturating_add(length)).clamp(low, high)
        } else {
            bound.clamp(low, high)
        }
    };
    let (first, end) = if step > 0 {
        (start.map_or(low, clamp), stop.map_or(high, clamp))
    } else {
        (start.map_or(high, clamp), stop.map_or(low, clamp))
    };
    let mut indices = Vec::new();
    let mut at = first;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        indices.extend(usize::try_from(at).ok());
        at = at.saturating_add(step);
    }
    indices
}

/// Methods of a dictionary. After a dot, Jinja2 prefers them to keys of the same name.
pub(super) const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// Methods that modify the dictionary; Jinja2's sandbox blocks them.
const MUTATING_METHODS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// `value.name`, if the name is a dictionary method that is not called.
fn attribute(value: Value, name: String) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map if MUTATING_METHODS.contains(&name.as_str()) => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("`.{name}` is a dictionary method in Jinja2, not a key; write `['{name}']`"),
        )),
        ValueKind::Map => Ok(DictMethod::value(value, name)),
        ValueKind::Undefined => Err(undefined_operation("attribute access", &[&value])),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `value[key]`.
fn item(value: Value, key: Value) -> Result<Value, Error> {
    let index_in = |length: usize| -> Option<usize> {
        let Some(Numbers::Integers(at, _)) = numbers(&key, &Value::from(0)) else {
            return None;
        };
        let length = i128::try_from(length).ok()?;
        let at = if at < 0 { at.checked_add(length)? } else { at };
        usize::try_from(at).ok()
    };
    let selected = match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            budget::charge_read(text.len())?;
            let length = text.chars().count();
            index_in(length)
                .and_then(|at| text.chars().nth(at))
                .map(Value::from)
        }
        (ValueKind::Undefined, _) => return Err(undefined_operation("item access", &[&value])),
        (ValueKind::Seq, _) => match index_in(value.len().unwrap_or(0)) {
            Some(at) => value.get_item_by_index(at).ok(),
            None => None,
        },
        (ValueKind::Map, _) => {
            check_hashable(&key, Level::default())?;
            let selected = value.get_item(&key)?;
            let name = key.as_str().unwrap_or_default();
            if selected.is_undefined() && DICT_METHODS.contains(&name) {
                return attribute(value.clone(), name.to_owned());
            }
            Some(selected)
        }
        _ => None,
    };
    Ok(selected.unwrap_or(Value::UNDEFINED))
}

/// Python's `range`, for integers.
fn range(start: Value, stop: Option<Value>, step: Option<Value>) -> Result<Value, Error> {
    // Jinja2's sandbox rejects longer ranges.
    const MAX_LENGTH: usize = 100_000;
    let number = |value: &Value| match numbers(value, &Value::from(0)) {
        Some(Numbers::Integers(number, _)) => Ok(number),
        _ => Err(undefined_operation("range", &[value])),
    };
    let (first, end) = match &stop {
        Some(stop) => (number(&start)?, number(stop)?),
        None => (0, number(&start)?),
    };
    let step = step.as_ref().map_or(Ok(1), number)?;
    if step == 0 {
        return Err(undefined_operation("a range with a step of 0", &[&start]));
    }
    let mut all = Vec::new();
    let mut at = first;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        if all.len() == MAX_LENGTH {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a range is too long",
            ));
        }
        all.push(integer(at));
        at = match at.checked_add(step) {
            Some(next) => next,
            None => break,
        };
    }
    new_list(all)
}

/// Returns the values that a loop iterates over, such as the characters of a string. None and
/// numbers are errors.
fn iterator(value: Value) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => characters(text),
        (ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain, _) => {
            Err(undefined_operation("iteration", &[&value]))
        }
        (ValueKind::Map, _) => {
            // The engine copies the keys.
            budget::charge_read_items(value.len().unwrap_or(0))?;
            Ok(value)
        }
        _ => Ok(value),
    }
}

/// Returns the characters of a string as a list.
pub(super) fn characters(text: &str) -> Result<Value, Error> {
    budget::charge_created_items(text.len())?;
    Ok(text.chars().map(Value::from).collect())
}
