//! Imports WebNLG's XML: texts, and the triples that they verbalise.

use std::fs;
use std::path::{Path, PathBuf};

use roxmltree::{Document, Node};
use serde_json::{Map, Value};
use tooltune_apis::read_text;
use tooltune_rows::text::SlotRow;

use super::gold::{GoldFields, slot_row};
use super::{ImportError, Imported};

const FORMAT: &str =
    "WebNLG's XML: entries with a category, triples `subject | predicate | object` and texts";

/// Imports WebNLG 3.0.
///
/// `paths` are files or folders; the `.xml` files in a folder and its subfolders are read in path
/// order. Each entry gives a row whose text is the first one marked good, otherwise the first text.
/// The gold value has the category, the subject of the first triple, and the objects of all triples
/// by predicate, with spaces instead of `_` and without outer quotes. Objects with the same
/// predicate become an array of strings.
///
/// Entries without a text, as in test sets without references, and entries without triples are
/// dropped.
///
/// # Errors
///
/// A file cannot be read, is not XML, or an entry is not in WebNLG's format.
///
/// # Source
///
/// SLOT, appendix D.1; its example omits the subject of the second triple.
pub fn import_webnlg(paths: &[PathBuf]) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    for path in paths {
        for file in xml_files(path)? {
            import_file(&file, &mut imported)?;
        }
    }
    Ok(imported)
}

fn xml_files(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let unlisted = |error| ImportError::Folder {
            path: folder.clone(),
            error,
        };
        for entry in fs::read_dir(&folder).map_err(unlisted)? {
            let entry = entry.map_err(unlisted)?;
            let (path, file_type) = (entry.path(), entry.file_type().map_err(unlisted)?);
            if file_type.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "xml") {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        return Err(ImportError::NoFiles {
            path: path.to_owned(),
            extension: ".xml",
        });
    }
    files.sort();
    Ok(files)
}

fn import_file(path: &Path, imported: &mut Imported) -> Result<(), ImportError> {
    let text = read_text(path)?;
    let format_error = |location: String, reason: String| ImportError::Format {
        place: location,
        reason,
        expected: FORMAT,
    };
    let document = Document::parse(&text)
        .map_err(|error| format_error(path.display().to_string(), error.to_string()))?;
    let entries = document.descendants();
    for entry in entries.filter(|node| node.has_tag_name("entry")) {
        let line = document.text_pos_at(entry.range().start).row;
        let location = format!("{}:{line}", path.display());
        let outcome =
            entry_row(entry, &location).map_err(|reason| format_error(location, reason))?;
        imported.record(outcome);
    }
    Ok(())
}

/// Returns a row, or the reason why there is none; fails if the entry is malformed.
fn entry_row(entry: Node<'_, '_>, location: &str) -> Result<Result<SlotRow, &'static str>, String> {
    let category = entry.attribute("category");
    let category = category.ok_or("the entry has no category")?;
    let texts = || entry.children().filter(|node| node.has_tag_name("lex"));
    let good_text = texts().find(|text| text.attribute("comment") == Some("good"));
    let Some(text) = good_text.or_else(|| texts().next()) else {
        return Ok(Err("the entry has no text"));
    };
    let mut children = entry.children();
    let triples = children.find(|node| node.has_tag_name("modifiedtripleset"));
    let triples = triples.ok_or("the entry has no modifiedtripleset")?;
    let mut first_subject = None;
    let mut properties = GoldFields::default();
    for triple in triples
        .children()
        .filter(|node| node.has_tag_name("mtriple"))
    {
        let triple = content(triple);
        let parts: Vec<&str> = triple.split(" | ").collect();
        let [subject, predicate, object] = parts.as_slice() else {
            return Err(format!("{triple:?} is not a triple"));
        };
        first_subject.get_or_insert_with(|| plain_name(subject));
        properties.add(predicate.trim(), plain_name(object).into());
    }
    let Some(subject) = first_subject else {
        return Ok(Err("the entry has no triples"));
    };
    let mut gold = Map::new();
    gold.insert("category".to_owned(), category.into());
    gold.insert("subject".to_owned(), subject.into());
    let properties = Value::Object(properties.into_fields());
    gold.insert("properties".to_owned(), properties);
    Ok(Ok(slot_row(location.to_owned(), &content(text), gold)))
}

fn content(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(Node::is_text);
    texts.filter_map(|text| text.text()).collect()
}

/// A DBpedia name as people write it.
fn plain_name(name: &str) -> String {
    let name = name.trim().replace('_', " ");
    let inner = name
        .strip_prefix('"')
        .and_then(|name| name.strip_suffix('"'));
    inner.unwrap_or(&name).to_owned()
}
