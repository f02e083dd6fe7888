//! Rules for values that types and ranges cannot express, for use with any setting.
//!
//! The tables of suites use these rules in their own checks. Rules between tables are in
//! `validate`.

use tooltune_agents::truncation::check_filter;
use tooltune_endpoint::http::without_secrets;

use super::findings::Findings;

/// Checks the settings of a config and adds mistakes to the findings.
pub(crate) struct Rules<'a> {
    /// Whether the config has a language model.
    pub(super) has_model: bool,
    /// Whether the command evaluates. Such a command reports missing settings itself.
    pub(super) is_for_evaluation: bool,
    pub(super) findings: &'a mut Findings,
}

impl Rules<'_> {
    /// Reports a mistake at the position of the setting `path`.
    pub(super) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.findings.report(path, message, help);
    }

    /// Whether the setting is in a source.
    pub(super) fn is_in_source(&self, path: &str) -> bool {
        self.findings.is_in_source(path)
    }

    /// The first of two settings if it is set, otherwise the second.
    pub(super) fn typed_of<'a>(&self, first: &'a str, second: &'a str) -> &'a str {
        if self.is_in_source(first) {
            first
        } else {
            second
        }
    }

    /// Reports a missing setting, unless it is unreadable or has another name in the file.
    pub(super) fn missing(&mut self, path: &str, help: &str) {
        if !self.is_in_source(path) && !self.findings.is_misnamed(path) {
            self.report(path, format!("`{path}` is missing"), help);
        }
    }

    /// Reports two settings that exclude each other.
    pub(super) fn report_exclusive(&mut self, first: &str, second: &str) {
        let spans = &self.findings.spans;
        if let (Some(one), Some(other)) = (spans.get(first), spans.get(second)) {
            let is_later = (one.source, one.start) > (other.source, other.start);
            let later = if is_later { first } else { second };
            let message = format!("`{first}` and `{second}` exclude each other");
            self.report(later, message, "delete one of them");
        }
    }

    /// Reports a list that is set but empty.
    pub(super) fn no_empty_list(&mut self, path: &str, is_empty: bool, help: &str) {
        if is_empty && self.findings.has_source_value(path) {
            self.report(path, format!("`{path}` is an empty list"), help);
        }
    }

    /// Checks only the scheme of a URL; other mistakes are found when the URL is opened.
    pub(super) fn url(&mut self, path: &str, url: &str) {
        let is_url = url.starts_with("http://") || url.starts_with("https://");
        if !is_url && self.is_in_source(path) {
            let redacted = without_secrets(url);
            let message = format!("`{path}` is {redacted:?}, which is not a URL");
            self.report(path, message, "start it with http:// or https://");
        }
    }

    /// Refuses a secret in place of a variable name, so that the secret reaches no file or message.
    pub(super) fn refuse_secret_as_variable(&mut self, path: &str, name: &str) {
        let is_name = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_name {
            let help = "put the secret into an environment variable and write the variable's name";
            let message = format!("`{path}` is not the name of an environment variable");
            self.report(path, message, help);
        }
    }

    /// Reports an invalid JMESPath expression.
    pub(super) fn jmespath(&mut self, path: &str, typed: Option<&str>) {
        if let Some(Err(error)) = typed.map(check_filter) {
            let help = "write a JMESPath expression such as \"data[].{id: id, name: name}\", or \
                        delete this line to keep everything";
            self.report(path, format!("`{path}` cannot be applied: {error}"), help);
        }
    }
}
