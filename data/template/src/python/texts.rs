//! Converts template values to strings as Python's `str` and `repr` do.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use tooltune_json::python::{PyValue, python_repr};
use tooltune_json::python_float_repr;

use super::super::budget::{self, Level};
use super::super::marks;

/// `str(value)`: a string is unchanged, and undefined becomes empty.
pub(crate) fn str_of(value: &Value) -> Result<String, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            budget::charge_read(text.len())?;
            Ok(text.to_owned())
        }
        (ValueKind::Undefined, _) => Ok(String::new()),
        _ => repr_of(value),
    }
}

/// `repr(value)`.
fn repr_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(value, Level::default(), &mut out)?;
    Ok(out)
}

fn write(value: &Value, level: Level, out: &mut String) -> Result<(), Error> {
    let level = level.descend()?;
    // Upper bound for a number or a name; strings are charged by their length.
    budget::charge_created(value.as_str().map_or(16, str::len))?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => out.push_str(&quote(value.as_str().unwrap_or_default())),
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
                format!("a value of kind {kind} has no string representation"),
            ));
        }
    }
    Ok(())
}

/// Formats a float as Python does, which prints `nan` where Rust prints `NaN`.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        "nan".to_owned()
    } else {
        python_float_repr(number)
    }
}

/// Quotes a string as Python does. Marks around the whole string are inside the quotes.
fn quote(text: &str) -> String {
    let repr = |text: &str| python_repr(&PyValue::Text(text.to_owned()));
    let Some(parts) = marks::split(text) else {
        return repr(text);
    };
    let inner = match (parts.is_literal, parts.inner) {
        (true, "true") => "True",
        (true, "false") => "False",
        (true, "null") => "None",
        (true, literal) => literal,
        (false, inner) => {
            let repr = repr(inner);
            let (quote, body) = (&repr[..1], &repr[1..repr.len() - 1]);
            return format!("{quote}{}{body}{}{quote}", parts.open, parts.close);
        }
    };
    format!("{}{inner}{}", parts.open, parts.close)
}
