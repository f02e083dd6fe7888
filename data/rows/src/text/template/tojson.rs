//! The `tojson` filter as Hugging Face defines it: Python's `json.dumps`, nothing escaped for HTML.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::budget::{self, Level};
use super::marks;
use super::python::str_of;
use crate::json::{Style, dumps, python_float_repr};

/// The keyword arguments that templates may give.
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

/// How deep a part of the value stands.
#[derive(Clone, Copy, Default)]
struct At {
    level: Level,
    n_levels: usize,
}

impl At {
    fn below(self) -> Result<Self, Error> {
        Ok(Self {
            level: self.level.below()?,
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
    layout.write(value, At::default(), &mut text)?;
    Ok(Value::from(text))
}

impl Layout {
    fn from_options(ensure_ascii: Option<bool>, options: &Kwargs) -> Result<Self, Error> {
        let named: Option<bool> = options.get("ensure_ascii")?;
        let indent: Option<Value> = options.get("indent")?;
        let indent = match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
            Some(width) => {
                let width = usize::try_from(width)?;
                budget::made(width)?;
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
            style: match named.or(ensure_ascii) {
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

    fn write(&self, value: &Value, at: At, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Map => self.write_map(value, at, out),
            ValueKind::Seq => self.write_list(value, at, out),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                budget::made(text.len())?;
                if marks::unquoted_literal(text) {
                    out.push_str(text);
                } else {
                    out.push_str(&self.quoted(text));
                }
                Ok(())
            }
            _ => {
                budget::made(16)?;
                out.push_str(&scalar(value)?);
                Ok(())
            }
        }
    }

    fn write_list(&self, value: &Value, at: At, out: &mut String) -> Result<(), Error> {
        let inside = at.below()?;
        let mut is_empty = true;
        out.push('[');
        for item in value.try_iter()?.checked() {
            self.before_item(is_empty, inside, out)?;
            self.write(&item?, inside, out)?;
            is_empty = false;
        }
        self.close(is_empty, at, out)?;
        out.push(']');
        Ok(())
    }

    fn write_map(&self, value: &Value, at: At, out: &mut String) -> Result<(), Error> {
        let inside = at.below()?;
        budget::made_items(value.len().unwrap_or(0))?;
        let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        if self.keys == KeyOrder::Sorted {
            let mut named = Vec::with_capacity(keys.len());
            for key in keys {
                named.push((marks::without_marks(&str_of(&key)?), key));
            }
            named.sort_by(|(v, _), (w, _)| v.cmp(w));
            keys = named.into_iter().map(|(_, key)| key).collect();
        }
        out.push('{');
        for (key_idx, key) in keys.iter().enumerate() {
            self.before_item(key_idx == 0, inside, out)?;
            budget::made(key.as_str().map_or(16, str::len))?;
            match key.as_str() {
                Some(text) => out.push_str(&self.quoted(text)),
                None => out.push_str(&self.quoted(&scalar(key)?)),
            }
            budget::made(self.separators.1.len())?;
            out.push_str(&self.separators.1);
            self.write(&value.get_item(key)?, inside, out)?;
        }
        self.close(keys.is_empty(), at, out)?;
        out.push('}');
        Ok(())
    }

    fn before_item(&self, is_first: bool, at: At, out: &mut String) -> Result<(), Error> {
        budget::read_items(1)?;
        if !is_first {
            budget::made(self.separators.0.len())?;
            out.push_str(&self.separators.0);
        }
        self.line_break(at, out)
    }

    fn close(&self, is_empty: bool, at: At, out: &mut String) -> Result<(), Error> {
        if is_empty {
            budget::made(2)
        } else {
            self.line_break(at, out)
        }
    }

    fn line_break(&self, at: At, out: &mut String) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            budget::made(1 + indent.len().saturating_mul(at.n_levels))?;
            out.push('\n');
            out.push_str(&indent.repeat(at.n_levels));
        }
        Ok(())
    }

    fn quoted(&self, text: &str) -> String {
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
            format!("tojson: a value of kind {kind} has no JSON form"),
        )),
    }
}
