//! The APIs that an executor answers for, by the names that a model may call them by.

use serde_json::{Map, Value};
use tooltune_rows::tools::{ApiCatalogue, ApiDocument, EndpointTemplates};

/// Documents, found by call name or by an endpoint that a call writes out.
#[derive(Debug, Clone)]
pub(super) struct KnownApis {
    catalogue: ApiCatalogue,
    templates: EndpointTemplates,
}

impl KnownApis {
    pub(super) fn new(catalogue: ApiCatalogue) -> Self {
        let names: Vec<String> = catalogue.iter().map(ApiDocument::call_name).collect();
        Self {
            templates: EndpointTemplates::new(names.iter().map(String::as_str)),
            catalogue,
        }
    }

    pub(super) fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    /// The document that a call means, and its arguments with those that stand in the name itself.
    pub(super) fn called(
        &self,
        given: &str,
        arguments: &Map<String, Value>,
    ) -> Option<(&ApiDocument, Map<String, Value>)> {
        let given = given.trim();
        let mut arguments = arguments.clone();
        if let Some(document) = self.catalogue.get(given) {
            return Some((document, arguments));
        }
        let call = self.templates.resolve(given)?;
        for (name, value) in call.arguments {
            arguments.entry(name).or_insert(Value::String(value));
        }
        Some((self.catalogue.get(&call.name)?, arguments))
    }

    /// What is said of a name that no document has.
    pub(super) fn unknown(&self, given: &str) -> String {
        let given = given.trim();
        format!("unknown API {given:?}{}", self.catalogue.hint(given))
    }
}
