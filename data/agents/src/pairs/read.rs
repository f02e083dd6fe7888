//! JSON Lines of pairs and of documents.
//!
//! Fields have the names of sentence-transformers (`anchor`, `positive`, `negative`) or those of
//! retrieval (`query`, `document`, `negatives`).

use std::path::Path;

use serde_json::Value;
use tooltune_rows::ReadError;
use tooltune_rows::faults::{Faults, all_rows};
use tooltune_rows::lines::{Records, open_rows};
use tooltune_rows::tools::{ApiCatalogue, Fields, JsonLines, ToolsError};

use super::set::{PairSet, PlacedText};

/// The fields of a pair, each with its two names: the query, and its right document.
pub const PAIR_FIELDS: [[&str; 2]; 2] = [["query", "anchor"], ["positive", "document"]];

/// What a row of pairs holds.
const ROW: &str = "a row is {\"query\": text, \"positive\": text} with an optional list \
                   \"negatives\" (anchor, document and negative are read, too)";

/// What a row of documents holds.
const DOCUMENT: &str = "a row is {\"document\": text}, or an API document";

/// Reads the pairs of all files, one after the other.
///
/// # Errors
///
/// - a file cannot be read, or holds no pair
/// - lines are no pairs, or have a key twice; the error tells of all lines at fault, with file, line
///   and field
pub fn read_pairs<P: AsRef<Path>>(paths: &[P]) -> Result<PairSet, ToolsError> {
    let files = paths.iter().map(|path| open_rows(path.as_ref()));
    read_pairs_of(files.collect::<Result<_, _>>()?)
}

/// Reads the pairs of files that are open, one after the other.
///
/// # Errors
///
/// As [`read_pairs`].
pub fn read_pairs_of(files: Vec<Box<dyn Records>>) -> Result<PairSet, ToolsError> {
    let files = files.into_iter().map(JsonLines::of_records);
    let mut set = PairSet::default();
    let mut faults = Faults::default();
    for lines in files {
        let n_before = set.pairs().len();
        let name = lines.path().display().to_string();
        let mut is_sound = true;
        for line in lines {
            let pair = line.and_then(|(place, row)| {
                push(&mut set, &place, &row).map_err(|error| error.at(place))
            });
            is_sound &= faults.take(pair).is_some();
        }
        if is_sound && set.pairs().len() == n_before {
            let what = "new pairs";
            faults.take::<()>(Err(ToolsError::Empty { what }.at(name)));
        }
    }
    faults.none()?;
    Ok(set)
}

fn push(set: &mut PairSet, place: &str, row: &Value) -> Result<(), ToolsError> {
    let fields = Fields::new(row, "", ROW)?;
    fields.only(&[
        "id",
        "query",
        "anchor",
        "positive",
        "document",
        "negatives",
        "negative",
    ])?;
    let either = |names: [&str; 2]| match fields.optional_text(names[0])? {
        Some(text) => Ok(text),
        None => fields
            .optional_text(names[1])?
            .ok_or_else(|| fields.missing(names[0])),
    };
    let negatives = match fields.get("negative") {
        Some(Value::String(text)) => vec![text.clone()],
        Some(_) => fields.texts("negative")?,
        None => fields.texts("negatives")?,
    };
    let [query, document] = PAIR_FIELDS;
    let (query, document) = (either(query)?, either(document)?);
    let id = fields.optional_text("id")?.unwrap_or(place);
    set.push_at(place, id.to_owned(), query, document, &negatives)
}

/// Reads the documents of an index: JSON Lines of texts, or API documents in any layout that
/// [`ApiCatalogue::read`] knows.
///
/// # Errors
///
/// - the file cannot be read, or holds no document
/// - lines are no documents, or have a key twice; the error tells of all lines at fault, with file,
///   line and field
/// - it holds API documents, of which one is none
pub fn read_documents(path: &Path) -> Result<Vec<PlacedText>, ToolsError> {
    let first = JsonLines::open(path)?.next();
    let is_text = matches!(&first, Some(Ok((_, row))) if text_of(row).is_some());
    if !is_text {
        let catalogue = ApiCatalogue::read(path)?;
        return Ok(catalogue
            .iter()
            .map(|document| PlacedText {
                place: document.call_name(),
                text: document.retriever_text(),
            })
            .collect());
    }
    let lines = JsonLines::of_rows(path)?;
    all_rows(lines.map(|line| {
        let (place, row) = line?;
        let text = text_of(&row).filter(|text| !text.trim().is_empty());
        match text {
            Some(text) => Ok(PlacedText {
                text: text.to_owned(),
                place,
            }),
            None => Err(ToolsError::from(ReadError::missing("document", DOCUMENT)).at(place)),
        }
    }))
}

fn text_of(row: &Value) -> Option<&str> {
    let field = row.get("document").or_else(|| row.get("text"))?;
    field.as_str()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, text).expect("written");
        (folder, path)
    }

    fn pairs(text: &str) -> Result<PairSet, ToolsError> {
        let (_folder, path) = file(text);
        read_pairs(&[path])
    }

    #[test]
    fn both_spellings_are_read_and_texts_are_kept_once() {
        let set = pairs(concat!(
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
        assert_eq!(set.relevant(0).iter().copied().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_fault_names_its_line_and_field() {
        let faults = [
            ("{\"query\": \"q\"}", ":1: field \"positive\" is missing"),
            (
                "{\"query\": \" \", \"positive\": \"a\"}",
                ":1: query is empty",
            ),
            ("{\"query\": 3, \"positive\": \"a\"}", "query is a number"),
            ("{\"query\": \"q\", \"postive\": \"a\"}", "positive"),
            (
                "{\"query\": \"q\", \"positive\": \"a\", \"negatives\": [\"a\"]}",
                "a negative is the right document itself",
            ),
            ("[1]", "the file is one JSON array"),
            ("", "holds no new pairs"),
        ];
        for (text, expected) in faults {
            let error = pairs(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_faults_of_all_files_are_told_at_once() {
        let good = "{\"query\": \"q\", \"positive\": \"a\"}\n";
        let bad = "{\"query\": \"q\"}\n";
        let twice = "{\"query\": \"q\", \"positive\": \"a\", \"query\": \"p\"}\n";
        let (_first, first) = file(&[bad, good, twice, "{\n"].concat());
        let (_second, second) = file(bad);
        let (_blank, blank) = file("\n");
        let told = read_pairs(&[&first, &second, &blank])
            .expect_err("five faults")
            .to_string();
        let lines: Vec<&str> = told.lines().collect();
        for (line, expected) in lines.iter().zip([
            ":1: field \"positive\" is missing; a row is ",
            ":3: column 39: the key \"query\" stands twice in one object; keep one of the two",
            ":4: not valid JSON: ",
            ":1: the same",
            "rows.jsonl: the file holds no new pairs; ",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert_eq!(lines.len(), 5, "{told}");

        let told = pairs(&bad.repeat(11)).expect_err("many").to_string();
        let tenth = told.lines().nth(9).unwrap_or_default();
        assert!(tenth.ends_with(":10: the same"), "{told}");
        assert_eq!(told.lines().last(), Some("and 1 more row at fault"));
    }

    #[test]
    fn documents_are_texts_or_api_documents() {
        let (_folder, path) = file("{\"document\": \"a\"}\n{\"text\": \"b\"}\n");
        let documents = read_documents(&path).expect("documents");
        let texts: Vec<&str> = documents.iter().map(|found| found.text.as_str()).collect();
        assert_eq!(texts, ["a", "b"]);
        assert!(
            documents[1].place.ends_with("rows.jsonl:2"),
            "{documents:?}"
        );
        let rows = "{\"document\": \"a\"}\n{\"name\": \"b\"}\n{\"text\": \"c\", \"text\": \"d\"}\n";
        let (_folder, path) = file(rows);
        let error = read_documents(&path)
            .expect_err("a row without text, and one with two")
            .to_string();
        for fault in [
            ":2: field \"document\" is missing",
            ":3: column 20: the key \"text\" stands twice",
        ] {
            assert!(error.contains(fault), "{error}");
        }
        let (_folder, path) = file(
            "{\"tool_name\": \"Harbour\", \"api_name\": \"Tide\", \"api_description\": \"d\"}\n",
        );
        let texts = read_documents(&path).expect("an API document");
        assert!(texts[0].text.contains("Tide"), "{texts:?}");
    }
}
