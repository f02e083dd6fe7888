//! Filters of lists, generators and maps.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::super::budget::{self, ITEM};
use super::builtins::grown;
use super::compare::{is_equal, ordering};
use super::generator::Generator;
use super::operators::{add, characters, is_list, items, list_of, refused, tuple_of};
use super::texts::str_of;

/// Adds the filters, in place of the engine's own.
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
        let sorted = sorted(value, &options)?;
        options.assert_all_used()?;
        Ok::<_, Error>(sorted.into_iter().next().unwrap_or(Value::UNDEFINED))
    });
    environment.add_filter("max", |value: &Value, options: Kwargs| {
        let sorted = sorted(value, &options)?;
        options.assert_all_used()?;
        // Of equal ones Python takes the first.
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
        // The engine compares the pairs itself, so what it compares has to be no list or map.
        for key in items(value)? {
            let item = value.get_item(&key)?;
            if key.as_object().is_some() || item.as_object().is_some() && options.has("by") {
                return Err(refused("dictsort", &[&key, &item]));
            }
        }
        let n_items = value.len().unwrap_or(0);
        let n_compared = n_items.saturating_mul(n_items.max(1).ilog2() as usize + 1);
        budget::read_items(n_compared)?;
        let pairs = items(&filters::dictsort(value, options)?)?;
        let pairs = pairs.iter().map(|pair| tuple_of(items(pair)?));
        list_of(pairs.collect::<Result<_, Error>>()?)
    });
    environment.add_filter("map", map);
    environment.add_filter(
        "batch",
        |state: &State, value: &Value, n: usize, fill: Option<Value>| {
            let value = list(value)?;
            let n_items = value.len().unwrap_or(0);
            // Each list has room for all of its items, and one that is filled has all.
            let room = if fill.is_some() { n } else { n.min(1024) };
            let n_lists = n_items / n.max(1) + 1;
            budget::made_items(n_items.saturating_add(n_lists.saturating_mul(room)))?;
            lists(&filters::batch(state, value, n, fill)?)
        },
    );
    environment.add_filter(
        "slice",
        |state: &State, value: &Value, n: usize, fill: Option<Value>| {
            let value = list(value)?;
            let n_items = value.len().unwrap_or(0);
            budget::made_items(n_items.saturating_add(n.saturating_mul(3)))?;
            lists(&filters::slice(state, value, n, fill)?)
        },
    );
    add_selections(environment);
}

fn add_selections(environment: &mut Environment<'static>) {
    environment.add_filter(
        "select",
        |state: &mut State, value: Value, rest: Rest<Value>| {
            select(
                state,
                &value,
                rest.0,
                Selection {
                    attribute: false,
                    wanted: true,
                },
            )
        },
    );
    environment.add_filter(
        "reject",
        |state: &mut State, value: Value, rest: Rest<Value>| {
            select(
                state,
                &value,
                rest.0,
                Selection {
                    attribute: false,
                    wanted: false,
                },
            )
        },
    );
    environment.add_filter(
        "selectattr",
        |state: &mut State, value: Value, rest: Rest<Value>| {
            select(
                state,
                &value,
                rest.0,
                Selection {
                    attribute: true,
                    wanted: true,
                },
            )
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State, value: Value, rest: Rest<Value>| {
            select(
                state,
                &value,
                rest.0,
                Selection {
                    attribute: true,
                    wanted: false,
                },
            )
        },
    );
}

/// A generator of lists, each of which is counted.
fn lists(all: &Value) -> Result<Value, Error> {
    let lists = items(all)?;
    for list in &lists {
        budget::holder(list.clone(), &items(list)?)?;
    }
    Generator::of(lists)
}

/// What Python can iterate over, texts by their characters.
fn iterable(value: &Value) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => characters(text),
        (ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain, _) => {
            Err(refused("iteration", &[value]))
        }
        _ => Ok(value.clone()),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    budget::read(value.as_str().map_or(0, str::len))?;
    if value.is_undefined() {
        Ok(0)
    } else {
        value.len().ok_or_else(|| refused("length", &[value]))
    }
}

fn list(value: &Value) -> Result<Value, Error> {
    list_of(items(&iterable(value)?)?)
}

#[derive(Clone, Copy)]
enum Edge {
    First,
    Last,
}

fn edge(value: &Value, edge: Edge) -> Result<Value, Error> {
    let iterable = iterable(value)?;
    budget::read_items(iterable.len().unwrap_or(0) / 8)?;
    Ok(match edge {
        Edge::First => iterable.try_iter()?.next(),
        Edge::Last => {
            if value.kind() == ValueKind::Iterable && value.len().is_none() {
                return Err(refused("last", &[value]));
            }
            iterable.try_iter()?.last()
        }
    }
    .unwrap_or(Value::UNDEFINED))
}

fn join(value: &Value, separator: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let named: Option<Value> = options.get("d")?;
    let attribute = path_of(&options)?;
    options.assert_all_used()?;
    let separator = separator.or(named).unwrap_or_else(|| Value::from(""));
    let mut texts = Vec::new();
    for item in iterable(value)?.try_iter()?.checked() {
        let item = item?;
        let item = match &attribute {
            Some(path) => attribute_of(&item, path)?,
            None => item,
        };
        let text = str_of(&item)?;
        budget::made(text.len() + ITEM / 2)?;
        texts.push(text);
    }
    let separator = str_of(&separator)?;
    let n_bytes: usize = texts.iter().map(String::len).sum();
    budget::made(n_bytes.saturating_add(separator.len().saturating_mul(texts.len())))?;
    Ok(texts.join(&separator))
}

fn reverse(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return grown(text, |text| text.chars().rev().collect()).map(Value::from);
    }
    let mut all = items(&iterable(value)?)?;
    all.reverse();
    Generator::of(all)
}

fn pairs(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Generator::of(Vec::new()),
        ValueKind::Map => {
            let pair = |key: Value| {
                let item = value.get_item(&key)?;
                tuple_of(vec![key, item])
            };
            let pairs = items(value)?.into_iter().map(pair);
            Generator::of(pairs.collect::<Result<Vec<_>, Error>>()?)
        }
        _ => Err(refused("items", &[value])),
    }
}

/// A text in lower case, in which texts are compared unless a template says otherwise.
fn fold_case(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => grown(text, str::to_lowercase).map(Value::from),
        None => Ok(value.clone()),
    }
}

/// The attribute that a filter is to look at.
fn path_of(options: &Kwargs) -> Result<Option<String>, Error> {
    let attribute: Option<Value> = options.get("attribute")?;
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    attribute.as_ref().map(str_of).transpose()
}

/// The items in order, by an attribute if one is named.
fn sorted(value: &Value, options: &Kwargs) -> Result<Vec<Value>, Error> {
    let attribute = path_of(options)?;
    let is_exact = options.get::<Option<bool>>("case_sensitive")? == Some(true);
    let mut keyed = Vec::new();
    for item in items(&iterable(value)?)? {
        let key = match &attribute {
            None => item.clone(),
            Some(path) if path.contains(',') => return Err(refused("sort by several", &[value])),
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
            budget::made_items(2 * keyed.len())?;
            Ok(keyed.into_iter().map(|(_, item)| item).collect())
        }
    }
}

fn sort(value: &Value, reverse: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let is_reversed = options.get::<Option<bool>>("reverse")?.or(reverse) == Some(true);
    let all = sorted(value, &options)?;
    options.assert_all_used()?;
    if !is_reversed {
        return list_of(all);
    }
    // Equal items keep their order in a reversed sort, too.
    let mut backwards = items(&iterable(value)?)?;
    backwards.reverse();
    let mut all = sorted(&Value::from(backwards), &options)?;
    all.reverse();
    list_of(all)
}

fn unique(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let is_exact = options.get::<Option<bool>>("case_sensitive")? == Some(true);
    let attribute = path_of(&options)?;
    options.assert_all_used()?;
    let (mut seen, mut taken) = (Vec::<Value>::new(), Vec::new());
    for item in items(&iterable(value)?)? {
        let key = match &attribute {
            None => item.clone(),
            Some(path) => attribute_of(&item, path)?,
        };
        if key.kind() == ValueKind::Map || (is_list(&key) && !key.is_tuple()) {
            return Err(refused("unique", &[&key]));
        }
        let key = if is_exact { key } else { fold_case(&key)? };
        let mut is_new = true;
        for other in &seen {
            budget::read(16)?;
            if is_equal(other, &key)? {
                is_new = false;
                break;
            }
        }
        if is_new {
            budget::made_items(1)?;
            seen.push(key);
            taken.push(item);
        }
    }
    Generator::of(taken)
}

fn sum(value: &Value, attribute: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let attribute = match path_of(&options)? {
        None => attribute.as_ref().map(str_of).transpose()?,
        named => named,
    };
    let start: Option<Value> = options.get("start")?;
    options.assert_all_used()?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in items(&iterable(value)?)? {
        let item = match &attribute {
            None => item,
            Some(path) => attribute_of(&item, path)?,
        };
        if total.as_str().is_some() || item.as_str().is_some() {
            return Err(refused("sum", &[&item]));
        }
        total = add(total, item)?;
    }
    Ok(total)
}

/// Jinja2's `map`: an attribute of each item, or a filter of it.
fn map(
    state: &mut State<'_, '_>,
    value: &Value,
    rest: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let rest = rest.into_values();
    let (arguments, options): (&[Value], Kwargs) = from_args(&rest)?;
    let all = if value.is_true() || value.is_undefined() {
        items(&iterable(value)?)?
    } else {
        Vec::new()
    };
    let mut taken = Vec::new();
    if let Some(attribute) = options.get::<Option<Value>>("attribute")? {
        let default: Option<Value> = options.get("default")?;
        options.assert_all_used()?;
        let path = str_of(&attribute)?;
        for item in all {
            let found = attribute_of(&item, &path)?;
            taken.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
        return Generator::of(taken);
    }
    let missing = || {
        Error::new(
            ErrorKind::MissingArgument,
            "map needs a filter or attribute=",
        )
    };
    let name = str_of(arguments.first().ok_or_else(missing)?)?;
    for item in all {
        let mut given = vec![item];
        given.extend(arguments[1..].iter().cloned());
        if options.args().next().is_some() {
            given.push(options.clone().into());
        }
        budget::made_items(given.len())?;
        taken.push(state.apply_filter(&name, &given)?);
    }
    Generator::of(taken)
}

#[derive(Clone, Copy)]
struct Selection {
    attribute: bool,
    wanted: bool,
}

/// The value at a path such as `function.name`, undefined where it ends early.
fn attribute_of(value: &Value, path: &str) -> Result<Value, Error> {
    budget::read(path.len() + ITEM)?;
    let mut found = value.clone();
    for part in path.split('.') {
        found = match part.parse::<usize>() {
            Ok(at) => found.get_item(&Value::from(at))?,
            Err(_) => found.get_attr(part)?,
        };
    }
    Ok(found)
}

fn select(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: Vec<Value>,
    selection: Selection,
) -> Result<Value, Error> {
    let mut arguments = arguments.into_iter();
    let missing = || Error::new(ErrorKind::MissingArgument, "an attribute is missing");
    let path = if selection.attribute {
        Some(str_of(&arguments.next().ok_or_else(missing)?)?)
    } else {
        None
    };
    let test = arguments.next().map(|name| str_of(&name)).transpose()?;
    let arguments: Vec<Value> = arguments.collect();
    let mut taken = Vec::new();
    // What is false has no items, and is not asked for them.
    let all = if value.is_true() {
        items(&iterable(value)?)?
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
        if holds == selection.wanted {
            taken.push(item);
        }
    }
    Generator::of(taken)
}
