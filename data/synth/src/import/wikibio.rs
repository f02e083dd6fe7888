//! Imports WikiBio's info boxes and sentences.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::read_text;
use tooltune_rows::text::SlotRow;

use super::gold::slot_row;
use super::{ImportError, Imported};

/// Fields that are not facts about the person.
const NOT_FACTS: [&str; 3] = ["image", "caption", "article_title"];

/// A field without a value.
const NONE: &str = "<none>";

/// Imports WikiBio: a `.box` file, and a text file with one text per line of the `.box` file.
///
/// A line of the box file has tab-separated items `field_1:token`; the tokens of a field are joined
/// by spaces. A field is kept if its value occurs in the text as whole tokens, because the texts do
/// not contain all facts of the boxes. Fields are sorted by name. The files are lower-cased and
/// tokenized; the import does not undo this.
///
/// Persons without a kept field are dropped; omitted fields are counted.
///
/// # Errors
///
/// - a file cannot be read, or the two have different numbers of lines
/// - an item of a box has no `:`
///
/// # Source
///
/// SLOT, appendix D.1; the files have the format of the original WikiBio release.
pub fn import_wikibio(box_path: &Path, text_path: &Path) -> Result<Imported, ImportError> {
    let (boxes, texts) = (read_text(box_path)?, read_text(text_path)?);
    let (n_boxes, n_texts) = (boxes.lines().count(), texts.lines().count());
    if n_boxes != n_texts {
        return Err(ImportError::Lengths {
            first: box_path.to_owned(),
            n_first: n_boxes,
            second: text_path.to_owned(),
            n_second: n_texts,
        });
    }
    let mut imported = Imported::default();
    for (line_idx, (person, text)) in boxes.lines().zip(texts.lines()).enumerate() {
        let id = format!("{}:{}", box_path.display(), line_idx + 1);
        let fields = fields(person).map_err(|item| ImportError::Format {
            place: id.clone(),
            reason: format!("{item:?} has no colon"),
            expected: "items `field_1:token` with tabs between them",
        })?;
        let outcome = person_row(id, fields, text.trim(), &mut imported);
        imported.record(outcome);
    }
    Ok(imported)
}

/// The values of a line by field.
fn fields(person: &str) -> Result<BTreeMap<&str, Vec<&str>>, &str> {
    let mut fields: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let items = person.split('\t').filter(|item| !item.trim().is_empty());
    for item in items {
        let (name, token) = item.split_once(':').ok_or(item)?;
        let field_and_number = name.rsplit_once('_').filter(|(field, number)| {
            !field.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        });
        let field = field_and_number.map_or(name, |(field, _)| field);
        fields.entry(field).or_default().push(token);
    }
    Ok(fields)
}

fn person_row(
    id: String,
    fields: BTreeMap<&str, Vec<&str>>,
    text: &str,
    imported: &mut Imported,
) -> Result<SlotRow, &'static str> {
    if text.is_empty() {
        return Err("the text is empty");
    }
    let spaced = format!(" {text} ");
    let mut gold = Map::new();
    for (field, tokens) in fields {
        let value = tokens.join(" ");
        if value.is_empty() || value == NONE || field.is_empty() {
            continue;
        }
        if NOT_FACTS.contains(&field) {
            imported.skip("a field of the page, not of the person");
        } else if spaced.contains(&format!(" {value} ")) {
            gold.insert(field.to_owned(), Value::from(value));
        } else {
            imported.skip("a field whose value is not in the text");
        }
    }
    if gold.is_empty() {
        Err("no field's value is in the text")
    } else {
        Ok(slot_row(id, text, gold))
    }
}
