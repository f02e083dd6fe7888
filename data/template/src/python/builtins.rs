//! Tests and filters that behave like Jinja2's.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value, filters};

use super::super::budget::{self, ITEM};
use super::compare::is_equal;
use super::operators::undefined_operation;
use super::sequences;
use super::texts::str_of;
use super::{StripEnds, check_printable, is_python_space, strip};

/// Adds the tests and filters, replacing the engine's own.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    add_tests(environment);
    sequences::add_to(environment);
    environment.add_filter("trim", |value: &Value, chars: Option<&str>| {
        // Trimming a value counts as printing it, so the value must be printable.
        check_printable(value)?;
        let text = str_of(value)?;
        Ok::<_, Error>(match chars {
            None => strip(&text, StripEnds::Both),
            Some(chars) => {
                // Each character at either end is searched for in all of `chars`.
                budget::charge_read(text.len().saturating_mul(chars.len()))?;
                text.trim_matches(|c| chars.contains(c)).to_owned()
            }
        })
    });
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("string", to_str);
    environment.add_filter("upper", |value: &Value| {
        charge_growth(&str_of(value)?, |text| text.to_uppercase())
    });
    environment.add_filter("lower", |value: &Value| {
        charge_growth(&str_of(value)?, |text| text.to_lowercase())
    });
    environment.add_filter("safe", to_str);
    environment.add_filter("replace", replace);
    environment.add_filter("capitalize", |value: &Value| {
        let text = charge_growth(&str_of(value)?, |text| text.to_lowercase())?;
        let mut rest = text.chars();
        let first: Option<String> = rest.next().map(|first| first.to_uppercase().collect());
        Ok::<_, Error>(first.unwrap_or_default() + rest.as_str())
    });
    environment.add_filter("title", |value: &Value| {
        charge_growth(&str_of(value)?, |text| {
            filters::title(text.to_owned().into())
        })
    });
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("indent", indent);
    environment.add_filter("round", round);
    environment.add_filter("attr", |value: &Value, _name: &Value| match value.kind() {
        ValueKind::Undefined => Err(undefined_operation("attr", &[value])),
        _ => Ok(Value::UNDEFINED),
    });
    environment.add_filter("format", |value: &Value, arguments: Rest<Value>| {
        let text = str_of(value)?;
        charge_format_widths(&text, &arguments)?;
        if !text.contains('%') && !arguments.is_empty() {
            return Err(undefined_operation("format", &[value]));
        }
        let texts = arguments.iter().map(|argument| match argument.kind() {
            ValueKind::Number => Ok(argument.clone()),
            _ => str_of(argument).map(Value::from),
        });
        let all: Vec<Value> = std::iter::once(Ok(Value::from(text.as_str())))
            .chain(texts)
            .collect::<Result<_, Error>>()?;
        minijinja::formatting::format(minijinja::formatting::FormatStyle::Printf, &text, &all[1..])
    });
    for name in [
        "pprint", "groupby", "lines", "split", "chain", "zip", "bool",
    ] {
        environment.remove_filter(name);
    }
}

fn add_tests(environment: &mut Environment<'static>) {
    environment.add_test("sequence", |value: &Value| {
        let kinds = [
            ValueKind::Undefined,
            ValueKind::String,
            ValueKind::Map,
            ValueKind::Seq,
        ];
        kinds.contains(&value.kind())
    });
    environment.add_test("iterable", |value: &Value| {
        let kinds = [
            ValueKind::Undefined,
            ValueKind::String,
            ValueKind::Map,
            ValueKind::Seq,
            ValueKind::Iterable,
        ];
        kinds.contains(&value.kind())
    });
    environment.add_test("sameas", |value: &Value, other: &Value| {
        // Python has only one object for none and for each boolean. For equal numbers or strings,
        // identity is an implementation detail.
        let single = [ValueKind::None, ValueKind::Bool];
        match value.kind() == other.kind() && !value.is_undefined() {
            true if single.contains(&value.kind()) => is_equal(value, other),
            true => Err(undefined_operation("sameas", &[value, other])),
            false => Ok(false),
        }
    });
    environment.add_test("lower", |value: &Value| {
        is_cased(value, char::is_lowercase, char::is_uppercase)
    });
    environment.add_test("upper", |value: &Value| {
        is_cased(value, char::is_uppercase, char::is_lowercase)
    });
    environment.add_test("odd", |value: &Value| {
        Ok::<_, Error>(remainder(value, 2)? == 1.0)
    });
    environment.add_test("even", |value: &Value| {
        Ok::<_, Error>(remainder(value, 2)? == 0.0)
    });
    environment.add_test("divisibleby", |value: &Value, other: i64| {
        if other == 0 {
            return Err(undefined_operation("divisibleby", &[value]));
        }
        Ok(remainder(value, other)? == 0.0)
    });
    environment.add_test("callable", |value: &Value| {
        value.is_undefined() || value.kind() == ValueKind::Plain
    });
    environment.add_test("escaped", |_: &Value| false);
}

/// `value % other` for a number.
fn remainder(value: &Value, other: i64) -> Result<f64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true())).rem_euclid(other as f64)),
        ValueKind::Number if value.is_integer() => {
            let value = i128::try_from(value.clone())?;
            Ok(value.rem_euclid(i128::from(other).abs()) as f64)
        }
        ValueKind::Number => Ok(f64::try_from(value.clone())?.rem_euclid(other as f64)),
        _ => Err(undefined_operation("%", &[value])),
    }
}

fn is_cased(
    value: &Value,
    is_so: fn(char) -> bool,
    is_otherwise: fn(char) -> bool,
) -> Result<bool, Error> {
    let text = str_of(value)?;
    // There are two passes, and each looks up every character in a Unicode table.
    budget::charge_read(text.len().saturating_mul(4))?;
    Ok(text.chars().any(is_so) && !text.chars().any(is_otherwise))
}

fn to_str(value: &Value) -> Result<String, Error> {
    str_of(value)
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<i64>) -> Result<String, Error> {
    let (text, old, new) = (str_of(value)?, str_of(old)?, str_of(new)?);
    let count = count.and_then(|count| usize::try_from(count).ok());
    replace_text(&text, &old, &new, count)
}

/// Python's `str.replace`, which replaces at most `count` occurrences.
pub(super) fn replace_text(
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let n_found = count_found(text, old, count)?;
    budget::charge_created(text.len().saturating_add(n_found.saturating_mul(new.len())))?;
    Ok(match count {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

/// Counts the occurrences of a substring, at most `limit`. Each occurrence is charged as read.
pub(super) fn count_found(text: &str, part: &str, limit: Option<usize>) -> Result<usize, Error> {
    // Charged in batches, because charging each occurrence would take as long as finding it.
    const BATCH: usize = 1 << 16;
    budget::charge_read(text.len())?;
    let mut n_found: usize = 0;
    for _ in text.matches(part).take(limit.unwrap_or(usize::MAX)) {
        n_found += 1;
        if n_found.is_multiple_of(BATCH) {
            budget::charge_read(BATCH * ITEM / 2)?;
        }
    }
    Ok(n_found)
}

/// Applies an operation that can triple the length of a string, and charges for the result first.
pub(super) fn charge_growth(
    text: &str,
    operation: impl FnOnce(&str) -> String,
) -> Result<String, Error> {
    budget::charge_created(text.len().saturating_mul(3))?;
    Ok(operation(text))
}

/// Charges for the widths in a format string, before the engine pads to them.
pub(super) fn charge_format_widths(format: &str, arguments: &[Value]) -> Result<(), Error> {
    for digits in format.split(|character: char| !character.is_ascii_digit()) {
        // A width that overflows the number type is beyond any limit.
        let width = match digits {
            "" => 0,
            digits => digits.parse().unwrap_or(usize::MAX),
        };
        budget::charge_created(width)?;
    }
    // A width may also be an argument.
    if format.contains('*') || format.contains("{:{") || format.matches('{').count() > 1 {
        for argument in arguments {
            let width = argument.clone().try_into().unwrap_or(0_i64);
            budget::charge_created(usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX))?;
        }
    }
    let n_given: usize = arguments
        .iter()
        .map(|argument| argument.as_str().map_or(40, str::len))
        .sum();
    let n_fields = format.matches(['%', '{']).count();
    budget::charge_created(
        format
            .len()
            .saturating_add(n_given.saturating_mul(n_fields.max(1))),
    )
}

fn escape(value: &Value) -> Result<String, Error> {
    let text = str_of(value)?;
    budget::charge_created(text.len().saturating_mul(15))?;
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let text = text.replace('>', "&gt;").replace('\'', "&#39;");
    Ok(text.replace('"', "&#34;"))
}

/// Jinja2's `indent`, which adds a line break before it splits the lines.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = options.get::<Option<Value>>("width")?.or(width);
    let first = options.get::<Option<bool>>("first")?.or(first) == Some(true);
    let blank = options.get::<Option<bool>>("blank")?.or(blank) == Some(true);
    options.assert_all_used()?;
    let unusual = [
        '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}',
    ];
    let text = value.as_str().filter(|text| !text.contains(unusual));
    let text = text.ok_or_else(|| undefined_operation("indent", &[value]))?;
    let width = match &width {
        None => "    ".to_owned(),
        Some(width) if width.as_str().is_some() => str_of(width)?,
        Some(width) => {
            let width = usize::try_from(width.clone())?;
            budget::charge_created(width)?;
            " ".repeat(width)
        }
    };
    let n_lines = text.matches('\n').count() + 1;
    budget::charge_created_items(n_lines)?;
    budget::charge_created(
        n_lines
            .saturating_mul(width.len())
            .saturating_add(2 * text.len()),
    )?;
    let lines: Vec<String> = text
        .split('\n')
        .enumerate()
        .map(|(line_idx, line)| {
            if line_idx == 0 || (line.is_empty() && !blank) {
                line.to_owned()
            } else {
                format!("{width}{line}")
            }
        })
        .collect();
    let text = lines.join("\n");
    Ok(if first { width + &text } else { text })
}

/// Jinja2's `round`. The method `common` keeps integers; the other methods return floats.
fn round(
    value: &Value,
    precision: Option<i64>,
    method: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let precision = options
        .get::<Option<i64>>("precision")?
        .or(precision)
        .unwrap_or(0);
    let method = options.get::<Option<Value>>("method")?.or(method);
    let method = method.filter(|method| !method.is_none());
    let method = method.as_ref().map(str_of).transpose()?;
    options.assert_all_used()?;
    if value.kind() != ValueKind::Number {
        return Err(undefined_operation("round", &[value]));
    }
    let digits = u32::try_from(precision).ok().filter(|digits| *digits <= 15);
    let digits =
        digits.ok_or_else(|| undefined_operation("rounding to this precision", &[value]))?;
    let number = f64::try_from(value.clone())?;
    let power = 10_f64.powi(i32::try_from(digits).unwrap_or_default());
    match method.as_deref() {
        None | Some("common") if value.is_integer() => Ok(value.clone()),
        // Both languages round the decimal digits of a float correctly, half to even.
        None | Some("common") => {
            let rounded = format!("{number:.*}", digits as usize);
            rounded
                .parse::<f64>()
                .map(Value::from)
                .map_err(|_| undefined_operation("round", &[value]))
        }
        Some("floor") => Ok(Value::from((number * power).floor() / power)),
        Some("ceil") => Ok(Value::from((number * power).ceil() / power)),
        Some(_) => Err(undefined_operation("rounding with this method", &[value])),
    }
}

/// Jinja2's `int`: returns the default, 0, if the value is not a number.
fn int(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default_option: Option<Value> = options.get("default")?;
    let base: Option<u32> = options.get("base")?;
    options.assert_all_used()?;
    let default = default_option.or(default).unwrap_or(Value::from(0));
    let from_float = |number: f64| {
        number
            .is_finite()
            .then(|| Value::from(number.trunc() as i128))
    };
    Ok(match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            let text = text.trim_matches(is_python_space);
            match i128::from_str_radix(text, base.unwrap_or(10).clamp(2, 36)) {
                Ok(integer) => Value::from(integer),
                Err(_) => text.parse().ok().and_then(from_float).unwrap_or(default),
            }
        }
        (ValueKind::Undefined, _) => return Err(undefined_operation("int", &[value])),
        (ValueKind::Bool, _) => Value::from(i64::from(value.is_true())),
        (ValueKind::Number, _) if value.is_integer() => value.clone(),
        (ValueKind::Number, _) => from_float(f64::try_from(value.clone())?).unwrap_or(default),
        _ => default,
    })
}

/// Jinja2's `float`: returns the default, 0.0, if the value is not a number.
fn float(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default_option: Option<Value> = options.get("default")?;
    options.assert_all_used()?;
    let default = default_option.or(default).unwrap_or(Value::from(0.0));
    Ok(match (value.kind(), value.as_str()) {
        (_, Some(text)) => match text.trim_matches(is_python_space).parse::<f64>() {
            Ok(number) => Value::from(number),
            Err(_) => default,
        },
        (ValueKind::Undefined, _) => return Err(undefined_operation("float", &[value])),
        (ValueKind::Bool, _) => Value::from(f64::from(u8::from(value.is_true()))),
        (ValueKind::Number, _) => Value::from(f64::try_from(value.clone())?),
        _ => default,
    })
}
