//! The schemas shown in prompts: inferred from responses, or loaded from a folder.

use std::collections::BTreeMap;
use std::path::Path;

use tooltune_apis::{ToolsError, read_json, read_text};
use tooltune_json::ReadError;
use tooltune_json::{Style, dumps};

use super::error::ToolQaError;
use super::rows::ToolQaRow;
use super::schema::infer_schema;
use crate::row_suite::empty_error;

/// Source of the schemas in prompts.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Schemas {
    /// Each schema is inferred from the row's own response.
    #[default]
    Inferred,
    /// Schema texts by endpoint.
    Given(BTreeMap<String, String>),
}

impl Schemas {
    /// Reads a folder with one `<endpoint>.json` per endpoint.
    ///
    /// # Errors
    ///
    /// - the folder or a file cannot be read, or a file is not JSON
    /// - the folder contains no `.json` file
    pub fn read(folder: &Path) -> Result<Self, ToolQaError> {
        let unreadable =
            |error| ToolsError::from(ReadError::unreadable_or_truncated(folder, error));
        let mut by_endpoint = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let endpoint = path.file_stem().and_then(|stem| stem.to_str());
            let is_json = path
                .extension()
                .is_some_and(|extension| extension == "json");
            if let (Some(endpoint), true) = (endpoint, is_json) {
                read_json(&path)?;
                by_endpoint.insert(endpoint.to_owned(), read_text(&path)?);
            }
        }
        if by_endpoint.is_empty() {
            Err(empty_error(folder, "schemas (one <endpoint>.json each)").into())
        } else {
            Ok(Self::Given(by_endpoint))
        }
    }

    /// The schema text for a row.
    ///
    /// # Errors
    ///
    /// The schemas were loaded from a folder without the row's endpoint.
    pub fn text(&self, row: &ToolQaRow) -> Result<String, ToolQaError> {
        let response = &row.response;
        match self {
            Self::Inferred => Ok(dumps(&infer_schema([&response.response]), Style::Python)),
            Self::Given(by_endpoint) => match by_endpoint.get(&response.endpoint) {
                Some(text) => Ok(text.clone()),
                None => Err(ToolQaError::MissingSchema {
                    endpoint: response.endpoint.clone(),
                }),
            },
        }
    }
}
