//! Operators, attributes, slices and loops with Python's meaning.
//!
//! The engine compares values of any kinds, finds numbers in texts, and loops over none; Python fails.
//! No setting changes that, so the compiled template is rewritten: an instruction that differs
//! becomes a call of one of the functions here, under a name that no template can write.

use minijinja::machinery::{self, Instruction, Instructions};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::methods::DictMethod;
use super::texts::str_of;

/// Renders a template of the environment with Python's operators.
pub(in super::super) fn render(
    environment: &Environment<'static>,
    name: &str,
    context: Value,
) -> Result<String, Error> {
    let template = environment.get_template(name)?;
    let compiled = machinery::get_compiled_template(&template);
    let instructions = rewritten(&compiled.instructions);
    let blocks = compiled
        .blocks
        .iter()
        .map(|(name, block)| (*name, rewritten(block)))
        .collect();
    let mut text = String::new();
    let mut output = machinery::make_string_output(&mut text);
    machinery::eval(
        environment,
        &instructions,
        context,
        &blocks,
        &mut output,
        AutoEscape::None,
    )?;
    Ok(text)
}

/// The filter cache of the engine is not used for these names.
const NO_CACHE: u8 = u8::MAX;

fn call(name: &'static str, n_arguments: u16) -> Instruction<'static> {
    Instruction::ApplyFilter(name, Some(n_arguments), NO_CACHE)
}

fn rewritten<'s>(original: &Instructions<'s>) -> Instructions<'s> {
    let mut parts: Vec<Vec<Instruction<'s>>> = Vec::new();
    while let Some(instruction) = u32::try_from(parts.len())
        .ok()
        .and_then(|at| original.get(at))
    {
        parts.push(replacement(instruction));
    }
    let mut places = vec![0_u32];
    for part in &parts {
        let last = places.last().copied().unwrap_or_default();
        places.push(last + u32::try_from(part.len()).unwrap_or_default());
    }
    let place = |target: &u32| {
        let old = usize::try_from(*target).unwrap_or(usize::MAX);
        places
            .get(old)
            .or(places.last())
            .copied()
            .unwrap_or_default()
    };
    let mut new = Instructions::new(original.name(), original.source());
    for (old, part) in (0..).zip(parts) {
        for instruction in part {
            let moved = match &instruction {
                Instruction::Iterate(to) => Instruction::Iterate(place(to)),
                Instruction::Jump(to) => Instruction::Jump(place(to)),
                Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(place(to)),
                Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(place(to)),
                Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(place(to)),
                Instruction::BuildMacro(name, to, flags) => {
                    Instruction::BuildMacro(name, place(to), *flags)
                }
                _ => instruction,
            };
            match original
                .get_line(old)
                .and_then(|line| u16::try_from(line).ok())
            {
                Some(line) => new.add_with_line(moved, line),
                None => new.add(moved),
            };
        }
    }
    new
}

fn replacement<'s>(instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
    use minijinja::machinery::Instruction as I;
    let operator = |name| vec![call(name, 2)];
    match instruction {
        I::Add => operator(":+"),
        I::Sub => operator(":-"),
        I::Mul => operator(":*"),
        I::Eq => operator(":=="),
        I::Ne => operator(":!="),
        I::Lt => operator(":<"),
        I::Lte => operator(":<="),
        I::Gt => operator(":>"),
        I::Gte => operator(":>="),
        I::In => operator(":in"),
        I::StringConcat => operator(":~"),
        I::GetItem => operator(":item"),
        // Which comparison it is cannot be seen from here, so only its values are looked at.
        I::CompareAndPreserve(_) => {
            vec![call(":chained", 2), I::UnpackList(2), instruction.clone()]
        }
        I::Neg => vec![call(":neg", 1)],
        I::Slice => vec![call(":slice", 4)],
        I::GetAttr(name) if DICT_METHODS.contains(name) => {
            vec![I::LoadConst(Value::from(*name)), call(":attribute", 2)]
        }
        I::PushLoop(_) => vec![call(":iterator", 1), instruction.clone()],
        other => vec![other.clone()],
    }
}

/// Adds the functions that rewritten templates call.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(":+", add);
    environment.add_filter(":-", |v: Value, w: Value| arithmetic("-", &v, &w));
    environment.add_filter(":*", multiply);
    environment.add_filter(":==", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_filter(":!=", |v: Value, w: Value| !is_equal(&v, &w));
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
        Ok(str_of(&v)? + &str_of(&w)?)
    });
    environment.add_filter(":chained", chained);
    environment.add_filter(":neg", negate);
    environment.add_filter(":slice", slice);
    environment.add_filter(":item", item);
    environment.add_filter(":attribute", attribute);
    environment.add_filter(":iterator", iterator);
    // The names that `select` and its kin look up.
    environment.add_test("eq", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_test("equalto", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_test("==", |v: Value, w: Value| is_equal(&v, &w));
    environment.add_test("ne", |v: Value, w: Value| !is_equal(&v, &w));
    environment.add_test("!=", |v: Value, w: Value| !is_equal(&v, &w));
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

pub(super) fn refused(operation: &str, values: &[&Value]) -> Error {
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

fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// A list or a tuple; the third kind of sequence, a text, is not meant.
pub(super) fn is_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq
}

pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    value.try_iter()?.checked().collect()
}

fn of_kind(like: &Value, items: Vec<Value>) -> Value {
    match like.is_tuple() {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    }
}

enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn numbers(v: &Value, w: &Value) -> Option<Numbers> {
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

/// An integer in the smallest form, as the engine holds it.
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
        _ => Err(refused(operation, &[v, w])),
    }
}

pub(super) fn add(v: Value, w: Value) -> Result<Value, Error> {
    if let (Some(v), Some(w)) = (v.as_str(), w.as_str()) {
        return Ok(Value::from([v, w].concat()));
    }
    if is_list(&v) && is_list(&w) && v.is_tuple() == w.is_tuple() {
        let mut all = items(&v)?;
        all.extend(items(&w)?);
        return Ok(of_kind(&v, all));
    }
    arithmetic("+", &v, &w)
}

fn multiply(v: Value, w: Value) -> Result<Value, Error> {
    // Far beyond any prompt, and far from the end of memory.
    const MAX_LENGTH: usize = 10_000_000;
    let is_row = |value: &Value| value.as_str().is_some() || is_list(value);
    let (row, times) = match (is_row(&v), is_row(&w)) {
        (true, false) => (&v, &w),
        (false, true) => (&w, &v),
        _ => return arithmetic("*", &v, &w),
    };
    let Some(Numbers::Integers(times, _)) = numbers(times, &Value::from(0)) else {
        return Err(refused("*", &[&v, &w]));
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let length = row
        .as_str()
        .map_or_else(|| row.len().unwrap_or(0), str::len);
    if length.saturating_mul(times) > MAX_LENGTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a repeated value is too long",
        ));
    }
    match row.as_str() {
        Some(text) => Ok(Value::from(text.repeat(times))),
        None => {
            let once = items(row)?;
            let all = (0..times).flat_map(|_| once.iter().cloned()).collect();
            Ok(of_kind(row, all))
        }
    }
}

fn negate(value: Value) -> Result<Value, Error> {
    match is_number(&value) {
        true if !value.is_integer() && value.kind() == ValueKind::Number => {
            Ok(Value::from(-f64::try_from(value)?))
        }
        true => arithmetic("-", &Value::from(0), &value),
        false => Err(refused("-", &[&value])),
    }
}

pub(super) fn is_equal(v: &Value, w: &Value) -> bool {
    match (v.kind(), w.kind()) {
        (ValueKind::Seq, ValueKind::Seq) if v.is_tuple() == w.is_tuple() => {
            match (items(v), items(w)) {
                (Ok(v), Ok(w)) => {
                    v.len() == w.len() && v.iter().zip(&w).all(|(v, w)| is_equal(v, w))
                }
                _ => false,
            }
        }
        // Iterating would use them up; Python compares who they are.
        (ValueKind::Iterable, _) | (_, ValueKind::Iterable) => {
            match (v.as_object(), w.as_object()) {
                (Some(v), Some(w)) => std::ptr::eq(v, w),
                _ => false,
            }
        }
        _ => v == w,
    }
}

pub(super) fn ordering(v: &Value, w: &Value) -> Result<std::cmp::Ordering, Error> {
    if let (Some(v), Some(w)) = (v.as_str(), w.as_str()) {
        return Ok(v.cmp(w));
    }
    match numbers(v, w) {
        Some(Numbers::Integers(v, w)) => return Ok(v.cmp(&w)),
        Some(Numbers::Floats(v, w)) => {
            let nan = || Error::new(ErrorKind::InvalidOperation, "nan has no order");
            return v.partial_cmp(&w).ok_or_else(nan);
        }
        None => {}
    }
    if is_list(v) && is_list(w) && v.is_tuple() == w.is_tuple() {
        let (v, w) = (items(v)?, items(w)?);
        for (v, w) in v.iter().zip(&w) {
            if !is_equal(v, w) {
                return ordering(v, w);
            }
        }
        return Ok(v.len().cmp(&w.len()));
    }
    Err(refused("an order", &[v, w]))
}

/// The values of a comparison in a chain, such as `1 < v < 3`, if the engine compares them as Python
/// does; the first of a tuple is unpacked to the top.
fn chained(v: Value, w: Value) -> Result<Value, Error> {
    let are_texts = v.as_str().is_some() && w.as_str().is_some();
    match are_texts || (is_number(&v) && is_number(&w)) {
        true => Ok(Value::from(Tuple::from([w, v]))),
        false => Err(refused("a chain of comparisons", &[&v, &w])),
    }
}

fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        let item = item.as_str();
        let item = item.ok_or_else(|| refused("in", &[container]))?;
        return Ok(text.contains(item));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => match item.kind() {
            ValueKind::Map => Err(refused("in", &[item, container])),
            ValueKind::Seq if !item.is_tuple() => Err(refused("in", &[item, container])),
            _ => {
                let keys = items(container)?;
                Ok(keys.iter().any(|key| is_equal(key, item)))
            }
        },
        ValueKind::Seq | ValueKind::Iterable => {
            for other in container.try_iter()?.checked() {
                if is_equal(&other?, item) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(refused("in", &[item, container])),
    }
}

fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let bound = |bound: &Value| -> Result<Option<i64>, Error> {
        match bound.is_none() {
            true => Ok(None),
            false => match numbers(bound, &Value::from(0)) {
                Some(Numbers::Integers(number, _)) => Ok(i64::try_from(number).ok()),
                _ => Err(refused("a slice", &[bound])),
            },
        }
    };
    let (start, stop, step) = (bound(&start)?, bound(&stop)?, bound(&step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a slice has a step of 0",
        ));
    }
    if let Some(text) = value.as_str() {
        let characters: Vec<char> = text.chars().collect();
        let places = slice_places(characters.len(), start, stop, step);
        let text: String = places.into_iter().map(|at| characters[at]).collect();
        return Ok(Value::from(text));
    }
    if !is_list(&value) {
        return Err(refused("a slice", &[&value]));
    }
    let all = items(&value)?;
    let places = slice_places(all.len(), start, stop, step);
    let taken = places.into_iter().map(|at| all[at].clone()).collect();
    Ok(of_kind(&value, taken))
}

/// The places of `range(*slice(start, stop, step).indices(length))`.
fn slice_places(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (low, high) = match step > 0 {
        true => (0, length),
        false => (-1, length - 1),
    };
    let clamp = |bound: i64| match bound < 0 {
        true => (bound.saturating_add(length)).clamp(low, high),
        false => bound.clamp(low, high),
    };
    let (first, end) = match step > 0 {
        true => (start.map_or(low, clamp), stop.map_or(high, clamp)),
        false => (start.map_or(high, clamp), stop.map_or(low, clamp)),
    };
    let mut places = Vec::new();
    let mut at = first;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        places.extend(usize::try_from(at).ok());
        at = at.saturating_add(step);
    }
    places
}

/// Methods of a dictionary, which Jinja2 finds before its keys where a template writes a dot.
const DICT_METHODS: [&str; 11] = [
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

/// Those of them that change it; the sandbox of Jinja2 hands none of them out.
const CHANGING_METHODS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// `value.name` of a name that is a method of dictionaries, and not called here.
fn attribute(value: Value, name: String) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map if CHANGING_METHODS.contains(&name.as_str()) => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!(
                "`.{name}` is the method of a dictionary in Jinja2, not its key; write `['{name}']`"
            ),
        )),
        ValueKind::Map => Ok(DictMethod::value(value, name)),
        ValueKind::Undefined => Err(refused("an attribute", &[&value])),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `value[key]`.
fn item(value: Value, key: Value) -> Result<Value, Error> {
    let place = |length: usize| -> Option<usize> {
        let Some(Numbers::Integers(at, _)) = numbers(&key, &Value::from(0)) else {
            return None;
        };
        let length = i128::try_from(length).ok()?;
        let at = if at < 0 { at + length } else { at };
        usize::try_from(at).ok()
    };
    let found = match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            let length = text.chars().count();
            place(length)
                .and_then(|at| text.chars().nth(at))
                .map(Value::from)
        }
        (ValueKind::Undefined, _) => return Err(refused("an item", &[&value])),
        (ValueKind::Seq, _) => match place(value.len().unwrap_or(0)) {
            Some(at) => value.get_item_by_index(at).ok(),
            None => None,
        },
        (ValueKind::Map, _) => {
            let found = value.get_item(&key)?;
            let name = key.as_str().unwrap_or_default();
            if found.is_undefined() && DICT_METHODS.contains(&name) {
                return attribute(value.clone(), name.to_owned());
            }
            Some(found)
        }
        _ => None,
    };
    Ok(found.unwrap_or(Value::UNDEFINED))
}

/// Python's `range`, of integers.
fn range(start: Value, stop: Option<Value>, step: Option<Value>) -> Result<Value, Error> {
    // The sandbox of Jinja2 refuses longer ones.
    const MAX_LENGTH: usize = 100_000;
    let number = |value: &Value| match numbers(value, &Value::from(0)) {
        Some(Numbers::Integers(number, _)) => Ok(number),
        _ => Err(refused("range", &[value])),
    };
    let (first, end) = match &stop {
        Some(stop) => (number(&start)?, number(stop)?),
        None => (0, number(&start)?),
    };
    let step = step.as_ref().map_or(Ok(1), number)?;
    if step == 0 {
        return Err(refused("range with a step of 0", &[&start]));
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
        at += step;
    }
    Ok(Value::from(all))
}

/// What a loop goes through: the characters of a text, and never none or a number.
fn iterator(value: Value) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => Ok(text.chars().map(Value::from).collect()),
        (ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain, _) => {
            Err(refused("a loop", &[&value]))
        }
        _ => Ok(value),
    }
}
