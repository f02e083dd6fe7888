//! minijinja set up as Hugging Face sets up Jinja2.
//!
//! Same white-space rules, loop controls, `raise_exception`, `strftime_now` and `tojson`; methods
//! of Python's strings and maps; operators, filters and tests that answer as Python does where the
//! two engines differ (`operators`, `builtins`, `methods`). Printing none, a list or a map is an error here, not Python's spelling of it.

mod builtins;
mod generator;
mod methods;
mod operators;
mod sequences;
mod texts;

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value, escape_formatter};
use time::OffsetDateTime;

pub(super) use self::operators::render;
use super::strftime::strftime;
use super::tojson::tojson;
use crate::text::error::DataError;

/// Where `strftime_now` takes the time from.
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

/// `raise_exception` was called.
#[derive(Debug)]
struct Raised(String);

/// A value without a text of its own was printed.
#[derive(Debug)]
struct Unprintable(String);

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Unprintable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}
impl std::error::Error for Unprintable {}

/// An environment without templates.
pub(super) fn environment(clock: Clock) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| {
        printable(value)?;
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
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
                .with_source(Raised(message)))
        },
    );
    environment.add_filter("tojson", tojson);
    builtins::add_to(&mut environment);
    operators::add_to(&mut environment);
    set_clock(&mut environment, clock);
    Ok(environment)
}

/// Replaces the clock of `strftime_now`.
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

fn printable(value: &Value) -> Result<(), Error> {
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
enum Ends {
    Both,
    Left,
    Right,
}

/// Python also takes the four ASCII separators for white space, Rust does not.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn strip(text: &str, ends: Ends) -> String {
    match ends {
        Ends::Both => text.trim_matches(is_python_space),
        Ends::Left => text.trim_start_matches(is_python_space),
        Ends::Right => text.trim_end_matches(is_python_space),
    }
    .to_owned()
}

/// An engine error in words, without the template's name.
pub(super) fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// A failed rendering as an error of the row.
pub(super) fn to_data_error(error: &Error) -> DataError {
    let line = error.line().unwrap_or(0);
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return DataError::TemplateRaised {
                message: message.clone(),
            };
        }
        if let Some(Unprintable(kind)) = cause.downcast_ref() {
            return DataError::NonStringOutput {
                line,
                kind: kind.clone(),
            };
        }
        source = cause.source();
    }
    DataError::TemplateFailed {
        line,
        reason: describe(error),
    }
}
