//! A Jinja template over a few texts, with the engine and the limits of chat templates.

use std::path::Path;

use minijinja::{Environment, Value};

use super::compiled;
use super::python::{self, Program};
use crate::budgets::TEMPLATE_BYTES;
use crate::read_error::ReadError;
use crate::regular_file;
use crate::text::error::DataError;

/// A compiled template that is given texts by name.
#[derive(Debug)]
pub struct TextTemplate {
    source: String,
    origin: String,
    environment: Environment<'static>,
    program: Program,
}

impl PartialEq for TextTemplate {
    /// Templates of one source print the same.
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl TextTemplate {
    /// Compiles the template of a file, which reads all of `names` and nothing else.
    ///
    /// # Errors
    ///
    /// Each names the file:
    ///
    /// - it cannot be read, is no template, or asks for more than templates may (docs/limits.md)
    /// - it reads another variable, or not all of them
    pub fn read(path: &Path, names: &[&str]) -> Result<Self, DataError> {
        let source = regular_file::read_text(path, TEMPLATE_BYTES);
        let source = source.map_err(|error| ReadError::unreadable(path, error))?;
        Self::new(&source, &path.display().to_string(), names)
    }

    /// Compiles a template, which reads all of `names` and nothing else; `origin` names it in errors.
    ///
    /// # Errors
    ///
    /// As [`TextTemplate::read`], but for those of a file.
    pub fn new(source: &str, origin: &str, names: &[&str]) -> Result<Self, DataError> {
        let compile = || -> Result<_, DataError> {
            let (environment, program) = compiled(source)?;
            must_read(&program, names)?;
            Ok((environment, program))
        };
        let (environment, program) = compile().map_err(|error| error.at(origin))?;
        Ok(Self {
            source: source.to_owned(),
            origin: origin.to_owned(),
            environment,
            program,
        })
    }

    /// The template's text as given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the template with texts by name.
    ///
    /// # Errors
    ///
    /// It fails, or asks for more than a rendering may (docs/limits.md); the error names the file.
    pub fn render(&self, values: &[(&str, &str)]) -> Result<String, DataError> {
        let values = values
            .iter()
            .map(|(name, value)| (*name, Value::from(*value)));
        let text = self
            .program
            .render(&self.environment, Value::from_pairs(values));
        text.map_err(|error| python::to_data_error(&error).at(&self.origin))
    }
}

fn must_read(program: &Program, names: &[&str]) -> Result<(), DataError> {
    let read = python::syntax().map(|syntax| program.variables(syntax));
    let mut read: Vec<String> = read.unwrap_or_default().into_iter().collect();
    read.sort();
    let is_given = |name: &str| names.contains(&name) || python::has_function(name);
    if let Some(unknown) = read.iter().find(|name| !is_given(name)) {
        return Err(DataError::TemplateVariables {
            reason: format!(
                "the template reads {unknown}, which it is not given; it has {}",
                names.join(" and ")
            ),
        });
    }
    match names
        .iter()
        .find(|name| !read.iter().any(|read| read == *name))
    {
        None => Ok(()),
        Some(missing) => Err(DataError::TemplateVariables {
            reason: format!(
                "the template never prints {missing}; write {{{{ {missing} }}}} where it belongs"
            ),
        }),
    }
}
