//! What is wrong with values that no type and no range describes, whatever setting holds them.
//!
//! The tables of suites check themselves with these; the rules between tables are in `validate`.

use tooltune_agents::truncation::check_filter;
use tooltune_endpoint::http::without_secrets;

use super::findings::Findings;

/// Adds what is wrong with the settings of a config to the findings.
pub(crate) struct Rules<'a> {
    /// Whether the config has a language model.
    pub(super) has_model: bool,
    pub(super) findings: &'a mut Findings,
}

impl Rules<'_> {
    /// Adds a mistake at the place of the setting `path`.
    pub(super) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.findings.report(path, message, help);
    }

    /// Whether the setting stands in a source.
    pub(super) fn is_typed(&self, path: &str) -> bool {
        self.findings.is_typed(path)
    }

    /// The first of two settings if it is typed, else the second.
    pub(super) fn typed_of<'a>(&self, first: &'a str, second: &'a str) -> &'a str {
        if self.is_typed(first) { first } else { second }
    }

    /// Reports an absent setting, unless it is there and unreadable or under another name.
    pub(super) fn missing(&mut self, path: &str, help: &str) {
        if !self.is_typed(path) && !self.findings.is_misnamed(path) {
            self.report(path, format!("`{path}` is missing"), help);
        }
    }

    /// Reports two settings that must not stand together.
    pub(super) fn exclusive(&mut self, first: &str, second: &str) {
        let places = &self.findings.places;
        if let (Some(one), Some(other)) = (places.get(first), places.get(second)) {
            let is_later = (one.source, one.start) > (other.source, other.start);
            let later = if is_later { first } else { second };
            let message = format!("`{first}` and `{second}` exclude each other");
            self.report(later, message, "delete one of the two");
        }
    }

    /// A list that is typed and holds nothing.
    pub(super) fn no_empty_list(&mut self, path: &str, is_empty: bool, help: &str) {
        if is_empty && self.findings.is_read(path) {
            self.report(path, format!("`{path}` is an empty list"), help);
        }
    }

    /// What is wrong with an address beyond its scheme is found when it is opened.
    pub(super) fn url(&mut self, path: &str, url: &str) {
        let is_url = url.starts_with("http://") || url.starts_with("https://");
        if !is_url && self.is_typed(path) {
            let shown = without_secrets(url);
            let message = format!("`{path}` is {shown:?}, which is no address");
            self.report(path, message, "begin with http:// or https://");
        }
    }

    /// A key in place of the name of a variable must not reach a file or a message.
    pub(super) fn variable(&mut self, path: &str, name: &str) {
        let is_name = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_name {
            let help = "put the secret into an environment variable and write the variable's name";
            let message = format!("`{path}` is not the name of an environment variable");
            self.report(path, message, help);
        }
    }

    /// Reports an expression that no output could be filtered by.
    pub(super) fn jmespath(&mut self, path: &str, typed: Option<&str>) {
        if let Some(Err(error)) = typed.map(check_filter) {
            let help = "write an expression of JMESPath such as \"data[].{id: id, name: name}\", or \
                        delete this line to keep everything";
            self.report(path, format!("`{path}` cannot be applied: {error}"), help);
        }
    }
}
