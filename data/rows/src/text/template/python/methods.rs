//! Methods of Python's texts, lists and dictionaries.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::super::budget::{self, Level};
use super::builtins::{count_found, grown, must_be_narrow, replaced};
use super::compare::is_equal;
use super::operators::{characters, items, list_of, must_be_key, refused};
use super::{Ends, strip};

/// A method of a dictionary that is not called: defined and true, and nothing that has items or a text.
#[derive(Debug)]
pub(super) struct DictMethod {
    dictionary: Value,
    name: String,
}

impl DictMethod {
    pub(super) fn value(dictionary: Value, name: String) -> Value {
        Value::from_object(Self { dictionary, name })
    }
}

impl fmt::Display for DictMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        write!(
            formatter,
            "`{name}`, the method of a dictionary (its key of this name is `['{name}']`)"
        )
    }
}

impl Object for DictMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        call(state, &self.dictionary, &self.name, arguments)
    }
}

/// Calls a method of a value that has none of its own.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    // Whatever a method does with a text, it reads it, and those that it is given.
    for text in std::iter::once(value)
        .chain(arguments)
        .filter_map(Value::as_str)
    {
        budget::read(text.len())?;
    }
    let own = match (value.kind(), value.as_str()) {
        (_, Some(text)) => of_text(text, method, arguments)?,
        (ValueKind::Seq, _) => of_list(value, method, arguments)?,
        (ValueKind::Map, _) => of_map(value, method, arguments)?,
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// The method is there, and not with such arguments.
fn unusual(method: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{method}() with these arguments is not supported"),
    )
}

fn of_text(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let texts: Option<Vec<&str>> = arguments.iter().map(Value::as_str).collect();
    let texts = texts.unwrap_or_default();
    let all_texts = texts.len() == arguments.len();
    let found = match (method, arguments.len()) {
        ("strip" | "lstrip" | "rstrip", 0 | 1) => {
            let ends = match method {
                "strip" => Ends::Both,
                "lstrip" => Ends::Left,
                _ => Ends::Right,
            };
            match (arguments.first(), texts.first()) {
                (None, _) => Value::from(strip(text, ends)),
                (Some(none), _) if none.is_none() => Value::from(strip(text, ends)),
                (Some(_), None) => return Err(unusual(method)),
                (Some(_), Some(chars)) => {
                    // Each character at an end is looked for among all of these.
                    budget::read(text.len().saturating_mul(chars.len()))?;
                    return Ok(None);
                }
            }
        }
        ("split", 0) => split_blank(text, None)?,
        ("split", 1 | 2) if arguments[0].is_none() => {
            split_blank(text, arguments.get(1).map(times).transpose()?.flatten())?
        }
        ("split", 1 | 2) => {
            let separator = arguments[0]
                .as_str()
                .filter(|separator| !separator.is_empty());
            let separator = separator.ok_or_else(|| unusual(method))?;
            count_parts(text, count_found(text, separator, None)?)?;
            let parts = match arguments.get(1).map(times).transpose()?.flatten() {
                Some(n) => text
                    .splitn(n.saturating_add(1), separator)
                    .map(Value::from)
                    .collect(),
                None => text.split(separator).map(Value::from).collect::<Vec<_>>(),
            };
            Value::from(parts)
        }
        ("rsplit", 1) if all_texts && !texts[0].is_empty() => {
            count_parts(text, count_found(text, texts[0], None)?)?;
            text.split(texts[0]).map(Value::from).collect()
        }
        ("replace", 2) if all_texts => Value::from(replaced(text, texts[0], texts[1], None)?),
        ("removeprefix", 1) if all_texts => {
            Value::from(text.strip_prefix(texts[0]).unwrap_or(text))
        }
        ("removesuffix", 1) if all_texts => {
            Value::from(text.strip_suffix(texts[0]).unwrap_or(text))
        }
        ("partition", 1) if all_texts && !texts[0].is_empty() => {
            let (before, found, after) = match text.split_once(texts[0]) {
                Some((before, after)) => (before, texts[0], after),
                None => (text, "", ""),
            };
            tuple([before, found, after])
        }
        ("rpartition", 1) if all_texts && !texts[0].is_empty() => {
            let (before, found, after) = match text.rsplit_once(texts[0]) {
                Some((before, after)) => (before, texts[0], after),
                None => ("", "", text),
            };
            tuple([before, found, after])
        }
        ("index" | "rindex", 1) if all_texts => {
            let found = match method {
                "index" => text.find(texts[0]),
                _ => text.rfind(texts[0]),
            };
            let at = found.ok_or_else(|| unusual(method))?;
            Value::from(text[..at].chars().count())
        }
        ("count", 1) if all_texts => match texts[0] {
            "" => Value::from(text.chars().count() + 1),
            part => Value::from(count_found(text, part, None)?),
        },
        ("join", 1) => {
            let mut parts = Vec::new();
            let list = match arguments[0].as_str() {
                Some(text) => items(&characters(text)?)?,
                None if arguments[0].is_none() => return Err(unusual(method)),
                None => items(&arguments[0])?,
            };
            for part in &list {
                let part = part.as_str().ok_or_else(|| unusual(method))?;
                budget::made(part.len() + text.len())?;
                parts.push(part.to_owned());
            }
            Value::from(parts.join(text))
        }
        ("isspace", 0) => Value::from(!text.is_empty() && strip(text, Ends::Both).is_empty()),
        // Letters, digits and words by Unicode's tables, which the two languages read otherwise.
        ("isdigit" | "isnumeric" | "isalnum" | "isalpha" | "title", 0) if !text.is_ascii() => {
            return Err(unusual(method));
        }
        ("title", 0) => Value::from(grown(text, title)?),
        _ => return left_to_engine(text, method, arguments),
    };
    Ok(Some(found))
}

/// The methods that the engine computes as Python does, on the texts for which it does; what it
/// makes is counted before.
fn left_to_engine(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match (method, arguments) {
        ("splitlines", []) => {
            if text.contains([
                '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}',
            ]) {
                return Err(unusual(method));
            }
            count_parts(text, count_found(text, "\n", None)?)?;
        }
        ("format", _) => {
            must_be_narrow(text, arguments)?;
            if arguments.iter().any(|value| {
                !matches!(value.kind(), ValueKind::String | ValueKind::Number)
                    || (value.kind() == ValueKind::Number && !value.is_integer())
            }) {
                return Err(unusual(method));
            }
        }
        ("replace", [old, new, count]) => {
            if let (Some(old), Some(new)) = (old.as_str(), new.as_str()) {
                let replaced = replaced(text, old, new, times(count)?)?;
                return Ok(Some(Value::from(replaced)));
            }
        }
        ("upper" | "lower" | "capitalize", _) => budget::made(text.len().saturating_mul(3))?,
        (
            "islower" | "isupper" | "isascii" | "find" | "rfind" | "startswith" | "endswith"
            | "replace" | "isdigit" | "isnumeric" | "isalnum" | "isalpha",
            _,
        ) => budget::read(text.len().saturating_mul(3))?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    }
    Ok(None)
}

/// Counts the parts of a text before it is split at so many places.
fn count_parts(text: &str, n_places: usize) -> Result<(), Error> {
    budget::made_items(n_places + 1)?;
    budget::made(text.len())
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))
}

/// A number of splits; none for all of them.
fn times(value: &Value) -> Result<Option<usize>, Error> {
    let number: i64 = value.clone().try_into()?;
    Ok(usize::try_from(number).ok())
}

/// `split()`: at runs of white space, none at either end.
fn split_blank(text: &str, times: Option<usize>) -> Result<Value, Error> {
    budget::made(text.len())?;
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(super::is_python_space);
    while !rest.is_empty() {
        budget::made_items(1)?;
        if times == Some(parts.len()) {
            // What is left keeps its end, as in Python.
            parts.push(Value::from(rest));
            break;
        }
        let end = rest.find(super::is_python_space).unwrap_or(rest.len());
        parts.push(Value::from(&rest[..end]));
        rest = rest[end..].trim_start_matches(super::is_python_space);
    }
    list_of(parts)
}

/// `title()` of an ASCII text: each letter that follows none is large.
fn title(text: &str) -> String {
    let mut is_inside = false;
    let letter = |character: char| {
        let changed = if is_inside {
            character.to_ascii_lowercase()
        } else {
            character.to_ascii_uppercase()
        };
        is_inside = character.is_ascii_alphabetic();
        changed
    };
    text.chars().map(letter).collect()
}

fn of_list(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let [wanted] = arguments else {
        return Err(Error::from(ErrorKind::UnknownMethod));
    };
    let all = items(value)?;
    match method {
        "count" => {
            let mut n_found = 0;
            for item in &all {
                n_found += usize::from(is_equal(item, wanted)?);
            }
            Ok(Some(Value::from(n_found)))
        }
        "index" => {
            for (at, item) in all.iter().enumerate() {
                if is_equal(item, wanted)? {
                    return Ok(Some(Value::from(at)));
                }
            }
            Err(unusual(method))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn of_map(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match (method, arguments) {
        ("get", [key]) | ("get", [key, _]) if key.kind() == ValueKind::Map => {
            Err(refused(method, &[key]))
        }
        ("get", [key]) | ("get", [key, _]) => {
            must_be_key(key, Level::default())?;
            Ok(None)
        }
        ("copy", []) => Ok(Some(value.clone())),
        ("items" | "keys" | "values", []) => Ok(None),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
