//! Imports StableToolBench's files: JSON Lines of documents, an array of documents, or queries that
//! each list their documents.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;
use tooltune_json as json;

use crate::document::ApiDocument;
use crate::error::ToolsError;
use crate::fields::{Fields, wrong_type};
use crate::source::{JsonLines, read_text};

/// Reads the documents of a file, in order.
///
/// The file contains JSON Lines of documents (its name ends in `.jsonl` or `.jsonl.gz`), one JSON
/// array of documents, or an array of queries with their `api_list`. A document listed identically
/// by several queries is returned once. Different documents with the same call name are all
/// returned; [`ApiCatalogue::without_duplicates`](crate::ApiCatalogue::without_duplicates) selects one.
///
/// # Errors
///
/// - the file cannot be read or has no documents
/// - a line or an element is not a document; the error gives file, line and field
pub fn import_stabletoolbench(path: &Path) -> Result<Vec<ApiDocument>, ToolsError> {
    let documents = documents_with_locations(path)?;
    Ok(documents
        .into_iter()
        .map(|(_, document)| document)
        .collect())
}

/// The documents of a file, each with its location.
pub(crate) fn documents_with_locations(
    path: &Path,
) -> Result<Vec<(String, ApiDocument)>, ToolsError> {
    let file = path.display().to_string();
    let documents = if file.ends_with(".jsonl") || file.ends_with(".jsonl.gz") {
        read_lines(path)?
    } else {
        let value = json::parse(&read_text(path)?)
            .map_err(|error| ToolsError::NotJson { error }.at(file.as_str()))?;
        read_value(&value)
            .map_err(|error| error.at(file.as_str()))?
            .into_iter()
            .map(|(location, document)| (format!("{file}, {location}"), document))
            .collect()
    };
    if documents.is_empty() {
        let what = "API documents";
        return Err(ToolsError::Empty { what }.at(file));
    }
    Ok(documents)
}

fn read_lines(path: &Path) -> Result<Vec<(String, ApiDocument)>, ToolsError> {
    JsonLines::open(path)?
        .map(|line| {
            let (location, value) = line?;
            let document = ApiDocument::try_from(value).map_err(|error| error.at(&location))?;
            Ok((location, document))
        })
        .collect()
}

fn read_value(value: &Value) -> Result<Vec<(String, ApiDocument)>, ToolsError> {
    let items = match value {
        Value::Array(items) => items.as_slice(),
        Value::Object(_) => std::slice::from_ref(value),
        other => return Err(wrong_type("the file", other, "a list")),
    };
    if items.iter().any(|item| item.get("api_list").is_some()) {
        return read_queries(items);
    }
    let document = |(i, item): (usize, &Value)| {
        let location = format!("[{i}]");
        Ok((location.clone(), ApiDocument::from_value(item, &location)?))
    };
    items.iter().enumerate().map(document).collect()
}

fn read_queries(queries: &[Value]) -> Result<Vec<(String, ApiDocument)>, ToolsError> {
    const LAYOUT: &str = "a query needs its api_list";
    let mut seen_documents = HashSet::new();
    let mut documents = Vec::new();
    for (i, query) in queries.iter().enumerate() {
        let location = format!("[{i}]");
        let fields = Fields::new(query, &location, LAYOUT)?;
        if fields.get("api_list").is_none() {
            return Err(fields.missing("api_list"));
        }
        for (j, item) in fields.list("api_list")?.iter().enumerate() {
            let location = format!("{location}.api_list[{j}]");
            let document = ApiDocument::from_value(item, &location)?;
            if seen_documents.insert(json::dumps(&as_json(&document), json::Style::Compact)) {
                documents.push((location, document));
            }
        }
    }
    Ok(documents)
}

fn as_json(document: &ApiDocument) -> Value {
    serde_json::to_value(document).expect("a document is texts and JSON values")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::ApiCatalogue;

    fn query(description: &str) -> Value {
        json!({"query": "q", "query_id": 1, "relevant APIs": [["T", "A"]], "api_list": [
            {"tool_name": "T", "api_name": "A", "api_description": description,
             "template_response": {"a": "str"}},
            {"tool_name": "T", "api_name": "B"},
        ]})
    }

    fn write(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        (folder, path)
    }

    #[test]
    fn a_document_shared_by_queries_is_read_once() {
        let (_folder, path) = write("q.json", &json!([query("d"), query("d")]).to_string());
        let documents = import_stabletoolbench(&path).expect("imports");
        let names: Vec<String> = documents.iter().map(ApiDocument::call_name).collect();
        assert_eq!(names, ["T/A", "T/B"]);
        assert_eq!(ApiCatalogue::read(&path).expect("reads").len(), 2);
    }

    #[test]
    fn different_documents_of_one_name_are_refused_or_reduced_to_the_first() {
        let (_folder, path) = write("q.json", &json!([query("d"), query("e")]).to_string());
        let documents = import_stabletoolbench(&path).expect("imports");
        assert_eq!(documents.len(), 3);
        let (catalogue, left_out) = ApiCatalogue::without_duplicates(documents);
        assert_eq!(catalogue.get("T/A").expect("kept").api_description, "d");
        assert_eq!(left_out, ["T/A"]);
        let message = ApiCatalogue::read(&path).expect_err("twice").to_string();
        assert!(message.contains("[0].api_list[0]"), "{message}");
        assert!(message.contains("[1].api_list[0]"), "{message}");
    }

    #[test]
    fn an_error_in_a_query_has_its_location() {
        let without_list = json!([query("d"), {"query": "q"}]).to_string();
        let (_folder, path) = write("q.json", &without_list);
        let message = import_stabletoolbench(&path)
            .expect_err("no list")
            .to_string();
        assert!(
            message.contains("q.json: field \"[1].api_list\" is missing"),
            "{message}"
        );
        let (_folder, path) = write("q.json", "[]");
        let message = import_stabletoolbench(&path)
            .expect_err("empty")
            .to_string();
        assert!(message.contains("has no API documents"), "{message}");
    }
}
