//! Reads JSON Lines of pairs and documents.
//!
//! Fields have the names of sentence-transformers (`anchor`, `positive`, `negative`, and
//! `negative_1`, `negative_2`, … as written by its hard-negative miner) or of retrieval (`query`,
//! `document`, `negatives`).

use std::collections::HashMap;

use std::path::Path;

use serde_json::Value;
use tooltune_apis::{ApiCatalogue, Fields, JsonLines, TextLines, ToolsError};
use tooltune_json::ReadError;
use tooltune_json::faults::{Faults, collect_rows};
use tooltune_json::lines::{Records, open_rows};

use super::set::{LocatedText, PairSet};

/// The fields of a pair, the query and its positive document, each with two names.
pub const PAIR_FIELDS: [[&str; 2]; 2] = [["query", "anchor"], ["positive", "document"]];

/// The format of a row with a pair, for messages.
const ROW: &str = "a row is {\"query\": text, \"positive\": text}, optionally with \"negatives\" (a text \
                   or a list) or \"negative_1\", \"negative_2\" and so on; anchor, document and \
                   negative are also accepted";

/// The format of a row with a document, for messages.
const DOCUMENT: &str = "a row is {\"document\": text}, a JSON string or an API document; all rows \
                        of a file must have the same form";

/// Score fields of sentence-transformers' miner, which are ignored.
const SCORES: [&str; 2] = ["score", "scores"];

/// Reads the pairs of all files, one after another.
///
/// # Errors
///
/// - a file cannot be read, or contains no pair
/// - lines are not pairs, or have a duplicate key; the error lists all such lines, with file, line
///   and field
pub fn read_pairs<P: AsRef<Path>>(paths: &[P]) -> Result<PairSet, ToolsError> {
    let files = paths.iter().map(|path| open_rows(path.as_ref()));
    read_pairs_of(files.collect::<Result<_, _>>()?)
}

/// Reads the pairs of open files, one after another.
///
/// # Errors
///
/// As for [`read_pairs`].
pub fn read_pairs_of(files: Vec<Box<dyn Records>>) -> Result<PairSet, ToolsError> {
    read_pairs_among(files, &[])
}

/// Like [`read_pairs_of`], but takes positives from an index: if the `document_id` of a pair is in
/// the index, the text of that document replaces the text in the pair.
///
/// # Errors
///
/// As for [`read_pairs`], or a `document_id` is not in the index.
pub fn read_pairs_among(
    files: Vec<Box<dyn Records>>,
    index: &[LocatedText],
) -> Result<PairSet, ToolsError> {
    let files = files.into_iter().map(JsonLines::from_records);
    let mut set = PairSet::default();
    let mut named_documents = NamedDocuments::new(index);
    let mut faults = Faults::default();
    for lines in files {
        let n_before = set.pairs().len();
        let name = lines.path().display().to_string();
        let mut is_valid = true;
        for line in lines {
            let pair = line.and_then(|(location, row)| {
                push(&mut set, &mut named_documents, &location, &row)
                    .map_err(|error| error.at(location))
            });
            is_valid &= faults.take(pair).is_some();
        }
        if is_valid && set.pairs().len() == n_before {
            let kind = "new pairs";
            faults.take::<()>(Err(ToolsError::Empty { what: kind }.at(name)));
        }
    }
    faults.into_result()?;
    Ok(set)
}

/// Document texts by id.
struct NamedDocuments<'i> {
    /// Texts of the index, if there is one.
    index: HashMap<&'i str, &'i str>,
    /// Texts of the pairs read so far.
    seen: HashMap<String, String>,
}

impl<'i> NamedDocuments<'i> {
    fn new(index: &'i [LocatedText]) -> Self {
        let ids = index.iter();
        let ids =
            ids.filter_map(|document| Some((document.id.as_deref()?, document.text.as_str())));
        Self {
            index: ids.collect(),
            seen: HashMap::new(),
        }
    }

    /// The text of the document with this id; `own` is the text in the pair.
    fn document_text(
        &mut self,
        id: &str,
        row_text: Option<&str>,
    ) -> Result<Option<String>, ToolsError> {
        if !self.index.is_empty() {
            let text = self.index.get(id);
            let text = text.ok_or_else(|| ToolsError::UnknownDocument { id: id.to_owned() })?;
            return Ok(Some((*text).to_owned()));
        }
        let Some(row_text) = row_text else {
            return Ok(None);
        };
        match self.seen.get(id) {
            Some(text) if text != row_text => Err(ToolsError::TwoTexts { id: id.to_owned() }),
            Some(_) => Ok(Some(row_text.to_owned())),
            None => {
                self.seen.insert(id.to_owned(), row_text.to_owned());
                Ok(Some(row_text.to_owned()))
            }
        }
    }
}

fn push(
    set: &mut PairSet,
    named_documents: &mut NamedDocuments<'_>,
    location: &str,
    row: &Value,
) -> Result<(), ToolsError> {
    let fields = Fields::new(row, "", ROW)?;
    let mined = mined_negatives(row);
    let mut known_fields = vec![
        "id",
        "query",
        "anchor",
        "positive",
        "document",
        "document_id",
        "negatives",
        "negative",
    ];
    known_fields.extend(SCORES);
    known_fields.extend(mined.iter().copied());
    fields.only(&known_fields)?;
    let either = |names: [&str; 2]| match fields.optional_text(names[0])? {
        Some(text) => Ok(Some(text)),
        None => fields.optional_text(names[1]),
    };
    let mut negatives = Vec::new();
    for name in ["negatives", "negative"] {
        match fields.get(name) {
            Some(Value::String(text)) => negatives.push(text.clone()),
            _ => negatives.extend(fields.texts(name)?),
        }
    }
    for name in mined {
        negatives.extend(fields.optional_text(name)?.map(str::to_owned));
    }
    let [query, document] = PAIR_FIELDS;
    let query = either(query)?.ok_or_else(|| fields.missing(query[0]))?;
    let row_text = either(document)?;
    let text = match fields.get("document_id").and_then(name_of) {
        Some(id) => named_documents.document_text(&id, row_text)?,
        None => row_text.map(str::to_owned),
    };
    let document = text.ok_or_else(|| fields.missing(document[0]))?;
    let id = fields.optional_text("id")?.unwrap_or(location);
    set.push_from(location, id.to_owned(), query, &document, &negatives)
}

/// The fields `negative_1`, `negative_2`, … of a row, in numeric order.
fn mined_negatives(row: &Value) -> Vec<&str> {
    let keys = row.as_object().into_iter().flat_map(|row| row.keys());
    let mut mined: Vec<(usize, &str)> = keys
        .filter_map(|key| Some((key.strip_prefix("negative_")?.parse().ok()?, key.as_str())))
        .collect();
    mined.sort_unstable();
    mined.into_iter().map(|(_, key)| key).collect()
}

/// Reads the documents of an index: JSON Lines of texts, API documents in any layout of
/// [`ApiCatalogue::read`], or a `.txt` file with one text per line. A text is a JSON string, or the
/// field `document` or `document_text` of an object with an optional id (`id` or `_id`). The id of an API
/// document is its call name.
///
/// # Errors
///
/// - the file cannot be read, or contains no document
/// - lines are not documents, or have a duplicate key; the error lists all such lines, with file,
///   line and field
/// - two documents have the same `id` and different texts
/// - an API document is invalid
pub fn read_documents(path: &Path) -> Result<Vec<LocatedText>, ToolsError> {
    if path.extension().is_some_and(|ending| ending == "txt") {
        let texts = TextLines::open(path)?.map(|line| {
            let (location, text) = line?;
            let text = text.trim().to_owned();
            Ok(LocatedText {
                place: location,
                text,
                id: None,
            })
        });
        return collect_rows(texts);
    }
    let first_row = JsonLines::open(path)?.next();
    let is_text = matches!(&first_row, Some(Ok((_, row))) if text_of(row).is_some());
    if !is_text {
        let catalogue = ApiCatalogue::read(path)?;
        return Ok(catalogue
            .iter()
            .map(|document| LocatedText {
                place: document.call_name(),
                text: document.retriever_text(),
                id: Some(document.call_name()),
            })
            .collect());
    }
    let lines = JsonLines::open_rows(path)?;
    let mut texts: HashMap<String, String> = HashMap::new();
    collect_rows(lines.map(|line| {
        let (location, row) = line?;
        let text = text_of(&row).filter(|text| !text.trim().is_empty());
        let Some(text) = text else {
            return Err(ToolsError::from(ReadError::missing("document", DOCUMENT)).at(location));
        };
        let id = id_of(&row);
        if let Some(id) = &id
            && texts
                .insert(id.clone(), text.to_owned())
                .is_some_and(|earlier_text| earlier_text != text)
        {
            return Err(ToolsError::TwoTexts { id: id.clone() }.at(location));
        }
        Ok(LocatedText {
            text: text.to_owned(),
            place: location,
            id,
        })
    }))
}

fn text_of(row: &Value) -> Option<&str> {
    let field = row.get("document").or_else(|| row.get("text"));
    field.unwrap_or(row).as_str()
}

/// The id of a document, as text.
fn id_of(row: &Value) -> Option<String> {
    name_of(row.get("id").or_else(|| row.get("_id"))?)
}

fn name_of(id: &Value) -> Option<String> {
    match id {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn pairs_file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, text).expect("written");
        (folder, path)
    }

    fn read_text(text: &str) -> Result<PairSet, ToolsError> {
        let (_folder, path) = pairs_file(text);
        read_pairs(&[path])
    }

    #[test]
    fn both_field_spellings_are_read_and_texts_are_deduplicated() {
        let set = read_text(concat!(
            "{\"query\": \"q\", \"positive\": \"a\", \"negatives\": [\"c\"]}\n",
            "{\"anchor\": \"q\", \"document\": \"b\", \"negative\": \"c\", \"id\": \"second\"}\n",
            "{\"query\": \"q\", \"positive\": \"a\"}\n",
        ))
        .expect("pairs");
        assert_eq!(set.queries(), ["q"]);
        assert_eq!(set.documents(), ["a", "c", "b"]);
        assert_eq!(set.pairs().len(), 2, "a repeated pair counts once");
        assert_eq!(set.pairs()[1].id, "second");
        assert_eq!(set.pairs()[1].negatives, [1]);
        assert_eq!(
            set.relevant_documents(0)
                .iter()
                .copied()
                .collect::<Vec<_>>(),
            [0, 2]
        );
    }

    #[test]
    fn negatives_are_read_from_lists_and_from_single_strings() {
        let set = read_text(concat!(
            "{\"anchor\": \"q\", \"positive\": \"a\", \"negative_10\": \"d\", \"negative_2\": \"c\",",
            " \"negative_1\": \"b\", \"negative_3\": null, \"score\": [0.9, 0.4]}\n",
            "{\"query\": \"p\", \"positive\": \"a\", \"negatives\": \"e\", \"score\": 0.5}\n",
        ))
        .expect("pairs");
        assert_eq!(set.documents(), ["a", "b", "c", "d", "e"]);
        assert_eq!(set.pairs()[0].negatives, [1, 2, 3]);
        assert_eq!(set.pairs()[1].negatives, [4]);
    }

    #[test]
    fn a_document_is_found_by_its_id_as_number_or_string() {
        let rows =
            "{\"id\": \"t\", \"text\": \"Tide times\"}\n{\"_id\": 7, \"document\": \"Maps\"}\n";
        let (_folder, path) = pairs_file(rows);
        let index = read_documents(&path).expect("documents");
        let read_among_index = |text: &str| {
            let (_folder, path) = pairs_file(text);
            let records = open_rows(&path).expect("opens");
            read_pairs_among(vec![records], &index)
        };
        let set = read_among_index(concat!(
            "{\"query\": \"q\", \"positive\": \"tide  TIMES\", \"document_id\": \"t\"}\n",
            "{\"query\": \"p\", \"document_id\": \"7\"}\n",
        ))
        .expect("pairs");
        assert_eq!(set.documents(), ["Tide times", "Maps"]);
        let error =
            read_among_index("{\"query\": \"q\", \"document_id\": \"u\"}").expect_err("unknown");
        assert!(
            error.to_string().contains(":1: document_id \"u\""),
            "{error}"
        );
        let duplicated = concat!(
            "{\"query\": \"q\", \"positive\": \"a\", \"document_id\": \"d\"}\n",
            "{\"query\": \"p\", \"positive\": \"b\", \"document_id\": \"d\"}\n",
        );
        let error = read_text(duplicated).expect_err("two texts").to_string();
        assert!(error.contains(":2: id \"d\" is used for two"), "{error}");
    }

    #[test]
    fn an_error_names_its_line_and_field() {
        let faults = [
            (
                "{\"query\": \"q\", \"positive\": \"a\", \"negative_1\": 3}",
                "negative_1 is a number",
            ),
            (
                "{\"query\": \"q\", \"positive\": \"a\", \"label\": 0}",
                "label",
            ),
            (
                "{\"query\": \"q\", \"document_id\": \"d\"}",
                "\"positive\" is missing",
            ),
            ("{\"query\": \"q\"}", ":1: field \"positive\" is missing"),
            (
                "{\"query\": \" \", \"positive\": \"a\"}",
                ":1: query is empty",
            ),
            ("{\"query\": 3, \"positive\": \"a\"}", "query is a number"),
            ("{\"query\": \"q\", \"postive\": \"a\"}", "positive"),
            (
                "{\"query\": \"q\", \"positive\": \"a\", \"negatives\": [\"a\"]}",
                "a negative is identical to the positive document",
            ),
            ("[1]", "the file is one JSON array"),
            ("", "has no new pairs"),
        ];
        for (text, expected) in faults {
            let error = read_text(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_errors_of_all_files_are_reported_together() {
        let valid = "{\"query\": \"q\", \"positive\": \"a\"}\n";
        let invalid = "{\"query\": \"q\"}\n";
        let repeated_key = "{\"query\": \"q\", \"positive\": \"a\", \"query\": \"p\"}\n";
        let (_first, first_file) = pairs_file(&[invalid, valid, repeated_key, "{\n"].concat());
        let (_second, second) = pairs_file(invalid);
        let (_blank, blank) = pairs_file("\n");
        let message = read_pairs(&[&first_file, &second, &blank])
            .expect_err("five faults")
            .to_string();
        let lines: Vec<&str> = message.lines().collect();
        for (line, expected) in lines.iter().zip([
            ":1: field \"positive\" is missing; a row is ",
            ":3: column 39: the key \"query\" occurs twice in one object; delete one of the two",
            ":4: not valid JSON: ",
            ":1: same error",
            "rows.jsonl: the file has no new pairs; ",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert_eq!(lines.len(), 5, "{message}");

        let message = read_text(&invalid.repeat(11))
            .expect_err("many")
            .to_string();
        let tenth_line = message.lines().nth(9).unwrap_or_default();
        assert!(tenth_line.ends_with(":10: same error"), "{message}");
        assert_eq!(message.lines().last(), Some("and 1 more row with errors"));
    }

    #[test]
    fn documents_are_texts_or_api_documents() {
        let (_folder, path) = pairs_file("{\"document\": \"a\"}\n{\"text\": \"b\"}\n");
        let documents = read_documents(&path).expect("documents");
        let texts: Vec<&str> = documents
            .iter()
            .map(|document| document.text.as_str())
            .collect();
        assert_eq!(texts, ["a", "b"]);
        let (_folder, plain) = pairs_file("\"one\"\n\"two, { and }\"\n");
        let plain = read_documents(&plain).expect("texts");
        let texts: Vec<&str> = plain
            .iter()
            .map(|document| document.text.as_str())
            .collect();
        assert_eq!(texts, ["one", "two, { and }"]);
        let (folder, plain) = pairs_file("Tide, times\n\n {not JSON\n");
        let lines = folder.path().join("rows.txt");
        fs::rename(plain, &lines).expect("moved");
        let lines = read_documents(&lines).expect("texts");
        let texts: Vec<&str> = lines
            .iter()
            .map(|document| document.text.as_str())
            .collect();
        assert_eq!(texts, ["Tide, times", "{not JSON"]);
        let (_folder, duplicated) =
            pairs_file("{\"id\": 1, \"text\": \"a\"}\n{\"id\": 1, \"text\": \"b\"}\n");
        let error = read_documents(&duplicated)
            .expect_err("two texts")
            .to_string();
        assert!(error.contains(":2: id \"1\" is used for two"), "{error}");
        assert!(
            documents[1].place.ends_with("rows.jsonl:2"),
            "{documents:?}"
        );
        let rows = "{\"document\": \"a\"}\n{\"name\": \"b\"}\n{\"text\": \"c\", \"text\": \"d\"}\n";
        let (_folder, path) = pairs_file(rows);
        let error = read_documents(&path)
            .expect_err("a row without text, and one with two")
            .to_string();
        for invalid in [
            ":2: field \"document\" is missing",
            ":3: column 20: the key \"text\" occurs twice",
        ] {
            assert!(error.contains(invalid), "{error}");
        }
        let (_folder, path) = pairs_file(
            "{\"tool_name\": \"Harbour\", \"api_name\": \"Tide\", \"api_description\": \"d\"}\n",
        );
        let texts = read_documents(&path).expect("an API document");
        assert!(texts[0].text.contains("Tide"), "{texts:?}");
    }
}
