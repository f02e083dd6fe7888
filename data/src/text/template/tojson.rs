//! The `tojson` filter as Hugging Face defines it: Python's `json.dumps`, nothing escaped for HTML.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::marks;
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

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let layout = Layout::from_options(ensure_ascii, &options)?;
    options.assert_all_used()?;
    let mut text = String::new();
    layout.write(value, 0, &mut text)?;
    Ok(Value::from(text))
}

impl Layout {
    fn from_options(ensure_ascii: Option<bool>, options: &Kwargs) -> Result<Self, Error> {
        let named: Option<bool> = options.get("ensure_ascii")?;
        let indent: Option<Value> = options.get("indent")?;
        let indent = match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
            Some(width) => Some(" ".repeat(usize::try_from(width)?)),
        };
        let separators: Option<Value> = options.get("separators")?;
        let separators = match separators.filter(|pair| !pair.is_none()) {
            Some(pair) => (
                pair.get_item_by_index(0)?.to_string(),
                pair.get_item_by_index(1)?.to_string(),
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

    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Map => self.write_map(value, level, out),
            ValueKind::Seq => self.write_list(value, level, out),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                if marks::unquoted_literal(text) {
                    out.push_str(text);
                } else {
                    out.push_str(&self.quoted(text));
                }
                Ok(())
            }
            _ => {
                out.push_str(&scalar(value)?);
                Ok(())
            }
        }
    }

    fn write_list(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        let mut is_empty = true;
        out.push('[');
        for item in value.try_iter()?.checked() {
            self.before_item(is_empty, level + 1, out);
            self.write(&item?, level + 1, out)?;
            is_empty = false;
        }
        self.close(is_empty, level, out);
        out.push(']');
        Ok(())
    }

    fn write_map(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        if self.keys == KeyOrder::Sorted {
            keys.sort_by_key(|key| marks::without_marks(&key.to_string()));
        }
        out.push('{');
        for (key_idx, key) in keys.iter().enumerate() {
            self.before_item(key_idx == 0, level + 1, out);
            match key.as_str() {
                Some(text) => out.push_str(&self.quoted(text)),
                None => out.push_str(&self.quoted(&scalar(key)?)),
            }
            out.push_str(&self.separators.1);
            self.write(&value.get_item(key)?, level + 1, out)?;
        }
        self.close(keys.is_empty(), level, out);
        out.push('}');
        Ok(())
    }

    fn before_item(&self, is_first: bool, level: usize, out: &mut String) {
        if !is_first {
            out.push_str(&self.separators.0);
        }
        self.line_break(level, out);
    }

    fn close(&self, is_empty: bool, level: usize, out: &mut String) {
        if !is_empty {
            self.line_break(level, out);
        }
    }

    fn line_break(&self, level: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(level));
        }
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
