//! All APIs of a task by call name. They are in source order, so their positions equal the
//! positions in an index of the documents.
//!
//! Two documents with the same call name are an error because a call would be ambiguous. Real
//! collections contain duplicates; [`ApiCatalogue::without_duplicates`] keeps the first document of
//! each name.

use std::collections::HashMap;
use std::path::Path;

use super::declared::DeclaredBy;
use super::document::ApiDocument;
use super::error::{ToolsError, did_you_mean};
use super::import::documents_with_locations;

/// Documents by call name, in source order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiCatalogue {
    documents: Vec<ApiDocument>,
    positions: HashMap<String, usize>,
}

impl ApiCatalogue {
    /// Builds a catalogue from documents.
    ///
    /// # Errors
    ///
    /// - two documents have the same call name; the error gives their positions, from 1
    pub fn new(documents: Vec<ApiDocument>) -> Result<Self, ToolsError> {
        let location = |i: usize| format!("document {}", i + 1);
        Self::with_locations(documents, location)
    }

    /// Builds a catalogue from the first document of each call name. Also returns the names of the
    /// skipped documents, in order.
    pub fn without_duplicates(documents: Vec<ApiDocument>) -> (Self, Vec<String>) {
        let mut catalogue = Self::default();
        let mut left_out = Vec::new();
        for document in documents {
            if let Err((_, name)) = catalogue.push(document) {
                left_out.push(name);
            }
        }
        (catalogue, left_out)
    }

    /// Reads StableToolBench's layout: JSON Lines of documents, a JSON array of documents, or a
    /// JSON array of queries with their `api_list`; optionally gzip-compressed. A document listed
    /// identically by several queries is kept once.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or is empty
    /// - a line or an element is not a document; the error gives file, line and field
    /// - two documents have the same call name; the error gives both locations
    pub fn read(path: &Path) -> Result<Self, ToolsError> {
        let documents = documents_with_locations(path)?;
        let locations: Vec<String> = documents
            .iter()
            .map(|(location, _)| location.clone())
            .collect();
        let documents = documents
            .into_iter()
            .map(|(_, document)| document)
            .collect();
        Self::with_locations(documents, |i| locations[i].clone())
    }

    fn with_locations(
        documents: Vec<ApiDocument>,
        location: impl Fn(usize) -> String,
    ) -> Result<Self, ToolsError> {
        let mut catalogue = Self::default();
        for (i, document) in documents.into_iter().enumerate() {
            if let Err((first, name)) = catalogue.push(document) {
                return Err(ToolsError::DuplicateApi {
                    name,
                    first: location(first),
                    second: location(i),
                });
            }
        }
        Ok(catalogue)
    }

    /// Adds a document, or returns the location of the existing document with this call name.
    fn push(&mut self, document: ApiDocument) -> Result<(), (usize, String)> {
        let name = document.call_name();
        if let Some(&first) = self.positions.get(&name) {
            return Err((first, name));
        }
        self.positions.insert(name, self.documents.len());
        self.documents.push(document);
        Ok(())
    }

    /// The document with this call name.
    pub fn get(&self, name: &str) -> Option<&ApiDocument> {
        self.position(name).map(|i| &self.documents[i])
    }

    /// Index of this call name in source order.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// The documents in source order.
    pub fn documents(&self) -> &[ApiDocument] {
        &self.documents
    }

    /// The documents in source order.
    pub fn iter(&self) -> std::slice::Iter<'_, ApiDocument> {
        self.documents.iter()
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Whether the catalogue is empty.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// `, did you mean "..."?` if a call name is similar to `name`; otherwise empty.
    pub fn hint(&self, name: &str) -> String {
        let names: Vec<String> = self.documents.iter().map(ApiDocument::call_name).collect();
        did_you_mean(name, names.iter().map(String::as_str))
    }

    /// The error for an unknown call name at `field`.
    pub fn unknown_api(&self, field: &str, name: &str) -> ToolsError {
        ToolsError::UnknownApi {
            field: field.to_owned(),
            name: name.to_owned(),
            hint: self.hint(name),
            by: DeclaredBy::Documents,
        }
    }
}

impl<'a> IntoIterator for &'a ApiCatalogue {
    type Item = &'a ApiDocument;
    type IntoIter = std::slice::Iter<'a, ApiDocument>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn write(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        (folder, path)
    }

    fn line(tool: &str, api: &str) -> String {
        format!("{{\"tool_name\": \"{tool}\", \"api_name\": \"{api}\"}}\n")
    }

    #[test]
    fn documents_keep_their_order_and_are_found_by_call_name() {
        let (_folder, path) = write("docs.jsonl", &(line("B", "x") + &line("A", "x")));
        let catalogue = ApiCatalogue::read(&path).expect("reads");
        assert_eq!(catalogue.len(), 2);
        assert_eq!(catalogue.position("A/x"), Some(1));
        assert_eq!(catalogue.get("B/x"), catalogue.documents().first());
        assert_eq!(catalogue.get("x"), None);
        assert_eq!(catalogue.hint("a/X"), ", did you mean \"A/x\"?");
        assert_eq!(catalogue.hint("weather"), "");
        let (_folder, array) = write("docs.json", "[{\"api_name\": \"x\"}]");
        assert_eq!(
            ApiCatalogue::read(&array).expect("reads").position("x"),
            Some(0)
        );
    }

    #[test]
    fn two_documents_of_one_name_are_an_error_that_names_both_locations() {
        let text = line("A", "x") + "\n" + &line("B", "x") + &line("A", "x");
        let (_folder, path) = write("docs.jsonl", &text);
        let message = ApiCatalogue::read(&path).expect_err("twice").to_string();
        assert!(message.contains("\"A/x\" is described twice"), "{message}");
        assert!(message.contains("docs.jsonl:1"), "{message}");
        assert!(message.contains("docs.jsonl:4"), "{message}");
        let twice = vec![ApiDocument::new("", "x"), ApiDocument::new("", "x")];
        let message = ApiCatalogue::new(twice.clone())
            .expect_err("twice")
            .to_string();
        assert!(
            message.contains("at document 1 and at document 2"),
            "{message}"
        );
        let (catalogue, left_out) = ApiCatalogue::without_duplicates(twice);
        assert_eq!((catalogue.len(), left_out), (1, vec!["x".to_owned()]));
    }

    #[test]
    fn a_file_without_documents_and_a_broken_line_are_errors() {
        for (name, text, expected) in [
            (
                "docs.jsonl",
                "\n \n",
                "docs.jsonl: the file has no API documents",
            ),
            (
                "docs.json",
                "[]",
                "docs.json: the file has no API documents",
            ),
            (
                "docs.json",
                "",
                "docs.json: not valid JSON: the text is empty",
            ),
            ("docs.json", "3", "the file is a number, but must be a list"),
            (
                "docs.json",
                "[{\"api_name\": 3}]",
                "docs.json: [0].api_name is a number",
            ),
            (
                "docs.jsonl",
                "{\"api_name\": \"x\"}\n{\"api_name\":\n",
                "docs.jsonl:2: not valid JSON",
            ),
            (
                "docs.jsonl",
                "{\"tool_name\": \"x\"}\n",
                "docs.jsonl:1: field \"api_name\" is missing",
            ),
        ] {
            let (_folder, path) = write(name, text);
            let message = ApiCatalogue::read(&path).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
        let message = ApiCatalogue::read("/nowhere/docs.jsonl".as_ref()).expect_err("no file");
        assert!(
            message
                .to_string()
                .contains("/nowhere/docs.jsonl: cannot read"),
            "{message}"
        );
    }

    /// CPU seconds used by this thread, not by others; 0 on systems that do not report them.
    fn cpu_secs() -> i64 {
        #[cfg(target_os = "linux")]
        {
            use nix::sys::resource::{UsageWho, getrusage};
            let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("a clock");
            usage.user_time().tv_sec()
        }
        #[cfg(not(target_os = "linux"))]
        0
    }

    #[test]
    fn ten_thousand_documents_are_read_and_found() {
        let text: String = (0..10_000)
            .map(|i| line(&format!("T{}", i / 10), &format!("a{i}")))
            .collect();
        let (_folder, path) = write("docs.jsonl", &text);
        let start_secs = cpu_secs();
        let catalogue = ApiCatalogue::read(&path).expect("reads");
        for i in 0..10_000 {
            assert_eq!(catalogue.position(&format!("T{}/a{i}", i / 10)), Some(i));
        }
        let spent = cpu_secs() - start_secs;
        assert!(spent < 10, "{spent}");
    }
}
