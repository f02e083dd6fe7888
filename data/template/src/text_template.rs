//! Jinja templates with a few string variables, with the engine and the limits of chat templates.

use std::path::Path;

use minijinja::{Environment, Value};
use tooltune_disk::budgets::TEMPLATE_BYTES;
use tooltune_disk::regular_file;
use tooltune_json::ReadError;

use super::compile;
use super::python::{self, Program};
use crate::error::TemplateError;

/// A compiled template with named string variables.
#[derive(Debug)]
pub struct TextTemplate {
    source: String,
    origin: String,
    environment: Environment<'static>,
    program: Program,
}

impl PartialEq for TextTemplate {
    /// Two templates are equal if their sources are equal.
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl TextTemplate {
    /// Compiles a template file, which must read all variables in `names` and no others.
    ///
    /// # Errors
    ///
    /// Every error names the file:
    ///
    /// - it cannot be read, is not a template, or exceeds a limit (docs/limits.md)
    /// - it reads an unknown variable, or not all of `names`
    pub fn read(path: &Path, names: &[&str]) -> Result<Self, TemplateError> {
        let source = regular_file::read_text(path, TEMPLATE_BYTES);
        let source = source.map_err(|error| ReadError::unreadable(path, error))?;
        Self::new(&source, &path.display().to_string(), names)
    }

    /// Compiles a template, which must read all variables in `names` and no others. Errors name
    /// `origin`.
    ///
    /// # Errors
    ///
    /// As [`TextTemplate::read`], except file errors.
    pub fn new(source: &str, origin: &str, names: &[&str]) -> Result<Self, TemplateError> {
        let compile = || -> Result<_, TemplateError> {
            let (environment, program) = compile(source)?;
            check_reads(&program, names)?;
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

    /// The template's source as given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the template with strings by variable name.
    ///
    /// # Errors
    ///
    /// The rendering fails, or exceeds a limit (docs/limits.md); the error names the file.
    pub fn render(&self, values: &[(&str, &str)]) -> Result<String, TemplateError> {
        let values = values
            .iter()
            .map(|(name, value)| (*name, Value::from(*value)));
        let text = self
            .program
            .render(&self.environment, Value::from_pairs(values));
        text.map_err(|error| python::to_template_error(&error).at(&self.origin))
    }
}

fn check_reads(program: &Program, names: &[&str]) -> Result<(), TemplateError> {
    let variables = python::syntax().map(|syntax| program.variables(syntax));
    let mut variables: Vec<String> = variables.unwrap_or_default().into_iter().collect();
    variables.sort();
    let is_defined = |name: &str| names.contains(&name) || python::has_deterministic_function(name);
    if let Some(unknown) = variables.iter().find(|name| !is_defined(name)) {
        return Err(TemplateError::TemplateVariables {
            reason: format!(
                "the template reads {unknown}, which is not defined; its variables are {}",
                names.join(" and ")
            ),
        });
    }
    match names
        .iter()
        .find(|name| !variables.iter().any(|variables| variables == *name))
    {
        None => Ok(()),
        Some(variable) => Err(TemplateError::TemplateVariables {
            reason: format!("the template never prints {variable}; add {{{{ {variable} }}}}"),
        }),
    }
}
