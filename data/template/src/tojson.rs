//! Hugging Face's `tojson` filter: Python's `json.dumps` without HTML escapes.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use tooltune_json::{Style, dumps, python_float_repr};

use super::budget::{self, Level};
use super::marks;
use super::python::str_of;

/// The keyword arguments that templates may use.
struct Layout {
    style: Style,
    indent: Option<String>,
    separators: (String, String),
    keys: KeyOrder,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyOrder {
    AsGiven,
    Sorted,
}

/// Nesting depth of the current part of the value.
#[derive(Clone, Copy, Default)]
struct Nesting {
    level: Level,
    n_levels: usize,
}

impl Nesting {
    fn descend(self) -> Result<Self, Error> {
        Ok(Self {
            level: self.level.descend()?,
            n_levels: self.n_levels + 1,
        })
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let layout = Layout::from_options(ensure_ascii, &options)?;
    options.assert_all_used()?;
    let mut text = String::new();
    layout.write(value, Nesting::default(), &mut text)?;
    Ok(Value::from(text))
}

impl Layout {
    fn from_options(ensure_ascii: Option<bool>, options: &Kwargs) -> Result<Self, Error> {
        let ensure_ascii_option: Option<bool> = options.get("ensure_ascii")?;
        let indent: Option<Value> = options.get("indent")?;
        let indent = match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
            Some(width) => {
                let width = usize::try_from(width)?;
                budget::charge_created(width)?;
                Some(" ".repeat(width))
            }
        };
        let separators: Option<Value> = options.get("separators")?;
        let separators = match separators.filter(|pair| !pair.is_none()) {
            Some(pair) => (
                str_of(&pair.get_item_by_index(0)?)?,
                str_of(&pair.get_item_by_index(1)?)?,
            ),
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        let is_sorted: Option<bool> = options.get("sort_keys")?;
        Ok(Self {
            style: match ensure_ascii_option.or(ensure_ascii) {
                Some(true) => Style::PythonAscii,
                _ => Style::Python,
            },
            indent,
            separators,
            keys: match is_sorted {
                Some(true) => KeyOrder::Sorted,
                _ => KeyOrder::AsGiven,
            },
        })
    }

    fn write(&self, value: &Value, at: Nesting, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Map => self.write_map(value, at, out),
            ValueKind::Seq => self.write_list(value, at, out),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                budget::charge_created(text.len())?;
                if marks::unquoted_literal(text) {
                    out.push_str(text);
                } else {
                    out.push_str(&self.quote(text));
                }
                Ok(())
            }
            _ => {
                budget::charge_created(16)?;
                out.push_str(&scalar(value)?);
                Ok(())
            }
        }
    }

    fn write_list(&self, value: &Value, at: Nesting, out: &mut String) -> Result<(), Error> {
        let inside = at.descend()?;
        let mut is_empty = true;
        out.push('[');
        for item in value.try_iter()?.checked() {
            self.write_separator(is_empty, inside, out)?;
            self.write(&item?, inside, out)?;
            is_empty = false;
        }
        self.close(is_empty, at, out)?;
        out.push(']');
        Ok(())
    }

    fn write_map(&self, value: &Value, at: Nesting, out: &mut String) -> Result<(), Error> {
        let inside = at.descend()?;
        budget::charge_created_items(value.len().unwrap_or(0))?;
        let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        if self.keys == KeyOrder::Sorted {
            let mut keys_by_name = Vec::with_capacity(keys.len());
            for key in keys {
                keys_by_name.push((marks::remove_marks(&str_of(&key)?), key));
            }
            keys_by_name.sort_by(|(v, _), (w, _)| v.cmp(w));
            keys = keys_by_name.into_iter().map(|(_, key)| key).collect();
        }
        out.push('{');
        for (key_idx, key) in keys.iter().enumerate() {
            self.write_separator(key_idx == 0, inside, out)?;
            budget::charge_created(key.as_str().map_or(16, str::len))?;
            match key.as_str() {
                Some(text) => out.push_str(&self.quote(text)),
                None => out.push_str(&self.quote(&scalar(key)?)),
            }
            budget::charge_created(self.separators.1.len())?;
            out.push_str(&self.separators.1);
            self.write(&value.get_item(key)?, inside, out)?;
        }
        self.close(keys.is_empty(), at, out)?;
        out.push('}');
        Ok(())
    }

    fn write_separator(&self, is_first: bool, at: Nesting, out: &mut String) -> Result<(), Error> {
        budget::charge_read_items(1)?;
        if !is_first {
            budget::charge_created(self.separators.0.len())?;
            out.push_str(&self.separators.0);
        }
        self.line_break(at, out)
    }

    fn close(&self, is_empty: bool, at: Nesting, out: &mut String) -> Result<(), Error> {
        if is_empty {
            budget::charge_created(2)
        } else {
            self.line_break(at, out)
        }
    }

    fn line_break(&self, at: Nesting, out: &mut String) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            budget::charge_created(1 + indent.len().saturating_mul(at.n_levels))?;
            out.push('\n');
            out.push_str(&indent.repeat(at.n_levels));
        }
        Ok(())
    }

    fn quote(&self, text: &str) -> String {
        dumps(&serde_json::Value::String(text.to_owned()), self.style)
    }
}

fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(python_float_repr(f64::try_from(value.clone())?)),
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: a value of kind {kind} has no JSON representation"),
        )),
    }
}
