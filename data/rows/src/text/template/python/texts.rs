//! The texts that Python's `str` and `repr` make of a template's values.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::super::budget::{self, Level};
use super::super::marks;
use crate::json::python_float_repr;
use crate::python::{PyValue, python_repr};

/// What `str(value)` gives: a text is itself, undefined is nothing.
pub(in super::super) fn str_of(value: &Value) -> Result<String, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            budget::read(text.len())?;
            Ok(text.to_owned())
        }
        (ValueKind::Undefined, _) => Ok(String::new()),
        _ => repr_of(value),
    }
}

/// What `repr(value)` gives.
fn repr_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(value, Level::default(), &mut out)?;
    Ok(out)
}

fn write(value: &Value, level: Level, out: &mut String) -> Result<(), Error> {
    let level = level.below()?;
    // What a number or a name takes; texts are counted by their length.
    budget::made(value.as_str().map_or(16, str::len))?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => out.push_str(&quoted(value.as_str().unwrap_or_default())),
        ValueKind::Seq => {
            let [open, close] = if value.is_tuple() {
                ['(', ')']
            } else {
                ['[', ']']
            };
            out.push(open);
            let mut n_items = 0;
            for item in value.try_iter()?.checked() {
                if n_items > 0 {
                    out.push_str(", ");
                }
                write(&item?, level, out)?;
                n_items += 1;
            }
            if value.is_tuple() && n_items == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (key_idx, key) in value.try_iter()?.checked().enumerate() {
                if key_idx > 0 {
                    out.push_str(", ");
                }
                let key = key?;
                write(&key, level, out)?;
                out.push_str(": ");
                write(&value.get_item(&key)?, level, out)?;
            }
            out.push('}');
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of kind {kind} has no text"),
            ));
        }
    }
    Ok(())
}

/// A float as Python prints it, which says `nan` and not `NaN`.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        "nan".to_owned()
    } else {
        python_float_repr(number)
    }
}

/// A text with Python's quotes; marks around all of it stand inside the quotes.
fn quoted(text: &str) -> String {
    let repr = |text: &str| python_repr(&PyValue::Text(text.to_owned()));
    let Some(marked) = marks::split(text) else {
        return repr(text);
    };
    let inner = match (marked.is_literal, marked.inner) {
        (true, "true") => "True",
        (true, "false") => "False",
        (true, "null") => "None",
        (true, literal) => literal,
        (false, inner) => {
            let repr = repr(inner);
            let (quote, body) = (&repr[..1], &repr[1..repr.len() - 1]);
            return format!("{quote}{}{body}{}{quote}", marked.open, marked.close);
        }
    };
    format!("{}{inner}{}", marked.open, marked.close)
}
