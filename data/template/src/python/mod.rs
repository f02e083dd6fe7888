//! minijinja configured like Jinja2 in Hugging Face's libraries.
//!
//! The white-space rules, loop controls, `raise_exception`, `strftime_now`, `tojson` and the
//! methods of strings and maps are the same as in these libraries. Operators, filters and tests
//! follow Python where the two engines differ (`operators`, `builtins`, `methods`). Printing
//! `none`, a list or a map is an error here, whereas Jinja2 prints Python's representation.

mod builtins;
mod compare;
mod generator;
mod methods;
mod namespace;
mod operators;
mod program;
mod sequences;
mod texts;

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, escape_formatter, functions};
use time::OffsetDateTime;

pub(super) use self::compare::are_equal;
pub(super) use self::namespace::Namespace;
pub(super) use self::program::{NotCompiled, Program};
pub(super) use self::texts::str_of;
use super::budget::{self, Exceeded, TemplateBudgetError};
use super::strftime::strftime;
use super::tojson::tojson;
use crate::budgets::TEMPLATE_STEPS;
use crate::error::TemplateError;

/// Time source of `strftime_now`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Clock {
    System,
    Stopped(OffsetDateTime),
}

impl Clock {
    fn now(self) -> OffsetDateTime {
        match self {
            Self::Stopped(moment) => moment,
            Self::System => {
                OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc())
            }
        }
    }
}

/// The error of a template that calls `raise_exception`.
#[derive(Debug)]
struct RaisedException(String);

/// The template printed a value that is not a string.
#[derive(Debug)]
struct Unprintable(String);

impl fmt::Display for RaisedException {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Unprintable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for RaisedException {}
impl std::error::Error for Unprintable {}

/// The functions that every template can call. The clock is excluded, because its output changes
/// every day.
const FUNCTIONS: [&str; 4] = ["dict", "namespace", "raise_exception", "range"];

/// Whether templates have a function of this name with the same output every day.
pub(super) fn has_deterministic_function(name: &str) -> bool {
    FUNCTIONS.contains(&name)
}

/// Hugging Face's white-space rules.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
}

/// Creates an environment without templates.
pub(super) fn environment(clock: Clock) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax()?);
    environment.set_fuel(Some(TEMPLATE_STEPS));
    // Jinja2 has no `debug`, and the engine's `debug` prints all values.
    environment.remove_global("debug");
    environment.add_function("namespace", namespace::namespace);
    environment.add_function("dict", dict);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| {
        check_printable(value)?;
        // An escaped character takes up to six bytes.
        let factor = match state.auto_escape() {
            AutoEscape::None => 1,
            _ => 6,
        };
        budget::charge_created(value.as_str().map_or(40, str::len).saturating_mul(factor))?;
        match value.kind() {
            ValueKind::Number if !value.is_integer() => {
                out.write_str(&texts::float(f64::try_from(value.clone())?))?;
                Ok(())
            }
            _ => escape_formatter(out, state, value),
        }
    });
    environment.add_function(
        "raise_exception",
        |message: Value| -> Result<Value, Error> {
            let message = str_of(&message)?;
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
                .with_source(RaisedException(message)))
        },
    );
    environment.add_filter("tojson", tojson);
    builtins::add_to(&mut environment);
    operators::add_to(&mut environment);
    set_clock(&mut environment, clock);
    Ok(environment)
}

/// Wraps the engine's `dict` and charges the map to the template's budget.
fn dict(value: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let n_given = value.as_ref().and_then(Value::len).unwrap_or(0);
    budget::charge_created_items(2 * (n_given + options.args().count() + 1))?;
    let dict = functions::dict(value, options)?;
    if dict.len().is_some_and(|n_items| n_items > 0) {
        budget::keep_until_end(dict.clone());
    }
    Ok(dict)
}

/// Sets the clock of `strftime_now`.
pub(super) fn set_clock(environment: &mut Environment<'static>, clock: Clock) {
    environment.add_function("strftime_now", move |format: &str| {
        strftime(clock.now(), format).map_err(|directive| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: unknown directive %{directive}"),
            )
        })
    });
}

fn check_printable(value: &Value) -> Result<(), Error> {
    let kind = match value.kind() {
        ValueKind::Plain => match value.downcast_object_ref::<methods::DictMethod>() {
            Some(method) => method.to_string(),
            None => return Ok(()),
        },
        ValueKind::None => "none".to_owned(),
        kind @ (ValueKind::Map | ValueKind::Seq | ValueKind::Iterable | ValueKind::Bytes) => {
            format!("a {kind}")
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidOperation, "not printable").with_source(Unprintable(kind)))
}

#[derive(Clone, Copy)]
enum StripEnds {
    Both,
    Left,
    Right,
}

/// Python treats the four ASCII separators as white space, Rust does not.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn strip(text: &str, ends: StripEnds) -> String {
    match ends {
        StripEnds::Both => text.trim_matches(is_python_space),
        StripEnds::Left => text.trim_start_matches(is_python_space),
        StripEnds::Right => text.trim_end_matches(is_python_space),
    }
    .to_owned()
}

/// Describes an engine error without the template's name.
pub(super) fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Converts a failed rendering to the error of its row.
pub(super) fn to_template_error(error: &Error) -> TemplateError {
    let line = error.line().unwrap_or(0);
    if error.kind() == ErrorKind::OutOfFuel {
        let exceeded = Exceeded::too_many_steps(TEMPLATE_STEPS);
        return TemplateBudgetError { line, exceeded }.into();
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(RaisedException(message)) = cause.downcast_ref() {
            return TemplateError::TemplateRaised {
                message: message.clone(),
            };
        }
        if let Some(exceeded) = cause.downcast_ref::<Exceeded>() {
            let exceeded = exceeded.clone();
            return TemplateBudgetError { line, exceeded }.into();
        }
        if let Some(Unprintable(kind)) = cause.downcast_ref() {
            return TemplateError::NonStringOutput {
                line,
                kind: kind.clone(),
            };
        }
        source = cause.source();
    }
    TemplateError::TemplateFailed {
        line,
        reason: describe(error),
    }
}
