//! Filters for lists, generators and maps.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::super::budget::{self, ITEM};
use super::builtins::charge_growth;
use super::compare::{is_equal, ordering};
use super::generator::Generator;
use super::operators::{add, characters, is_list, items, new_list, new_tuple, undefined_operation};
use super::texts::str_of;

/// Adds the filters, replacing the engine's own.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("list", list);
    environment.add_filter("first", |value: &Value| edge(value, Edge::First));
    environment.add_filter("last", |value: &Value| edge(value, Edge::Last));
    environment.add_filter("join", join);
    environment.add_filter("reverse", reverse);
    environment.add_filter("items", pairs);
    environment.add_filter("unique", unique);
    environment.add_filter("sort", sort);
    environment.add_filter("min", |value: &Value, options: Kwargs| {
        let sorted = sort_items(value, &options)?;
        options.assert_all_used()?;
        Ok::<_, Error>(sorted.into_iter().next().unwrap_or(Value::UNDEFINED))
    });
    environment.add_filter("max", |value: &Value, options: Kwargs| {
        let sorted = sort_items(value, &options)?;
        options.assert_all_used()?;
        // If items are equal, Python returns the first.
        let Some(last) = sorted.last() else {
            return Ok(Value::UNDEFINED);
        };
        let folded = fold_case(last)?;
        for item in &sorted {
            if is_equal(&fold_case(item)?, &folded)? {
                return Ok(item.clone());
            }
        }
        Ok::<_, Error>(Value::UNDEFINED)
    });
    environment.add_filter("sum", sum);
    environment.add_filter("dictsort", |value: &Value, options: Kwargs| {
        // The engine compares the pairs itself, so the compared part must not be a list or map.
        for key in items(value)? {
            let item = value.get_item(&key)?;
            if key.as_object().is_some() || item.as_object().is_some() && options.has("by") {
                return Err(undefined_operation("dictsort", &[&key, &item]));
            }
        }
        let n_items = value.len().unwrap_or(0);
        let n_compared = n_items.saturating_mul(n_items.max(1).ilog2() as usize + 1);
        budget::charge_read_items(n_compared)?;
        let pairs = items(&filters::dictsort(value, options)?)?;
        let pairs = pairs.iter().map(|pair| new_tuple(items(pair)?));
        new_list(pairs.collect::<Result<_, Error>>()?)
    });
    environment.add_filter("map", map);
    environment.add_filter(
        "batch",
        |state: &State, value: &Value, n: usize, fill: Option<Value>| {
            let value = list(value)?;
            let n_items = value.len().unwrap_or(0);
            // Each batch allocates space for all of its items, and a batch with `fill` always has
            // `n` items.
            let n_allocated = if fill.is_some() { n } else { n.min(1024) };
            let n_lists = n_items / n.max(1) + 1;
            budget::charge_created_items(
                n_items.saturating_add(n_lists.saturating_mul(n_allocated)),
            )?;
            lists(&filters::batch(state, value, n, fill)?)
        },
    );
    environment.add_filter(
        "slice",
        |state: &State, value: &Value, n: usize, fill: Option<Value>| {
            let value = list(value)?;
            let n_items = value.len().unwrap_or(0);
            budget::charge_created_items(n_items.saturating_add(n.saturating_mul(3)))?;
            lists(&filters::slice(state, value, n, fill)?)
        },
    );
    add_selections(environment);
}

fn add_selections(environment: &mut Environment<'static>) {
    for (name, attribute, expected) in [
        ("select", false, true),
        ("reject", false, false),
        ("selectattr", true, true),
        ("rejectattr", true, false),
    ] {
        let selection = Selection {
            attribute,
            expected,
        };
        environment.add_filter(
            name,
            move |state: &mut State, value: Value, rest: Rest<Value>| {
                select(state, &value, rest.0, selection)
            },
        );
    }
}

/// Creates a generator of lists, and charges for each list.
fn lists(all: &Value) -> Result<Value, Error> {
    let lists = items(all)?;
    for list in &lists {
        budget::charge_container(list.clone(), &items(list)?)?;
    }
    Generator::create(lists)
}

/// Returns the items of any Python iterable; a string yields its characters.
fn iterable_items(value: &Value) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => characters(text),
        (ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain, _) => {
            Err(undefined_operation("iteration", &[value]))
        }
        _ => Ok(value.clone()),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    budget::charge_read(value.as_str().map_or(0, str::len))?;
    if value.is_undefined() {
        Ok(0)
    } else {
        value
            .len()
            .ok_or_else(|| undefined_operation("length", &[value]))
    }
}

fn list(value: &Value) -> Result<Value, Error> {
    new_list(items(&iterable_items(value)?)?)
}

#[derive(Clone, Copy)]
enum Edge {
    First,
    Last,
}

fn edge(value: &Value, edge: Edge) -> Result<Value, Error> {
    let iterable = iterable_items(value)?;
    budget::charge_read_items(iterable.len().unwrap_or(0) / 8)?;
    Ok(match edge {
        Edge::First => iterable.try_iter()?.next(),
        Edge::Last => {
            if value.kind() == ValueKind::Iterable && value.len().is_none() {
                return Err(undefined_operation("last", &[value]));
            }
            iterable.try_iter()?.last()
        }
    }
    .unwrap_or(Value::UNDEFINED))
}

fn join(value: &Value, separator: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let separator_option: Option<Value> = options.get("d")?;
    let attribute = attribute_path(&options)?;
    options.assert_all_used()?;
    let separator = separator
        .or(separator_option)
        .unwrap_or_else(|| Value::from(""));
    let mut texts = Vec::new();
    for item in iterable_items(value)?.try_iter()?.checked() {
        let item = item?;
        let item = match &attribute {
            Some(path) => attribute_of(&item, path)?,
            None => item,
        };
        let text = str_of(&item)?;
        budget::charge_created(text.len() + ITEM / 2)?;
        texts.push(text);
    }
    let separator = str_of(&separator)?;
    let n_bytes: usize = texts.iter().map(String::len).sum();
    budget::charge_created(n_bytes.saturating_add(separator.len().saturating_mul(texts.len())))?;
    Ok(texts.join(&separator))
}

fn reverse(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return charge_growth(text, |text| text.chars().rev().collect()).map(Value::from);
    }
    let mut all = items(&iterable_items(value)?)?;
    all.reverse();
    Generator::create(all)
}

fn pairs(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Generator::create(Vec::new()),
        ValueKind::Map => {
            let pair = |key: Value| {
                let item = value.get_item(&key)?;
                new_tuple(vec![key, item])
            };
            let pairs = items(value)?.into_iter().map(pair);
            Generator::create(pairs.collect::<Result<Vec<_>, Error>>()?)
        }
        _ => Err(undefined_operation("items", &[value])),
    }
}

/// Converts a string to lower case for comparison, the default of these filters.
fn fold_case(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => charge_growth(text, str::to_lowercase).map(Value::from),
        None => Ok(value.clone()),
    }
}

/// Returns the attribute that a filter uses.
fn attribute_path(options: &Kwargs) -> Result<Option<String>, Error> {
    let attribute: Option<Value> = options.get("attribute")?;
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    attribute.as_ref().map(str_of).transpose()
}

/// Sorts the items, by an attribute if one is given.
fn sort_items(value: &Value, options: &Kwargs) -> Result<Vec<Value>, Error> {
    let attribute = attribute_path(options)?;
    let is_exact = options.get::<Option<bool>>("case_sensitive")? == Some(true);
    let mut keyed = Vec::new();
    for item in items(&iterable_items(value)?)? {
        let key = match &attribute {
            None => item.clone(),
            Some(path) if path.contains(',') => {
                return Err(undefined_operation(
                    "sorting by several attributes",
                    &[value],
                ));
            }
            Some(path) => attribute_of(&item, path)?,
        };
        let key = if is_exact { key } else { fold_case(&key)? };
        keyed.push((key, item));
    }
    let mut failed = None;
    keyed.sort_by(|(v, _), (w, _)| match ordering(v, w) {
        Ok(order) => order,
        Err(error) => {
            failed.get_or_insert(error);
            std::cmp::Ordering::Equal
        }
    });
    match failed {
        Some(error) => Err(error),
        None => {
            budget::charge_created_items(2 * keyed.len())?;
            Ok(keyed.into_iter().map(|(_, item)| item).collect())
        }
    }
}

fn sort(value: &Value, reverse: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let is_reversed = options.get::<Option<bool>>("reverse")?.or(reverse) == Some(true);
    let all = sort_items(value, &options)?;
    options.assert_all_used()?;
    if !is_reversed {
        return new_list(all);
    }
    // Equal items keep their order even if the sort is reversed.
    let mut backwards = items(&iterable_items(value)?)?;
    backwards.reverse();
    let mut all = sort_items(&Value::from(backwards), &options)?;
    all.reverse();
    new_list(all)
}

fn unique(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let is_exact = options.get::<Option<bool>>("case_sensitive")? == Some(true);
    let attribute = attribute_path(&options)?;
    options.assert_all_used()?;
    let (mut seen, mut taken) = (Vec::<Value>::new(), Vec::new());
    for item in items(&iterable_items(value)?)? {
        let key = match &attribute {
            None => item.clone(),
            Some(path) => attribute_of(&item, path)?,
        };
        if key.kind() == ValueKind::Map || (is_list(&key) && !key.is_tuple()) {
            return Err(undefined_operation("unique", &[&key]));
        }
        let key = if is_exact { key } else { fold_case(&key)? };
        let mut is_new = true;
        for other in &seen {
            budget::charge_read(16)?;
            if is_equal(other, &key)? {
                is_new = false;
                break;
            }
        }
        if is_new {
            budget::charge_created_items(1)?;
            seen.push(key);
            taken.push(item);
        }
    }
    Generator::create(taken)
}

fn sum(value: &Value, attribute: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let attribute = match attribute_path(&options)? {
        None => attribute.as_ref().map(str_of).transpose()?,
        named => named,
    };
    let start: Option<Value> = options.get("start")?;
    options.assert_all_used()?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in items(&iterable_items(value)?)? {
        let item = match &attribute {
            None => item,
            Some(path) => attribute_of(&item, path)?,
        };
        if total.as_str().is_some() || item.as_str().is_some() {
            return Err(undefined_operation("sum", &[&item]));
        }
        total = add(total, item)?;
    }
    Ok(total)
}

/// Jinja2's `map`: maps each item to an attribute, or applies a filter.
fn map(
    state: &mut State<'_, '_>,
    value: &Value,
    rest: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let rest = rest.into_values();
    let (arguments, options): (&[Value], Kwargs) = from_args(&rest)?;
    let all = if value.is_true() || value.is_undefined() {
        items(&iterable_items(value)?)?
    } else {
        Vec::new()
    };
    let mut results = Vec::new();
    if let Some(attribute) = options.get::<Option<Value>>("attribute")? {
        let default: Option<Value> = options.get("default")?;
        options.assert_all_used()?;
        let path = str_of(&attribute)?;
        for item in all {
            let found = attribute_of(&item, &path)?;
            results.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
        return Generator::create(results);
    }
    let missing_argument = || {
        Error::new(
            ErrorKind::MissingArgument,
            "map needs a filter name or attribute=",
        )
    };
    let name = str_of(arguments.first().ok_or_else(missing_argument)?)?;
    for item in all {
        let mut filter_arguments = vec![item];
        filter_arguments.extend(arguments[1..].iter().cloned());
        if options.args().next().is_some() {
            filter_arguments.push(options.clone().into());
        }
        budget::charge_created_items(filter_arguments.len())?;
        results.push(state.apply_filter(&name, &filter_arguments)?);
    }
    Generator::create(results)
}

#[derive(Clone, Copy)]
struct Selection {
    attribute: bool,
    expected: bool,
}

/// Returns the value at a path such as `function.name`; undefined if a part of the path is missing.
fn attribute_of(value: &Value, path: &str) -> Result<Value, Error> {
    budget::charge_read(path.len() + ITEM)?;
    let mut current = value.clone();
    for part in path.split('.') {
        current = match part.parse::<usize>() {
            Ok(at) => current.get_item(&Value::from(at))?,
            Err(_) => current.get_attr(part)?,
        };
    }
    Ok(current)
}

fn select(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: Vec<Value>,
    selection: Selection,
) -> Result<Value, Error> {
    let mut arguments = arguments.into_iter();
    let missing_argument = || {
        Error::new(
            ErrorKind::MissingArgument,
            "the name of an attribute is missing",
        )
    };
    let path = if selection.attribute {
        Some(str_of(&arguments.next().ok_or_else(missing_argument)?)?)
    } else {
        None
    };
    let test = arguments.next().map(|name| str_of(&name)).transpose()?;
    let arguments: Vec<Value> = arguments.collect();
    let mut selected = Vec::new();
    // A false value has no items, even if it is not iterable.
    let all = if value.is_true() {
        items(&iterable_items(value)?)?
    } else {
        Vec::new()
    };
    for item in all {
        let tested = match &path {
            Some(path) => attribute_of(&item, path)?,
            None => item.clone(),
        };
        let holds = match &test {
            None => tested.is_true(),
            Some(test) => {
                let all: Vec<Value> = std::iter::once(tested).chain(arguments.clone()).collect();
                state.perform_test(test, &all)?
            }
        };
        if holds == selection.expected {
            selected.push(item);
        }
    }
    Generator::create(selected)
}
