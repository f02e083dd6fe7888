//! Methods of Python's strings, lists and dictionaries.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::super::budget::{self, Level};
use super::builtins::{charge_format_widths, charge_growth, count_found, replace_text};
use super::compare::is_equal;
use super::operators::{characters, check_hashable, items, new_list, undefined_operation};
use super::{StripEnds, strip};

/// A dictionary method that is not called. It is defined and true, but not iterable or printable.
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

/// Calls a method of a value that has no native methods.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    // Every method reads its string and its string arguments.
    for text in std::iter::once(value)
        .chain(arguments)
        .filter_map(Value::as_str)
    {
        budget::charge_read(text.len())?;
    }
    let python_result = match (value.kind(), value.as_str()) {
        (_, Some(text)) => call_string_method(text, method, arguments)?,
        (ValueKind::Seq, _) => call_list_method(value, method, arguments)?,
        (ValueKind::Map, _) => call_map_method(value, method, arguments)?,
        _ => None,
    };
    match python_result {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// The error for a method that does not support these arguments.
fn unsupported_arguments(method: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{method}() with these arguments is not supported"),
    )
}

fn call_string_method(
    text: &str,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let texts: Option<Vec<&str>> = arguments.iter().map(Value::as_str).collect();
    let texts = texts.unwrap_or_default();
    let all_texts = texts.len() == arguments.len();
    let result = match (method, arguments.len()) {
        ("strip" | "lstrip" | "rstrip", 0 | 1) => {
            let ends = match method {
                "strip" => StripEnds::Both,
                "lstrip" => StripEnds::Left,
                _ => StripEnds::Right,
            };
            match (arguments.first(), texts.first()) {
                (None, _) => Value::from(strip(text, ends)),
                (Some(none), _) if none.is_none() => Value::from(strip(text, ends)),
                (Some(_), None) => return Err(unsupported_arguments(method)),
                (Some(_), Some(chars)) => {
                    // Each character at either end is searched for in all of `chars`.
                    budget::charge_read(text.len().saturating_mul(chars.len()))?;
                    return Ok(None);
                }
            }
        }
        ("split", 0) => split_blank(text, None)?,
        ("split", 1 | 2) if arguments[0].is_none() => split_blank(
            text,
            arguments.get(1).map(max_splits).transpose()?.flatten(),
        )?,
        ("split", 1 | 2) => {
            let separator = arguments[0]
                .as_str()
                .filter(|separator| !separator.is_empty());
            let separator = separator.ok_or_else(|| unsupported_arguments(method))?;
            count_parts(text, count_found(text, separator, None)?)?;
            let parts = match arguments.get(1).map(max_splits).transpose()?.flatten() {
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
        ("replace", 2) if all_texts => Value::from(replace_text(text, texts[0], texts[1], None)?),
        ("removeprefix", 1) if all_texts => {
            Value::from(text.strip_prefix(texts[0]).unwrap_or(text))
        }
        ("removesuffix", 1) if all_texts => {
            Value::from(text.strip_suffix(texts[0]).unwrap_or(text))
        }
        ("partition", 1) if all_texts && !texts[0].is_empty() => {
            let (before, result, after) = match text.split_once(texts[0]) {
                Some((before, after)) => (before, texts[0], after),
                None => (text, "", ""),
            };
            tuple([before, result, after])
        }
        ("rpartition", 1) if all_texts && !texts[0].is_empty() => {
            let (before, result, after) = match text.rsplit_once(texts[0]) {
                Some((before, after)) => (before, texts[0], after),
                None => ("", "", text),
            };
            tuple([before, result, after])
        }
        ("index" | "rindex", 1) if all_texts => {
            let result = match method {
                "index" => text.find(texts[0]),
                _ => text.rfind(texts[0]),
            };
            let at = result.ok_or_else(|| unsupported_arguments(method))?;
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
                None if arguments[0].is_none() => return Err(unsupported_arguments(method)),
                None => items(&arguments[0])?,
            };
            for part in &list {
                let part = part.as_str().ok_or_else(|| unsupported_arguments(method))?;
                budget::charge_created(part.len() + text.len())?;
                parts.push(part.to_owned());
            }
            Value::from(parts.join(text))
        }
        ("isspace", 0) => Value::from(!text.is_empty() && strip(text, StripEnds::Both).is_empty()),
        // Letters, digits and words depend on Unicode tables, in which the two languages differ.
        ("isdigit" | "isnumeric" | "isalnum" | "isalpha" | "title", 0) if !text.is_ascii() => {
            return Err(unsupported_arguments(method));
        }
        ("title", 0) => Value::from(charge_growth(text, title)?),
        _ => return call_engine_method(text, method, arguments),
    };
    Ok(Some(result))
}

/// Calls the engine's own method if its result for this string is the same as Python's, and charges
/// for the result first.
fn call_engine_method(
    text: &str,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    match (method, arguments) {
        ("splitlines", []) => {
            if text.contains([
                '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}',
            ]) {
                return Err(unsupported_arguments(method));
            }
            count_parts(text, count_found(text, "\n", None)?)?;
        }
        ("format", _) => {
            charge_format_widths(text, arguments)?;
            if arguments.iter().any(|value| {
                !matches!(value.kind(), ValueKind::String | ValueKind::Number)
                    || (value.kind() == ValueKind::Number && !value.is_integer())
            }) {
                return Err(unsupported_arguments(method));
            }
        }
        ("replace", [old, new, count]) => {
            if let (Some(old), Some(new)) = (old.as_str(), new.as_str()) {
                let replaced = replace_text(text, old, new, max_splits(count)?)?;
                return Ok(Some(Value::from(replaced)));
            }
        }
        ("upper" | "lower" | "capitalize", _) => {
            budget::charge_created(text.len().saturating_mul(3))?
        }
        (
            "islower" | "isupper" | "isascii" | "find" | "rfind" | "startswith" | "endswith"
            | "replace" | "isdigit" | "isnumeric" | "isalnum" | "isalpha",
            _,
        ) => budget::charge_read(text.len().saturating_mul(3))?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    }
    Ok(None)
}

/// Charges for the parts of a string before it is split at `n_splits` positions.
fn count_parts(text: &str, n_splits: usize) -> Result<(), Error> {
    budget::charge_created_items(n_splits + 1)?;
    budget::charge_created(text.len())
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))
}

/// Reads a maximum number of splits; `None` means all.
fn max_splits(value: &Value) -> Result<Option<usize>, Error> {
    let number: i64 = value.clone().try_into()?;
    Ok(usize::try_from(number).ok())
}

/// `split()`: splits at runs of white space and strips both ends.
fn split_blank(text: &str, times: Option<usize>) -> Result<Value, Error> {
    budget::charge_created(text.len())?;
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(super::is_python_space);
    while !rest.is_empty() {
        budget::charge_created_items(1)?;
        if times == Some(parts.len()) {
            // The rest keeps its trailing white space, as in Python.
            parts.push(Value::from(rest));
            break;
        }
        let end = rest.find(super::is_python_space).unwrap_or(rest.len());
        parts.push(Value::from(&rest[..end]));
        rest = rest[end..].trim_start_matches(super::is_python_space);
    }
    new_list(parts)
}

/// `title()` for an ASCII string: capitalizes each letter that does not follow a letter.
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

fn call_list_method(
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let [target] = arguments else {
        return Err(Error::from(ErrorKind::UnknownMethod));
    };
    let all = items(value)?;
    match method {
        "count" => {
            let mut n_found = 0;
            for item in &all {
                n_found += usize::from(is_equal(item, target)?);
            }
            Ok(Some(Value::from(n_found)))
        }
        "index" => {
            for (at, item) in all.iter().enumerate() {
                if is_equal(item, target)? {
                    return Ok(Some(Value::from(at)));
                }
            }
            Err(unsupported_arguments(method))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn call_map_method(
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    match (method, arguments) {
        ("get", [key]) | ("get", [key, _]) if key.kind() == ValueKind::Map => {
            Err(undefined_operation(method, &[key]))
        }
        ("get", [key]) | ("get", [key, _]) => {
            check_hashable(key, Level::default())?;
            Ok(None)
        }
        ("copy", []) => Ok(Some(value.clone())),
        ("items" | "keys" | "values", []) => Ok(None),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
