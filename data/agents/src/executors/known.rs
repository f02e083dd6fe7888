//! The APIs of an executor, found by the names that a model may write.

use serde_json::{Map, Value};
use tooltune_apis::{ApiCatalogue, ApiDocument, EndpointTemplates};

/// Documents, found by call name or by an endpoint with values for its path parameters.
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

    /// The document of a call, and its arguments, including those that the name contains.
    pub(super) fn resolve(
        &self,
        api_name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<(&ApiDocument, Map<String, Value>)> {
        let api_name = api_name.trim();
        let mut arguments = arguments.clone();
        if let Some(document) = self.catalogue.get(api_name) {
            return Some((document, arguments));
        }
        let call = self.templates.resolve(api_name)?;
        for (name, value) in call.arguments {
            arguments.entry(name).or_insert(Value::String(value));
        }
        Some((self.catalogue.get(&call.name)?, arguments))
    }

    /// The message for an unknown name.
    pub(super) fn unknown_message(&self, api_name: &str) -> String {
        let api_name = api_name.trim();
        format!("unknown API {api_name:?}{}", self.catalogue.hint(api_name))
    }
}
